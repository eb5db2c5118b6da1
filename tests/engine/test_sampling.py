"""Sampling against a naive oracle that sorts everything, against transformers' own processors, and as a distribution.

The exact test of a distribution needs no statistics: the sampler inverts a CDF, so a number in the middle of a token's
share of [0, 1) must give that token, for every token that has a share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_llm.engine import token_choice
from python_llm.engine.largest import largest
from python_llm.engine.plan import PromptLogprobsTask, SampledToken, SamplingTask
from python_llm.engine.sampling import prompt_logprobs, sample, sequence_seed, uniform
from python_llm.engine.sampling_params import SamplingParams

INF = math.inf


def task(
    params: SamplingParams,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
    seed: int = 0,
    logprobs: int | None = None,
) -> SamplingTask:
    return SamplingTask(params, seed, np.array([*prompt, *output], dtype=np.int32), len(prompt), logprobs)


def random_logits(rows: int, vocab: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (rows, vocab)).astype(np.float32))


def tokens_of(sampled: Sequence[SampledToken]) -> list[int]:
    return [token.token_id for token in sampled]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def oracle_processed(logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]) -> np.ndarray:
    logits = logits.astype(np.float64)
    for token_id, bias in params.logit_bias:
        logits[token_id] += bias
    if len(output) < params.min_tokens:
        for token_id in (*params.stop_token_ids, *params.eos_token_ids):
            logits[token_id] = -INF
    for word in params.bad_words_token_ids:
        if [*output, word[-1]][-len(word) :] == list(word):
            logits[word[-1]] = -INF
    for token_id in set(prompt + output):
        if logits[token_id] < 0:
            logits[token_id] *= params.repetition_penalty
        else:
            logits[token_id] /= params.repetition_penalty
    for token_id, count in Counter(output).items():
        logits[token_id] -= params.frequency_penalty * count + params.presence_penalty
    return logits


def oracle_distribution(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: Sequence[int] = (0,),
    output: Sequence[int] = (),
) -> np.ndarray:
    logits = oracle_processed(logits, params, list(prompt), list(output)) / params.temperature
    logits[softmax(logits) < params.min_p * softmax(logits).max()] = -INF
    if 0 < params.top_k < len(logits):
        logits[logits < np.sort(logits)[-params.top_k]] = -INF
    order = np.argsort(-logits, kind="stable")
    mass_before = np.concatenate([[0.0], np.cumsum(softmax(logits)[order])[:-1]])
    kept = logits[order][mass_before < params.top_p]
    logits[logits < kept.min()] = -INF
    return softmax(logits)


def assert_same_distribution(logits: np.ndarray, expected: np.ndarray, make: Callable[[int], SamplingTask]) -> None:
    """`make(i)` is the task with seed i; its number is put in the middle of the i-th possible token's share."""
    possible = np.flatnonzero(expected > 1e-7)
    ends = np.cumsum(expected)
    numbers = [ends[token_id] - expected[token_id] / 2 for token_id in possible]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_choice, "uniform", lambda seed, index: numbers[seed])
        rows = torch.from_numpy(np.repeat(logits[None].astype(np.float32), len(numbers), 0))
        assert tokens_of(sample(rows, [make(i) for i in range(len(numbers))])) == possible.tolist()


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.5, 5.0]),
    top_k=st.sampled_from([0, 0, 1, 3, 40, 255, 256, 257, 10**6]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.3]),
    logit_bias=st.sampled_from([(), ((3, 4.0), (5, -100.0))]),
    min_tokens=st.sampled_from([0, 4]),
    eos_token_ids=st.just((2,)),
    stop_token_ids=st.sampled_from([(), (7,)]),
    bad_words_token_ids=st.sampled_from([(), ((4,), (1, 6), (0, 1, 8))]),
)


@settings(max_examples=150, deadline=None)
@given(
    params=params_strategy,
    shape=st.tuples(st.sampled_from([9, 64, 130, 700, 3000]), st.sampled_from([0.05, 1.0, 3.0])),
    seed=st.integers(0, 2**32 - 1),
    prompt=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    output=st.lists(st.integers(0, 8), max_size=6),
)
def test_distribution_equals_the_oracle(
    params: SamplingParams, shape: tuple[int, float], seed: int, prompt: list[int], output: list[int]
) -> None:
    vocab, scale = shape
    logits = random_logits(1, vocab, seed, scale)[0].numpy()
    expected = oracle_distribution(logits, params, prompt, output)
    assert_same_distribution(logits, expected, lambda i: task(params, prompt, output, seed=i))


@settings(max_examples=100, deadline=None)
@given(
    top_k=st.sampled_from([0, 1, 3, 256]),
    top_p=st.sampled_from([1.0, 0.01, 0.55, 0.9]),
    min_p=st.sampled_from([0.0, 0.02, 0.35, 1.0]),
    values=st.lists(st.sampled_from([-INF, -2.0, 0.0, 1.0]), min_size=9, max_size=700),
)
def test_equal_logits_are_kept_or_dropped_together(top_k: int, top_p: float, min_p: float, values: list[float]) -> None:
    logits = np.array([0.5, *values], dtype=np.float32)
    params = SamplingParams(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = oracle_distribution(logits, params)
    drawn = (np.arange(200) + 0.5) / 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_choice, "uniform", lambda seed, index: drawn[seed])
        rows = torch.from_numpy(np.repeat(logits[None], len(drawn), 0))
        tokens = set(tokens_of(sample(rows, [task(params, seed=i) for i in range(len(drawn))])))
    assert all(expected[token_id] > 0 for token_id in tokens)
    assert tokens >= set(np.flatnonzero(expected > 1 / 200).tolist())


@pytest.mark.parametrize("vocab", [50, 1000])
@pytest.mark.parametrize(
    "settings_", [{"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}, {"min_p": 0.01, "top_k": 20, "top_p": 0.7}]
)
def test_filters_equal_transformers(vocab: int, settings_: dict[str, float]) -> None:
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = random_logits(1, vocab, seed=3, scale=1.0)
    params = SamplingParams(temperature=1.3, **settings_)  # type: ignore[arg-type]
    scores = TemperatureLogitsWarper(1.3)(None, logits)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(None, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(None, scores)
    expected = torch.softmax(scores[0].double(), -1).numpy()
    assert 1 < np.count_nonzero(expected) < vocab
    assert_same_distribution(logits[0].numpy(), expected, lambda i: task(params, seed=i))


@pytest.mark.parametrize("penalty", [1.7, 0.6])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    logits, history = random_logits(1, 40, seed=5), torch.tensor([[3, 3, 9, 12, 30, 31]])
    expected = torch.softmax(RepetitionPenaltyLogitsProcessor(penalty)(history, logits.clone())[0].double(), -1).numpy()
    params = SamplingParams(repetition_penalty=penalty)
    assert_same_distribution(
        logits[0].numpy(), expected, lambda i: task(params, prompt=[3, 3, 9], output=[12, 30, 31], seed=i)
    )


GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize(
    ("change", "prompt", "output", "expected"),
    [
        ({}, [0], [], 1),
        ({"logit_bias": ((4, 10.0),)}, [0], [], 4),
        ({"min_tokens": 1, "eos_token_ids": (1,)}, [0], [], 2),
        ({"min_tokens": 1, "eos_token_ids": (1,)}, [0], [5], 1),
        ({"min_tokens": 1, "stop_token_ids": (1, 2)}, [0], [], 3),
        ({"min_tokens": 1, "eos_token_ids": (1,), "ignore_eos": True}, [0], [], 2),
        ({"eos_token_ids": (1,), "ignore_eos": True}, [0], [], 1),
        ({"bad_words_token_ids": ((1,),)}, [0], [], 2),
        ({"bad_words_token_ids": ((5, 1),)}, [0], [5], 2),
        ({"bad_words_token_ids": ((5, 1),)}, [5], [], 1),
        ({"bad_words_token_ids": ((5, 5, 1),)}, [5], [5], 1),
        ({"repetition_penalty": 10.0}, [1], [], 2),
        ({"repetition_penalty": 10.0}, [0], [1], 2),
        ({"presence_penalty": 2.0}, [0], [1, 1, 2], 3),
        ({"presence_penalty": 2.0}, [1, 2], [], 1),
        ({"frequency_penalty": 0.6}, [0], [1], 1),
        ({"frequency_penalty": 0.6}, [0], [1, 1], 2),
        ({"frequency_penalty": 0.6}, [1, 1], [1], 1),
    ],
)
def test_effect_on_greedy_choice(
    change: dict[str, object], prompt: list[int], output: list[int], expected: int
) -> None:
    logits = torch.tensor([[-1.0, 4.0, 3.0, 2.5, -2.0, -3.0]])
    params = SamplingParams(temperature=0, **change)  # type: ignore[arg-type]
    assert tokens_of(sample(logits, [task(params, prompt, output)])) == [expected]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 2])
def test_when_every_token_is_banned_the_bans_rest(temperature: float, top_k: int) -> None:
    params = SamplingParams(
        temperature=temperature, top_k=top_k, bad_words_token_ids=((0,), (2,)), min_tokens=1, eos_token_ids=(1,)
    )
    assert tokens_of(sample(torch.tensor([[0.0, 90.0, 1.0]]), [task(params)])) == [1]
    # Nor is a token chosen that the model itself rules out.
    assert tokens_of(sample(torch.tensor([[0.0, -90.0, 1.0, -INF]]), [task(params)])) in ([0], [2])


@pytest.mark.parametrize("bad", [-INF, INF, math.nan])
@pytest.mark.parametrize("change", [{}, {"top_k": 3}, {"top_p": 0.5}, {"temperature": 0}])
def test_hopeless_logits_give_a_token_and_harm_no_other_row(bad: float, change: dict[str, float]) -> None:
    params = SamplingParams(**change)  # type: ignore[arg-type]
    logits = torch.full((2, 300), bad)
    logits[1] = -INF
    logits[1, 7] = 0.0
    tokens = tokens_of(sample(logits, [task(params), task(params)]))
    assert 0 <= tokens[0] < 300 and tokens[1] == 7


@pytest.mark.parametrize("vocab", [3, 63, 64, 65, 200, 49152])
def test_greedy_takes_the_lowest_id_of_equals(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = torch.from_numpy(rng.integers(0, 3 if vocab < 1000 else 10**6, (50, vocab)).astype(np.float32))
    expected = logits.numpy().argmax(-1).tolist()
    assert tokens_of(sample(logits.clone(), [task(GREEDY)] * 50)) == expected
    assert tokens_of(sample(logits[:1].clone(), [task(GREEDY)])) == expected[:1]
    # In the part of a row that is not a whole block, too.
    logits[:, -1] = 10**7
    assert tokens_of(sample(logits, [task(GREEDY)] * 50)) == [vocab - 1] * 50


@pytest.mark.parametrize("size", [70, 20_000, 20_037])
@pytest.mark.parametrize("k", [1, 21, 64])
@pytest.mark.parametrize("kinds", [3, 10**6])
def test_largest_finds_what_topk_finds(size: int, k: int, kinds: int) -> None:
    rows = torch.from_numpy(np.random.default_rng(k).integers(0, kinds, (4, size)).astype(np.float32))
    rows[2, -1] = 2.0 * kinds
    values, places = largest(rows, k)
    assert torch.equal(values, rows.topk(k).values)
    assert torch.equal(rows.gather(1, places), values)
    assert all(len(set(row)) == k for row in places.tolist())


def test_tiny_temperature_is_nearly_greedy_and_finite() -> None:
    logits = random_logits(20, 500, seed=8)
    best = logits.argmax(-1).tolist()
    assert tokens_of(sample(logits, [task(SamplingParams(temperature=2e-5), seed=i) for i in range(20)])) == best


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize("change", [{}, {"top_k": 6}, {"top_p": 0.9}])
def test_frequencies(temperature: float, change: dict[str, float]) -> None:
    """Pearson's chi-square over seeds, then over positions of one sequence. All numbers are fixed: it cannot flake."""
    params = SamplingParams(temperature=temperature, **change)  # type: ignore[arg-type]
    logits = random_logits(1, 12, seed=11, scale=1.0)
    expected = oracle_distribution(logits[0].numpy(), params)
    draws = 4000
    history = np.zeros(draws + 1, dtype=np.int32)
    by_seed = [SamplingTask(params, seed, history[:1], 1, None) for seed in range(draws)]
    by_position = [SamplingTask(params, 1234, history[: 1 + i], 1, None) for i in range(draws)]
    for tasks in (by_seed, by_position):
        counts = np.bincount(tokens_of(sample(logits.repeat(draws, 1), tasks)), minlength=12)
        assert counts[expected == 0].sum() == 0
        kept = expected > 0
        chi_square = ((counts[kept] - draws * expected[kept]) ** 2 / (draws * expected[kept])).sum()
        freedom = np.count_nonzero(kept) - 1
        # Mean and variance of chi-square are f and 2f; four deviations.
        assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def mixed_tasks(rows: int, vocab: int) -> list[SamplingTask]:
    kinds = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, repetition_penalty=1.5),
        SamplingParams(),
        SamplingParams(top_p=0.95),
        SamplingParams(top_p=0.95, temperature=3.0),
        SamplingParams(top_k=300, temperature=2.0),
        SamplingParams(top_k=5, min_p=0.1),
        SamplingParams(frequency_penalty=1.0, logit_bias=((3, 5.0),)),
    ]
    rng = np.random.default_rng(0)
    return [
        task(
            kinds[i % len(kinds)],
            prompt=rng.integers(0, vocab, 5).tolist(),
            output=rng.integers(0, vocab, i % 7).tolist(),
            seed=i,
            logprobs=(None, 0, 3)[i % 3],
        )
        for i in range(rows)
    ]


@pytest.mark.parametrize("vocab", [1000, 49152])
def test_batch_mates_and_their_order_change_nothing(vocab: int) -> None:
    rows = 24
    logits, tasks = random_logits(rows, vocab, seed=1), mixed_tasks(rows, vocab)
    together = sample(logits.clone(), tasks)
    alone = [sample(logits[i : i + 1].clone(), tasks[i : i + 1])[0] for i in range(rows)]
    order = np.random.default_rng(2).permutation(rows).tolist()
    shuffled = sample(logits[order].clone(), [tasks[i] for i in order])
    assert together == alone
    assert shuffled == [together[i] for i in order]


def test_seeds_decide() -> None:
    logits = random_logits(1, 2000, seed=4)
    drawn = [
        tokens_of(sample(logits.repeat(2, 1), [task(SamplingParams(), seed=seed) for seed in (i, i + 1)]))
        for i in range(50)
    ]
    assert [pair[1] for pair in drawn[:-1]] == [pair[0] for pair in drawn[1:]]
    assert len({pair[0] for pair in drawn}) > 10


@pytest.mark.parametrize("stream", [0, 1, 2**64 - 1])
def test_uniform_is_numpys_philox(stream: int) -> None:
    for seed in (0, 1, 2**63, 2**64 - 1):
        for index in (1, 2, 12345):
            words = np.random.Philox(key=seed | stream << 64, counter=index - 1).random_raw()
            assert uniform(seed, index, stream) == (words >> 11) * 2.0**-53
    assert uniform(-5, 3) == uniform(2**64 - 5, 3)


def test_uniform_is_uniform_and_streams_differ() -> None:
    numbers = np.array([[uniform(7, i, stream) for i in range(4000)] for stream in (0, 1)])
    assert ((numbers >= 0) & (numbers < 1)).all()
    for row in numbers:
        counts, _ = np.histogram(row, bins=20, range=(0, 1))
        assert ((counts - 200) ** 2 / 200).sum() < 19 + 4 * math.sqrt(38)
    assert abs(np.corrcoef(numbers)[0, 1]) < 4 / math.sqrt(4000)
    assert abs(np.corrcoef(numbers[0, 1:], numbers[0, :-1])[0, 1]) < 4 / math.sqrt(3999)


def test_sequence_seeds() -> None:
    four = [sequence_seed(42, i) for i in range(4)]
    assert len(set(four)) == 4 and four == [sequence_seed(42, i) for i in range(4)]
    assert not set(four) & {sequence_seed(43, i) for i in range(4)}
    assert all(0 <= seed < 2**64 for seed in four)
    assert sequence_seed(-3, 0) == sequence_seed(2**64 - 3, 0)
    assert len({sequence_seed(None, 0) for _ in range(10)}) == 10


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    top=st.integers(0, 20),
    vocab=st.sampled_from([10, 300]),
    temperature=st.sampled_from([0.0, 0.5]),
    ties=st.booleans(),
)
def test_logprobs_are_of_the_unmodified_distribution(
    seed: int, top: int, vocab: int, temperature: float, ties: bool
) -> None:
    logits = random_logits(3, vocab, seed)
    if ties:
        logits = logits.round()
    raw = logits.numpy().copy()
    params = SamplingParams(temperature=temperature, repetition_penalty=1.8, logit_bias=((5, 7.0),), top_k=5)
    sampled = sample(logits, [task(params, prompt=[1, 2], seed=i, logprobs=top) for i in range(3)])
    for row, token in zip(raw.astype(np.float64), sampled, strict=True):
        expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert token.logprob is not None and token.logprob.token_id == token.token_id
        assert token.logprob.logprob == pytest.approx(expected[token.token_id], abs=1e-6)
        assert token.logprob.rank == 1 + np.count_nonzero(row > row[token.token_id])
        best = sorted(range(vocab), key=lambda i: (-row[i], i))[:top]
        assert [entry.token_id for entry in token.top] == best
        assert [entry.rank for entry in token.top] == [1 + np.count_nonzero(row > row[i]) for i in best]
        np.testing.assert_allclose([entry.logprob for entry in token.top], expected[best], atol=1e-6)


def test_logprobs_only_for_those_who_ask() -> None:
    sampled = sample(random_logits(3, 50), [task(GREEDY, logprobs=wanted) for wanted in (None, 0, 2)])
    assert sampled[0].logprob is None and sampled[0].top == ()
    assert sampled[1].logprob is not None and sampled[1].top == ()
    assert sampled[2].logprob is not None and len(sampled[2].top) == 2
    assert sampled[2].top[0] == sampled[2].logprob


def test_prompt_logprobs_equal_log_softmax() -> None:
    logits = random_logits(6, 200, seed=9)
    targets = np.array([3, 3, 150, 0, 199, 7], dtype=np.int32)
    answers = prompt_logprobs(logits.clone(), PromptLogprobsTask(targets, top=4))
    expected = torch.log_softmax(logits.double(), -1)
    for row, target, answer in zip(expected, targets.tolist(), answers, strict=True):
        assert answer.target.token_id == target
        assert answer.target.logprob == pytest.approx(row[target].item(), abs=1e-6)
        assert answer.target.rank == 1 + int((row > row[target]).sum())
        assert [entry.token_id for entry in answer.top] == row.topk(4).indices.tolist()
    parts = [prompt_logprobs(logits[a:b].clone(), PromptLogprobsTask(targets[a:b], top=4)) for a, b in ((0, 1), (1, 6))]
    assert parts[0] + parts[1] == answers


def test_prompt_logprobs_of_nothing() -> None:
    assert prompt_logprobs(random_logits(0, 10), PromptLogprobsTask(np.zeros(0, dtype=np.int32), top=2)) == ()
