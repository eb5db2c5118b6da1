"""Models small enough for millisecond tests: a toy runner in memory, and Hugging Face folders with random weights."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from python_llm.runner.decoder import Decoder
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.rope import rope_spec
from python_llm.runner.runner import TorchRunner
from python_llm.runner.spec import DecoderSpec, LayerSpec


def toy_spec(vocab_size: int = 258, max_model_len: int = 512, sliding: bool = False) -> DecoderSpec:
    """2 layers, hidden 32, 4 heads over 2 KV heads; with `sliding`, layer 0 sees only the last 8 tokens."""
    head_dim = 8
    return DecoderSpec(
        model_type="toy",
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=head_dim,
        layers=(LayerSpec(rope=0, window=8 if sliding else None), LayerSpec(rope=0, window=None)),
        ropes=(rope_spec({"rope_theta": 10000.0}, head_dim, max_model_len),),
        norm_eps=1e-6,
        activation="silu",
        attention_scale=head_dim**-0.5,
        max_position_embeddings=max_model_len,
    )


def random_weights(spec: DecoderSpec, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights that keep activations near 1 and mix positions strongly, so that greedy output wanders."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in spec.tensor_shapes().items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            weights[name] = 1 + 0.1 * values
        elif name == "model.embed_tokens.weight":
            weights[name] = values
        else:
            weights[name] = values * (3 / shape[1] ** 0.5)
    return weights


def toy_runner(
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    vocab_size: int = 258,
    max_model_len: int = 512,
    seed: int = 0,
    sliding: bool = False,
) -> TorchRunner:
    """A runner over a random 2-layer model; the same arguments give the same model."""
    spec = toy_spec(vocab_size, max_model_len, sliding)
    return TorchRunner(Decoder(spec, random_weights(spec, seed)), KVCache(spec, num_blocks, block_size), max_model_len)


_SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GEMMA: dict[str, Any] = {
    **_SIZES,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 7,
    # Gemma scales embeddings up: tied to the head, random ones would repeat the last token for ever.
    "tie_word_embeddings": False,
}
_LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TINY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES},
    "llama3": {
        "model_type": "llama",
        **_SIZES,
        "rope_parameters": _LLAMA3_ROPE,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "mistral": {"model_type": "mistral", **_SIZES, "sliding_window": 7, "head_dim": 16},
    "qwen2": {
        "model_type": "qwen2",
        **_SIZES,
        "use_sliding_window": True,
        "sliding_window": 7,
        "max_window_layers": 1,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    },
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 16, "tie_word_embeddings": True},
    "gemma2": {"model_type": "gemma2", **_GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 8.0},
    "gemma3": {
        "model_type": "gemma3_text",
        **_GEMMA,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
}
"""One of each family that we serve, every optional part of its decoder switched on."""


def tiny_hf_model(kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """transformers' own model of `TINY_CONFIGS[kind]` with `changes`, random weights, float32, eager attention."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**deepcopy({**TINY_CONFIGS[kind], **changes}))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2:
                weight.copy_(values * (2 / weight.shape[1] ** 0.5))
            elif name.endswith("norm.weight"):
                weight.add_(values * 0.2)
            else:
                weight.copy_(values * 0.3)
    return model


def tiny_hf_folder(path: Path, kind: str = "llama", seed: int = 0) -> Path:
    """Write `tiny_hf_model(kind, seed)` to folder `path` as transformers does, token 1 ending a sequence; -> `path`."""
    model = tiny_hf_model(kind, seed)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(path)
    return path
