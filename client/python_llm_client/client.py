"""Asks the models of one Triton server over gRPC, and waits. `async_client` is the same for asyncio.

Does not know the terminal. A client may be used by many threads: each answer has a gRPC stream of its own, because one
stream cannot cancel one request without the others.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import tritonclient.grpc as triton

from python_llm_client.answers import Answer, Delta, collect
from python_llm_client.connection import Endpoint, Tls
from python_llm_client.failures import ClientError, DeadlineExceededError, NotFoundError, explain
from python_llm_client.request import GenerationRequest, Message
from python_llm_client.responses import ResponseReader
from python_llm_client.retry import RetryPolicy, is_safe_to_retry

CHECK_SECONDS = 5.0
"""For calls that no model has to work for."""
GRACE_SECONDS = 1.0
"""The server ends an answer at its deadline by itself; if it is still silent so much later, we leave."""


class Client:
    """Talks to the server at `url` ("host:port" of its gRPC endpoint)."""

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

    def check(self, model: str) -> None:
        """Raises ClientError when no server answers, or when it does not serve `model`."""
        with self._connection() as connection, self._explained():
            if connection.is_model_ready(model, headers=self._endpoint.call_headers(), client_timeout=CHECK_SECONDS):
                return
        there = ", ".join(self.models()) or "none"
        raise NotFoundError(
            f'the server at {self._endpoint.url} serves no model "{model}"; it serves: {there}', "NOT_FOUND"
        )

    def models(self) -> list[str]:
        """Names of the models that are ready, whatever they do. Raises ClientError."""
        with self._connection() as connection, self._explained():
            index = connection.get_model_repository_index(
                headers=self._endpoint.call_headers(), client_timeout=CHECK_SECONDS
            )
        return sorted({entry.name for entry in index.models if entry.state == "READY"})

    def generate(
        self,
        model: str,
        prompt: str,
        *,
        sampling: Mapping[str, Any] | None = None,
        stats: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """The whole answer to a raw `prompt`. For the arguments and errors see `stream`."""
        return self.ask(GenerationRequest(model, prompt=prompt, sampling=sampling or {}, stats=stats), timeout)

    def chat(
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
        return self.ask(request, timeout)

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
    ) -> Generator[Delta, None, None]:
        """Stream the answer to a raw `prompt`, or to chat `messages` (the server applies the model's template).

        `sampling`: max_tokens, temperature, n, logprobs, ... (docs/sampling-parameters.md). `timeout`: seconds for the
        whole answer, waiting and retries included. Closing the iterator cancels the request on the server.
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
        return self.deltas(request, timeout)

    def ask(self, request: GenerationRequest, timeout: float | None = None) -> Answer:
        """The whole answer to `request`. Raises ClientError."""
        with contextlib.closing(self.deltas(request, timeout)) as deltas:
            return collect(deltas, request.num_sequences)

    def deltas(self, request: GenerationRequest, timeout: float | None = None) -> Generator[Delta, None, None]:
        """What comes of `request`, in one delta per sequence if it does not stream."""
        end = None if timeout is None else time.monotonic() + timeout
        delays = self._retry.delays()
        while True:
            has_begun = False
            try:
                with contextlib.closing(self._attempt(request, end, timeout)) as deltas:
                    for delta in deltas:
                        has_begun = True
                        yield delta
                return
            except ClientError as error:
                delay = next(delays, None) if is_safe_to_retry(error, has_begun=has_begun) else None
                if delay is None or (end is not None and time.monotonic() + delay >= end):
                    raise
            time.sleep(delay)

    def _attempt(
        self, request: GenerationRequest, end: float | None, timeout: float | None
    ) -> Generator[Delta, None, None]:
        left = seconds_left(end, timeout)
        reader = ResponseReader(request.num_top_logprobs)
        inputs = request.tensors()
        has_begun = False
        responses: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        with self._connection() as connection:
            connection.start_stream(
                callback=lambda result, error: responses.put((result, error)),
                stream_timeout=None if left is None else left + GRACE_SECONDS,
                headers=self._endpoint.call_headers(),
            )
            over = False
            try:
                # A stream that has failed already refuses the request; why it failed comes by the callback.
                with contextlib.suppress(triton.InferenceServerException):
                    connection.async_stream_infer(
                        request.model,
                        inputs,
                        enable_empty_final_response=True,
                        timeout=None if left is None else int(left * 1e6),
                    )
                while not over:
                    result, error = responses.get()
                    if error is not None:
                        over = True
                        raise self._explain(error, timeout, has_begun=has_begun)
                    has_begun = True
                    deltas = reader.read(result.get_response())
                    over = reader.over
                    yield from deltas
            finally:
                # With Triton 2.51 a model may never unload after a cancel that met the last response.
                connection.stop_stream(cancel_requests=not over)

    def _connection(self) -> triton.InferenceServerClient:
        return triton.InferenceServerClient(**self._endpoint.client_arguments())

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except triton.InferenceServerException as error:
            raise self._explain(error, None) from None

    def _explain(self, error: Exception, timeout: float | None, *, has_begun: bool = False) -> ClientError:
        if not isinstance(error, triton.InferenceServerException):
            return ClientError(str(error))
        code = (error.status() or "").rpartition(".")[2]
        return explain(code, error.message(), self._endpoint.url, timeout, has_begun=has_begun)


def seconds_left(end: float | None, timeout: float | None) -> float | None:
    """Until `end` (of `time.monotonic`). Raises DeadlineExceededError when there are none."""
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise DeadlineExceededError(f"the answer took longer than {timeout:g} s", "DEADLINE_EXCEEDED")
    return left
