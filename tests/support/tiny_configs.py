"""A tiny config of each family that we serve, every optional part of its decoder switched on."""

from __future__ import annotations

from typing import Any

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
_WIDE: dict[str, Any] = {**_SIZES, "hidden_size": 64}
"""Heads of 16 elements where a family has no `head_dim`: a quarter of them is an even number."""
_GPT_SIZES: dict[str, Any] = {
    **{key: _SIZES[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")},
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "tie_word_embeddings": False,
}
_GRANITE: dict[str, Any] = {
    "attention_multiplier": 0.4,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.5,
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
}
_LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.4, 1.8, 2.0, 2.1, 2.2],
        "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0, 34.0],
    },
}
_PARTIAL_LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.2, 1.4, 1.8, 2.0],
        "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0, 13.0],
    },
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
    "smollm3": {
        "model_type": "smollm3",
        **_SIZES,
        "no_rope_layers": [1, 0, 1],
        "use_sliding_window": True,
        "sliding_window": 7,
        "tie_word_embeddings": False,
    },
    "ministral": {
        "model_type": "ministral",
        **_SIZES,
        "head_dim": 16,
        "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    },
    "mixtral": {
        "model_type": "mixtral",
        **_SIZES,
        "sliding_window": 7,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **_SIZES,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_SIZES,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    },
    "gemma": {"model_type": "gemma", **_SIZES, "head_dim": 16, "tie_word_embeddings": False},
    "phi": {"model_type": "phi", **_WIDE},
    "phi3": {"model_type": "phi3", **_WIDE, "sliding_window": 7, **_LONGROPE, "original_max_position_embeddings": 64},
    "phi3_long": {"model_type": "phi3", **_WIDE, **_LONGROPE, "original_max_position_embeddings": 16},
    "phi4_mini": {"model_type": "phi3", **_WIDE, **_PARTIAL_LONGROPE, "original_max_position_embeddings": 64},
    "granite": {
        "model_type": "granite",
        **_SIZES,
        **_GRANITE,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "granitemoe": {
        "model_type": "granitemoe",
        **_SIZES,
        **_GRANITE,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "olmo2": {"model_type": "olmo2", **_SIZES},
    "olmo3": {
        "model_type": "olmo3",
        **_SIZES,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {**_YARN, "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
        },
    },
    "olmoe": {"model_type": "olmoe", **_SIZES, "num_experts": 6, "num_experts_per_tok": 2},
    "stablelm": {"model_type": "stablelm", **_WIDE, "use_qkv_bias": True, "qk_layernorm": True},
    "stablelm_parallel": {"model_type": "stablelm", **_WIDE, "use_parallel_residual": True},
    "starcoder2": {"model_type": "starcoder2", **_SIZES, "sliding_window": 7},
    "cohere": {
        "model_type": "cohere",
        **_SIZES,
        "use_qk_norm": True,
        "logit_scale": 0.5,
        "tie_word_embeddings": False,
    },
    "glm": {"model_type": "glm", **_WIDE, "head_dim": 16},
    "glm4": {"model_type": "glm4", **_WIDE, "head_dim": 16},
    "gpt2": {"model_type": "gpt2", **_GPT_SIZES},
    "gptj": {"model_type": "gptj", **_GPT_SIZES, "rotary_dim": 8},
    "gpt_neox": {"model_type": "gpt_neox", **_WIDE, "num_key_value_heads": 4},
    "gpt_neox_sequential": {
        "model_type": "gpt_neox",
        **_WIDE,
        "num_key_value_heads": 4,
        "use_parallel_residual": False,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **_SIZES,
        "head_dim": 16,
        "sliding_window": 7,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "rope_parameters": {**_YARN, "rope_theta": 150000.0, "truncate": False},
    },
    "dynamic": {
        "model_type": "llama",
        **_SIZES,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    },
}
"""By a name for the kind: the family's, and a word more where one config cannot have it all."""
