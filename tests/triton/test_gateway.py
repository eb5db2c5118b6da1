"""The gateway in front of a real Triton: what OpenAI's, Ollama's and LangChain's own clients get from it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest
import requests

from asking import ask, is_idle, metric, text_of, wait_until
from gateway_process import RunningGateway, running_gateway
from python_llm_client.gateway.keys import add_key
from python_llm_client.gateway.openai.answers_schema import ChatCompletion, Completion, ErrorBody, ModelList
from python_llm_client.local_server import LocalServer
from server import running_server
from tiny_repository import add_model

pytestmark = pytest.mark.triton

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, you!"}]
FOREVER = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}, "temperature": 0}
LONG = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    add_model(repository, "tiny", max_num_seqs=32)
    add_model(repository, "narrow", max_num_seqs=1, max_queue_size=1)
    with running_server(repository) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway([server], tmp_path_factory.mktemp("gateway") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)


def test_chat_is_what_the_model_itself_says_streamed_or_not(server: LocalServer, client: openai.OpenAI) -> None:
    parameters = {"max_tokens": 20, "temperature": 0.7, "seed": 5}
    expected = text_of(ask(server, "tiny", messages=MESSAGES, sampling_parameters=parameters))
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, **parameters)  # type: ignore[call-overload]
    assert whole.choices[0].message.content == expected
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, stream_options={"include_usage": True}, **parameters
    ) as stream:
        events = list(stream)
        final = stream.current_completion_snapshot
    assert "".join(event.delta for event in events if event.type == "content.delta") == expected
    assert final.choices[0].message.content == expected
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert final.usage is not None
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )


@pytest.mark.parametrize("stream", [True, False])
def test_finish_reasons(client: openai.OpenAI, stream: bool) -> None:
    def reason(**parameters: Any) -> str | None:
        answer = client.completions.create(model="tiny", prompt="abc", temperature=0, stream=stream, **parameters)
        if stream:
            return [chunk.choices[0].finish_reason for chunk in answer if chunk.choices][-1]
        return answer.choices[0].finish_reason

    assert reason(max_tokens=3, extra_body={"ignore_eos": True}) == "length"
    text = (
        client.completions.create(
            model="tiny", prompt="abc", temperature=0, max_tokens=40, extra_body={"ignore_eos": True}
        )
        .choices[0]
        .text
    )
    assert reason(max_tokens=40, stop=[text[10]], extra_body={"ignore_eos": True}) == "stop"


def test_n_sequences_and_several_prompts_stream_as_they_come_whole(client: openai.OpenAI) -> None:
    parameters: dict[str, Any] = {
        "model": "tiny",
        "prompt": ["abc", "xyz"],
        "n": 2,
        "seed": 1,
        "max_tokens": 9,
        "echo": True,
    }
    whole = client.completions.create(**parameters)
    texts = [""] * 4
    for chunk in client.completions.create(**parameters, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [choice.text for choice in whole.choices] == texts
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [text[:3] for text in texts] == ["abc", "abc", "xyz", "xyz"]
    assert len(set(texts)) == 4
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 6


def test_logprobs_of_streams_are_those_of_whole_answers(client: openai.OpenAI) -> None:
    parameters: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**parameters).choices[0].logprobs.content
    streamed = []
    for chunk in client.chat.completions.create(**parameters, stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert len(whole) == 8
    assert streamed == whole
    for entry in whole:
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (t.logprob for t in entry.top_logprobs), reverse=True
        )
        assert entry.logprob == entry.top_logprobs[0].logprob, "greedy takes the likeliest"
        assert len(entry.top_logprobs) == 3
        assert entry.bytes is None or bytes(entry.bytes).decode() == entry.token


def test_completion_logprobs_and_token_ids(client: openai.OpenAI) -> None:
    by_text = client.completions.create(model="tiny", prompt="abc", logprobs=2, max_tokens=5, temperature=0)
    by_ids = client.completions.create(model="tiny", prompt=[97, 98, 99], logprobs=2, max_tokens=5, temperature=0)
    logprobs = by_text.choices[0].logprobs
    assert logprobs is not None
    assert logprobs == by_ids.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 5
    assert logprobs.text_offset[0] == 0


def test_logit_bias_and_seed_reach_the_model(client: openai.OpenAI) -> None:
    def text(**parameters: Any) -> str:
        return client.completions.create(model="tiny", prompt="abc", max_tokens=6, **parameters).choices[0].text

    assert text(logit_bias={"65": 100}) == "AAAAAA"
    assert text(seed=7) == text(seed=7) != text(seed=8)


def test_best_of_returns_the_likeliest(client: openai.OpenAI) -> None:
    parameters: dict[str, Any] = {"model": "tiny", "prompt": "abc", "seed": 3, "max_tokens": 6, "logprobs": 0}
    parameters["extra_body"] = {"ignore_eos": True}
    several = client.completions.create(**parameters, n=4).choices
    best = client.completions.create(**parameters, n=1, best_of=4).choices
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in several if c.logprobs]
    assert [choice.text for choice in best] == [several[means.index(max(means))].text]


def test_bodies_are_those_of_the_document(gateway: RunningGateway) -> None:
    chat = {"model": "tiny", "messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 1}
    ChatCompletion.model_validate(gateway.post("/v1/chat/completions", chat).json())
    completion = {"model": "tiny", "prompt": "a", "max_tokens": 3, "logprobs": 1}
    Completion.model_validate(gateway.post("/v1/completions", completion).json())
    models = ModelList.model_validate(gateway.get("/v1/models").json())
    assert [model.id for model in models.data] == ["narrow", "tiny"]
    assert gateway.get("/v1/models/tiny").json()["id"] == "tiny"
    assert gateway.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/v1/chat/completions", {"model": "nope", "messages": MESSAGES}, 404, "narrow, tiny"),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 10**6}, 400, "max_model_len"),
        ("/v1/chat/completions", {"model": "tiny", "messages": [MESSAGES[1]] * 2}, 400, "alternate"),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "temprature": 1}, 400, "did you mean 'temperature'"),
        ("/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, "tools": [{}]}, 400, "tools is not supported"),
        ("/v1/embeddings", {"model": "tiny", "input": "a"}, 404, "embeddings"),
        ("/v1/nothing", {}, 404, "/v1/nothing"),
        ("/api/chat", {"model": "nope"}, 404, "narrow, tiny"),
        ("/api/generate", {"model": "tiny", "prompt": "a", "format": "json"}, 400, "format is not supported"),
        ("/api/pull", {"model": "tiny"}, 404, "/api/pull"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_errors(gateway: RunningGateway, path: str, body: dict[str, Any], status: int, part: str, stream: bool) -> None:
    response = gateway.post(path, {**body, "stream": stream})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    if path.startswith("/v1"):
        ErrorBody.model_validate(response.json())
        error = error["message"]
    assert part in error


def test_a_full_queue_is_503_and_says_when_to_come_back(server: LocalServer, gateway: RunningGateway) -> None:
    body = {"model": "narrow", "prompt": "abc", **LONG, "stream": True}
    url = gateway.url + "/v1/completions"
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(requests.post(url, json=body, stream=True, timeout=30))]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(requests.post, url, json=body, stream=True, timeout=30)
            wait_until(lambda: metric(server, "vllm:num_requests_waiting", "narrow") == 1)
            refused = gateway.post("/v1/completions", body)
            assert refused.status_code == 503, refused.text
            assert refused.headers["retry-after"]
            assert "the limit is 2" in refused.json()["error"]["message"]
            streams[0].close()
            streams.append(waiting.result())
            streams[1].close()
    wait_until(lambda: is_idle(server, "narrow"))


def test_a_deadline_is_504(server: LocalServer, tmp_path: Path) -> None:
    with running_gateway([server], tmp_path / "log", "--request-timeout=0.4") as hasty:
        whole = hasty.post("/v1/completions", {"model": "tiny", "prompt": "abc", **LONG})
        assert whole.status_code == 504, whole.text
        assert "deadline" in whole.json()["error"]["message"]
        stream = hasty.post("/v1/completions", {"model": "tiny", "prompt": "abc", **LONG, "stream": True})
        assert stream.status_code == 200
        last = stream.text.strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    wait_until(lambda: is_idle(server, "tiny"))


def _hang_up(gateway: RunningGateway, path: str, body: dict[str, Any], after: float) -> None:
    """Sends a request and closes the connection `after` seconds, reading what came until then."""
    host, port = gateway.url.removeprefix("http://").split(":")
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + text)
        end = time.monotonic() + after
        connection.settimeout(0.05)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                connection.recv(65536)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_stops_its_generation(
    server: LocalServer, gateway: RunningGateway, stream: bool
) -> None:
    body = {"model": "tiny", "prompt": "abc", **LONG, "stream": stream}
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(_hang_up, gateway, "/v1/completions", body, 1.5)
        wait_until(lambda: metric(server, "vllm:num_requests_running", "tiny") == 1)
        done.result()
    wait_until(lambda: is_idle(server, "tiny"), 3)


def test_60_clients_that_hang_up_at_random_leave_nothing_behind(server: LocalServer, gateway: RunningGateway) -> None:
    rng = random.Random(2)
    ways: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"model": "tiny", "prompt": ["visitor", "guest"], "n": 2, **LONG}),
        ("/v1/chat/completions", {"model": "tiny", "messages": MESSAGES, **LONG}),
        ("/api/generate", {"model": "tiny", "prompt": "visitor", "raw": True, "options": {"num_predict": 4000}}),
    ]
    plans = [(*rng.choice(ways), rng.random() < 0.6, rng.random() * 0.5) for _ in range(60)]

    def visit(plan: tuple[str, dict[str, Any], bool, float]) -> None:
        path, body, stream, stay = plan
        _hang_up(gateway, path, {**body, "stream": stream}, stay)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(visit, plans))
    wait_until(lambda: is_idle(server, "tiny"))
    wait_until(lambda: "python_llm_gateway_requests_running 0.0" in gateway.get("/metrics").text)


def test_many_async_streams_at_once_give_the_texts_of_one_by_one(gateway: RunningGateway) -> None:
    async def run() -> None:
        client = openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)

        async def text(number: int) -> str:
            stream = await client.completions.create(
                model="tiny", prompt=f"prompt {number}", max_tokens=24, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

        one_by_one = [await text(number) for number in range(24)]
        assert await asyncio.gather(*(text(number) for number in range(24))) == one_by_one
        await client.close()

    asyncio.run(run())


def test_ollamas_client(server: LocalServer, gateway: RunningGateway) -> None:
    client = ollama.Client(host=gateway.url)
    assert [model.model for model in client.list().models] == ["narrow", "tiny"]
    assert client.show("tiny").capabilities == ["completion"]
    assert [model.model for model in client.ps().models] == ["narrow", "tiny"]
    options = {"temperature": 0, "num_predict": 12, "num_ctx": 2048}
    parameters = {"max_tokens": 12, "temperature": 0}
    expected = text_of(ask(server, "tiny", messages=MESSAGES, sampling_parameters=parameters))
    whole = client.chat("tiny:latest", MESSAGES, options=options)
    assert whole.message.content == expected
    parts = list(client.chat("tiny", MESSAGES, options=options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == expected
    assert (parts[-1].done, parts[-1].done_reason) == (True, whole.done_reason)
    assert (parts[-1].eval_count, parts[-1].prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
    raw = text_of(ask(server, "tiny", text_input="abc", stream=True, sampling_parameters=parameters))
    assert client.generate("tiny", "abc", raw=True, options=options).response == raw
    assert client.generate("tiny", "").done_reason == "load"
    with pytest.raises(ollama.ResponseError, match="does not exist") as caught:
        client.chat("nope", MESSAGES)
    assert caught.value.status_code == 404


def test_langchains_client(server: LocalServer, gateway: RunningGateway) -> None:
    langchain_openai = pytest.importorskip("langchain_openai")
    chat = langchain_openai.ChatOpenAI(
        base_url=gateway.url + "/v1", api_key="none", model="tiny", temperature=0, max_tokens=12, max_retries=0
    )
    expected = text_of(ask(server, "tiny", messages=MESSAGES, sampling_parameters={"max_tokens": 12, "temperature": 0}))
    turns = [(message["role"], message["content"]) for message in MESSAGES]
    assert chat.invoke(turns).content == expected
    assert "".join(chunk.content for chunk in chat.stream(turns)) == expected


def test_keys_and_their_limits(server: LocalServer, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    often, rarely, alone = add_key(file, "often"), add_key(file, "rarely", 2), add_key(file, "alone", None, 1)
    short = {"model": "tiny", "prompt": "abc", "max_tokens": 1}
    with running_gateway([server], tmp_path / "log", f"--api-keys={file}", "--max-concurrent=2") as guarded:

        def status(key: str, body: dict[str, Any] = short) -> int:
            return guarded.post("/v1/completions", body, authorization=f"Bearer {key}").status_code

        assert guarded.post("/v1/completions", short).status_code == 401
        assert status("pl-wrong") == 401
        assert guarded.get("/v1/models").status_code == guarded.get("/api/tags").status_code == 401
        assert guarded.get("/health").status_code == guarded.get("/metrics").status_code == 200
        with pytest.raises(openai.AuthenticationError, match="API key is needed"):
            openai.OpenAI(base_url=guarded.url + "/v1", api_key="pl-wrong", max_retries=0).models.list()
        assert [status(rarely) for _ in range(3)] == [200, 200, 429]
        url, long = guarded.url + "/v1/completions", {**short, **LONG, "stream": True}
        with requests.post(url, json=long, headers={"authorization": f"Bearer {alone}"}, stream=True, timeout=30):
            assert status(alone) == 429
            assert status(often) == 200
            with requests.post(url, json=long, headers={"authorization": f"Bearer {often}"}, stream=True, timeout=30):
                assert status(often) == 429, "the gateway itself takes two"
        wait_until(lambda: status(alone) == 200)
    wait_until(lambda: is_idle(server, "tiny"))


def test_web_pages_of_other_origins_may_call_only_if_they_are_named(
    server: LocalServer, gateway: RunningGateway, tmp_path: Path
) -> None:
    allowed, header = "http://page.example", "access-control-allow-origin"
    with running_gateway([server], tmp_path / "log", f"--cors-origin={allowed}") as open_to_one:
        assert open_to_one.get("/v1/models", origin=allowed).headers[header] == allowed
        assert header not in open_to_one.get("/v1/models", origin="http://other.example").headers
    assert header not in gateway.get("/v1/models", origin=allowed).headers


def test_a_server_that_is_away_is_passed_over(server: LocalServer, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    add_model(repository, "tiny")
    add_model(repository, "other")
    body = {"prompt": "abc", "max_tokens": 6, "temperature": 0}
    with (
        running_server(repository) as second,
        running_gateway([server, second, "127.0.0.1:1"], tmp_path / "log") as two,
    ):
        health = two.get("/health").json()
        assert list(health["servers"].values())[:2] == ["ok", "ok"]
        assert "no server answers" in health["servers"]["127.0.0.1:1"]
        assert [model["id"] for model in two.get("/v1/models").json()["data"]] == ["narrow", "other", "tiny"]
        assert two.post("/v1/completions", {"model": "other", **body}).status_code == 200
        expected = two.post("/v1/completions", {"model": "tiny", **body}).json()["choices"][0]["text"]
        url, long = two.url + "/v1/completions", {"model": "tiny", "prompt": "abc", **LONG, "stream": True}
        with (
            requests.post(url, json=long, stream=True, timeout=30),
            requests.post(url, json=long, stream=True, timeout=30),
        ):
            for each in (server, second):
                wait_until(lambda each=each: metric(each, "vllm:num_requests_running", "tiny") == 1)
        assert second.stop() == 0
        answers = [two.post("/v1/completions", {"model": "tiny", **body}) for _ in range(4)]
        assert [answer.json()["choices"][0]["text"] for answer in answers] == [expected] * 4
        assert two.post("/v1/completions", {"model": "other", **body}).status_code in {404, 503}
