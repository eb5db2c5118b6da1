"""Several asynchronous generators as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

T = TypeVar("T")
_MOST_WAITING = 64
"""Items that nobody has taken yet; beyond, the sources wait."""


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(number of the source, item), as they come. An error of one source ends all; closing this closes all."""
    if len(sources) == 1:
        # The usual case, and the one that must be cheap.
        async with contextlib.aclosing(sources[0]) as source:
            async for item in source:
                yield 0, item
        return
    arrived: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(_MOST_WAITING)

    async def read(number: int, source: AsyncGenerator[T, None]) -> None:
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    await arrived.put((number, item))
            await arrived.put(None)
        except Exception as error:
            await arrived.put(error)

    readers = [asyncio.create_task(read(number, source)) for number, source in enumerate(sources)]
    try:
        for _ in readers:
            while (news := await arrived.get()) is not None:
                if isinstance(news, Exception):
                    raise news
                yield news
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
