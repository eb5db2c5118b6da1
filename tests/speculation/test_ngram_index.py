"""The n-gram index against a search through the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_llm.speculation.ngram_index import BREAK, Match, NgramIndex

texts = st.lists(st.integers(0, 2), max_size=14)
ngrams = st.tuples(st.integers(1, 3), st.integers(0, 4)).map(lambda pair: (pair[0], sum(pair)))


def naive(text: list[int], suffix: list[int], ends: range, low: int, high: int) -> Match | None:
    """The longest common end, the latest of equals."""
    best = None
    for end in ends:
        length = 0
        while length < min(high, end, len(suffix)) and text[end - 1 - length] == suffix[-1 - length] != BREAK:
            length += 1
        if length >= low and (best is None or length >= best.length):
            best = Match(length, end)
    return best


@given(st.lists(texts, max_size=4), ngrams)
def test_own_end(pieces: list[list[int]], ngram: tuple[int, int]) -> None:
    index = NgramIndex(*ngram)
    text: list[int] = []
    for piece in pieces:
        index.extend(piece)
        text += piece
        assert index.match_own_end() == naive(text, text, range(1, len(text)), *ngram)


@given(texts, ngrams, st.integers(1, 5))
def test_indexed_bit_by_bit_it_is_the_same(text: list[int], ngram: tuple[int, int], most: int) -> None:
    index = NgramIndex(*ngram)
    index.append(text)
    while index.num_pending:
        before = index.num_pending
        assert index.index(most) == min(most, before) == before - index.num_pending
    assert index.match_own_end() == naive(text, text, range(1, len(text)), *ngram)


@given(st.lists(texts, max_size=4), texts, ngrams)
def test_end_of_another_text(pieces: list[list[int]], text: list[int], ngram: tuple[int, int]) -> None:
    index = NgramIndex(*ngram)
    for piece in pieces:
        index.extend([*piece, BREAK])
    match = index.match(text)
    assert match == naive(index.tokens, text, range(1, len(index.tokens) + 1), *ngram)
    if match is not None:
        following = index.after(match, 5)
        assert BREAK not in following
        assert following == index.tokens[match.end : match.end + len(following)]


def test_what_repeats_is_taken_to_go_on() -> None:
    index = NgramIndex(2, 8)
    index.extend([9, 1, 2, 3, 1, 2, 3, 1, 2])
    match = index.match_own_end()
    assert match == Match(5, 6)
    assert index.after_own(match, 7) == [3, 1, 2, 3, 1, 2, 3]


def test_a_text_of_one_token_costs_no_more_than_another() -> None:
    index = NgramIndex(1, 64)
    index.extend([7] * 10_000)
    looked: list[int] = []

    class Counting(list):  # type: ignore[type-arg]
        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            looked.append(0)
            return super().__getitem__(at)

    index._earlier = Counting(index._earlier)
    assert index.match_own_end() == Match(64, 9999)
    assert len(looked) < 20
