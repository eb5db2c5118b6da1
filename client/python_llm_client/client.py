"""Streams the answer of one model over gRPC: the text face of `python_llm`, and of Triton's vLLM backend without chat.

Does not know the terminal. A client may be used by many threads: each answer has a gRPC stream of its own, because one
stream cannot cancel one request without the others.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from python_llm_client.errors import CommandError

_CHECK_SECONDS = 5.0
_UNREACHABLE = ("failed to connect", "errors resolving", "DNS resolution failed")
_WENT_AWAY = ("Stream removed", "Socket closed", "Connection reset", "GOAWAY")

Message = Mapping[str, str]
"""`{"role": "user", "content": "..."}`"""


class ClientError(CommandError):
    """The server cannot be reached, or refused or broke off a request. `code` is gRPC's ("INVALID_ARGUMENT") or ""."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Delta:
    """What one response added to the answer."""

    text: str
    tokens: int
    """How many tokens; 0 when the model does not tell."""
    finish_reason: str | None
    """Of the last delta: "stop" or "length". None before, and for models that do not tell."""
    stats: dict[str, Any] | None
    """Of the last delta, when asked for."""


class StreamClient:
    """Talks to the server at `url` ("host:port" of its gRPC endpoint)."""

    def __init__(self, url: str = "127.0.0.1:8001") -> None:
        self._url = url

    def check(self, model: str) -> None:
        """Raises ClientError when no server answers, or when it does not serve `model`."""
        with triton.InferenceServerClient(self._url) as connection:
            try:
                if connection.is_model_ready(model, client_timeout=_CHECK_SECONDS):
                    return
                index = connection.get_model_repository_index(client_timeout=_CHECK_SECONDS)
            except triton.InferenceServerException as error:
                raise self._explain(error, None) from None
        there = sorted({entry.name for entry in index.models if entry.state == "READY"})
        raise ClientError(
            f'the server at {self._url} serves no model "{model}"; it serves: {", ".join(there) or "none"}', "NOT_FOUND"
        )

    def generate(
        self,
        model: str,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        sampling: Mapping[str, object] | None = None,
        stats: bool = False,
        timeout: float | None = None,
    ) -> Generator[Delta, None, None]:
        """Stream the answer to a raw `prompt`, or to chat `messages` (the server applies the model's template).

        `sampling`: max_tokens, temperature, ... `timeout`: seconds for the whole answer. Raises ClientError.
        Closing the iterator cancels the request on the server.
        """
        if (prompt is None) == (messages is None):
            raise ValueError("give either a prompt or messages")
        inputs = [
            _text("text_input", prompt) if prompt is not None else _text("messages", json.dumps(list(messages or ()))),
            _flag("stream", True),
            _text("sampling_parameters", json.dumps(dict(sampling or {}))),
            _flag("return_finish_reason", True),
            _flag("return_num_output_tokens", True),
        ]
        if stats:
            inputs.append(_flag("return_stats", True))
        return self._stream(model, inputs, timeout)

    def _stream(
        self, model: str, inputs: list[triton.InferInput], timeout: float | None
    ) -> Generator[Delta, None, None]:
        responses: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        with triton.InferenceServerClient(self._url) as connection:
            connection.start_stream(
                callback=lambda result, error: responses.put((result, error)),
                stream_timeout=timeout,
                # Without it the server sends an error's text, but not its code.
                headers={"triton_grpc_error": "true"},
            )
            over = False
            try:
                connection.async_stream_infer(model, inputs, enable_empty_final_response=True)
                while not over:
                    result, error = responses.get()
                    if error is not None:
                        over = True
                        raise self._explain(error, timeout)
                    response = result.get_response()
                    over = response.parameters["triton_final_response"].bool_param
                    if response.outputs:
                        yield _delta(result)
            finally:
                # With Triton 2.51 a model may never unload after a cancel that met the last response.
                connection.stop_stream(cancel_requests=not over)

    def _explain(self, error: Exception, timeout: float | None) -> ClientError:
        if not isinstance(error, triton.InferenceServerException):
            return ClientError(str(error))
        code, message = (error.status() or "").rpartition(".")[2], error.message()
        # A model may answer UNAVAILABLE too (its queue is full): only the text tells who said it.
        if code == "UNAVAILABLE" and any(text in message for text in _UNREACHABLE):
            return ClientError(
                f"no server answers at {self._url}: start one with python-llm serve, or name the HOST:PORT of "
                "another's gRPC endpoint with --url",
                code,
            )
        if code == "UNAVAILABLE" and any(text in message for text in _WENT_AWAY):
            return ClientError(f"the server at {self._url} went away before the answer was complete", code)
        if code == "DEADLINE_EXCEEDED" and timeout is not None:
            return ClientError(f"the answer took longer than {timeout:g} s and was stopped", code)
        return ClientError(message, code)


def _text(name: str, value: str) -> triton.InferInput:
    return _input(name, "BYTES", np.array([value.encode()], dtype=np.object_))


def _flag(name: str, value: bool) -> triton.InferInput:
    return _input(name, "BOOL", np.array([value]))


def _input(name: str, kind: str, array: np.ndarray) -> triton.InferInput:
    tensor = triton.InferInput(name, [1], kind)
    tensor.set_data_from_numpy(array)
    return tensor


def _delta(result: triton.InferResult) -> Delta:
    def first(name: str) -> Any:
        array = result.as_numpy(name)
        return None if array is None or array.size == 0 else array.reshape(-1)[0]

    reason, stats = first("finish_reason"), first("stats")
    return Delta(
        text=(first("text_output") or b"").decode(),
        tokens=int(first("num_output_tokens") or 0),
        # The wire format says the string "None" until the last response.
        finish_reason=None if reason in {None, b"None", b""} else reason.decode(),
        stats=json.loads(stats) if stats else None,
    )
