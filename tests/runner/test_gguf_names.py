"""GGUF files in llama.cpp's conventions, written from transformers' models, give back those models' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from python_llm.errors import ModelLoadError
from runner_steps import chunked_logits, pages, runner_of
from tiny_models import tiny_hf_model

IDS = list(range(7, 37))
ARCHITECTURES = {
    "llama": "llama",
    "llama3": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
}
CHANGES: dict[str, dict[str, Any]] = {
    "qwen2": {"use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "layer_types": None},
}
"""What llama.cpp's files cannot say is taken away from the tiny models."""


def _permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """As convert_hf_to_gguf.py's LlamaModel.permute."""
    return (
        values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    )


def _write(path: Path, kind: str, model: Any, **extra: Any) -> Path:
    arch, config = ARCHITECTURES[kind], model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    if kind == "gemma3":
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (np.arange(0, 12, 2, dtype=np.float32) / 12)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32))
    if kind in ("qwen3", "gemma2", "gemma3"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if kind in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    for key, value in extra.items():
        writer.add_key_value(f"{arch}.{key.replace('__', '.')}", value, gguf.GGUFValueType.FLOAT32)
    names = gguf.get_tensor_name_map(
        next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), config.num_hidden_layers
    )
    tied = model.config.tie_word_embeddings
    for hf_name, weight in model.state_dict().items():
        if hf_name == "lm_head.weight" and tied:
            continue
        values = weight.numpy().astype(np.float32)
        if arch == "llama" and ".q_proj." in hf_name:
            values = _permuted(values, config.num_attention_heads)
        if arch == "llama" and ".k_proj." in hf_name:
            values = _permuted(values, config.num_key_value_heads)
        if arch.startswith("gemma") and hf_name.endswith("norm.weight"):
            values = values + 1
        writer.add_tensor(names.get_name(hf_name, try_suffixes=(".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_logits_of_a_gguf_file(tmp_path: Path, kind: str) -> None:
    model = tiny_hf_model(kind, **CHANGES.get(kind, {}))
    runner = runner_of(_write(tmp_path / "tiny.gguf", kind, model))
    actual = chunked_logits(runner, IDS, 11, pages(runner, 1)[0])
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=3e-4)


def test_settings_and_architectures_that_we_do_not_know_are_refused(tmp_path: Path) -> None:
    model = tiny_hf_model("llama")
    with pytest.raises(ModelLoadError, match=r"'llama' with the setting 'attention\.scale' is not supported"):
        runner_of(_write(tmp_path / "scale.gguf", "llama", model, attention__scale=0.5))
    with pytest.raises(ModelLoadError, match=r"rope\.dimension_count must equal the head size 12, not 6\.0"):
        runner_of(_write(tmp_path / "partial.gguf", "llama", model, rope__dimension_count=6.0))
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="architecture 'mamba' is not supported; supported: gemma2, gemma3, llama"):
        runner_of(tmp_path / "other.gguf")
