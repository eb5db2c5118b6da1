"""Runs workloads on our own engine, for the side-by-side run."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.contract import RunnerTask, Timing, Workload, run_runner
from benchmarks.engine_runs import load, run_workload


def run(task: RunnerTask) -> Iterator[Timing]:
    runner = load(task.max_pool_tokens, model=task.model, threads=task.threads)
    run_workload(runner, Workload(1, 32, 8), task.seed)
    for workload in task.workloads:
        yield run_workload(runner, workload, task.seed).timing


if __name__ == "__main__":
    run_runner(run)
