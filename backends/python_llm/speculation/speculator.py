"""Asks the proposers for drafts, once a step, and picks what to verify.

A proposer that fails is left alone for a while; one that is slow is asked only when its drafts earn back its time, and
otherwise so rarely that asking takes 2 % of the time. Whatever a proposer returns, the output does not change.
Does not know how proposers guess, nor how drafts are verified.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from python_llm.engine.drafts import Opening
from python_llm.engine.request import Request
from python_llm.speculation.agreement import Agreement, Tally
from python_llm.speculation.draft_length import can_pay, choose_lengths
from python_llm.speculation.proposer import Ask, Draft, Proposer
from python_llm.speculation.step_costs import StepCosts

_QUICK = 0.02
"""A proposer that takes no larger share of a step is always asked."""
_PROBE_SHARE = 0.02
"""Largest share of the time for asking a proposer whose drafts are not worth it, to see whether they are again."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_CALLS = 5
"""A call is taken to last as long as the median of so many: the first for a long prompt takes longer than the next."""


@dataclass(slots=True)
class _Guess:
    """A draft on its way to be compared with what comes."""

    draft: Draft
    start: int
    """Position of its first token."""
    checked: int = 0


class _Sequence:
    """What is known of one request. `told`: how many of its tokens its proposer has been told."""

    __slots__ = ("guess", "last_grade", "request", "tally", "told")

    def __init__(self, request: Request, tally: Tally) -> None:
        self.request = request
        self.tally = tally
        self.told = 0
        self.guess: _Guess | None = None
        self.last_grade = 0

    def ask(self, most: int) -> Ask:
        request, told = self.request, self.told
        self.told = request.num_tokens
        return Ask(
            sequence_id=request.id,
            new_tokens=request.token_ids(told, request.num_tokens),
            num_tokens=request.num_tokens,
            num_prompt=request.num_prompt,
            most=most,
            params=request.params,
            seed=request.seed,
        )


class _Method:
    """One proposer, its sequences, and what is known of its drafts, its speed and its health."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.agreement = Agreement()
        self.sequences: dict[int, _Sequence] = {}
        self._latest_calls: deque[float] = deque(maxlen=_CALLS)
        self.seconds = 0.0
        """Of a call, lately."""
        self.probe_at = 0.0
        self.paused_until = 0.0
        self.pause_s = _FIRST_PAUSE_S

    def succeeded(self, now: float, seconds: float) -> None:
        self._latest_calls.append(seconds)
        self.seconds = sorted(self._latest_calls)[len(self._latest_calls) // 2]
        self.probe_at = now + seconds / _PROBE_SHARE
        self.pause_s = _FIRST_PAUSE_S

    def sequence(self, request: Request) -> _Sequence:
        sequence = self.sequences.get(request.id)
        if sequence is None:
            sequence = self.sequences[request.id] = _Sequence(request, self.agreement.new_sequence())
        return sequence

    def compare(self, sequence: _Sequence) -> None:
        """Count the guesses that have been answered by now."""
        guess, request = sequence.guess, sequence.request
        if guess is None:
            return
        begin, end = guess.start + guess.checked, min(guess.start + len(guess.draft.token_ids), request.num_tokens)
        for token in request.token_ids(begin, end).tolist():
            came_true = token == guess.draft.token_ids[guess.checked]
            self.agreement.count(sequence.tally, guess.draft, guess.checked, came_true)
            guess.checked += 1
            if not came_true:
                sequence.guess = None
                return
        if guess.checked == len(guess.draft.token_ids):
            sequence.guess = None


class BatchSpeculator:
    """Implements `engine.drafts.Speculator`. Owner: the engine thread."""

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        *,
        default: str,
        num_draft_tokens: int,
        vocab_size: int,
        costs: StepCosts,
        log_warning: Callable[[str], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`proposers`: by the value of the parameter `speculation` that asks for it. `default` and `num_draft_tokens`:
        for requests that do not say; `default` may be "off"."""
        self.methods = frozenset(proposers)
        self._methods = {name: _Method(proposer) for name, proposer in proposers.items()}
        self._default = default
        self._num_draft_tokens = num_draft_tokens
        self._vocab_size = vocab_size
        self._costs = costs
        self._can_pay = [can_pay(costs, rows) for rows in range(1, costs.max_rows + 1)]
        self._log_warning = log_warning
        self._clock = clock

    def draft(self, num_rows: int, openings: Sequence[Opening]) -> dict[int, np.ndarray]:
        """See `engine.drafts.Speculator`. A step that drafts could not make more productive costs nothing here."""
        if num_rows > len(self._can_pay) or not self._can_pay[num_rows - 1]:
            return {}
        drafts: list[tuple[_Method, _Sequence, Draft]] = []
        for name, method in self._methods.items():
            wanted = [
                (method.sequence(opening.request), most)
                for opening in openings
                if self._method_of(opening.request) == name and (most := self._most(opening)) > 0
            ]
            for sequence, _ in wanted:
                method.compare(sequence)
            for sequence, draft in self._ask(name, method, self._worth_asking(method, num_rows, wanted)):
                sequence.last_grade = draft.grade
                drafts.append((method, sequence, draft))
        survivals = [m.agreement.survival(s.tally, d.grade, len(d.token_ids)) for m, s, d in drafts]
        lengths = choose_lengths(self._costs, num_rows, survivals)
        chosen = {}
        for (_, sequence, draft), length in zip(drafts, lengths, strict=True):
            if length or sequence.guess is None:
                sequence.guess = _Guess(draft, sequence.request.num_tokens)
            if length:
                chosen[sequence.request.id] = np.array(draft.token_ids[:length], dtype=np.int32)
        return chosen

    def forget(self, request: Request) -> None:
        method = self._methods.get(self._method_of(request))
        if method is None:
            return
        sequence = method.sequence(request)
        method.compare(sequence)
        del method.sequences[request.id]
        if self._clock() < method.paused_until:
            return
        try:
            method.proposer.forget(sequence.ask(0))
        except Exception as error:
            self._pause(self._method_of(request), method, error)

    def _method_of(self, request: Request) -> str:
        return request.params.speculation or self._default

    def _most(self, opening: Opening) -> int:
        asked = opening.request.params.num_draft_tokens
        return min(opening.most, self._num_draft_tokens if asked is None else asked)

    def _worth_asking(
        self, method: _Method, num_rows: int, wanted: list[tuple[_Sequence, int]]
    ) -> list[tuple[_Sequence, int]]:
        now = self._clock()
        if not wanted or now < method.paused_until:
            return []
        if method.seconds <= _QUICK * self._costs.seconds(num_rows) or now >= method.probe_at:
            return wanted
        survivals = [method.agreement.survival(s.tally, s.last_grade, most) for s, most in wanted]
        lengths = choose_lengths(self._costs, num_rows, survivals, extra_s=method.seconds)
        return [(sequence, length) for (sequence, _), length in zip(wanted, lengths, strict=True) if length]

    def _ask(self, name: str, method: _Method, wanted: list[tuple[_Sequence, int]]) -> list[tuple[_Sequence, Draft]]:
        """The drafts that came, without empty ones."""
        if not wanted:
            return []
        started = self._clock()
        try:
            asks = [sequence.ask(most) for sequence, most in wanted]
            drafts = method.proposer.propose(asks)
            if len(drafts) != len(asks):
                raise ValueError(f"{len(drafts)} drafts came for {len(asks)} sequences")
            checked = [self._checked(draft, ask) for draft, ask in zip(drafts, asks, strict=True)]
        except Exception as error:
            self._pause(name, method, error)
            return []
        now = self._clock()
        method.succeeded(now, now - started)
        return [(s, draft) for (s, _), draft in zip(wanted, checked, strict=True) if draft.token_ids]

    def _checked(self, draft: Draft, ask: Ask) -> Draft:
        """The draft up to its limit and its first token that is not in the vocabulary."""
        token_ids = []
        for token_id in draft.token_ids[: ask.most]:
            if not 0 <= token_id < self._vocab_size:
                break
            token_ids.append(int(token_id))
        return Draft(token_ids, draft.grade)

    def _pause(self, name: str, method: _Method, error: Exception) -> None:
        self._log_warning(
            f"speculation {name} failed and rests for {method.pause_s:.0f} s; requests go on without it: "
            f"{type(error).__name__}: {error}"
        )
        method.paused_until = self._clock() + method.pause_s
        method.pause_s = min(2 * method.pause_s, _LONGEST_PAUSE_S)
        for sequence in method.sequences.values():
            sequence.told = 0
        try:
            method.proposer.reset()
        except Exception as second:
            self._log_warning(f"speculation {name} could not be reset: {type(second).__name__}: {second}")
