"""llama.cpp's conventions in Hugging Face terms: GGUF metadata -> config dictionary, GGUF tensors -> HF names and rows.

Does not know how a GGUF file is stored (`model_files.gguf`), nor what a decoder does with the result.
Source: llama.cpp's `convert_hf_to_gguf.py` and, for what the files do not say, its `llama-model.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from python_llm.errors import ModelLoadError
from python_llm.model_files.gguf import GGUFFile

_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text"}

_FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_GEMMA_FIELDS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GEMMA3_FIELDS = {
    "rope.freq_base_swa": "rope_local_base_freq",
    "attention.sliding_window_pattern": "sliding_window_pattern",
}
_REQUIRED = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
_READ_ELSEWHERE = {"attention.value_length", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor"}
_WITHOUT_EFFECT = {"vocab_size", "rope.scaling.original_context_length", "rope.scaling.finetuned"}
"""The vocabulary's size is that of the embedding; the other two inform the scaling types that we refuse."""

ROPE_FACTORS = "rope_freqs.weight"

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER_NAMES = {
    **_LAYER_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_TENSOR = re.compile(r"(.+)\.(weight|bias)")


def config_from_gguf(gguf: GGUFFile) -> dict[str, Any]:
    """The config.json that the file's model would have; the fields that `hf_config` reads.

    Raises ModelLoadError for an architecture, or a setting of one, that we do not know: it might change the result.
    """
    arch = gguf.metadata.get("general.architecture")
    if arch not in _MODEL_TYPES:
        raise ModelLoadError(
            f"{gguf.path}: architecture {arch!r} is not supported; supported: {', '.join(sorted(_MODEL_TYPES))}"
        )
    prefix = f"{arch}."
    given = {key[len(prefix) :]: value for key, value in gguf.metadata.items() if key.startswith(prefix)}
    gemma = arch in ("gemma2", "gemma3")
    fields = {**_FIELDS, **(_GEMMA_FIELDS if gemma else {}), **(_GEMMA3_FIELDS if arch == "gemma3" else {})}
    unknown = sorted(set(given) - set(fields) - _READ_ELSEWHERE - _WITHOUT_EFFECT)
    if unknown:
        raise ModelLoadError(f"{gguf.path}: architecture {arch!r} with the setting {unknown[0]!r} is not supported")
    missing = [name for name in _REQUIRED if name not in given]
    if missing:
        raise ModelLoadError(f"{gguf.path}: metadata {prefix}{missing[0]} is missing")
    varying = [name for name in fields if name in given and not isinstance(given[name], int | float)]
    if varying:
        raise ModelLoadError(f"{gguf.path}: {prefix}{varying[0]} must be one number for all layers")
    config = {hf_name: given[name] for name, hf_name in fields.items() if name in given}
    config["model_type"] = _MODEL_TYPES[arch]
    config["vocab_size"] = _embedding_rows(gguf)
    config["tie_word_embeddings"] = "output.weight" not in gguf.tensors
    if arch == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in gguf.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in gguf.tensors
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    head_dim = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    for name in ("attention.value_length", "rope.dimension_count"):
        if given.get(name, head_dim) != head_dim:
            raise ModelLoadError(f"{gguf.path}: {prefix}{name} must equal the head size {head_dim}, not {given[name]}")
    if gemma:
        config["query_pre_attn_scalar"] = _gemma_attention_scalar(arch, config)
    config["rope_scaling"] = _rope_scaling(gguf, given)
    return config


def _embedding_rows(gguf: GGUFFile) -> int:
    if "token_embd.weight" not in gguf.tensors:
        raise ModelLoadError(f"{gguf.path}: tensor token_embd.weight is missing")
    return gguf.tensors["token_embd.weight"].shape[0]


def _gemma_attention_scalar(arch: str, config: Mapping[str, Any]) -> int:
    # The files do not carry it; llama.cpp tells the 27B models, which alone differ, by their number of layers.
    is_27b = config["num_hidden_layers"] == {"gemma2": 46, "gemma3": 62}[arch]
    return config["hidden_size"] // config["num_attention_heads"] if is_27b else config["head_dim"]


def _rope_scaling(gguf: GGUFFile, given: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = given.get("rope.scaling.type", "none")
    if ROPE_FACTORS in gguf.tensors:
        # Llama 3's scaling comes as one divisor a frequency, which is what LongRoPE's factors are.
        factors = gguf.dequantize(ROPE_FACTORS).tolist()
        return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    if kind == "none":
        return None
    if kind != "linear":
        raise ModelLoadError(f"{gguf.path}: rope.scaling.type {kind!r} is not supported; supported: none, linear")
    return {"rope_type": "linear", "factor": given.get("rope.scaling.factor", 1.0)}


def hf_tensor_name(name: str, model_type: str) -> str | None:
    """The Hugging Face name of GGUF tensor `name`; None when it has none."""
    layer_names = _GEMMA_LAYER_NAMES if model_type.startswith("gemma") else _LAYER_NAMES
    if match := _LAYER_TENSOR.fullmatch(name):
        layer, stem, ending = match.groups()
        return f"model.layers.{layer}.{layer_names[stem]}.{ending}" if stem in layer_names else None
    match = _TENSOR.fullmatch(name)
    return f"{_NAMES[match[1]]}.{match[2]}" if match and match[1] in _NAMES else None


def hf_rows(name: str, values: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """`values` of GGUF tensor `name` with its rows in Hugging Face's order; shape unchanged.

    llama.cpp rotates neighbouring elements of a llama head, Hugging Face the two halves: the converter interleaved the
    rows of q and k, half by half, and this undoes it. Norms stay as they are: Gemma's come with the 1 already added.
    """
    if config["model_type"] != "llama" or not re.search(r"\.attn_[qk]\.", name):
        return values
    heads = config["num_attention_heads" if ".attn_q." in name else "num_key_value_heads"]
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
