"""An engine on a runner without a model, and requests for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from collected import Collected
from fake_runner import FakeRunner
from python_llm.engine.engine import Engine
from python_llm.engine.request import Request
from python_llm.engine.sampling_params import SamplingParams


@contextmanager
def running_engine(runner: FakeRunner, **settings: object) -> Iterator[Engine]:
    """An engine whose pool must be consistent and empty of used pages at the end."""
    errors: list[str] = []
    defaults: dict[str, object] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 16,
        "max_queue_size": 1000,
        "enable_prefix_caching": True,
    }
    engine = Engine(runner, log_error=errors.append, **{**defaults, **settings})  # type: ignore[arg-type]
    engine.start()
    try:
        yield engine
        engine.check()
        assert engine.num_in_flight == 0
        assert engine._scheduler.pool.num_used == 0
    finally:
        engine.stop()
    assert errors == []


def greedy(max_tokens: int = 8, **kwargs: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **kwargs)  # type: ignore[arg-type]


def submit(
    engine: Engine, prompt: list[int], params: SamplingParams, seed: int = 0, deadline: float | None = None
) -> tuple[Request, Collected]:
    collected = Collected()
    request = Request(
        np.array(prompt, dtype=np.int32),
        params,
        seed=seed,
        max_new_tokens=engine.resolve_max_tokens(len(prompt), params.max_tokens),
        sink=collected,
        deadline=deadline,
    )
    engine.submit([request])
    return request, collected


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1, 97), k=length)
