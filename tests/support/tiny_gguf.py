"""Writes GGUF files as llama.cpp's converter does, from Hugging Face folders.

The names are those of the `gguf` package's own map; what the converter changes beyond names is in `_converted`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi": "phi2",
    "phi3": "phi3",
    "granite": "granite",
    "granitemoe": "granitemoe",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "cohere": "command-r",
    "glm4": "glm4",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
}
"""model_type -> llama.cpp's name."""
_PERMUTED = ("llama", "smollm3", "granite", "granitemoe")


def write_gguf(folder: Path, path: Path, quantisation: str = "F32", **extra: float) -> Path:
    """`folder` as `save_pretrained` wrote it -> the file `path`; matrices as `quantisation`, where their width allows.

    `extra`: more metadata of the architecture, with `__` for a dot.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**_metadata(arch, config), **{name.replace("__", "."): v for name, v in extra.items()}}.items():
        _add(writer, f"{arch}.{key}", value)
    tensors = {name: tensor.float().numpy() for name, tensor in load_file(folder / "model.safetensors").items()}
    kind = gguf.GGMLQuantizationType[quantisation]
    for name, values in _named(arch, config, _converted(arch, config, tensors)):
        if quantisation != "F32" and values.ndim > 1 and values.shape[-1] % 32 == 0 and _is_packed(name, quantisation):
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _is_packed(name: str, quantisation: str) -> bool:
    """Whether a file of this kind has the matrix in blocks: gpt-oss was published with its experts alone in MXFP4."""
    return name.endswith("_exps.weight") if quantisation == "MXFP4" else name.endswith(".weight") and "norm" not in name


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


def _first(config: dict[str, Any], *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _metadata(arch: str, config: dict[str, Any]) -> dict[str, Any]:
    hidden, heads = _first(config, "hidden_size", "n_embd"), _first(config, "num_attention_heads", "n_head")
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_parameters") or {}
    sliding_theta = rope.get("sliding_attention", {}).get("rope_theta")
    rope = rope.get("full_attention", rope)
    positions = _first(config, "max_position_embeddings", "n_positions")
    values = {
        "context_length": positions,
        "embedding_length": hidden,
        "block_count": _first(config, "num_hidden_layers", "n_layer"),
        "feed_forward_length": _first(config, "intermediate_size", "n_inner") or 4 * hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": _first(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        "rope.freq_base": rope.get("rope_theta"),
        "rope.freq_base_swa": sliding_theta,
        "expert_count": _first(config, "num_local_experts", "num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "attention.scale": config.get("attention_multiplier"),
        "embedding_scale": config.get("embedding_multiplier"),
        "residual_scale": config.get("residual_multiplier"),
        "logit_scale": _first(config, "logits_scaling", "logit_scale"),
        "attn_logit_softcapping": config.get("attn_logit_softcapping"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
        "use_parallel_residual": config.get("use_parallel_residual"),
    }
    if arch in ("gpt2", "gptneox", "phi2"):
        del values["attention.head_count_kv"]
    if arch == "gpt-oss":
        values["expert_feed_forward_length"] = config["intermediate_size"]
    if head_dim != hidden // heads or arch in ("qwen3", "gemma2", "gemma3"):
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    partial = rope.get("partial_rotary_factor")
    if partial is not None and partial != 1.0:
        values["rope.dimension_count"] = int(partial * head_dim)
    elif arch in _PERMUTED:
        values["rope.dimension_count"] = head_dim
    if arch in ("gemma2", "gemma3", "gpt-oss", "phi3") or config["model_type"] == "olmo3":
        values["attention.sliding_window"] = config.get("sliding_window") or 0
    if config["model_type"] == "olmo3":
        values["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config["layer_types"]]
    kind = rope.get("rope_type")
    if kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        values["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        values["rope.scaling.yarn_beta_fast"] = float(rope["beta_fast"])
        values["rope.scaling.yarn_beta_slow"] = float(rope["beta_slow"])
    if arch == "phi3":
        original = config["original_max_position_embeddings"]
        values["rope.scaling.original_context_length"] = original
        if kind == "longrope":
            scale = positions / original
            values["rope.scaling.attn_factor"] = float(np.sqrt(1 + np.log(scale) / np.log(original)))
    return {key: value for key, value in values.items() if value is not None}


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """The converter's interleaving of the two halves of each head."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def _converted(arch: str, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """(Hugging Face's name, or llama.cpp's where it is of several tensors or none, and values)."""
    heads = _first(config, "num_attention_heads", "n_head")
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in tensors.items():
        layer = re.search(r"\.(\d+)\.", name)
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if arch in _PERMUTED and re.search(r"\.([qk])_proj\.", name):
            count = heads if ".q_proj." in name else config["num_key_value_heads"]
            yield name, _permuted(values, count)
        elif match := re.fullmatch(r"(.+\.experts)\.(\d+)\.(.+)", name):
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = values
        elif match := re.fullmatch(r"(.+\.[qk]_layernorm)\.norms\.(\d+)\.weight", name):
            stacks.setdefault(f"{match[1]}.weight", {})[int(match[2])] = values
        elif arch == "granitemoe" and name.endswith("input_linear.weight") and layer:
            gate, up = np.split(values, 2, axis=1)
            yield f"blk.{layer[1]}.ffn_gate_exps.weight", gate
            yield f"blk.{layer[1]}.ffn_up_exps.weight", up
        elif arch == "gpt-oss" and ".experts." in name and layer:
            ending = "bias" if name.endswith("_bias") else "weight"
            rows = values if ending == "bias" else values.swapaxes(1, 2)
            if "gate_up_proj" in name:
                yield f"blk.{layer[1]}.ffn_gate_exps.{ending}", rows[:, ::2]
                yield f"blk.{layer[1]}.ffn_up_exps.{ending}", rows[:, 1::2]
            else:
                yield f"blk.{layer[1]}.ffn_down_exps.{ending}", rows
        elif name.endswith(".shared_expert_gate.weight"):
            yield name, values.squeeze()
        elif name.endswith(".sinks"):
            yield f"{name}.weight", values
        elif ".query_key_value." in name:
            by_head = values.reshape(heads, 3, -1, *values.shape[1:])
            yield name, by_head.swapaxes(0, 1).reshape(values.shape)
        elif arch == "gpt2" and re.search(r"\.(c_attn|c_proj|c_fc)\.weight", name):
            yield name, values.T
        elif arch.startswith("gemma") and name.endswith("norm.weight"):
            yield name, values + 1
        else:
            yield name, values
    for name, entries in stacks.items():
        yield name, np.stack([entries[index] for index in range(len(entries))])
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        yield "rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32)
        yield "rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32)
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config, rope)


def _llama3_factors(config: dict[str, Any], rope: dict[str, Any]) -> np.ndarray:
    """What transformers' frequencies are divided by."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    plain = 1.0 / rope["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    scaled = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**config), None)[0].numpy()
    return (plain / scaled).astype(np.float32)


def _named(
    arch: str, config: dict[str, Any], tensors: Iterator[tuple[str, np.ndarray]]
) -> Iterator[tuple[str, np.ndarray]]:
    layers = _first(config, "num_hidden_layers", "n_layer")
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), layers)
    for name, values in tensors:
        if name.startswith(("blk.", "rope_f")):
            yield name, values
            continue
        # Mixtral's stacked experts go by their older name in the map.
        known = re.sub(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.", r"layers.\1.feed_forward.experts.", name)
        found = names.get_name(known, try_suffixes=(".weight", ".bias"))
        assert found is not None, f"llama.cpp has no name for {name}"
        yield found, values
