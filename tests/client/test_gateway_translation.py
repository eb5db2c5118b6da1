"""OpenAI's and Ollama's bodies -> requests of the text face, and answers -> their bodies. No server, no HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, ValidationError

from python_llm_client.answers import Answer, Choice, Delta, Stats, TokenLogprob, TokenLogprobs, Usage
from python_llm_client.gateway.errors import ApiError
from python_llm_client.gateway.ollama import reply as ollama_reply
from python_llm_client.gateway.ollama import translate as ollama_translate
from python_llm_client.gateway.ollama.schema import ChatRequest, GenerateRequest
from python_llm_client.gateway.openai import reply
from python_llm_client.gateway.openai.answers_schema import ChatCompletion as OwnChatCompletion
from python_llm_client.gateway.openai.answers_schema import Completion as OwnCompletion
from python_llm_client.gateway.openai.chunks import ChatChunks, CompletionChunks
from python_llm_client.gateway.openai.schema import ChatCompletionRequest, CompletionRequest
from python_llm_client.gateway.openai.translate import chat_request, completion_requests, echoes
from python_llm_client.gateway.servers import ServedModel

MODEL = ServedModel(
    "m%d", frozenset({"text_input", "sampling_parameters", "messages", "input_ids", "return_stats"}), since=1
)
OTHER = ServedModel("vllm", frozenset({"text_input", "sampling_parameters"}), since=1)
USER = {"role": "user", "content": "Hi"}


def chat(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": "m%d", "messages": [USER], **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m%d", "prompt": "Hi", **fields})


def test_a_plain_chat() -> None:
    request = chat_request(chat(), MODEL)
    assert request.messages == [USER]
    assert request.sampling == {"max_tokens": None}
    assert (request.model, request.stream, request.stats, request.prompt) == ("m%d", False, True, None)


def test_every_parameter_of_a_chat_arrives() -> None:
    same = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": -0.1, "seed": 3,
        "stop": ["a", "b"], "logit_bias": {"5": -100.0}, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
        "min_tokens": 1, "stop_token_ids": [4], "bad_words": ["x"], "ignore_eos": True, "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }  # fmt: skip
    body = chat(**same, max_completion_tokens=9, logprobs=True, top_logprobs=4, stream=True, user="me", metadata={})
    request = chat_request(body, MODEL)
    assert request.sampling == {**same, "max_tokens": 9, "logprobs": 4}
    assert request.stream


def test_no_parameter_of_a_body_is_dropped_in_silence() -> None:
    """Each field of the schema is translated, shapes the answer, or is among those that tell nothing about it."""
    shaping = {
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "max_completion_tokens",
        "logprobs",
        "top_logprobs",
        "stream",
    }
    shaping |= {"stream_options", "echo", "best_of"}
    harmless = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
    harmless |= {"prompt_cache_retention"}
    every: dict[str, Any] = dict.fromkeys({**ChatCompletionRequest.model_fields, **CompletionRequest.model_fields}, 1)
    every |= {"stop": "a", "logit_bias": {}, "stop_token_ids": [1], "bad_words": ["a"]}
    every |= dict.fromkeys(("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"), True)
    for name in every.keys() - shaping - harmless:
        assert name in chat_request(chat(**{name: every[name]}), MODEL).sampling, name
        assert name in completion_requests(completion(**{name: every[name]}), MODEL)[0].sampling, name


def test_messages_are_passed_on_as_they_are_but_for_a_role_that_templates_do_not_know() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    assert chat_request(chat(messages=messages), MODEL).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]


def test_a_model_without_a_template_completes_but_does_not_chat() -> None:
    with pytest.raises(ApiError, match="takes no chat messages"):
        chat_request(chat(), OTHER)
    assert not completion_requests(completion(), OTHER)[0].stats
    with pytest.raises(ApiError, match="takes no token ids"):
        completion_requests(completion(prompt=[1, 2]), OTHER)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [("a", None)]),
        (["a", "b"], [("a", None), ("b", None)]),
        ([1, 2], [(None, [1, 2])]),
        ([[1], [2, 3]], [(None, [1]), (None, [2, 3])]),
    ],
)
def test_prompts_of_a_completion(prompt: Any, expected: list[Any]) -> None:
    requests = completion_requests(completion(prompt=prompt), MODEL)
    assert [(request.prompt, request.input_ids) for request in requests] == expected
    assert all(request.sampling == {"n": 1, "max_tokens": 16} for request in requests)


def test_best_of_asks_for_more_and_for_what_tells_them_apart() -> None:
    (request,) = completion_requests(completion(n=2, best_of=5), MODEL)
    assert request.sampling["n"] == 5
    assert request.cumulative_logprob
    assert echoes(completion(prompt=["a", "b"], echo=True)) == ["a", "b"]
    assert echoes(completion(prompt=["a", "b"])) == ["", ""]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a content part of type 'image_url'"),
        ({"modalities": ["text", "audio"]}, "modalities is not supported"),
        ({"reasoning_effort": "high"}, "reasoning_effort is not supported"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"top_logprobs": 2}, "goes with logprobs: true only"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "differ"),
        ({"stream_options": {"include_usage": True}}, "goes with stream: true only"),
        ({"temperature": "0.5"}, "valid number"),
        ({"temperature": True}, "valid number"),
        ({"n": 0}, "greater than or equal to 1"),
        ({"top_p": float("nan")}, "finite"),
        ({"messages": []}, "at least 1 item"),
    ],
)
def test_what_a_chat_cannot_have(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(**fields)
    assert part in str(caught.value)


def test_values_that_ask_for_nothing_are_taken() -> None:
    body = chat(
        tools=[], tool_choice="auto", response_format={"type": "text"}, parallel_tool_calls=True, functions=None
    )
    assert chat_request(body, MODEL).sampling == {"max_tokens": None}


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"suffix": "x"}, "suffix is not supported"),
        ({"echo": True, "logprobs": 1}, "not together with logprobs"),
        ({"echo": True, "prompt": [1]}, "not with token ids"),
        ({"best_of": 1, "n": 2}, "must be at least n"),
        ({"best_of": 2, "stream": True}, "cannot be streamed"),
        ({"prompt": []}, "at least 1 entry"),
        ({"prompt": ["a"] * 65}, "at most 64 prompts"),
        ({"prompt": [-1]}, "greater than or equal to 0"),
        ({"prompt": ["a"] * 33, "n": 2}, "make 66 sequences"),
        ({"prompt": [[1]] * 2, "n": 1, "best_of": 33}, "2 prompts with best_of 33"),
    ],
)
def test_what_a_completion_cannot_have(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(ValidationError) as caught:
        completion(**fields)
    assert part in str(caught.value)


def test_as_many_sequences_as_go_into_a_request_are_taken() -> None:
    assert len(completion_requests(completion(prompt=["a"] * 32, n=2), MODEL)) == 32
    assert len(completion_requests(completion(prompt=[1] * 1000, n=64), MODEL)) == 1


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (CompletionRequest, {"prompt": [-1] * 1000}),
        (CompletionRequest, {"prompt": [*[1] * 1000, *["a"] * 1000]}),
        (CompletionRequest, {"prompt": [["a"] * 1000, [-1] * 1000]}),
        (CompletionRequest, {"prompt": [True] * 1000}),
        (CompletionRequest, {"prompt": [{}] * 1000}),
        (CompletionRequest, {"prompt": {"a": 1}}),
        (CompletionRequest, {"prompt": "a", "stop": [1] * 1000}),
        (CompletionRequest, {"prompt": "a", "stop": ["a"] * 2000}),
        (CompletionRequest, {"prompt": "a", "bad_words": [1] * 1000}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": [-1] * 1000}),
        (CompletionRequest, {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(1000)), "x")}),
        (CompletionRequest, {"prompt": "a", "metadata": dict.fromkeys(map(str, range(1000)), 1)}),
        (ChatCompletionRequest, {"messages": [{}] * 1000}),
        (ChatCompletionRequest, {"messages": [USER] * 20_000}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [{"type": "text"}] * 1000}]}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 9000}] * 2}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "tool_calls": [1] * 1000}]}),
        (ChatRequest, {"messages": [{}] * 1000}),
        (ChatRequest, {"messages": [{"role": "user", "tool_calls": [1] * 1000}]}),
        (ChatRequest, {"options": {"stop": [1] * 1000}}),
    ],
)
def test_a_long_list_of_wrong_entries_makes_few_errors(model: type[BaseModel], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"model": "m", **fields})
    assert caught.value.error_count() <= 2


def test_a_prompt_of_token_ids_is_told_its_own_fault_only() -> None:
    with pytest.raises(ValidationError) as caught:
        completion(prompt=[1, 2, "a"])
    (fault,) = caught.value.errors()
    assert (fault["loc"][-1], fault["msg"]) == (2, "Input should be a valid integer")


def _token(text: str) -> TokenLogprobs:
    token = TokenLogprob(1, text, -0.5, 1)
    return TokenLogprobs(token, (token, TokenLogprob(2, "\ufffd", -1.5, 2)))


ANSWER = Answer(
    [
        Choice("one", "stop", 2, [_token("o"), _token("ne")], -4.0),
        Choice("two", "length", 8, [_token("two")], -4.0),
    ],
    Usage(5, 10, 3),
)
"""Of the two the second has the higher log-probability per token."""


def test_a_whole_chat_is_as_openais_client_expects_it() -> None:
    body = reply.chat_completion(reply.Heading("chatcmpl", "m%d"), ANSWER)
    OwnChatCompletion.model_validate(body)
    told = ChatCompletion.model_validate(body)
    assert [(c.index, c.message.content, c.finish_reason) for c in told.choices] == [
        (0, "one", "stop"),
        (1, "two", "length"),
    ]
    logprobs = told.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(token.token, token.bytes) for token in logprobs.content] == [("o", [111]), ("ne", [110, 101])]
    assert logprobs.content[0].top_logprobs[1].bytes is None
    assert told.usage is not None
    assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.total_tokens) == (5, 10, 15)


def test_a_whole_completion_is_as_openais_client_expects_it() -> None:
    heading = reply.Heading("cmpl", "m%d")
    body = reply.completion(heading, [ANSWER, ANSWER], ["a", "b"], num_best=2)
    OwnCompletion.model_validate(body)
    told = Completion.model_validate(body)
    assert [(c.index, c.text) for c in told.choices] == [(0, "aone"), (1, "atwo"), (2, "bone"), (3, "btwo")]
    assert told.choices[0].logprobs is not None
    assert told.choices[0].logprobs.text_offset == [0, 1]
    assert told.usage is not None
    assert told.usage.total_tokens == 30
    best = reply.completion(heading, [ANSWER], [""], num_best=1)
    assert [choice["text"] for choice in best["choices"]] == ["two"]


def _events(raw: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


DELTAS = [
    Delta(0, "o\n", 1, logprobs=(_token("o"),)),
    Delta(1, "two", 1),
    Delta(0, 'ne"', 1, "stop"),
    Delta(1, "", 1, "length", usage=Usage(5, 4, None)),
]


def test_chunks_of_a_chat_are_as_openais_client_expects_them() -> None:
    writer = ChatChunks(reply.Heading("chatcmpl", "m%d"), include_usage=True)
    raw = b"".join(writer.parts(delta) for delta in DELTAS) + writer.last([Usage(5, 4, None)])
    assert raw.endswith(b"data: [DONE]\n\n")
    chunks = [ChatCompletionChunk.model_validate(event) for event in _events(raw)]
    texts = {0: "", 1: ""}
    reasons = []
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons += [(choice.index, choice.finish_reason)] if choice.finish_reason else []
    assert texts == {0: 'o\nne"', 1: "two"}
    assert reasons == [(0, "stop"), (1, "length")]
    assert [chunk.choices[0].index for chunk in chunks if chunk.choices and chunk.choices[0].delta.role] == [0, 1]
    assert {chunk.model for chunk in chunks} == {"m%d"}
    assert chunks[-1].usage is not None
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 9)


def test_chunks_of_a_completion_count_the_choices_over_all_prompts() -> None:
    writer = CompletionChunks(reply.Heading("cmpl", "m%d"), ["a", "b"], 2, include_usage=False)
    raw = b"".join(writer.parts(delta, prompt) for prompt in (0, 1) for delta in DELTAS) + writer.last([])
    texts = [""] * 4
    offsets = []
    for event in _events(raw):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        offsets += choice["logprobs"]["text_offset"] if choice["logprobs"] else []
    assert texts == ['ao\nne"', "atwo", 'bo\nne"', "btwo"]
    assert offsets == [0, 0]


def test_ollamas_options_and_defaults() -> None:
    options = {"num_predict": 5, "repeat_penalty": 1.2, "stop": ["x"], "num_ctx": 4096, "seed": 3, "temperature": 0}
    request = ollama_translate.chat_request(
        ChatRequest.model_validate({"model": "m", "messages": [USER], "options": options, "keep_alive": "5m"}), MODEL
    )
    assert request.sampling == {
        "temperature": 0, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.2, "stop": ["x"], "seed": 3,
        "max_tokens": 5,
    }  # fmt: skip
    assert request.stream
    assert ollama_translate.model_name("m:latest") == "m"


def test_ollamas_prompt_goes_through_the_template_unless_raw() -> None:
    body = {"model": "m", "prompt": "Hi", "stream": False}
    templated = ollama_translate.generate_request(
        GenerateRequest.model_validate({**body, "system": "Be brief."}), MODEL
    )
    assert templated.messages == [{"role": "system", "content": "Be brief."}, USER]
    raw = ollama_translate.generate_request(GenerateRequest.model_validate({**body, "raw": True}), MODEL)
    assert (raw.prompt, raw.messages, raw.stream, raw.sampling["max_tokens"]) == ("Hi", None, False, None)
    with pytest.raises(ValidationError, match="not with raw: true"):
        GenerateRequest.model_validate({**body, "raw": True, "system": "x"})
    with pytest.raises(ValidationError, match="mirostat is not supported"):
        GenerateRequest.model_validate({**body, "options": {"mirostat": 2}})


def test_ollamas_last_line_tells_the_cost() -> None:
    writer = ollama_reply.Writer("m", is_chat=True)
    line = json.loads(writer.last("end", "length", Usage(5, 4), Stats(prefill_ms=1.5, decode_ms=2.5)))
    assert (line["done"], line["done_reason"], line["message"]["content"]) == (True, "length", "end")
    assert (line["prompt_eval_count"], line["eval_count"]) == (5, 4)
    assert (line["prompt_eval_duration"], line["eval_duration"]) == (1_500_000, 2_500_000)
    assert json.loads(writer.line("x"))["done"] is False
