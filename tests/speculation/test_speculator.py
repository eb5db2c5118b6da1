"""Who is asked, when, and what of it is verified: with made-up costs and a made-up clock, so that all is determined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from guessing import FREE_ROWS, speculator_of
from python_llm.engine.drafts import Opening
from python_llm.engine.plan import SampledToken
from python_llm.engine.request import Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.speculation.proposer import Ask, Draft
from python_llm.speculation.step_costs import StepCosts

CPU = StepCosts({1: 0.008, 2: 0.0085, 4: 0.010, 8: 0.017, 16: 0.031, 32: 0.058})


def request_of(tokens: list[int], **params: Any) -> Request:
    return Request(
        np.array(tokens, np.int32), SamplingParams(**params), seed=0, max_new_tokens=10_000, sink=lambda output: None
    )


def opening(request: Request, most: int = 100) -> Opening:
    return Opening(request, most)


class Scripted:
    """Proposes 7, 7, 7, ... and takes `seconds` of the clock."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.asked: list[list[Ask]] = []
        self.forgotten: list[int] = []
        self.fails = False
        self.resets = 0

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        self.now += self.seconds
        self.asked.append(list(asks))
        if self.fails:
            raise ConnectionError("gone")
        return [Draft([7] * ask.most) for ask in asks]

    def forget(self, last: Ask) -> None:
        self.forgotten.append(last.sequence_id)

    def reset(self) -> None:
        self.resets += 1

    def clock(self) -> float:
        return self.now


def test_one_call_for_all_with_only_what_is_new() -> None:
    proposer = Scripted()
    speculator = speculator_of(proposer, clock=proposer.clock)
    one, two, off = request_of([1, 2, 3]), request_of([4]), request_of([5], speculation="off")
    speculator.draft(3, [opening(one), opening(two, most=2), opening(off)])
    one.append(SampledToken(9))
    drafts = speculator.draft(3, [opening(two), opening(one)])
    told = [
        [(ask.sequence_id, ask.new_tokens.tolist(), ask.num_tokens, ask.most) for ask in asks]
        for asks in proposer.asked
    ]
    assert told == [[(one.id, [1, 2, 3], 3, 4), (two.id, [4], 1, 2)], [(two.id, [], 1, 4), (one.id, [9], 4, 4)]]
    assert {key: value.tolist() for key, value in drafts.items()} == {one.id: [7] * 4, two.id: [7] * 4}
    for request in (one, two, off):
        speculator.forget(request)
    assert proposer.forgotten == [one.id, two.id]


def test_drafts_are_cut_at_their_limit_and_at_ids_that_do_not_exist() -> None:
    class Wild(Scripted):
        def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
            return [Draft([1, 2, 97, 3]), Draft([-1, 4]), Draft(np.arange(50)), Draft([])]  # type: ignore[arg-type]

    requests = [request_of([1]) for _ in range(4)]
    drafts = speculator_of(Wild()).draft(4, [opening(r, 3) for r in requests])
    assert [drafts[r.id].tolist() if r.id in drafts else None for r in requests] == [[1, 2], None, [0, 1, 2], None]


def test_a_busy_step_is_left_alone() -> None:
    proposer = Scripted()
    speculator = speculator_of(proposer, costs=CPU, clock=proposer.clock)
    for rows in (32, 33, 500):
        assert speculator.draft(rows, [opening(request_of([1])) for _ in range(32)]) == {}
    assert proposer.asked == []


def step(request: Request, drafts: dict[int, np.ndarray], truth: int) -> int:
    """What the engine would do: the drafts that are `truth` are accepted, and one more token comes. Returns rows."""
    draft = drafts.get(request.id, np.array([], np.int32)).tolist()
    accepted = 0
    while accepted < len(draft) and draft[accepted] == truth:
        accepted += 1
    for _ in range(accepted + 1):
        request.append(SampledToken(truth))
    return 1 + len(draft)


def test_poor_drafts_cost_nothing_and_better_ones_are_noticed_without_verifying() -> None:
    proposer = Scripted()
    speculator = speculator_of(proposer, costs=CPU, clock=proposer.clock)
    request = request_of([1])
    rows = [step(request, speculator.draft(1, [opening(request)]), truth=5) for _ in range(60)]
    assert rows[-40:] == [1] * 40, "after some failures nothing is verified"
    assert sum(CPU.seconds(n) for n in rows) < 1.05 * 60 * CPU.seconds(1), "learning that costs little"
    rows = [step(request, speculator.draft(1, [opening(request)]), truth=7) for _ in range(60)]
    assert rows[-1] == 5, "drafts that come true are verified again"


@pytest.mark.parametrize("truth", [5, 7])
def test_a_slow_proposer_is_asked_only_as_often_as_it_earns(truth: int) -> None:
    """60 ms a call, when a step takes 8: not even right drafts are worth it, and it takes 2 % of the time."""
    proposer = Scripted(seconds=0.060)
    speculator = speculator_of(proposer, costs=CPU, clock=proposer.clock)
    request = request_of([1])
    spent = 0.0
    for _ in range(2000):
        before = proposer.now
        rows = step(request, speculator.draft(1, [opening(request)]), truth)
        proposer.now += CPU.seconds(rows)
        spent += proposer.now - before
    tokens = request.num_tokens - 1
    assert spent / tokens < 1.04 * CPU.seconds(1)
    assert 3 < len(proposer.asked) < 15, "but it is asked now and then"


def test_a_proposer_worth_its_time_is_asked_every_step() -> None:
    proposer = Scripted(seconds=0.004)
    speculator = speculator_of(proposer, costs=CPU, clock=proposer.clock)
    request = request_of([1])
    for _ in range(100):
        proposer.now += CPU.seconds(step(request, speculator.draft(1, [opening(request)]), truth=7))
    assert len(proposer.asked) > 90
    assert (request.num_tokens - 1) / proposer.now > 1.5 / CPU.seconds(1)


def test_a_failing_proposer_rests_longer_each_time_and_is_then_told_everything() -> None:
    proposer = Scripted()
    warnings: list[str] = []
    speculator = speculator_of(proposer, costs=FREE_ROWS, clock=proposer.clock, log_warning=warnings.append)
    request, ended = request_of([1, 2]), request_of([3])
    speculator.draft(2, [opening(request), opening(ended)])
    proposer.fails = True
    for _ in range(1000):
        assert speculator.draft(1, [opening(request)]) == {}
        request.append(SampledToken(5))
        proposer.now += 0.1
    assert len(proposer.asked) == 1 + 7, "after 1, 2, 4, 8, 16 and 32 seconds"
    assert len(warnings) == 7 and "ConnectionError: gone" in warnings[0]
    assert proposer.resets == 7, "it is not told of those that end while it rests"
    speculator.forget(ended)
    assert proposer.forgotten == [], "it has lost it anyway"
    proposer.fails = False
    proposer.now += 61
    assert speculator.draft(1, [opening(request)])[request.id].tolist() == [7] * 4
    assert len(proposer.asked[-1][0].new_tokens) == request.num_tokens


def test_the_request_says_how_many() -> None:
    proposer = Scripted()
    speculator = speculator_of(proposer)
    requests = [request_of([1], num_draft_tokens=n) for n in (0, 1, 20)]
    drafts = speculator.draft(3, [opening(r, 10) for r in requests])
    assert [len(drafts.get(r.id, ())) for r in requests] == [0, 1, 10]
