"""Measures all engines in one run, in rounds that interleave them, so that the machine's noise hits all alike.

Each engine runs in a process of its own for each round. The first round runs everything; later rounds repeat the
fastest engines first, as far as the time allows, since a median matters most where engines are close. What cannot be
run has its reason in the result. Does not know how an engine is installed or started.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.contract import Timing, Workload
from benchmarks.peers.catalog import Contender, Launch
from benchmarks.peers.environments import Cache, SkipError
from benchmarks.peers.models import Models
from benchmarks.processes import RunnerFailedError, run_runner_process

WORKLOADS = (Workload(1, 128, 128), Workload(8, 128, 128), Workload(32, 128, 128), Workload(1, 512, 1))
QUICK_WORKLOADS = (Workload(1, 128, 64), Workload(8, 128, 64), Workload(1, 512, 1))


@dataclasses.dataclass
class Measured:
    """What is known of one engine so far."""

    contender: Contender
    timings: list[Timing] = dataclasses.field(default_factory=list)
    load_s: float = 0.0
    """What a process of the engine takes beside its workloads."""
    reason: str | None = None
    """Why it was skipped, or left out of later rounds."""


def measure(
    contenders: Sequence[Contender],
    workloads: Sequence[Workload],
    *,
    rounds: int,
    budget_s: float,
    threads: int,
    cache: Cache,
    models: Models,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """`budget_s`: how long rounds may take together; the first is run whole in any case. JSON of what came out."""
    engines = [Measured(contender) for contender in contenders]
    launches: dict[str, Launch] = {}
    for engine in engines:
        try:
            launches[engine.contender.name] = engine.contender.prepare(cache, models)
        except SkipError as error:
            engine.reason = str(error)
            say(f"{engine.contender.name}: skipped: {error}")
    started = time.monotonic()
    again: Mapping[str, Sequence[Workload]] = dict.fromkeys(launches, workloads)
    for number in range(rounds):
        if number == 1:
            again = plan_repeats(engines, rounds - 1, budget_s - (time.monotonic() - started))
        # Forth and back: who always ran after the same neighbour would always meet the same machine.
        for engine in engines if number % 2 == 0 else engines[::-1]:
            name = engine.contender.name
            if engine.reason is None and again.get(name):
                say(f"round {number + 1} of {rounds}: {name}")
                _run(engine, launches[name], again[name], threads, seed=number)
                if engine.reason:
                    say(f"{name}: {engine.reason}")
    return {
        "threads": threads,
        "rounds": rounds,
        "seconds": time.monotonic() - started,
        "workloads": [workload.name for workload in workloads],
        "engines": [_result(engine, workloads) for engine in engines],
    }


def plan_repeats(engines: Sequence[Measured], repeats: int, budget_s: float) -> dict[str, tuple[Workload, ...]]:
    """Which workloads each engine repeats in each further round, by what they took in the first.

    The fastest engine comes first; where not all of an engine's workloads fit into the rest of the time, its longest
    are left out.
    """
    plan: dict[str, tuple[Workload, ...]] = {}
    for engine in sorted((e for e in engines if e.timings), key=lambda e: sum(t.total_s for t in e.timings)):
        chosen = sorted(engine.timings, key=lambda timing: timing.total_s)
        while chosen:
            cost = repeats * (engine.load_s + sum(timing.total_s for timing in chosen))
            if cost <= budget_s:
                budget_s -= cost
                plan[engine.contender.name] = tuple(timing.workload for timing in chosen)
                break
            chosen.pop()
    return plan


def _run(engine: Measured, launch: Launch, workloads: Sequence[Workload], threads: int, seed: int) -> None:
    started = time.monotonic()
    try:
        timings = run_runner_process(
            launch.python, launch.module, launch.model, workloads, threads=threads, seed=seed, environ=launch.environ
        )
    except RunnerFailedError as error:
        engine.reason, timings = str(error), error.timings
    engine.timings += timings
    engine.load_s = max(0.0, time.monotonic() - started - sum(timing.total_s for timing in timings))


def _result(engine: Measured, workloads: Sequence[Workload]) -> dict[str, Any]:
    contender = engine.contender
    found: dict[str, Any] = {
        "name": contender.name,
        "engine": contender.engine,
        "weights": contender.weights,
        "version": contender.version,
        "reason": engine.reason,
        "load_s": engine.load_s,
        "results": {},
    }
    for workload in workloads:
        timings = [timing for timing in engine.timings if timing.workload == workload]
        if timings:
            found["results"][workload.name] = summary(timings)
    return found


def summary(timings: Sequence[Timing]) -> dict[str, Any]:
    """Medians over the rounds of one workload, and the rounds themselves."""
    rates: dict[str, float | None] = {}
    for name in ("decode_tok_s", "output_tok_s", "prefill_tok_s"):
        values = [value for timing in timings if (value := getattr(timing, name)) is not None]
        rates[name] = statistics.median(values) if values else None
    return {
        **dataclasses.asdict(timings[0].workload),
        "rounds": len(timings),
        **rates,
        "timings": [
            {"prefill_s": t.prefill_s, "total_s": t.total_s, "tokens_at_prefill": t.tokens_at_prefill} for t in timings
        ],
    }
