"""GGUF files in llama.cpp's conventions, written from transformers' models, give back those models' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from python_llm.errors import ModelLoadError
from runner_steps import chunked_logits, pages, runner_of
from tiny_configs import TINY_CONFIGS
from tiny_gguf import ARCHITECTURES, write_gguf
from tiny_models import tiny_hf_model

IDS = list(range(7, 37))
KINDS = sorted(kind for kind, config in TINY_CONFIGS.items() if config["model_type"] in ARCHITECTURES)
CHANGES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "smollm3": {
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": None,
        "num_hidden_layers": 5,
        "no_rope_layers": None,
    },
    "starcoder2": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"mlp_only_layers": []},
    "phi": {"num_key_value_heads": 4},
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, "layer_types": None},
    "cohere": {"tie_word_embeddings": True},
}
"""What llama.cpp's files cannot say is taken away from the tiny models."""
SERVED = {"phi3": 64, "phi4_mini": 64}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_a_gguf_file(tmp_path: Path, kind: str) -> None:
    model = tiny_hf_model(kind, **CHANGES.get(kind, {}))
    model.save_pretrained(tmp_path)
    runner = runner_of(write_gguf(tmp_path, tmp_path / "tiny.gguf"), max_model_len=SERVED.get(kind))
    actual = chunked_logits(runner, IDS, 11, pages(runner, 1)[0])
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=3e-4)


def test_settings_and_architectures_that_we_do_not_know_are_refused(tmp_path: Path) -> None:
    tiny_hf_model("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=r"'llama' with the setting 'attention\.clamp_kqv' is not supported"):
        runner_of(write_gguf(tmp_path, tmp_path / "clamp.gguf", attention__clamp_kqv=0.5))
    with pytest.raises(ModelLoadError, match=r"rope\.dimension_count must equal the head size 12, not 6\.0"):
        runner_of(write_gguf(tmp_path, tmp_path / "partial.gguf", rope__dimension_count=6.0))
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="architecture 'mamba' is not supported; supported: command-r, gemma, "):
        runner_of(tmp_path / "other.gguf")
