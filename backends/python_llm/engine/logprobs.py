"""Log-probabilities of known tokens, and of the most likely ones, under the model's unmodified distribution.

Does not know how a token was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from python_llm.engine.largest import largest
from python_llm.engine.plan import TokenLogprob


def token_logprobs(
    logits: Tensor, targets: Sequence[int], tops: Sequence[int]
) -> list[tuple[TokenLogprob, tuple[TokenLogprob, ...]]]:
    """For row i of `logits`, float32 [m, vocab]: the logprob of `targets[i]`, and the `tops[i]` most likely tokens.

    Best first, the lowest id first among equals. A rank is 1 + the number of strictly larger logits.
    """
    if not targets:
        return []
    rows = torch.arange(len(targets), device=logits.device)
    target_logits = logits[rows, torch.as_tensor(targets, dtype=torch.int64, device=logits.device)]
    target_ranks = 1 + (logits > target_logits[:, None]).sum(-1)
    # One row at a time: a reduction over one row and over several may add in another order.
    log_totals = torch.stack([_log_total(row) for row in logits]).tolist()
    # One token more than asked for shows whether the last place is shared.
    best_logits, best_ids = largest(logits, min(max(tops) + 1, logits.shape[1]))
    values, token_ids = best_logits.cpu().numpy(), best_ids.cpu().numpy()
    answers = []
    for i, (logit, rank) in enumerate(zip(target_logits.tolist(), target_ranks.tolist(), strict=True)):
        top_ids, top_logits = _order(logits[i], token_ids[i], values[i], tops[i])
        top = tuple(
            TokenLogprob(int(token_id), float(value) - log_totals[i], 1 + int(np.count_nonzero(top_logits > value)))
            for token_id, value in zip(top_ids, top_logits, strict=True)
        )
        answers.append((TokenLogprob(int(targets[i]), logit - log_totals[i], rank), top))
    return answers


def _log_total(row: Tensor) -> Tensor:
    """float64 []: log of the sum of exp over the row."""
    best = row.amax()
    return best.double() + (row - best).exp_().sum(dtype=torch.float64).log()


def _order(row: Tensor, token_ids: np.ndarray, values: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """The `top` best (ids, logits) in order of (falling logit, rising id), given `top` + 1 best."""
    if top == 0:
        return token_ids[:0], values[:0]
    if top < len(values) and values[top] == values[top - 1]:
        # Which of the equals are among the best is by chance: look at all of them.
        token_ids = torch.nonzero(row >= float(values[top - 1]))[:, 0].cpu().numpy()
        values = row[torch.from_numpy(token_ids).to(row.device)].cpu().numpy()
    order = np.lexsort((token_ids, -values))[:top]
    return token_ids[order], values[order]
