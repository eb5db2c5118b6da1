"""Starts engines' runners as processes of their own on the cores of the run, and looks at processes from outside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.contract import ContractError, Timing, Workload, read_timings, runner_arguments

ROOT = Path(__file__).parent.parent
_TIMEOUT_S = 420.0
_REASON_CHARACTERS = 300


class RunnerFailedError(Exception):
    """A runner failed; the message says how. `timings` are those that it gave before."""

    def __init__(self, message: str, timings: Sequence[Timing] = ()) -> None:
        super().__init__(message)
        self.timings = list(timings)


def run_runner_process(
    python: Path,
    module: str,
    model: str,
    workloads: Sequence[Workload],
    *,
    threads: int,
    seed: int,
    environ: Mapping[str, str] | None = None,
) -> list[Timing]:
    """Run a runner (see `contract`) on the first `threads` cores of this process. Raises RunnerFailedError."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    try:
        done = subprocess.run(
            [str(python), "-m", module, *runner_arguments(model, threads, seed, workloads)],
            cwd=ROOT,
            env={**runner_environ(threads), **(environ or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    except OSError as error:
        raise RunnerFailedError(f"{python} cannot be run: {error}") from None
    except subprocess.TimeoutExpired:
        raise RunnerFailedError(f"it did not end within {_TIMEOUT_S:.0f} s") from None
    try:
        timings = read_timings(done.stdout)
    except ContractError as error:
        raise RunnerFailedError(str(error)) from None
    if done.returncode:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        raise RunnerFailedError(f"it failed ({how}): {last_words(done.stderr or done.stdout)}", timings)
    if len(timings) != len(workloads):
        raise RunnerFailedError(f"it answered {len(timings)} of {len(workloads)} workloads", timings)
    return timings


def runner_environ(threads: int) -> dict[str, str]:
    """Nothing is to be fetched, told to anybody, or taken from a user's own packages."""
    counts = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONNOUSERSITE": "1"}
    return {**os.environ, **counts, **quiet, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}


def last_words(output: str) -> str:
    """What a failed program said last, short enough for a table: the last line that names an error, or the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    said = (errors or lines or ["it said nothing"])[-1]
    return said if len(said) <= _REASON_CHARACTERS else said[:_REASON_CHARACTERS] + " ..."


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, name as the kernel has it: at most 15 characters) of all processes below `pid`."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text("utf-8", errors="replace")
            except OSError:
                continue
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            parent = int(stat[stat.rindex(")") + 2 :].split()[1])
            children.setdefault(parent, []).append((int(entry.name), name))
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.append(child)
            waiting.append(child[0])
    return found


def peak_rss(pid: int) -> int:
    """Bytes: the most that the process ever had in memory (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")
