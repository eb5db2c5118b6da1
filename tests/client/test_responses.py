"""Triton's responses read from their bytes, and what becomes of them as a whole."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferResult, service_pb2
from tritonclient.utils import serialize_byte_tensor

from python_llm_client.answers import Delta, Stats, Usage, collect
from python_llm_client.failures import (
    _SAID,
    ClientError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
    code_of,
    explain,
)
from python_llm_client.request import GenerationRequest
from python_llm_client.responses import ResponseReader
from python_llm_client.retry import RetryPolicy, is_safe_to_retry

_KINDS = {
    "num_output_tokens": ("UINT32", "<u4"),
    "num_input_tokens": ("UINT32", "<u4"),
    "cumulative_logprob": ("FP32", "<f4"),
}


def response(*, final: bool = False, **outputs: list[Any]) -> Any:
    message = service_pb2.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = final
    for name, values in outputs.items():
        kind, dtype = _KINDS.get(name, ("BYTES", ""))
        if dtype:
            raw = np.array(values, dtype=dtype).tobytes()
        else:
            raw = serialize_byte_tensor(np.array([value.encode() for value in values], dtype=object)).item()
        message.outputs.add(name=name, datatype=kind, shape=[len(values)])
        message.raw_output_contents.append(raw)
    return message


def test_the_bytes_are_read_as_tritonclient_reads_them() -> None:
    texts, counts, sums = ["é\U0001f642", "", "plain"], [1, 0, 70000], [-0.5, 0.0, -1e9]
    message = response(text_output=texts, num_output_tokens=counts, cumulative_logprob=sums)
    result = InferResult(message)
    deltas = ResponseReader().read(message)
    assert [(d.index, d.text, d.tokens) for d in deltas] == [(0, "é\U0001f642", 1), (2, "plain", 70000)]
    assert [text.decode() for text in result.as_numpy("text_output")] == texts
    assert [d.cumulative_logprob for d in deltas] == [result.as_numpy("cumulative_logprob")[i] for i in (0, 2)]


def test_a_sequence_that_has_ended_ends_once() -> None:
    reader = ResponseReader()
    first = reader.read(response(text_output=["a", "b"], num_output_tokens=[1, 1], finish_reason=["stop", "None"]))
    second = reader.read(
        response(
            text_output=["", "c"],
            num_output_tokens=[0, 2],
            finish_reason=["stop", "length"],
            num_input_tokens=[5],
            stats=['{"cached_tokens": 3, "drafted_tokens": 4, "accepted_tokens": 2, "of_later_servers": 1}'],
            final=True,
        )
    )
    assert [(d.index, d.finish_reason, d.usage) for d in first] == [(0, "stop", None), (1, None, None)]
    assert [(d.index, d.finish_reason) for d in second] == [(1, "length")]
    assert second[0].usage == Usage(prompt_tokens=5, output_tokens=4, cached_tokens=3)
    assert second[0].stats == Stats(cached_tokens=3, drafted_tokens=4, accepted_tokens=2)
    answer = collect([*first, *second], 2)
    assert [(c.text, c.tokens, c.finish_reason) for c in answer.choices] == [("a", 1, "stop"), ("bc", 3, "length")]
    assert answer.usage.total_tokens == 9


def test_a_final_flag_that_comes_alone_tells_the_cost() -> None:
    reader = ResponseReader()
    reader.read(response(text_output=["a"], num_output_tokens=[1]))
    assert reader.read(response(final=True)) == [Delta(0, "", 0, usage=Usage(0, 1))]
    assert reader.over


def test_logprobs_have_the_chosen_token_apart_from_the_likeliest() -> None:
    def told(logprob: float, rank: int, text: str) -> dict[str, Any]:
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    unlikely = {"9": told(-5.0, 30, "z"), "1": told(-0.1, 1, "a"), "2": told(-2.0, 2, "b")}
    among_them = {"2": told(-2.0, 2, "b"), "1": told(-0.1, 1, "a")}
    reader = ResponseReader(num_top=2)
    (delta,) = reader.read(response(text_output=["zb"], logprobs=[json.dumps([unlikely, among_them])]))
    assert delta.logprobs is not None
    assert [entry.chosen.text for entry in delta.logprobs] == ["z", "b"]
    assert [[token.text for token in entry.top] for entry in delta.logprobs] == [["a", "b"], ["a", "b"]]
    (delta,) = ResponseReader().read(response(text_output=["z"], logprobs=[json.dumps([{"9": told(-5.0, 30, "z")}])]))
    assert delta.logprobs is not None
    assert delta.logprobs[0].top == ()


@pytest.mark.parametrize(
    ("code", "message", "kind", "shown"),
    [
        ("INVALID_ARGUMENT", "n must be ...", InvalidRequestError, "INVALID_ARGUMENT"),
        ("", "Request for unknown model: 'x' is not found", NotFoundError, "NOT_FOUND"),
        ("UNAVAILABLE", "failed to connect to all addresses", UnreachableError, "UNAVAILABLE"),
        ("UNAVAILABLE", "Socket closed", ConnectionLostError, "UNAVAILABLE"),
        ("", "too many requests: 3", UnavailableError, "UNAVAILABLE"),
        ("", "deadline exceeded: the request had 3 tokens", DeadlineExceededError, "DEADLINE_EXCEEDED"),
        ("", "the engine failed in a step: ...", ClientError, "INTERNAL"),
        ("", "n must be ...", InvalidRequestError, "INVALID_ARGUMENT"),
    ],
)
def test_errors_by_code(code: str, message: str, kind: type[ClientError], shown: str) -> None:
    error = explain(code, message, "host:1")
    assert type(error) is kind
    assert error.code == shown


def test_an_unknown_error_after_the_first_part_is_not_about_the_request() -> None:
    assert explain("", "the echo broke", "host:1", has_begun=True).code == "INTERNAL"


def test_the_texts_by_which_codes_are_known_are_those_of_the_backend() -> None:
    """Whoever words one of these anew must tell the client."""
    code = {
        path: path.read_text(encoding="utf-8")
        for path in (Path(__file__).parents[2] / "backends" / "python_llm").glob("**/*.py")
    }
    tritons = ("Request for unknown model", "Server is stopping", "Failed to", "Stub process")
    for _, beginnings in _SAID:
        for text in beginnings:
            assert text.startswith(tritons) or any(text in source for source in code.values()), text
    own_faults, others = [], []
    for source in code.values():
        # Said at once, or given a name before.
        own_faults += re.findall(r'\b(?:EngineError|RequestError)\(\s*f?"([^"{]+)', source)
        for name in re.findall(r"\b(?:EngineError|RequestError)\((\w+)\)", source):
            own_faults += re.findall(rf'\b{name} = \(?\s*f?"([^"{{]+)', source)
        others += re.findall(r'\bUnavailableError\(\s*f?"([^"{]+)', source)
    assert len(own_faults) >= 6
    assert len(others) >= 3
    for said in own_faults:
        assert code_of(said, has_begun=False) == "INTERNAL", said
    for said in others:
        assert code_of(said, has_begun=False) in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}, said


def test_only_what_never_began_and_may_succeed_later_is_tried_again() -> None:
    refused, lost = UnavailableError("full", "UNAVAILABLE"), ConnectionLostError("gone", "UNAVAILABLE")
    assert is_safe_to_retry(refused, has_begun=False)
    assert is_safe_to_retry(lost, has_begun=False)
    assert not is_safe_to_retry(lost, has_begun=True)
    assert not is_safe_to_retry(DeadlineExceededError("late", "DEADLINE_EXCEEDED"), has_begun=False)
    assert not is_safe_to_retry(InvalidRequestError("wrong", "INVALID_ARGUMENT"), has_begun=False)
    delays = list(RetryPolicy(retries=6, first_delay=0.2, max_delay=2.0).delays())
    bounds = [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert len(delays) == 6
    assert all(bound / 2 <= delay <= bound for delay, bound in zip(delays, bounds, strict=True))
    assert list(RetryPolicy(retries=0).delays()) == []


def test_a_request_has_exactly_one_prompt() -> None:
    with pytest.raises(ValueError, match="exactly one of prompt, messages and input_ids, not none"):
        GenerationRequest("m")
    with pytest.raises(ValueError, match="not prompt and messages"):
        GenerationRequest("m", prompt="a", messages=[])


def test_only_what_is_asked_for_is_sent() -> None:
    plain = {tensor.name() for tensor in GenerationRequest("m", prompt="a", stream=True).tensors()}
    assert plain == {
        "text_input", "sampling_parameters", "stream", "return_finish_reason", "return_num_input_tokens",
        "return_num_output_tokens",
    }  # fmt: skip
    full = GenerationRequest("m", messages=[], tools=[], sampling={"logprobs": 0}, cumulative_logprob=True, stats=True)
    assert {tensor.name() for tensor in full.tensors()} == {
        "messages", "tools", "sampling_parameters", "exclude_input_in_output", "return_finish_reason",
        "return_num_input_tokens", "return_num_output_tokens", "return_logprobs", "return_cumulative_logprob",
        "return_stats",
    }  # fmt: skip
