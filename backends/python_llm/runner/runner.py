"""Executes step plans: one forward pass for all spans, then sampling and prompt logprobs.

Does not know requests, text or Triton; a span is all it sees of a request.
"""

from __future__ import annotations

import torch

from python_llm.engine.plan import PromptLogprob, PromptLogprobsTask, SampledToken, StepPlan, StepResult
from python_llm.engine.sampling import prompt_logprobs, sample
from python_llm.runner.batch import make_batch
from python_llm.runner.decoder import Decoder
from python_llm.runner.kv_cache import KVCache

HEAD_ROWS = 64
"""Prompt logprobs compute this many rows of logits at a time: [rows, vocab] for a whole prompt would not fit."""


class TorchRunner:
    """Implements `plan.Runner` with the plain-torch decoder. Owner: the engine thread."""

    def __init__(self, decoder: Decoder, kv: KVCache, max_model_len: int) -> None:
        self.decoder = decoder
        self.kv = kv
        self.vocab_size = decoder.spec.vocab_size
        self.num_blocks = kv.num_blocks
        self.block_size = kv.block_size
        self.max_model_len = max_model_len
        self._windows = frozenset(layer.window for layer in decoder.spec.layers)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """One forward pass and sampling; see `plan.Runner`. An empty plan gives an empty result."""
        spans = plan.spans
        if not spans:
            return StepResult((), ())
        batch = make_batch(spans, self.kv, self._windows)
        hidden = self.decoder.forward(batch, self.kv)
        row = 0
        last_rows, tasks = [], []
        scored: list[tuple[PromptLogprob, ...]] = []
        for span in spans:
            task = span.prompt_logprobs
            scored.append(() if task is None else self._prompt_logprobs(hidden[row : row + len(task.targets)], task))
            row += len(span.token_ids)
            if span.sampling is not None:
                last_rows.append(row - 1)
                tasks.append(span.sampling)
        sampled = iter(sample(self.decoder.logits(hidden[last_rows]), tasks) if tasks else ())
        tokens: list[tuple[SampledToken, ...]] = [() if span.sampling is None else (next(sampled),) for span in spans]
        return StepResult(tuple(tokens), tuple(scored))

    def _prompt_logprobs(self, hidden: torch.Tensor, task: PromptLogprobsTask) -> tuple[PromptLogprob, ...]:
        scored: list[PromptLogprob] = []
        for start in range(0, len(hidden), HEAD_ROWS):
            rows = slice(start, start + HEAD_ROWS)
            scored.extend(
                prompt_logprobs(self.decoder.logits(hidden[rows]), PromptLogprobsTask(task.targets[rows], task.top))
            )
        return tuple(scored)
