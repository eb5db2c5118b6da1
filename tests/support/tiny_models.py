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
from tiny_configs import TINY_CONFIGS


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
            elif weight.ndim == 1 and name.endswith("weight"):
                weight.add_(values * 0.2)  # a norm
            else:
                weight.copy_(values * 0.3)
    return model


def tiny_hf_folder(path: Path, kind: str = "llama", seed: int = 0) -> Path:
    """Write `tiny_hf_model(kind, seed)` to folder `path` as transformers does, token 1 ending a sequence; -> `path`."""
    model = tiny_hf_model(kind, seed)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(path)
    return path
