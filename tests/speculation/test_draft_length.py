"""How much is verified: against trying every combination, and never against the batch's interest."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_llm.speculation.agreement import Agreement
from python_llm.speculation.draft_length import can_pay, choose_lengths
from python_llm.speculation.proposer import Draft
from python_llm.speculation.step_costs import StepCosts

CPU = StepCosts({1: 7.9, 2: 8.5, 4: 10.0, 8: 17.0, 16: 31.0, 32: 58.0, 64: 113.0})
survivals = st.lists(
    st.lists(st.floats(0.05, 1), max_size=4).map(lambda rates: [round(p, 6) for p in itertools.accumulate(rates, min)]),
    min_size=1,
    max_size=3,
)
costs = st.lists(st.floats(0, 1), min_size=20, max_size=20).map(
    lambda steps: StepCosts({i + 1: 1 + total for i, total in enumerate(itertools.accumulate(steps))})
)


def rate(costs: StepCosts, rows: int, survivals: list[list[float]], lengths: list[int], extra_s: float = 0) -> float:
    count = sum(lengths)
    gained = sum(sum(survival[:length]) for survival, length in zip(survivals, lengths, strict=True))
    return (rows + gained) / (costs.seconds(rows + count) + (extra_s if count else 0))


@given(costs, survivals, st.integers(1, 6), st.sampled_from([0.0, 0.5]))
def test_the_best_of_all_combinations(costs: StepCosts, survivals: list[list[float]], rows: int, extra: float) -> None:
    lengths = choose_lengths(costs, rows, survivals, extra_s=extra)
    off = rate(costs, rows, survivals, [0] * len(survivals))
    best = max(
        rate(costs, rows, survivals, list(each), extra)
        for each in itertools.product(*(range(len(survival) + 1) for survival in survivals))
    )
    ours = rate(costs, rows, survivals, lengths, extra)
    assert all(length <= len(survival) for length, survival in zip(lengths, survivals, strict=True))
    if best > 1.03 * off * (1 + 1e-9):
        assert ours == pytest.approx(best)
    else:
        assert sum(lengths) == 0 or ours >= off


def test_one_stream_verifies_and_a_busy_batch_does_not() -> None:
    good, poor = [0.9**n for n in range(1, 9)], [0.15**n for n in range(1, 9)]
    assert choose_lengths(CPU, 1, [good])[0] >= 3
    assert choose_lengths(CPU, 1, [poor]) == [0] or choose_lengths(CPU, 1, [poor]) == [1]
    assert choose_lengths(CPU, 32, [good] * 32) == [0] * 32
    assert not can_pay(CPU, 32) and not can_pay(CPU, 64) and not can_pay(CPU, 500) and can_pay(CPU, 1)


def test_good_drafts_go_first() -> None:
    flat = StepCosts({1: 1.0, 5: 1.0, 6: 9.0})
    assert choose_lengths(flat, 2, [[0.3, 0.2], [0.9, 0.8, 0.7]]) == [0, 3]


def test_agreement_follows_what_came_true() -> None:
    agreement = Agreement()
    sequence, other = agreement.new_sequence(), agreement.new_sequence()
    draft = Draft([1, 2, 3, 4, 5, 6])
    start = agreement.survival(sequence, 0, 6)
    assert start == sorted(start, reverse=True) and start[0] == 0.5
    for _ in range(30):
        agreement.count(sequence, draft, 0, False)
    assert agreement.survival(sequence, 0, 1)[0] < 0.1, "the sequence's own record"
    assert agreement.survival(sequence, 0, 1)[0] < agreement.survival(other, 0, 1)[0] < 0.1, "and that of all"
    assert agreement.survival(sequence, 1, 1) == [0.5], "other grades are told apart"
    for _ in range(30):
        for place in range(6):
            agreement.count(sequence, draft, place, True)
    assert agreement.survival(sequence, 0, 6)[5] > 0.8, "and back when drafts get better"
