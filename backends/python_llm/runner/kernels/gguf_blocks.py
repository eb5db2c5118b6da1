"""GGUF's quantised blocks taken apart: whole numbers, and the scale and minimum of each group.

A weight is worth d * q + m. No weight is turned into a float and back: the whole numbers are those of the file.
Does not know files or names, nor how the kernels lay them out. Source: ggml's `ggml-quants.c`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Format(IntEnum):
    """How a matrix is packed; the values of `Format` in matrix.h."""

    INT4 = 0
    INT8 = 1
    INT5 = 2
    INT6_GROUP16 = 3
    FLOAT32 = 4
    FLOAT16 = 5
    BFLOAT16 = 6


@dataclass(frozen=True, slots=True)
class IntegerRows:
    """n rows of k weights in groups of g = 32 (16 for INT6_GROUP16)."""

    format: Format
    q: np.ndarray
    """int8 [n, k]; for INT4 in [0, 15], for INT5 in [0, 31], for INT6_GROUP16 in [-32, 31]"""
    d: np.ndarray
    """float32 [n, k / g]"""
    m: np.ndarray | None
    """float32 [n, k / g], for INT4 and INT5"""


@dataclass(frozen=True, slots=True)
class FloatRows:
    format: Format
    values: np.ndarray
    """[n, k] float32, float16, or uint16 holding bfloat16"""


PackedRows = IntegerRows | FloatRows

_Parts = tuple[Format, np.ndarray, np.ndarray, np.ndarray | None]


def can_unpack(type_name: str) -> bool:
    """Whether `unpack` knows the GGUF tensor type."""
    return type_name in _FLOATS or type_name in _BLOCKS


def unpack(type_name: str, raw: np.ndarray, shape: tuple[int, int]) -> PackedRows:
    """`raw`: the tensor's bytes, uint8; `shape`: (n, k). KeyError for a type that `can_unpack` denies."""
    if type_name in _FLOATS:
        kind, dtype = _FLOATS[type_name]
        return FloatRows(kind, raw.view(dtype).reshape(shape))
    size, read = _BLOCKS[type_name]
    kind, q, d, m = read(raw.reshape(-1, size))
    return IntegerRows(
        kind,
        np.ascontiguousarray(q.reshape(shape), dtype=np.int8),
        np.ascontiguousarray(d.reshape(shape[0], -1), dtype=np.float32),
        None if m is None else np.ascontiguousarray(m.reshape(shape[0], -1), dtype=np.float32),
    )


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """float32 [blocks, 1] from the float16 at byte `at` of each block."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8 [..., b] -> [..., 2b]: all low halves, then all high halves."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """uint8 [blocks, 32], 0 or 16, from the 32 bits at byte `at`."""
    return np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little") << 4


def _q4_0(blocks: np.ndarray) -> _Parts:
    d = _half(blocks, 0)
    return Format.INT4, _nibbles(blocks[:, 2:]), d, -8 * d


def _q4_1(blocks: np.ndarray) -> _Parts:
    return Format.INT4, _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> _Parts:
    d = _half(blocks, 0)
    return Format.INT5, _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), d, -16 * d


def _q5_1(blocks: np.ndarray) -> _Parts:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return Format.INT5, q, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> _Parts:
    return Format.INT8, blocks[:, 2:].view(np.int8), _half(blocks, 0), None


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """d and m of the 8 groups of Q4_K and Q5_K: float32 [blocks, 8] each, from 6-bit numbers in 12 bytes at byte 4."""
    low, middle, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((low & 63, (high & 15) | ((low >> 6) << 4)), axis=-1)
    minima = np.concatenate((middle & 63, (high >> 4) | ((middle >> 6) << 4)), axis=-1)
    return _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _q4_k(blocks: np.ndarray) -> _Parts:
    d, m = _k_scales(blocks)
    return Format.INT4, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)), d, m


def _q5_k(blocks: np.ndarray) -> _Parts:
    d, m = _k_scales(blocks)
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return Format.INT5, _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | (fifth << 4), d, m


def _q6_k(blocks: np.ndarray) -> _Parts:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    d = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return Format.INT6_GROUP16, (low | (high << 4)).view(np.int8) - np.int8(32), d, None


_FLOATS = {
    "F32": (Format.FLOAT32, np.float32),
    "F16": (Format.FLOAT16, np.float16),
    "BF16": (Format.BFLOAT16, np.uint16),
}
_BLOCKS: dict[str, tuple[int, Callable[[np.ndarray], _Parts]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
"""Type -> bytes of a block, and how to read blocks, uint8 [blocks, bytes]."""
