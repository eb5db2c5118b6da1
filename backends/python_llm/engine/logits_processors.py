"""What sampling parameters do to the logits before a token is chosen: bias, bans, penalties.

Does not know temperature, filters or randomness (`token_choice.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from python_llm.engine.plan import SamplingTask
from python_llm.engine.sampling_params import SamplingParams


def process(row: Tensor, task: SamplingTask) -> None:
    """Applies `task.params` to `row`, float32 [vocab], in place.

    In vLLM's terms and order: logit_bias; min_tokens and bad_words (bans); repetition_penalty over prompt and output;
    frequency_penalty and presence_penalty over the output. Where the bans would leave no token at all, this step goes
    without them: the request must get some token, and the model's own preference is the best guess at which.
    """
    params = task.params
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias, strict=True)
        row[_index(ids, row)] += torch.tensor(biases, dtype=row.dtype, device=row.device)
    banned = _banned(task)
    if banned:
        index = _index(sorted(banned), row)
        kept = row[index]
        row[index] = -torch.inf
        if row.amax() == -torch.inf:
            row[index] = kept
    if params.repetition_penalty != 1.0:
        _penalize_repetition(row, task.history, params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        _penalize_output(row, task.history[task.num_prompt :], params)


def _index(token_ids: object, row: Tensor) -> Tensor:
    return torch.as_tensor(token_ids, dtype=torch.int64, device=row.device)


def _banned(task: SamplingTask) -> set[int]:
    params = task.params
    banned: set[int] = set()
    if task.output_index < params.min_tokens:
        banned.update(params.stop_token_ids, params.eos_token_ids)
    if params.bad_words_token_ids:
        banned.update(_ends_of_bad_words(task))
    return banned


def _ends_of_bad_words(task: SamplingTask) -> Iterator[int]:
    """The tokens that would complete a bad word."""
    words = task.params.bad_words_token_ids
    # Against the output alone: a word that the prompt begins is the prompt's.
    begin = max(task.num_prompt, len(task.history) - max(map(len, words)) + 1)
    # Numpy would cost microseconds for each of up to 2048 words, at every token of every row.
    tail = tuple(task.history[begin:].tolist())
    last = tail[-1] if tail else None
    for word in words:
        if len(word) == 1 or (word[-2] == last and tail[1 - len(word) :] == word[:-1]):
            yield word[-1]


def _penalize_repetition(row: Tensor, history: np.ndarray, penalty: float) -> None:
    """Keskar et al., CTRL (2019), as transformers writes it: negative logits are multiplied, the others divided."""
    index = _index(_seen(np.bincount(history)), row)
    # float64, so that extreme penalties give 0 or an infinity and never NaN.
    logits = row[index].double()
    row[index] = torch.where(logits < 0, logits * penalty, logits / penalty).to(row.dtype)


def _penalize_output(row: Tensor, output: np.ndarray, params: SamplingParams) -> None:
    counts = np.bincount(output)
    seen = _seen(counts)
    penalties = params.frequency_penalty * counts[seen] + params.presence_penalty
    row[_index(seen, row)] -= torch.as_tensor(penalties, dtype=row.dtype, device=row.device)


def _seen(counts: np.ndarray) -> np.ndarray:
    # Four times as fast on booleans as on counts.
    return np.flatnonzero(counts > 0)
