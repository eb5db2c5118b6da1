"""Runs workloads on transformers' own `generate`, float32, one batch of all streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from benchmarks.contract import RunnerTask, Timing, Workload, random_prompts, run_runner, timing_of_arrivals


class _Watch(StoppingCriteria):
    """Called once after each step; never stops."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def run(task: RunnerTask) -> Iterator[Timing]:
    torch.set_num_threads(task.threads)
    model = AutoModelForCausalLM.from_pretrained(task.model, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    _run(model, Workload(1, 32, 8), task.seed)
    for workload in task.workloads:
        yield _run(model, workload, task.seed)


def _run(model: Any, workload: Workload, seed: int) -> Timing:
    prompts = torch.tensor(random_prompts(workload, model.config.vocab_size, seed))
    watch = _Watch()
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            max_new_tokens=workload.new,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
    steps = [(when - started, [index + 1] * workload.streams) for index, when in enumerate(watch.times)]
    return timing_of_arrivals(workload, steps)


if __name__ == "__main__":
    run_runner(run)
