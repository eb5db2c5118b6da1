"""Float weights -> the packed formats, for models that do not come quantised.

Round to nearest within groups of 32; scales are rounded to float16 first, as the kernels hold them. Does not know
files.
"""

from __future__ import annotations

import numpy as np

from python_llm.runner.kernels.gguf_blocks import FloatRows, Format, IntegerRows, PackedRows

GROUP = 32


def to_int8(values: np.ndarray) -> IntegerRows:
    """float32 [n, k] -> 8-bit rows: d = largest magnitude of the group / 127."""
    groups = values.reshape(len(values), -1, GROUP)
    d = _half(np.abs(groups).max(axis=-1) / 127)
    q = np.rint(groups / _not_zero(d)[..., None]).clip(-127, 127).astype(np.int8)
    return IntegerRows(Format.INT8, q.reshape(values.shape), d, None)


def to_int4(values: np.ndarray) -> IntegerRows:
    """float32 [n, k] -> 4-bit rows between the group's least and greatest value."""
    groups = values.reshape(len(values), -1, GROUP)
    m = _half(groups.min(axis=-1))
    d = _half((groups.max(axis=-1) - m) / 15)
    q = np.rint((groups - m[..., None]) / _not_zero(d)[..., None]).clip(0, 15).astype(np.int8)
    return IntegerRows(Format.INT4, q.reshape(values.shape), d, m)


def to_bfloat16(values: np.ndarray) -> FloatRows:
    """float32 [n, k], rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return FloatRows(Format.BFLOAT16, (rounded >> 16).astype(np.uint16))


def to_format(values: np.ndarray, weight_format: str) -> PackedRows:
    """`weight_format`: int8, int4, bfloat16 or float32. Integer formats need k to be a multiple of 32."""
    if weight_format == "int8":
        return to_int8(values)
    if weight_format == "int4":
        return to_int4(values)
    if weight_format == "bfloat16":
        return to_bfloat16(values)
    return FloatRows(Format.FLOAT32, values)


def _half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def _not_zero(d: np.ndarray) -> np.ndarray:
    """A group of equal values has d = 0; whatever it is divided by, q comes out as 0."""
    return np.where(d == 0, np.float32(1), d)
