"""Finds where the end of a text stood before in it, or in another text: the longest match, the latest among equals.

Every n-gram of `min_ngram` tokens leads to its latest occurrence, and each occurrence to the one before. A match is
then read backwards from there. Adding a token and finding a match cost the same however long the text is; a long text
can be added bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BREAK = -1
"""Separates texts in one index: no match reaches across it."""

_MOST_CANDIDATES = 16
"""Earlier occurrences looked at: a text of one repeated token has as many as it has tokens."""


@dataclass(frozen=True, slots=True)
class Match:
    length: int
    """Tokens that agree, at most `max_ngram`."""
    end: int
    """Position in the index after the last of them."""


class NgramIndex:
    """A growing text of token ids. Not thread-safe."""

    __slots__ = ("_earlier", "_latest", "_max_ngram", "_min_ngram", "tokens")

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._min_ngram = min_ngram
        self._max_ngram = max_ngram
        self.tokens: list[int] = []
        """The text, the end of it perhaps not indexed yet."""
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[int] = [0]
        """Entry p: where the n-gram that ends before position p ended the time before; 0: it is new."""

    @property
    def num_pending(self) -> int:
        """Tokens at the end of the text that are not indexed yet: no match ends in them."""
        return len(self.tokens) + 1 - len(self._earlier)

    def append(self, token_ids: Sequence[int]) -> None:
        """Append to the text; `index` does the work."""
        self.tokens.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append to the text and index all of it."""
        self.append(token_ids)
        self.index(self.num_pending)

    def index(self, most: int) -> int:
        """Index the next tokens, `most` at most. Returns how many."""
        tokens, latest, n = self.tokens, self._latest, self._min_ngram
        start = len(self._earlier)
        count = min(most, self.num_pending)
        for end in range(start, start + count):
            if end < n:
                self._earlier.append(0)
                continue
            ngram = tuple(tokens[end - n : end])
            self._earlier.append(latest.get(ngram, 0))
            latest[ngram] = end
        return count

    def match_own_end(self) -> Match | None:
        """Where the end of this text, all of it indexed, stood before."""
        return self._longest(self.tokens, self._earlier[-1])

    def match(self, text: list[int]) -> Match | None:
        """Where the end of `text`, another text, stands in this one."""
        ngram = tuple(text[-self._min_ngram :])
        return self._longest(text, self._latest.get(ngram, 0))

    def after(self, match: Match, count: int) -> list[int]:
        """Up to `count` tokens that follow `match`, within its text."""
        following = self.tokens[match.end : match.end + count]
        return following[: following.index(BREAK)] if BREAK in following else following

    def after_own(self, match: Match, count: int) -> list[int]:
        """`count` tokens that follow `match` in this text; what repeats at its very end is taken to go on repeating."""
        following = self.tokens[match.end : match.end + count]
        while len(following) < count:
            following += following[: count - len(following)]
        return following

    def _longest(self, text: list[int], end: int) -> Match | None:
        best: Match | None = None
        for _ in range(_MOST_CANDIDATES):
            if end == 0:
                break
            length = self._agreement(text, end)
            if best is None or length > best.length:
                best = Match(length, end)
                if length == self._max_ngram:
                    break
            end = self._earlier[end]
        return best

    def _agreement(self, text: list[int], end: int) -> int:
        """How many tokens before `end` agree with the last of `text`; the first `min_ngram` are known to."""
        tokens, size = self.tokens, len(text)
        most = min(self._max_ngram, end, size)
        length = self._min_ngram
        while length < most and tokens[end - length - 1] == text[size - length - 1]:
            length += 1
        return length
