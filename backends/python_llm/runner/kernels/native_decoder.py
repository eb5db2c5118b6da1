"""The decoder as compiled kernels: one call runs every layer for every row of a step, over paged KV.

Its twin and oracle is `decoder.TorchDecoder`. Does not know requests, sampling or files.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from python_llm.engine.plan import Span
from python_llm.errors import EngineError, ModelLoadError
from python_llm.runner.kernels.gguf_blocks import FloatRows, Format, IntegerRows, PackedRows
from python_llm.runner.kernels.library import Settings, Step, address, load_kernels
from python_llm.runner.rope import RopeSpec
from python_llm.runner.spec import DecoderSpec

_ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
_MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_HEAD = len(_MATRICES)
_NORMS_PLAIN = {"input_layernorm": 0, "post_attention_layernorm": 1}
_NORMS_SANDWICH = {**_NORMS_PLAIN, "pre_feedforward_layernorm": 2, "post_feedforward_layernorm": 3}
_NORMS_QK = {"self_attn.q_norm": 4, "self_attn.k_norm": 5}
_NORM_LAST = 6
_GROUP = 32


@dataclass(frozen=True, slots=True)
class Weights:
    """What a model's files hold, in the form that the kernels want."""

    matrices: Mapping[str, Callable[[], PackedRows]]
    """By Hugging Face name without `.weight`, the head among them as `lm_head`; read one at a time."""
    vectors: Mapping[str, np.ndarray]
    """Norms (their factor itself) and biases by full name, float32."""
    embed: Callable[[np.ndarray], np.ndarray]
    """Token ids, int32 [n] -> their embeddings, float32 [n, hidden], not scaled."""


KV_FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
"""How keys or values are held in a page; the values of `KvFormat` in kv_pages.h."""


@dataclass(frozen=True, slots=True)
class KVFormat:
    """Formats of the KV pool, names of `KV_FORMATS`."""

    keys: str = "float32"
    values: str = "float32"


def why_not(spec: DecoderSpec, block_size: int, kv_format: KVFormat) -> str | None:
    """The reason why the kernels cannot run such a decoder, or None."""
    widths = {spec.hidden_size, spec.intermediate_size, spec.num_heads * spec.head_dim}
    if any(width % _GROUP for width in widths):
        return f"its widths {sorted(widths)} are not all multiples of {_GROUP}"
    if spec.head_dim % 8 or block_size % 8:
        return f"head_dim {spec.head_dim} and block_size {block_size} must be multiples of 8"
    formats = {kv_format.keys, kv_format.values}
    if formats & {"int8", "int4"} and spec.head_dim % _GROUP:
        return f"keys and values in whole numbers need a head_dim that is a multiple of {_GROUP}, not {spec.head_dim}"
    return None


def page_bytes(spec: DecoderSpec, block_size: int, kv_format: KVFormat) -> int:
    """Bytes of one page of the KV pool, over all layers."""
    return int(load_kernels().pl_page_bytes(ctypes.byref(_settings(spec, block_size, 1, kv_format))))


def _settings(spec: DecoderSpec, block_size: int, threads: int, kv_format: KVFormat) -> Settings:
    return Settings(
        layers=len(spec.layers),
        hidden=spec.hidden_size,
        inner=spec.intermediate_size,
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab=spec.vocab_size,
        activation=_ACTIVATIONS[spec.activation],
        qk_norm=spec.qk_norm,
        sandwich_norms=spec.sandwich_norms,
        threads=threads,
        page=block_size,
        key_format=KV_FORMATS[kv_format.keys],
        value_format=KV_FORMATS[kv_format.values],
        norm_eps=spec.norm_eps,
        attention_scale=spec.attention_scale,
        attention_softcap=spec.attention_softcap or 0.0,
        logit_softcap=spec.logit_softcap or 0.0,
    )


class _RotationTable:
    """Cosines and sines of one kind of rotary embedding, for as many positions as were asked for so far."""

    def __init__(self, rope: RopeSpec) -> None:
        self._inv_freq = np.array(rope.inv_freq, dtype=np.float32)
        self._scale = np.float32(rope.scale)
        self._cosines = self._sines = np.empty((0, len(self._inv_freq)), dtype=np.float32)

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`positions`: int [rows] -> cosines and sines, float32 [rows, head_dim / 2], contiguous."""
        needed = int(positions.max()) + 1
        if needed > len(self._cosines):
            angles = np.arange(max(needed, 2 * len(self._cosines), 1024), dtype=np.float32)[:, None] * self._inv_freq
            self._cosines, self._sines = np.cos(angles) * self._scale, np.sin(angles) * self._scale
        return self._cosines[positions], self._sines[positions]


class NativeDecoder:
    """Owner: the engine thread. Holds the packed weights and the KV pool."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        *,
        num_blocks: int,
        block_size: int,
        threads: int,
        kv_format: KVFormat,
    ) -> None:
        """Raises ModelLoadError when memory runs out, KernelsUnavailableError where there are no kernels."""
        self.spec = spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_format = kv_format
        self._library = load_kernels()
        self._embed = weights.embed
        self._rotations = [_RotationTable(rope) for rope in spec.ropes]
        self._kv = np.empty((num_blocks, page_bytes(spec, block_size, kv_format)), dtype=np.uint8)
        settings = _settings(spec, block_size, threads, kv_format)
        self._model = self._library.pl_new(ctypes.byref(settings))
        if not self._model:
            raise ModelLoadError(f"This machine has too little memory for the model, or gives it no {threads} threads.")
        self._load(weights)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.pl_free(self._model)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed matrices."""
        return int(self._library.pl_weight_bytes(self._model))

    def forward(self, spans: Sequence[Span]) -> None:
        """Run every layer for the rows of `spans` (one row a token, span after span), writing their keys and values."""
        token_ids = np.concatenate([span.token_ids for span in spans])
        positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
        embeddings = np.ascontiguousarray(self._embed(token_ids), dtype=np.float32)
        if self.spec.embedding_scale != 1.0:
            embeddings = embeddings * np.float32(self.spec.embedding_scale)
        span_rows = np.cumsum([0, *(len(span.token_ids) for span in spans)], dtype=np.int32)
        span_starts = np.array([span.start for span in spans], dtype=np.int32)
        tables = np.concatenate([span.block_ids for span in spans]).astype(np.int32)
        table_starts = np.cumsum([0, *(len(span.block_ids) for span in spans[:-1])], dtype=np.int32)
        rotations = [table.at(positions) for table in self._rotations]
        cosines, sines = [cosine for cosine, _ in rotations], [sine for _, sine in rotations]
        pointers = [np.array([address(array) for array in arrays], dtype=np.uint64) for arrays in (cosines, sines)]
        step = Step(
            rows=len(token_ids),
            spans=len(spans),
            embeddings=address(embeddings),
            span_rows=address(span_rows),
            span_starts=address(span_starts),
            tables=address(tables),
            table_starts=address(table_starts),
            cosines=address(pointers[0]),
            sines=address(pointers[1]),
            kv=address(self._kv),
        )
        if self._library.pl_step(self._model, ctypes.byref(step)):
            raise EngineError("a step ran out of memory")

    def logits(self, rows: Sequence[int]) -> torch.Tensor:
        """Logits of these rows of the last `forward`: float32 [len(rows), vocab], fresh memory."""
        wanted = np.array(rows, dtype=np.int32)
        logits = np.empty((len(rows), self.spec.vocab_size), dtype=np.float32)
        if self._library.pl_head(self._model, address(wanted), len(rows), address(logits)):
            raise EngineError("a step ran out of memory")
        return torch.from_numpy(logits)

    def _load(self, weights: Weights) -> None:
        norms = {**(_NORMS_SANDWICH if self.spec.sandwich_norms else _NORMS_PLAIN)}
        if self.spec.qk_norm:
            norms |= _NORMS_QK
        for index, layer in enumerate(self.spec.layers):
            self._library.pl_set_layer(self._model, index, layer.rope, layer.window or 0)
            prefix = f"model.layers.{index}."
            for name, which in norms.items():
                self._set_norm(index, which, weights.vectors[f"{prefix}{name}.weight"])
            for which, name in enumerate(_MATRICES):
                bias = weights.vectors.get(f"{prefix}{name}.bias")
                self._set_matrix(index, which, weights.matrices[prefix + name](), bias)
        self._set_norm(-1, _NORM_LAST, weights.vectors["model.norm.weight"])
        self._set_matrix(-1, _HEAD, weights.matrices["lm_head"](), None)

    def _set_norm(self, layer: int, which: int, weight: np.ndarray) -> None:
        if self._library.pl_set_norm(self._model, layer, which, address(weight), len(weight)):
            raise ModelLoadError("This machine has too little memory for the model.")

    def _set_matrix(self, layer: int, which: int, rows: PackedRows, bias: np.ndarray | None) -> None:
        if isinstance(rows, IntegerRows):
            n, k = rows.q.shape
            arrays = [rows.q, rows.d, rows.m, bias]
            status = self._library.pl_set_integer(
                self._model, layer, which, rows.format, n, k, *[address(array) for array in arrays]
            )
        else:
            n, k = rows.values.shape
            values = np.ascontiguousarray(rows.values)
            status = self._library.pl_set_float(
                self._model, layer, which, rows.format, n, k, address(values), address(bias)
            )
        if status:
            raise ModelLoadError("This machine has too little memory for the model.")


def to_float32(rows: PackedRows) -> np.ndarray:
    """The weights' values, float32 [n, k]."""
    if isinstance(rows, FloatRows):
        if rows.format is Format.BFLOAT16:
            return (rows.values.astype(np.uint32) << 16).view(np.float32)
        return rows.values.astype(np.float32)
    group = rows.q.shape[1] // rows.d.shape[1]
    values = rows.q.reshape(*rows.d.shape, group) * rows.d[..., None]
    if rows.m is not None:
        values = values + rows.m[..., None]
    return values.reshape(rows.q.shape)
