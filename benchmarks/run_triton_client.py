"""Runs workloads on a model behind a Triton, one gRPC stream each, and keeps the contract of engines' runners.

`--model` is HOST:PORT/NAME. A process of its own, so that it is the server's client and nothing else. `--threads` means
nothing to it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from benchmarks.contract import RunnerTask, Timing, Workload, random_prompts, run_runner, timing_of_arrivals

_VOCAB_SIZE = 49152
"""Of SmolLM2: the server does not tell its model's."""


def run(task: RunnerTask) -> Iterator[Timing]:
    url, _, model = task.model.partition("/")
    _run(url, model, Workload(1, 32, 8), task.seed)
    for workload in task.workloads:
        yield _run(url, model, workload, task.seed)


class _Stream:
    """One request and when its tokens came."""

    def __init__(self, url: str, model: str, prompt: list[int], new: int) -> None:
        self.arrivals: list[tuple[float, int]] = []
        self.error: Exception | None = None
        self.done = threading.Event()
        self._model = model
        self._inputs = _inputs(prompt, new)
        self._connection = triton.InferenceServerClient(url)
        self._connection.start_stream(callback=self._on_response)

    def send(self) -> None:
        self._connection.async_stream_infer(self._model, self._inputs, enable_empty_final_response=True)

    def close(self) -> None:
        self._connection.stop_stream()
        self._connection.close()

    def _on_response(self, result: Any, error: Exception | None) -> None:
        now = time.perf_counter()
        if error is not None:
            self.error = error
            self.done.set()
            return
        counts = result.as_numpy("num_output_tokens")
        if counts is not None and counts.size:
            self.arrivals.append((now, int(counts[0])))
        if result.get_response().parameters["triton_final_response"].bool_param:
            self.done.set()


def _inputs(prompt: list[int], new: int) -> list[Any]:
    sampling = json.dumps({"max_tokens": new, "temperature": 0.0, "ignore_eos": True})
    arrays = {
        "input_ids": ("INT32", np.array(prompt, dtype=np.int32)),
        "stream": ("BOOL", np.array([True])),
        "sampling_parameters": ("BYTES", np.array([sampling.encode()], dtype=np.object_)),
        "return_num_output_tokens": ("BOOL", np.array([True])),
    }
    inputs = []
    for name, (kind, array) in arrays.items():
        tensor = triton.InferInput(name, array.shape, kind)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def _run(url: str, model: str, workload: Workload, seed: int) -> Timing:
    streams = [_Stream(url, model, prompt, workload.new) for prompt in random_prompts(workload, _VOCAB_SIZE, seed)]
    started = time.perf_counter()
    for stream in streams:
        stream.send()
    for stream in streams:
        stream.done.wait()
    for stream in streams:
        stream.close()
        if stream.error is not None:
            raise stream.error
    events = sorted((when, index, count) for index, stream in enumerate(streams) for when, count in stream.arrivals)
    counts = [0] * len(streams)
    steps = []
    for when, index, count in events:
        counts[index] += count
        steps.append((when - started, list(counts)))
    return timing_of_arrivals(workload, steps)


if __name__ == "__main__":
    run_runner(run)
