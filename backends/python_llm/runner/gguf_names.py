"""llama.cpp's names and order of tensors in Hugging Face's terms.

Does not know how a GGUF file is stored, nor what a decoder does with the result.
Source: llama.cpp's `convert_hf_to_gguf.py` and the tensor names of its `gguf` package.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from python_llm.runner.hf_names import fused_rows, part_rows, reordered
from python_llm.runner.placement import Place, head_rows, neighbours_as_halves
from python_llm.runner.spec import DecoderSpec

ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
NOT_WEIGHTS = frozenset({ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS})
"""Tensors that belong to the config: what frequencies are divided by."""

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(.+)")

_TOP = {
    "model.embed_tokens": "token_embd",
    "model.embed_positions": "position_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_SANDWICH = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class _Layout:
    names: Mapping[str, str] = field(default_factory=dict)
    """Where it differs from `_NAMES`."""
    fused: Mapping[str, str] = field(default_factory=dict)
    """Stored names that hold several tensors, as in `hf_names`."""
    neighbours: bool = False
    """The converter interleaved the two halves of each query and key head: llama.cpp rotates neighbours there."""


_LLAMA = _Layout(neighbours=True)
_LAYOUTS: dict[str, _Layout] = {
    **dict.fromkeys(("llama", "mixtral", "smollm3", "granite", "granitemoe"), _LLAMA),
    **dict.fromkeys(("gemma2", "gemma3_text", "olmo2", "olmo3"), _Layout(_SANDWICH)),
    "glm4": _Layout({**_SANDWICH, "mlp.gate_proj": "ffn_up"}, {"ffn_up": "gate, up"}),
    "gpt_oss": _Layout({"post_attention_layernorm": "post_attention_norm"}),
    "phi3": _Layout({"mlp.gate_proj": "ffn_up"}, {"ffn_up": "gate, up"}),
}
"""By model_type."""
_FUSED_QKV = {f"self_attn.{part}_proj": "attn_qkv" for part in "qkv"}


def gguf_places(spec: DecoderSpec, stored: Collection[str]) -> dict[str, Place]:
    """By the decoder's own name, where each tensor lies in a GGUF file that holds the tensors `stored`."""
    layout = _LAYOUTS.get(spec.model_type, _Layout())
    names, fused = {**_NAMES, **layout.names}, dict(layout.fused)
    if "blk.0.attn_qkv.weight" in stored:
        # Which converters fuse has changed with time.
        names, fused = {**names, **_FUSED_QKV}, {**fused, "attn_qkv": "qkv"}
    return {name: _place(layout, names, fused, spec, name, shape) for name, shape in spec.tensor_shapes().items()}


def _place(
    layout: _Layout,
    names: Mapping[str, str],
    fused: Mapping[str, str],
    spec: DecoderSpec,
    name: str,
    shape: tuple[int, ...],
) -> Place:
    match = _LAYER.fullmatch(name)
    if match is None:
        stem, ending = name.rsplit(".", 1)
        return Place((f"{_TOP[stem]}.{ending}",), shape)
    number, stem, ending = match.groups()
    expert = _EXPERT.fullmatch(stem)
    stored = names[f"mlp.experts.{expert[2]}" if expert else stem]
    kind = fused.get(stored)
    rows = part_rows(kind, spec, stem, shape[0])
    if layout.neighbours and re.fullmatch(r"self_attn\.[qk]_proj", stem):
        rows = _compose(rows, head_rows(neighbours_as_halves(spec.head_dim), shape[0]))
    rows = reordered(spec, stem, shape[0], rows)
    full = shape if kind is None else (fused_rows(kind, spec, shape[0]), *shape[1:])
    entry = None
    if expert and spec.experts is not None:
        entry, full = int(expert[1]), (spec.experts.count, *full)
    if spec.qk_norm_span == "each_head" and stem in ("self_attn.q_norm", "self_attn.k_norm"):
        full = (shape[0] // spec.head_dim, spec.head_dim)
    return Place((f"blk.{number}.{stored}.{ending}",), full, entry, rows=rows)


def _compose(outer: np.ndarray | None, inner: np.ndarray) -> np.ndarray:
    return inner if outer is None else outer[inner]
