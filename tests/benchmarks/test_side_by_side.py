from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.contract import Timing, Workload
from benchmarks.peers.catalog import Contender, Launch
from benchmarks.peers.environments import Cache, SkipError
from benchmarks.peers.models import Models
from benchmarks.peers.side_by_side import Measured, measure, plan_repeats, summary
from benchmarks.processes import ROOT

SHORT, LONG = Workload(1, 4, 3), Workload(2, 4, 3)

RUNNERS = {
    "steady": """
        for workload in task.workloads:
            yield Timing(workload, 1.0, 2.0 + task.seed, workload.streams)
    """,
    "dies": """
        yield Timing(task.workloads[0], 1.0, 2.0, task.workloads[0].streams)
        raise ValueError("no room for the second one")
    """,
    "silent": """
        yield from ()
    """,
    "crazy": """
        yield Timing(task.workloads[0], -1.0, 2.0, 1)
    """,
}


@pytest.fixture
def contender(tmp_path: Path) -> Callable[[str], Contender]:
    """An engine whose runner is one of `RUNNERS`, in a process of its own like any other."""

    def make(kind: str) -> Contender:
        lines = [line[4:] for line in RUNNERS[kind].splitlines()]
        text = "from benchmarks.contract import Timing, run_runner\ndef run(task):\n" + "\n".join(lines)
        (tmp_path / f"run_{kind}.py").write_text(text + "\nrun_runner(run)\n", "utf-8")
        environ = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
        launch = Launch(Path(sys.executable), f"run_{kind}", "model", environ)
        return Contender(kind, kind.title(), "float32", "1.0", lambda cache, models: launch)

    return make


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", may_make=False, say=print)


def run(cache: Cache, contenders: list[Contender], rounds: int = 1, budget_s: float = 1e9) -> dict[str, dict]:
    file = cache.folder.parent / "model.gguf"
    file.touch()
    result = measure(
        contenders,
        (SHORT, LONG),
        rounds=rounds,
        budget_s=budget_s,
        threads=1,
        cache=cache,
        models=Models(cache, file),
        say=print,
    )
    assert result["workloads"] == [SHORT.name, LONG.name]
    return {engine["name"]: engine for engine in result["engines"]}


def test_medians_over_rounds(cache: Cache, contender: Callable[[str], Contender]) -> None:
    engines = run(cache, [contender("steady")], rounds=3)
    # The runner takes 2, 3 and 4 s: 2 tokens are left to decode after the first second.
    one = engines["steady"]["results"][SHORT.name]
    assert one["rounds"] == 3
    assert one["decode_tok_s"] == 2 / 2
    assert one["output_tok_s"] == 3 / 3
    assert one["prefill_tok_s"] == 4
    assert [timing["total_s"] for timing in one["timings"]] == [2, 3, 4]
    assert engines["steady"]["reason"] is None


def test_who_fails_says_why_and_harms_nobody(cache: Cache, contender: Callable[[str], Contender]) -> None:
    engines = run(cache, [contender(kind) for kind in ("dies", "silent", "crazy", "steady")], rounds=2)
    assert engines["dies"]["reason"] == "it failed (exit status 1): ValueError: no room for the second one"
    assert list(engines["dies"]["results"]) == [SHORT.name]
    assert engines["dies"]["results"][SHORT.name]["rounds"] == 1
    assert engines["silent"]["reason"] == "it answered 0 of 2 workloads"
    assert "impossible times" in engines["crazy"]["reason"]
    assert engines["steady"]["results"][LONG.name]["rounds"] == 2


def test_what_cannot_be_installed_is_skipped_with_the_reason(
    cache: Cache, contender: Callable[[str], Contender]
) -> None:
    def refuse(cache: Cache, models: Models) -> Launch:
        raise SkipError("pip failed: no such version")

    engines = run(cache, [Contender("absent", "Absent", "int8", "9", refuse), contender("steady")])
    assert engines["absent"]["reason"] == "pip failed: no such version"
    assert engines["absent"]["results"] == {}
    assert engines["steady"]["results"][SHORT.name]["rounds"] == 1


def test_a_python_that_is_not_there_is_a_reason(cache: Cache) -> None:
    launch = Launch(cache.folder / "python3", "x", "model")
    engines = run(cache, [Contender("gone", "Gone", "int8", "9", lambda cache, models: launch)])
    assert "cannot be run" in engines["gone"]["reason"]


def measured(name: str, load_s: float, *totals: float) -> Measured:
    engine = Measured(Contender(name, name, "", "", lambda cache, models: Launch(Path(), "", "")), load_s=load_s)
    engine.timings = [Timing(workload, 0.1, total, 1) for workload, total in zip((SHORT, LONG), totals, strict=False)]
    return engine


def test_the_fastest_are_repeated_first_and_the_longest_left_out() -> None:
    engines = [measured("slow", 5, 10, 60), measured("fast", 1, 2, 7), measured("failed", 0)]
    everything = plan_repeats(engines, repeats=2, budget_s=170)
    assert everything == {"fast": (SHORT, LONG), "slow": (SHORT, LONG)}
    # Both rounds of the fast one take 20 s; the slow one's short workload with its load takes 30.
    assert plan_repeats(engines, repeats=2, budget_s=169) == {"fast": (SHORT, LONG), "slow": (SHORT,)}
    assert plan_repeats(engines, repeats=2, budget_s=49) == {"fast": (SHORT, LONG)}
    assert plan_repeats(engines, repeats=2, budget_s=19) == {"fast": (SHORT,)}
    assert plan_repeats(engines, repeats=2, budget_s=-1) == {}


def test_no_time_for_repeats_leaves_one_round(cache: Cache, contender: Callable[[str], Contender]) -> None:
    engines = run(cache, [contender("steady")], rounds=3, budget_s=0)
    assert engines["steady"]["results"][SHORT.name]["rounds"] == 1


def test_a_prompt_alone_has_no_decode_rate() -> None:
    prompt = Workload(1, 512, 1)
    found = summary([Timing(prompt, 2.0, 2.0, 1), Timing(prompt, 4.0, 4.0, 1)])
    assert found["decode_tok_s"] is None
    assert found["prefill_tok_s"] == (256 + 128) / 2
