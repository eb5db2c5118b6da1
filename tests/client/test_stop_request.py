"""How a stop request is sent, on a connection that plays the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tritonclient.grpc as triton

from python_llm_client.connection import Tls
from python_llm_client.stop_request import stop_generation


class Connection:
    """Keeps what it was told; answers a request at once."""

    told: dict[str, Any]
    inputs = ("text_input", "stop")

    def __init__(self, **arguments: Any) -> None:
        Connection.told = {"arguments": arguments}

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def get_model_metadata(self, model: str, **options: Any) -> Any:
        self.told["metadata"] = options["headers"]
        return SimpleNamespace(inputs=[SimpleNamespace(name=name, shape=[1, 1]) for name in self.inputs])

    def start_stream(self, callback: Callable[[Any, Any], None], **options: Any) -> None:
        self.told["stream"] = options["headers"]
        self._callback = callback

    def async_stream_infer(self, model: str, inputs: list[Any], request_id: str) -> None:
        self.told["sent"] = (model, [(tensor.name(), tensor.shape()) for tensor in inputs], request_id)
        self._callback(None, None)

    def stop_stream(self) -> None: ...


def test_a_stop_request_goes_the_way_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "InferenceServerClient", Connection)
    tls = Tls(root_certificates=Path("ca.pem"))
    assert stop_generation("host:1", "m", "mine", tls=tls, headers={"Authorization": "Bearer x"})
    assert Connection.told == {
        "arguments": {"url": "host:1", "ssl": True, "root_certificates": "ca.pem"},
        "metadata": {"authorization": "Bearer x"},
        "stream": {"authorization": "Bearer x"},
        "sent": ("m", [("stop", [1, 1])], "mine"),
    }


def test_a_model_that_takes_no_stop_request_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "InferenceServerClient", Connection)
    monkeypatch.setattr(Connection, "inputs", ("text_input",))
    assert not stop_generation("host:1", "m", "mine")
    assert "sent" not in Connection.told
