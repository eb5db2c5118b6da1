"""Spans of a step turned into tensors: token rows, KV slots, and the tiles that attention works on.

Made once a step and read by every layer. Does not know weights, sampling or logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from python_llm.engine.plan import Span
from python_llm.runner.kv_cache import KVCache

TILE_ROWS = 128
"""Most query rows in a tile: bounds the score matrix, and lets an early tile of a long span skip later keys."""


@dataclass(frozen=True, slots=True)
class Tile:
    """g pieces of spans, n queries each, and the p blocks each may look at. s = p * block_size keys."""

    rows: torch.Tensor
    """int64 [g, n]: the queries' rows in the step."""
    head_pages: torch.Tensor
    """int64 [g * kv_heads * p]: see `KVCache.head_page_index`."""
    hidden: torch.Tensor
    """bool [g, n, s]: True where the query must not see the key."""
    unseen: torch.Tensor
    """int64 [u]: indices into [g * kv_heads * s] of keys that no query of the tile sees; their memory may hold
    anything, NaN included."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: n token rows, span after span."""

    token_ids: torch.Tensor
    """int64 [n]"""
    positions: torch.Tensor
    """int64 [n]"""
    token_index: torch.Tensor
    """int64 [n * kv_heads]: see `KVCache.token_index`."""
    tiles: dict[int | None, tuple[Tile, ...]]
    """By sliding window; together the tiles of a window hold every row once."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Queries at positions [start, start + n) of one span, first of them in row `row`, and the blocks they look at."""

    row: int
    start: int
    n: int
    first_block: int
    block_ids: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Pieces of equal shape share a tile: as many queries, and at most twice as many blocks."""
        return self.n, len(self.block_ids).bit_length()


def make_batch(spans: Sequence[Span], kv: KVCache, windows: Iterable[int | None]) -> Batch:
    """Tensors for `spans` (at least one) on the pool's device, with tiles for each of the layers' `windows`."""
    device = kv.pages.device
    token_ids = np.concatenate([span.token_ids for span in spans]).astype(np.int64)
    positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
    blocks = np.concatenate([span.block_ids[np.arange(span.start, span.end) // kv.block_size] for span in spans])
    tiles: dict[int | None, tuple[Tile, ...]] = {}
    for window in set(windows):
        pieces = sorted(_pieces(spans, kv.block_size, window), key=lambda piece: piece.shape)
        tiles[window] = tuple(
            _tile(group, kv, window)
            for (n, _), alike in groupby(pieces, key=lambda piece: piece.shape)
            for group in _slices(list(alike), max(1, TILE_ROWS // n))
        )
    return Batch(
        torch.from_numpy(token_ids).to(device),
        torch.from_numpy(positions).to(device),
        kv.token_index(torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy(positions % kv.block_size)),
        tiles,
    )


def _pieces(spans: Sequence[Span], block_size: int, window: int | None) -> Iterable[_Piece]:
    row = 0
    for span in spans:
        for start in range(span.start, span.end, TILE_ROWS):
            end = min(start + TILE_ROWS, span.end)
            first_key = 0 if window is None else max(0, start - window + 1)
            first_block = first_key // block_size
            block_ids = span.block_ids[first_block : -(-end // block_size)]
            yield _Piece(row + start - span.start, start, end - start, first_block, block_ids)
        row += span.end - span.start


def _slices(pieces: list[_Piece], size: int) -> Iterable[list[_Piece]]:
    return (pieces[i : i + size] for i in range(0, len(pieces), size))


def _tile(pieces: list[_Piece], kv: KVCache, window: int | None) -> Tile:
    n = pieces[0].n
    num_blocks = max(len(piece.block_ids) for piece in pieces)
    # Padding repeats block 0: its keys come out as positions after the query, so they are hidden like any other.
    block_ids = np.zeros((len(pieces), num_blocks), np.int64)
    for i, piece in enumerate(pieces):
        block_ids[i, : len(piece.block_ids)] = piece.block_ids
    first_key = np.array([piece.first_block for piece in pieces])[:, None] * kv.block_size
    keys = first_key + np.arange(num_blocks * kv.block_size)
    start = np.array([piece.start for piece in pieces])[:, None]
    queries = (start + np.arange(n))[:, :, None]
    hidden = keys[:, None, :] > queries
    unseen = keys > start + n - 1
    if window is not None:
        hidden |= keys[:, None, :] <= queries - window
        unseen |= keys <= start - window
    rows = np.array([piece.row for piece in pieces])[:, None] + np.arange(n)
    unseen_of_heads = np.flatnonzero(np.repeat(unseen[:, None, :], kv.kv_heads, axis=1))
    device = kv.pages.device
    return Tile(
        torch.from_numpy(rows).to(device),
        kv.head_page_index(torch.from_numpy(block_ids)),
        torch.from_numpy(hidden).to(device),
        torch.from_numpy(unseen_of_heads).to(device),
    )
