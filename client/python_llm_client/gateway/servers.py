"""The Triton servers behind the gateway: which models they have, which one serves a request.

A request goes to the server that has its model and, by the gateway's own count, the least to do. A server that does not
answer is passed over until it answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from python_llm_client.answers import Delta
from python_llm_client.async_client import AsyncClient
from python_llm_client.connection import Tls
from python_llm_client.failures import (
    ClientError,
    ConnectionLostError,
    DeadlineExceededError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
)
from python_llm_client.request import GenerationRequest
from python_llm_client.retry import RetryPolicy, is_safe_to_retry

_LOG = logging.getLogger("python_llm.gateway")
_REFRESH_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 0.5
"""A request for an unknown model makes us look again, but not more often than this."""
_PATIENCE = 3
"""So often in a row a server that has models may be too slow to tell which: it can be busy."""
_TEXT_FACE = frozenset({"text_input", "sampling_parameters"})
"""A model that takes these is a language model, as far as the gateway can serve it."""


@dataclass(frozen=True)
class ServedModel:
    """A model that some server has."""

    name: str
    inputs: frozenset[str]
    since: int
    """Unix time when the gateway first saw it."""


class _Server:
    def __init__(self, url: str, tls: Tls | None) -> None:
        self.url = url
        # The pool itself tries again, with another server first.
        self.client = AsyncClient(url, tls=tls, retry=RetryPolicy(retries=0))
        self.models: dict[str, frozenset[str]] = {}
        """The last known, also of one that does not answer."""
        self.in_flight = 0
        self.fault: str | None = "not asked yet"
        """Why it is passed over; None when it answers."""

        self._late = 0

    async def refresh(self) -> None:
        """Never raises."""
        try:
            self.models, self.fault, self._late = await self._ask(), None, 0
        except DeadlineExceededError as error:
            self._late += 1
            if not self.models or self._late >= _PATIENCE:
                self.fault = str(error)
        except ClientError as error:
            self.fault = str(error)
        except Exception as error:
            _LOG.error("the models of %s could not be looked up", self.url, exc_info=error)
            self.fault = f"{type(error).__name__}: {error}"

    async def _ask(self) -> dict[str, frozenset[str]]:
        models = {}
        for name in await self.client.models():
            try:
                inputs = await self.client.inputs(name)
            except (UnreachableError, ConnectionLostError):
                raise
            except (NotFoundError, UnavailableError):
                # Unloaded since.
                continue
            if inputs >= _TEXT_FACE:
                models[name] = inputs
        return models


class ServerPool:
    """Use `start` and `stop`, both in the event loop of the requests."""

    def __init__(self, urls: Sequence[str], tls: Tls | None = None) -> None:
        self._servers = [_Server(url, tls) for url in urls]
        self._since: dict[str, int] = {}
        self._refreshed = 0.0
        self._refreshing: asyncio.Task[None] | None = None
        """The look that is under way, for all who wait for one."""
        self._repeating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._refresh()
        self._repeating = asyncio.create_task(self._refresh_for_ever())

    async def stop(self) -> None:
        tasks = [task for task in (self._repeating, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.client.close() for server in self._servers))

    def models(self) -> list[ServedModel]:
        """All models of all servers that answer, by name."""
        merged: dict[str, frozenset[str]] = {}
        for server in self._servers:
            if server.fault is None:
                # Of a model that differs between servers, only what all of them take is sure.
                for name, inputs in server.models.items():
                    merged[name] = merged.get(name, inputs) & inputs
        now = int(time.time())
        return [ServedModel(name, inputs, self._since.setdefault(name, now)) for name, inputs in sorted(merged.items())]

    async def model(self, name: str) -> ServedModel:
        """Raises NotFoundError that names what there is, or UnreachableError when those that have it do not answer."""
        if (found := self._find(name)) is None and time.monotonic() - self._refreshed > _ASK_AGAIN_SECONDS:
            await self._refresh()
            found = self._find(name)
        if found is not None:
            return found
        if all(server.fault for server in self._servers):
            raise UnreachableError("no Triton server behind this gateway answers", "UNAVAILABLE")
        if any(name in server.models for server in self._servers if server.fault):
            raise UnreachableError(f"no server that has the model {name!r} answers", "UNAVAILABLE")
        there = ", ".join(model.name for model in self.models()) or "none"
        raise NotFoundError(f"the model {name!r} does not exist; there are: {there}", "NOT_FOUND")

    def status(self) -> dict[str, str]:
        """Server -> "ok" or what is wrong with it."""
        return {server.url: server.fault or "ok" for server in self._servers}

    async def responses(self, request: GenerationRequest, timeout: float) -> AsyncGenerator[list[Delta], None]:
        """What comes of `request`, response by response. Closing it cancels the request. Raises ClientError."""
        end = time.monotonic() + timeout
        refusal: ClientError | None = None
        for server in self._candidates(request.model):
            has_begun = False
            server.in_flight += 1
            try:
                async with contextlib.aclosing(server.client.responses(request, end - time.monotonic())) as responses:
                    async for deltas in responses:
                        has_begun = True
                        yield deltas
                return
            except ClientError as error:
                if isinstance(error, (UnreachableError, ConnectionLostError)):
                    server.fault = str(error)
                if not is_safe_to_retry(error, has_begun=has_begun):
                    raise
                refusal = error
            finally:
                server.in_flight -= 1
        raise refusal or NotFoundError(f"no server has the model {request.model!r} any more", "NOT_FOUND")

    def _candidates(self, model: str) -> list[_Server]:
        """Best first. Those that did not answer come last: one of them may be back."""
        having = [server for server in self._servers if model in server.models]
        return sorted(having, key=lambda server: (server.fault is not None, server.in_flight))

    def _find(self, name: str) -> ServedModel | None:
        return next((model for model in self.models() if model.name == name), None)

    async def _refresh(self) -> None:
        """One look at a time: who comes while one is under way waits for that."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh_all())
        await asyncio.shield(self._refreshing)

    async def _refresh_all(self) -> None:
        await asyncio.gather(*(server.refresh() for server in self._servers))
        self._refreshed = time.monotonic()
        # Notes since when each is there.
        self.models()

    async def _refresh_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            try:
                await self._refresh()
            except Exception as error:
                _LOG.error("the models could not be looked up", exc_info=error)
