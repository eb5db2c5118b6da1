"""`Client` and `AsyncClient` on a real Triton: answers, cancellation, deadlines, retries, errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asking import ask, is_idle, metric, text_of, wait_until
from echo_models import write_echo_model
from python_llm_client import (
    Answer,
    AsyncClient,
    Client,
    ClientError,
    DeadlineExceededError,
    Delta,
    InvalidRequestError,
    NotFoundError,
    RetryPolicy,
    UnavailableError,
    UnreachableError,
)
from python_llm_client.local_server import LocalServer
from python_llm_client.request import GenerationRequest
from server import running_server
from tiny_repository import add_model

pytestmark = pytest.mark.triton

MESSAGES = [{"role": "user", "content": "Hello, you!"}]
FOREVER = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}
NEVER = RetryPolicy(retries=0)

Ask = Callable[..., Answer]
"""`ask(GenerationRequest, timeout)` of either client."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    add_model(repository, "tiny", max_num_seqs=32)
    add_model(repository, "narrow", max_num_seqs=1, max_queue_size=1)
    write_echo_model(repository, "echo")
    with running_server(repository) as running:
        yield running


@pytest.fixture(scope="module")
def url(server: LocalServer) -> str:
    return f"127.0.0.1:{server.grpc_port}"


def in_loop(url: str, work: Callable[[AsyncClient], Any], **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncClient(url, **options) as client:
            return await work(client)

    return asyncio.run(run())


@pytest.fixture(params=["threads", "asyncio"])
def asking(request: pytest.FixtureRequest, url: str) -> Ask:
    """Both clients as one function."""
    if request.param == "threads":
        return lambda asked, timeout=None, to=url, retry=NEVER: Client(to, retry=retry).ask(asked, timeout)
    return lambda asked, timeout=None, to=url, retry=NEVER: in_loop(
        to, lambda client: client.ask(asked, timeout), retry=retry
    )


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_the_models_with_all_that_was_asked_for(server: LocalServer, asking: Ask, stream: bool) -> None:
    sampling = {"max_tokens": 12, "n": 2, "seed": 4, "logprobs": 2, "ignore_eos": True}
    (raw,) = ask(server, "tiny", messages=MESSAGES, sampling_parameters=sampling, return_cumulative_logprob=True)
    asked = GenerationRequest(
        "tiny", messages=MESSAGES, sampling=sampling, stream=stream, cumulative_logprob=True, stats=True
    )
    answer = asking(asked)
    assert [choice.text for choice in answer.choices] == raw.outputs["text_output"]
    assert [choice.cumulative_logprob for choice in answer.choices] == pytest.approx(raw.outputs["cumulative_logprob"])
    for choice in answer.choices:
        assert (choice.tokens, choice.finish_reason) == (12, "length")
        assert choice.logprobs is not None
        assert [len(entry.top) for entry in choice.logprobs] == [2] * 12
        assert sum(entry.chosen.logprob for entry in choice.logprobs) == pytest.approx(
            choice.cumulative_logprob, abs=1e-3
        )
    assert answer.stats is not None
    assert answer.usage.output_tokens == answer.stats.output_tokens == 24
    assert answer.usage.prompt_tokens == answer.stats.prompt_tokens > 0
    assert answer.stats.prefill_ms is not None


def test_the_short_ways_say_the_same(url: str) -> None:
    sampling = {"max_tokens": 8, "temperature": 0}
    client = Client(url)
    assert set(client.models()) == {"tiny", "narrow", "echo"}
    client.check("tiny")
    text = client.generate("tiny", "abc", sampling=sampling).text
    assert "".join(delta.text for delta in client.stream("tiny", "abc", sampling=sampling)) == text
    said = client.chat("tiny", MESSAGES, sampling=sampling).text
    assert "".join(delta.text for delta in client.stream("tiny", messages=MESSAGES, sampling=sampling)) == said

    async def the_same(client: AsyncClient) -> None:
        assert set(await client.models()) == {"tiny", "narrow", "echo"}
        await client.check("tiny")
        assert (await client.generate("tiny", "abc", sampling=sampling)).text == text
        assert (await client.chat("tiny", MESSAGES, sampling=sampling)).text == said
        parts = [delta.text async for delta in client.stream("tiny", "abc", sampling=sampling)]
        assert "".join(parts) == text
        with pytest.raises(NotFoundError, match="serves no model"):
            await client.check("nope")

    in_loop(url, the_same)


def test_models_of_other_backends_that_send_their_final_flag_alone(asking: Ask) -> None:
    answer = asking(GenerationRequest("echo", prompt="one two three", stream=True, stats=True))
    assert (answer.text, answer.finish_reason, answer.usage.output_tokens) == ("one two three", "stop", 3)


@pytest.mark.parametrize(
    ("request_", "kind", "code", "part"),
    [
        (GenerationRequest("nope", prompt="a"), NotFoundError, "NOT_FOUND", "nope"),
        (
            GenerationRequest("tiny", prompt="a", sampling={"n": 0}),
            InvalidRequestError,
            "INVALID_ARGUMENT",
            "n must be",
        ),
        (GenerationRequest("tiny", prompt="\ud800"), InvalidRequestError, "INVALID_ARGUMENT", "text_input"),
        (GenerationRequest("echo", prompt="a", tools=[]), InvalidRequestError, "INVALID_ARGUMENT", "tools"),
        (GenerationRequest("echo", prompt="broken heart", stream=True), ClientError, "INTERNAL", "the echo broke"),
    ],
)
def test_errors_carry_tritons_code(
    asking: Ask, request_: GenerationRequest, kind: type[ClientError], code: str, part: str
) -> None:
    with pytest.raises(kind, match=part) as caught:
        asking(request_)
    assert caught.value.code == code


@pytest.mark.parametrize("stream", [True, False])
def test_the_deadline_ends_an_answer_here_and_on_the_server(server: LocalServer, asking: Ask, stream: bool) -> None:
    with pytest.raises(DeadlineExceededError) as caught:
        asking(GenerationRequest("tiny", prompt="abc", sampling=FOREVER, stream=stream), 0.4)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    wait_until(lambda: is_idle(server, "tiny"), 3)


def test_no_server_is_tried_again_and_then_said(asking: Ask) -> None:
    started = time.monotonic()
    with pytest.raises(UnreachableError, match="no server answers"):
        asking(GenerationRequest("tiny", prompt="a"), to="127.0.0.1:1", retry=RetryPolicy(2, first_delay=0.2))
    assert time.monotonic() - started >= 0.1 + 0.2, "two waits of at least half their length"


def test_a_full_server_is_tried_again_until_it_has_room(server: LocalServer, url: str, asking: Ask) -> None:
    held = Client(url).stream("narrow", "abc", sampling=FOREVER)
    next(held)
    # One sequence runs; of these two only one could wait.
    short = GenerationRequest("narrow", prompt="abc", sampling={"max_tokens": 2, "ignore_eos": True, "n": 2})
    with pytest.raises(UnavailableError, match="too many requests"):
        asking(short)
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(asking, short, 30, retry=RetryPolicy(100, first_delay=0.1, max_delay=0.2))
        time.sleep(0.3)
        assert not patient.done()
        held.close()
        assert patient.result().usage.output_tokens == 4
    wait_until(lambda: is_idle(server, "narrow"))


def test_closing_the_iterator_cancels_on_the_server(server: LocalServer, url: str) -> None:
    answer = Client(url).stream("tiny", "abc", sampling=FOREVER)
    next(answer)
    wait_until(lambda: metric(server, "vllm:num_requests_running", "tiny") == 1)
    answer.close()
    wait_until(lambda: is_idle(server, "tiny"), 3)


def test_closing_the_asynchronous_iterator_or_cancelling_its_task_cancels_on_the_server(
    server: LocalServer, url: str
) -> None:
    async def leave(client: AsyncClient) -> None:
        answer = client.stream("tiny", "abc", sampling=FOREVER)
        await anext(answer)
        waiting = asyncio.create_task(client.generate("tiny", "abc", sampling=FOREVER))
        await asyncio.to_thread(wait_until, lambda: metric(server, "vllm:num_requests_running", "tiny") == 2)
        await answer.aclose()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        # The connection is still open: it is the requests that were cancelled.
        await asyncio.to_thread(wait_until, lambda: is_idle(server, "tiny"), 3)

    in_loop(url, leave)


def test_many_asynchronous_streams_share_a_connection_and_do_not_mix(server: LocalServer, url: str) -> None:
    sampling = {"max_tokens": 24, "temperature": 0}
    prompts = [f"prompt {number}" for number in range(32)]
    expected = [text_of(ask(server, "tiny", text_input=p, stream=True, sampling_parameters=sampling)) for p in prompts]

    async def text(client: AsyncClient, prompt: str) -> str:
        deltas: list[Delta] = [delta async for delta in client.stream("tiny", prompt, sampling=sampling)]
        return "".join(delta.text for delta in deltas)

    async def all_at_once(client: AsyncClient) -> list[str]:
        return await asyncio.gather(*(text(client, prompt) for prompt in prompts))

    assert in_loop(url, all_at_once) == expected


def test_hundreds_of_refused_requests_leave_the_server_alive(url: str) -> None:
    """With the metadata `triton_grpc_error`, which would bring codes, some dozen of them crash Triton 2.51."""
    wrong = GenerationRequest("tiny", prompt="abc", sampling={"max_tokens": 0})

    async def refused(client: AsyncClient, at_once: asyncio.Semaphore) -> None:
        async with at_once:
            with pytest.raises(InvalidRequestError, match="max_tokens"):
                await client.ask(wrong)

    async def all_refused(client: AsyncClient) -> None:
        at_once = asyncio.Semaphore(4)
        await asyncio.gather(*(refused(client, at_once) for _ in range(300)))

    in_loop(url, all_refused)
    for _ in range(50):
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            Client(url).ask(wrong)
    Client(url).check("tiny")
