"""Executes step plans on the compiled kernels. Does not know how they compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from python_llm.engine.plan import Span
from python_llm.runner.kernels.native_decoder import NativeDecoder
from python_llm.runner.runner import StepRunner


class NativeRunner(StepRunner):
    """The native decoder over its KV pages."""

    def __init__(self, decoder: NativeDecoder, max_model_len: int) -> None:
        super().__init__(
            vocab_size=decoder.spec.vocab_size,
            num_blocks=decoder.num_blocks,
            block_size=decoder.block_size,
            max_model_len=max_model_len,
        )
        self.decoder = decoder
        # Sampling is all that torch still computes; its own threads would spin on the cores that the kernels need.
        torch.set_num_threads(1)

    def forward(self, spans: Sequence[Span]) -> None:
        self.decoder.forward(spans)

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        return self.decoder.logits(rows)
