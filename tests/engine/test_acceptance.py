"""Acceptance of drafts on real logits: tokens and logprobs are those that one token at a time would have given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_llm.engine.acceptance import new_tokens, num_sampled_rows
from python_llm.engine.plan import SampledToken, SamplingTask, Span
from python_llm.engine.sampling import sample
from python_llm.engine.sampling_params import SamplingParams

VOCAB = 40
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5, logprobs=0),
    SamplingParams(temperature=1.3, top_p=0.8, min_p=0.02),
    SamplingParams(temperature=0.0, repetition_penalty=1.8, frequency_penalty=0.7, presence_penalty=-0.4),
    SamplingParams(temperature=1.0, presence_penalty=2.0, frequency_penalty=2.0, logprobs=5),
    SamplingParams(temperature=1.0, min_tokens=6, stop_token_ids=(3, 4, 5), eos_token_ids=(6,), logit_bias=((7, 4.0),)),
    SamplingParams(temperature=0.5, bad_words=("x",), bad_words_token_ids=((8,), (1, 2), (2, 2, 1))),
]


class Model:
    """Logits as a function of the history alone, peaked enough that guesses can be right."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def logits(self, history: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((self._seed, *history[-3:])) % 2**31)
        return 3 * torch.randn(VOCAB, generator=generator)


def task(history: list[int], num_prompt: int, params: SamplingParams, seed: int) -> SamplingTask:
    return SamplingTask(params, seed, np.array(history, np.int32), num_prompt, params.logprobs)


def one_by_one(model: Model, prompt: list[int], params: SamplingParams, seed: int, count: int) -> list[SampledToken]:
    history, tokens = list(prompt), []
    for _ in range(count):
        (token,) = sample(model.logits(history)[None], [task(history, len(prompt), params, seed)])
        tokens.append(token)
        history.append(token.token_id)
    return tokens


def span_of(history: list[int], drafts: list[int], num_prompt: int, params: SamplingParams, seed: int) -> Span:
    known = history + drafts
    return Span(
        request_id=0,
        start=len(history) - 1,
        token_ids=np.array(known[len(history) - 1 :], np.int32),
        block_ids=np.array([0], np.int32),
        sampling=task(known, num_prompt, params, seed),
        num_drafts=len(drafts),
    )


def rows_of(model: Model, history: list[int], drafts: list[int]) -> torch.Tensor:
    return torch.stack([model.logits(history + drafts[:n]) for n in range(len(drafts) + 1)])


sequences = st.tuples(
    st.integers(0, 50), st.sampled_from(PARAMS), st.integers(0, 6), st.lists(st.integers(0, VOCAB - 1))
)


@settings(max_examples=150, deadline=None)
@given(st.lists(sequences, min_size=1, max_size=4), st.booleans())
def test_any_drafts_give_the_tokens_and_logprobs_of_one_by_one(
    asked: list[tuple[int, SamplingParams, int, list[int]]], with_chunk: bool
) -> None:
    """Several sequences in one step, each drafted partly right and partly wrong, for all kinds of parameters."""
    spans, logits, expected = [], [], []
    if with_chunk:
        spans.append(Span(9, 0, np.array([1, 2, 3], np.int32), np.array([0], np.int32), sampling=None))
        expected.append(())
    for seed, params, num_right, wrong in asked:
        model, prompt = Model(seed), [1, 2, 1 + seed % 3]
        truth = one_by_one(model, prompt, params, seed, 12)
        right = [token.token_id for token in truth[2 : 2 + num_right]]
        history = prompt + [token.token_id for token in truth[:2]]
        drafts = (right + wrong)[:8]
        spans.append(span_of(history, drafts, len(prompt), params, seed))
        logits.append(rows_of(model, history, drafts))
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == truth[2 + accepted].token_id:
            accepted += 1
        expected.append(tuple(truth[2 : 2 + accepted + 1]))
    assert new_tokens(torch.cat(logits), spans) == expected


def test_rows_that_need_logits() -> None:
    assert num_sampled_rows(span_of([1, 2], [3, 4], 1, PARAMS[0], 0)) == 3
    assert num_sampled_rows(Span(0, 0, np.array([1, 2], np.int32), np.array([0], np.int32), None)) == 0


@pytest.mark.parametrize(
    ("draft", "params"),
    [
        ("likeliest", SamplingParams()),
        ("likeliest", SamplingParams(temperature=0.8, top_k=6, presence_penalty=0.5)),
        ("random", SamplingParams()),
        ("unlikely", SamplingParams()),
    ],
)
def test_the_distribution_is_the_models_whatever_is_drafted(draft: str, params: SamplingParams) -> None:
    """Chi-square over pairs of tokens: the first two of a step, over many seeds."""
    model, prompt, count = Model(3), [1, 2, 3], 4_000
    first = model.logits(prompt)
    guess = {"likeliest": int(first.argmax()), "unlikely": int(first.argmin())}
    rng = np.random.default_rng(0)
    spans, rows = [], []
    for seed in range(count):
        drafts = [guess.get(draft, int(rng.integers(VOCAB)))]
        spans.append(span_of(prompt, drafts, len(prompt), params, seed))
        rows.append(rows_of(model, prompt, drafts))
    results = new_tokens(torch.cat(rows), spans)
    counts = np.bincount([tokens[0].token_id for tokens in results], minlength=VOCAB)
    assert chi_square(counts, probabilities(first, prompt, params)) < 1
    followed = [tokens for tokens in results if len(tokens) == 2]
    if draft == "likeliest":
        accepted = probabilities(first, prompt, params)[guess[draft]]
        assert len(followed) == counts[guess[draft]] == pytest.approx(count * accepted, rel=0.1), "p(x) of them"
        second = np.bincount([tokens[1].token_id for tokens in followed], minlength=VOCAB)
        history = [*prompt, guess[draft]]
        assert chi_square(second, probabilities(model.logits(history), history, params)) < 1


def probabilities(logits: torch.Tensor, history: list[int], params: SamplingParams) -> np.ndarray:
    """float64 [vocab], written out for the parameters used above; the prompt is the first three tokens."""
    values = logits.double().numpy().copy()
    values[list(set(history[3:]))] -= params.presence_penalty
    values /= params.temperature
    if params.top_k:
        values[values < np.sort(values)[-params.top_k]] = -np.inf
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The statistic, as a multiple of what it exceeds by chance once in about 10,000 times."""
    assert counts[expected == 0].sum() == 0
    expected = expected * counts.sum()
    large = expected >= 5
    observed = [*counts[large], counts[~large].sum()]
    wanted = [*expected[large], expected[~large].sum()]
    statistic = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True) if w > 0)
    freedom = max(1, len(observed) - 1)
    return float(statistic / (freedom + 3.72 * (2 * freedom) ** 0.5 + 4.6))
