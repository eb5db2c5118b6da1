"""Asks the models of one Triton server over gRPC, from asyncio. `client` is the same for threads.

All answers share one connection; each has a gRPC stream of its own, because one stream cannot cancel one request
without the others. A client belongs to the event loop that it is first used in.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc  # type: ignore[import-untyped]
import tritonclient.grpc.aio as triton

from python_llm_client.answers import Answer, Delta, collect
from python_llm_client.client import CHECK_SECONDS, GRACE_SECONDS, seconds_left
from python_llm_client.connection import Endpoint, Tls
from python_llm_client.failures import ClientError, NotFoundError, explain
from python_llm_client.request import GenerationRequest, Message
from python_llm_client.responses import ResponseReader
from python_llm_client.retry import RetryPolicy, is_safe_to_retry


class AsyncClient:
    """Talks to the server at `url` ("host:port" of its gRPC endpoint). Close it, or use it as a context manager."""

    def __init__(
        self,
        url: str = "127.0.0.1:8001",
        *,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        """`headers` go with every call."""
        self._endpoint = Endpoint(url, tls, dict(headers or {}))
        self._retry = retry or RetryPolicy()
        self._open: triton.InferenceServerClient | None = None
        self._draining: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Answers under way are cancelled."""
        if self._draining:
            await asyncio.wait(self._draining, timeout=GRACE_SECONDS)
        if self._open is not None:
            await self._open.close()
            self._open = None

    async def check(self, model: str) -> None:
        """Raises ClientError when no server answers, or when it does not serve `model`."""
        if await self._call("is_model_ready", model):
            return
        there = ", ".join(await self.models()) or "none"
        raise NotFoundError(
            f'the server at {self._endpoint.url} serves no model "{model}"; it serves: {there}', "NOT_FOUND"
        )

    async def models(self) -> list[str]:
        """Names of the models that are ready, whatever they do. Raises ClientError."""
        index = await self._call("get_model_repository_index")
        return sorted({entry.name for entry in index.models if entry.state == "READY"})

    async def inputs(self, model: str) -> frozenset[str]:
        """Names of the inputs that `model` takes. Raises ClientError."""
        return frozenset(tensor.name for tensor in (await self._call("get_model_metadata", model)).inputs)

    async def generate(
        self,
        model: str,
        prompt: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stats: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """The whole answer to a raw `prompt`. For the arguments and errors see `stream`."""
        return await self.ask(GenerationRequest(model, prompt=prompt, sampling=sampling or {}, stats=stats), timeout)

    async def chat(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling: Mapping[str, Any] | None = None,
        stats: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """The whole answer to chat `messages`; the server applies the model's template. For the rest see `stream`."""
        request = GenerationRequest(model, messages=messages, tools=tools, sampling=sampling or {}, stats=stats)
        return await self.ask(request, timeout)

    def stream(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        sampling: Mapping[str, Any] | None = None,
        stats: bool = False,
        timeout: float | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """Stream the answer to a raw `prompt`, or to chat `messages` (the server applies the model's template).

        `sampling`: max_tokens, temperature, n, logprobs, ... (docs/sampling-parameters.md). `timeout`: seconds for the
        whole answer, waiting and retries included. Closing the iterator (`aclose`), or cancelling the task that waits
        for it, cancels the request on the server.
        Raises ValueError unless there is one of prompt and messages, and ClientError for all that comes from outside.
        """
        request = GenerationRequest(
            model,
            prompt=prompt,
            messages=messages,
            tools=tools,
            sampling=sampling or {},
            stream=True,
            stats=stats,
        )
        return self._flat(request, timeout)

    async def ask(self, request: GenerationRequest, timeout: float | None = None) -> Answer:
        """The whole answer to `request`. Raises ClientError."""
        deltas: list[Delta] = []
        async with contextlib.aclosing(self.responses(request, timeout)) as responses:
            async for response in responses:
                deltas += response
        return collect(deltas, request.num_sequences)

    async def responses(
        self, request: GenerationRequest, timeout: float | None = None
    ) -> AsyncGenerator[list[Delta], None]:
        """What comes of `request`, response by response; a response without news is left out."""
        end = None if timeout is None else time.monotonic() + timeout
        delays = self._retry.delays()
        while True:
            has_begun = False
            try:
                async with contextlib.aclosing(self._attempt(request, end, timeout)) as responses:
                    async for deltas in responses:
                        has_begun = True
                        yield deltas
                return
            except ClientError as error:
                delay = next(delays, None) if is_safe_to_retry(error, has_begun=has_begun) else None
                if delay is None or (end is not None and time.monotonic() + delay >= end):
                    raise
            await asyncio.sleep(delay)

    async def _flat(self, request: GenerationRequest, timeout: float | None) -> AsyncGenerator[Delta, None]:
        async with contextlib.aclosing(self.responses(request, timeout)) as responses:
            async for deltas in responses:
                for delta in deltas:
                    yield delta

    async def _attempt(
        self, request: GenerationRequest, end: float | None, timeout: float | None
    ) -> AsyncGenerator[list[Delta], None]:
        left = seconds_left(end, timeout)
        reader = ResponseReader(request.num_top_logprobs)
        call = self._connection().stream_infer(
            _once(
                model_name=request.model,
                inputs=request.tensors(),
                timeout=None if left is None else int(left * 1e6),
            ),
            stream_timeout=None if left is None else left + GRACE_SECONDS,
            headers=self._endpoint.call_headers(),
        )
        over = has_begun = False
        try:
            while not over:
                result, error = await anext(call, (None, None))
                if error is not None:
                    over = True
                    raise explain("", error.message(), self._endpoint.url, timeout, has_begun=has_begun)
                has_begun = True
                # Other backends send the final flag alone, and this client is then told of the stream's end only.
                deltas = reader.end() if result is None else reader.read(result.get_response())
                over = result is None or reader.over
                if deltas:
                    yield deltas
        except grpc.aio.AioRpcError as error:
            raise explain(error.code().name, error.details() or "", self._endpoint.url, timeout) from None
        finally:
            if over:
                # With Triton 2.51 a model may never unload after a cancel that met the last response: so wait for the
                # stream's own end, but not in a task that may be cancelled.
                drain = asyncio.ensure_future(_read_to_end(call))
                self._draining.add(drain)
                drain.add_done_callback(self._draining.discard)
            else:
                call.cancel()

    def _connection(self) -> triton.InferenceServerClient:
        if self._open is None:
            self._open = triton.InferenceServerClient(**self._endpoint.client_arguments())
        return self._open

    async def _call(self, name: str, *arguments: object) -> Any:
        method: Callable[..., Any] = getattr(self._connection(), name)
        try:
            return await method(*arguments, headers=self._endpoint.call_headers(), client_timeout=CHECK_SECONDS)
        except triton.InferenceServerException as error:
            code = (error.status() or "").rpartition(".")[2]
            raise explain(code, error.message(), self._endpoint.url, CHECK_SECONDS) from None


async def _once(**request: Any) -> AsyncIterator[dict[str, Any]]:
    yield request


async def _read_to_end(call: Any) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, StopAsyncIteration, asyncio.CancelledError):
        while True:
            await anext(call)
