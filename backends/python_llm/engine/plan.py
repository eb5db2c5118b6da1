"""What the scheduler hands to the runner for one step, and what comes back.

All types are immutable. The arrays inside are views of append-only buffers: nobody writes to positions that a plan
covers. Does not know requests' states, text or Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from python_llm.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingTask:
    """How to turn the logits after a span's last token (and after each known token before a draft) into a token."""

    params: SamplingParams
    seed: int
    """64-bit key of this sequence's random stream; token i of the output uses only (seed, i)."""
    history: np.ndarray
    """int32 [num_tokens]: prompt and output so far and the span's drafts, ending with the span's last token."""
    num_prompt: int
    """The first `num_prompt` entries of `history` are the prompt."""
    logprobs: int | None
    """None: none wanted; k >= 0: the sampled token's logprob and the k most likely tokens."""

    @property
    def output_index(self) -> int:
        """Index, in the output, of the token to sample."""
        return len(self.history) - self.num_prompt


@dataclass(frozen=True, slots=True)
class PromptLogprobsTask:
    """Ask for the logprobs of known prompt tokens: `targets[i]` is the token that follows the span's token i."""

    targets: np.ndarray
    """int32 [m], m <= len(span): shorter by one where the span ends the prompt."""
    top: int
    """How many of the most likely tokens to report besides the target."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part of one request that is computed in this step: tokens at positions [start, start + n)."""

    request_id: int
    start: int
    token_ids: np.ndarray
    """int32 [n], n > `num_drafts`"""
    block_ids: np.ndarray
    """int32 [ceil((start + n) / block_size)]: the pages that hold positions [0, start + n), in order."""
    sampling: SamplingTask | None
    """None when known tokens remain after this span (a prompt chunk)."""
    prompt_logprobs: PromptLogprobsTask | None = None
    num_drafts: int = 0
    """The last so many of `token_ids` are guesses that the step verifies; 0 without `sampling`."""

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    spans: tuple[Span, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(span.token_ids) for span in self.spans)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token_id: int
    logprob: float
    rank: int
    """1 = the most likely token."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprob: TokenLogprob | None = None
    """Of the sampled token, under the model's unmodified distribution; None unless asked for."""
    top: tuple[TokenLogprob, ...] = ()
    """The most likely tokens, best first, as many as asked for."""


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    target: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Entry i of each tuple answers span i of the plan."""

    tokens: tuple[tuple[SampledToken, ...], ...]
    """New tokens in order: the accepted drafts and one more; empty for a span without `sampling`."""
    prompt_logprobs: tuple[tuple[PromptLogprob, ...], ...]
    """One entry per target; empty unless asked for."""


class Runner(Protocol):
    """What the engine needs of a runner."""

    vocab_size: int
    num_blocks: int
    """Pages in the KV pool."""
    block_size: int
    """Tokens a page."""
    max_model_len: int
    """Longest sequence (prompt + output) the model supports, in tokens."""

    def execute(self, plan: StepPlan) -> StepResult:
        """One forward pass and sampling. Raises only on our own faults."""
        ...
