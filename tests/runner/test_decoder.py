"""The decoder against transformers' own models, family by family: whole, chunked, batched, over any pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from python_llm.runner.runner import TorchRunner
from runner_steps import chunked_logits, greedy, logits, pages, runner_of, span
from tiny_configs import TINY_CONFIGS
from tiny_models import tiny_hf_folder, tiny_hf_model

LENGTH = 41
TOLERANCE = 2e-4
SLIDING = ["mistral", "qwen2", "gemma2", "gemma3", "smollm3", "gpt_oss"]
SERVED = {"phi3": 64, "phi4_mini": 64}
"""Longest sequence to serve, where the model's own limit would choose another rotation than transformers does here."""


@dataclass
class Case:
    kind: str
    runner: TorchRunner
    ids: list[int]
    expected: torch.Tensor
    """float32 [LENGTH, vocab], from transformers"""
    continuation: list[int]
    """What transformers generates after the first 20 tokens."""


@pytest.fixture(scope="module", params=sorted(TINY_CONFIGS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return _case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=SLIDING)
def sliding_case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return _case(request.param, tmp_path_factory.mktemp(request.param))


def _case(kind: str, folder: Path) -> Case:
    model = tiny_hf_model(kind)
    ids = torch.randint(3, 160, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(ids).logits[0]
        model.generation_config.eos_token_id = None
        generated = model.generate(ids[:, :20], max_new_tokens=24, do_sample=False)
    runner = runner_of(tiny_hf_folder(folder, kind), max_model_len=SERVED.get(kind))
    return Case(kind, runner, ids[0].tolist(), expected, generated[0, 20:].tolist())


def _assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_the_tiny_models_are_worth_comparing(case: Case) -> None:
    top = case.expected.topk(2).values
    assert case.expected.std() > 0.5
    assert (top[:, 0] - top[:, 1]).min() > 2 * TOLERANCE
    assert len(set(case.continuation)) > 5


def test_whole_prompt(case: Case) -> None:
    _assert_close(chunked_logits(case.runner, case.ids, LENGTH, pages(case.runner, 1)[0]), case.expected)


@pytest.mark.parametrize("chunk", [1, 4, 5])
def test_chunked_prompt(case: Case, chunk: int) -> None:
    _assert_close(chunked_logits(case.runner, case.ids, chunk, pages(case.runner, 1)[0]), case.expected)


def test_sliding_window_with_every_chunk_size(sliding_case: Case) -> None:
    runner = sliding_case.runner
    assert any(layer.window == 7 for layer in runner.decoder.spec.layers)
    for chunk in range(1, LENGTH):
        _assert_close(chunked_logits(runner, sliding_case.ids, chunk, pages(runner, 1)[0]), sliding_case.expected)


def test_greedy_tokens(case: Case) -> None:
    for chunk in (1000, 3):
        assert greedy(case.runner, case.ids[:20], 24, pages(case.runner, 1)[0], chunk) == case.continuation


def test_mixed_batch_on_shuffled_pages(case: Case) -> None:
    """Prompt chunks and single tokens of five sequences in each step, every sequence equal to the reference."""
    runner = case.runner
    tables = pages(runner, 5, seed=3)
    done = [0] * 5
    sizes = [[1], [4, 1, 1, 2], [13, 1], [LENGTH], [7]]
    step = 0
    while min(done) < LENGTH:
        active = [i for i in range(5) if done[i] < LENGTH]
        ends = {i: min(LENGTH, done[i] + sizes[i][step % len(sizes[i])]) for i in active}
        results = logits(runner, [span(runner, case.ids, done[i], ends[i], tables[i]) for i in active])
        for i, rows in zip(active, results, strict=True):
            _assert_close(rows, case.expected[done[i] : ends[i]])
            done[i] = ends[i]
        step += 1


def test_uninitialised_pages_never_leak(case: Case) -> None:
    """NaN in every page, then mixed steps: as exact as on any memory."""
    runner = case.runner
    runner.kv.pages.fill_(float("nan"))
    first, second = pages(runner, 2, seed=5)
    _assert_close(logits(runner, [span(runner, case.ids, 0, 9, first)])[0], case.expected[:9])
    for i in range(9, LENGTH):
        one, other = logits(
            runner, [span(runner, case.ids, i, i + 1, first), span(runner, case.ids, i - 9, i - 8, second)]
        )
        _assert_close(one, case.expected[i : i + 1])
        _assert_close(other, case.expected[i - 9 : i - 8])
