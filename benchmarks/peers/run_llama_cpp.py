"""Runs workloads on llama.cpp, by its own `llama-batched-bench`.

That tool feeds random tokens back instead of sampling, so no sampling is in its times; and all prompts are done before
decoding begins.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

from benchmarks.contract import ContractError, RunnerTask, Timing, Workload, run_runner

BIN_VARIABLE = "LLAMA_CPP_BIN"
"""Environment variable: the folder of llama.cpp's programs."""


def run(task: RunnerTask) -> Iterator[Timing]:
    for workload in task.workloads:
        command = [
            os.path.join(os.environ[BIN_VARIABLE], "llama-batched-bench"),
            *("-m", task.model, "-t", str(task.threads), "-tb", str(task.threads)),
            *("-npp", str(workload.prompt), "-ntg", str(decode_steps(workload)), "-npl", str(workload.streams)),
            *("-c", str(workload.streams * (workload.prompt + workload.new)), "-b", "2048", "-ub", "512"),
            *("--output-format", "jsonl"),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        yield timing_of_output(done.stdout, workload)


def decode_steps(workload: Workload) -> int:
    """The prompt gives the first new token, each step one more. The tool does at least one step."""
    return max(1, workload.new - 1)


def timing_of_output(output: str, workload: Workload) -> Timing:
    """From the lines that `llama-batched-bench --output-format jsonl` printed for one workload."""
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        figures = json.loads(line)
        if (figures["pl"], figures["pp"], figures["tg"]) == (workload.streams, workload.prompt, decode_steps(workload)):
            decode_s = figures["t_tg"] if workload.new > 1 else 0.0
            return Timing(workload, figures["t_pp"], figures["t_pp"] + decode_s, workload.streams)
    raise ContractError(f"llama-batched-bench told nothing of {workload.name}")


if __name__ == "__main__":
    run_runner(run)
