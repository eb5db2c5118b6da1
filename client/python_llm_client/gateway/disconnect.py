"""Stops the work for a client that has gone away, before and while its answer is being sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientGoneError when the client hangs up before.

    The body must have been read: what else comes from the client is taken for its end.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_hung_up(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for job in (task, watch):
            job.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            # The request to the model is cancelled when this returns.
            await task


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class PartsResponse(StreamingResponse):
    """Sends the parts of a generator as they come, and closes it when all are sent or the client hangs up."""

    def __init__(self, parts: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(parts, media_type=media_type, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._parts.aclose()


def gone() -> Response:
    """For a client that will not read it; 499 is what proxies log for such a request."""
    return Response(status_code=499)
