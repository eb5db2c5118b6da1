"""What the text face takes and refuses, without Triton."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_llm.errors import InvalidRequestError
from python_llm.triton_io.io_spec import INPUTS, REFUSED_INPUTS
from python_llm.triton_io.user_request import UserRequest, read_request
from toy_tokenizer import EOS_ID, toy_tokenizer

TOKENIZER = toy_tokenizer()
MAX_MODEL_LEN = 1000


def text(value: str | bytes) -> np.ndarray:
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


def flag(value: bool) -> np.ndarray:
    return np.array([value])


def read(tensors: dict[str, np.ndarray], parameters: dict[str, Any] | None = None, timeout_us: int = 0) -> UserRequest:
    return read_request(
        tensors, parameters or {}, timeout_us, TOKENIZER, TOKENIZER.vocab_size, max_model_len=MAX_MODEL_LEN
    )


def test_plain_text_and_its_defaults() -> None:
    asked = read({"text_input": text("Hé")})
    assert asked.prompt_ids.tolist() == list("Hé".encode())
    assert asked.prompt_ids.dtype == np.int32
    assert asked.echo == "Hé", "without a stream the prompt comes before the output"
    assert (asked.stream, asked.timeout_s, asked.params.max_tokens) == (False, None, 16)
    assert asked.params.eos_token_ids == (EOS_ID,)


@pytest.mark.parametrize(
    ("stream", "exclude", "echo"), [(False, None, "a"), (False, True, ""), (True, None, ""), (True, True, "")]
)
def test_when_the_prompt_is_part_of_the_output(stream: bool, exclude: bool | None, echo: str) -> None:
    tensors = {"text_input": text("a"), "stream": flag(stream)}
    if exclude is not None:
        tensors["exclude_input_in_output"] = flag(exclude)
    assert read(tensors).echo == echo


def test_messages_are_rendered_by_the_template_and_not_echoed() -> None:
    tensors = {"messages": text(json.dumps([{"role": "user", "content": "hi"}]))}
    rendered = "<bos>user: hi\nassistant: "
    asked = read(tensors)
    assert asked.prompt_ids.tolist() == TOKENIZER.encode(rendered, add_special_tokens=False)
    assert asked.echo == ""
    assert read({**tensors, "exclude_input_in_output": flag(False)}).echo == rendered


def test_input_ids() -> None:
    asked = read({"input_ids": np.array([104, 105], dtype=np.int32)})
    assert asked.prompt_ids.tolist() == [104, 105]
    assert asked.echo == ""


def test_input_ids_are_checked_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode = TOKENIZER.decode
    monkeypatch.setattr(TOKENIZER, "decode", lambda ids, **rest: decoded.extend(ids) or decode(ids, **rest))
    with pytest.raises(InvalidRequestError, match="token id 999"):
        read({"input_ids": np.array([104, 999], dtype=np.int32), "exclude_input_in_output": flag(False)})
    with pytest.raises(InvalidRequestError, match=r"the prompt has 1000 tokens; this model takes at most 999"):
        read({"input_ids": np.full(MAX_MODEL_LEN, 104, dtype=np.int32), "exclude_input_in_output": flag(False)})
    read({"input_ids": np.array([104, 105], dtype=np.int32)})
    assert decoded == []
    assert read({"input_ids": np.array([104, 105], np.int32), "exclude_input_in_output": flag(False)}).echo == "hi"


def test_parameters_come_from_both_places_and_the_tensor_wins() -> None:
    tensors = {"text_input": text("a"), "sampling_parameters": text('{"temperature": "0.5", "top_k": 3}')}
    asked = read(tensors, {"temperature": 0.9, "max_tokens": 7, "triton_enable_empty_final_response": True})
    assert (asked.params.temperature, asked.params.top_k, asked.params.max_tokens) == (0.5, 3, 7)


def test_timeout_from_the_request_or_its_parameters() -> None:
    tensors = {"text_input": text("a")}
    assert read(tensors, timeout_us=2_500_000).timeout_s == 2.5
    assert read(tensors, {"timeout": "1000000"}, timeout_us=2_500_000).timeout_s == 1.0


def test_the_id_of_a_generate_body_is_tritons() -> None:
    assert read({"text_input": text("a")}, {"id": "my request", "max_tokens": 3}).params.max_tokens == 3


def test_a_text_that_might_fit_is_tokenised() -> None:
    """How many tokens are too many is the engine's to say; here only a text that no tokens could hold is refused."""
    longest = MAX_MODEL_LEN * TOKENIZER.longest_token
    assert len(read({"text_input": text("x" * longest)}).prompt_ids) == longest
    assert len(read({"text_input": text("<eos>" * MAX_MODEL_LEN)}).prompt_ids) == MAX_MODEL_LEN


def test_bad_words_are_tokenised() -> None:
    asked = read({"text_input": text("a"), "sampling_parameters": text('{"bad_words": ["no"]}')})
    assert set(asked.params.bad_words_token_ids) == {tuple(b"no"), tuple(b" no")}


NUMBERS = {"TYPE_INT32": "int32", "TYPE_FP32": "float32", "TYPE_UINT64": "uint64"}
PROMPT = {"text_input": text("a")}
WRONG: list[tuple[dict[str, np.ndarray], dict[str, Any], str]] = [
    ({}, {}, "exactly one of the inputs text_input, messages, input_ids is expected, none came"),
    ({**PROMPT, "messages": text("[]")}, {}, "text_input and messages came"),
    ({**PROMPT, "tools": text("[]")}, {}, '"tools" goes with the input "messages"'),
    ({"text_input": text(b"\xff")}, {}, '"text_input" is not valid UTF-8'),
    ({"text_input": np.array([], dtype=np.object_)}, {}, "must hold exactly 1 element, 0 came"),
    ({"messages": text("{")}, {}, '"messages" is not valid JSON'),
    ({"messages": text("[" * 100_000)}, {}, '"messages" is not valid JSON'),
    ({"messages": text('[{"role": "user", "content": "\\ud800"}]')}, {}, '"messages" is not valid JSON'),
    ({"messages": text("[]")}, {}, "messages must be a non-empty list"),
    ({"input_ids": np.array([5, 999], dtype=np.int32)}, {}, "token id 999; this model knows the ids 0 to 257"),
    ({"input_ids": np.array([-1], dtype=np.int32)}, {}, "token id -1"),
    ({**PROMPT, "sampling_parameters": text("{")}, {}, '"sampling_parameters" is not valid JSON'),
    ({**PROMPT, "sampling_parameters": text("[1]")}, {}, "must be a JSON object"),
    ({**PROMPT, "sampling_parameters": text('{"temprature": 1}')}, {}, "temprature.*temperature"),
    (PROMPT, {"max_tokens": 0}, "max_tokens"),
    (PROMPT, {"top_p": "high"}, "top_p"),
    (PROMPT, {"stop_token_ids": "[258]"}, "stop_token_ids"),
    (PROMPT, {"timeout": "soon"}, "timeout"),
    *[(PROMPT, {"timeout": value}, "timeout must be") for value in (-1, 1.5, True, math.inf, math.nan, "9" * 400)],
    ({**PROMPT, "sampling_parameters": text(json.dumps({"x" * 10**6: 1}))}, {}, "^.{0,500}$"),
    (PROMPT, {"stop": "x" * 1025}, "stop must be .* at most 1024 characters"),
    (PROMPT, {"bad_words": json.dumps(["a", "x" * 1025])}, "bad_words must be .* at most 1024 characters"),
    ({"text_input": text("x" * 10**6)}, {}, "1000000 characters; this model takes at most 999 tokens"),
    (
        {"messages": text(json.dumps([{"role": "user", "content": "x" * 10**6}]))},
        {},
        "characters; this model takes at most 999 tokens",
    ),
    ({**PROMPT, "stream": flag(True), "exclude_input_in_output": flag(False)}, {}, "exclude_input_in_output=false"),
    *[({**PROMPT, name: text("x")}, {}, f'input "{name}"') for name in REFUSED_INPUTS],
]


@pytest.mark.parametrize(("tensors", "parameters", "message"), WRONG)
def test_what_is_wrong_is_said(tensors: dict[str, np.ndarray], parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read(tensors, parameters)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([tensor["name"] for tensor in INPUTS]),
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from(
                [b"[]", b"{}", b"null", b'[{"role":"user","content":"x"}]', b'{"n": -1}', b'{"seed": 1e400}']
            ),
        ),
        max_size=5,
    ),
    st.dictionaries(
        st.sampled_from(["n", "max_tokens", "top_k", "stop", "seed", "logit_bias", "timeout", "x"]),
        st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=10)),
        max_size=4,
    ),
)
def test_nonsense_is_the_users_error_and_nothing_else(values: dict[str, bytes], parameters: dict[str, Any]) -> None:
    kinds = {tensor["name"]: tensor["data_type"] for tensor in INPUTS}
    tensors = {}
    for name, value in values.items():
        if kinds[name] == "TYPE_BOOL":
            tensors[name] = flag(bool(value))
        elif kinds[name] in NUMBERS:
            kind = np.dtype(NUMBERS[kinds[name]])
            tensors[name] = np.frombuffer(value[: len(value) // kind.itemsize * kind.itemsize], dtype=kind)
        else:
            tensors[name] = text(value)
    try:
        asked = read(tensors, parameters)
    except InvalidRequestError as error:
        assert str(error)
    else:
        assert asked.prompt_ids.ndim == 1
