"""The tokenizer and the detokenizer of an ensemble, without Triton."""

from __future__ import annotations

import json

import numpy as np
import pytest

from python_llm.errors import InvalidRequestError
from python_llm.triton_io.detokenizer_face import detokenize
from python_llm.triton_io.io_spec import TOKENIZER_INPUTS, TOKENIZER_OUTPUTS
from python_llm.triton_io.tokenizer_face import tokenize
from python_llm.triton_io.word_lists import unpack_words
from spaced_tokenizer import spaced_tokenizer
from toy_tokenizer import toy_tokenizer

TOY = toy_tokenizer()
ALL = [tensor["name"] for tensor in TOKENIZER_OUTPUTS]


def text(*values: str) -> np.ndarray:
    return np.array([[value.encode() for value in values]], dtype=np.object_)


def one(value: object, dtype: type) -> np.ndarray:
    return np.array([[value]], dtype=dtype)


def sampling(tensors: dict[str, np.ndarray]) -> dict[str, object]:
    answer = tokenize({"text_input": text("a"), **tensors}, TOY, None, ALL)["sampling_parameters"][0]
    values: dict[str, object] = json.loads(answer)
    return values


def test_text_and_messages_become_ids() -> None:
    outputs = tokenize({"text_input": text("Hé")}, TOY, None, ["input_ids", "input_lengths"])
    assert outputs["input_ids"].tolist() == list("Hé".encode())
    assert outputs["input_ids"].dtype == np.int32
    assert outputs["input_lengths"].tolist() == [3]
    assert "stop_words_list" not in outputs, "not asked for, not made"
    messages = json.dumps([{"role": "user", "content": "hi"}])
    ids = tokenize({"messages": text(messages)}, TOY, None, ALL)["input_ids"]
    assert ids.tolist() == TOY.encode("<bos>user: hi\nassistant: ", add_special_tokens=False)


def test_sampling_parameters_go_into_one_json_text() -> None:
    assert sampling({}) == {}
    assert sampling(
        {
            "max_tokens": one(7, np.int32),
            "min_length": one(2, np.int32),
            "top_k": one(0, np.int32),
            "top_p": one(0.9, np.float32),
            "temperature": one(0.7, np.float32),
            "seed": one(2**64 - 1, np.uint64),
            "stop_words": text("a b", ""),
            "bad_words": text("no"),
        }
    ) == {
        "max_tokens": 7,
        "min_tokens": 2,
        "top_p": 0.9,
        "temperature": 0.7,
        "seed": 2**64 - 1,
        "stop": ["a b"],
        "bad_words": ["no"],
    }


def test_words_also_come_in_tensorrt_llms_layout() -> None:
    words = {"stop_words": text("xy", "z"), "bad_words": text("no")}
    outputs = tokenize({"text_input": text("a"), **words}, TOY, None, ALL)
    assert unpack_words("w", outputs["stop_words_list"], 258) == (tuple(b"xy"), tuple(b"z"))
    assert unpack_words("w", outputs["bad_words_list"], 258) == (tuple(b"no"), tuple(b" no"))
    none = tokenize({"text_input": text("a")}, TOY, None, ALL)
    assert none["stop_words_list"].shape == none["bad_words_list"].shape == (1, 2, 0)


def test_every_input_goes_somewhere() -> None:
    """None is taken and forgotten: with it the outputs differ from those without."""
    before = tokenize({"text_input": text("a")}, TOY, None, ALL)
    values = {"TYPE_INT32": one(3, np.int32), "TYPE_FP32": one(0.5, np.float32), "TYPE_BOOL": one(True, np.bool_)}
    values |= {"TYPE_UINT64": one(3, np.uint64), "TYPE_STRING": text("w")}
    for tensor in TOKENIZER_INPUTS:
        if tensor["name"] in ("text_input", "messages", "tools"):
            continue
        after = tokenize({"text_input": text("a"), tensor["name"]: values[tensor["data_type"]]}, TOY, None, ALL)
        assert {k: v.tolist() for k, v in after.items()} != {k: v.tolist() for k, v in before.items()}, tensor["name"]


def test_a_stop_request_needs_no_prompt_and_goes_on_alone() -> None:
    assert list(tokenize({"stop": one(True, np.bool_)}, TOY, None, ALL)) == ["stop"]
    assert "input_ids" in tokenize({"stop": one(False, np.bool_), "text_input": text("a")}, TOY, None, ALL)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "exactly one of the inputs text_input, messages is expected, none came"),
        ({"text_input": text("a"), "messages": text("[]")}, "text_input and messages came"),
        ({"text_input": text("a"), "tools": text("[]")}, '"tools" goes with the input "messages"'),
        ({"text_input": text("a", "b")}, "must hold exactly 1 element, 2 came"),
        ({"text_input": np.array([[b"\xff"]], dtype=np.object_)}, '"text_input" is not valid UTF-8'),
        ({"text_input": text("a"), "stop_words": np.array([[b"\xff"]], dtype=np.object_)}, '"stop_words" is not valid'),
        ({"messages": text("{")}, '"messages" is not valid JSON'),
        ({"text_input": text("a"), "seed": one(1, np.uint64), "random_seed": one(1, np.uint64)}, "send one of them"),
        ({"text_input": text("x" * 100_000)}, "at most 99 tokens"),
    ],
)
def test_what_is_wrong_is_said(tensors: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        tokenize(tensors, TOY, 100, ALL)


def ids(*rows: list[int]) -> np.ndarray:
    return np.array([rows], dtype=np.int32)


def texts(tensors: dict[str, np.ndarray], parameters: dict[str, object] | None = None) -> list[str]:
    return [value.decode() for value in detokenize(tensors, parameters or {}, TOY)["text_output"]]


def test_ids_become_text() -> None:
    assert texts({"output_ids": ids([*"é".encode()], [65, 66])}) == ["é", "AB"]
    assert texts({"output_ids": ids([65, 66], [67, -1]), "sequence_length": np.array([[2, 1]])}) == ["AB", "C"]
    assert texts({"output_ids": ids([65, 66]), "text_length": np.array([[1]])}) == ["A"]
    assert texts({"output_ids": ids([])}) == [""]
    assert texts({"output_ids": ids([65, 256])}) == ["A"]
    assert texts({"output_ids": ids([65, 256])}, {"skip_special_tokens": "false"}) == ["A<eos>"]


def test_only_text_that_stands_alone_loses_its_space() -> None:
    tokenizer = spaced_tokenizer()
    alone = detokenize({"output_ids": ids([1])}, {}, tokenizer)
    after = detokenize({"output_ids": ids([1]), "context_ids": ids([2])}, {}, tokenizer)
    assert (alone["text_output"][0], after["text_output"][0]) == (b"the", b" the")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"output_ids": np.zeros((2, 3), np.int32)}, r"shape \[1, rows, n\], \[2, 3\] came"),
        ({"output_ids": ids([1]), "sequence_length": np.array([[2]])}, r"1 numbers in \[0, 1\], \[2\] came"),
        ({"output_ids": ids([1]), "sequence_length": np.array([[1, 1]])}, "must hold 1 numbers"),
        ({"output_ids": ids([1]), "text_length": np.array([[-1]])}, "of at least 0"),
        ({"output_ids": ids([1]), "context_ids": ids([1], [2])}, r"shape \[1, 1, k\]"),
    ],
)
def test_malformed_ids_are_said(tensors: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        texts(tensors)
