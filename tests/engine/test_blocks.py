"""BlockPool against a plain dictionary: a hypothesis state machine."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from python_llm.engine.blocks import BlockPool, hash_block

NUM_BLOCKS = 8


class BlockPoolMachine(RuleBasedStateMachine):
    """The model: `tables` (who holds what) and `content` (page -> hash that its holder registered)."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    def held(self) -> set[int]:
        return {block for table in self.tables for block in table}

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def allocate(self, count: int) -> None:
        free = NUM_BLOCKS - len(self.held())
        blocks = self.pool.allocate(count)
        if count > free:
            assert blocks is None
            return
        assert blocks is not None and len(set(blocks)) == count
        assert not set(blocks) & self.held(), "a page that somebody holds was handed out"
        cached = {block for block in self.content if block not in self.held()}
        assert len(cached & set(blocks)) == max(0, count - (free - len(cached))), (
            "cached pages go only when none is free"
        )
        for block in blocks:
            self.content.pop(block, None)
        self.tables.append(blocks)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.tables:
            self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @rule(data=st.data(), key=st.integers(0, 5))
    def register(self, data: st.DataObject, key: int) -> None:
        held = sorted(self.held())
        if held:
            block = data.draw(st.sampled_from(held))
            name = bytes([key])
            self.pool.register(block, name)
            if block not in self.content and name not in self.content.values():
                self.content[block] = name

    @rule(keys=st.lists(st.integers(0, 5), max_size=4))
    def match_and_share(self, keys: list[int]) -> None:
        index = {name: block for block, name in self.content.items()}
        expected = []
        for key in keys:
            if bytes([key]) not in index:
                break
            expected.append(index[bytes([key])])
        blocks = self.pool.match(bytes([key]) for key in keys)
        assert blocks == expected
        assert self.pool.num_cached(blocks) == len([b for b in blocks if b not in self.held()])
        self.pool.share(blocks)
        self.tables.append(blocks)

    @invariant()
    def accounts_for_every_page(self) -> None:
        self.pool.check(self.tables)
        assert self.pool.num_used == len(self.held())
        for block, name in self.content.items():
            assert self.pool.match([name]) == [block]


BlockPoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBlockPool = BlockPoolMachine.TestCase


def test_least_recently_used_prefix_goes_first_and_its_tail_before_its_head() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2), pool.allocate(2)
    assert first is not None and second is not None
    for index, block in enumerate(first + second):
        pool.register(block, bytes([index]))
    pool.release(first)
    pool.release(second)
    assert pool.allocate(1) == [first[1]]
    assert pool.allocate(1) == [first[0]]
    assert pool.match([bytes([2]), bytes([3])]) == second


def test_hash_depends_on_the_whole_prefix() -> None:
    a, b = np.array([1, 2], dtype=np.int32), np.array([3, 4], dtype=np.int32)
    assert hash_block(hash_block(b"", a), b) != hash_block(hash_block(b"", b), b)
    assert hash_block(b"", a) != hash_block(b"", b)
    assert hash_block(hash_block(b"", a), b) == hash_block(hash_block(b"", a.copy()), b.copy())
