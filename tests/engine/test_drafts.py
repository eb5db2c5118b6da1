"""The engine with drafts, on a runner without a model: drafts of any kind change the number of steps, nothing else."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from collected import Collected
from fake_engine import greedy, prompt_of, running_engine, submit
from fake_runner import EOS, FakeRunner, expected_output
from guessing import Faulty, Listening, Oracle, speculator_of
from python_llm.engine.blocks import BlockPool
from python_llm.engine.drafts import Opening
from python_llm.engine.engine import Engine
from python_llm.engine.request import FinishReason, Request, RequestState
from python_llm.engine.sampling_params import SamplingParams
from python_llm.engine.scheduler import Scheduler
from python_llm.engine.text import TextStream
from python_llm.errors import CancelledError, InvalidRequestError


def test_right_drafts_save_steps() -> None:
    runner = FakeRunner()
    with running_engine(runner, speculator=speculator_of(Oracle())) as engine:
        prompt = prompt_of(10)
        request, collected = submit(engine, prompt, greedy(40))
        assert collected.wait().token_ids == expected_output(prompt, greedy(40))
        load = engine.load()
    assert len(runner.plans) == 8, "five tokens a step"
    assert (request.num_drafted, request.num_accepted) == (32, 32) == (load.num_drafted, load.num_accepted)


def test_wrong_drafts_cost_no_token() -> None:
    runner = FakeRunner()
    with running_engine(runner, speculator=speculator_of(Oracle(error=1.0))) as engine:
        prompt = prompt_of(10)
        request, collected = submit(engine, prompt, greedy(40))
        assert collected.wait().token_ids == expected_output(prompt, greedy(40))
    assert len(runner.plans) == 40
    assert request.num_accepted == 0 < request.num_drafted


@pytest.mark.parametrize("proposer", [Oracle(), Oracle(error=0.3), Faulty(error=0.1)], ids=["right", "mixed", "faulty"])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_random_company(proposer: Listening, enable_prefix_caching: bool) -> None:
    """Arrivals, lengths, shared prefixes, seeds, cancellations, preemption: nobody's tokens and logprobs change."""
    rng = random.Random(7)
    runner = FakeRunner(num_blocks=30, max_model_len=120)
    prefixes = [prompt_of(rng.randrange(4, 40), seed=i) for i in range(4)]
    # On a fast clock: the pause after each failure would leave little to test.
    speculator = speculator_of(proposer, num_draft_tokens=7, clock=lambda: 10_000 * time.perf_counter())
    with running_engine(runner, speculator=speculator, enable_prefix_caching=enable_prefix_caching) as engine:
        jobs = []
        for index in range(150):
            prompt = rng.choice(prefixes)[: rng.randrange(1, 40)] + prompt_of(rng.randrange(1, 30), seed=1000 + index)
            params = SamplingParams(
                max_tokens=rng.randrange(1, 40),
                temperature=rng.choice([0.0, 1.0]),
                eos_token_ids=(EOS,),
                min_tokens=rng.choice([0, 0, 3]),
                logprobs=rng.choice([None, 0]),
                prompt_logprobs=rng.choice([None, None, 0]),
                num_draft_tokens=rng.choice([None, None, 0, 3, 32]),
                speculation=rng.choice([None, "off", "prompt_lookup"]),
            )
            request, collected = submit(engine, prompt, params, seed=index)
            cancelled = rng.random() < 0.2
            jobs.append((prompt, params, index, cancelled, request, collected))
            if cancelled:
                threading.Timer(rng.random() * 0.02, engine.cancel, [[request]]).start()
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.001)
        for prompt, params, seed, cancelled, request, collected in jobs:
            collected.wait()
            expected = expected_output(prompt, params, seed, eos=EOS)
            if collected.error is not None:
                assert cancelled and isinstance(collected.error, CancelledError)
                assert collected.token_ids == expected[: len(collected.token_ids)]
                continue
            assert collected.token_ids == expected
            assert collected.reason is (FinishReason.STOP if expected[-1] == EOS else FinishReason.LENGTH)
            if params.logprobs is not None:
                logprobs = [t.logprob.logprob for o in collected.outputs for t in o.tokens if t.logprob]
                assert logprobs == [-float(i) for i in range(len(expected))]
            if params.prompt_logprobs is not None:
                assert [p.target.token_id for p in request.prompt_logprobs] == prompt[1:]
                assert [p.target.logprob for p in request.prompt_logprobs] == [
                    -float(i) for i in range(len(prompt) - 1)
                ]
            if params.speculation == "off" or params.num_draft_tokens == 0:
                assert request.num_drafted == 0
    requests = [request for *_, request, _ in jobs]
    assert sum(request.num_preemptions for request in requests) > 10, "the pool was meant to be too small"
    assert sum(request.num_accepted for request in requests) > 100
    assert not speculator._methods["prompt_lookup"].sequences, "ended sequences are forgotten"
    assert not proposer.known


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6, 11])
def test_max_tokens_within_an_accepted_run(max_tokens: int) -> None:
    runner = FakeRunner(num_blocks=4, block_size=4, max_model_len=16)
    with running_engine(runner, speculator=speculator_of(Oracle(), num_draft_tokens=32)) as engine:
        _, collected = submit(engine, [1, 2, 3, 4, 5], greedy(max_tokens))
        assert collected.wait().token_ids == expected_output([1, 2, 3, 4, 5], greedy(max_tokens))
        assert collected.reason is FinishReason.LENGTH
    assert max(span.end for plan in runner.plans for span in plan.spans) <= 5 + max_tokens - 1


def test_end_of_sequence_and_stop_tokens_within_an_accepted_run() -> None:
    runner = FakeRunner(vocab_size=5)
    with running_engine(runner, speculator=speculator_of(Oracle(vocab_size=5), vocab_size=5)) as engine:
        prompt = [1, 2, 3]
        free = expected_output(prompt, greedy(30), vocab_size=5)
        first = free.index(EOS)
        later = free.index(EOS, first + 1)
        for params, length in (
            (greedy(30, eos_token_ids=(EOS,)), first + 1),
            (greedy(30, eos_token_ids=(EOS,), min_tokens=first + 2), later + 1),
            (greedy(30, stop_token_ids=(3,)), free.index(3) + 1),
        ):
            request, collected = submit(engine, prompt, params)
            assert collected.wait().token_ids == free[:length]
            assert collected.reason is FinishReason.STOP
            assert request.num_accepted <= length


def submit_with_text(engine: Engine, prompt: list[int], params: SamplingParams) -> Collected:
    collected = Collected()
    text = TextStream(lambda token_id: bytes([token_id]), (), params)
    engine.submit([Request(np.array(prompt, np.int32), params, seed=0, max_new_tokens=30, sink=collected, text=text)])
    return collected


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 5, 8, 15])
@pytest.mark.parametrize("error", [0.0, 0.2])
def test_stop_string_within_an_accepted_run(num_draft_tokens: int, error: float) -> None:
    """The text ends at the stop string, wherever in a run it is; pages of what lay behind it harm nobody."""
    runner = FakeRunner()
    speculator = speculator_of(Oracle(error=error), num_draft_tokens=num_draft_tokens)
    with running_engine(runner, speculator=speculator) as engine:
        prompt = prompt_of(9)
        free = expected_output(prompt, greedy(30))
        whole = bytes(free).decode()
        for begin in range(3, 16):
            stop = bytes(free[begin : begin + 3]).decode()
            collected = submit_with_text(engine, prompt, greedy(30, stop=(stop,)))
            assert "".join(output.text for output in collected.wait().outputs) == whole[: whole.index(stop)]
            assert collected.reason is FinishReason.STOP
            assert collected.token_ids == free[: whole.index(stop) + 3], "nothing after the stop string is counted"
        for length in (5, 10, 13, 20):
            longer = prompt + free[:length]
            request, continued = submit(engine, longer, greedy(10))
            assert continued.wait().token_ids == expected_output(longer, greedy(10))
            assert request.num_cached_tokens > 0


def test_a_page_of_rejected_drafts_is_never_shared() -> None:
    """Prompts that go on as the wrong drafts did must not find pages that those left behind."""
    runner = FakeRunner(num_blocks=200)
    prompt = prompt_of(9)
    wrong = [50 + i for i in range(12)]

    class Wrong(Listening):
        def guess(self, ask: Any, known: list[int]) -> list[int]:
            return wrong[: ask.most]

    with running_engine(
        runner, speculator=speculator_of(Wrong(), num_draft_tokens=12), max_num_batched_tokens=64
    ) as engine:
        _, collected = submit(engine, prompt, greedy(20))
        output = collected.wait().token_ids
        for length in range(15):
            longer = prompt + output[:length] + wrong
            request, continued = submit(engine, longer, greedy(3))
            assert continued.wait().token_ids == expected_output(longer, greedy(3))
            shared = sum(a == b for a, b in zip(longer, prompt + output, strict=False))
            assert request.num_cached_tokens <= shared


def test_drafts_take_only_what_is_left_of_the_budget() -> None:
    runner = FakeRunner(num_blocks=200)
    with running_engine(
        runner, speculator=speculator_of(Oracle(), num_draft_tokens=8), max_num_batched_tokens=8
    ) as engine:
        jobs = [(prompt_of(30, seed=i), *submit(engine, prompt_of(30, seed=i), greedy(20))) for i in range(6)]
        for prompt, _, collected in jobs:
            assert collected.wait().token_ids == expected_output(prompt, greedy(20))
    assert max(plan.num_tokens for plan in runner.plans) == 8
    for plan in runner.plans:
        if any(span.num_drafts for span in plan.spans):
            assert sum(len(span.token_ids) for span in plan.spans if span.sampling is None) == 0 or plan.num_tokens <= 8


def test_drafts_preempt_nobody() -> None:
    """With room for two sequences to the token, drafts shrink to nothing rather than push one out."""
    runner = FakeRunner(num_blocks=10, block_size=4, max_model_len=20)
    with running_engine(runner, speculator=speculator_of(Oracle(error=0.5), num_draft_tokens=16)) as engine:
        jobs = [(prompt_of(8, seed=i), *submit(engine, prompt_of(8, seed=i), greedy(12))) for i in range(2)]
        for prompt, request, collected in jobs:
            assert collected.wait().token_ids == expected_output(prompt, greedy(12))
            assert request.num_preemptions == 0
        assert sum(request.num_accepted for _, request, _ in jobs) > 0


def test_methods_that_were_not_loaded_are_refused() -> None:
    with running_engine(FakeRunner()) as engine:
        submit(engine, [1], greedy(1, speculation="off"))[1].wait()
        with pytest.raises(InvalidRequestError, match=r"speculation must be one of off for .* got 'prompt_lookup'"):
            submit(engine, [1], greedy(1, speculation="prompt_lookup"))


def test_a_request_can_ask_for_speculation_where_the_default_is_off() -> None:
    with running_engine(FakeRunner(), speculator=speculator_of(Oracle(), default="off")) as engine:
        silent, collected = submit(engine, [1], greedy(10))
        asking, other = submit(engine, [2], greedy(10, speculation="prompt_lookup"))
        collected.wait()
        other.wait()
    assert silent.num_drafted == 0 < asking.num_drafted


@pytest.mark.parametrize("method", ["draft", "forget"])
def test_a_broken_speculator_is_dropped_and_requests_go_on(method: str) -> None:
    errors: list[str] = []
    speculator = speculator_of(Oracle())

    def broken(*args: object) -> None:
        raise RuntimeError("lost the thread")

    setattr(speculator, method, broken)
    engine = Engine(
        FakeRunner(),
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_queue_size=10,
        enable_prefix_caching=True,
        log_error=errors.append,
        speculator=speculator,
    )
    engine.start()
    for _ in range(2):
        _, collected = submit(engine, [1, 2], greedy(10))
        assert collected.wait().token_ids == expected_output([1, 2], greedy(10))
    engine.check()
    engine.stop()
    assert len(errors) == 1 and "lost the thread" in errors[0]


class DraftingScheduler(RuleBasedStateMachine):
    """The scheduler and the runner, step by step, with drafts that hypothesis makes up."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = FakeRunner(num_blocks=14, block_size=4, max_model_len=40, vocab_size=11)
        self.scheduler = Scheduler(
            BlockPool(14), block_size=4, max_num_seqs=4, max_num_batched_tokens=12, enable_prefix_caching=True
        )
        self.jobs: list[tuple[list[int], SamplingParams, Request, Collected]] = []

    @rule(
        prompt=st.lists(st.integers(1, 3), min_size=1, max_size=20),
        max_tokens=st.integers(1, 20),
        temperature=st.sampled_from([0.0, 1.0]),
    )
    def add(self, prompt: list[int], max_tokens: int, temperature: float) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, eos_token_ids=(EOS,))
        collected = Collected()
        request = Request(
            np.array(prompt, np.int32), params, seed=len(self.jobs), max_new_tokens=max_tokens, sink=collected
        )
        self.scheduler.add(request)
        self.jobs.append((prompt, params, request, collected))

    @precondition(lambda self: self.scheduler.has_requests)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        plan = self.scheduler.plan()

        def draft(opening: Opening) -> np.ndarray:
            prompt, params, request, _ = next(job for job in self.jobs if job[2] is opening.request)
            expected = expected_output(prompt, params, request.seed, vocab_size=11)[request.num_output :]
            right = expected[: data.draw(st.integers(0, 6))]
            return np.array(right + data.draw(st.lists(st.integers(0, 10), max_size=6)), dtype=np.int32)

        openings = self.scheduler.openings(plan)
        assert all(opening.most > 0 for opening in openings)
        before = {request.id: request.num_preemptions for _, _, request, _ in self.jobs}
        plan = self.scheduler.add_drafts(plan, {opening.request.id: draft(opening) for opening in openings})
        assert plan.num_tokens <= 12
        last = {job[2].id: job[2].max_tokens for job in self.jobs}
        assert all(span.end < last[span.request_id] for span in plan.spans if span.num_drafts)
        assert before == {request.id: request.num_preemptions for _, _, request, _ in self.jobs}
        for output in self.scheduler.commit(plan, self.runner.execute(plan)):
            output.request.sink(output)

    @precondition(lambda self: any(job[2].state is not RequestState.FINISHED for job in self.jobs))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = [job[2] for job in self.jobs if job[2].state is not RequestState.FINISHED]
        request = data.draw(st.sampled_from(live))
        output = self.scheduler.finish(request, CancelledError("gone"))
        assert output is not None
        request.sink(output)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        self.scheduler.check()

    @invariant()
    def everybody_has_their_own_tokens(self) -> None:
        for prompt, params, request, collected in self.jobs:
            expected = expected_output(prompt, params, request.seed, vocab_size=11, eos=EOS)
            assert collected.token_ids == expected[: len(collected.token_ids)]
            if collected.done.is_set() and collected.error is None:
                assert collected.token_ids == expected

    def teardown(self) -> None:
        for _ in range(1000):
            if not self.scheduler.has_requests:
                break
            plan = self.scheduler.plan()
            for output in self.scheduler.commit(plan, self.runner.execute(plan)):
                output.request.sink(output)
        assert not self.scheduler.has_requests
        self.everybody_has_their_own_tokens()
        self.scheduler.check()


TestDraftingScheduler = DraftingScheduler.TestCase
TestDraftingScheduler.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
