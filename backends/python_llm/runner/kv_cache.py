"""The pool of KV pages: one tensor, and the arithmetic that finds a page or a token in it.

Does not know who owns a page (the engine's block pool does) nor which tokens a query may see.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol

import torch


class PageShape(Protocol):
    """What the pool needs to know of a model; a `DecoderSpec` is one."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...

    @property
    def layers(self) -> Sized: ...


class KVCache:
    """Keys and values of all layers, float32, laid out [num_blocks, layers, 2, kv_heads, block_size, head_dim].

    A block is contiguous over all layers, so that moving a page to another tier or process is one copy; within it, the
    tokens of one head are contiguous, so that a gather copies whole [block_size, head_dim] rows.
    The memory is uninitialised and becomes resident only as pages are written. Nothing read from it may be trusted
    except at slots that the reading request has written.
    Owner: the engine thread.
    """

    def __init__(self, spec: PageShape, num_blocks: int, block_size: int, device: torch.device | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_heads = spec.num_kv_heads
        self.head_dim = spec.head_dim
        self._sides = len(spec.layers) * 2
        shape = (num_blocks, len(spec.layers), 2, spec.num_kv_heads, block_size, spec.head_dim)
        self.pages = torch.empty(shape, dtype=torch.float32, device=device)
        self._head_pages = self.pages.view(-1, block_size, spec.head_dim)
        self._tokens = self.pages.view(-1, spec.head_dim)
        self._heads = torch.arange(spec.num_kv_heads)

    @staticmethod
    def bytes_per_token(spec: PageShape) -> int:
        """Bytes that one token takes over all layers."""
        return len(spec.layers) * 2 * spec.num_kv_heads * spec.head_dim * torch.float32.itemsize

    def head_page_index(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Where `gather` finds blocks: int64 [g, p] on the CPU -> int64 [g * kv_heads * p] on the pool's device."""
        index = block_ids[:, None, :] * (self._sides * self.kv_heads) + self._heads[:, None]
        return index.flatten().to(self.pages.device)

    def token_index(self, block_ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Where `write` puts tokens: int64 [n] each, on the CPU -> int64 [n * kv_heads] on the pool's device."""
        head_pages = block_ids[:, None] * (self._sides * self.kv_heads) + self._heads
        return (head_pages * self.block_size + offsets[:, None]).flatten().to(self.pages.device)

    def write(self, layer: int, token_index: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store `k` and `v`, float32 [n, kv_heads, head_dim], at the slots of `token_index`."""
        stride = self.kv_heads * self.block_size
        self._tokens.index_copy_(0, token_index + 2 * layer * stride, k.reshape(-1, self.head_dim))
        self._tokens.index_copy_(0, token_index + (2 * layer + 1) * stride, v.reshape(-1, self.head_dim))

    def gather(self, layer: int, head_page_index: torch.Tensor, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the pages of `head_page_index`, made for `groups` rows of p blocks.

        Returns keys and values, each float32 [groups, kv_heads, p * block_size, head_dim]; the caller may change them.
        """
        shape = (groups, self.kv_heads, -1, self.head_dim)
        k = self._head_pages.index_select(0, head_page_index + 2 * layer * self.kv_heads)
        v = self._head_pages.index_select(0, head_page_index + (2 * layer + 1) * self.kv_heads)
        return k.view(shape), v.view(shape)
