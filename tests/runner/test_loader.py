"""Loading: Hugging Face folders in every stored form, what is refused and how, and the size of the KV pool."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from python_llm.errors import ModelLoadError
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.factory import load_runner
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.loader import read_config
from runner_steps import chunked_logits, pages, runner_of
from tiny_configs import TINY_CONFIGS
from tiny_models import tiny_hf_folder, tiny_hf_model

IDS = [5, 9, 77, 120, 3, 44]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_hf_folder(tmp_path / "model")


def _logits(path: Path) -> torch.Tensor:
    runner = runner_of(path)
    return chunked_logits(runner, IDS, 6, pages(runner, 1)[0])


def _rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) remove tensors of the folder's safetensors file."""
    tensors = {**load_file(folder / "model.safetensors"), **change}
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(folder: Path, dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM

    tiny_hf_model().to(dtype).save_pretrained(folder)
    assert load_file(folder / "model.safetensors")["model.norm.weight"].dtype == dtype
    runner = runner_of(folder)
    assert runner.kv.pages.dtype == torch.float32
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    expected = reference(torch.tensor([IDS])).logits[0].detach()
    actual = chunked_logits(runner, IDS, 6, pages(runner, 1)[0])
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_shards(folder: Path, tmp_path: Path) -> None:
    tiny_hf_model().save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    assert torch.equal(_logits(tmp_path / "sharded"), _logits(folder))


@pytest.mark.parametrize("prefix", ["language_model.", "model.language_model."])
def test_gemma3_with_vision(tmp_path: Path, prefix: str) -> None:
    """Both spellings of its tensor names; the vision tower is left alone."""
    folder = tiny_hf_folder(tmp_path / "text", "gemma3")
    expected = _logits(folder)
    renamed = {"vision_tower.x": torch.ones(2), "model.multi_modal_projector.y": torch.ones(2)}
    for name, value in load_file(folder / "model.safetensors").items():
        new_style = name.replace("model.", "model.language_model.", 1)
        renamed[new_style if prefix.startswith("model.") else prefix + name] = value
    save_file(renamed, folder / "model.safetensors")
    config = {"model_type": "gemma3", "text_config": TINY_CONFIGS["gemma3"]}
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(_logits(folder), expected)


def test_tensors_without_effect_are_accepted(tmp_path: Path) -> None:
    folder = tiny_hf_folder(tmp_path, "qwen3")
    expected = _logits(folder)
    extra = {"lm_head.weight": torch.ones(160, 48), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    _rewrite(folder, dict(extra))
    assert torch.equal(_logits(folder), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "tensor model.norm.weight is missing"),
        ({"model.norm.weight": torch.ones(47)}, "model.norm.weight has shape (47,), expected (48,)"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(12)}, "q_norm.weight is not part of model_type 'llama'"),
        ({"model.layers.3.mlp.up_proj.weight": torch.ones(64, 48)}, "layers.3.mlp.up_proj.weight is not part of"),
        ({"lm_head.weight": torch.ones(160, 48, dtype=torch.int8)}, "lm_head.weight is torch.int8"),
    ],
)
def test_tensors_that_do_not_fit(folder: Path, change: dict[str, torch.Tensor | None], message: str) -> None:
    _rewrite(folder, change)
    with pytest.raises(ModelLoadError, match=re.escape(message)):
        runner_of(folder)


def test_folders_that_cannot_be_read(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(ModelLoadError, match=r"Cannot read .*model\.safetensors"):
        runner_of(folder)
    weights.unlink()
    with pytest.raises(ModelLoadError, match=r"neither model\.safetensors nor"):
        runner_of(folder)
    (folder / "pytorch_model.bin").touch()
    with pytest.raises(ModelLoadError, match=r"PyTorch \.bin weights, .* convert them to safetensors"):
        runner_of(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
    with pytest.raises(ModelLoadError, match=r"gone\.safetensors"):
        runner_of(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        runner_of(folder)


def _files(folder: Path) -> ModelFiles:
    return ModelFiles("tiny", "hf", folder)


def test_pool_size_and_longest_sequence(folder: Path) -> None:
    """3 layers x (k, v) x 2 heads x 12 values x 4 bytes = 576 bytes a token; the model's own limit is 256 tokens."""
    runner = load_runner(_files(folder), block_size=16, kv_cache_bytes=576 * 16 * 30 + 100, max_model_len=None)
    assert KVCache.bytes_per_token(runner.decoder.spec) == 576
    assert (runner.num_blocks, runner.block_size, runner.vocab_size) == (30, 16, 160)
    assert runner.max_model_len == 256
    shorter = load_runner(_files(folder), block_size=16, kv_cache_bytes=1 << 20, max_model_len=100)
    assert shorter.max_model_len == 100
    longer = load_runner(_files(folder), block_size=16, kv_cache_bytes=1 << 20, max_model_len=1000)
    assert longer.max_model_len == 256
    lowered = load_runner(_files(folder), block_size=16, kv_cache_bytes=576 * 16 * 3, max_model_len=None)
    assert lowered.max_model_len == 48


def test_a_pool_too_small_is_refused(folder: Path) -> None:
    needed = 576 * 16 * 7
    with pytest.raises(ModelLoadError, match=f"max_model_len 100 needs at least {needed} bytes"):
        load_runner(_files(folder), block_size=16, kv_cache_bytes=needed - 1, max_model_len=100)
    assert load_runner(_files(folder), block_size=16, kv_cache_bytes=needed, max_model_len=100).num_blocks == 7
    with pytest.raises(ModelLoadError, match="holds 0 tokens"):
        load_runner(_files(folder), block_size=16, kv_cache_bytes=100, max_model_len=None)
    with pytest.raises(ModelLoadError, match="cannot give"):
        load_runner(_files(folder), block_size=16, kv_cache_bytes=1 << 50, max_model_len=None)


def test_read_config_is_the_file(folder: Path) -> None:
    assert read_config(_files(folder)) == json.loads((folder / "config.json").read_text())
