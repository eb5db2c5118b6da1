"""Logits -> tokens and logprobs: the order in which things are done. Each thing is a module of its own.

Does not know requests, pages or text. A row's result depends on that row and its task alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from python_llm.engine.logits_processors import process
from python_llm.engine.logprobs import token_logprobs
from python_llm.engine.plan import PromptLogprob, PromptLogprobsTask, SampledToken, SamplingTask
from python_llm.engine.random_stream import sequence_seed, uniform
from python_llm.engine.token_choice import choose

__all__ = ["prompt_logprobs", "sample", "sequence_seed", "uniform"]


@torch.inference_mode()
def sample(logits: Tensor, tasks: Sequence[SamplingTask]) -> list[SampledToken]:
    """One token for each row of `logits`, float32 [rows, vocab], which may be overwritten. Task i is for row i.

    As vLLM's V1 sampler does it: logprobs are of the logits as they come; then bias, bans and penalties; then
    temperature, min_p, top_k and top_p, and the draw.
    """
    wanted = [row for row, task in enumerate(tasks) if task.logprobs is not None]
    raw = logits[torch.tensor(wanted, device=logits.device)] if wanted else None
    for row, task in enumerate(tasks):
        process(logits[row], task)
    tokens = [SampledToken(token_id) for token_id in choose(logits, tasks)]
    if raw is not None:
        tops = [tasks[row].logprobs or 0 for row in wanted]
        answers = token_logprobs(raw, [tokens[row].token_id for row in wanted], tops)
        for row, (logprob, top) in zip(wanted, answers, strict=True):
            tokens[row] = SampledToken(logprob.token_id, logprob, top)
    return tokens


@torch.inference_mode()
def prompt_logprobs(logits: Tensor, task: PromptLogprobsTask) -> tuple[PromptLogprob, ...]:
    """Row i of `logits`, float32 [m, vocab], gives the logprob of `task.targets[i]`."""
    answers = token_logprobs(logits, task.targets.tolist(), [task.top] * len(task.targets))
    return tuple(PromptLogprob(target, top) for target, top in answers)
