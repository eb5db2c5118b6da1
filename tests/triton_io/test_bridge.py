"""How responses are sent, on a stand-in for Triton's side of the bridge."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from python_llm.errors import EngineError
from python_llm.triton_io.bridge import Responder

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
