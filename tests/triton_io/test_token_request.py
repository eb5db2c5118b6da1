"""What the token face takes and refuses, without Triton."""

from __future__ import annotations

import numpy as np
import pytest

from python_llm.errors import InvalidRequestError
from python_llm.triton_io.io_spec import OUTPUT_NAMES
from python_llm.triton_io.user_request import UserRequest, read_request
from python_llm.triton_io.word_lists import pack_words
from toy_tokenizer import EOS_ID, toy_tokenizer

TOKENIZER = toy_tokenizer()


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def flags(*values: bool) -> np.ndarray:
    return np.array(values)


def json_text(value: str) -> np.ndarray:
    return np.array([value.encode()], dtype=np.object_)


PROMPT = {"input_ids": ints(104, 105), "request_output_len": ints(5)}


def read(tensors: dict[str, np.ndarray], wanted: frozenset[str] = OUTPUT_NAMES) -> UserRequest:
    return read_request(tensors, {}, 0, TOKENIZER, TOKENIZER.vocab_size, max_model_len=1000, wanted=wanted)


def test_every_sampling_input_is_a_sampling_parameter() -> None:
    asked = read(
        {
            **PROMPT,
            "min_length": ints(2),
            "runtime_top_k": ints(7),
            "runtime_top_p": floats(0.9),
            "temperature": floats(0.7),
            "repetition_penalty": floats(1.2),
            "presence_penalty": floats(0.1),
            "frequency_penalty": floats(-0.1),
            "random_seed": np.array([2**63 + 5], dtype=np.uint64),
        }
    ).params
    assert (asked.max_tokens, asked.min_tokens, asked.top_k, asked.seed) == (5, 2, 7, 2**63 + 5)
    penalties = (asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty)
    assert (asked.top_p, asked.temperature, *penalties) == (0.9, 0.7, 1.2, 0.1, -0.1), "as decimals, not as float32"


def test_the_rest() -> None:
    asked = read(
        {
            **PROMPT,
            "input_lengths": ints(1),
            "streaming": flags(True),
            "end_id": ints(7),
            "pad_id": ints(3),
            "beam_width": ints(1),
            "return_log_probs": flags(True),
            "return_context_logits": flags(False),
            "stop_words_list": pack_words([(1, 2), (3,)]),
            "bad_words_list": pack_words([(4, 5)]),
        }
    )
    assert asked.tokens is not None
    assert (asked.prompt_ids.tolist(), asked.stream, asked.tokens.pad_id) == ([104], True, 3)
    assert asked.params.eos_token_ids == (7,)
    assert asked.params.stop_words_token_ids == ((1, 2), (3,))
    assert asked.params.bad_words_token_ids == ((4, 5),)
    assert asked.returns.log_probs


def test_the_models_own_end_tokens_unless_said_otherwise() -> None:
    assert read(PROMPT).params.eos_token_ids == (EOS_ID,)
    assert read({**PROMPT, "end_id": ints(-1)}).params.eos_token_ids == ()


def test_greedy_unless_something_asks_for_draws() -> None:
    assert read(PROMPT).params.is_greedy
    # As in TensorRT-LLM, where 0 means none.
    assert read({**PROMPT, "runtime_top_k": ints(0), "runtime_top_p": floats(0)}).params.is_greedy
    assert read({**PROMPT, "runtime_top_p": floats(0.9)}).params.temperature == 1.0
    assert read({**PROMPT, "temperature": floats(0.5)}).params.temperature == 0.5
    assert not read({**PROMPT, "sampling_parameters": json_text('{"min_p": 0.1}')}).params.is_greedy
    for value in ('{"temperature": null}', '{"top_k": 0}', '{"top_k": -1, "top_p": 1}', '{"min_p": 0, "top_p": null}'):
        assert read({**PROMPT, "sampling_parameters": json_text(value)}).params.is_greedy, value
    for value in ('{"temperature": 1}', '{"top_k": 5}', '{"temperature": null, "top_p": 0.5}'):
        assert not read({**PROMPT, "sampling_parameters": json_text(value)}).params.is_greedy, value
    assert not read({"input_ids": ints(1)}).params.is_greedy, "the text face's default is vLLM's"


def test_which_face_is_asked_for() -> None:
    assert read({"input_ids": ints(1)}).tokens is None
    assert read({"input_ids": ints(1), "temperature": floats(0)}).tokens is None
    assert read(PROMPT).tokens is not None
    assert read({"input_ids": ints(1)}, frozenset({"output_ids"})).tokens is not None
    assert read(PROMPT, frozenset({"text_output", "finish_reason"})).tokens is None
    assert read({"text_input": json_text("hi")}, frozenset({"output_ids"})).tokens is not None
    with pytest.raises(InvalidRequestError, match="ask for text_output or for output_ids, not for both"):
        read(PROMPT, frozenset({"text_output", "output_ids"}))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"beam_width": ints(2)}, '"beam_width" must be 1: there is no beam search, 2 came'),
        ({"return_context_logits": flags(True)}, '"return_context_logits" must be false'),
        ({"return_generation_logits": flags(True)}, '"return_generation_logits" must be false'),
        ({"end_id": ints(258)}, r'"end_id" must be a token id in \[0, 257\] or -1 for none, 258 came'),
        ({"input_lengths": ints(3)}, '"input_lengths" must be at most the 2 ids'),
        ({"input_lengths": ints(-1)}, '"input_lengths" must be at most the 2 ids.*got -1'),
        ({"request_output_len": ints(0)}, 'input "request_output_len": max_tokens must be .*got 0'),
        ({"request_output_len": ints(1, 2)}, '"request_output_len" must hold exactly 1 element, 2 came'),
        ({"runtime_top_p": floats(1.5)}, 'input "runtime_top_p": top_p must be .*got 1.5'),
        ({"runtime_top_p": floats(float("nan"))}, 'input "runtime_top_p": top_p must be .*got nan'),
        ({"runtime_top_k": ints(-5)}, 'input "runtime_top_k": top_k must be'),
        ({"min_length": ints(9)}, "min_tokens must be at most max_tokens"),
        ({"stop_words_list": np.zeros((1, 2), np.int32)}, r'"stop_words_list" must have the shape \[1, 2, n\]'),
        ({"bad_words_list": pack_words([(300,)])}, '"bad_words_list" must hold token ids'),
        ({"stream": flags(True), "streaming": flags(True)}, "are the same: send one of them"),
        ({"text_input": json_text("a")}, "text_input and input_ids came"),
        ({"input_ids": ints(1, 999)}, "token id 999"),
    ],
)
def test_what_is_wrong_is_said(tensors: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read({**PROMPT, **tensors})


def test_lengths_are_for_ids() -> None:
    with pytest.raises(InvalidRequestError, match='"input_lengths" goes with the input "input_ids"'):
        read({"text_input": json_text("a"), "input_lengths": ints(1)})
