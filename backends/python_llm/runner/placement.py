"""Where each tensor of a decoder lies in a checkpoint: which stored tensor, and which part of it.

Checkpoints fuse matrices (q, k and v; gate and up; all experts), order heads in their own way and may store matrices
transposed. `hf_names` and `gguf_names` say what each model does; here is what that means for shapes and values.
Does not know models or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from python_llm.errors import ModelLoadError

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A decoder's tensor as a part of stored ones."""

    names: tuple[str, ...]
    """The stored tensors; several are put one after the other along their first axis."""
    shape: Shape
    """Of each stored tensor: what it must be for the decoder's tensor to fit."""
    entry: int | None = None
    """Only this entry of the first axis: an expert."""
    transposed: bool = False
    """Stored as [columns, rows]."""
    rows: np.ndarray | None = None
    """int64: the decoder's row i is row rows[i] of the stored tensor (after `entry` and `transposed`). None: row i."""


def check_places(places: Mapping[str, Place], stored: Mapping[str, Shape], where: object, model_type: str) -> None:
    """Raise ModelLoadError when a stored tensor is missing, has another shape, or is one that no place names."""
    expected = {name: place.shape for place in places.values() for name in place.names}
    missing = sorted(set(expected) - set(stored))
    if missing:
        raise ModelLoadError(f"{where}: {_some(missing)} missing")
    unknown = sorted(set(stored) - set(expected))
    if unknown:
        raise ModelLoadError(f"{where}: {_some(unknown)} not part of model_type {model_type!r}")
    for name, shape in expected.items():
        # A vector is as good as a matrix of one row.
        if _without_leading_ones(stored[name]) != _without_leading_ones(shape):
            raise ModelLoadError(f"{where}: tensor {name} has shape {stored[name]}, expected {shape}")


def head_rows(order: Iterable[int], count: int) -> np.ndarray:
    """int64 [count]: rows of a projection whose heads are put into `order`."""
    within = np.array(list(order), dtype=np.int64)
    return (np.arange(0, count, len(within))[:, None] + within).reshape(-1)


def neighbours_as_halves(head_dim: int) -> np.ndarray:
    """The order that turns a head rotated in pairs (2j, 2j + 1) into one rotated in pairs (j, j + head_dim / 2)."""
    return np.arange(head_dim).reshape(-1, 2).T.reshape(-1)


def _without_leading_ones(shape: Shape) -> Shape:
    return _without_leading_ones(shape[1:]) if shape[:1] == (1,) else shape


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"tensors {shown} are" if len(names) > 1 else f"tensor {shown} is"
