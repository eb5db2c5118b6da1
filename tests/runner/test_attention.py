"""Who sees whom: the window's edge, batch-mates, memory that belongs to nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from python_llm.runner import batch
from python_llm.runner.decoder import Decoder
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.runner import TorchRunner
from python_llm.runner.spec import LayerSpec
from runner_steps import chunked_logits, greedy, logits, pages, span
from tiny_models import random_weights, toy_runner, toy_spec

WINDOW = 8


def _one_layer(window: int | None) -> TorchRunner:
    """With a single layer, a position's logits depend on the tokens its window holds and on no other."""
    spec = replace(toy_spec(), layers=(LayerSpec(rope=0, window=window),))
    return TorchRunner(Decoder(spec, random_weights(spec)), KVCache(spec, 64, 4), 128)


def _ids(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 258, count).tolist()


@pytest.mark.parametrize("chunk", [1, 3, 8, 9, 40])
def test_window_ends_exactly(chunk: int) -> None:
    """The query at position p sees p - 7 .. p, and nothing of p - 8 or p + 1."""
    ids = _ids(40)
    changed = [*ids]
    changed[20] = (changed[20] + 1) % 258
    runner = _one_layer(WINDOW)
    before = chunked_logits(runner, ids, chunk, pages(runner, 1)[0])
    after = chunked_logits(runner, changed, chunk, pages(runner, 1, seed=9)[0])
    differs = (before - after).abs().amax(1) > 1e-3
    assert differs.nonzero().flatten().tolist() == list(range(20, 20 + WINDOW))
    assert (before - after).abs().amax(1)[~differs].max() < 1e-4


def test_without_window_the_first_token_is_seen_far_away() -> None:
    ids = _ids(40)
    runner = _one_layer(None)
    before = chunked_logits(runner, ids, 40, pages(runner, 1)[0])
    after = chunked_logits(runner, [7, *ids[1:]], 40, pages(runner, 1)[0])
    assert ((before - after).abs().amax(1)[WINDOW:] > 1e-3).sum() > 20


@pytest.mark.parametrize("window", [None, WINDOW, 100, 129])
def test_spans_longer_than_a_tile(window: int | None) -> None:
    """A span is cut into tiles of queries; the cut shows in no result."""
    length = 2 * batch.TILE_ROWS + 30
    spec = replace(toy_spec(), layers=(LayerSpec(0, window), LayerSpec(0, None)))
    runner = TorchRunner(Decoder(spec, random_weights(spec)), KVCache(spec, 200, 4), 512)
    blocks = pages(runner, 1)[0]
    whole = chunked_logits(runner, _ids(length), length, blocks)
    torch.testing.assert_close(whole, chunked_logits(runner, _ids(length), 17, blocks), rtol=0, atol=1e-4)


@pytest.mark.parametrize("sliding", [False, True])
def test_batch_mates_change_nothing(sliding: bool) -> None:
    """Alone, or among 40 others of very different lengths: the same tokens, the same logits but for rounding."""
    runner = toy_runner(num_blocks=400, block_size=4, sliding=sliding)
    tables = pages(runner, 41)
    alone_ids = _ids(12)
    mates = [_ids(int(n), seed=int(n)) for n in np.random.default_rng(1).integers(1, 30, 40)]
    expected = greedy(runner, alone_ids, 20, tables[0])
    alone = chunked_logits(runner, alone_ids + expected, 1, tables[0])
    logits(runner, [span(runner, mate, 0, len(mate), table) for mate, table in zip(mates, tables[1:], strict=True)])
    ids, start, rows = [*alone_ids], 0, []
    while len(ids) < len(alone_ids) + 20:
        spans = [span(runner, ids, start, len(ids), tables[0])]
        for mate, table in zip(mates, tables[1:], strict=True):
            spans.append(span(runner, mate, len(mate) - 1, len(mate), table))
        order = np.random.default_rng(len(ids)).permutation(len(spans))
        results = logits(runner, [spans[i] for i in order])
        mine = results[list(order).index(0)]
        rows.append(mine)
        start = len(ids)
        ids.append(int(mine[-1].argmax()))
    assert ids[len(alone_ids) :] == expected
    torch.testing.assert_close(torch.cat(rows), alone[: len(ids) - 1], rtol=0, atol=1e-4)


def test_a_mate_full_of_nan_stays_alone() -> None:
    """A sequence whose keys and values overflowed harms neither its mates nor the next owner of its pages."""
    runner = toy_runner(num_blocks=40, block_size=4)
    first, second = pages(runner, 2)
    ids = _ids(11)
    expected = chunked_logits(runner, ids, 11, first)
    runner.kv.pages[torch.from_numpy(second).long()] = float("nan")
    good, bad = logits(runner, [span(runner, ids, 0, 11, first), span(runner, _ids(30), 29, 30, second)])
    assert bad.isnan().all()
    torch.testing.assert_close(good, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(chunked_logits(runner, ids, 2, second), expected, rtol=0, atol=1e-4)
