"""An answer that is sent as it comes. Does not know in which form."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from python_llm_client.failures import ClientError
from python_llm_client.gateway.disconnect import ClientGoneError, PartsResponse, gone, while_connected
from python_llm_client.gateway.errors import ApiError, api_error


async def whole_response(request: Request, work: Coroutine[Any, Any, bytes]) -> Response:
    """The JSON that `work` makes; it is cancelled when the client hangs up. Raises what it raises."""
    try:
        return Response(await while_connected(request, work), media_type="application/json")
    except ClientGoneError:
        return gone()


async def parts_response(
    request: Request, parts: AsyncGenerator[bytes, None], media_type: str, error_part: Callable[[ApiError], bytes]
) -> Response:
    """Sends `parts`, and closes them when the client hangs up.

    Raises what the first part raises: as long as nothing was sent the status can still be said. A ClientError after
    that becomes the last part.
    """
    try:
        first = await while_connected(request, _next(parts))
    except ClientGoneError:
        await parts.aclose()
        return gone()
    except BaseException:
        await parts.aclose()
        raise
    return PartsResponse(_after(first, parts, error_part), media_type)


async def _next(parts: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(parts)


async def _after(
    first: bytes, rest: AsyncGenerator[bytes, None], error_part: Callable[[ApiError], bytes]
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(rest):
        yield first
        try:
            async for part in rest:
                yield part
        except ClientError as error:
            yield error_part(api_error(error))
