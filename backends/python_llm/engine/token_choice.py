"""Chooses one token for each row of processed logits: the best, or a draw by temperature, min_p, top_k and top_p.

Each filter is a threshold: it keeps the tokens whose logit is at least so high. So equal logits are kept or dropped
together, the filters' order and a sort's treatment of ties cannot matter, and no row needs its vocabulary sorted: the
thresholds are found in a window of the most likely tokens, which grows until it holds them.
Does not know bans and penalties (`logits_processors.py`) or logprobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from python_llm.engine.largest import argmax, largest
from python_llm.engine.plan import SamplingTask
from python_llm.engine.random_stream import uniform
from python_llm.engine.sampling_params import SamplingParams

_WINDOW = 64
_WINDOW_GROWTH = 16
_LARGEST_WINDOW = 1024
"""When this one is too small, the whole vocabulary is the next: sorting most of it costs as much."""


def choose(logits: Tensor, tasks: Sequence[SamplingTask]) -> list[int]:
    """`logits`: float32 [rows, vocab], task i is for row i. A row's token depends on that row and its task alone.

    The draw is by inverse CDF, in float64, over the remaining tokens in order of id. A row whose best logit is not
    finite (all are -inf, or one has overflown) gives the token that `argmax` names.
    """
    vocab = logits.shape[1]
    greedy: list[int] = []
    unfiltered: list[int] = []
    filtered: list[int] = []
    for row, task in enumerate(tasks):
        params = task.params
        if params.is_greedy:
            greedy.append(row)
        elif 0 < params.top_k < vocab or params.top_p < 1 or params.min_p > 0:
            filtered.append(row)
        else:
            unfiltered.append(row)
    chosen = [0] * len(tasks)
    if greedy:
        for row, token_id in zip(greedy, argmax(_select(logits, greedy)).tolist(), strict=True):
            chosen[row] = token_id
    if unfiltered:
        drawn = torch.stack([_draw_from_all(logits[row], tasks[row]) for row in unfiltered])
        for row, token_id in zip(unfiltered, drawn.tolist(), strict=True):
            chosen[row] = token_id if token_id < vocab else _fallback(logits[row])
    if filtered:
        for row, token_id in _draw_filtered(logits, tasks, filtered).items():
            chosen[row] = token_id
    return chosen


def _select(logits: Tensor, rows: list[int]) -> Tensor:
    """Those rows; no copy when they are all."""
    return logits if len(rows) == logits.shape[0] else logits[torch.tensor(rows, device=logits.device)]


def _draw_from_all(row: Tensor, task: SamplingTask) -> Tensor:
    """int64 []: a draw by temperature alone, from the whole vocabulary; its size when the best logit is not finite."""
    best = row.amax()
    cdf = ((row - best) / task.params.temperature).exp_().cumsum(0, dtype=torch.float64)
    target = cdf[-1:] * uniform(task.seed, task.output_index)
    # The second term: the product may round up to the total, beyond the last token that has any weight.
    token_id = torch.minimum(torch.searchsorted(cdf, target, right=True), torch.searchsorted(cdf, cdf[-1:]))[0]
    return torch.where(best.isfinite(), token_id, len(row))


def _fallback(row: Tensor) -> int:
    return int(argmax(row[None]))


def _draw_filtered(logits: Tensor, tasks: Sequence[SamplingTask], rows: list[int]) -> dict[int, int]:
    vocab = logits.shape[1]
    totals = _total_weights(logits, tasks, rows)
    chosen: dict[int, int] = {}
    size = _WINDOW
    while rows:
        size = min(size, vocab) if size <= _LARGEST_WINDOW else vocab
        top_logits, top_ids = largest(_select(logits, rows), size)
        values = top_logits.double().cpu().numpy()
        token_ids = top_ids.cpu().numpy()
        unresolved = []
        for i, row in enumerate(rows):
            task = tasks[row]
            if not math.isfinite(values[i, 0]):
                chosen[row] = _fallback(logits[row])
                continue
            possible = np.count_nonzero(values[i] > -np.inf)
            scaled = (values[i, :possible] - values[i, 0]) / task.params.temperature
            everything = possible < size or size == vocab
            count = _count_candidates(scaled, everything, task.params, totals.get(row))
            if count is None:
                unresolved.append(row)
            else:
                chosen[row] = _draw(token_ids[i, :count], scaled[:count], uniform(task.seed, task.output_index))
        rows = unresolved
        size *= _WINDOW_GROWTH
    return chosen


def _total_weights(logits: Tensor, tasks: Sequence[SamplingTask], rows: list[int]) -> dict[int, float]:
    """The sum of exp((logit - best) / temperature) over a row, for rows where top_p is the only filter."""
    wanted = [row for row in rows if tasks[row].params.top_k == 0 and tasks[row].params.min_p == 0]
    if not wanted:
        return {}
    # One row at a time: a reduction over one row and over several may add in another order.
    sums = [
        ((logits[row] - logits[row].amax()) / tasks[row].params.temperature).exp_().sum(dtype=torch.float64)
        for row in wanted
    ]
    return dict(zip(wanted, torch.stack(sums).tolist(), strict=True))


def _count_candidates(scaled: np.ndarray, everything: bool, params: SamplingParams, total: float | None) -> int | None:
    """How many of the values pass all filters; None: the window is too small to tell.

    `scaled`: float64 [window], (logit - best) / temperature, descending. `everything`: no token outside the window has
    any weight. `total`: the weight of all tokens, where neither min_p nor top_k bounds the window.
    """
    floor = -math.inf
    if params.min_p > 0:
        floor = math.log(params.min_p)
    if params.top_k > 0:
        if params.top_k <= len(scaled):
            floor = max(floor, scaled[params.top_k - 1])
        elif not everything and scaled[-1] >= floor:
            return None
    if params.top_p < 1:
        closed = everything or scaled[-1] < floor
        if total is None and not closed:
            return None
        weights = np.exp(scaled[: np.count_nonzero(scaled >= floor)])
        cdf = np.cumsum(weights)
        reached = np.searchsorted(cdf, params.top_p * (cdf[-1] if total is None else total))
        if reached < len(cdf):
            floor = max(floor, scaled[reached])
        elif not closed:
            return None
    if not everything and scaled[-1] >= floor:
        return None
    return int(np.count_nonzero(scaled >= floor))


def _draw(token_ids: np.ndarray, scaled: np.ndarray, number: float) -> int:
    order = np.argsort(token_ids)
    cdf = np.cumsum(np.exp(scaled[order]))
    # The second term, as in `_draw_from_all`.
    position = min(np.searchsorted(cdf, number * cdf[-1], side="right"), np.searchsorted(cdf, cdf[-1]))
    return int(token_ids[order[position]])
