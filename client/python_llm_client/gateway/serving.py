"""One answer from the models, counted: what the paths of all APIs ask for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from python_llm_client.answers import Answer, Delta, collect
from python_llm_client.gateway.metrics import GatewayMetrics
from python_llm_client.gateway.servers import ServerPool
from python_llm_client.request import GenerationRequest


@dataclass(frozen=True)
class Serving:
    """The servers, and how long an answer may take."""

    pool: ServerPool
    metrics: GatewayMetrics
    timeout: float
    """Seconds."""

    async def ask(self, request: GenerationRequest) -> Answer:
        """The whole answer. Cancelling it cancels the request. Raises ClientError."""
        deltas: list[Delta] = []
        async with contextlib.aclosing(self.responses(request)) as responses:
            async for response in responses:
                deltas += response
        return collect(deltas, request.num_sequences)

    async def responses(self, request: GenerationRequest) -> AsyncGenerator[list[Delta], None]:
        """What comes of `request`, response by response. Closing it cancels the request. Raises ClientError."""
        start = time.monotonic()
        has_begun = False
        async with contextlib.aclosing(self.pool.responses(request, self.timeout)) as responses:
            async for deltas in responses:
                if not has_begun:
                    has_begun = True
                    if request.stream:
                        self.metrics.first_token(request.model, time.monotonic() - start)
                for delta in deltas:
                    if delta.usage is not None:
                        self.metrics.spent(request.model, delta.usage)
                yield deltas
