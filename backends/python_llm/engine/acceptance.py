"""Which drafts become output, and with what logprobs: the logits of a span with drafts -> its new tokens.

Token i of an output is always made in one way: from the logits after tokens [0, i), with the penalties and bans of that
history, and with the random number (seed, i). A draft is accepted when it equals the token so made; the first that does
not is replaced by it, and what follows is thrown away. So drafts can change the speed of an output and nothing else:
greedy or sampled, the text and logprobs are those without speculation, seed for seed.

For a draft x given in advance this accepts with probability p(x), and else the token is distributed as p without x,
renormalised: the rule of Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (ICML 2023),
theorem 1, and of Chen et al., "Accelerating Large Language Model Decoding with Speculative Sampling" (2023), for a
proposal with all its mass on x. A proposer that samples can raise its agreement by drawing with the same (seed, i)
(Daliri et al., "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).

Does not know requests, pages, or where drafts come from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from python_llm.engine.plan import SampledToken, SamplingTask, Span
from python_llm.engine.sampling import sample


def num_sampled_rows(span: Span) -> int:
    """How many of the span's last rows need logits: one for each draft and one for the token after them."""
    return 0 if span.sampling is None else span.num_drafts + 1


def new_tokens(logits: Tensor, spans: Sequence[Span]) -> list[tuple[SampledToken, ...]]:
    """For each span its new tokens in order: the accepted drafts, then one that the model chose; () without `sampling`.

    `logits`: float32 [rows, vocab], `num_sampled_rows` rows for each span in turn; may be overwritten.
    """
    tokens: list[list[SampledToken]] = [[] for _ in spans]
    first_rows, row = [], 0
    for span in spans:
        first_rows.append(row)
        row += num_sampled_rows(span)
    next_offsets = {index: 0 for index, span in enumerate(spans) if span.sampling is not None}
    while next_offsets:
        # Rows after a rejected draft are for nothing. An argmax costs less than another round; a draw or logprobs more.
        turn = [
            (index, offset)
            for index, next_offset in next_offsets.items()
            for offset in range(next_offset, num_sampled_rows(spans[index]))
            if offset == next_offset or _is_cheap(spans[index].sampling)
        ]
        rows = [first_rows[index] + offset for index, offset in turn]
        chosen = sample(_select(logits, rows), [_task(spans[index], offset) for index, offset in turn])
        is_open = dict.fromkeys(next_offsets, True)
        for (index, offset), token in zip(turn, chosen, strict=True):
            if is_open[index]:
                tokens[index].append(token)
                is_open[index] = _accepts(spans[index], offset, token)
        next_offsets = {index: len(tokens[index]) for index in next_offsets if is_open[index]}
    return [tuple(new) for new in tokens]


def _is_cheap(task: SamplingTask | None) -> bool:
    return task is not None and task.params.is_greedy and task.logprobs is None


def _accepts(span: Span, offset: int, token: SampledToken) -> bool:
    """Whether the draft at `offset`, if there is one, is `token`."""
    drafts = span.token_ids[len(span.token_ids) - span.num_drafts :]
    return offset < len(drafts) and int(drafts[offset]) == token.token_id


def _task(span: Span, offset: int) -> SamplingTask:
    """The task for the logits after the known tokens and the first `offset` drafts."""
    task = span.sampling
    assert task is not None
    if not span.num_drafts:
        return task
    return dataclasses.replace(task, history=task.history[: len(task.history) - span.num_drafts + offset])


def _select(logits: Tensor, rows: list[int]) -> Tensor:
    """Those rows; no copy when they are all."""
    return logits if len(rows) == logits.shape[0] else logits[torch.tensor(rows, device=logits.device)]
