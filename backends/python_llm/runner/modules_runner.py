"""Executes step plans on transformers' own modules. Does not know how they compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from python_llm.engine.acceptance import num_sampled_rows
from python_llm.engine.plan import Span
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.modules_decoder import ModulesDecoder
from python_llm.runner.runner import StepRunner


class ModulesRunner(StepRunner):
    """transformers' modules over our KV pages."""

    def __init__(self, decoder: ModulesDecoder, kv: KVCache, max_model_len: int) -> None:
        super().__init__(
            vocab_size=decoder.vocab_size,
            num_blocks=kv.num_blocks,
            block_size=kv.block_size,
            max_model_len=max_model_len,
        )
        self.decoder = decoder
        self.kv = kv
        self._logits = torch.empty(0)
        self._places: dict[int, int] = {}

    def forward(self, spans: Sequence[Span]) -> None:
        """The modules end in the head, so the rows whose logits will be asked for are told from the spans."""
        rows = _asked(spans)
        self._places = {row: place for place, row in enumerate(rows)}
        self._logits = self.decoder.logits(spans, self.kv, rows)

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        return self._logits[[self._places[row] for row in rows]]


def _asked(spans: Sequence[Span]) -> list[int]:
    """Rows that are sampled, drafts' among them, or whose next token of the prompt is scored; in order."""
    asked: set[int] = set()
    first = 0
    for span in spans:
        if span.prompt_logprobs is not None:
            asked.update(range(first, first + len(span.prompt_logprobs.targets)))
        first += len(span.token_ids)
        asked.update(range(first - num_sampled_rows(span), first))
    return sorted(asked)
