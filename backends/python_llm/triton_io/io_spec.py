"""The inputs and outputs of the models of this backend, by kind: the published contract.

A language model has two faces. Of the text face, `text_input` ... `num_output_tokens` are those of models served by
Triton's vLLM backend; of the token face, the tensors are those of TensorRT-LLM's Triton backend; the rest is ours. A
tokenizer takes what TensorRT-LLM's ensembles take. Does not know how they are read or written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

REFUSED_INPUTS = {
    "image": "images are not supported by this model",
    "embedding_request": "embeddings are not supported by this model",
    "draft_session": "draft sessions are not supported; speculation by prompt_lookup needs none",
}
"""Declared because clients of other backends know them, and refused with this text."""


def _input(name: str, data_type: str, dims: list[int]) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, "optional": True}


def _output(name: str, data_type: str, dims: list[int]) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims}


_TEXT_INPUTS = (
    _input("text_input", "TYPE_STRING", [1]),
    _input("messages", "TYPE_STRING", [1]),
    _input("tools", "TYPE_STRING", [1]),
    _input("stream", "TYPE_BOOL", [1]),
    _input("sampling_parameters", "TYPE_STRING", [1]),
    _input("exclude_input_in_output", "TYPE_BOOL", [1]),
    _input("return_finish_reason", "TYPE_BOOL", [1]),
    _input("return_cumulative_logprob", "TYPE_BOOL", [1]),
    _input("return_logprobs", "TYPE_BOOL", [1]),
    _input("return_num_input_tokens", "TYPE_BOOL", [1]),
    _input("return_num_output_tokens", "TYPE_BOOL", [1]),
    _input("return_stats", "TYPE_BOOL", [1]),
    _input("image", "TYPE_STRING", [-1]),
    _input("embedding_request", "TYPE_STRING", [1]),
    _input("draft_session", "TYPE_STRING", [1]),
)

_COMMON_INPUTS = (
    _input("input_ids", "TYPE_INT32", [-1]),
    _input("temperature", "TYPE_FP32", [1]),
    _input("repetition_penalty", "TYPE_FP32", [1]),
    _input("presence_penalty", "TYPE_FP32", [1]),
    _input("frequency_penalty", "TYPE_FP32", [1]),
    _input("stop", "TYPE_BOOL", [1]),
)

_TOKEN_INPUTS = (
    _input("input_lengths", "TYPE_INT32", [1]),
    _input("request_output_len", "TYPE_INT32", [1]),
    _input("streaming", "TYPE_BOOL", [1]),
    _input("end_id", "TYPE_INT32", [1]),
    _input("pad_id", "TYPE_INT32", [1]),
    _input("stop_words_list", "TYPE_INT32", [1, 2, -1]),
    _input("bad_words_list", "TYPE_INT32", [1, 2, -1]),
    _input("beam_width", "TYPE_INT32", [1]),
    _input("runtime_top_k", "TYPE_INT32", [1]),
    _input("runtime_top_p", "TYPE_FP32", [1]),
    _input("min_length", "TYPE_INT32", [1]),
    _input("random_seed", "TYPE_UINT64", [1]),
    _input("return_log_probs", "TYPE_BOOL", [1]),
    _input("return_context_logits", "TYPE_BOOL", [1]),
    _input("return_generation_logits", "TYPE_BOOL", [1]),
)
TOKEN_INPUT_NAMES = frozenset(tensor["name"] for tensor in _TOKEN_INPUTS)
"""Inputs that only the token face has."""

INPUTS = (*_TEXT_INPUTS, *_COMMON_INPUTS, *_TOKEN_INPUTS)

_TEXT_OUTPUTS = (
    _output("text_output", "TYPE_STRING", [-1]),
    _output("finish_reason", "TYPE_STRING", [-1]),
    _output("cumulative_logprob", "TYPE_FP32", [-1]),
    _output("logprobs", "TYPE_STRING", [-1]),
    _output("prompt_logprobs", "TYPE_STRING", [1]),
    _output("num_input_tokens", "TYPE_UINT32", [1]),
    _output("num_output_tokens", "TYPE_UINT32", [-1]),
    _output("stats", "TYPE_STRING", [1]),
)

_TOKEN_OUTPUTS = (
    _output("output_ids", "TYPE_INT32", [1, -1, -1]),
    _output("sequence_length", "TYPE_INT32", [1, -1]),
    _output("cum_log_probs", "TYPE_FP32", [1, -1]),
    _output("output_log_probs", "TYPE_FP32", [1, -1, -1]),
    _output("context_ids", "TYPE_INT32", [1, -1, -1]),
    _output("text_length", "TYPE_INT32", [1, -1]),
)
TOKEN_OUTPUT_NAMES = frozenset(tensor["name"] for tensor in _TOKEN_OUTPUTS)
"""Outputs that only the token face has."""

OUTPUTS = (*_TEXT_OUTPUTS, *_TOKEN_OUTPUTS)
OUTPUT_NAMES = frozenset(tensor["name"] for tensor in OUTPUTS)

TOKENIZER_INPUTS = (
    _input("text_input", "TYPE_STRING", [1, 1]),
    _input("messages", "TYPE_STRING", [1, 1]),
    _input("tools", "TYPE_STRING", [1, 1]),
    _input("max_tokens", "TYPE_INT32", [1, 1]),
    _input("min_length", "TYPE_INT32", [1, 1]),
    _input("min_tokens", "TYPE_INT32", [1, 1]),
    _input("stop_words", "TYPE_STRING", [1, -1]),
    _input("bad_words", "TYPE_STRING", [1, -1]),
    _input("top_k", "TYPE_INT32", [1, 1]),
    _input("top_p", "TYPE_FP32", [1, 1]),
    _input("temperature", "TYPE_FP32", [1, 1]),
    _input("repetition_penalty", "TYPE_FP32", [1, 1]),
    _input("presence_penalty", "TYPE_FP32", [1, 1]),
    _input("frequency_penalty", "TYPE_FP32", [1, 1]),
    _input("random_seed", "TYPE_UINT64", [1, 1]),
    _input("seed", "TYPE_UINT64", [1, 1]),
    _input("end_id", "TYPE_INT32", [1, 1]),
    _input("pad_id", "TYPE_INT32", [1, 1]),
    _input("beam_width", "TYPE_INT32", [1, 1]),
    _input("stream", "TYPE_BOOL", [1, 1]),
    _input("exclude_input_in_output", "TYPE_BOOL", [1, 1]),
    _input("return_log_probs", "TYPE_BOOL", [1, 1]),
    _input("return_num_input_tokens", "TYPE_BOOL", [1, 1]),
    _input("return_num_output_tokens", "TYPE_BOOL", [1, 1]),
    _input("stop", "TYPE_BOOL", [1, 1]),
)

TOKENIZER_OUTPUTS = (
    _output("input_ids", "TYPE_INT32", [-1]),
    _output("input_lengths", "TYPE_INT32", [1]),
    _output("sampling_parameters", "TYPE_STRING", [1]),
    _output("stop_words_list", "TYPE_INT32", [1, 2, -1]),
    _output("bad_words_list", "TYPE_INT32", [1, 2, -1]),
    _output("end_id", "TYPE_INT32", [1]),
    _output("pad_id", "TYPE_INT32", [1]),
    _output("beam_width", "TYPE_INT32", [1]),
    _output("streaming", "TYPE_BOOL", [1]),
    _output("exclude_input_in_output", "TYPE_BOOL", [1]),
    _output("return_log_probs", "TYPE_BOOL", [1]),
    _output("return_num_input_tokens", "TYPE_BOOL", [1]),
    _output("return_num_output_tokens", "TYPE_BOOL", [1]),
    _output("stop", "TYPE_BOOL", [1]),
)

DETOKENIZER_INPUTS = (
    _output("output_ids", "TYPE_INT32", [1, -1, -1]),
    _input("sequence_length", "TYPE_INT32", [1, -1]),
    _input("context_ids", "TYPE_INT32", [1, -1, -1]),
    _input("text_length", "TYPE_INT32", [1, -1]),
)

DETOKENIZER_OUTPUTS = (_output("text_output", "TYPE_STRING", [-1]),)


@dataclass(frozen=True)
class ModelIO:
    """What a kind of model declares to Triton."""

    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[dict[str, Any], ...]
    decoupled: bool


MODEL_IO = {
    "llm": ModelIO(INPUTS, OUTPUTS, decoupled=True),
    # It answers once, but an error of a first step that is not decoupled can crash the server (docs/decisions.md).
    "tokenizer": ModelIO(TOKENIZER_INPUTS, TOKENIZER_OUTPUTS, decoupled=True),
    "detokenizer": ModelIO(DETOKENIZER_INPUTS, DETOKENIZER_OUTPUTS, decoupled=False),
}
"""By the setting `kind`."""
