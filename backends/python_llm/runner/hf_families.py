"""What each model_type's config and modules in transformers amount to, as one table.

`hf_config` reads it. Does not know files, tensors or how anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True)
class Family:
    """One model_type. Fields have common names here: those of Llama's config where it has them."""

    defaults: Mapping[str, Any]
    """transformers' value of each field that we read: configs are saved without fields that equal the default."""
    own_names: Mapping[str, str] = field(default_factory=dict)
    """Common name -> the name in this family's config."""
    says: Mapping[str, str] = field(default_factory=dict)
    """Fields of `DecoderSpec` -> the config's field that gives their value."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `DecoderSpec` that the config does not say."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Config fields of which we serve this one value."""
    sliding: Literal["no", "all", "last", "pattern", "unrotated"] = "no"
    """Which layers have the config's sliding window, where there is one and no `layer_types` says otherwise: all, those
    from `max_window_layers` on, all but each `sliding_window_pattern`-th, or those of `no_rope_layers`."""
    rotation: Literal["halves", "neighbours", "none"] = "halves"
    """Which elements of a head's rotated part turn together: (j, j + n / 2), or (2j, 2j + 1)."""
    rope_by_kind: bool = False
    """Sliding and full layers may have rotations of their own."""
    rope_aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that this family's older configs have for a rope type -> its name."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by hidden_size ** 0.5."""
    logit_divisor: str = ""
    """The config's field that logits are divided by."""
    experts_bias: bool = False
    score_scale: Literal["head_dim", "query_pre_attn_scalar", "attention_multiplier"] = "head_dim"
    """Attention's scores are multiplied by head_dim ** -0.5, by this field ** -0.5, or by this field."""


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_LAYER_NORM = {"norm": "layer", "norm_bias": True}
_UNGATED = {"gated_mlp": False, "mlp_bias": True}
_GPT_SIZES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "norm_eps": "layer_norm_epsilon",
}
_RMS_EPS = {"norm_eps": "rms_norm_eps"}
_LAYER_EPS = {"norm_eps": "layer_norm_eps"}
_ATTENTION_BIAS = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}


def _sizes(sizes: tuple[int | None, ...], **more: Any) -> dict[str, Any]:
    """transformers' defaults: the seven `sizes`, what most families share, and what is not so in this one."""
    return {
        **dict(zip(_SIZES, sizes, strict=True)),
        "head_dim": None,
        "hidden_act": "silu",
        "norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        **more,
    }


_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA_FIXED = {"norm_offset": 1.0}
_GEMMA2 = Family(
    _sizes(
        (256000, 2304, 9216, 26, 8, 4, 8192),
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        tie_word_embeddings=True,
        query_pre_attn_scalar=256,
        sliding_window=4096,
        sliding_window_pattern=2,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    ),
    own_names={**_RMS_EPS, "hidden_act": "hidden_activation"},
    says={
        **_ATTENTION_BIAS,
        "attention_softcap": "attn_logit_softcapping",
        "logit_softcap": "final_logit_softcapping",
    },
    fixed={**_GEMMA_FIXED, "sandwich_norms": True},
    only={"use_bidirectional_attention": False},
    sliding="pattern",
    scaled_embedding=True,
    score_scale="query_pre_attn_scalar",
)
_GRANITE_DEFAULTS = {
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
_GRANITE_SAYS = {
    **_ATTENTION_BIAS,
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
}
_GLM_DEFAULTS = _sizes(
    (151552, 4096, 13696, 40, 32, 2, 131072),
    head_dim=128,
    norm_eps=1.5625e-07,
    partial_rotary_factor=0.5,
    attention_bias=True,
)

FAMILIES: dict[str, Family] = {
    "llama": Family(
        _sizes((32000, 4096, 11008, 32, 32, None, 2048)),
        own_names=_RMS_EPS,
        says={**_ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
    ),
    "smollm3": Family(
        _sizes(
            (128256, 2048, 11008, 36, 16, 4, 32768),
            rope_theta=2000000.0,
            tie_word_embeddings=True,
            use_sliding_window=False,
            no_rope_layers=None,
            no_rope_layer_interval=4,
        ),
        own_names=_RMS_EPS,
        says={**_ATTENTION_BIAS, "mlp_bias": "mlp_bias"},
        sliding="unrotated",
    ),
    "mistral": Family(
        _sizes((32000, 4096, 14336, 32, 32, 8, 131072), sliding_window=4096), own_names=_RMS_EPS, sliding="all"
    ),
    "ministral": Family(
        _sizes((32000, 4096, 14336, 32, 32, 8, 131072), sliding_window=4096, max_window_layers=0),
        own_names=_RMS_EPS,
        sliding="last",
    ),
    "mixtral": Family(
        _sizes(
            (32000, 4096, 14336, 32, 32, 8, 131072),
            norm_eps=1e-5,
            rope_theta=1e6,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        ),
        own_names={**_RMS_EPS, "num_experts": "num_local_experts"},
        sliding="all",
    ),
    "qwen2": Family(
        _sizes((151936, 4096, 22016, 32, 32, 32, 32768), **_QWEN_WINDOW),
        own_names=_RMS_EPS,
        fixed={"qkv_bias": True},
        sliding="last",
    ),
    "qwen2_moe": Family(
        _sizes(
            (151936, 2048, 5632, 24, 16, 16, 32768),
            **_QWEN_WINDOW,
            num_experts=60,
            num_experts_per_tok=4,
            norm_topk_prob=False,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            qkv_bias=True,
        ),
        own_names=_RMS_EPS,
        says={"qkv_bias": "qkv_bias"},
        sliding="last",
    ),
    "qwen3": Family(
        _sizes((151936, 4096, 22016, 32, 32, 32, 32768), head_dim=128, **_QWEN_WINDOW),
        own_names=_RMS_EPS,
        says=_ATTENTION_BIAS,
        fixed={"qk_norm": True},
        sliding="last",
    ),
    "qwen3_moe": Family(
        _sizes(
            (151936, 2048, 6144, 24, 32, 4, 32768),
            use_sliding_window=False,
            num_experts=128,
            num_experts_per_tok=8,
            norm_topk_prob=False,
            moe_intermediate_size=768,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        own_names={**_RMS_EPS, "num_experts": "num_local_experts"},
        says=_ATTENTION_BIAS,
        fixed={"qk_norm": True},
        sliding="all",
    ),
    "gemma": Family(
        _sizes(
            (256000, 3072, 24576, 28, 16, 16, 8192),
            head_dim=256,
            hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=True,
        ),
        own_names=_RMS_EPS,
        says=_ATTENTION_BIAS,
        fixed=_GEMMA_FIXED,
        only={"use_bidirectional_attention": False},
        scaled_embedding=True,
    ),
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2,
        defaults={
            **_GEMMA2.defaults,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "final_logit_softcapping": None,
        },
        says={**_ATTENTION_BIAS, "logit_softcap": "final_logit_softcapping"},
        fixed={**_GEMMA2.fixed, "qk_norm": True},
        # transformers reads attn_logit_softcapping for Gemma 2 only, other engines for both: there is no right answer.
        only={**_GEMMA2.only, "attn_logit_softcapping": None},
        rope_by_kind=True,
    ),
    "phi": Family(
        _sizes(
            (51200, 2048, 8192, 24, 32, None, 2048),
            hidden_act="gelu_new",
            norm_eps=1e-5,
            partial_rotary_factor=0.5,
            qk_layernorm=False,
        ),
        own_names=_LAYER_EPS,
        fixed={
            **_LAYER_NORM,
            **_UNGATED,
            "parallel_residual": True,
            "one_norm": True,
            "qkv_bias": True,
            "o_bias": True,
            "head_bias": True,
        },
        only={"qk_layernorm": False},
    ),
    "phi3": Family(
        _sizes((32064, 3072, 8192, 32, 32, None, 4096), norm_eps=1e-5, original_max_position_embeddings=4096),
        own_names=_RMS_EPS,
        sliding="all",
        rope_aliases={"su": "longrope", "yarn": "longrope"},
    ),
    "granite": Family(
        _sizes((32000, 4096, 11008, 32, 32, None, 2048), **_GRANITE_DEFAULTS),
        own_names=_RMS_EPS,
        says={**_GRANITE_SAYS, "mlp_bias": "mlp_bias"},
        score_scale="attention_multiplier",
        logit_divisor="logits_scaling",
    ),
    "granitemoe": Family(
        _sizes(
            (32000, 4096, 11008, 32, 32, None, 2048),
            **_GRANITE_DEFAULTS,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        ),
        own_names={**_RMS_EPS, "num_experts": "num_local_experts"},
        says=_GRANITE_SAYS,
        score_scale="attention_multiplier",
        logit_divisor="logits_scaling",
    ),
    "olmo2": Family(
        _sizes((50304, 4096, 11008, 32, 32, None, 2048), norm_eps=1e-5),
        own_names=_RMS_EPS,
        says=_ATTENTION_BIAS,
        fixed={"pre_norms": False, "sandwich_norms": True, "qk_norm": True, "qk_norm_span": "projection"},
    ),
    "olmo3": Family(
        _sizes(
            (50304, 4096, 11008, 32, 32, None, 2048),
            norm_eps=1e-5,
            rope_theta=500000.0,
            sliding_window=4096,
            sliding_window_pattern=4,
        ),
        own_names=_RMS_EPS,
        says=_ATTENTION_BIAS,
        fixed={"pre_norms": False, "sandwich_norms": True, "qk_norm": True, "qk_norm_span": "projection"},
        sliding="pattern",
        rope_by_kind=True,
    ),
    "olmoe": Family(
        _sizes(
            (50304, 2048, 2048, 16, 16, None, 4096),
            norm_eps=1e-5,
            num_experts=64,
            num_experts_per_tok=8,
            norm_topk_prob=False,
            clip_qkv=None,
        ),
        own_names=_RMS_EPS,
        says=_ATTENTION_BIAS,
        fixed={"qk_norm": True, "qk_norm_span": "projection"},
        only={"clip_qkv": None},
    ),
    "stablelm": Family(
        _sizes(
            (50304, 2560, 6912, 32, 32, 32, 4096),
            norm_eps=1e-5,
            partial_rotary_factor=0.25,
            use_qkv_bias=False,
            qk_layernorm=False,
            use_parallel_residual=False,
        ),
        own_names=_LAYER_EPS,
        says={
            "qkv_bias": "use_qkv_bias",
            "qk_norm": "qk_layernorm",
            "parallel_residual": "use_parallel_residual",
            "one_norm": "use_parallel_residual",
        },
        fixed={**_LAYER_NORM, "qk_norm_span": "each_head"},
    ),
    "starcoder2": Family(
        _sizes(
            (49152, 3072, 12288, 30, 24, 2, 4096),
            hidden_act="gelu_pytorch_tanh",
            norm_eps=1e-5,
            tie_word_embeddings=True,
            use_bias=True,
        ),
        own_names={"norm_eps": "norm_epsilon"},
        says={"qkv_bias": "use_bias", "o_bias": "use_bias", "mlp_bias": "use_bias"},
        fixed={**_LAYER_NORM, "gated_mlp": False},
        sliding="all",
    ),
    "cohere": Family(
        _sizes(
            (256000, 8192, 22528, 40, 64, None, 8192),
            norm_eps=1e-5,
            rope_theta=500000.0,
            tie_word_embeddings=True,
            logit_scale=0.0625,
            use_qk_norm=False,
        ),
        own_names=_LAYER_EPS,
        says={**_ATTENTION_BIAS, "logit_scale": "logit_scale", "qk_norm": "use_qk_norm"},
        fixed={"norm": "layer", "parallel_residual": True, "one_norm": True, "qk_norm_span": "each_head"},
        rotation="neighbours",
    ),
    "glm": Family(_GLM_DEFAULTS, own_names=_RMS_EPS, says={"qkv_bias": "attention_bias"}, rotation="neighbours"),
    "glm4": Family(
        _GLM_DEFAULTS,
        own_names=_RMS_EPS,
        says={"qkv_bias": "attention_bias"},
        fixed={"sandwich_norms": True},
        rotation="neighbours",
    ),
    "gpt2": Family(
        _sizes((50257, 768, None, 12, 12, None, 1024), hidden_act="gelu_new", norm_eps=1e-5, tie_word_embeddings=True),
        own_names=_GPT_SIZES,
        fixed={**_LAYER_NORM, **_UNGATED, "learned_positions": True, "qkv_bias": True, "o_bias": True},
        only={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        rotation="none",
    ),
    "gptj": Family(
        _sizes((50400, 4096, None, 28, 16, None, 2048), hidden_act="gelu_new", norm_eps=1e-5, rotary_dim=64),
        own_names=_GPT_SIZES,
        fixed={**_LAYER_NORM, **_UNGATED, "parallel_residual": True, "one_norm": True, "head_bias": True},
        rotation="neighbours",
    ),
    "gpt_neox": Family(
        _sizes(
            (50432, 6144, 24576, 44, 64, None, 2048),
            hidden_act="gelu",
            norm_eps=1e-5,
            partial_rotary_factor=0.25,
            attention_bias=True,
            use_parallel_residual=True,
        ),
        own_names={**_LAYER_EPS, "partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"},
        says={**_ATTENTION_BIAS, "parallel_residual": "use_parallel_residual"},
        fixed={**_LAYER_NORM, **_UNGATED},
    ),
    "gpt_oss": Family(
        _sizes(
            (201088, 2880, 2880, 36, 64, 8, 131072),
            head_dim=64,
            norm_eps=1e-5,
            rope_theta=150000.0,
            attention_bias=True,
            sliding_window=128,
            sliding_window_pattern=2,
            num_experts=128,
            num_experts_per_tok=4,
            norm_topk_prob=True,
            rope_parameters={
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        ),
        own_names={**_RMS_EPS, "num_experts": "num_local_experts"},
        says=_ATTENTION_BIAS,
        fixed={"attention_sinks": True, "activation": "clamped_swiglu"},
        only={"swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        experts_bias=True,
        sliding="pattern",
    ),
}
