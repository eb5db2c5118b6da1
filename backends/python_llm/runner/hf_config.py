"""Turns a Hugging Face config (the content of config.json) into a `DecoderSpec`, or says why it cannot.

Knows what each architecture's transformers code does with its config fields. Does not know files or weights.
A field that is missing gets transformers' own default: checkpoints are saved without fields that equal the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_llm.errors import ModelLoadError
from python_llm.runner.rope import RopeSpec, rope_spec
from python_llm.runner.spec import DecoderSpec, LayerSpec

FULL, SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}

_COMMON: dict[str, Any] = {
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN: dict[str, Any] = {
    **_COMMON,
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA: dict[str, Any] = {
    **_COMMON,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "use_bidirectional_attention": False,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {
        **_COMMON,
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        **_COMMON,
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "gemma2": {
        **_GEMMA,
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
    },
    "gemma3_text": {
        **_GEMMA,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
}
"""Per model_type, transformers' value of each field that we read."""


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of `config` that describes the text decoder: Gemma 3 with vision keeps it one level down."""
    if config.get("model_type") != "gemma3":
        return config
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        raise ModelLoadError("model_type 'gemma3': the config has no text_config")
    return {**nested, "model_type": "gemma3_text"}


def spec_from_hf_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that `config` describes; old and transformers 5 forms of the rope fields are both read.

    Raises ModelLoadError, naming the model_type and the field, for anything the spec cannot say.
    """
    given = text_config(config)
    model_type = given.get("model_type")
    if model_type not in DEFAULTS:
        raise ModelLoadError(f"model_type {model_type!r} is not supported; supported: {', '.join(sorted(DEFAULTS))}")
    try:
        return _spec(model_type, {**DEFAULTS[model_type], **given}, config)
    except ModelLoadError as error:
        raise ModelLoadError(f"model_type {model_type!r}: {error}") from None


def _spec(model_type: str, fields: dict[str, Any], whole: Mapping[str, Any]) -> DecoderSpec:
    if whole.get("quantization_config") or fields.get("quantization_config"):
        raise ModelLoadError("quantization_config: quantised Hugging Face checkpoints are not supported")
    if fields.get("use_bidirectional_attention"):
        raise ModelLoadError("use_bidirectional_attention: only causal attention is supported")
    gemma = model_type in ("gemma2", "gemma3_text")
    if model_type == "gemma3_text" and fields["attn_logit_softcapping"] is not None:
        # transformers reads this field for Gemma 2 only, other engines for both: there is no right answer to give.
        raise ModelLoadError("attn_logit_softcapping is not supported")
    hidden, heads = _size(fields, "hidden_size"), _size(fields, "num_attention_heads")
    kv_heads = heads if fields["num_key_value_heads"] is None else _size(fields, "num_key_value_heads")
    if heads % kv_heads:
        raise ModelLoadError(f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})")
    head_dim = hidden // heads if fields["head_dim"] is None else _size(fields, "head_dim")
    if head_dim % 2:
        raise ModelLoadError(f"head_dim must be even, not {head_dim}")
    act_field = "hidden_activation" if gemma else "hidden_act"
    if fields[act_field] not in _ACTIVATIONS:
        raise ModelLoadError(
            f"{act_field} {fields[act_field]!r} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        )
    if not fields.get("use_sliding_window", True):
        fields["sliding_window"] = None
    layer_types = _layer_types(model_type, fields)
    ropes, rope_of = _ropes(model_type, fields, head_dim, sorted(set(layer_types)))
    windows = {FULL: None, SLIDING: fields.get("sliding_window")}
    biased = model_type not in ("mistral", "qwen2") and bool(fields["attention_bias"])
    return DecoderSpec(
        model_type=model_type,
        vocab_size=_size(fields, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(fields, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=tuple(LayerSpec(rope_of[kind], windows[kind]) for kind in layer_types),
        ropes=ropes,
        norm_eps=float(fields["rms_norm_eps"]),
        activation=_ACTIVATIONS[fields[act_field]],
        attention_scale=float(fields["query_pre_attn_scalar"] if gemma else head_dim) ** -0.5,
        max_position_embeddings=_size(fields, "max_position_embeddings"),
        attention_softcap=fields.get("attn_logit_softcapping"),
        logit_softcap=fields.get("final_logit_softcapping"),
        embedding_scale=hidden**0.5 if gemma else 1.0,
        qk_norm=model_type in ("qwen3", "gemma3_text"),
        sandwich_norms=gemma,
        qkv_bias=biased or model_type == "qwen2",
        o_bias=biased,
        mlp_bias=model_type == "llama" and bool(fields["mlp_bias"]),
        tied_head=bool(fields["tie_word_embeddings"]),
        norm_offset=1.0 if gemma else 0.0,
    )


def _size(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelLoadError(f"{name} must be a positive integer, not {value!r}")
    return value


def _layer_types(model_type: str, fields: Mapping[str, Any]) -> list[str]:
    layers = range(_size(fields, "num_hidden_layers"))
    given = fields.get("layer_types")
    if model_type in ("llama", "mistral"):
        if given is not None:
            raise ModelLoadError("layer_types: this model_type has one kind of layer")
        kinds = [SLIDING if model_type == "mistral" and fields["sliding_window"] is not None else FULL] * len(layers)
    elif given is not None:
        kinds = list(given)
    elif model_type in ("qwen2", "qwen3"):
        first = len(layers) if fields["sliding_window"] is None else fields["max_window_layers"]
        kinds = [SLIDING if i >= first else FULL for i in layers]
    else:
        pattern = 2 if model_type == "gemma2" else fields["sliding_window_pattern"]
        kinds = [SLIDING if (i + 1) % pattern else FULL for i in layers]
    if len(kinds) != len(layers) or not set(kinds) <= {FULL, SLIDING}:
        raise ModelLoadError(f"layer_types must name {FULL} or {SLIDING} for each of {len(layers)} layers, not {given}")
    if SLIDING in kinds:
        _size(fields, "sliding_window")
    return kinds


def _ropes(
    model_type: str, fields: Mapping[str, Any], head_dim: int, kinds: list[str]
) -> tuple[tuple[RopeSpec, ...], dict[str, int]]:
    """The distinct rotations, and for each kind of layer the index of its own."""
    if model_type == "gemma3_text":
        by_kind = {kind: _gemma3_rope(fields, kind) for kind in kinds}
    else:
        params = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
        if any(isinstance(value, Mapping) for value in params.values()):
            raise ModelLoadError("rope_parameters: this model_type has one set for all layers")
        by_kind = dict.fromkeys(kinds, params)
    ropes: list[RopeSpec] = []
    index = {}
    for kind, params in by_kind.items():
        params.setdefault("rope_theta", fields["rope_theta"])
        params.setdefault("partial_rotary_factor", fields.get("partial_rotary_factor") or 1.0)
        if fields.get("original_max_position_embeddings") is not None:
            params["original_max_position_embeddings"] = fields["original_max_position_embeddings"]
        rope = rope_spec(params, head_dim, _size(fields, "max_position_embeddings"))
        if rope not in ropes:
            ropes.append(rope)
        index[kind] = ropes.index(rope)
    return tuple(ropes), index


def _gemma3_rope(fields: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """transformers 5: one set per kind of layer. Before: `rope_scaling` for full layers, its own theta for sliding."""
    nested = fields.get("rope_parameters") or {}
    if set(nested) - {FULL, SLIDING}:
        raise ModelLoadError(f"rope_parameters must hold one set each for {FULL} and {SLIDING}")
    params = dict(nested.get(kind) or {})
    if kind == FULL:
        return {**params, **(fields.get("rope_scaling") or {})}
    params.setdefault("rope_theta", fields["rope_local_base_freq"])
    return params
