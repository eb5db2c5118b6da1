"""TensorRT-LLM's flat layout of word lists: int32 [1, 2, n].

Row 0 holds the token ids of all words one after the other, row 1 the end of each word in row 0; both are padded at the
end, row 1 with -1. So [[5, 6, 7], [2, 3, -1]] are the words (5, 6) and (7,). Does not know what the words are for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from python_llm.errors import InvalidRequestError

_LONGEST = 8192
"""Token ids in one list: the engine's one thread walks the words at every token."""


def pack_words(words: Sequence[Sequence[int]]) -> np.ndarray:
    """int32 [1, 2, n]; n is 0 for no words. Words without tokens are left out."""
    kept = [word for word in words if word]
    ids = [token_id for word in kept for token_id in word]
    packed = np.full((1, 2, len(ids)), -1, dtype=np.int32)
    packed[0, 0] = ids
    packed[0, 1, : len(kept)] = np.cumsum([len(word) for word in kept])
    return packed


def unpack_words(name: str, packed: np.ndarray, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The words of the input `name`, in order, each once. Raises InvalidRequestError when it is not such a layout."""
    if packed.ndim != 3 or packed.shape[:2] != (1, 2):
        raise InvalidRequestError(f'input "{name}" must have the shape [1, 2, n], {list(packed.shape)} came')
    if packed.shape[2] > _LONGEST:
        raise InvalidRequestError(f'input "{name}" may hold at most {_LONGEST} token ids, {packed.shape[2]} came')
    ids, ends = packed[0].tolist()
    while ends and ends[-1] == -1:
        ends.pop()
    words: dict[tuple[int, ...], None] = {}
    begin = 0
    for end in ends:
        if not begin < end <= len(ids):
            raise InvalidRequestError(
                f'input "{name}": row 1 must hold the ends of the words in row 0, rising, at most {len(ids)}, and then '
                f"-1 only; {end} came after {begin}"
            )
        words[tuple(ids[begin:end])] = None
        begin = end
    for token_id in ids[:begin]:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(f'input "{name}" must hold token ids in [0, {vocab_size - 1}], {token_id} came')
    return tuple(words)
