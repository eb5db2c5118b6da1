"""Who may ask, how often, how much at once, and how long a body may be. ASGI middleware around the whole application.

A request holds its place until the last byte of its answer has been sent or its client has hung up.
"""

from __future__ import annotations

import time
from collections import deque

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from python_llm_client.gateway.errors import RETRY_SECONDS, ApiError
from python_llm_client.gateway.keys import ApiKey, KeyRing
from python_llm_client.gateway.metrics import GatewayMetrics
from python_llm_client.gateway.settings import GatewaySettings

GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/api/chat", "/api/generate"})
_OPEN = frozenset({"/", "/health", "/metrics", "/api/version"})
"""Paths that need no key: they tell nothing about anybody's text."""
_MINUTE = 60.0


class _Holder:
    """What one key has used. Without keys there is one for everybody."""

    def __init__(self, key: ApiKey | None) -> None:
        self.key = key
        self._times: deque[float] = deque()
        self._running = 0

    def enter(self, now: float) -> None:
        """Raises ApiError when a limit is reached."""
        if self.key is not None:
            while self._times and self._times[0] <= now - _MINUTE:
                self._times.popleft()
            rate, most = self.key.requests_per_minute, self.key.max_concurrent
            if rate is not None and len(self._times) >= rate:
                wait = self._times[0] + _MINUTE - now
                message = f"the key {self.key.name!r} may make {rate} requests a minute; try again in {wait:.0f} s"
                raise _too_many(message, wait)
            if most is not None and self._running >= most:
                message = f"the key {self.key.name!r} may have {most} requests under way at once"
                raise _too_many(message, RETRY_SECONDS)
            if rate is not None:
                self._times.append(now)
        self._running += 1

    def leave(self) -> None:
        self._running -= 1


class Access:
    """Refuses in the form of the API that was called, before the body is read by anybody."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, metrics: GatewayMetrics, paths: frozenset[str]) -> None:
        """`paths`: those that the application has, for the metrics."""
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._paths = paths
        self._keys = KeyRing(settings.keys) if settings.keys else None
        self._holders: dict[str, _Holder] = {}
        self._anybody = _Holder(None)
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, start, status = scope["path"], time.monotonic(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._serve(scope, receive, noting)
        except ApiError as error:
            await error.response(path)(scope, receive, noting)
        finally:
            # 499: it hung up before there was anything to say.
            known = path if path in self._paths else "other"
            self._metrics.answered(known, status or 499, time.monotonic() - start)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        holder = self._holder(scope) if self._is_guarded(scope) else self._anybody
        scope = _taken_for_json(scope)
        if path not in GENERATING or scope["method"] != "POST":
            await self._app(scope, await self._bounded(scope, receive), send)
            return
        if self._running >= self._settings.max_concurrent:
            most = self._settings.max_concurrent
            raise _too_many(f"the gateway has {most} requests under way, and takes no more", RETRY_SECONDS)
        holder.enter(time.monotonic())
        self._count(1)
        try:
            await self._app(scope, await self._bounded(scope, receive), send)
        finally:
            self._count(-1)
            holder.leave()

    def _count(self, change: int) -> None:
        self._running += change
        self._metrics.running(self._running)

    def _is_guarded(self, scope: Scope) -> bool:
        # A browser asks with OPTIONS whether it may, and never sends a key with that.
        path = scope["path"]
        return path not in _OPEN and not path.startswith("/static/") and scope["method"] != "OPTIONS"

    def _holder(self, scope: Scope) -> _Holder:
        """Raises ApiError without a known key."""
        if self._keys is None:
            return self._anybody
        kind, _, value = Headers(scope=scope).get("authorization", "").partition(" ")
        key = self._keys.find(value.strip()) if kind.lower() == "bearer" else None
        if key is None:
            came = "an unknown key came" if value else "none came"
            message = f"an API key is needed (Authorization: Bearer ...); {came}"
            raise ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
        return self._holders.setdefault(key.name, _Holder(key))

    async def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Reads the body up to the limit, and gives it out again in one piece. Raises ApiError beyond."""
        most = self._settings.max_body_bytes
        told = Headers(scope=scope).get("content-length", "")
        if told.isdecimal() and int(told) > most:
            raise _too_long(most)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most:
                raise _too_long(most)
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        if more:
            waiting = [message]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        return replay


def _taken_for_json(scope: Scope) -> Scope:
    """curl -d says that it sends a form, and Ollama does not mind.

    A browser must mean what it says: for JSON it asks first whether a foreign page may send it.
    """
    if scope["method"] != "POST" or "origin" in Headers(scope=scope):
        return scope
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _too_many(message: str, wait: float) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", headers={"retry-after": str(max(1, round(wait)))})


def _too_long(most: int) -> ApiError:
    return ApiError(413, f"the body is longer than {most} bytes, the most that is taken", code="request_too_large")
