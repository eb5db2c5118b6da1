"""The measurement of step costs, on a runner whose steps take what we say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fake_runner import FakeRunner
from python_llm.engine.plan import StepPlan, StepResult
from python_llm.speculation.step_costs import StepCosts, measure_step_costs


class SlowRunner(FakeRunner):
    def __init__(self, seconds: Callable[[int], float], **sizes: int) -> None:
        super().__init__(**sizes)
        self.now = 0.0
        self._seconds = seconds

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        self.now += self._seconds(plan.num_tokens)
        return result


def measured(runner: SlowRunner) -> StepCosts:
    return measure_step_costs(runner, clock=lambda: runner.now)


def test_all_sizes_of_a_small_model_in_less_than_a_second() -> None:
    runner = SlowRunner(lambda rows: 0.006 + 0.0015 * rows, num_blocks=400, max_model_len=300)
    costs = measured(runner)
    assert runner.now < 1.0
    assert costs.max_rows == 64
    for rows in (1, 3, 7, 40, 64):
        assert costs.seconds(rows) == pytest.approx(0.006 + 0.0015 * rows)


def test_a_large_model_is_measured_up_to_8_rows() -> None:
    runner = SlowRunner(lambda rows: 0.4 + 0.05 * rows, num_blocks=400, max_model_len=300)
    assert measured(runner).max_rows == 8
    assert runner.now < 5 * 0.8


def test_a_slow_moment_does_not_count() -> None:
    runner = SlowRunner(lambda rows: 0.01, num_blocks=400, max_model_len=300)
    calls = iter(range(1000))
    runner._seconds = lambda rows: 0.05 if next(calls) in (2, 9) else 0.01
    assert [measured(runner).seconds(rows) for rows in (1, 2, 8)] == pytest.approx([0.01] * 3)


def test_more_rows_never_seem_to_cost_less() -> None:
    costs = StepCosts({1: 1.0, 2: 3.0, 4: 2.0, 8: 4.0})
    assert [costs.seconds(rows) for rows in range(1, 9)] == [1, 3, 3, 3, 3.25, 3.5, 3.75, 4]


@pytest.mark.parametrize(
    ("sizes", "max_rows"),
    [
        ({"num_blocks": 2, "block_size": 4, "max_model_len": 8}, 8),
        ({"num_blocks": 1, "block_size": 4, "max_model_len": 3}, 2),
        ({"num_blocks": 1, "block_size": 1, "max_model_len": 2}, 1),
        ({"num_blocks": 7, "block_size": 4, "max_model_len": 200}, 16),
    ],
)
def test_a_small_pool_limits_the_sizes(sizes: dict[str, int], max_rows: int) -> None:
    assert measured(SlowRunner(lambda rows: 0.001 * rows, **sizes)).max_rows == max_rows
