"""SmolLM2 behind a real Triton: transformers' tokens through the door, and many streams at once as one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from asking import Response, ask, batched, generate_stream, is_idle, text_of, wait_until
from gateway_process import running_gateway
from python_llm_client.local_server import LocalServer
from server import running_server

pytestmark = [pytest.mark.triton, pytest.mark.real_model]

ROOT = Path(__file__).parent.parent.parent
GOLDEN = json.loads((ROOT / "tests" / "golden" / "smollm2.json").read_text(encoding="utf-8"))
NEAR_TIE = 1e-3


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """The repositories as they ship, with float32 weights: only then must the tokens equal transformers'."""
    settings = {"smollm2": {"weight_format": "float32", "kv_cache_memory_mib": "512"}}
    folders = (ROOT / "model_repository", ROOT / "ensembles")
    with running_server(*folders, models=["smollm2_ensemble"], settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def golden_answers(server: LocalServer) -> list[Response]:
    """What the text face says to each golden prompt, without a stream."""

    def answer(entry: dict[str, list[int]]) -> Response:
        parameters = {"max_tokens": len(entry["output"]), "temperature": 0, "ignore_eos": True}
        (response,) = ask(
            server,
            "smollm2",
            text_input=entry["text"],
            return_logprobs=True,
            return_num_input_tokens=True,
            sampling_parameters=parameters,
        )
        return response

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(answer, GOLDEN))


def test_greedy_tokens_are_those_of_transformers(golden_answers: list[Response]) -> None:
    for entry, response in zip(GOLDEN, golden_answers, strict=True):
        assert response.outputs["num_input_tokens"] == [len(entry["ids"])]
        ids = [int(next(iter(token))) for token in json.loads(response.outputs["logprobs"][0])]
        wrong = [i for i, (ours, golden) in enumerate(zip(ids, entry["output"], strict=True)) if ours != golden]
        assert not wrong or entry["margin"][wrong[0]] < NEAR_TIE, entry["text"][:60]


def test_the_ensembles_text_is_the_text_faces(server: LocalServer, golden_answers: list[Response]) -> None:
    """For every golden prompt, in turn streamed, whole and over SSE; and in conversation."""

    def check(number: int) -> None:
        entry = GOLDEN[number]
        count = len(entry["output"])
        asked = {"text_input": entry["text"], "max_tokens": count, "end_id": -1}
        if number % 3 == 2:
            events = generate_stream(server, "smollm2_ensemble", stream=True, **asked)
            text = "".join(event["text_output"] for event in events)
        else:
            text = text_of(ask(server, "smollm2_ensemble", inputs=batched(stream=number % 3 == 0, **asked)))
        assert entry["text"] + text == text_of([golden_answers[number]]), entry["text"][:60]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(check, range(len(GOLDEN))))
    messages = [{"role": "user", "content": "Say something in Chinese, with an emoji."}]
    sampling = {"max_tokens": 48, "temperature": 0.9, "seed": 4}
    for stop in ([], [" a", "."]):
        expected = text_of(ask(server, "smollm2", messages=messages, sampling_parameters={**sampling, "stop": stop}))
        inputs = batched(messages=json.dumps(messages), stop_words=[*stop, ""], stream=True, **sampling)
        assert text_of(ask(server, "smollm2_ensemble", inputs=inputs)) == expected


def test_64_streams_at_once_give_the_texts_of_one_by_one(server: LocalServer) -> None:
    prompts = [entry["text"][-300:] for entry in GOLDEN]
    prompts = [f"{prompts[i % len(prompts)]}{' ' * (i // len(prompts))}" for i in range(64)]
    parameters = {"max_tokens": 12, "temperature": 0}

    def over_grpc(prompt: str) -> str:
        return text_of(ask(server, "smollm2", text_input=prompt, stream=True, sampling_parameters=parameters))

    def over_sse(prompt: str) -> str:
        events = generate_stream(server, "smollm2", text_input=prompt, stream=True, **parameters)
        return "".join(event["text_output"] for event in events)

    with ThreadPoolExecutor(64) as pool:
        at_once = list(pool.map(over_grpc, prompts))
        assert list(pool.map(over_sse, prompts)) == at_once
    assert [over_grpc(prompt) for prompt in prompts] == at_once
    wait_until(lambda: is_idle(server, "smollm2"))


def test_a_conversation_is_answered(server: LocalServer) -> None:
    messages = [
        {"role": "system", "content": "You answer in one word."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    parameters = {"max_tokens": 24, "temperature": 0}
    responses = ask(
        server, "smollm2", messages=messages, stream=True, return_finish_reason=True, sampling_parameters=parameters
    )
    assert "Paris" in text_of(responses)
    assert responses[-1].outputs["finish_reason"] == ["stop"], "the model ends its turn by itself"


def test_the_chat_command(server: LocalServer) -> None:
    command = [sys.executable, "-m", "python_llm_client", "chat", "--url", f"127.0.0.1:{server.grpc_port}"]
    command += ["--temperature", "0", "--max-tokens", "24", "What is the capital of France?"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_openais_client_gets_the_same_through_the_gateway_streamed_whole_and_in_a_crowd(
    server: LocalServer, tmp_path: Path
) -> None:
    def messages(topic: str) -> Any:
        return [{"role": "user", "content": f"Tell me about {topic} in one sentence."}]

    topics = ["Paris", "the sea", "Zürich", "bread", "emoji such as 🙂", "naïve cafés", "snow", "the number 7"]
    parameters: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
    with running_gateway([server], tmp_path / "log") as gateway:
        client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)

        def whole(topic: str) -> str | None:
            answer = client.chat.completions.create(model="smollm2", messages=messages(topic), **parameters)
            return answer.choices[0].message.content

        def streamed(topic: str) -> str:
            chunks = client.chat.completions.create(
                model="smollm2", messages=messages(topic), stream=True, **parameters
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        direct = [text_of(ask(server, "smollm2", messages=messages(t), sampling_parameters=parameters)) for t in topics]
        assert [whole(topic) for topic in topics] == direct
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(streamed, topics * 2)) == direct * 2
    wait_until(lambda: is_idle(server, "smollm2"))
