"""How responses are sent, on a stand-in for Triton's side of the bridge."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

from python_llm.engine.request import FinishReason, Output
from python_llm.errors import EngineError
from python_llm.triton_io.bridge import Delivery, Responder, SenderPool
from python_llm.triton_io.reply import Batch, Reply

FINAL = 1


class FakeSender:
    """Closes itself with the final flag before it copies a response, as Triton's does, and has room for 1 MB."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self._closed = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        assert not self._closed, "closed"
        self._closed = flags == FINAL
        if response is not None and sum(sum(map(len, tensor.array)) for tensor in response.output_tensors) > 1 << 20:
            raise RuntimeError("no shared memory left")
        self.sent.append((response, flags))

    def is_cancelled(self) -> bool:
        return False


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> FakeSender:
    def error(message: str, code: int) -> Any:
        return types.SimpleNamespace(message=message, code=code)

    def response(output_tensors: list[Any], error: Any = None) -> Any:
        return types.SimpleNamespace(output_tensors=output_tensors, error=error)

    error.INTERNAL = 1  # type: ignore[attr-defined]
    fake: Any = types.ModuleType("triton_python_backend_utils")
    fake.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    fake.Tensor = lambda name, array: types.SimpleNamespace(name=name, array=array)
    fake.InferenceResponse = response
    fake.TritonError = error
    fake.Logger = types.SimpleNamespace(log_error=lambda message: None)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return FakeSender()


def responder(sender: FakeSender) -> Responder:
    return Responder(types.SimpleNamespace(get_response_sender=lambda: sender))


def output(size: int) -> dict[str, np.ndarray]:
    return {"text_output": np.array([b"x" * size], dtype=np.object_)}


def test_the_final_flag_rides_on_the_last_response(sender: FakeSender) -> None:
    answering = responder(sender)
    answering.send_outputs(output(10), is_last=False)
    answering.send_outputs(output(10), is_last=True)
    assert [flags for _, flags in sender.sent] == [0, FINAL]
    assert all(response is not None for response, _ in sender.sent)


def test_a_large_last_response_goes_ahead_of_the_flag(sender: FakeSender) -> None:
    responder(sender).send_outputs(output(1 << 20), is_last=True)
    (response, flags), trailer = sender.sent
    assert response is not None and flags == 0
    assert trailer == (None, FINAL)


def test_a_last_response_without_room_can_still_be_answered_with_an_error(sender: FakeSender) -> None:
    answering = responder(sender)
    with pytest.raises(RuntimeError, match="no shared memory"):
        answering.send_outputs(output(2 << 20), is_last=True)
    answering.send_error(EngineError("no room"))
    ((response, flags),) = sender.sent
    assert (response.error.message, flags) == ("no room", FINAL)
    answering.send_outputs(output(10), is_last=False)
    assert len(sender.sent) == 1, "nothing follows the end"


def test_a_response_that_cannot_be_sent_ends_in_an_error_that_waits_its_turn(sender: FakeSender) -> None:
    """Not at once: Triton does not bear errors that come too early. Nothing that follows the gap goes before it."""

    class Errors:
        def __init__(self) -> None:
            self.queued: list[tuple[Responder, Exception]] = []

        def send(self, responder: Responder, error: Exception) -> None:
            self.queued.append((responder, error))

    class TooLarge:
        def outputs(self, batch: Batch) -> dict[str, np.ndarray]:
            return output(2 << 20) if batch.is_first else output(10)

    errors, ended = Errors(), []
    cancelled: list[Any] = []
    is_cancelled = threading.Event()

    def cancel(requests: list[Any]) -> None:
        cancelled.extend(requests)
        is_cancelled.set()

    pool = SenderPool()
    reply = Reply(
        1, stream=True, interval=1, wake=lambda: pool.schedule(delivery), cancel=cancel, finish=lambda requests: None
    )
    request: Any = object()
    reply.requests = [request]
    answering = responder(sender)
    delivery = Delivery(reply, TooLarge(), answering, errors, on_end=lambda: ended.append(True))  # type: ignore[arg-type]
    pool.start()
    reply.push(0, Output(request, "a"))
    assert is_cancelled.wait(10)
    reply.push(0, Output(request, "b"))
    reply.push(0, Output(request, "c", finish_reason=FinishReason.LENGTH))
    pool.stop()
    assert sender.sent == [] and ended == [True]
    assert cancelled == [request]
    ((whose, error),) = errors.queued
    assert whose is answering and "the response could not be sent: no shared memory left" in str(error)
