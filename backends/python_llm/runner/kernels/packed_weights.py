"""A model's files -> what the native decoder takes in: packed matrices one at a time, norms, biases, embeddings.

GGUF blocks stay packed and no float32 copy of the model is made. Does not know layers or kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from python_llm.model_files.gguf import GGUFFile, GGUFTensor
from python_llm.runner.gguf_names import ROPE_FACTORS, hf_rows, hf_tensor_name
from python_llm.runner.kernels.gguf_blocks import FloatRows, Format, IntegerRows, PackedRows, can_unpack, unpack
from python_llm.runner.kernels.native_decoder import Weights, to_float32
from python_llm.runner.kernels.quantize import to_format
from python_llm.runner.spec import DecoderSpec

AS_STORED = "auto"
_EMBEDDING = "model.embed_tokens"
_HEAD = "lm_head"


def gguf_weights(gguf: GGUFFile, config: Mapping[str, Any], spec: DecoderSpec, weight_format: str) -> Weights:
    """The weights of a GGUF file whose tensors have been checked against `spec`."""
    matrices: dict[str, Callable[[], PackedRows]] = {}
    vectors: dict[str, np.ndarray] = {}
    for name, tensor in gguf.tensors.items():
        if name == ROPE_FACTORS:
            continue
        hf_name = hf_tensor_name(name, config["model_type"]) or name
        if len(tensor.shape) == 1:
            vectors[hf_name] = np.ascontiguousarray(hf_rows(name, gguf.dequantize(name), config), dtype=np.float32)
        else:

            def read(tensor: GGUFTensor = tensor) -> PackedRows:
                return _converted(_gguf_rows(gguf, tensor, config), weight_format)

            matrices[hf_name.removesuffix(".weight")] = read
    if spec.tied_head:
        matrices[_HEAD] = matrices[_EMBEDDING]
    return Weights(matrices, vectors, _gguf_embedding(gguf, gguf.tensors["token_embd.weight"]))


def tensor_weights(read: Mapping[str, Callable[[], torch.Tensor]], spec: DecoderSpec, weight_format: str) -> Weights:
    """The weights of tensors in their stored float type, by Hugging Face name, checked against `spec`."""

    def rows(name: str) -> PackedRows:
        return _converted(_float_rows(read[f"{name}.weight"]()), weight_format)

    shapes = spec.tensor_shapes()
    names = [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]
    matrices: dict[str, Callable[[], PackedRows]] = {name: partial(rows, name) for name in names}
    if spec.tied_head:
        matrices[_HEAD] = matrices[_EMBEDDING]
    vectors = {name: read[name]().float().numpy() for name, shape in shapes.items() if len(shape) == 1}
    embedding = _float_rows(read[f"{_EMBEDDING}.weight"]())
    return Weights(matrices, vectors, lambda ids: to_float32(FloatRows(embedding.format, embedding.values[ids])))


def _gguf_embedding(gguf: GGUFFile, tensor: GGUFTensor) -> Callable[[np.ndarray], np.ndarray]:
    vocab, width = tensor.shape
    if not can_unpack(tensor.type_name):
        values = gguf.dequantize(tensor.name)
        return lambda token_ids: values[token_ids]
    raw = gguf.raw(tensor.name).reshape(vocab, -1)

    def embed(token_ids: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(raw[token_ids]).reshape(-1)
        return to_float32(unpack(tensor.type_name, rows, (len(token_ids), width)))

    return embed


def _gguf_rows(gguf: GGUFFile, tensor: GGUFTensor, config: Mapping[str, Any]) -> PackedRows:
    def ordered(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(hf_rows(tensor.name, values, config))

    if not can_unpack(tensor.type_name):
        # Types without a kernel of their own (the 2- and 3-bit ones) are kept as float16, several times their size.
        return FloatRows(Format.FLOAT16, ordered(gguf.dequantize(tensor.name).astype(np.float16)))
    n, k = tensor.shape
    rows = unpack(tensor.type_name, gguf.raw(tensor.name), (n, k))
    if isinstance(rows, FloatRows):
        return dataclasses.replace(rows, values=ordered(rows.values))
    m = None if rows.m is None else ordered(rows.m)
    return dataclasses.replace(rows, q=ordered(rows.q), d=ordered(rows.d), m=m)


def _float_rows(tensor: torch.Tensor) -> FloatRows:
    if tensor.dtype is torch.bfloat16:
        return FloatRows(Format.BFLOAT16, tensor.view(torch.uint16).numpy())
    if tensor.dtype is torch.float16:
        return FloatRows(Format.FLOAT16, tensor.numpy())
    return FloatRows(Format.FLOAT32, tensor.float().numpy())


def _converted(rows: PackedRows, weight_format: str) -> PackedRows:
    if weight_format == AS_STORED:
        return rows
    if weight_format == "int8" and isinstance(rows, IntegerRows):
        # 8 bits or fewer already, and exact as they are.
        return rows
    return to_format(to_float32(rows), weight_format)
