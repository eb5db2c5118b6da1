"""The largest of a row of many numbers, faster on a CPU than torch's own functions.

torch's `amax` is vectorised on the CPU, its `argmax` and `topk` are not. A row's result depends on that row alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 64
_FEW_BLOCKS = 4
"""Blocks are worth while when no more than one in so many has to be looked into."""


def argmax(rows: Tensor) -> Tensor:
    """`rows`: [m, n] -> int64 [m]: where the largest number is, the first place where several are equal."""
    if rows.device.type == "cpu":
        # numpy's is vectorised: a tenth of the time.
        return torch.from_numpy(rows.numpy().argmax(axis=-1))
    return rows.argmax(-1)


def largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`rows`: [m, n], k <= n -> the k largest numbers, [m, k], falling, and where they are, int64 [m, k].

    Which of several equal numbers are among them, and in which order, is not defined, as in `torch.topk`.
    Looks at blocks first: only those with a large maximum can hold large numbers.
    """
    blocks, rest = _split(rows)
    if k * _FEW_BLOCKS > blocks.shape[1]:
        values, places = rows.topk(k)
        return values, places
    chosen = blocks.amax(-1).topk(k).indices
    row = torch.arange(rows.shape[0], device=rows.device)[:, None]
    candidates = torch.cat([blocks[row, chosen].flatten(1), rest], dim=1)
    inside = torch.arange(_BLOCK, device=rows.device)
    places_of_rest = torch.arange(rows.shape[1] - rest.shape[1], rows.shape[1], device=rows.device)
    places = torch.cat(
        [(chosen[:, :, None] * _BLOCK + inside).flatten(1), places_of_rest.expand(rows.shape[0], -1)], dim=1
    )
    values, indices = candidates.topk(k)
    return values, places.gather(1, indices)


def _split(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The rows as blocks, [m, n // 64, 64], and what is left, [m, n % 64]."""
    whole = rows.shape[1] - rows.shape[1] % _BLOCK
    return rows[:, :whole].unflatten(1, (whole // _BLOCK, _BLOCK)), rows[:, whole:]
