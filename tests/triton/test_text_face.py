"""The contract at the door, on a real Triton: what goes in and what comes out, over gRPC and HTTP."""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import tritonclient.grpc as grpcclient

from asking import Response, ask, generate, generate_stream, tensors, text_of
from python_llm.triton_io.io_spec import INPUTS, OUTPUTS, REFUSED_INPUTS
from python_llm_client.local_server import LocalServer
from server import running_server
from tiny_repository import add_model

pytestmark = pytest.mark.triton

PROMPT = "Once upon"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    add_model(repository, "tiny")
    add_model(repository, "interval", stream_interval=4)
    add_model(repository, "unchatty")
    (repository / "unchatty" / "1" / "weights" / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    with running_server(repository) as running:
        yield running


def test_one_line_of_config_is_completed(server: LocalServer) -> None:
    config = requests.get(f"http://127.0.0.1:{server.http_port}/v2/models/tiny/config", timeout=10).json()
    assert config["max_batch_size"] == 0
    assert config["model_transaction_policy"] == {"decoupled": True}
    for ours, theirs in ((INPUTS, config["input"]), (OUTPUTS, config["output"])):
        assert {(t["name"], t["data_type"], tuple(t["dims"])) for t in ours} == {
            (t["name"], t["data_type"], tuple(int(d) for d in t["dims"])) for t in theirs
        }


def test_stream_and_single_response_give_the_same_text(server: LocalServer) -> None:
    parameters = {"max_tokens": 40, "temperature": 0}
    streamed = ask(server, "tiny", text_input=PROMPT, stream=True, sampling_parameters=parameters)
    single = ask(server, "tiny", text_input=PROMPT, sampling_parameters=parameters)
    assert len(single) == 1 and len(streamed) > 1
    assert single[0].outputs["text_output"] == [PROMPT + text_of(streamed)]
    alone = ask(server, "tiny", text_input=PROMPT, exclude_input_in_output=True, sampling_parameters=parameters)
    assert text_of(alone) == text_of(streamed)
    http = generate(server, "tiny", text_input=PROMPT, **parameters)
    assert http.status_code == 200 and http.json()["text_output"] == PROMPT + text_of(streamed)
    events = list(generate_stream(server, "tiny", text_input=PROMPT, stream=True, **parameters))
    assert "".join(event["text_output"] for event in events) == text_of(streamed)


def test_final_flag_rides_on_the_last_token(server: LocalServer) -> None:
    for stream in (True, False):
        responses = ask(
            server,
            "tiny",
            text_input=PROMPT,
            stream=stream,
            return_finish_reason=True,
            sampling_parameters={"ignore_eos": True},
        )
        assert [response.is_final for response in responses] == [False] * (len(responses) - 1) + [True]
        assert responses[-1].outputs["text_output"] is not None
        reasons = [response.outputs["finish_reason"] for response in responses]
        assert reasons == [["None"]] * (len(responses) - 1) + [["length"]]


def test_a_large_last_response_arrives_whole(server: LocalServer) -> None:
    asked = {"text_input": PROMPT, "return_logprobs": True}
    parameters = {"n": 4, "logprobs": 20, "max_tokens": 50, "ignore_eos": True}
    data, trailer = ask(server, "tiny", sampling_parameters=parameters, **asked)  # type: ignore[arg-type]
    assert trailer == Response(is_final=True)
    assert [len(json.loads(entries)) for entries in data.outputs["logprobs"]] == [50] * 4
    http = generate(server, "tiny", **asked, **parameters)
    assert http.status_code == 200 and len(http.text) > 64 << 10
    events = list(generate_stream(server, "tiny", **asked, **parameters))
    assert len(events) == 1 and "logprobs" in events[0]


def test_max_tokens_is_16_unless_said_otherwise(server: LocalServer) -> None:
    (response,) = ask(
        server,
        "tiny",
        text_input=PROMPT,
        return_num_output_tokens=True,
        return_num_input_tokens=True,
        sampling_parameters={"ignore_eos": True},
    )
    assert response.outputs["num_output_tokens"] == [16]
    assert response.outputs["num_input_tokens"] == [len(PROMPT)]
    assert set(response.outputs) == {"text_output", "num_output_tokens", "num_input_tokens"}


def test_parameters_may_be_request_parameters_and_the_tensor_wins(server: LocalServer) -> None:
    def count(**kwargs: object) -> int:
        (response,) = ask(server, "tiny", text_input=PROMPT, return_num_output_tokens=True, **kwargs)  # type: ignore[arg-type]
        return int(response.outputs["num_output_tokens"][0])

    assert count(parameters={"max_tokens": 5, "ignore_eos": True}) == 5
    assert count(parameters={"max_tokens": "5", "ignore_eos": "true"}) == 5
    both = {"parameters": {"max_tokens": 5, "ignore_eos": True}, "sampling_parameters": {"max_tokens": "7"}}
    assert count(**both) == 7


def test_every_counted_token_has_a_logprob_and_deltas_add_up(server: LocalServer) -> None:
    asked = {
        "text_input": PROMPT,
        "return_logprobs": True,
        "return_num_output_tokens": True,
        "return_cumulative_logprob": True,
        "sampling_parameters": {"max_tokens": 30, "temperature": 0.9, "seed": 5, "logprobs": 2},
    }
    streamed = ask(server, "tiny", stream=True, **asked)  # type: ignore[arg-type]
    (single,) = ask(server, "tiny", exclude_input_in_output=True, **asked)  # type: ignore[arg-type]
    entries = json.loads(single.outputs["logprobs"][0])
    assert len(entries) == single.outputs["num_output_tokens"][0] == 30
    assert [e for r in streamed for e in json.loads(r.outputs["logprobs"][0])] == entries
    assert sum(r.outputs["num_output_tokens"][0] for r in streamed) == 30
    for response in streamed:
        assert len(json.loads(response.outputs["logprobs"][0])) == response.outputs["num_output_tokens"][0]
    chosen = [next(iter(entry.values())) for entry in entries]
    total = single.outputs["cumulative_logprob"][0]
    assert math.isclose(total, sum(e["logprob"] for e in chosen), rel_tol=1e-4)
    assert streamed[-1].outputs["cumulative_logprob"][0] == pytest.approx(total, rel=1e-5)
    assert all(r.outputs["cumulative_logprob"][0] >= total - 1e-3 for r in streamed), "it is running"
    for entry in entries:
        assert 2 <= len(entry) <= 3 and {1, 2} <= {e["rank"] for e in entry.values()}
    assert bytes(int(next(iter(e))) for e in entries if int(next(iter(e))) < 256).decode(errors="replace") == text_of(
        [single]
    )


def test_logprobs_keep_in_step_with_a_stop_string(server: LocalServer) -> None:
    parameters = {"max_tokens": 60, "temperature": 0}
    whole = text_of(ask(server, "tiny", text_input=PROMPT, stream=True, sampling_parameters=parameters))
    stop = whole[20:23]
    asked = {
        "text_input": PROMPT,
        "stream": True,
        "return_logprobs": True,
        "return_num_output_tokens": True,
        "return_finish_reason": True,
        "sampling_parameters": {**parameters, "stop": [stop]},
    }
    responses = ask(server, "tiny", **asked)  # type: ignore[arg-type]
    assert text_of(responses) == whole[: whole.index(stop)]
    assert responses[-1].outputs["finish_reason"] == ["stop"]
    entries = [e for r in responses for e in json.loads(r.outputs["logprobs"][0])]
    assert len(entries) == sum(r.outputs["num_output_tokens"][0] for r in responses)
    ids = [int(next(iter(entry))) for entry in entries]
    assert bytes(i for i in ids if i < 256).decode(errors="replace").startswith(whole[: whole.index(stop)] + stop)


def test_prompt_logprobs_come_with_the_first_response(server: LocalServer) -> None:
    streamed = ask(
        server, "tiny", text_input=PROMPT, stream=True, sampling_parameters={"prompt_logprobs": 1, "temperature": 0}
    )
    entries = json.loads(streamed[0].outputs["prompt_logprobs"][0])
    assert entries[0] is None and len(entries) == len(PROMPT)
    assert [int(next(iter(entry))) for entry in entries[1:]] == list(PROMPT.encode()[1:])
    assert all("prompt_logprobs" not in response.outputs for response in streamed[1:])


def test_n_sequences_differ_and_are_reproducible(server: LocalServer) -> None:
    asked = {
        "text_input": PROMPT,
        "return_finish_reason": True,
        "return_num_output_tokens": True,
        "sampling_parameters": {"n": 3, "seed": 11, "max_tokens": 20},
    }
    (single,) = ask(server, "tiny", exclude_input_in_output=True, **asked)  # type: ignore[arg-type]
    texts = single.outputs["text_output"]
    assert len(set(texts)) == 3
    streamed = ask(server, "tiny", stream=True, **asked)  # type: ignore[arg-type]
    assert [text_of(streamed, index) for index in range(3)] == texts
    assert all(len(response.outputs["text_output"]) == 3 for response in streamed)
    assert streamed[-1].outputs["finish_reason"] == ["length"] * 3
    alone = {**asked, "sampling_parameters": {"seed": 11, "max_tokens": 20}}
    assert text_of(ask(server, "tiny", exclude_input_in_output=True, **alone)) == texts[0]  # type: ignore[arg-type]


def test_seeds(server: LocalServer) -> None:
    def text(seed: int | None) -> str:
        parameters = {"max_tokens": 24} if seed is None else {"max_tokens": 24, "seed": seed}
        return text_of(ask(server, "tiny", text_input=PROMPT, sampling_parameters=parameters))

    assert text(1) == text(1) != text(2)
    assert text(None) != text(None)


def test_messages_and_input_ids(server: LocalServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    chat = ask(server, "tiny", messages=messages, sampling_parameters={"temperature": 0})
    ids = [257, *b"user: hi\nassistant: "]
    by_ids = ask(server, "tiny", input_ids=ids, sampling_parameters={"temperature": 0})
    assert text_of(chat) == text_of(by_ids)


def test_stats_come_with_the_last_response(server: LocalServer) -> None:
    parameters = {"temperature": 0, "ignore_eos": True}
    responses = ask(server, "tiny", text_input=PROMPT, stream=True, return_stats=True, sampling_parameters=parameters)
    assert all("stats" not in response.outputs for response in responses[:-1])
    stats = json.loads(responses[-1].outputs["stats"][0])
    assert stats["prompt_tokens"] == len(PROMPT) and stats["output_tokens"] == 16
    assert stats["prefill_ms"] > 0 and stats["decode_ms"] > 0 and stats["queue_ms"] >= 0
    long = "a prompt of more than one page " * 3
    ask(server, "tiny", text_input=long)
    (again,) = ask(server, "tiny", text_input=long, return_stats=True)
    assert json.loads(again.outputs["stats"][0])["cached_tokens"] == (len(long) - 1) // 16 * 16


def test_stream_interval_sets_the_least_size_of_a_response(server: LocalServer) -> None:
    responses = ask(
        server,
        "interval",
        text_input=PROMPT,
        stream=True,
        return_num_output_tokens=True,
        parameters={"max_tokens": 18, "ignore_eos": True},
    )
    counts = [response.outputs["num_output_tokens"][0] for response in responses]
    assert sum(counts) == 18 and all(count >= 4 for count in counts[:-1])


def test_characters_are_never_cut(server: LocalServer) -> None:
    """The tiny model's bytes are mostly no UTF-8: what is sent must still be the decoding of the whole."""
    for seed in range(5):
        parameters = {"max_tokens": 60, "seed": seed, "temperature": 1.5, "logprobs": 0}
        responses = ask(
            server, "tiny", text_input="é€😀", stream=True, return_logprobs=True, sampling_parameters=parameters
        )
        ids = [int(next(iter(e))) for r in responses for e in json.loads(r.outputs["logprobs"][0])]
        assert text_of(responses) == bytes(i for i in ids if i < 256).decode(errors="replace")


BAD: list[tuple[dict[str, object], str]] = [
    ({}, "text_input, messages, input_ids"),
    ({"text_input": ""}, "prompt is empty"),
    ({"text_input": PROMPT, "sampling_parameters": "{"}, "not valid JSON"),
    ({"text_input": PROMPT, "sampling_parameters": {"max_token": 3}}, "did you mean 'max_tokens'"),
    ({"text_input": PROMPT, "sampling_parameters": {"temperature": -1}}, "temperature"),
    ({"text_input": "x" * 1_000_000}, "1000000 characters; this model takes at most 4095 tokens"),
    ({"text_input": "x" * 5000}, "5000 tokens; this model takes at most 4095"),
    ({"text_input": PROMPT, "sampling_parameters": {"max_tokens": 5000}}, "max_tokens may be at most 4087"),
    ({"messages": "[]"}, "non-empty"),
    ({"text_input": PROMPT, "stream": True, "exclude_input_in_output": False}, "exclude_input_in_output"),
    ({"input_ids": [1, 1000]}, "token id 1000"),
    *[({"text_input": PROMPT, name: "x"}, name) for name in REFUSED_INPUTS],
]


@pytest.mark.parametrize(("values", "message"), BAD)
def test_bad_requests_are_refused_by_name(server: LocalServer, values: dict[str, object], message: str) -> None:
    (response,) = ask(server, "tiny", **values)  # type: ignore[arg-type]
    assert response.error is not None and message in response.error


def test_error_codes(server: LocalServer) -> None:
    """gRPC streams carry the code when the client asks for it."""
    arrived: list[object] = []
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: arrived.append(error), headers={"triton_grpc_error": "true"})
        client.async_stream_infer("tiny", tensors(text_input=""))
        client.stop_stream()
    assert "INVALID_ARGUMENT" in str(arrived[0]), arrived
    response = generate(server, "tiny", text_input=PROMPT, top_p=7)
    assert response.status_code == 400 and "top_p" in response.json()["error"]


def test_a_model_without_chat_template_says_so(server: LocalServer) -> None:
    (response,) = ask(server, "unchatty", messages=[{"role": "user", "content": "hi"}])
    assert response.error is not None and "no chat template" in response.error


def test_a_template_that_refuses_gives_its_own_words(server: LocalServer) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    (response,) = ask(server, "tiny", messages=messages)
    assert response.error is not None and "Roles must alternate." in response.error


def test_one_bad_request_harms_no_other(server: LocalServer) -> None:
    """Good and bad requests on one stream: each gets its own answer."""
    arrived: queue.Queue[tuple[object, object]] = queue.Queue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        for number in range(20):
            parameters = {"max_tokens": 4} if number % 2 else {"max_tokens": "many"}
            client.async_stream_infer("tiny", tensors(text_input=PROMPT, sampling_parameters=parameters))
        answers = [arrived.get(timeout=30) for _ in range(20)]
        client.stop_stream()
    assert sum(error is None for _, error in answers) == 10
    assert all("max_tokens" in str(error) for _, error in answers if error is not None)
