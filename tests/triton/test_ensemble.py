"""Tokenizer -> language model -> detokenizer on a real Triton: the ensemble face, and the token face beneath it."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import requests
import tritonclient.grpc as grpcclient

from asking import (
    Response,
    ask,
    batched,
    generate,
    generate_stream,
    is_idle,
    metric,
    response_of,
    tensor,
    tensors,
    text_of,
    wait_until,
)
from python_llm.triton_io.io_spec import MODEL_IO
from python_llm.triton_io.word_lists import pack_words
from python_llm_client.local_server import LocalServer
from python_llm_client.stop_request import stop_generation
from server import running_server
from tiny_repository import add_ensemble, add_model

pytestmark = pytest.mark.triton

PROMPT = "Once upon"
FOREVER = {"max_tokens": 4000, "end_id": -1}
E_ACUTE = json.dumps(dict.fromkeys("é".encode(), 100))
"""Logit bias: nothing but the two bytes of é, in any order."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    add_model(repository, "tiny", max_num_seqs=32)
    add_ensemble(repository, "tiny")
    add_model(repository, "narrow", max_num_seqs=1, max_queue_size=2)
    add_ensemble(repository, "narrow")
    models = [f"{model}_ensemble" for model in ("tiny", "narrow")]
    add_model(repository, "doubled")
    add_ensemble(repository, "doubled")
    group = "instance_group [{ kind: KIND_CPU count: 2 }]\n"
    with (repository / "doubled_detokenizer" / "config.pbtxt").open("a") as config:
        config.write(group)
    with running_server(repository, models=models) as running:
        yield running


def by_ensemble(
    server: LocalServer, model: str = "tiny", parameters: dict[str, Any] | None = None, **values: Any
) -> list[Response]:
    return ask(server, f"{model}_ensemble", inputs=batched(**values), parameters=parameters)


def by_text_face(server: LocalServer, prompt: str, **sampling: Any) -> str:
    return text_of(ask(server, "tiny", text_input=prompt, stream=True, sampling_parameters=sampling))


# What goes in and what comes out.


@pytest.mark.parametrize("model", ["tiny", "tiny_tokenizer", "tiny_detokenizer"])
def test_one_line_of_config_is_completed(server: LocalServer, model: str) -> None:
    config = requests.get(f"http://127.0.0.1:{server.http_port}/v2/models/{model}/config", timeout=10).json()
    io = MODEL_IO[model.partition("_")[2] or "llm"]
    assert config["max_batch_size"] == 0
    assert config["model_transaction_policy"]["decoupled"] == io.decoupled
    for ours, theirs in ((io.inputs, config["input"]), (io.outputs, config["output"])):
        assert {(t["name"], t["data_type"], tuple(t["dims"])) for t in ours} == {
            (t["name"], t["data_type"], tuple(int(d) for d in t["dims"])) for t in theirs
        }


def test_text_models_do_without_torch(server: LocalServer) -> None:
    looked_at = set()
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            for model in ("tiny_tokenizer", "tiny_detokenizer", "tiny"):
                if "triton_python_backend_stub" in command and f"/{model}/" in command:
                    has_torch = any("libtorch" in region.path for region in process.memory_maps())
                    assert has_torch == (model == "tiny"), model
                    looked_at.add(model)
    assert len(looked_at) == 3


def test_a_stream_and_a_single_answer_are_the_text_faces(server: LocalServer) -> None:
    expected = by_text_face(server, PROMPT, max_tokens=40, temperature=0)
    asked = {"text_input": PROMPT, "max_tokens": 40}
    streamed = by_ensemble(server, stream=True, **asked)
    (single,) = by_ensemble(server, **asked)
    assert len(streamed) > 1
    assert text_of(streamed) == single.outputs["text_output"][0] == expected
    assert [r.outputs["finish_reason"] for r in streamed] == [["None"]] * (len(streamed) - 1) + [["length"]]
    assert [r.is_final for r in streamed] == [False] * (len(streamed) - 1) + [True]
    answer = generate(server, "tiny_ensemble", **asked)
    assert answer.status_code == 200 and answer.json()["text_output"] == expected
    events = generate_stream(server, "tiny_ensemble", stream=True, **asked)
    assert "".join(event["text_output"] for event in events) == expected


def test_messages_and_the_prompt_before_the_output(server: LocalServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    expected = text_of(ask(server, "tiny", messages=messages, sampling_parameters={"temperature": 0}))
    assert text_of(by_ensemble(server, messages=json.dumps(messages))) == expected
    (echoed,) = by_ensemble(server, text_input="中é", exclude_input_in_output=False)
    assert echoed.outputs["text_output"] == ["中é" + by_text_face(server, "中é", temperature=0)]


def test_sampling_inputs_have_the_effect_of_the_text_faces(server: LocalServer) -> None:
    """Each changes the text, and to the very text that the parameter of the text face gives."""
    base = {"max_tokens": 24, "temperature": 0.9, "seed": 7}
    plain = by_text_face(server, PROMPT, **base)
    assert text_of(by_ensemble(server, text_input=PROMPT, **base)) == plain
    for ours, theirs in (
        ({"top_k": 2}, {"top_k": 2}),
        ({"top_p": 0.3}, {"top_p": 0.3}),
        ({"temperature": 0.4}, {"temperature": 0.4}),
        ({"seed": 8}, {"seed": 8}),
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"presence_penalty": 1.9}, {"presence_penalty": 1.9}),
        ({"frequency_penalty": 1.9}, {"frequency_penalty": 1.9}),
        ({"max_tokens": 9}, {"max_tokens": 9}),
        ({"stop_words": [plain[6:9], "x"]}, {"stop": [plain[6:9], "x"]}),
        ({"bad_words": [plain[0]]}, {"bad_words": [plain[0]]}),
    ):
        expected = by_text_face(server, PROMPT, **{**base, **theirs})
        assert expected != plain, theirs
        assert text_of(by_ensemble(server, text_input=PROMPT, stream=True, **{**base, **ours})) == expected, ours
    renamed = {"max_tokens": 24, "temperature": 0.9, "random_seed": 7, "min_length": 1}
    assert text_of(by_ensemble(server, text_input=PROMPT, **renamed)) == plain


def test_end_id_and_min_length(server: LocalServer) -> None:
    text = by_text_face(server, PROMPT, max_tokens=20, temperature=0, ignore_eos=True, logprobs=0)
    first = ord(text[4]) if ord(text[4]) < 128 else None
    asked: dict[str, Any] = {"input_ids": list(PROMPT.encode()), "sampling_parameters": {"max_tokens": 20}}
    (whole,) = ask(server, "tiny", outputs=["output_ids"], **asked)
    ids = whole.outputs["output_ids"][0][0]
    end = first if first in ids else ids[4]
    (ended,) = by_ensemble(server, text_input=PROMPT, max_tokens=20, end_id=end, return_num_output_tokens=True)
    assert ended.outputs["finish_reason"] == ["stop"]
    assert ended.outputs["num_output_tokens"] == [ids.index(end) + 1]
    (longer,) = by_ensemble(
        server, text_input=PROMPT, max_tokens=20, end_id=end, min_length=12, return_num_output_tokens=True
    )
    assert longer.outputs["num_output_tokens"][0] >= 12


def test_request_parameters_reach_the_language_model(server: LocalServer) -> None:
    """What has no input of its own: min_p, logit_bias, n ... and what is misspelt."""
    (two,) = by_ensemble(server, text_input=PROMPT, temperature=1.0, seed=5, parameters={"n": 2})
    both = ask(server, "tiny", text_input=PROMPT, stream=True, sampling_parameters={"seed": 5, "n": 2})
    assert two.outputs["text_output"] == [text_of(both, 0), text_of(both, 1)]
    (wrong,) = by_ensemble(server, text_input=PROMPT, parameters={"min_pp": 0.1})
    assert "did you mean 'min_p'" in str(wrong.error)


def test_log_probs_go_with_their_tokens(server: LocalServer) -> None:
    asked = {"text_input": PROMPT, "max_tokens": 30, "return_log_probs": True, "return_num_output_tokens": True}
    streamed = by_ensemble(server, stream=True, **asked)
    (single,) = by_ensemble(server, return_num_input_tokens=True, **asked)
    values = single.outputs["output_log_probs"][0][0]
    assert len(values) == single.outputs["num_output_tokens"][0] == 30
    assert single.outputs["num_input_tokens"] == [len(PROMPT)]
    assert [v for r in streamed for v in r.outputs["output_log_probs"][0][0]] == values
    assert all(len(r.outputs["output_log_probs"][0][0]) == r.outputs["num_output_tokens"][0] for r in streamed)
    assert streamed[-1].outputs["cum_log_probs"][0][0] == pytest.approx(sum(values), rel=1e-5)
    (text_face,) = ask(
        server, "tiny", text_input=PROMPT, return_logprobs=True, parameters={"max_tokens": 30, "temperature": 0}
    )
    theirs = [next(iter(entry.values()))["logprob"] for entry in json.loads(text_face.outputs["logprobs"][0])]
    assert values == pytest.approx(theirs, rel=1e-5)
    assert "output_log_probs" not in by_ensemble(server, text_input=PROMPT)[0].outputs, "not asked for"


def test_characters_are_never_cut(server: LocalServer) -> None:
    for seed in range(4):
        sampling = {"max_tokens": 60, "seed": seed, "temperature": 1.5}
        for parameters in ({}, {"logit_bias": E_ACUTE}):
            streamed = by_ensemble(server, parameters=parameters, text_input="é€😀中", stream=True, **sampling)
            expected = by_text_face(server, "é€😀中", **sampling, **parameters)
            assert text_of(streamed) == expected
            assert parameters == {} or ("é" in expected and "\ufffd" in expected)


def test_a_large_last_response_arrives_whole(server: LocalServer) -> None:
    parameters = {"n": 8}
    (data, *trailer) = by_ensemble(
        server, text_input=PROMPT, max_tokens=1500, end_id=-1, return_log_probs=True, parameters=parameters
    )
    assert np.array(data.outputs["output_log_probs"]).shape == (1, 8, 1500)
    assert data.is_final or trailer == [Response(is_final=True)]


def test_32_streams_at_once_give_the_texts_of_one_by_one_in_order(server: LocalServer) -> None:
    prompts = [f"{'shared beginning ' * (i % 4)}prompt number {i}" for i in range(32)]
    sampling = {"max_tokens": 48, "temperature": 0.8, "seed": 3}
    expected = [by_text_face(server, prompt, **sampling) for prompt in prompts]

    def over_grpc(prompt: str) -> str:
        return text_of(by_ensemble(server, text_input=prompt, stream=True, **sampling))

    def over_sse(prompt: str) -> str:
        events = generate_stream(server, "tiny_ensemble", text_input=prompt, stream=True, **sampling)
        return "".join(event["text_output"] for event in events)

    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(over_grpc, prompts)) == expected
        assert list(pool.map(over_sse, prompts)) == expected
    wait_until(lambda: is_idle(server, "tiny"))


# The token face, alone.


def test_ids_in_ids_out_on_the_same_model(server: LocalServer) -> None:
    prompt = "a prompt of more than one page, which both faces share"
    entries = ask(
        server, "tiny", text_input=prompt, return_logprobs=True, parameters={"max_tokens": 12, "temperature": 0}
    )[0].outputs["logprobs"]
    expected = [int(next(iter(entry))) for entry in json.loads(entries[0])]
    inputs = [*tensors(input_ids=list(prompt.encode()), request_output_len=[12], return_stats=True)]
    (single,) = ask(server, "tiny", inputs=inputs)
    assert single.outputs["output_ids"] == [[expected]]
    assert single.outputs["sequence_length"] == [[12]]
    assert "text_output" not in single.outputs
    cached = json.loads(single.outputs["stats"][0])["cached_tokens"]
    assert cached == (len(prompt) - 1) // 16 * 16, "the pages that the text face computed"
    streamed = ask(server, "tiny", inputs=[*inputs, *tensors(streaming=True)])
    assert [i for r in streamed for i in r.outputs["output_ids"][0][0]] == expected
    sent = list(prompt.encode())
    for response in streamed:
        assert response.outputs["context_ids"][0][0] == sent[-4:]
        sent += response.outputs["output_ids"][0][0]
    http = generate(server, "tiny", input_ids=list(prompt.encode()), request_output_len=12)
    assert http.json()["output_ids"] == expected


def test_word_lists(server: LocalServer) -> None:
    inputs = tensors(input_ids=list(PROMPT.encode()), request_output_len=[24])
    (plain,) = ask(server, "tiny", inputs=inputs)
    ids = plain.outputs["output_ids"][0][0]
    word = ids[5:8]
    at = next(i for i in range(len(ids)) if ids[i : i + 3] == word)
    stop = tensor("stop_words_list", pack_words([word, (0, 0, 0, 0)]))
    for streaming in (True, False):
        responses = ask(server, "tiny", inputs=[*inputs, stop, *tensors(streaming=streaming)])
        assert [i for r in responses for i in r.outputs["output_ids"][0][0]] == ids[:at]
        assert responses[-1].outputs["finish_reason"] == ["stop"]
    (without,) = ask(server, "tiny", inputs=[*inputs, tensor("bad_words_list", pack_words([word]))])
    changed = without.outputs["output_ids"][0][0]
    assert changed[: at + 2] == ids[: at + 2] and changed[at + 2] != ids[at + 2]


BAD_TOKENS: list[tuple[list[grpcclient.InferInput], str]] = [
    (tensors(beam_width=[2]), "there is no beam search, 2 came"),
    (tensors(return_context_logits=True), "logits are not returned"),
    (tensors(input_lengths=[100]), "input_lengths"),
    (tensors(end_id=[1000]), "end_id"),
    ([tensor("stop_words_list", np.array([[[1, 2], [5, -1]]], dtype=np.int32))], "stop_words_list"),
    ([tensor("bad_words_list", np.array([[[1, 2]]], dtype=np.int32))], "bad_words_list"),
    ([tensor("stop_words_list", np.zeros((0, 2, 1), dtype=np.int32))], "stop_words_list"),
    ([tensor("runtime_top_p", np.array([np.nan], dtype=np.float32))], "runtime_top_p"),
    ([tensor("temperature", np.array([1], dtype=np.int32))], "temperature"),
    ([tensor("runtime_top_k", np.array([1, 2], dtype=np.int32))], "runtime_top_k"),
    ([tensor("embedding_bias", np.zeros(258, dtype=np.float32))], "embedding_bias"),
    (tensors(num_return_sequences=[2]), "num_return_sequences"),
    (tensors(text_input="both"), "text_input and input_ids came"),
]


@pytest.mark.parametrize(("more", "message"), BAD_TOKENS)
def test_what_is_not_served_is_refused(server: LocalServer, more: list[grpcclient.InferInput], message: str) -> None:
    inputs = tensors(input_ids=[1, 2], request_output_len=[2])
    (refused,) = ask(server, "tiny", inputs=[*inputs, *more])
    assert message in str(refused.error)


def test_malformed_requests_harm_no_other(server: LocalServer) -> None:
    """Good and bad requests of both faces and of the ensemble on one stream: each gets its own answer."""
    good = [
        ("tiny", tensors(input_ids=[1, 2], request_output_len=[4])),
        ("tiny_ensemble", batched(text_input=PROMPT, max_tokens=4)),
    ]
    bad: list[tuple[str, list[grpcclient.InferInput]]] = [
        ("tiny", [*tensors(input_ids=[1, 2], request_output_len=[4]), *more]) for more, _ in BAD_TOKENS
    ]
    bad += [
        ("tiny_ensemble", batched(text_input=b"\xff")),
        ("tiny_ensemble", batched(text_input=PROMPT, max_tokens=0)),
        ("tiny_ensemble", batched(text_input=PROMPT, beam_width=3)),
        ("tiny_ensemble", batched()),
        ("tiny_ensemble", batched(text_input=[PROMPT, PROMPT])),
        ("tiny_ensemble", batched(text_input=PROMPT, lora_task_id=3)),
        ("tiny_tokenizer", batched(messages="[")),
    ]
    arrived: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: arrived.put(error))
        for number, (model, inputs) in enumerate(bad):
            client.async_stream_infer(model, inputs)
            other, good_inputs = good[number % 2]
            client.async_stream_infer(other, good_inputs)
        errors = [arrived.get(timeout=30) for _ in range(2 * len(bad))]
        client.stop_stream()
    assert sum(error is None for error in errors) == len(bad), errors
    wait_until(lambda: is_idle(server, "tiny"))


# Leaving, stopping, codes.


@contextlib.contextmanager
def running(server: LocalServer, model: str, request_id: str, **values: Any) -> Iterator[queue.Queue[Any]]:
    """An endless request of an ensemble, and the queue of what comes back: the responses."""
    arrived: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: arrived.put(str(error) if error else response_of(result)))
        inputs = batched(text_input=PROMPT, **FOREVER, **values)
        client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)
        yield arrived
        client.stop_stream()


def is_running(server: LocalServer, model: str) -> bool:
    return metric(server, "vllm:num_requests_running", model) > 0


def last_of(arrived: queue.Queue[Any]) -> Response:
    while True:
        response = arrived.get(timeout=30)
        assert isinstance(response, Response), response
        if response.is_final:
            return response


def was_stopped(response: Response) -> bool:
    return bool(response.outputs["finish_reason"] == ["cancelled"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_request_ends_the_request_with_its_id(server: LocalServer, stream: bool) -> None:
    url = f"127.0.0.1:{server.grpc_port}"
    with (
        running(server, "tiny_ensemble", "mine", stream=stream) as mine,
        running(server, "tiny_ensemble", "theirs", stream=stream) as theirs,
    ):
        wait_until(lambda: metric(server, "vllm:num_requests_running", "tiny") == 2)
        assert stop_generation(url, "tiny_ensemble", "mine")
        assert was_stopped(last_of(mine))
        wait_until(lambda: metric(server, "vllm:num_requests_running", "tiny") == 1)
        # The language model itself takes it too.
        (answer,) = ask(server, "tiny", inputs=tensors(stop=True), request_id="theirs")
        assert answer.error is None
        assert was_stopped(last_of(theirs))
    wait_until(lambda: is_idle(server, "tiny"))
    assert stop_generation(url, "tiny_ensemble", "mine"), "it has ended: nothing to stop is no error"


def test_a_stop_request_reaches_what_waits(server: LocalServer) -> None:
    url = f"127.0.0.1:{server.grpc_port}"
    with running(server, "narrow_ensemble", "first") as first, running(server, "narrow_ensemble", "second") as second:
        wait_until(lambda: metric(server, "vllm:num_requests_waiting", "narrow") == 1)
        assert stop_generation(url, "narrow_ensemble", "second")
        assert was_stopped(last_of(second))
        assert is_running(server, "narrow")
        assert stop_generation(url, "narrow_ensemble", "first")
        assert was_stopped(last_of(first))
    wait_until(lambda: is_idle(server, "narrow"))


def test_over_http_too(server: LocalServer) -> None:
    """So the client of a /generate without a stream, whom Triton does not watch, can stop as well."""
    for model in ("tiny_ensemble", "tiny"):
        forever: dict[str, Any] = {"text_input": PROMPT, "max_tokens": 4000, "id": "over http"}
        forever |= {"end_id": -1} if model == "tiny_ensemble" else {
            "ignore_eos": True,
            "temperature": 0,
            "return_finish_reason": True,
        }
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(generate, server, model, **forever)
            wait_until(lambda: is_running(server, "tiny"))
            assert generate(server, model, stop=True, id="over http").status_code == 200
            assert answer.result(timeout=30).json()["finish_reason"] == "cancelled"
        wait_until(lambda: is_idle(server, "tiny"))


def test_a_stop_request_must_say_which(server: LocalServer) -> None:
    for model, inputs in (("tiny", tensors(stop=True)), ("tiny_ensemble", batched(stop=True))):
        (refused,) = ask(server, model, inputs=inputs)
        assert "must carry the request id" in str(refused.error)
    with pytest.raises(ValueError, match="no id"):
        stop_generation(f"127.0.0.1:{server.grpc_port}", "tiny_ensemble", "")
    assert not stop_generation(f"127.0.0.1:{server.grpc_port}", "nobody", "x", timeout=2)


def test_limits_are_said_through_the_ensemble(server: LocalServer) -> None:
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(running(server, "narrow_ensemble", f"full {i}")) for i in range(3)]
        wait_until(lambda: metric(server, "vllm:num_requests_waiting", "narrow") == 2)
        (full,) = by_ensemble(server, "narrow", text_input=PROMPT)
        assert "the limit is 3" in str(full.error)
        for i, arrived in enumerate(streams):
            assert stop_generation(f"127.0.0.1:{server.grpc_port}", "narrow_ensemble", f"full {i}")
            assert was_stopped(last_of(arrived))
    for stream in (True, False):
        inputs = batched(text_input=PROMPT, stream=stream, **FOREVER)
        late = ask(server, "tiny_ensemble", inputs=inputs, timeout_us=200_000, codes=True)[-1]
        assert "UNAVAILABLE" in str(late.error) and "deadline exceeded" in str(late.error)
    wait_until(lambda: is_idle(server, "tiny"))


def test_refusals_keep_their_codes_and_leave_the_server_alive(server: LocalServer) -> None:
    """An error that comes too early crashes tritonserver after about 40 when the client asks for codes."""
    for _ in range(60):
        (refused,) = ask(server, "tiny", inputs=tensors(text_input=""), codes=True)
        assert "INVALID_ARGUMENT" in str(refused.error) and "prompt is empty" in str(refused.error)
    for values, message in (({"text_input": b"\xff"}, "not valid UTF-8"), ({"text_input": "a", "top_p": 7.0}, "top_p")):
        for _ in range(10):
            (refused,) = ask(server, "tiny_ensemble", inputs=batched(**values), codes=True)
            assert "INVALID_ARGUMENT" in str(refused.error) and message in str(refused.error)
            assert "in ensemble 'tiny_ensemble'" in str(refused.error)


def test_clients_that_leave_and_say_so_leave_nothing_behind(server: LocalServer) -> None:
    rng = random.Random(1)
    plans = [(rng.random() * 0.3, rng.random() < 0.7, number) for number in range(60)]

    def visit(plan: tuple[float, bool, int]) -> None:
        stay, stream, _ = plan
        request_id = uuid.uuid4().hex
        with running(server, "tiny_ensemble", request_id, stream=stream) as arrived:
            time.sleep(stay)
            # A stop that overtakes its request finds nothing: the client sees its stream go on, and says it again.
            ended = threading.Event()
            reader = threading.Thread(target=lambda: (last_of(arrived), ended.set()))
            reader.start()
            while not ended.wait(0.5):
                assert stop_generation(f"127.0.0.1:{server.grpc_port}", "tiny_ensemble", request_id, timeout=20)
            reader.join()

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(visit, plans))
    wait_until(lambda: is_idle(server, "tiny"))
    assert text_of(by_ensemble(server, text_input="still there?", end_id=-1))


def test_an_ensemble_unloads_after_all_that(server: LocalServer) -> None:
    """Triton never unloads an ensemble of whose requests it has lost track; by now there were all kinds of them."""
    url = f"http://127.0.0.1:{server.http_port}/v2/repository"
    requests.post(f"{url}/models/tiny_ensemble/unload", timeout=60).raise_for_status()

    def state() -> str:
        index = requests.post(f"{url}/index", timeout=10).json()
        return str(next(model["state"] for model in index if model["name"] == "tiny_ensemble"))

    wait_until(lambda: state() == "UNAVAILABLE")
    requests.post(f"{url}/models/tiny_ensemble/load", timeout=60).raise_for_status()
    assert text_of(by_ensemble(server, text_input="again", end_id=-1))


def test_two_detokenizers_are_refused_at_load(server: LocalServer) -> None:
    url = f"http://127.0.0.1:{server.http_port}/v2/repository/models/doubled_detokenizer/load"
    answer = requests.post(url, timeout=60)
    assert answer.status_code == 400
    assert "a model of kind detokenizer must have 1 instance, config.pbtxt asks for 2" in answer.text
