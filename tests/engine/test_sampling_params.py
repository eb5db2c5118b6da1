"""Every parameter is coerced, bounded and named in its errors; the table and the parser cannot disagree."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_llm.engine.sampling_params import (
    SAMPLING_PARAMETERS,
    SamplingParams,
    check_vocab,
    parse_sampling_params,
    tokenize_bad_words,
)
from python_llm.errors import InvalidRequestError

# name -> what may come, and its native form
ACCEPTED: dict[str, list[tuple[object, object]]] = {
    "n": [(1, 1), ("4", 4), (64.0, 64), (np.int32(2), 2)],
    "max_tokens": [(1, 1), ("16", 16), ("16.0", 16), (16.0, 16), (None, None), ("null", None)],
    "min_tokens": [(0, 0), ("3", 3)],
    "temperature": [(0, 0.0), ("0.7", 0.7), (2, 2.0), (" 1e-3 ", 0.001), (np.float32(0.5), 0.5), (None, 1.0)],
    "top_k": [(0, 0), (-1, 0), ("-1", 0), ("40", 40), (40.0, 40)],
    "top_p": [(1, 1.0), ("0.9", 0.9), (1e-9, 1e-9)],
    "min_p": [(0, 0.0), ("1", 1.0), (0.05, 0.05)],
    "seed": [(-1, None), (None, None), (0, 0), (-(2**63), -(2**63)), (str(2**64 - 1), 2**64 - 1)],
    "repetition_penalty": [("1.1", 1.1), (1e-3, 1e-3), (50, 50.0)],
    "presence_penalty": [(-2, -2.0), ("2", 2.0)],
    "frequency_penalty": [(-2, -2.0), ("2", 2.0)],
    "stop": [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ('["a", "b"]', ("a", "b")),
        ("[]", ("[]",)),
        ("[1]", ("[1]",)),
        ('["', ('["',)),
        ("null", ("null",)),
        ([], ()),
        (None, ()),
    ],
    "stop_token_ids": [([1, 2], (1, 2)), ("[1, 2]", (1, 2)), (["7", 8.0], (7, 8)), ([], ())],
    "include_stop_str_in_output": [(True, True), ("true", True), ("False", False), (1, True), ("0", False)],
    "ignore_eos": [(False, False), ("TRUE", True)],
    "skip_special_tokens": [(False, False), ("false", False), (None, True)],
    "logprobs": [(0, 0), ("20", 20), (None, None)],
    "prompt_logprobs": [(0, 0), (20, 20), (None, None)],
    "logit_bias": [
        ({"5": -3}, ((5, -3.0),)),
        ('{"9": 1, "5": -3.5}', ((5, -3.5), (9, 1.0))),
        ({7: "100"}, ((7, 100.0),)),
    ],
    "bad_words": [(["a b"], ("a b",)), ("x", ("x",)), ('["x", "y"]', ("x", "y"))],
    "speculation": [("off", "off"), ("prompt_lookup", "prompt_lookup"), (None, None), ("null", None)],
    "num_draft_tokens": [(0, 0), ("4", 4), (32, 32), (None, None)],
}

REFUSED: dict[str, list[object]] = {
    "n": [0, 65, 1.5, True, "two", "", [1]],
    "max_tokens": [0, -1, "many", 1.5, False],
    "min_tokens": [-1, "x"],
    "temperature": [-0.1, 101, "hot", True, [], "nan", "inf", math.inf, math.nan],
    "top_k": [-2, 1.5, "NaN"],
    "top_p": [0, -0.5, 1.01, math.nan, "Infinity"],
    "min_p": [-0.01, 1.01],
    "seed": [2**64, -(2**63) - 1, 0.5, "abc"],
    "repetition_penalty": [0, -1, math.inf],
    "presence_penalty": [-2.1, 2.1],
    "frequency_penalty": [-2.1, 2.1],
    "stop": ["", [""], ["a", ""], [1], 5, {"a": 1}, ["x"] * 65],
    "stop_token_ids": [[-1], "[1,", 5, [1.5], ["a"], "[" * 100_000, [0] * 1025, {"1": 1}],
    "include_stop_str_in_output": ["maybe", 2, 0.5, []],
    "ignore_eos": ["", "on"],
    "skip_special_tokens": [3, {}],
    "logprobs": [-1, 21, True],
    "prompt_logprobs": [-1, 21, "all"],
    "logit_bias": [
        {"5": 101},
        {"5": -100.5},
        {"a": 1},
        {"-1": 0},
        {"5": "x"},
        {"5": math.nan},
        [1],
        "[]",
        {"5": 1, 5: 2},
    ],
    "bad_words": ["", [""], [["a"]], 1],
    "speculation": ["on", "", True, ["off"], {}, 0],
    "num_draft_tokens": [-1, 33, "many", 1.5],
}


@pytest.mark.parametrize(("name", "value", "native"), [(n, v, x) for n, rows in ACCEPTED.items() for v, x in rows])
def test_accepted(name: str, value: object, native: object) -> None:
    parsed = getattr(parse_sampling_params({name: value}), name)
    assert parsed == native
    assert type(parsed) is type(native)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in REFUSED.items() for v in values])
def test_refused_naming_parameter_allowed_values_and_what_came(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_sampling_params({name: value})
    message = str(raised.value)
    parameter = next(parameter for parameter in SAMPLING_PARAMETERS if parameter.name == name)
    assert message.startswith(f"{name} must be {parameter.allowed}, got ")
    assert repr(value)[:10] in message or isinstance(value, dict)
    assert len(message) < 400


def test_the_tables_above_cover_every_parameter() -> None:
    names = [parameter.name for parameter in SAMPLING_PARAMETERS]
    assert names == list(ACCEPTED) == list(REFUSED)
    derived = {"bad_words_token_ids", "eos_token_ids", "stop_words_token_ids"}
    assert set(names) == {entry.name for entry in dataclasses.fields(SamplingParams)} - derived


def test_defaults_are_in_their_own_range() -> None:
    assert parse_sampling_params({}) == SamplingParams()
    for parameter in SAMPLING_PARAMETERS:
        if parameter.default not in (None, ()):
            assert parameter.read(parameter.default) == parameter.default
        assert parameter.doc.endswith(".")


def test_defaults_of_the_contract() -> None:
    params = SamplingParams()
    assert (params.n, params.max_tokens, params.temperature, params.top_p, params.top_k) == (1, 16, 1.0, 1.0, 0)


@pytest.mark.parametrize(("unknown", "nearest"), [("temprature", "temperature"), ("topk", "top_k"), ("stops", "stop")])
def test_unknown_name_names_the_nearest(unknown: str, nearest: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"unknown sampling parameter '{unknown}'; did you mean '{nearest}'"):
        parse_sampling_params({unknown: 1})


def test_unknown_name_like_no_other_lists_all() -> None:
    with pytest.raises(InvalidRequestError, match=r"known are n, max_tokens, .*, bad_words"):
        parse_sampling_params({"zzzz": 1})


@pytest.mark.parametrize("name", ["bad_words_token_ids", "eos_token_ids"])
def test_derived_fields_cannot_be_sent(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="unknown sampling parameter"):
        parse_sampling_params({name: [1]})


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(InvalidRequestError, match=re.escape("min_tokens must be at most max_tokens (16), got 17")):
        parse_sampling_params({"min_tokens": 17})
    assert parse_sampling_params({"min_tokens": 17, "max_tokens": None}).min_tokens == 17
    assert parse_sampling_params({"min_tokens": 16}).min_tokens == 16


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([parameter.name for parameter in SAMPLING_PARAMETERS]), json_values, max_size=3))
def test_any_json_is_read_or_refused_and_text_reads_as_its_value(values: dict[str, object]) -> None:
    try:
        params = parse_sampling_params(values)
    except InvalidRequestError:
        return
    hash(params)
    as_text = {
        name: value if isinstance(value, (str, type(None))) else json.dumps(value) for name, value in values.items()
    }
    # An empty list as text is, for strings, the string "[]".
    assert parse_sampling_params(
        {name: text for name, text in as_text.items() if text != "[]"}
    ) == parse_sampling_params({name: value for name, value in values.items() if as_text[name] != "[]"})


def test_is_greedy() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(temperature=1e-6).is_greedy
    assert not SamplingParams(temperature=1e-4).is_greedy


def test_check_vocab() -> None:
    check_vocab(parse_sampling_params({"stop_token_ids": [0, 99], "logit_bias": {99: 1}}), 100)
    with pytest.raises(InvalidRequestError, match=re.escape("stop_token_ids must name token ids in [0, 99], got 100")):
        check_vocab(parse_sampling_params({"stop_token_ids": [100]}), 100)
    with pytest.raises(InvalidRequestError, match=re.escape("logit_bias must name token ids in [0, 99], got 12345")):
        check_vocab(parse_sampling_params({"logit_bias": {12345: 1}}), 100)


def test_tokenize_bad_words_bans_both_forms_once() -> None:
    seen: list[str] = []

    def encode(text: str) -> list[int]:
        seen.append(text)
        return {"Paris": [1, 2], " Paris": [3], "\n": [4], "x": [5], " x": [5]}.get(text, [])

    assert tokenize_bad_words(["Paris", " Paris", "\n", "x"], encode) == ((1, 2), (3,), (4,), (5,))
    assert set(seen) == {"Paris", " Paris", "\n", "x", " x"}


def test_importing_neither_parameters_nor_text_loads_torch() -> None:
    code = (
        "import sys, python_llm.engine.sampling_params, python_llm.engine.text, python_llm.engine.random_stream\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
