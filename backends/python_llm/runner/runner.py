"""Executes step plans: one forward pass for all spans, then sampling, acceptance of drafts and prompt logprobs.

Does not know requests, text or Triton; a span is all it sees of a request. How the pass is computed is a subclass's
affair: plain torch here, compiled kernels in `kernels.native_runner`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from python_llm.engine.acceptance import new_tokens, num_sampled_rows
from python_llm.engine.plan import PromptLogprob, PromptLogprobsTask, Span, StepPlan, StepResult
from python_llm.engine.sampling import prompt_logprobs
from python_llm.runner.batch import make_batch
from python_llm.runner.decoder import Decoder
from python_llm.runner.kv_cache import KVCache

HEAD_ROWS = 64
"""Prompt logprobs compute this many rows of logits at a time: [rows, vocab] for a whole prompt would not fit."""


class StepRunner(ABC):
    """Implements `plan.Runner` over a forward pass. Owner: the engine thread."""

    def __init__(self, *, vocab_size: int, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len

    @abstractmethod
    def forward(self, spans: Sequence[Span]) -> None:
        """Compute the rows of `spans` (one a token, span after span) and store their keys and values."""

    @abstractmethod
    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        """Logits of these rows of the last `forward`: float32 [len(rows), vocab], the caller's to change."""

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """One forward pass and sampling; see `plan.Runner`. An empty plan gives an empty result."""
        spans = plan.spans
        if not spans:
            return StepResult((), ())
        self.forward(spans)
        row = 0
        sampled_rows: list[int] = []
        scored: list[tuple[PromptLogprob, ...]] = []
        for span in spans:
            scored.append(() if span.prompt_logprobs is None else self._prompt_logprobs(row, span.prompt_logprobs))
            row += len(span.token_ids)
            sampled_rows.extend(range(row - num_sampled_rows(span), row))
        tokens = new_tokens(self.logits(sampled_rows), spans) if sampled_rows else [()] * len(spans)
        return StepResult(tuple(tokens), tuple(scored))

    def _prompt_logprobs(self, first_row: int, task: PromptLogprobsTask) -> tuple[PromptLogprob, ...]:
        scored: list[PromptLogprob] = []
        for start in range(0, len(task.targets), HEAD_ROWS):
            targets = task.targets[start : start + HEAD_ROWS]
            rows = range(first_row + start, first_row + start + len(targets))
            scored.extend(prompt_logprobs(self.logits(rows), PromptLogprobsTask(targets, task.top)))
        return tuple(scored)


class TorchRunner(StepRunner):
    """The plain-torch decoder over its KV pages."""

    def __init__(self, decoder: Decoder, kv: KVCache, max_model_len: int) -> None:
        super().__init__(
            vocab_size=decoder.spec.vocab_size,
            num_blocks=kv.num_blocks,
            block_size=kv.block_size,
            max_model_len=max_model_len,
        )
        self.decoder = decoder
        self.kv = kv
        self._windows = frozenset(layer.window for layer in decoder.spec.layers)
        self._hidden = torch.empty(0)

    def forward(self, spans: Sequence[Span]) -> None:
        self._hidden = self.decoder.forward(make_batch(spans, self.kv, self._windows), self.kv)

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        return self.decoder.logits(self._hidden[list(rows)])
