"""TensorRT-LLM's layout of word lists."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_llm.errors import InvalidRequestError
from python_llm.triton_io.word_lists import pack_words, unpack_words


def packed(ids: list[int], ends: list[int]) -> np.ndarray:
    return np.array([[ids, ends]], dtype=np.int32)


def test_the_layout() -> None:
    assert pack_words([(5, 6), (7,)]).tolist() == [[[5, 6, 7], [2, 3, -1]]]
    assert pack_words([]).shape == (1, 2, 0)
    assert unpack_words("w", packed([5, 6, 7], [2, 3, -1]), 10) == ((5, 6), (7,))


def test_tensorrt_llms_empty_word_is_no_word() -> None:
    assert unpack_words("w", packed([0], [-1]), 10) == ()


def test_ids_after_the_last_word_are_padding() -> None:
    assert unpack_words("w", packed([5, 999], [1, -1]), 10) == ((5,),)


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5).map(tuple), max_size=6, unique=True))
def test_there_and_back(words: list[tuple[int, ...]]) -> None:
    array = pack_words(words)
    assert array.dtype == np.int32
    assert unpack_words("w", array, 100) == tuple(words)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), np.int32), r'"w" must have the shape \[1, 2, n\], \[2, 3\] came'),
        (np.zeros((1, 3, 3), np.int32), r"\[1, 3, 3\] came"),
        (packed([1, 2], [2, 1]), "1 came after 2"),
        (packed([1, 2], [0, 2]), "0 came after 0"),
        (packed([1, 2], [3, -1]), "at most 2.*3 came after 0"),
        (packed([1, 2], [-1, 2]), "-1 came after 0"),
        (packed([1, 200], [2, -1]), r"token ids in \[0, 99\], 200 came"),
        (packed([-3], [1]), "-3 came"),
        (np.zeros((1, 2, 10_000), np.int32), "at most 8192 token ids, 10000 came"),
    ],
)
def test_what_is_wrong_is_said(array: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        unpack_words("w", array, 100)
