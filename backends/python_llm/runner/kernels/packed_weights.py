"""A model's files -> what the native decoder takes in: packed matrices one at a time, norms, biases, embeddings.

GGUF blocks stay packed and no float32 copy of the model is made. Does not know layers or kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from python_llm.model_files.gguf import GGUFFile, GGUFTensor
from python_llm.runner.kernels.gguf_blocks import FloatRows, Format, IntegerRows, PackedRows, can_unpack, unpack
from python_llm.runner.kernels.native_decoder import Weights, to_float32
from python_llm.runner.kernels.quantize import to_format
from python_llm.runner.placement import Place
from python_llm.runner.spec import DecoderSpec

AS_STORED = "auto"
_EMBEDDING = "model.embed_tokens"
_HEAD = "lm_head"


def gguf_weights(gguf: GGUFFile, places: Mapping[str, Place], spec: DecoderSpec, weight_format: str) -> Weights:
    """The weights of a GGUF file; `places`: where the tensors of `spec` lie in it, checked against its directory."""
    matrices: dict[str, Callable[[], PackedRows]] = {}
    vectors: dict[str, np.ndarray] = {}
    for name, shape in spec.tensor_shapes().items():
        place = places[name]
        (stored,) = place.names
        if len(shape) == 1:
            values = gguf.dequantize(stored, place.entry).reshape(-1)
            vectors[name] = values if place.rows is None else values[place.rows]
        else:

            def read(stored: str = stored, place: Place = place) -> PackedRows:
                return _converted(_gguf_rows(gguf, gguf.tensors[stored], place), weight_format)

            matrices[name.removesuffix(".weight")] = read
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


def _gguf_rows(gguf: GGUFFile, tensor: GGUFTensor, place: Place) -> PackedRows:
    def chosen(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(values if place.rows is None else values[place.rows])

    if not can_unpack(tensor.type_name):
        # Types without a kernel of their own (the 2- and 3-bit ones) are kept as float16, several times their size.
        return FloatRows(Format.FLOAT16, chosen(gguf.dequantize(tensor.name, place.entry).astype(np.float16)))
    n, k = tensor.shape[-2:]
    raw = gguf.raw(tensor.name)
    if place.entry is not None:
        raw = raw.reshape(tensor.shape[0], -1)[place.entry]
    rows = unpack(tensor.type_name, raw, (n, k))
    if isinstance(rows, FloatRows):
        return dataclasses.replace(rows, values=chosen(rows.values))
    m = None if rows.m is None else chosen(rows.m)
    return dataclasses.replace(rows, q=chosen(rows.q), d=chosen(rows.d), m=m)


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
