"""Runs workloads on OpenVINO GenAI's continuous batching, on a model that `optimum-cli export openvino` made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.contract import RunnerTask, Timing, Workload, random_prompts, run_runner, timing_of_arrivals

_POOL_GIB = 2


def run(task: RunnerTask) -> Iterator[Timing]:
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = _POOL_GIB
    scheduling.max_num_seqs = max(32, task.max_streams)
    scheduling.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        task.model, scheduling, "CPU", {"INFERENCE_NUM_THREADS": task.threads}
    )
    vocab_size = json.loads(Path(task.model, "config.json").read_text("utf-8"))["vocab_size"]
    _run(pipeline, Workload(1, 32, 8), vocab_size, task.seed)
    for workload in task.workloads:
        yield _run(pipeline, workload, vocab_size, task.seed)


def _run(pipeline: Any, workload: Workload, vocab_size: int, seed: int) -> Timing:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = workload.new
    config.ignore_eos = True
    config.do_sample = False
    prompts = random_prompts(workload, vocab_size, seed)
    counts = [0] * workload.streams
    steps = []
    started = time.perf_counter()
    handles = [
        pipeline.add_request(index, openvino.Tensor(np.array([prompt], dtype=np.int64)), config)
        for index, prompt in enumerate(prompts)
    ]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter() - started
        for index, handle in enumerate(handles):
            while handle.can_read():
                for output in handle.read().values():
                    counts[index] += len(output.generated_ids)
        steps.append((now, list(counts)))
    return timing_of_arrivals(workload, steps)


if __name__ == "__main__":
    run_runner(run)
