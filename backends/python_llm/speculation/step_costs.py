"""What a step costs by the number of its rows (tokens): measured at load on the real runner.

A CPU's steps grow almost in proportion to their rows once there are some; where they do, verifying a draft costs as
much as a token of its own. Does not know drafts, requests or acceptance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from python_llm.engine.plan import Runner, SamplingTask, Span, StepPlan
from python_llm.engine.sampling_params import SamplingParams

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_ROWS_A_SPAN = 8
_CONTEXT = 128
_ROUNDS = 5
_SHARE_S = 0.15
"""Seconds for each size in all its rounds."""
_LONGEST_S = 0.3
"""A size is left out when one step of it is expected to take longer, unless it is among the first."""
_ALWAYS = 8
"""Sizes up to this one are measured however long they take: a large model gains the most from drafts."""


class StepCosts:
    """Seconds of a step of 1 to `max_rows` rows. Immutable."""

    def __init__(self, measured: Mapping[int, float]) -> None:
        """`measured`: rows -> seconds; what lies between is interpolated. 1 must be among the rows."""
        rows = sorted(measured)
        # More rows never take less: noise that says so would make drafts look free.
        seconds = np.maximum.accumulate([measured[count] for count in rows])
        self.max_rows = rows[-1]
        self._seconds: list[float] = [0.0, *np.interp(np.arange(1, self.max_rows + 1), rows, seconds).tolist()]

    def seconds(self, rows: int) -> float:
        """`rows`: 1 to `max_rows`."""
        return self._seconds[rows]


def measure_step_costs(runner: Runner, *, clock: Callable[[], float] = time.perf_counter) -> StepCosts:
    """Runs steps on pages of `runner`, which must not be in use: less than a second, or 5 steps of a large model.

    Sizes take turns, and each is judged by its fastest run, so that a busy moment of the machine distorts no ratio.
    """
    runner.execute(_plan(runner, 1) or StepPlan(()))  # The first step pays for what the next ones find ready.
    best: dict[int, float] = {}
    spent = dict.fromkeys(_ROWS, 0.0)
    for number in range(_ROUNDS):
        for rows in _ROWS:
            if (plan := _plan(runner, rows)) is None:
                break
            if number == 0:
                expected = 2 * best.get(rows // 2, 0.0)
                if rows > _ALWAYS and expected > _LONGEST_S:
                    break
            elif rows not in best or spent[rows] + best[rows] > _SHARE_S:
                continue
            started = clock()
            runner.execute(plan)
            seconds = clock() - started
            spent[rows] += seconds
            best[rows] = min(seconds, best.get(rows, seconds))
    return StepCosts(best)


def _plan(runner: Runner, rows: int) -> StepPlan | None:
    """Spans as verification makes them; None when pages or positions do not suffice."""
    spans = []
    sizes = [_ROWS_A_SPAN] * (rows // _ROWS_A_SPAN) or [rows]
    pages = runner.num_blocks // len(sizes)
    longest = min(pages * runner.block_size, runner.max_model_len)
    if longest < sizes[0]:
        return None
    start = min(_CONTEXT, longest - sizes[0])
    params = SamplingParams(temperature=0.0)
    for number, size in enumerate(sizes):
        end = start + size
        history = np.zeros(end, dtype=np.int32)
        first_page = number * pages
        spans.append(
            Span(
                request_id=number,
                start=start,
                token_ids=history[start:],
                block_ids=np.arange(first_page, first_page - (-end // runner.block_size), dtype=np.int32),
                sampling=SamplingTask(params=params, seed=0, history=history, num_prompt=end - size + 1, logprobs=None),
                num_drafts=size - 1,
            )
        )
    return StepPlan(tuple(spans))
