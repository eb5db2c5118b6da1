"""Runs workloads on vLLM's CPU engine, float32, stepped by hand so that every step's tokens are seen."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.contract import RunnerTask, Timing, Workload, random_prompts, run_runner, timing_of_arrivals

# In this process: a second one for the engine would cost a core that the kernels need.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GiB


def run(task: RunnerTask) -> Iterator[Timing]:
    from vllm import LLM

    llm = LLM(
        task.model,
        dtype="float32",
        seed=0,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=max(1024, task.max_tokens),
        max_num_seqs=max(32, task.max_streams),
    )
    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    _run(llm.llm_engine, Workload(1, 32, 8), vocab_size, task.seed)
    for workload in task.workloads:
        yield _run(llm.llm_engine, workload, vocab_size, task.seed)


def _run(engine: Any, workload: Workload, vocab_size: int, seed: int) -> Timing:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=workload.new, ignore_eos=True, detokenize=False)
    prompts = random_prompts(workload, vocab_size, seed)
    counts = dict.fromkeys((str(index) for index in range(workload.streams)), 0)
    steps = []
    started = time.perf_counter()
    for name, prompt in zip(counts, prompts, strict=True):
        engine.add_request(name, {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter() - started
        for output in outputs:
            counts[output.request_id] = len(output.outputs[0].token_ids)
        steps.append((now, list(counts.values())))
    return timing_of_arrivals(workload, steps)


if __name__ == "__main__":
    run_runner(run)
