"""Finds and loads the compiled kernels, or says why they cannot be used.

Does not know models: it declares the C functions of `src/decoder.h` and `src/measure.h`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

REQUIRED_CPU_FLAGS = frozenset({"avx2", "fma", "f16c"})


class KernelsUnavailableError(Exception):
    """The message says why: no compiled library, or a CPU that it was not made for."""


class Settings(Structure):
    """PlSettings"""

    _fields_ = [
        *[(name, c_int32) for name in ("layers", "hidden", "inner", "heads", "kv_heads", "head_dim", "vocab")],
        *[(name, c_int32) for name in ("activation", "qk_norm", "sandwich_norms", "threads", "page")],
        *[(name, c_int32) for name in ("key_format", "value_format")],
        *[(name, c_float) for name in ("norm_eps", "attention_scale", "attention_softcap", "logit_softcap")],
    ]


class Step(Structure):
    """PlStep"""

    _fields_ = [
        ("rows", c_int32),
        ("spans", c_int32),
        ("embeddings", c_void_p),
        ("span_rows", c_void_p),
        ("span_starts", c_void_p),
        ("tables", c_void_p),
        ("table_starts", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("kv", c_void_p),
    ]


_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "pl_new": (c_void_p, [POINTER(Settings)]),
    "pl_free": (None, [c_void_p]),
    "pl_set_layer": (None, [c_void_p, c_int32, c_int32, c_int32]),
    "pl_set_norm": (c_int32, [c_void_p, c_int32, c_int32, c_void_p, c_int32]),
    "pl_set_integer": (c_int32, [c_void_p, *[c_int32] * 5, *[c_void_p] * 4]),
    "pl_set_float": (c_int32, [c_void_p, *[c_int32] * 5, *[c_void_p] * 2]),
    "pl_weight_bytes": (c_size_t, [c_void_p]),
    "pl_page_bytes": (c_size_t, [POINTER(Settings)]),
    "pl_step": (c_int32, [c_void_p, POINTER(Step)]),
    "pl_head": (c_int32, [c_void_p, c_void_p, c_int32, c_void_p]),
    "pl_read_bandwidth": (c_double, [c_int32]),
    "pl_int8_peak": (c_double, [c_int32]),
    "pl_float32_peak": (c_double, [c_int32]),
    "pl_multiply": (c_int32, [*[c_int32] * 3, *[c_void_p] * 5, c_int32, c_void_p]),
}


@cache
def load_kernels() -> ctypes.CDLL:
    """The library, its functions declared. Raises KernelsUnavailableError."""
    missing = REQUIRED_CPU_FLAGS - cpu_flags()
    if missing:
        raise KernelsUnavailableError(f"this CPU lacks {', '.join(sorted(missing))}")
    found = sorted(Path(__file__).parent.glob("_kernels*.so"))
    if not found:
        raise KernelsUnavailableError("they were not compiled; install again where a C++ compiler is (g++ or clang++)")
    try:
        library = ctypes.CDLL(str(found[0]))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"{found[0].name} does not load: {error}") from None
    return library


def cpu_flags() -> frozenset[str]:
    """What /proc/cpuinfo says of the first core; empty where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def address(array: np.ndarray | None) -> int | None:
    """Where the array's memory begins; the caller keeps the array alive and contiguous."""
    if array is None:
        return None
    assert array.flags.c_contiguous
    # `array.ctypes.data` says the same, but builds objects: microseconds, a dozen times a step.
    pointer: int = array.__array_interface__["data"][0]
    return pointer
