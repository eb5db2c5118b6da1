"""The inputs and outputs that every model of this backend has: the published contract of the text face.

`text_input` ... `num_output_tokens` are those of models served by Triton's vLLM backend; the rest is ours and optional.
Does not know how they are read or written.
"""

from __future__ import annotations

from typing import Any

REFUSED_INPUTS = {
    "image": "images are not supported by this model",
    "embedding_request": "embeddings are not supported by this model",
    "draft_session": "this model was loaded without speculative decoding, so it takes no draft session",
}
"""Declared because clients of other backends know them, and refused with this text."""


def _input(name: str, data_type: str, dims: list[int]) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, "optional": True}


def _output(name: str, data_type: str, dims: list[int]) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims}


INPUTS = (
    _input("text_input", "TYPE_STRING", [1]),
    _input("messages", "TYPE_STRING", [1]),
    _input("tools", "TYPE_STRING", [1]),
    _input("input_ids", "TYPE_INT32", [-1]),
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

OUTPUTS = (
    _output("text_output", "TYPE_STRING", [-1]),
    _output("finish_reason", "TYPE_STRING", [-1]),
    _output("cumulative_logprob", "TYPE_FP32", [-1]),
    _output("logprobs", "TYPE_STRING", [-1]),
    _output("prompt_logprobs", "TYPE_STRING", [1]),
    _output("num_input_tokens", "TYPE_UINT32", [1]),
    _output("num_output_tokens", "TYPE_UINT32", [-1]),
    _output("stats", "TYPE_STRING", [1]),
)
