"""How Hugging Face checkpoints name, fuse and order the tensors of each model_type.

Does not know files. What a table does not name is called as in `DecoderSpec.tensor_shapes`, that is, as in Llama.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from python_llm.runner.placement import Place, head_rows
from python_llm.runner.spec import DecoderSpec

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Names:
    """One model_type's names. In the tables `*` is the number of an expert; a key may or may not have its ending."""

    top: Mapping[str, str] = field(default_factory=dict)
    layers: str = "model.layers."
    """What comes before the number of a layer."""
    layer: Mapping[str, str] = field(default_factory=dict)
    """Within a layer. An expert whose stored name has no `*` is an entry of a stack of experts."""
    fused: Mapping[str, str] = field(default_factory=dict)
    """Names that hold several tensors, and how: see `part_rows`."""
    transposed: frozenset[str] = frozenset()
    prefix: str = ""
    """Older checkpoints leave this off in front of all names but the head's."""
    ignored: str = r".*\.rotary_emb\.inv_freq"
    """A regular expression of stored tensors that have no effect: buffers with masks or frequencies."""
    per_head_norms: bool = False
    """With norms of each head: one stored tensor a head, numbered."""


_QKV = {f"self_attn.{part}_proj": "self_attn.qkv_proj" for part in "qkv"}
_GATE_UP = {"mlp.gate_proj": "mlp.gate_up_proj", "mlp.up_proj": "mlp.gate_up_proj"}
_FUSED = {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": "gate, up"}
_ROUTER = {"mlp.router": "mlp.gate"}
_BUFFERS = r".*\.(attn|attention)\.(bias|masked_bias)|.*\.rotary_emb\.inv_freq"

NAMES: dict[str, Names] = {
    "mixtral": Names(
        layer={
            "mlp.router": "block_sparse_moe.gate",
            "mlp.experts.*.gate_proj": "block_sparse_moe.experts.*.w1",
            "mlp.experts.*.up_proj": "block_sparse_moe.experts.*.w3",
            "mlp.experts.*.down_proj": "block_sparse_moe.experts.*.w2",
        }
    ),
    "qwen2_moe": Names(layer=_ROUTER),
    "qwen3_moe": Names(layer=_ROUTER),
    "olmoe": Names(layer=_ROUTER),
    "granitemoe": Names(
        layer={
            "mlp.router": "block_sparse_moe.router.layer",
            "mlp.experts.*.gate_proj": "block_sparse_moe.input_linear",
            "mlp.experts.*.up_proj": "block_sparse_moe.input_linear",
            "mlp.experts.*.down_proj": "block_sparse_moe.output_linear",
        },
        fused={"block_sparse_moe.input_linear": "gate, up"},
    ),
    "gpt_oss": Names(
        layer={
            "self_attn.sinks.weight": "self_attn.sinks",
            "mlp.experts.*.gate_proj.weight": "mlp.experts.gate_up_proj",
            "mlp.experts.*.gate_proj.bias": "mlp.experts.gate_up_proj_bias",
            "mlp.experts.*.up_proj.weight": "mlp.experts.gate_up_proj",
            "mlp.experts.*.up_proj.bias": "mlp.experts.gate_up_proj_bias",
            "mlp.experts.*.down_proj.weight": "mlp.experts.down_proj",
            "mlp.experts.*.down_proj.bias": "mlp.experts.down_proj_bias",
        },
        fused={
            "mlp.experts.gate_up_proj": "gate and up in turn",
            "mlp.experts.gate_up_proj_bias": "gate and up in turn",
        },
        transposed=frozenset({"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}),
    ),
    "phi3": Names(layer={**_QKV, **_GATE_UP}, fused=_FUSED),
    "glm": Names(layer=_GATE_UP, fused=_FUSED),
    "glm4": Names(
        layer={
            **_GATE_UP,
            "post_attention_layernorm": "post_self_attn_layernorm",
            "pre_feedforward_layernorm": "post_attention_layernorm",
            "post_feedforward_layernorm": "post_mlp_layernorm",
        },
        fused=_FUSED,
    ),
    "phi": Names(
        top={"model.norm": "model.final_layernorm"},
        layer={"self_attn.o_proj": "self_attn.dense", "mlp.up_proj": "mlp.fc1", "mlp.down_proj": "mlp.fc2"},
    ),
    "starcoder2": Names(layer={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"}),
    "stablelm": Names(
        layer={"self_attn.q_norm": "self_attn.q_layernorm.norms", "self_attn.k_norm": "self_attn.k_layernorm.norms"},
        per_head_norms=True,
    ),
    "gpt_neox": Names(
        top={
            "model.embed_tokens": "gpt_neox.embed_in",
            "model.norm": "gpt_neox.final_layer_norm",
            "lm_head": "embed_out",
        },
        layers="gpt_neox.layers.",
        layer={
            **{f"self_attn.{part}_proj": "attention.query_key_value" for part in "qkv"},
            "self_attn.o_proj": "attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        fused={"attention.query_key_value": "qkv of each head"},
        ignored=_BUFFERS,
    ),
    "gpt2": Names(
        top={
            "model.embed_tokens": "transformer.wte",
            "model.embed_positions": "transformer.wpe",
            "model.norm": "transformer.ln_f",
        },
        layers="transformer.h.",
        layer={
            **{f"self_attn.{part}_proj": "attn.c_attn" for part in "qkv"},
            "self_attn.o_proj": "attn.c_proj",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            "mlp.up_proj": "mlp.c_fc",
            "mlp.down_proj": "mlp.c_proj",
        },
        fused={"attn.c_attn": "qkv"},
        transposed=frozenset({"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}),
        prefix="transformer.",
        ignored=_BUFFERS,
    ),
    "gptj": Names(
        top={"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f"},
        layers="transformer.h.",
        layer={
            **{f"self_attn.{part}_proj": f"attn.{part}_proj" for part in "qkv"},
            "self_attn.o_proj": "attn.out_proj",
            "input_layernorm": "ln_1",
            "mlp.up_proj": "mlp.fc_in",
            "mlp.down_proj": "mlp.fc_out",
        },
        ignored=_BUFFERS,
    ),
}
"""Model types whose checkpoints differ from Llama's."""
_PLAIN = Names()


def stored_name(name: str, spec: DecoderSpec) -> str | None:
    """A checkpoint's tensor as `hf_places` calls it; None when it has no effect on the decoder."""
    names = NAMES.get(spec.model_type, _PLAIN)
    if names.prefix and not name.startswith((names.prefix, "lm_head")):
        name = names.prefix + name
    head = names.top.get("lm_head", "lm_head")
    if re.fullmatch(names.ignored, name) or (spec.tied_head and name == f"{head}.weight"):
        return None
    return name


def hf_places(spec: DecoderSpec) -> dict[str, Place]:
    """By the decoder's own name, where each tensor lies in a checkpoint of `spec.model_type`."""
    names = NAMES.get(spec.model_type, _PLAIN)
    return {name: _place(names, spec, name, shape) for name, shape in spec.tensor_shapes().items()}


def _place(names: Names, spec: DecoderSpec, name: str, shape: tuple[int, ...]) -> Place:
    match = _LAYER.fullmatch(name)
    if match is None:
        stem, ending = name.rsplit(".", 1)
        return Place((f"{names.top.get(stem, stem)}.{ending}",), shape)
    number, stem, ending = match.groups()
    expert = _EXPERT.fullmatch(stem)
    generic = f"mlp.experts.*.{expert[2]}" if expert else stem
    whole_name = names.layer.get(f"{generic}.{ending}")
    stored = whole_name or names.layer.get(generic, generic)
    prefix = f"{names.layers}{number}."
    kind = names.fused.get(stored)
    rows = reordered(spec, stem, shape[0], part_rows(kind, spec, stem, shape[0]))
    full = (shape[0] if kind is None else fused_rows(kind, spec, shape[0]), *shape[1:])
    transposed = stored in names.transposed and len(shape) == 2
    full = full[::-1] if transposed else full
    entry = None
    if expert and "*" in stored:
        stored = stored.replace("*", expert[1])
    elif expert and spec.experts is not None:
        entry, full = int(expert[1]), (spec.experts.count, *full)
    if names.per_head_norms and stem in ("self_attn.q_norm", "self_attn.k_norm"):
        heads = range(shape[0] // spec.head_dim)
        return Place(tuple(f"{prefix}{stored}.{head}.{ending}" for head in heads), (spec.head_dim,), rows=rows)
    if stem in {"self_attn.q_norm", "self_attn.k_norm"} and spec.qk_norm_span == "each_head":
        full = (shape[0] // spec.head_dim, spec.head_dim)
    return Place((prefix + (stored if whole_name else f"{stored}.{ending}"),), full, entry, transposed, rows)


def part_rows(kind: str | None, spec: DecoderSpec, stem: str, count: int) -> np.ndarray | None:
    """Which rows of a fused tensor, fused as `kind` says, are the `count` rows of `stem`; None: all of an unfused."""
    part = stem.rsplit(".", 1)[-1][0]
    own = np.arange(count)
    if kind is None:
        return None
    if kind == "qkv":
        return own + {"q": 0, "k": spec.num_heads, "v": spec.num_heads + spec.num_kv_heads}[part] * spec.head_dim
    if kind == "qkv of each head":
        head, within = np.divmod(own, spec.head_dim)
        return (head * 3 + "qkv".index(part)) * spec.head_dim + within
    if kind == "gate, up":
        return own + "gu".index(part) * count
    return own * 2 + "gu".index(part)


def fused_rows(kind: str, spec: DecoderSpec, count: int) -> int:
    """Rows of a whole fused tensor, one part of which has `count`."""
    if kind.startswith("qkv"):
        return (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    return 2 * count


def reordered(spec: DecoderSpec, stem: str, count: int, rows: np.ndarray | None) -> np.ndarray | None:
    """`rows` (None: all) with the heads of queries and keys in the decoder's order, `spec.head_order`."""
    if not spec.head_order or not re.fullmatch(r"self_attn\.[qk]_(proj|norm)", stem):
        return rows
    order = head_rows(spec.head_order, count)
    return order if rows is None else rows[order]
