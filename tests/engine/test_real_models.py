"""The engine on the real models: transformers' greedy tokens, alone and in random company, on the kernels and in torch.

Golden files: see tests/golden/make_golden.py. In `float32` the tokens must be equal; where the two best logits were
closer than NEAR_TIE, rounding may turn them, and what follows is then another text.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collected import Collected
from models import gemma3_path, smollm2_path
from python_llm.engine.engine import Engine
from python_llm.engine.request import Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.errors import CancelledError
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.factory import load_runner
from python_llm.runner.runner import StepRunner

pytestmark = pytest.mark.real_model

NEAR_TIE = 1e-3
GOLDEN = Path(__file__).parent.parent / "golden"


def golden(name: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return entries


def runner_of(path: Path, pages: int, **settings: Any) -> StepRunner:
    files = ModelFiles(str(path), "gguf", path)
    return load_runner(files, block_size=16, kv_cache_bytes=pages * _page_bytes(path), **settings)


def _page_bytes(path: Path) -> int:
    return {smollm2_path(): 30 * 2 * 3 * 64 * 16 * 4, gemma3_path(): 18 * 2 * 1 * 256 * 16 * 4}[path]


def run(runner: StepRunner, **settings: Any) -> Engine:
    defaults = {"max_num_seqs": 12, "max_num_batched_tokens": 256, "max_queue_size": 1000}
    engine = Engine(runner, enable_prefix_caching=True, log_error=print, **{**defaults, **settings})
    engine.start()
    return engine


def submit(engine: Engine, prompt: list[int], max_tokens: int, seed: int = 0) -> tuple[Request, Collected]:
    params = SamplingParams(temperature=0.0 if not seed else 0.9, max_tokens=max_tokens, ignore_eos=True)
    collected = Collected()
    request = Request(
        np.array(prompt, dtype=np.int32), params, seed=seed, max_new_tokens=max_tokens, sink=collected, text=None
    )
    engine.submit([request])
    return request, collected


def same(entry: dict[str, Any], tokens: list[int]) -> bool:
    """Equal as far as rounding allows. The first difference must be at a near tie."""
    for ours, theirs, margin in zip(tokens, entry["output"], entry["margin"], strict=True):
        if ours != theirs:
            return bool(margin < NEAR_TIE)
    return True


@pytest.fixture(scope="module")
def smollm2() -> Iterator[StepRunner]:
    yield runner_of(smollm2_path(), 32, weight_format="float32", kernels="native")


def check_alone(runner: StepRunner, entries: list[dict[str, Any]]) -> None:
    engine = run(runner)
    for entry in entries:
        _, collected = submit(engine, entry["ids"], len(entry["output"]))
        assert same(entry, collected.wait(300).token_ids), entry["text"][:60]
    engine.check()
    engine.stop()


def test_smollm2_alone(smollm2: StepRunner) -> None:
    check_alone(smollm2, golden("smollm2")[::4])


def test_smollm2_in_random_company(smollm2: StepRunner) -> None:
    """All golden prompts at once, among requests that sample, share prefixes, are cancelled; pages are too few."""
    rng = random.Random(5)
    engine = run(smollm2)
    entries = golden("smollm2")
    jobs: list[tuple[dict[str, Any] | None, Request, Collected]] = []
    for entry in rng.sample(entries, len(entries)):
        jobs.append((entry, *submit(engine, entry["ids"], len(entry["output"]))))
        if rng.random() < 0.5:
            mate = rng.choice(entries)["ids"]
            request, collected = submit(engine, mate[: rng.randrange(1, len(mate) + 1)], rng.randrange(1, 60), seed=7)
            jobs.append((None, request, collected))
            if rng.random() < 0.5:
                time.sleep(0.05)
                engine.cancel([request])
    for expected, _, collected in jobs:
        collected.wait(600)
        if expected is None:
            assert collected.error is None or isinstance(collected.error, CancelledError)
        else:
            assert same(expected, collected.token_ids), expected["text"][:60]
    assert sum(request.num_preemptions for _, request, _ in jobs) > 0, "the pages were meant to be too few"
    engine.check()
    engine.stop()


def test_sampling_is_reproducible_in_any_company(smollm2: StepRunner) -> None:
    """Equal seeds give equal tokens alone, in company and after preemption; different seeds do not (CASES 10, 17)."""
    prompts = [entry["ids"] for entry in golden("smollm2")[:8]]
    results = []
    for max_num_seqs in (1, 8):
        engine = run(smollm2, max_num_seqs=max_num_seqs)
        jobs = [submit(engine, prompt, 24, seed=1 + index) for index, prompt in enumerate(prompts)]
        jobs.append(submit(engine, prompts[0], 24, seed=99))
        results.append([collected.wait(300).token_ids for _, collected in jobs])
        engine.stop()
    assert results[0] == results[1], "bit for bit: the kernels compute each row for itself"
    assert results[0][0] != results[0][-1]


def test_gemma3_alone_and_together() -> None:
    runner = runner_of(gemma3_path(), 200, weight_format="float32", kernels="native")
    entries = golden("gemma3")
    check_alone(runner, entries[::6])
    engine = run(runner)
    jobs = [submit(engine, entry["ids"], len(entry["output"])) for entry in entries]
    for entry, (_, collected) in zip(entries, jobs, strict=True):
        assert same(entry, collected.wait(300).token_ids), entry["text"][:60]
    engine.check()
    engine.stop()


def test_plain_torch_gives_the_same_tokens() -> None:
    check_alone(runner_of(smollm2_path(), 110, kernels="torch"), golden("smollm2")[1::12])


def _agreement(path: Callable[[], Path], name: str) -> float:
    """Share of golden tokens that packed weights and 8-bit activations pick too, given the golden text before."""
    runner = runner_of(path(), 110, kernels="native")
    engine = run(runner)
    equal = total = 0
    for entry in golden(name)[::3]:
        for at in range(0, len(entry["output"]), 8):
            _, collected = submit(engine, entry["ids"] + entry["output"][:at], 1)
            equal += collected.wait(300).token_ids[0] == entry["output"][at]
            total += 1
    engine.stop()
    return equal / total


def test_packed_weights_agree_with_float32_on_most_tokens() -> None:
    assert _agreement(smollm2_path, "smollm2") >= 0.9
    assert _agreement(gemma3_path, "gemma3") >= 0.85
