"""Asks a real server over gRPC and HTTP and shows everything that comes back: outputs, flags, codes."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import requests
import tritonclient.grpc as grpcclient

from python_llm_client.local_server import LocalServer

_DTYPES = {"bool": "BOOL", "int32": "INT32", "uint64": "UINT64", "float32": "FP32", "object": "BYTES"}


@dataclass
class Response:
    """One response of a gRPC stream."""

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    error: str | None = None
    is_final: bool = False


def tensors(**values: Any) -> list[grpcclient.InferInput]:
    """str -> STRING[1], bool -> BOOL[1], list of int -> INT32[-1], dict or list of dict -> JSON in STRING[1]."""
    inputs = []
    for name, value in values.items():
        if isinstance(value, bool):
            array = np.array([value])
        elif isinstance(value, list) and (not value or isinstance(value[0], int)):
            array = np.array(value, dtype=np.int32)
        else:
            text = value if isinstance(value, str | bytes) else json.dumps(value)
            array = np.array([text.encode() if isinstance(text, str) else text], dtype=np.object_)
        inputs.append(tensor(name, array))
    return inputs


def tensor(name: str, array: np.ndarray) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, list(array.shape), _DTYPES[array.dtype.name])
    made.set_data_from_numpy(array)
    return made


def batched(**values: Any) -> list[grpcclient.InferInput]:
    """What clients of TensorRT-LLM's ensembles send: [1, 1] of everything, words [1, n]."""
    inputs = []
    for name, value in values.items():
        if isinstance(value, bool):
            array = np.array([[value]])
        elif isinstance(value, int):
            array = np.array([[value]], dtype=np.uint64 if name.endswith("seed") else np.int32)
        elif isinstance(value, float):
            array = np.array([[value]], dtype=np.float32)
        else:
            texts = value if isinstance(value, list) else [value]
            array = np.array([[t if isinstance(t, bytes) else t.encode() for t in texts]], dtype=np.object_)
        inputs.append(tensor(name, array))
    return inputs


def ask(
    server: LocalServer,
    model: str,
    *,
    parameters: Mapping[str, Any] | None = None,
    timeout_us: int | None = None,
    wait_s: float = 60,
    request_id: str = "",
    codes: bool = False,
    inputs: list[grpcclient.InferInput] | None = None,
    outputs: list[str] | None = None,
    **values: Any,
) -> list[Response]:
    """Every response to one request, the final flag's included even when nothing else comes with it.

    `codes`: errors begin with their code. `inputs` take the place of `values`. `outputs`: those asked for; None: all.
    """
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    responses: list[Response] = []
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        headers = {"triton_grpc_error": "true"} if codes else None
        client.start_stream(lambda result, error: arrived.put((result, error)), headers=headers)
        client.async_stream_infer(
            model,
            tensors(**values) if inputs is None else inputs,
            outputs=None if outputs is None else [grpcclient.InferRequestedOutput(name) for name in outputs],
            request_id=request_id,
            enable_empty_final_response=True,
            parameters=dict(parameters or {}),
            timeout=timeout_us,
        )
        while not responses or not (responses[-1].is_final or responses[-1].error):
            result, error = arrived.get(timeout=wait_s)
            responses.append(Response(error=str(error)) if error is not None else response_of(result))
        client.stop_stream()
    return responses


def response_of(result: grpcclient.InferResult) -> Response:
    message = result.get_response()
    outputs = {}
    for output in message.outputs:
        array = result.as_numpy(output.name)
        values = array.tolist()
        outputs[output.name] = [v.decode() for v in values] if array.dtype == np.object_ else values
    return Response(outputs, is_final=message.parameters["triton_final_response"].bool_param)


def text_of(responses: list[Response], index: int = 0) -> str:
    assert responses[-1].error is None, responses[-1].error
    return "".join(response.outputs["text_output"][index] for response in responses if response.outputs)


def generate(server: LocalServer, model: str, **body: Any) -> requests.Response:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/generate"
    return requests.post(url, json=body, timeout=60)


def generate_stream(server: LocalServer, model: str, **body: Any) -> Iterator[dict[str, Any]]:
    """The events of /generate_stream."""
    url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/generate_stream"
    with requests.post(url, json=body, stream=True, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def metric(server: LocalServer, name: str, model: str) -> float:
    """The value of one of our gauges."""
    page = requests.get(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10).text
    for line in page.splitlines():
        if line.startswith(name + "{") and f'model="{model}"' in line:
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{name} of {model} is not among the metrics")


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.05)


def is_idle(server: LocalServer, model: str) -> bool:
    """Nothing runs, nothing waits, no page is held."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(metric(server, name, model) == 0 for name in names)
