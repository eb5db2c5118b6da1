"""The real models: one pass over each golden prompt and its output picks transformers' tokens, position by position."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import gemma3_path, smollm2_path
from python_llm.engine.plan import StepPlan
from python_llm.runner.runner import TorchRunner
from runner_steps import logits, pages, runner_of, span

NEAR_TIE = 1e-3
"""Logits closer than this may change places by rounding."""
MARGIN_TOLERANCE = 1e-3
"""Of the best logit's lead, ours against transformers': catches faults too small to turn a token."""


def _entries(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "golden" / name).read_text("utf-8"))
    return entries


def _runner(path: Callable[[], Path]) -> TorchRunner:
    return runner_of(path(), num_blocks=80, block_size=16)


def _check(runner: TorchRunner, entries: list[dict[str, Any]], *, near_ties: int) -> None:
    blocks = pages(runner, 1)[0]
    tied, wrong = 0, []
    for number, entry in enumerate(entries):
        prompt, output = entry["ids"], entry["output"]
        ids = prompt + output[:-1]
        last = len(prompt) - 1
        if last:
            # Apart, because only the rows from the prompt's last token on need logits.
            runner.execute(StepPlan((span(runner, ids, 0, last, blocks),)))
        best = logits(runner, [span(runner, ids, last, len(ids), blocks)])[0].topk(2)
        leads = (best.values[:, 0] - best.values[:, 1]).tolist()
        for i, (ours, golden, margin) in enumerate(
            zip(best.indices[:, 0].tolist(), output, entry["margin"], strict=True)
        ):
            tied += margin < NEAR_TIE
            if (ours != golden and margin >= NEAR_TIE) or abs(leads[i] - margin) > MARGIN_TOLERANCE:
                wrong.append((number, i, ours, golden, leads[i], margin))
    assert wrong == []
    assert tied == near_ties


@pytest.mark.real_model
def test_smollm2() -> None:
    entries = _entries("smollm2.json")
    assert len(entries) >= 50
    _check(_runner(smollm2_path), entries, near_ties=0)


@pytest.mark.real_model
def test_gemma3() -> None:
    entries = _entries("gemma3.json")
    assert sum(len(entry["ids"]) > 512 for entry in entries) >= 2
    _check(_runner(gemma3_path), entries, near_ties=1)
