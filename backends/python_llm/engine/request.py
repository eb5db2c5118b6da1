"""One sequence on its way through the engine: its tokens, its pages, its state.

A request that asks for n sequences becomes n `Request`s; the prefix index lets them share their prompt.
Owner: the engine thread, from `Engine.submit` on. Does not know who runs next, tensors, or Triton.
"""

from __future__ import annotations

import enum
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from python_llm.engine.blocks import BlockHash, hash_block
from python_llm.engine.plan import PromptLogprob, SampledToken
from python_llm.engine.sampling_params import SamplingParams
from python_llm.engine.text import TextStream
from python_llm.errors import RequestError

_arrivals = itertools.count()


class FinishReason(str, enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    """A stop request ended it: what there is has been given."""


class RequestState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class RequestTimes:
    """Seconds on the monotonic clock; None until it happened."""

    arrival: float = field(default_factory=time.monotonic)
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What a request gained in one step. The last one has a `finish_reason` or an `error`."""

    request: Request
    text: str = ""
    tokens: tuple[SampledToken, ...] = ()
    """The tokens whose text is released with this output: their number and logprobs travel with their text."""
    num_cut: int = 0
    """Of the last output: how many of its tokens lie wholly beyond the end of the text."""
    finish_reason: FinishReason | None = None
    error: RequestError | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class Request:
    """Tokens at [0, num_computed) have their KV in `block_ids`; those at [num_computed, num_tokens) are to compute."""

    def __init__(
        self,
        prompt_ids: np.ndarray,
        params: SamplingParams,
        *,
        seed: int,
        max_new_tokens: int,
        sink: Callable[[Output], None],
        text: TextStream | None = None,
        deadline: float | None = None,
        want_logprobs: bool = False,
    ) -> None:
        """`prompt_ids`: int32 [n], n >= 1. `deadline`: monotonic seconds. `sink` gets each Output on the engine thread
        and must neither block nor raise. `text` None: tokens only, stop strings are not looked for."""
        self.id = next(_arrivals)
        """Unique in this process and growing: also the order of arrival."""
        self.params = params
        self.seed = seed
        self.sink = sink
        self.deadline = deadline
        self.state = RequestState.WAITING
        self.times = RequestTimes()
        self.num_prompt = len(prompt_ids)
        self.max_tokens = self.num_prompt + max_new_tokens
        self.num_computed = 0
        self.num_cached_tokens = 0
        """Prompt tokens that the prefix index supplied when the request was first scheduled."""
        self.num_preemptions = 0
        self.num_drafted = 0
        """Drafts that were verified, and how many of them became output."""
        self.num_accepted = 0
        self.block_ids: list[int] = []
        self.prompt_logprobs: list[PromptLogprob] = []
        """Entry i is about prompt token i + 1."""
        self._tokens = np.array(prompt_ids, dtype=np.int32)
        self._num_tokens = self.num_prompt
        self._hashes: list[BlockHash] = []
        self._text = text
        self._unreleased: list[SampledToken] = []
        self._logprobs = params.logprobs if params.logprobs is not None else 0 if want_logprobs else None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return self._num_tokens

    @property
    def num_output(self) -> int:
        return self._num_tokens - self.num_prompt

    @property
    def logprobs(self) -> int | None:
        """How many of the most likely tokens to report beside the sampled one; None: no logprobs at all."""
        return self._logprobs

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt - 1

    def token_ids(self, start: int, end: int) -> np.ndarray:
        """int32 view of the tokens at [start, end); stays valid and unchanged however the request grows."""
        return self._tokens[start:end]

    def block_hashes(self, count: int, block_size: int) -> list[BlockHash]:
        """Hashes of the first `count` pages, which must be full of known tokens."""
        for index in range(len(self._hashes), count):
            parent = self._hashes[index - 1] if index else b""
            self._hashes.append(hash_block(parent, self.token_ids(index * block_size, (index + 1) * block_size)))
        return self._hashes[:count]

    def append(self, token: SampledToken) -> FinishReason | None:
        """Add a sampled token. Returns why the request ends with it, or None."""
        self._push(token.token_id)
        self._unreleased.append(token)
        params = self.params
        if self.num_output >= params.min_tokens and (
            token.token_id in params.stop_token_ids
            or (token.token_id in params.eos_token_ids and not params.ignore_eos)
        ):
            if self._text is not None:
                self._text.finish(token.token_id)
            return FinishReason.STOP
        if self._text is not None and self._text.append(token.token_id):
            return FinishReason.STOP
        if self._num_tokens >= self.max_tokens:
            return FinishReason.LENGTH
        return None

    def release(self, finish_reason: FinishReason | None) -> Output | None:
        """The output that may be shown now, or None when everything new is held back."""
        text, count, num_cut = "", len(self._unreleased), 0
        if self._text is not None:
            if finish_reason is not None:
                self._text.finish()
            delta = self._text.take()
            text, count, num_cut = delta.text, delta.num_tokens, delta.num_cut
        if not count and not text and finish_reason is None:
            return None
        tokens, self._unreleased = tuple(self._unreleased[:count]), self._unreleased[count:]
        return Output(self, text, tokens, num_cut, finish_reason)

    def _push(self, token_id: int) -> None:
        if self._num_tokens == len(self._tokens):
            # A new buffer, not a resize: plans in flight keep views of the old one.
            grown = np.empty(min(2 * len(self._tokens) + 64, self.max_tokens + 1), dtype=np.int32)
            grown[: self._num_tokens] = self._tokens
            self._tokens = grown
        self._tokens[self._num_tokens] = token_id
        self._num_tokens += 1
