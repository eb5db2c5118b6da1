"""A GGUF file's metadata -> the config.json that its model would have; the fields that `hf_config` reads.

What differs between architectures is one table. Does not know tensors' names beyond those that tell what a model has.
Source: llama.cpp's `convert_hf_to_gguf.py` and, for what the files do not say, its `llama-model.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from python_llm.errors import ModelLoadError
from python_llm.model_files.gguf import GGUFFile
from python_llm.runner.gguf_names import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS


@dataclass(frozen=True)
class _Arch:
    """One `general.architecture`."""

    model_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    """Metadata beyond `_FIELDS` -> the config's field."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Config fields that files do not carry."""
    partial_rotary: bool = False
    """`rope.dimension_count` may be less than the head's size."""
    scalings: tuple[str, ...] = ("none", "linear", "yarn")
    """Values of `rope.scaling.type` that we serve."""
    rope: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a scaled rotation that files do not carry."""


_FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "rope.freq_base": "rope_theta",
}
_LAYER_NORM = {"attention.layer_norm_epsilon": "norm_eps"}
_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_EXPERT_SIZE = {"expert_feed_forward_length": "moe_intermediate_size"}
_SHARED_SIZE = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_PATTERN = {"attention.sliding_window_pattern": "sliding_window_pattern"}
_SLIDING_THETA = {"rope.freq_base_swa": "rope_local_base_freq"}
_SOFTCAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_PARALLEL = {"use_parallel_residual": "use_parallel_residual"}

_ARCHS: dict[str, _Arch] = {
    "llama": _Arch("llama", _EXPERTS),
    "smollm3": _Arch("smollm3"),
    "qwen2": _Arch("qwen2"),
    "qwen2moe": _Arch("qwen2_moe", {**_EXPERTS, **_EXPERT_SIZE, **_SHARED_SIZE}, {"norm_topk_prob": False}),
    "qwen3": _Arch("qwen3"),
    "qwen3moe": _Arch("qwen3_moe", {**_EXPERTS, **_EXPERT_SIZE}, {"norm_topk_prob": True}),
    "gemma": _Arch("gemma"),
    "gemma2": _Arch("gemma2", {**_WINDOW, **_SOFTCAPS}),
    "gemma3": _Arch("gemma3_text", {**_WINDOW, **_PATTERN, **_SOFTCAPS, **_SLIDING_THETA}),
    "phi2": _Arch("phi", _LAYER_NORM, partial_rotary=True),
    "phi3": _Arch("phi3", _WINDOW, partial_rotary=True, scalings=("none", "longrope")),
    "granite": _Arch("granite", _GRANITE),
    "granitemoe": _Arch("granitemoe", {**_EXPERTS, **_GRANITE}),
    "olmo2": _Arch("olmo2", {**_WINDOW, **_PATTERN, **_SLIDING_THETA}),
    "olmoe": _Arch("olmoe", _EXPERTS, {"norm_topk_prob": False}),
    "glm4": _Arch("glm4", partial_rotary=True),
    "stablelm": _Arch("stablelm", {**_LAYER_NORM, **_PARALLEL}, partial_rotary=True),
    "starcoder2": _Arch("starcoder2", _LAYER_NORM),
    "command-r": _Arch("cohere", {**_LAYER_NORM, "logit_scale": "logit_scale"}),
    "gpt2": _Arch("gpt2", _LAYER_NORM),
    "gptneox": _Arch("gpt_neox", {**_LAYER_NORM, **_PARALLEL}, partial_rotary=True),
    "gpt-oss": _Arch("gpt_oss", {**_EXPERTS, **_EXPERT_SIZE, **_WINDOW}, rope={"truncate": False}),
}
SUPPORTED = tuple(sorted(_ARCHS))
"""The values of `general.architecture` that we serve."""
_REQUIRED = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
_ROPE_SETTINGS = {
    "rope.scaling.factor": "factor",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
_READ_ELSEWHERE = {
    "attention.value_length",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_ext_factor",
    *_ROPE_SETTINGS,
}
_WITHOUT_EFFECT = {"vocab_size", "rope.scaling.finetuned"}
"""The vocabulary's size is that of the embedding."""


def config_from_gguf(gguf: GGUFFile) -> dict[str, Any]:
    """The fields that `hf_config` reads, by Hugging Face's names.

    Raises ModelLoadError for an architecture, or a setting of one, that we do not know: it might change the result.
    """
    name = gguf.metadata.get("general.architecture")
    if name not in _ARCHS:
        raise ModelLoadError(f"{gguf.path}: architecture {name!r} is not supported; supported: {', '.join(SUPPORTED)}")
    arch, prefix = _ARCHS[name], f"{name}."
    given = {key[len(prefix) :]: value for key, value in gguf.metadata.items() if key.startswith(prefix)}
    fields = {**_FIELDS, **arch.fields}
    unknown = sorted(set(given) - set(fields) - _READ_ELSEWHERE - _WITHOUT_EFFECT)
    if unknown:
        raise ModelLoadError(f"{gguf.path}: architecture {name!r} with the setting {unknown[0]!r} is not supported")
    missing = [key for key in _REQUIRED if key not in given]
    if missing:
        raise ModelLoadError(f"{gguf.path}: metadata {prefix}{missing[0]} is missing")
    varying = [key for key in fields if key in given and not isinstance(given[key], int | float)]
    if varying and varying != ["attention.sliding_window_pattern"]:
        raise ModelLoadError(f"{gguf.path}: {prefix}{varying[0]} must be one number for all layers")
    config: dict[str, Any] = {hf_name: given[key] for key, hf_name in fields.items() if key in given}
    return _completed(gguf, arch, given, config)


def _completed(gguf: GGUFFile, arch: _Arch, given: Mapping[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """`config`, read off the metadata's numbers, with all that takes more than a name."""
    stored = gguf.tensors
    model_type = arch.model_type
    if config.pop("num_experts", 0):
        config["num_experts"] = given["expert_count"]
        # Mixtral is a Llama with experts to llama.cpp.
        model_type = "mixtral" if model_type == "llama" else model_type
    if config.get("sliding_window") == 0:
        config["sliding_window"] = None
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, np.ndarray | list):
        del config["sliding_window_pattern"]
        config["layer_types"] = ["sliding_attention" if sliding else "full_attention" for sliding in pattern]
        model_type = "olmo3" if model_type == "olmo2" else model_type
    has_qkv_bias = bool({"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & set(stored))
    config |= {
        "model_type": model_type,
        "vocab_size": _embedding_rows(gguf),
        "tie_word_embeddings": "output.weight" not in stored,
        "attention_bias": has_qkv_bias,
        "use_qkv_bias": has_qkv_bias,
        "qkv_bias": has_qkv_bias,
        "use_bias": has_qkv_bias,
        "mlp_bias": "blk.0.ffn_up.bias" in stored,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in stored,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in stored,
        **arch.fixed,
    }
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    head_dim = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if given.get("attention.value_length", head_dim) != head_dim:
        raise _must_equal(gguf, "attention.value_length", head_dim, given)
    rotated = given.get("rope.dimension_count", head_dim)
    if rotated != head_dim and not arch.partial_rotary:
        raise _must_equal(gguf, "rope.dimension_count", head_dim, given)
    config["partial_rotary_factor"] = rotated / head_dim
    if model_type in ("gemma2", "gemma3_text"):
        config["query_pre_attn_scalar"] = _gemma_attention_scalar(model_type, config)
    config["rope_scaling"] = _rope_scaling(gguf, arch, given)
    if "rope.scaling.original_context_length" in given:
        config["original_max_position_embeddings"] = given["rope.scaling.original_context_length"]
    return config


def _must_equal(gguf: GGUFFile, key: str, head_dim: int, given: Mapping[str, Any]) -> ModelLoadError:
    name = gguf.metadata["general.architecture"]
    return ModelLoadError(f"{gguf.path}: {name}.{key} must equal the head size {head_dim}, not {given[key]}")


def _embedding_rows(gguf: GGUFFile) -> int:
    if "token_embd.weight" not in gguf.tensors:
        raise ModelLoadError(f"{gguf.path}: tensor token_embd.weight is missing")
    return gguf.tensors["token_embd.weight"].shape[0]


def _gemma_attention_scalar(model_type: str, config: Mapping[str, Any]) -> int:
    # The files do not carry it; llama.cpp tells the 27B models, which alone differ, by their number of layers.
    is_27b = config["num_hidden_layers"] == {"gemma2": 46, "gemma3_text": 62}[model_type]
    return config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]


def _rope_scaling(gguf: GGUFFile, arch: _Arch, given: Mapping[str, Any]) -> dict[str, Any] | None:
    if ROPE_FACTORS in gguf.tensors:
        # Llama 3's scaling comes as one divisor a frequency, which is what LongRoPE's factors are.
        factors = gguf.dequantize(ROPE_FACTORS).tolist()
        return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    kind = given.get("rope.scaling.type", "none")
    if LONG_FACTORS in gguf.tensors and SHORT_FACTORS in gguf.tensors and "longrope" in arch.scalings:
        # Some converters do not name the type beside them.
        kind = "longrope"
    if kind not in arch.scalings:
        raise ModelLoadError(
            f"{gguf.path}: rope.scaling.type {kind!r} is not supported; supported: {', '.join(arch.scalings)}"
        )
    settings = {name: given[key] for key, name in _ROPE_SETTINGS.items() if key in given}
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": settings.get("factor", 1.0)}
    if kind == "yarn":
        if given.get("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
            raise ModelLoadError(f"{gguf.path}: rope.scaling.yarn_ext_factor other than 1 is not supported")
        return {"rope_type": "yarn", **arch.rope, **settings}
    if "rope.scaling.attn_factor" in given:
        settings["attention_factor"] = given["rope.scaling.attn_factor"]
    return {
        "rope_type": "longrope",
        **settings,
        "short_factor": gguf.dequantize(SHORT_FACTORS).tolist(),
        "long_factor": gguf.dequantize(LONG_FACTORS).tolist(),
    }
