"""What every engine's runner is asked and what it answers: the one contract between the bench and the engines.

A runner is a module of its own process, started as `python -m benchmarks.peers.run_X --threads N --workloads JSON ...`
in the environment of its engine. For each workload it prints one line: a mark and the JSON of a `Timing`. Everything
else that it or its engine prints is no answer. Standard library only, since it is imported beside any engine's
packages; knows no engine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_MARK = "BENCH-TIMING "
_FIRST_TOKEN_ID = 1000
"""Below it are special tokens and single bytes. Which tokens come makes no difference to speed."""


class ContractError(ValueError):
    """A runner's answer is not one; the message says what was wrong with it."""


@dataclass(frozen=True, slots=True)
class Workload:
    """So many streams arrive at once, each with a prompt of random tokens, and get so many new tokens each."""

    streams: int
    prompt: int
    new: int

    @property
    def name(self) -> str:
        return f"{self.streams}x({self.prompt}+{self.new})"


@dataclass(frozen=True, slots=True)
class Timing:
    """How one run of a workload went. Times in seconds since all prompts were handed over."""

    workload: Workload
    prefill_s: float
    """Until every stream had its first token."""
    total_s: float
    """Until every stream had its last token."""
    tokens_at_prefill: int
    """New tokens of all streams at `prefill_s`: more than one a stream where prompts and decoding share steps."""

    @property
    def prefill_tok_s(self) -> float:
        """Prompt tokens a second. Where prompts and decoding share steps this is lower than prompts alone would be."""
        return self.workload.streams * self.workload.prompt / self.prefill_s

    @property
    def decode_tok_s(self) -> float | None:
        """New tokens a second of all streams, once every prompt is done; None when nothing was left to decode."""
        tokens = self.workload.streams * self.workload.new - self.tokens_at_prefill
        return tokens / (self.total_s - self.prefill_s) if tokens > 0 else None

    @property
    def output_tok_s(self) -> float:
        """New tokens a second over the whole run, prompts included."""
        return self.workload.streams * self.workload.new / self.total_s

    def to_line(self) -> str:
        return _MARK + json.dumps(dataclasses.asdict(self))


def timing_of_arrivals(workload: Workload, arrivals: Sequence[tuple[float, Sequence[int]]]) -> Timing:
    """From what an engine's steps showed: (seconds since the start, new tokens of each stream so far), in order.

    Raises ContractError when a stream did not get all its tokens.
    """
    for when, counts in arrivals:
        if len(counts) == workload.streams and min(counts) >= 1:
            prefill_s, tokens_at_prefill = when, sum(counts)
            break
    else:
        raise ContractError(f"{workload.name}: not every stream had a token")
    total_s, counts = arrivals[-1]
    if any(count != workload.new for count in counts):
        raise ContractError(f"{workload.name}: streams got {sorted(set(counts))} new tokens instead of {workload.new}")
    return Timing(workload, prefill_s, total_s, tokens_at_prefill)


def read_timings(output: str) -> list[Timing]:
    """The answers among the lines that a runner printed. Raises ContractError for one that makes no sense."""
    return [_timing(line[len(_MARK) :]) for line in output.splitlines() if line.startswith(_MARK)]


def _timing(text: str) -> Timing:
    try:
        values = json.loads(text)
        timing = Timing(
            Workload(**values["workload"]),
            float(values["prefill_s"]),
            float(values["total_s"]),
            int(values["tokens_at_prefill"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ContractError(f"not a timing ({error}): {text}") from None
    decoded = timing.workload.streams * timing.workload.new - timing.tokens_at_prefill
    if (
        not 0 < timing.prefill_s <= timing.total_s
        or decoded < 0
        or (decoded > 0 and timing.prefill_s == timing.total_s)
    ):
        raise ContractError(f"impossible times: {text}")
    return timing


def random_prompts(workload: Workload, vocab_size: int, seed: int) -> list[list[int]]:
    """Token ids, one list a stream; the same for every engine with the same seed."""
    draw, first = random.Random(seed), min(_FIRST_TOKEN_ID, vocab_size // 2)
    return [[draw.randrange(first, vocab_size) for _ in range(workload.prompt)] for _ in range(workload.streams)]


def runner_arguments(model: str, threads: int, seed: int, workloads: Sequence[Workload]) -> list[str]:
    asked = json.dumps([dataclasses.asdict(workload) for workload in workloads])
    return [f"--model={model}", f"--threads={threads}", f"--seed={seed}", f"--workloads={asked}"]


@dataclass(frozen=True, slots=True)
class RunnerTask:
    """What a runner was started with."""

    model: str
    threads: int
    seed: int
    workloads: tuple[Workload, ...]

    @property
    def max_streams(self) -> int:
        return max(workload.streams for workload in self.workloads)

    @property
    def max_tokens(self) -> int:
        """Of the longest sequence."""
        return max(workload.prompt + workload.new for workload in self.workloads)

    @property
    def max_pool_tokens(self) -> int:
        """Of all sequences together, in the largest workload."""
        return max(workload.streams * (workload.prompt + workload.new) for workload in self.workloads)


def run_runner(run: Callable[[RunnerTask], Iterator[Timing]], arguments: Sequence[str] | None = None) -> None:
    """The main function of a runner: read the task, print each timing as it comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--workloads", type=json.loads, required=True)
    asked = parser.parse_args(arguments)
    workloads: list[dict[str, Any]] = asked.workloads
    task = RunnerTask(asked.model, asked.threads, asked.seed, tuple(Workload(**workload) for workload in workloads))
    for timing in run(task):
        sys.stdout.write(timing.to_line() + "\n")
        sys.stdout.flush()
