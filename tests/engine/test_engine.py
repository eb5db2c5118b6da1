"""The engine on a runner without a model (see fake_runner): every output is compared with the same sequence alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from collected import Collected
from fake_engine import greedy, prompt_of, running_engine, submit
from fake_runner import EOS, FakeRunner, expected_output
from python_llm.engine.engine import Engine
from python_llm.engine.plan import StepPlan
from python_llm.engine.request import FinishReason, Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.engine.text import TextStream
from python_llm.errors import CancelledError, EngineError, InvalidRequestError, UnavailableError


def hold_first_step(runner: FakeRunner) -> tuple[threading.Event, threading.Event]:
    """The runner's first step says that it began and waits to be let go."""
    began, go = threading.Event(), threading.Event()

    def before_step(plan: StepPlan) -> None:
        began.set()
        assert go.wait(20)

    runner.before_step = before_step
    return began, go


def test_one_request() -> None:
    runner = FakeRunner()
    with running_engine(runner) as engine:
        prompt = prompt_of(10)
        _, collected = submit(engine, prompt, greedy())
        assert collected.wait().token_ids == expected_output(prompt, greedy())
        assert collected.reason is FinishReason.LENGTH


def test_long_prompt_is_computed_in_chunks_within_the_budget() -> None:
    runner = FakeRunner()
    with running_engine(runner, max_num_batched_tokens=7) as engine:
        prompt = prompt_of(50)
        _, collected = submit(engine, prompt, greedy())
        assert collected.wait().token_ids == expected_output(prompt, greedy())
    assert max(plan.num_tokens for plan in runner.plans) == 7


def test_decoding_requests_are_served_before_prompt_chunks() -> None:
    runner = FakeRunner()
    runner.before_step = lambda plan: time.sleep(0.002)
    with running_engine(runner, max_num_batched_tokens=8) as engine:
        long_lived, first = submit(engine, prompt_of(3), greedy(40))
        while not first.outputs:
            time.sleep(0.001)
        submit(engine, prompt_of(100, seed=1), greedy(2))[1].wait()
        first.wait()
    steps = [plan for plan in runner.plans if any(span.request_id == long_lived.id for span in plan.spans)]
    assert len(steps) == 40, "one token in each step of its life"
    assert any(plan.num_tokens == 8 for plan in steps), "with a prompt chunk beside it"


def test_random_company() -> None:
    """Arrivals, lengths, shared prefixes, cancellations and preemption: nobody's tokens change."""
    rng = random.Random(7)
    runner = FakeRunner(num_blocks=30, max_model_len=120)
    prefixes = [prompt_of(rng.randrange(4, 40), seed=i) for i in range(4)]
    with running_engine(runner) as engine:
        jobs = []
        for index in range(200):
            prompt = rng.choice(prefixes)[: rng.randrange(1, 40)] + prompt_of(rng.randrange(1, 30), seed=1000 + index)
            params = SamplingParams(
                max_tokens=rng.randrange(1, 40),
                temperature=rng.choice([0.0, 1.0]),
                eos_token_ids=(EOS,),
                min_tokens=rng.choice([0, 0, 3]),
            )
            request, collected = submit(engine, prompt, params, seed=index)
            cancelled = rng.random() < 0.2
            jobs.append((prompt, params, index, cancelled, collected))
            if cancelled:
                threading.Timer(rng.random() * 0.02, engine.cancel, [[request]]).start()
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)
        preemptions = 0
        for prompt, params, seed, cancelled, collected in jobs:
            collected.wait()
            expected = expected_output(prompt, params, seed, eos=EOS)
            if collected.error is not None:
                assert cancelled and isinstance(collected.error, CancelledError)
                assert collected.token_ids == expected[: len(collected.token_ids)]
            else:
                assert collected.token_ids == expected
                assert collected.reason is (FinishReason.STOP if expected[-1] == EOS else FinishReason.LENGTH)
            preemptions += collected.outputs[-1].request.num_preemptions
    assert preemptions > 10, "the pool was meant to be too small"


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_preemption_takes_the_youngest_and_everyone_finishes(enable_prefix_caching: bool) -> None:
    runner = FakeRunner(num_blocks=12, max_model_len=48)
    with running_engine(runner, enable_prefix_caching=enable_prefix_caching) as engine:
        jobs = []
        for index in range(6):
            prompt = prompt_of(8, seed=index)
            jobs.append((prompt, *submit(engine, prompt, greedy(30, logprobs=0))))
        for prompt, _, collected in jobs:
            assert collected.wait().token_ids == expected_output(prompt, greedy(30))
            logprobs = [t.logprob.logprob for o in collected.outputs for t in o.tokens if t.logprob]
            assert logprobs == [-float(i) for i in range(30)], "each token's own logprob, in order"
    assert jobs[0][1].num_preemptions == 0, "the oldest is never preempted"
    assert sum(request.num_preemptions for _, request, _ in jobs) > 0


def test_equal_prompts_are_computed_once_even_when_they_arrive_together() -> None:
    runner = FakeRunner(num_blocks=200)
    with running_engine(runner, max_num_batched_tokens=64) as engine:
        began, go = hold_first_step(runner)
        _, blocker = submit(engine, [1], greedy(1))
        assert began.wait(20)
        prompt = prompt_of(41)
        jobs = [submit(engine, prompt, greedy(1)) for _ in range(6)]
        go.set()
        blocker.wait()
        for _, collected in jobs:
            assert collected.wait().token_ids == expected_output(prompt, greedy(1))
    assert runner.num_computed == 1 + 41 + 5, "the last prompt token is computed for each, the rest once"
    assert [request.num_cached_tokens for request, _ in jobs] == [0] + [40] * 5


def test_requests_share_the_pages_of_one_that_wants_prompt_logprobs() -> None:
    runner = FakeRunner(num_blocks=200)
    with running_engine(runner, max_num_batched_tokens=64) as engine:
        began, go = hold_first_step(runner)
        _, blocker = submit(engine, [1], greedy(1))
        assert began.wait(20)
        prompt = prompt_of(41)
        jobs = [submit(engine, prompt, greedy(1, prompt_logprobs=0 if index == 0 else None)) for index in range(4)]
        go.set()
        for _, collected in [(None, blocker), *jobs]:
            collected.wait()
    assert runner.num_computed == 1 + 41 + 3
    assert len(jobs[0][0].prompt_logprobs) == 40


def test_prefix_of_a_finished_request_is_reused_with_its_output() -> None:
    runner = FakeRunner()
    with running_engine(runner) as engine:
        prompt = prompt_of(8)
        _, first = submit(engine, prompt, greedy(8))
        longer = prompt + first.wait().token_ids + [5, 6]
        request, second = submit(engine, longer, greedy(8))
        assert second.wait().token_ids == expected_output(longer, greedy(8))
    assert request.num_cached_tokens == 12, "the full pages among the 15 tokens whose KV was computed"


def test_pages_of_a_request_that_ended_on_a_stop_string_are_sound() -> None:
    """The stop string spans three tokens; who continues the text afterwards gets what they would get alone."""
    runner = FakeRunner()
    with running_engine(runner) as engine:
        prompt = prompt_of(9)
        free = expected_output(prompt, greedy(30))
        stop = bytes(free[10:13]).decode()
        params = greedy(30, stop=(stop,))
        collected = Collected()
        text = TextStream(lambda token_id: bytes([token_id]), (), params)
        engine.submit(
            [Request(np.array(prompt, np.int32), params, seed=0, max_new_tokens=30, sink=collected, text=text)]
        )
        collected.wait()
        whole = bytes(free).decode()
        assert "".join(output.text for output in collected.outputs) == whole[: whole.index(stop)]
        assert collected.reason is FinishReason.STOP
        for length in (5, 10, 13, 20):
            longer = prompt + free[:length]
            request, continued = submit(engine, longer, greedy(10))
            assert continued.wait().token_ids == expected_output(longer, greedy(10))
            assert request.num_cached_tokens > 0


def test_prefix_caching_can_be_switched_off() -> None:
    runner = FakeRunner()
    with running_engine(runner, enable_prefix_caching=False) as engine:
        for _ in range(2):
            request, collected = submit(engine, prompt_of(20), greedy(1))
            collected.wait()
    assert request.num_cached_tokens == 0
    assert runner.num_computed == 40


def test_prompt_logprobs_cover_the_whole_prompt_despite_cached_pages_chunks_and_preemption() -> None:
    runner = FakeRunner(num_blocks=12, max_model_len=48)
    with running_engine(runner, max_num_batched_tokens=5) as engine:
        submit(engine, prompt_of(20), greedy(1))[1].wait()
        jobs = [submit(engine, prompt_of(20), greedy(20, prompt_logprobs=0)) for _ in range(3)]
        for request, collected in jobs:
            assert collected.wait().reason is FinishReason.LENGTH
            assert [p.target.logprob for p in request.prompt_logprobs] == [-float(i) for i in range(19)]
            assert [p.target.token_id for p in request.prompt_logprobs] == prompt_of(20)[1:]
    assert sum(request.num_preemptions for request, _ in jobs) > 0


def test_min_tokens_ignore_eos_and_stop_token_ids() -> None:
    runner = FakeRunner(vocab_size=5)
    with running_engine(runner) as engine:
        prompt = [1, 2, 3]
        free = expected_output(prompt, greedy(30), vocab_size=5)
        first = free.index(EOS)
        later = free.index(EOS, first + 1)
        cases: list[tuple[SamplingParams, int]] = [
            (greedy(30, eos_token_ids=(EOS,)), first + 1),
            (greedy(30, eos_token_ids=(EOS,), min_tokens=first + 2), later + 1),
            (greedy(30, eos_token_ids=(EOS,), ignore_eos=True), 30),
            (greedy(30, stop_token_ids=(3,)), free.index(3) + 1),
            (greedy(30, eos_token_ids=(EOS,), ignore_eos=True, stop_token_ids=(EOS,)), first + 1),
        ]
        for params, length in cases:
            _, collected = submit(engine, prompt, params)
            assert collected.wait().token_ids == free[:length]
            assert collected.reason is (FinishReason.LENGTH if length == 30 else FinishReason.STOP)


def test_what_can_never_fit_fails_at_once() -> None:
    runner = FakeRunner(num_blocks=10, block_size=4, max_model_len=100)
    with running_engine(runner) as engine:
        with pytest.raises(InvalidRequestError, match="prompt is empty"):
            engine.resolve_max_tokens(0, 5)
        with pytest.raises(InvalidRequestError, match="prompt has 40 tokens; this model takes at most 39"):
            engine.resolve_max_tokens(40, None)
        with pytest.raises(InvalidRequestError, match="max_tokens may be at most 30"):
            engine.resolve_max_tokens(10, 31)
        assert engine.resolve_max_tokens(10, None) == 30
        prompt = prompt_of(10)
        _, collected = submit(engine, prompt, greedy(30))
        assert collected.wait().token_ids == expected_output(prompt, greedy(30)), "the largest that fits, fits"


def test_too_many_in_flight_is_refused_with_the_limit() -> None:
    runner = FakeRunner()
    with running_engine(runner, max_num_seqs=2, max_queue_size=3) as engine:
        began, go = hold_first_step(runner)
        jobs = [submit(engine, prompt_of(4), greedy(2)) for _ in range(5)]
        assert began.wait(20)
        with pytest.raises(UnavailableError, match=r"the limit is 5 \(max_num_seqs 2 \+ max_queue_size 3\)"):
            submit(engine, prompt_of(4), greedy(2))
        go.set()
        for _, collected in jobs:
            assert collected.wait().reason is FinishReason.LENGTH
        submit(engine, prompt_of(4), greedy(2))[1].wait()
    assert max(len(plan.spans) for plan in runner.plans) == 2


def test_cancelling_queued_and_running_requests_frees_them_within_a_step() -> None:
    runner = FakeRunner()
    runner.before_step = lambda plan: time.sleep(0.005)
    with running_engine(runner, max_num_seqs=1) as engine:
        running, first = submit(engine, prompt_of(4), greedy(150))
        queued, second = submit(engine, prompt_of(4, seed=1), greedy(150))
        while not first.outputs:
            time.sleep(0.001)
        engine.cancel([queued])
        assert isinstance(second.wait().error, CancelledError)
        assert second.token_ids == []
        engine.cancel([running])
        assert isinstance(first.wait().error, CancelledError)
        steps = len(runner.plans)
        engine.cancel([running, queued])
        time.sleep(0.05)
        assert len(runner.plans) == steps < 150, "nothing is computed for those who left"
        assert all(span.request_id == running.id for plan in runner.plans for span in plan.spans)


def test_finishing_gives_what_is_held_back_and_frees_within_a_step() -> None:
    runner = FakeRunner()
    prompt = prompt_of(4)
    params = greedy(150)
    # All text may begin this stop string, so nothing of it comes out.
    expected = expected_output(prompt, params)
    params = greedy(150, stop=("".join(map(chr, expected)) + "!",))
    collected, third, go = Collected(), threading.Event(), threading.Event()

    def before(plan: StepPlan) -> None:
        if len(runner.plans) == 3:
            third.set()
            assert go.wait(10)

    runner.before_step = before
    with running_engine(runner, max_num_seqs=1) as engine:
        text = TextStream(lambda token_id: bytes([token_id]), (), params)
        running = Request(np.array(prompt, np.int32), params, seed=0, max_new_tokens=150, sink=collected, text=text)
        engine.submit([running])
        queued, second = submit(engine, prompt_of(4, seed=1), greedy(150))
        assert third.wait(10)
        assert collected.outputs == []
        engine.finish([running, queued])
        go.set()
        assert second.wait().reason is collected.wait().reason is FinishReason.CANCELLED
        engine.finish([running, queued])
        assert second.token_ids == []
        assert collected.token_ids == expected[:4]
        assert "".join(output.text for output in collected.outputs) == "".join(map(chr, expected[:4]))
        assert running.num_output == 4
    assert len(runner.plans) == 4


def test_deadline_ends_running_and_queued_requests() -> None:
    runner = FakeRunner()
    runner.before_step = lambda plan: time.sleep(0.005)
    with running_engine(runner, max_num_seqs=1) as engine:
        now = time.monotonic()
        _, first = submit(engine, prompt_of(4), greedy(150), deadline=now + 0.1)
        _, second = submit(engine, prompt_of(4), greedy(150), deadline=now + 0.1)
        for collected in (first, second):
            assert isinstance(collected.wait().error, UnavailableError)
            assert "deadline exceeded" in str(collected.error)
        assert first.token_ids and not second.token_ids


def test_a_failing_step_ends_its_requests_and_no_others() -> None:
    runner = FakeRunner()
    errors: list[str] = []
    engine = Engine(
        runner,
        max_num_seqs=1,
        max_num_batched_tokens=16,
        max_queue_size=10,
        enable_prefix_caching=True,
        log_error=errors.append,
    )
    engine.start()

    def fail_once(plan: StepPlan) -> None:
        runner.before_step = lambda plan: None
        raise RuntimeError("out of luck")

    runner.before_step = fail_once
    _, first = submit(engine, prompt_of(10), greedy())
    _, second = submit(engine, prompt_of(10), greedy())
    assert isinstance(first.wait().error, EngineError) and "out of luck" in str(first.error)
    assert second.wait().token_ids == expected_output(prompt_of(10), greedy())
    assert len(errors) == 1 and "out of luck" in errors[0]
    engine.check()
    engine.stop()


def test_a_broken_scheduler_answers_everybody_and_refuses_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []
    engine = Engine(
        FakeRunner(),
        max_num_seqs=1,
        max_num_batched_tokens=16,
        max_queue_size=10,
        enable_prefix_caching=True,
        log_error=errors.append,
    )

    def broken(*args: object) -> None:
        raise RuntimeError("lost count")

    monkeypatch.setattr(engine._scheduler, "plan", broken)
    monkeypatch.setattr(engine._scheduler, "finish", broken)
    jobs = [submit(engine, prompt_of(4), greedy()) for _ in range(3)]
    engine.start()
    for _, collected in jobs:
        assert isinstance(collected.wait().error, EngineError)
    while engine._thread.is_alive():
        time.sleep(0.001)
    with pytest.raises(UnavailableError, match="internal fault"):
        submit(engine, prompt_of(4), greedy())
    assert "lost count" in errors[-1]


def test_stopping_answers_what_is_in_flight_and_refuses_the_rest() -> None:
    runner = FakeRunner()
    runner.before_step = lambda plan: time.sleep(0.001)
    engine = Engine(
        runner,
        max_num_seqs=1,
        max_num_batched_tokens=16,
        max_queue_size=10,
        enable_prefix_caching=True,
        log_error=print,
    )
    engine.start()
    jobs = [submit(engine, prompt_of(4), greedy(150)) for _ in range(2)]
    engine.stop()
    for _, collected in jobs:
        assert isinstance(collected.wait().error, UnavailableError)
    with pytest.raises(UnavailableError, match="unloaded"):
        submit(engine, prompt_of(4), greedy())


def test_draining_lets_requests_finish_and_takes_no_new_ones() -> None:
    runner = FakeRunner()
    runner.before_step = lambda plan: time.sleep(0.001)
    with running_engine(runner) as engine:
        _, collected = submit(engine, prompt_of(4), greedy(20))
        drained: list[bool] = []
        thread = threading.Thread(target=lambda: drained.append(engine.drain(10)))
        thread.start()
        refused: Callable[[], object] = lambda: submit(engine, prompt_of(4), greedy())  # noqa: E731
        time.sleep(0.005)
        with pytest.raises(UnavailableError):
            refused()
        thread.join()
        assert drained == [True]
        assert collected.wait().token_ids == expected_output(prompt_of(4), greedy(20))
