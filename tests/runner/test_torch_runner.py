"""`execute`: which spans sample, prompt logprobs, and how much of the head is computed."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
import torch

from python_llm.engine.plan import PromptLogprobsTask, SamplingTask, Span, StepPlan
from python_llm.runner import runner as runner_module
from runner_steps import GREEDY, chunked_logits, pages, span
from tiny_models import toy_runner

IDS = np.random.default_rng(0).integers(0, 258, 21).tolist()


def test_only_spans_that_ask_are_sampled() -> None:
    runner = toy_runner(block_size=4)
    tables = pages(runner, 3)
    task = SamplingTask(GREEDY, 0, np.array(IDS, np.int32), len(IDS), 2)
    short = SamplingTask(GREEDY, 0, np.array(IDS[:5], np.int32), 5, None)
    result = runner.execute(
        StepPlan(
            (
                span(runner, IDS, 0, 21, tables[0], sampling=task),
                span(runner, IDS, 0, 7, tables[1]),
                span(runner, IDS, 0, 5, tables[2], sampling=short),
            )
        )
    )
    expected = chunked_logits(runner, IDS, 21, tables[0])
    (first,), none, (third,) = result.tokens
    assert none == ()
    assert first.token_id == int(expected[20].argmax())
    assert third.token_id == int(expected[4].argmax())
    assert first.logprob is not None
    assert first.logprob.logprob == pytest.approx(float(expected[20].log_softmax(-1).max()), abs=1e-4)
    assert [entry.token_id for entry in first.top] == expected[20].topk(2).indices.tolist()
    assert third.logprob is None
    assert result.prompt_logprobs == ((), (), ())


@pytest.mark.parametrize("head_rows", [1, 3, 64])
def test_prompt_logprobs_of_chunks(monkeypatch: pytest.MonkeyPatch, head_rows: int) -> None:
    """Chunks of 8, with a batch-mate that samples: the logprob of every prompt token, a few rows of head at a time."""
    monkeypatch.setattr(runner_module, "HEAD_ROWS", head_rows)
    runner = toy_runner(block_size=4)
    table, mate_table = pages(runner, 2)
    expected = chunked_logits(runner, IDS, 21, table).log_softmax(-1)
    rows_of_head = []
    head = runner.decoder.logits
    monkeypatch.setattr(runner.decoder, "logits", lambda hidden: rows_of_head.append(len(hidden)) or head(hidden))
    mate_task = SamplingTask(GREEDY, 0, np.array(IDS[:1], np.int32), 1, None)
    mate = span(runner, IDS, 0, 1, mate_table, sampling=mate_task)
    found = []
    for start in range(0, 21, 8):
        end = min(start + 8, 21)
        plain = span(runner, IDS, start, end, table)
        task = PromptLogprobsTask(np.array(IDS[start + 1 : end + 1], np.int32), 2)
        chunk = Span(1, start, plain.token_ids, plain.block_ids, None, task)
        result = runner.execute(StepPlan((mate, chunk)))
        assert len(result.tokens[0]) == 1
        assert result.tokens[1] == result.prompt_logprobs[0] == ()
        found.extend(result.prompt_logprobs[1])
    assert [entry.target.token_id for entry in found] == IDS[1:]
    targets = [float(expected[i, token]) for i, token in enumerate(IDS[1:])]
    assert [entry.target.logprob for entry in found] == pytest.approx(targets, abs=1e-4)
    assert [[top.token_id for top in entry.top] for entry in found] == expected[:20].topk(2).indices.tolist()
    assert max(rows_of_head) <= head_rows


def test_an_empty_plan_has_an_empty_result() -> None:
    assert toy_runner().execute(StepPlan(())).tokens == ()


def test_the_pool_becomes_resident_only_as_pages_are_written() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    runner = toy_runner(num_blocks=1 << 16, block_size=128)
    assert runner.kv.pages.nbytes == 2 << 30
    chunked_logits(runner, IDS, 21, np.array([40_000], np.int32))
    assert process.memory_info().rss - before < 100 << 20


def test_toy_runner_is_fit_for_engine_tests() -> None:
    """Same arguments, same model; output wanders; top logits lie far enough apart for exact comparisons."""
    one, other, seeded = toy_runner(), toy_runner(), toy_runner(seed=1)
    logits_of = [chunked_logits(runner, IDS, 21, pages(runner, 1)[0]) for runner in (one, other, seeded)]
    assert torch.equal(logits_of[0], logits_of[1])
    assert (logits_of[0] - logits_of[2]).abs().max() > 1
    top = logits_of[0].topk(2).values
    assert (top[:, 0] - top[:, 1]).min() > 1e-3
    assert len(set(logits_of[0].argmax(-1).tolist())) > 10
