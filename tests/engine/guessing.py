"""Proposers for tests: one that knows the fake runner's answers, and one that is wrong in every way we can think of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fake_runner import next_token
from python_llm.engine.sampling_params import MOST_DRAFT_TOKENS
from python_llm.speculation.proposer import Ask, Draft
from python_llm.speculation.speculator import BatchSpeculator
from python_llm.speculation.step_costs import StepCosts

FREE_ROWS = StepCosts({1: 1e6, 512: 1.001e6})
"""Rows that cost nothing: everything is verified that has any chance."""


class Listening:
    """Keeps each sequence from what it is told, and checks that it is told everything once."""

    def __init__(self) -> None:
        self.known: dict[int, list[int]] = {}
        self.calls = 0

    def listen(self, ask: Ask) -> list[int]:
        if len(ask.new_tokens) == ask.num_tokens:
            self.known[ask.sequence_id] = []
        known = self.known[ask.sequence_id]
        known.extend(ask.new_tokens.tolist())
        assert len(known) == ask.num_tokens, "only what is new, and all of it"
        return known

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        self.calls += 1
        assert len({ask.sequence_id for ask in asks}) == len(asks)
        return [Draft(self.guess(ask, self.listen(ask))) for ask in asks]

    def forget(self, last: Ask) -> None:
        self.listen(last)
        del self.known[last.sequence_id]

    def reset(self) -> None:
        self.known.clear()

    def guess(self, ask: Ask, known: list[int]) -> list[int]:
        return []


class Oracle(Listening):
    """Knows the answer; each guess is wrong with probability `error`."""

    def __init__(self, error: float = 0.0, vocab_size: int = 97, seed: int = 0) -> None:
        super().__init__()
        self._error = error
        self._vocab_size = vocab_size
        self._rng = random.Random(seed)

    def guess(self, ask: Ask, known: list[int]) -> list[int]:
        history = list(known)
        for _ in range(ask.most):
            token = next_token(np.array(history), ask.params, ask.seed, ask.num_prompt, self._vocab_size)
            wrong = self._rng.random() < self._error
            history.append((token + 1) % self._vocab_size if wrong else token)
        return history[len(known) :]


class Replay(Listening):
    """Knows what came the last time after each prompt; each guess is wrong with probability `error`."""

    def __init__(self, known: list[tuple[list[int], list[int]]], error: float, vocab_size: int) -> None:
        super().__init__()
        self._outputs = {tuple(prompt): output for prompt, output in known}
        self._error = error
        self._vocab_size = vocab_size
        self._rng = random.Random(0)

    def guess(self, ask: Ask, known: list[int]) -> list[int]:
        output = self._outputs[tuple(known[: ask.num_prompt])]
        done = ask.num_tokens - ask.num_prompt
        return [
            (token + 1) % self._vocab_size if self._rng.random() < self._error else token
            for token in output[done : done + ask.most]
        ]


class Faulty(Oracle):
    """Right half of the time, and otherwise one of: noise, too long, no tokens at all, of another sequence, of another
    number, nothing, an exception."""

    def propose(self, asks: Sequence[Ask]) -> Any:
        good = list(super().propose(asks))
        rng = self._rng
        faults: list[Callable[[], Any]] = [
            lambda: [Draft([rng.randrange(self._vocab_size) for _ in range(ask.most)]) for ask in asks],
            lambda: [Draft([*draft.token_ids] * 50) for draft in good],
            lambda: [
                Draft([*draft.token_ids[:2], rng.choice([-1, -(2**40), 2**40, self._vocab_size]), 1]) for draft in good
            ],
            lambda: good[1:] + good[:1],
            lambda: good + good,
            lambda: None,
            lambda: [Draft([None, "x"]) for _ in good],  # type: ignore[list-item]
            lambda: 1 / 0,
        ]
        return good if rng.random() < 0.5 else rng.choice(faults)()


def speculator_of(
    proposer: Any, *, num_draft_tokens: int = 4, costs: StepCosts = FREE_ROWS, vocab_size: int = 97, **rest: Any
) -> BatchSpeculator:
    assert num_draft_tokens <= MOST_DRAFT_TOKENS
    return BatchSpeculator(
        {"prompt_lookup": proposer},
        default=rest.pop("default", "prompt_lookup"),
        num_draft_tokens=num_draft_tokens,
        vocab_size=vocab_size,
        costs=costs,
        log_warning=rest.pop("log_warning", lambda message: None),
        **rest,
    )
