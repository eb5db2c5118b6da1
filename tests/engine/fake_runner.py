"""A runner without a model: it keeps token ids in the KV pages and reads sequences back through their page table.

The next token is a hash of what it reads, so one wrong page, one stale page, one token computed twice or one draft
accepted that should not be changes the text from there on; `expected_output` computes the same without pages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from python_llm.engine.plan import PromptLogprob, SampledToken, Span, StepPlan, StepResult, TokenLogprob
from python_llm.engine.sampling import uniform
from python_llm.engine.sampling_params import SamplingParams

EOS = 0
_UNWRITTEN = -1


def next_token(history: np.ndarray, params: SamplingParams, seed: int, num_prompt: int, vocab_size: int) -> int:
    digest = hashlib.blake2b(np.asarray(history, dtype=np.int32).tobytes(), digest_size=8).digest()
    token = int.from_bytes(digest, "little")
    if params.temperature > 0:
        token += int(uniform(seed, len(history) - num_prompt) * vocab_size)
    return token % vocab_size


def expected_output(
    prompt: list[int], params: SamplingParams, seed: int = 0, vocab_size: int = 97, eos: int | None = None
) -> list[int]:
    history = list(prompt)
    for _ in range(params.max_tokens or 16):
        history.append(next_token(np.array(history), params, seed, len(prompt), vocab_size))
        if history[-1] == eos and len(history) - len(prompt) >= params.min_tokens:
            break
    return history[len(prompt) :]


class FakeRunner:
    def __init__(
        self, num_blocks: int = 64, block_size: int = 4, max_model_len: int = 200, vocab_size: int = 97
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.pages = np.full((num_blocks, block_size), _UNWRITTEN, dtype=np.int64)
        self.plans: list[StepPlan] = []
        self.before_step: Callable[[StepPlan], None] = lambda plan: None

    @property
    def num_computed(self) -> int:
        return sum(plan.num_tokens for plan in self.plans)

    def execute(self, plan: StepPlan) -> StepResult:
        self.before_step(plan)
        self.plans.append(plan)
        assert len({span.request_id for span in plan.spans}) == len(plan.spans)
        for span in plan.spans:
            for position, token in enumerate(span.token_ids.tolist(), start=span.start):
                self.pages[span.block_ids[position // self.block_size], position % self.block_size] = token
        return StepResult(
            tokens=tuple(self._sample(span) for span in plan.spans),
            prompt_logprobs=tuple(self._prompt_logprobs(span) for span in plan.spans),
        )

    def _sample(self, span: Span) -> tuple[SampledToken, ...]:
        """Drafts are accepted as long as each is the token that the pages give."""
        task = span.sampling
        if task is None:
            assert span.num_drafts == 0
            return ()
        assert len(task.history) == span.end <= self.max_model_len
        assert len(span.block_ids) == -(-span.end // self.block_size)
        assert 0 <= span.num_drafts < len(span.token_ids)
        cached = self.pages[span.block_ids].reshape(-1)
        tokens: list[SampledToken] = []
        for end in range(span.end - span.num_drafts, span.end + 1):
            token = next_token(cached[:end], task.params, task.seed, task.num_prompt, self.vocab_size)
            logprob = None if task.logprobs is None else TokenLogprob(token, -float(end - task.num_prompt), 1)
            tokens.append(SampledToken(token, logprob))
            if end == span.end or token != cached[end]:
                break
        return tuple(tokens)

    def _prompt_logprobs(self, span: Span) -> tuple[PromptLogprob, ...]:
        if span.prompt_logprobs is None:
            return ()
        targets = span.prompt_logprobs.targets.tolist()
        return tuple(
            PromptLogprob(TokenLogprob(target, -float(span.start + i), 1), ()) for i, target in enumerate(targets)
        )
