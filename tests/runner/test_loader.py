"""Loading: Hugging Face folders in every stored form, what is refused and how, and the size of the KV pool."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from python_llm.errors import ModelLoadError
from python_llm.model_files import gguf as gguf_module
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.factory import load_runner
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.loader import read_config
from python_llm.tokenization.load import load_tokenizer
from runner_steps import chunked_logits, pages, runner_of
from tiny_configs import TINY_CONFIGS
from tiny_gguf import write_gguf
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


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("phi3", {"model.layers.0.self_attn.qkv_proj.weight": None}, "layers.0.self_attn.qkv_proj.weight is missing"),
        (
            "phi3",
            {"model.layers.1.mlp.gate_up_proj.weight": torch.ones(127, 64)},
            "gate_up_proj.weight has shape (127, 64), expected (128, 64)",
        ),
        (
            "gpt_oss",
            {"model.layers.0.mlp.experts.down_proj": torch.ones(5, 64, 48)},
            "experts.down_proj has shape (5, 64, 48), expected (6, 64, 48)",
        ),
        (
            "mixtral",
            {"model.layers.0.block_sparse_moe.experts.3.w2.weight": None},
            "block_sparse_moe.experts.3.w2.weight is missing",
        ),
        (
            "mixtral",
            {"model.layers.0.block_sparse_moe.experts.4.w2.weight": torch.ones(48, 64)},
            "block_sparse_moe.experts.4.w2.weight is not part of model_type 'mixtral'",
        ),
        (
            "stablelm",
            {"model.layers.0.self_attn.q_layernorm.norms.3.weight": None},
            "q_layernorm.norms.3.weight is missing",
        ),
        ("gpt_neox", {"gpt_neox.layers.2.attention.dense.bias": None}, "layers.2.attention.dense.bias is missing"),
        ("gpt2", {"transformer.wpe.weight": torch.ones(255, 48)}, "wpe.weight has shape (255, 48), expected (256, 48)"),
    ],
)
def test_errors_name_the_files_own_tensors(
    tmp_path: Path, kind: str, change: dict[str, torch.Tensor | None], message: str
) -> None:
    folder = tiny_hf_folder(tmp_path, kind)
    _rewrite(folder, change)
    with pytest.raises(ModelLoadError, match=re.escape(message)):
        runner_of(folder)


def test_gguf_tensors_that_do_not_fit(tmp_path: Path) -> None:
    """A missing tensor, one too many, and one of another shape, as a Phi-3 file (fused matrices) may have them."""
    folder = tiny_hf_folder(tmp_path / "model", "phi3")
    for change, message in [
        ({"model.layers.0.mlp.down_proj.weight": None}, "tensor blk.0.ffn_down.weight is missing"),
        ({"model.layers.0.self_attn.k_proj.bias": torch.ones(32)}, "tensor blk.0.attn_k.bias is not part of"),
        ({"model.layers.0.self_attn.qkv_proj.weight": torch.ones(127, 64)}, "attn_qkv.weight has shape (127, 64)"),
    ]:
        original = (folder / "model.safetensors").read_bytes()
        _rewrite(folder, dict(change))
        path = write_gguf(folder, tmp_path / "tiny.gguf")
        with pytest.raises(ModelLoadError, match=re.escape(message)):
            runner_of(path)
        (folder / "model.safetensors").write_bytes(original)


def test_gpt2_as_the_hub_has_it(tmp_path: Path) -> None:
    """Names without their prefix, and buffers with masks beside the weights."""
    folder = tiny_hf_folder(tmp_path, "gpt2")
    expected = _logits(folder)
    renamed = {
        name.removeprefix("transformer."): value for name, value in load_file(folder / "model.safetensors").items()
    }
    buffers = {f"h.{layer}.attn.bias": torch.ones(1, 1, 256, 256) for layer in range(3)}
    save_file({**renamed, **buffers}, folder / "model.safetensors")
    assert torch.equal(_logits(folder), expected)


def test_longrope_is_chosen_by_what_is_served(tmp_path: Path) -> None:
    """Original context 64: a pool or a limit within it takes the short set, more the long one."""
    files = _files(tiny_hf_folder(tmp_path, "phi3"))
    config = read_config(files)
    short, long = spec_from_hf_config(config, 64).ropes, spec_from_hf_config(config, 65).ropes
    assert short != long
    settings = {"block_size": 16, "kernels": "torch"}
    token = KVCache.bytes_per_token(spec_from_hf_config(config))
    for size, limit, ropes in [(256, 64, short), (256, None, long), (64, None, short), (96, None, long)]:
        runner = load_runner(files, kv_cache_bytes=token * size, max_model_len=limit, **settings)  # type: ignore[arg-type]
        assert runner.max_model_len == (limit or size)
        assert runner.decoder.spec.ropes == ropes


def test_torch_says_once_what_the_kernels_lack(tmp_path: Path) -> None:
    notes: list[str] = []
    files = _files(tiny_hf_folder(tmp_path, "gpt_neox"))
    load_runner(files, block_size=16, kv_cache_bytes=1 << 20, warn=notes.append)
    (note,) = notes
    assert note.startswith("Plain torch computes this model, several times slower than the native kernels: they do not")
    assert "attention and MLP in parallel" in note


def test_a_gguf_header_is_read_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    original = gguf_module.GGUFFile.__init__

    def counted(self: gguf_module.GGUFFile, path: Path) -> None:
        opened.append(path)
        original(self, path)

    path = write_gguf(tiny_hf_folder(tmp_path), tmp_path / "tiny.gguf")
    monkeypatch.setattr(gguf_module.GGUFFile, "__init__", counted)
    files = ModelFiles("tiny", "gguf", path)
    with pytest.raises(ModelLoadError, match="has no tokenizer"):
        load_tokenizer(files)
    load_runner(files, block_size=16, kv_cache_bytes=1 << 20, warn=lambda _: None)
    assert opened == [path]


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
