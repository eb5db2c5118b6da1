"""How an answer's gRPC stream is left, on a connection that plays the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2

from python_llm_client.client import Client
from python_llm_client.failures import ClientError

Callback = Callable[[Any, Any], None]


class Connection:
    """Answers at once with `answers`: True is a final response, False one before it, an exception an error."""

    answers: tuple[Any, ...] = ()
    cancelled: bool | None = None

    def __init__(self, url: str) -> None: ...

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def start_stream(self, callback: Callback, **options: Any) -> None:
        self._callback = callback

    def async_stream_infer(self, model: str, inputs: list[Any], **options: Any) -> None:
        for answer in self.answers:
            if isinstance(answer, Exception):
                self._callback(None, answer)
            else:
                text = {"name": "text_output", "datatype": "BYTES", "shape": [1]}
                response = service_pb2.ModelInferResponse(outputs=[text], raw_output_contents=[b"\x01\0\0\0a"])
                response.parameters["triton_final_response"].bool_param = answer
                self._callback(triton.InferResult(response), None)

    def stop_stream(self, cancel_requests: bool) -> None:
        Connection.cancelled = cancel_requests


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(triton, "InferenceServerClient", Connection)
    return lambda *answers: monkeypatch.setattr(Connection, "answers", answers)


def test_an_answer_that_is_complete_is_not_cancelled(answers: Callable[..., None]) -> None:
    answers(False, True)
    assert len(list(Client().stream("m", "hi"))) == 2
    assert Connection.cancelled is False


def test_an_answer_that_is_left_early_is_cancelled(answers: Callable[..., None]) -> None:
    answers(False, False)
    answer = Client().stream("m", "hi")
    next(answer)
    answer.close()
    assert Connection.cancelled is True


def test_an_answer_that_ended_in_an_error_is_not_cancelled(answers: Callable[..., None]) -> None:
    answers(triton.InferenceServerException("refused"))
    with pytest.raises(ClientError, match="refused"):
        next(Client().stream("m", "hi"))
    assert Connection.cancelled is False
