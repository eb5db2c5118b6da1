"""Rope frequencies against transformers' own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from python_llm.errors import ModelLoadError
from python_llm.runner.rope import rope_spec

THETA = {"rope_theta": 500000.0}
FACTORS = [1.0 + i / 10 for i in range(16)]
SETTINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 8.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.8},
    {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5},
    {
        "rope_type": "longrope",
        "short_factor": FACTORS,
        "long_factor": FACTORS,
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {"rope_type": "longrope", "short_factor": FACTORS, "long_factor": FACTORS, "attention_factor": 1.0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: f"{settings['rope_type']}-{len(settings)}")
def test_same_frequencies_as_transformers(settings: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    params = {**THETA, **settings}
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=4, max_position_embeddings=2048, rope_parameters=dict(params)
    )
    inv_freq, scale = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, None)
    ours = rope_spec(params, 32, 2048)
    assert torch.equal(torch.tensor(ours.inv_freq), inv_freq)
    assert ours.scale == pytest.approx(scale, abs=0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({**THETA, "rope_type": "spiral"}, "'spiral' is not supported; supported: default, dynamic, linear"),
        ({**THETA, "rope_type": "dynamic"}, "needs the setting 'factor'"),
        ({**THETA, "rope_type": "linear"}, "needs the setting 'factor'"),
        ({**THETA, "type": "linear", "factor": None}, "malformed"),
        ({**THETA, "partial_rotary_factor": 0.1}, "partial_rotary_factor 0.1 must leave an even part of head_dim 32"),
        ({**THETA, "partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 must"),
        ({**THETA, "rope_type": "longrope", "short_factor": FACTORS}, "needs the setting 'long_factor'"),
        ({**THETA, "rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "must have 16 entries"),
    ],
)
def test_refusals_name_the_setting(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        rope_spec(params, 32, 2048)
