"""Text of a sequence, against decoding everything at once and searching it naively."""

from __future__ import annotations

import codecs
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from python_llm.engine.sampling_params import SamplingParams
from python_llm.engine.stop_strings import StopMatcher
from python_llm.engine.text import Delta, TextStream

ALPHABET = ["a", "b", "ab", " ", "\n", "é", "e\u0301", "中", "文", "👨\u200d👩\u200d👧", "🏽", "\ufffd", "ʼ"]
texts = st.lists(st.sampled_from(ALPHABET), max_size=24).map("".join)
noisy_bytes = st.lists(
    st.one_of(st.sampled_from(ALPHABET).map(str.encode), st.binary(min_size=1, max_size=3)), max_size=16
).map(b"".join)
stop_strings = st.lists(st.text("ab \n中👨", min_size=1, max_size=4), max_size=4).map(tuple)


def chunked(data: bytes, seed: int) -> list[bytes]:
    """The bytes in pieces of 0 to 5, empty ones included."""
    pieces, rest, rng = [], data, random.Random(seed)
    while rest:
        size = rng.choice([0, 1, 1, 2, 3, 5])
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces


class Driver:
    """Feeds pieces as tokens and collects what comes out."""

    def __init__(self, pieces: list[bytes], special: frozenset[int] = frozenset(), **params: object) -> None:
        self.pieces = pieces
        self.stream = TextStream(lambda i: pieces[i], special, SamplingParams(**params))  # type: ignore[arg-type]
        self.text = ""
        self.num_tokens = 0

    def take(self) -> Delta:
        delta = self.stream.take()
        self.text += delta.text
        self.num_tokens += delta.num_tokens
        return delta

    def run(self) -> tuple[str, int, bool]:
        """(text, tokens appended, stopped)"""
        for i in range(len(self.pieces)):
            stopped = self.stream.append(i)
            self.take()
            if stopped:
                return self.text, i + 1, True
        self.stream.finish()
        self.take()
        return self.text, len(self.pieces), False


def decoded(pieces: list[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", errors="replace")


def stable_length(pieces: list[bytes]) -> int:
    """Characters of a text that no further bytes can change."""
    return len(codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(pieces)))


def first_stop(text: str, stops: tuple[str, ...], seen: int = 0) -> tuple[int, int] | None:
    """[begin, end) of the stop string that is complete first, beyond the first `seen` characters."""
    for end in range(seen + 1, len(text) + 1):
        begins = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if begins:
            return min(begins), end
    return None


@given(noisy_bytes, st.integers(0, 2**32))
@example("👨\u200d👩\u200d👧".encode(), 1)
def test_deltas_concatenate_to_the_decoding(data: bytes, seed: int) -> None:
    pieces = chunked(data, seed)
    driver = Driver(pieces)
    for i in range(len(pieces)):
        assert not driver.stream.append(i)
        driver.take()
        # Without stop strings only an incomplete character waits.
        assert driver.text == decoded(pieces)[: stable_length(pieces[: i + 1])]
    driver.stream.finish()
    driver.take()
    assert driver.text == decoded(pieces)
    assert driver.num_tokens == len(pieces)


@given(noisy_bytes, stop_strings, st.booleans(), st.integers(0, 4), st.integers(0, 2**32))
@example(b"aababb", ("abb", "ba"), False, 0, 3)
@example(b"abab", ("abab", "ba"), False, 0, 3)
def test_stop_strings_against_naive_search(
    data: bytes, stops: tuple[str, ...], include: bool, min_tokens: int, seed: int
) -> None:
    pieces = chunked(data, seed)
    # A character that the sequence's end leaves incomplete becomes text only when all is over.
    text = decoded(pieces)[: stable_length(pieces)]
    match = first_stop(text, stops, seen=stable_length(pieces[:min_tokens]))
    final = decoded(pieces) if match is None else text[: match[1] if include else match[0]]

    driver = Driver(pieces, stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens)
    for i in range(len(pieces)):
        stopped = driver.stream.append(i)
        driver.take()
        assert final.startswith(driver.text)
        arrived = stable_length(pieces[: i + 1])
        assert stopped == (match is not None and arrived >= match[1])
        if stopped:
            break
        waiting = text[len(driver.text) : arrived]
        assert not waiting or (not include and any(stop != waiting and stop.startswith(waiting) for stop in stops))
        longest = max((n for stop in stops for n in range(len(stop)) if text[:arrived].endswith(stop[:n])), default=0)
        assert len(waiting) == (0 if include else longest)
    else:
        assert match is None
        driver.stream.finish()
        driver.take()
    assert driver.text == final
    assert driver.num_tokens == i + 1 if pieces else driver.num_tokens == 0


@given(texts, stop_strings, st.integers(0, 2**32), st.integers(0, 2**32))
def test_result_does_not_depend_on_the_cut_into_tokens(text: str, stops: tuple[str, ...], one: int, two: int) -> None:
    results = [Driver(chunked(text.encode(), seed), stop=stops).run() for seed in (one, two)]
    assert results[0][0] == results[1][0] and results[0][2] == results[1][2]


@given(noisy_bytes, stop_strings, st.integers(0, 2**32), st.randoms(use_true_random=False))
def test_taking_seldom_gives_the_same(data: bytes, stops: tuple[str, ...], seed: int, rng: random.Random) -> None:
    pieces = chunked(data, seed)
    expected = Driver(pieces, stop=stops).run()
    seldom = Driver(pieces, stop=stops)
    stopped = False
    for i in range(len(pieces)):
        stopped = seldom.stream.append(i)
        if stopped:
            break
        if rng.random() < 0.3:
            seldom.take()
    seldom.stream.finish()
    seldom.take()
    assert (seldom.text, seldom.num_tokens, stopped) == expected


@given(noisy_bytes, stop_strings, st.integers(0, 2**32))
def test_a_token_is_counted_with_the_last_of_its_text(data: bytes, stops: tuple[str, ...], seed: int) -> None:
    pieces = chunked(data, seed)
    driver = Driver(pieces, stop=stops)
    for i in range(len(pieces)):
        if driver.stream.append(i):
            return
        driver.take()
        # Position at which each token's text ends: where its last byte's character ends.
        ends = []
        for j in range(i + 1):
            joined = b"".join(pieces[: j + 1])
            stable = stable_length(pieces[: j + 1])
            ends.append(stable + (len(joined.decode("utf-8", errors="replace")) > stable))
        assert driver.num_tokens == sum(end <= len(driver.text) for end in ends)


def test_a_stop_string_over_several_tokens_does_not_leak() -> None:
    driver = Driver([b"ok", b" <", b"en", b"d", b"> more"], stop=("<end>",))
    released = []
    for i in range(4):
        assert not driver.stream.append(i)
        released.append(driver.take())
    assert released == [Delta("ok", 1), Delta(" ", 0), Delta("", 0), Delta("", 0)]
    assert driver.stream.append(4)
    assert driver.take() == Delta("", 4, num_cut=3)
    assert driver.take() == Delta("", 0)


def test_what_cannot_become_a_stop_string_is_not_delayed() -> None:
    driver = Driver([b"one", b" two", b"<e", b"nough"], stop=("<end of the very long marker>",))
    deltas = []
    for i in range(4):
        driver.stream.append(i)
        deltas.append(driver.take())
    assert deltas == [Delta("one", 1), Delta(" two", 1), Delta("", 0), Delta("<enough", 2)]


def test_finish_releases_a_held_stop_prefix_and_half_a_character() -> None:
    driver = Driver([b"x<en", b"\xf0\x9f"], stop=("<end>",))
    assert driver.run() == ("x<en\ufffd", 2, False)
    assert driver.num_tokens == 2


@pytest.mark.parametrize(("stops", "expected"), [(("ab", "abc"), "x"), (("bc", "abcd"), "xa"), (("b", "ab"), "x")])
def test_the_stop_string_that_is_complete_first_wins_then_the_longest(stops: tuple[str, ...], expected: str) -> None:
    for order in (stops, stops[::-1]):
        assert Driver([b"xabcd"], stop=order).run() == (expected, 1, True)
        assert Driver([b"x", b"a", b"b", b"c", b"d"], stop=order).run()[0] == expected


def test_included_stop_string_ends_the_text_and_nothing_waits_for_it() -> None:
    driver = Driver([b"a", b"S", b"TOPPED"], stop=("STOP",), include_stop_str_in_output=True)
    assert [driver.stream.append(0), driver.take()] == [False, Delta("a", 1)]
    assert [driver.stream.append(1), driver.take()] == [False, Delta("S", 1)]
    assert [driver.stream.append(2), driver.take()] == [True, Delta("TOP", 1)]


def test_stop_strings_within_the_first_min_tokens_do_not_count() -> None:
    pieces = [b"END", b" E", b"ND", b"!"]
    assert Driver(pieces, stop=("END",), min_tokens=0).run() == ("", 1, True)
    assert Driver(pieces, stop=("END",), min_tokens=1).run() == ("END ", 3, True)
    assert Driver(pieces, stop=("END",), min_tokens=2).run() == ("END ", 3, True)
    assert Driver(pieces, stop=("END",), min_tokens=3).run() == ("END END!", 4, False)


def test_sequences_with_equal_stop_strings_do_not_disturb_each_other() -> None:
    """They share what was made of the strings, and nothing of where they are in them."""
    first, second = StopMatcher(("abc",)), StopMatcher(("abc",))
    assert first.feed("xab") is None and second.feed("xa") is None
    assert (first.held, second.held) == (2, 1)
    assert second.feed("c") is None and second.held == 0
    assert first.feed("c") == (-2, 1)


def test_special_tokens() -> None:
    pieces = ["é".encode()[:1], b"<s>", "é".encode()[1:], b"!"]
    skipped = Driver(pieces, special=frozenset([1]))
    assert skipped.run() == ("é!", 4, False)
    assert skipped.num_tokens == 4
    assert Driver(pieces, special=frozenset([1]), skip_special_tokens=False).run() == ("\ufffd<s>\ufffd!", 4, False)


@pytest.mark.parametrize(
    ("include", "skip", "expected"),
    [(False, True, "hi"), (False, False, "hi"), (True, True, "hi"), (True, False, "hi</s>")],
)
def test_the_token_that_ends_the_sequence_is_counted(include: bool, skip: bool, expected: str) -> None:
    driver = Driver(
        [b"hi", b"</s>"], special=frozenset([1]), include_stop_str_in_output=include, skip_special_tokens=skip
    )
    driver.stream.append(0)
    driver.stream.finish(end_token_id=1)
    assert driver.take() == Delta(expected, 2, num_cut=0 if include else 1)
    driver.stream.finish(end_token_id=1)
    assert driver.take() == Delta("", 0)


def test_a_token_without_text_at_the_start_is_counted_at_once() -> None:
    driver = Driver([b"<s>", b"a"], special=frozenset([0]))
    driver.stream.append(0)
    assert driver.take() == Delta("", 1)


def test_nothing_can_be_appended_after_the_end() -> None:
    driver = Driver([b"ab"], stop=("b",))
    assert driver.stream.append(0)
    with pytest.raises(ValueError, match="ended"):
        driver.stream.append(0)


def test_what_is_kept_does_not_grow_with_the_text() -> None:
    """A token costs its own characters: nothing that an earlier token left is walked again."""
    driver = Driver([b"a"] * 8000, stop=("ab",))
    for i in range(8000):
        driver.stream.append(i)
        driver.take()
        assert sum(map(len, driver.stream._pieces)) <= 1
        assert len(driver.stream._uncounted) <= 1
    assert driver.text == "a" * 7999


@settings(max_examples=300, deadline=None)
@given(
    ids=st.lists(st.integers(0, 2), max_size=12),
    words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=3),
    min_tokens=st.integers(0, 4),
    include=st.booleans(),
)
def test_stop_words_end_on_tokens_and_do_not_leak(
    ids: list[int], words: list[tuple[int, ...]], min_tokens: int, include: bool
) -> None:
    """Against a search of the whole sequence at every token. Token 0 has no text, so only tokens can tell."""
    pieces = ["", "é", "x"]
    params = SamplingParams(
        stop_words_token_ids=tuple(words), min_tokens=min_tokens, include_stop_str_in_output=include
    )
    stream = TextStream(lambda token_id: pieces[token_id].encode(), (), params)
    counted, text = 0, ""
    for position, token_id in enumerate(ids, start=1):
        done = ids[:position]
        complete = [word for word in words if done[-len(word) :] == list(word)]
        ends = bool(complete) and position > min_tokens
        assert stream.append(token_id) == ends
        delta = stream.take()
        counted, text = counted + delta.num_tokens, text + delta.text
        if ends:
            cut = 0 if include else max(map(len, complete))
            assert (counted, delta.num_cut) == (position, cut)
            assert text == "".join(pieces[i] for i in done[: position - cut])
            return
        held = max(n for word in words for n in range(len(word)) if done[position - n :] == list(word[:n]))
        assert counted <= position - (0 if include else held), "a token that may begin a stop word came out"
        assert delta.num_cut == 0
    stream.finish()
    text += stream.take().text
    assert text == "".join(pieces[i] for i in ids)


def test_a_stop_word_is_not_its_text() -> None:
    pieces = ["a", "b", "ab"]
    stream = TextStream(lambda i: pieces[i].encode(), (), SamplingParams(stop_words_token_ids=((0, 1),)))
    assert [stream.append(2), stream.append(0), stream.append(1)] == [False, False, True]
    assert stream.take() == Delta("ab", 3, num_cut=2)


def test_a_stop_word_that_ends_in_the_end_token_is_left_out_whole() -> None:
    pieces = ["a", "b", "</s>"]

    def ended(**params: Any) -> Delta:
        stream = TextStream(lambda i: pieces[i].encode(), {2}, SamplingParams(**params))
        assert not stream.append(0) and not stream.append(1)
        stream.finish(end_token_id=2)
        return stream.take()

    assert ended(stop_words_token_ids=((1, 2),)) == Delta("a", 3, num_cut=2)
    assert ended(stop_words_token_ids=((0, 1, 2), (2,))) == Delta("", 3, num_cut=3)
    assert ended(stop_words_token_ids=((1, 2),), min_tokens=3) == Delta("ab", 3, num_cut=1), "too early to count"
    assert ended(stop_words_token_ids=((0, 2),)) == Delta("ab", 3, num_cut=1)
    assert ended(stop_words_token_ids=((1, 2),), include_stop_str_in_output=True) == Delta("ab", 3)
