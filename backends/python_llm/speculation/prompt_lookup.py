"""Proposes what followed the last time: the end of a sequence is looked for earlier in its own prompt and output.

Prompt lookup decoding (Saxena, 2023) with the longest match instead of a fixed length. No model and next to no time;
good where the output quotes, edits or summarises the prompt, or repeats itself. With a memory, the outputs of sequences
that have ended are looked up too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from python_llm.speculation.ngram_index import BREAK, NgramIndex
from python_llm.speculation.proposer import Ask, Draft

_MOST_INDEXED = 4096
"""Tokens a call, some milliseconds: the engine waits, and all streams with it."""


class PromptLookup:
    """Implements `Proposer`. Owner: the engine thread."""

    def __init__(self, *, min_ngram: int, max_ngram: int, memory_tokens: int = 0) -> None:
        """A match has at least `min_ngram` tokens; more than `max_ngram` are not told apart. `memory_tokens`: how many
        tokens of ended sequences to remember, 0 for none."""
        self._min_ngram = min_ngram
        self._max_ngram = max_ngram
        self._sequences: dict[int, NgramIndex] = {}
        self._memory = _Memory(memory_tokens, self._new_index) if memory_tokens else None

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """Of a long prompt a part is indexed in each call; until all of it is, nothing is proposed."""
        indexes = [self._told(ask) for ask in asks]
        left = _MOST_INDEXED
        # Those that are nearly done first: a long prompt does not keep the drafts of others waiting.
        for index in sorted(indexes, key=lambda index: index.num_pending):
            left -= index.index(left)
        if self._memory is not None:
            self._memory.index(left)
        return [self._propose(ask, index) for ask, index in zip(asks, indexes, strict=True)]

    def forget(self, last: Ask) -> None:
        index = self._sequences.pop(last.sequence_id, None)
        if self._memory is not None:
            tokens = last.new_tokens.tolist()
            if index is not None and len(tokens) < last.num_tokens:
                tokens = index.tokens + tokens
            # The output, and enough of the prompt that its first tokens can be found.
            self._memory.add(tokens[max(0, last.num_prompt - self._max_ngram) :])

    def reset(self) -> None:
        self._sequences.clear()

    def _told(self, ask: Ask) -> NgramIndex:
        index = self._sequences.get(ask.sequence_id)
        if index is None or len(ask.new_tokens) == ask.num_tokens:
            index = self._sequences[ask.sequence_id] = self._new_index()
        index.append(ask.new_tokens.tolist())
        return index

    def _propose(self, ask: Ask, index: NgramIndex) -> Draft:
        if index.num_pending:
            return Draft(())
        own = index.match_own_end()
        if self._memory is not None:
            remembered = self._memory.propose(index.tokens, ask.most, longer_than=own.length if own else 0)
            if remembered is not None:
                return remembered
        return Draft(index.after_own(own, ask.most), _grade(own.length)) if own is not None else Draft(())

    def _new_index(self) -> NgramIndex:
        return NgramIndex(self._min_ngram, self._max_ngram)


class _Memory:
    """The latest texts, in two halves: when the newer is full, the older is dropped and a new one begun."""

    def __init__(self, num_tokens: int, new_index: Callable[[], NgramIndex]) -> None:
        self._half = max(1, num_tokens // 2)
        self._new_index = new_index
        self._newer = new_index()
        self._older = new_index()

    def add(self, tokens: list[int]) -> None:
        tokens = [*tokens[: self._half - 1], BREAK]
        if len(self._newer.tokens) + len(tokens) > self._half:
            self._older, self._newer = self._newer, self._new_index()
        self._newer.append(tokens)

    def index(self, most: int) -> None:
        """Index the next tokens of what was added, `most` at most."""
        most -= self._older.index(most)
        self._newer.index(most)

    def propose(self, text: list[int], most: int, *, longer_than: int) -> Draft | None:
        """What followed the longest match of the end of `text`; None if no match is longer than `longer_than`."""
        best: Draft | None = None
        for half in (self._newer, self._older):
            match = half.match(text)
            if match is not None and match.length > longer_than and (following := half.after(match, most)):
                best, longer_than = Draft(following, _grade(match.length)), match.length
        return best


def _grade(match_length: int) -> int:
    """Matches of 1, 2 to 3, 4 to 7, 8 to 15 ... tokens."""
    return match_length.bit_length()
