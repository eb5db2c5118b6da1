"""Configs -> specs: defaults as transformers has them, both spellings of rope, refusals that name the field."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from python_llm.errors import ModelLoadError
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.hf_families import FAMILIES
from python_llm.runner.spec import LayerSpec

GEMMA3 = {"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 512}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_missing_fields_are_transformers_defaults(model_type: str) -> None:
    from transformers import AutoConfig

    complete = AutoConfig.for_model(model_type).to_dict()
    assert spec_from_hf_config({"model_type": model_type}) == spec_from_hf_config(complete)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": LLAMA3},
            {"model_type": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 500000.0}},
        ),
        (
            {"model_type": "llama", "rope_theta": 20000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}},
        ),
        (
            {"model_type": "mistral", "rope_theta": 1000000.0, "rope_scaling": None},
            {"model_type": "mistral", "rope_parameters": {"rope_theta": 1000000.0}},
        ),
        (
            {
                **GEMMA3,
                "rope_theta": 2000000.0,
                "rope_local_base_freq": 20000.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            {
                **GEMMA3,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2000000.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
                },
            },
        ),
    ],
    ids=["llama3", "linear", "mistral", "gemma3"],
)
def test_old_and_new_rope_fields_agree(old: dict[str, Any], new: dict[str, Any]) -> None:
    from transformers import AutoConfig

    normalised = AutoConfig.for_model(**deepcopy(old)).to_dict()
    assert spec_from_hf_config(old) == spec_from_hf_config(new) == spec_from_hf_config(normalised)
    assert spec_from_hf_config(old) != spec_from_hf_config({**old, "rope_theta": 12345.0})


def test_gemma3_layers_alternate_window_and_rope() -> None:
    spec = spec_from_hf_config(GEMMA3)
    sliding = spec.layers[0]
    full = spec.layers[5]
    assert (sliding.window, full.window) == (512, None)
    assert spec.layers == ((sliding,) * 5 + (full,)) * 2
    assert spec.ropes[sliding.rope].inv_freq[1] > spec.ropes[full.rope].inv_freq[1]


def test_gemma3_with_vision_is_its_text_decoder() -> None:
    nested = {"model_type": "gemma3", "text_config": {**GEMMA3, "hidden_size": 1152}, "vision_config": {}}
    assert spec_from_hf_config(nested) == spec_from_hf_config({**GEMMA3, "hidden_size": 1152})


def test_older_names_of_fields() -> None:
    """As GPT-NeoX, Phi-3 and OLMo 3 checkpoints from before transformers 5 have them."""
    neox = {"model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 20000}
    new = {"model_type": "gpt_neox", "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 20000.0}}
    assert spec_from_hf_config(neox) == spec_from_hf_config(new)
    factors = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    phi3 = {"model_type": "phi3", "max_position_embeddings": 131072}
    for kind in ("su", "yarn", "longrope"):
        old = spec_from_hf_config({**phi3, "rope_scaling": {"type": kind, **factors}})
        assert old == spec_from_hf_config({**phi3, "rope_parameters": {"rope_type": "longrope", **factors}})
    olmo3 = spec_from_hf_config({"model_type": "olmo3", "rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    sliding, full = (olmo3.ropes[olmo3.layers[index].rope].inv_freq for index in (0, 3))
    assert sliding[1] == pytest.approx(4 * full[1])


def test_smollm3_rotates_three_layers_of_four() -> None:
    spec = spec_from_hf_config({"model_type": "smollm3", "num_hidden_layers": 8})
    assert [any(spec.ropes[layer.rope].inv_freq) for layer in spec.layers] == [True, True, True, False] * 2


def test_partial_rotation_of_neighbours_becomes_one_of_halves() -> None:
    spec = spec_from_hf_config({"model_type": "gptj", "n_embd": 32, "n_head": 4, "rotary_dim": 4})
    assert spec.head_order == (0, 2, 4, 5, 1, 3, 6, 7)
    assert [value > 0 for value in spec.ropes[0].inv_freq] == [True, True, False, False]


def test_qwen2_slides_only_when_told_to() -> None:
    fields = {"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 64, "max_window_layers": 3}
    off = spec_from_hf_config(fields)
    on = spec_from_hf_config({**fields, "use_sliding_window": True})
    assert off.layers == (LayerSpec(0, None),) * 4
    assert on.layers == (LayerSpec(0, None),) * 3 + (LayerSpec(0, 64),)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: cohere, gemma, gemma2"),
        ({}, "model_type None is not supported"),
        ({"model_type": "gemma3"}, "text_config"),
        ({"model_type": "llama", "hidden_act": "relu6"}, "'llama': hidden_act 'relu6'"),
        ({"model_type": "gemma2", "hidden_activation": "relu6"}, "'gemma2': hidden_activation 'relu6'"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "num_attention_heads .* num_key_value_heads"),
        ({"model_type": "llama", "hidden_size": "big"}, "hidden_size must be a positive integer, not 'big'"),
        ({"model_type": "llama", "head_dim": 63}, "head_dim must be even"),
        ({"model_type": "llama", "quantization_config": {"bits": 4}}, "quantization_config"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "spiral"}}, "'llama': rope type 'spiral'"),
        ({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ({"model_type": "gpt2", "activation_function": "relu6"}, "'gpt2': activation_function 'relu6'"),
        ({"model_type": "phi", "qk_layernorm": True}, "'phi': qk_layernorm True is not supported; only False is"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, "'olmoe': clip_qkv 8.0 is not supported"),
        ({"model_type": "gpt_oss", "swiglu_limit": 5.0}, "'gpt_oss': swiglu_limit 5.0"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, r"num_experts_per_tok \(9\) is more than num"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, "no_rope_layers must have one entry for each"),
        ({"model_type": "stablelm", "partial_rotary_factor": 0.0125}, "partial_rotary_factor 0.0125 must"),
        ({"model_type": "gptj", "rotary_dim": 0}, "rotary_dim must be a positive integer, not 0"),
        ({"model_type": "llama", "rope_parameters": {"full_attention": {}}}, "rope_parameters"),
        ({"model_type": "mistral", "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 32}, "layer_types"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 32}, "sliding_window"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1.0}}, "rope_parameters"),
    ],
)
def test_refusals_name_the_field(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        spec_from_hf_config(config)
