"""Who owns which page of the KV cache, and which pages can be shared.

A page is *used* (one or more requests count on it), *cached* (nobody counts on it, but its content is known to the
prefix index and it can be shared again) or *free*. Pages are taken from the free ones first, then from the cached ones,
the one unused for longest first.

Owner: the engine thread. Does not know requests, tensors, or what a page holds beyond the hash of its prefix.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

BlockHash = bytes


def hash_block(parent: BlockHash, token_ids: np.ndarray) -> BlockHash:
    """Hash of a whole prefix: `parent` (the hash up to the page before, b"" for none) and the page's tokens, int32."""
    return hashlib.blake2b(token_ids.astype("<i4").tobytes(), digest_size=16, key=parent).digest()


class BlockPool:
    """`num_blocks` pages with reference counts and a prefix index."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, BlockHash] = {}
        self._block_of: dict[BlockHash, int] = {}

    @property
    def num_available(self) -> int:
        """Pages that `allocate` could hand out now."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, each counted once, or None (and no change) when there are not enough."""
        if count > self.num_available:
            return None
        return [self._take() for _ in range(count)]

    def match(self, hashes: Iterable[BlockHash]) -> list[int]:
        """The pages that hold the longest known prefix. They are not yet counted: `share` them before anything else."""
        blocks = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_cached(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` nobody counts on: sharing them makes so many fewer available."""
        return sum(block in self._cached for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one count on each page. The last pages of a prefix are reused before the first ones."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def register(self, block: int, block_hash: BlockHash) -> None:
        """Make a full page known to the prefix index. A prefix that is known already keeps its page."""
        if block_hash not in self._block_of and block not in self._hash_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless `tables` (the pages of the live requests) explain every page and every count."""
        expected = Counter(block for table in tables for block in table)
        for block in range(self.num_blocks):
            assert self._references[block] == expected[block], (
                f"page {block}: {self._references[block]} references, {expected[block]} explained by requests"
            )
        free, cached = set(self._free), set(self._cached)
        used = {block for block in range(self.num_blocks) if self._references[block] > 0}
        assert len(free) == len(self._free), "a page is free twice"
        assert free | cached | used == set(range(self.num_blocks)), "a page is lost"
        assert len(free) + len(cached) + len(used) == self.num_blocks, "a page has two states"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of, "the prefix index disagrees with itself"
        assert cached <= set(self._hash_of), "a cached page is not in the prefix index"
        assert not free & set(self._hash_of), "a free page is in the prefix index"

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._hash_of.pop(block)]
        self._references[block] = 1
        return block
