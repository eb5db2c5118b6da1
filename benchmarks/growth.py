"""How our engine's speed changes with the number of streams, and with the length of the context.

Does not know peers, servers or how results are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.contract import Workload
from benchmarks.engine_runs import MODEL, EngineRun, load, run_workload

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128)
QUICK_STREAMS = (1, 4, 16)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8160)
QUICK_CONTEXTS = (128, 1024)
_PROMPT, _NEW = 128, 64
_CONTEXT_STEPS = 32
"""Decode steps measured behind each context: 8160 + 32 is all that the model has places for."""


def measure(
    *,
    threads: int,
    rounds: int,
    streams: Sequence[int] = STREAMS,
    contexts: Sequence[int] = CONTEXTS,
    model: str = MODEL,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """JSON: one entry for each number of streams and for each context, medians over the rounds."""
    by_streams = [Workload(number, _PROMPT, _NEW) for number in streams]
    by_context = [Workload(1, context, _CONTEXT_STEPS) for context in contexts]
    workloads = [*by_streams, *by_context]
    runner = load(max(w.streams * (w.prompt + w.new) for w in workloads), model=model, threads=threads)
    run_workload(runner, Workload(1, 32, 8), seed=0)
    runs: dict[Workload, list[EngineRun]] = {workload: [] for workload in workloads}
    for number in range(rounds):
        for workload in workloads:
            say(f"growth, round {number + 1} of {rounds}: {workload.name}")
            runs[workload].append(run_workload(runner, workload, number))
    return {
        "threads": threads,
        "rounds": rounds,
        "prompt": _PROMPT,
        "new": _NEW,
        "streams": [_at_streams(workload, runs[workload]) for workload in by_streams],
        "contexts": [_at_context(workload, runs[workload]) for workload in by_context],
    }


def _at_streams(workload: Workload, runs: Sequence[EngineRun]) -> dict[str, Any]:
    decode = statistics.median(run.timing.decode_tok_s or 0.0 for run in runs)
    gaps = [np.percentile(run.decode_gaps(), [50, 95]) * 1000 for run in runs]
    return {
        "streams": workload.streams,
        "decode_tok_s": decode,
        "per_stream_tok_s": decode / workload.streams,
        "output_tok_s": statistics.median(run.timing.output_tok_s for run in runs),
        "inter_token_ms_p50": statistics.median(float(one[0]) for one in gaps),
        "inter_token_ms_p95": statistics.median(float(one[1]) for one in gaps),
        "first_token_ms_p50": statistics.median(
            1000 * statistics.median(times[0] for times in run.arrivals) for run in runs
        ),
    }


def _at_context(workload: Workload, runs: Sequence[EngineRun]) -> dict[str, Any]:
    return {
        "context": workload.prompt,
        "prefill_tok_s": statistics.median(run.timing.prefill_tok_s for run in runs),
        "decode_step_ms": statistics.median(1000 * float(np.median(run.decode_gaps())) for run in runs),
    }
