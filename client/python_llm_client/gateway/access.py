"""Who may ask, how often, how much at once, and how long a body may be. ASGI middleware around the whole application.

A request holds its place from when its body is there until the last byte of its answer has been sent or its client has
hung up. A client that stays silent, or stops reading, is taken for one that has hung up.
"""

from __future__ import annotations

import time
from collections import deque

import anyio
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
_BODY_SECONDS = 30.0
"""For a body to arrive."""
_SEND_SECONDS = 60.0
"""For a client to make room for the next part of its answer."""
_SMALL_BODY = 64 << 10
"""Bytes; what asks for no text needs no more."""


class _HungUpError(Exception):
    """The client does not read its answer."""


class _Holder:
    """What one key has used. Without keys there is one for everybody."""

    def __init__(self, key: ApiKey | None) -> None:
        self.key = key
        self._times: deque[float] = deque()
        self._running = 0

    def check(self, now: float) -> None:
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

    def enter(self, now: float) -> None:
        """Raises ApiError when a limit is reached."""
        self.check(now)
        if self.key is not None and self.key.requests_per_minute is not None:
            self._times.append(now)
        self._running += 1

    def leave(self) -> None:
        self._running -= 1


class Access:
    """Refuses in the form of the API that was called, before the application sees the request."""

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

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            # The server below waits until the client reads, for ever if it has to.
            with anyio.move_on_after(_SEND_SECONDS):
                await send(message)
                return
            raise _HungUpError

        try:
            try:
                await self._serve(scope, receive, sending)
            except ApiError as error:
                await error.response(path)(scope, receive, sending)
        except _HungUpError:
            pass
        except Exception:
            # Whoever called us says so to the client.
            status = status or 500
            raise
        finally:
            # 499: it hung up before there was anything to say.
            known = path if path in self._paths else "other"
            self._metrics.answered(known, status or 499, time.monotonic() - start)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        holder = self._holder(scope) if self._is_guarded(scope) else self._anybody
        scope = _taken_for_json(scope)
        if path not in GENERATING or scope["method"] != "POST":
            if (body := await _body(scope, receive, min(_SMALL_BODY, self._settings.max_body_bytes))) is not None:
                await self._app(scope, _replay(body, receive), send)
            return
        # Who is refused anyway need not send a body; who has not sent one takes nobody's place.
        self._check_room()
        holder.check(time.monotonic())
        if (body := await _body(scope, receive, self._settings.max_body_bytes)) is None:
            return
        self._check_room()
        holder.enter(time.monotonic())
        self._count(1)
        try:
            await self._app(scope, _replay(body, receive), send)
        finally:
            self._count(-1)
            holder.leave()

    def _check_room(self) -> None:
        """Raises ApiError when there is none."""
        most = self._settings.max_concurrent
        if self._running >= most:
            raise _too_many(f"the gateway has {most} requests under way, and takes no more", RETRY_SECONDS)

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


async def _body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """The whole body; None when the client hung up before. Raises ApiError when it is too long, or too late."""
    told = Headers(scope=scope).get("content-length", "")
    if told.isdecimal() and int(told) > most:
        raise _too_long(most)
    parts: list[bytes] = []
    length = 0
    with anyio.move_on_after(_BODY_SECONDS):
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            length += len(parts[-1])
            if length > most:
                raise _too_long(most)
            if not message.get("more_body", False):
                return b"".join(parts)
    late = f"the body did not arrive within {_BODY_SECONDS:g} s"
    raise ApiError(408, late, code="request_timeout", headers={"connection": "close"})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives the body out once more, in one piece; then what else comes."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

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
