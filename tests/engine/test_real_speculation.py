"""Speculation on the real model: transformers' greedy tokens, and seed for seed the texts and logprobs without it.

Steps are said to cost the same however many rows they have, so that every draft there is gets verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collected import Collected
from guessing import Replay, speculator_of
from models import smollm2_path
from python_llm.engine.request import Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.runner.kernels.native_decoder import KVFormat
from python_llm.runner.runner import StepRunner
from python_llm.speculation.prompt_lookup import PromptLookup
from python_llm.speculation.proposer import Proposer
from python_llm.speculation.step_costs import measure_step_costs
from test_real_models import golden, run, runner_of, same
from tiny_models import toy_runner

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def float32() -> Iterator[StepRunner]:
    yield runner_of(smollm2_path(), 110, weight_format="float32", kernels="native")


@pytest.fixture(scope="module")
def packed() -> Iterator[StepRunner]:
    """The file's own 4- and 8-bit blocks, as it is served by default."""
    yield runner_of(smollm2_path(), 110, kernels="native")


def answers(
    runner: StepRunner, jobs: list[tuple[list[int], SamplingParams]], at_once: int, proposer: Proposer | None
) -> list[Request]:
    """The finished requests, each with its `outputs` in `sink`. Sequence i has the seed i."""
    speculator = None
    if proposer is not None:
        speculator = speculator_of(proposer, num_draft_tokens=6, vocab_size=runner.vocab_size)
    engine = run(runner, max_num_seqs=at_once, speculator=speculator)
    requests = [
        Request(np.array(ids, np.int32), params, seed=seed, max_new_tokens=params.max_tokens or 1, sink=Collected())
        for seed, (ids, params) in enumerate(jobs)
    ]
    engine.submit(requests)
    for request in requests:
        collected_of(request).wait(600)
    engine.check()
    engine.stop()
    return requests


def lookup() -> PromptLookup:
    return PromptLookup(min_ngram=1, max_ngram=8)


def collected_of(request: Request) -> Collected:
    assert isinstance(request.sink, Collected)
    return request.sink


def greedy_jobs(entries: list[dict[str, Any]]) -> list[tuple[list[int], SamplingParams]]:
    return [
        (entry["ids"], SamplingParams(temperature=0.0, max_tokens=len(entry["output"]), ignore_eos=True))
        for entry in entries
    ]


def accepted(requests: list[Request]) -> int:
    return sum(request.num_accepted for request in requests)


@pytest.mark.parametrize(("at_once", "every"), [(1, 12), (16, 1)])
def test_greedy_tokens_are_those_of_transformers(float32: StepRunner, at_once: int, every: int) -> None:
    entries = golden("smollm2")[::every]
    requests = answers(float32, greedy_jobs(entries), at_once, lookup())
    for entry, request in zip(entries, requests, strict=True):
        assert same(entry, collected_of(request).token_ids), entry["text"][:60]
    assert accepted(requests) > len(entries)


def test_packed_weights_give_the_same_tokens_with_and_without_drafts(packed: StepRunner) -> None:
    """Exactly: the kernels compute each row for itself."""
    jobs = greedy_jobs(golden("smollm2")[::2])
    without = answers(packed, jobs, 16, None)
    for at_once, every in ((16, 1), (1, 6)):
        with_drafts = answers(packed, jobs[::every], at_once, lookup())
        for one, other in zip(with_drafts, without[::every], strict=True):
            assert collected_of(one).token_ids == collected_of(other).token_ids
        assert accepted(with_drafts) > len(with_drafts)


def test_sampled_tokens_and_logprobs_are_those_without_drafts(packed: StepRunner) -> None:
    """Temperature, filters, penalties, bans; alone and together; every token's logprob and its likeliest rivals."""
    kinds = [
        {"temperature": 0.6},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 40},
        {"temperature": 0.5, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
        {"temperature": 0.0, "presence_penalty": 0.5, "min_tokens": 8, "eos_token_ids": (2,)},
        {"temperature": 0.3, "min_p": 0.1, "logit_bias": ((198, 2.0),)},
    ]
    # The long texts: those in which something can be looked up.
    jobs = [
        (entry["ids"], SamplingParams(max_tokens=40, logprobs=2, prompt_logprobs=0, **kinds[index % len(kinds)]))
        for index, entry in enumerate(golden("smollm2")[-10:])
    ]
    without = answers(packed, jobs, 10, None)
    for at_once, count in ((1, 5), (10, 10)):
        with_drafts = answers(packed, jobs[:count], at_once, lookup())
        for one, other in zip(with_drafts, without, strict=count == 10):
            assert tokens_of(one) == tokens_of(other)
            assert one.prompt_logprobs == other.prompt_logprobs
            assert collected_of(one).reason == collected_of(other).reason
        assert accepted(with_drafts) > len(with_drafts)


def check_replayed(runner: StepRunner, prompts: list[list[int]], max_tokens: int) -> None:
    """What came without drafts is drafted, a quarter of it wrong: many long drafts, accepted in part."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=1)
    jobs = [(prompt, params) for prompt in prompts]
    without = answers(runner, jobs, 4, None)
    outputs = [collected_of(request).token_ids for request in without]
    replay = Replay(list(zip(prompts, outputs, strict=True)), 0.25, runner.vocab_size)
    with_drafts = answers(runner, jobs, 4, replay)
    for one, other in zip(with_drafts, without, strict=True):
        assert collected_of(one).token_ids == collected_of(other).token_ids
        for ours, theirs in zip(tokens_of(one), tokens_of(other), strict=True):
            assert ours.logprob.logprob == pytest.approx(theirs.logprob.logprob, abs=1e-4)
    assert len(prompts) * max_tokens / 3 < accepted(with_drafts) < sum(r.num_drafted for r in with_drafts)


def test_drafts_over_pages_of_4_bits() -> None:
    runner = runner_of(smollm2_path(), 40, kernels="native", kv_format=KVFormat("int4", "int4"))
    check_replayed(runner, [entry["ids"] for entry in golden("smollm2")[:6]], 24)


@pytest.mark.parametrize("sliding", [False, True])
def test_drafts_in_plain_torch(sliding: bool) -> None:
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, 250, length).tolist() for length in (3, 15, 16, 17, 40)]
    check_replayed(toy_runner(sliding=sliding), prompts, 48)


def tokens_of(request: Request) -> list[Any]:
    return [token for output in collected_of(request).outputs for token in output.tokens]


def test_measured_costs_are_those_of_a_cpu(packed: StepRunner) -> None:
    """A step of 16 rows takes longer than one of 1 and less than 16 of them."""
    costs = measure_step_costs(packed)
    assert costs.max_rows >= 8
    assert costs.seconds(1) < costs.seconds(costs.max_rows) < costs.max_rows * costs.seconds(1)
