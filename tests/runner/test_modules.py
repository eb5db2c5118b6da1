"""Models that have no decoder of ours: transformers' modules over pages, or a refusal at load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from python_llm.engine.plan import PromptLogprobsTask, SamplingTask, Span, StepPlan
from python_llm.errors import ModelLoadError
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.factory import load_runner
from python_llm.runner.kernels.native_decoder import KVFormat
from python_llm.runner.modules_decoder import _original_context
from python_llm.runner.modules_runner import ModulesRunner
from python_llm.speculation.step_costs import measure_step_costs
from runner_steps import GREEDY, greedy, pages, span

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
SERVED: dict[str, dict[str, Any]] = {
    "helium": {"head_dim": 12},
    "exaone4": {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "cohere2": {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "nemotron": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 48},
}
LENGTH = 30


def write(path: Path, model_type: str, changes: dict[str, Any]) -> Any:
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.copy_(torch.randn(weight.shape, generator=generator) * (2 / weight.shape[1] ** 0.5))
    model.generation_config.eos_token_id = None
    model.save_pretrained(path)
    return model


def load(path: Path, **settings: Any) -> Any:
    settings.setdefault("warn", lambda _: None)
    return load_runner(ModelFiles("tiny", "hf", path), block_size=4, kv_cache_bytes=1 << 18, **settings)


@pytest.mark.parametrize("model_type", sorted(SERVED))
def test_logprobs_and_tokens_are_transformers_own(tmp_path: Path, model_type: str) -> None:
    """The prompt in chunks with company; then greedy tokens."""
    model = write(tmp_path, model_type, SERVED[model_type])
    notes: list[str] = []
    runner = load(tmp_path, warn=notes.append)
    assert isinstance(runner, ModulesRunner)
    assert len(notes) == 1 and "transformers' own modules compute this model" in notes[0]
    ids = torch.randint(3, 160, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(ids).logits[0].log_softmax(-1)
        generated = model.generate(ids[:, :18], max_new_tokens=14, do_sample=False)[0, 18:].tolist()
    prompt = ids[0].tolist()
    runner.kv.pages.fill_(float("nan"))
    own, other = pages(runner, 2, seed=4)
    found: list[float] = []
    for start in range(0, LENGTH - 1, 7):
        end = min(start + 7, LENGTH - 1)
        plain = span(runner, prompt, start, end, own)
        task = PromptLogprobsTask(np.array(prompt[start + 1 : end + 1], np.int32), 0)
        chunk = Span(1, start, plain.token_ids, plain.block_ids, None, task)
        result = runner.execute(StepPlan((span(runner, prompt[::-1], 0, 1 + start, other), chunk)))
        found += [entry.target.logprob for entry in result.prompt_logprobs[1]]
    assert found == pytest.approx([float(expected[i, token]) for i, token in enumerate(prompt[1:])], abs=1e-3)
    assert greedy(runner, prompt[:18], 14, own, 5) == generated


def test_drafts_give_the_tokens_of_one_by_one(tmp_path: Path) -> None:
    """All right, wrong in the middle, none; beside a chunk of a prompt."""
    write(tmp_path, "helium", SERVED["helium"])
    runner = load(tmp_path)
    prompt = torch.randint(3, 160, (12,), generator=torch.Generator().manual_seed(1)).tolist()
    own, other, third = pages(runner, 3, seed=4)
    right = greedy(runner, prompt, 5, own)
    for drafts, count in (([*right[1:4]], 4), ([right[1], (right[2] + 1) % 160, right[3]], 2), ([], 1)):
        assert greedy(runner, prompt, 1, other) == right[:1]
        history = [*prompt, right[0], *drafts]
        task = SamplingTask(GREEDY, 0, np.array(history, np.int32), len(prompt), None)
        drafting = replace(span(runner, history, 12, len(history), other, sampling=task), num_drafts=len(drafts))
        chunk = span(runner, prompt, 0, 7, third)
        result = runner.execute(StepPlan((chunk, drafting)))
        assert [token.token_id for token in result.tokens[1]] == right[1 : 1 + count]
    assert measure_step_costs(runner).max_rows >= 8, "what a model that speculates is put through at load"


def test_longrope_is_served_within_its_original_context(tmp_path: Path) -> None:
    """Beyond it the frequencies of all rows would be chosen by the longest of them."""
    rope: dict[str, Any] = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 6,
        "long_factor": [4.0] * 6,
        "original_max_position_embeddings": 32,
    }
    write(tmp_path, "helium", {**SERVED["helium"], "rope_parameters": rope})
    notes: list[str] = []
    runner = load(tmp_path, warn=notes.append)
    assert runner.max_model_len == 32
    assert "served up to 32 tokens, not 256" in notes[0]
    assert _original_context({"rope_parameters": {"full_attention": rope, "sliding_attention": {}}}) == 32
    assert _original_context({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 64}) == 64
    assert _original_context({"rope_parameters": {**rope, "rope_type": "yarn"}}) is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({}, "0 of its 2 layers attend"),
    "bloom": ({"n_layer": 2, "n_head": 4}, "paged KV cache"),
}


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_what_pages_cannot_hold_is_refused_at_load(tmp_path: Path, model_type: str) -> None:
    changes, message = REFUSED[model_type]
    write(tmp_path, model_type, changes)
    with pytest.raises(ModelLoadError, match=f"model_type '{model_type}' has no decoder of ours.*{message}"):
        load(tmp_path)


def test_a_result_that_differs_over_pages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from python_llm.runner import modules_decoder

    write(tmp_path, "helium", SERVED["helium"])
    original = modules_decoder.attend
    monkeypatch.setattr(modules_decoder, "attend", lambda *given, **named: original(*given, **named) * 1.1)
    with pytest.raises(ModelLoadError, match=r"its logits then differ by .*% of the largest"):
        load(tmp_path)


def test_settings_that_need_the_kernels_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "helium", SERVED["helium"])
    with pytest.raises(ModelLoadError, match="native kernels cannot be used: model_type 'helium' has no decoder"):
        load(tmp_path, kernels="native")
    with pytest.raises(ModelLoadError, match="The format int8 needs the native kernels"):
        load(tmp_path, weight_format="int8")
    with pytest.raises(ModelLoadError, match="The format int4 needs the native kernels"):
        load(tmp_path, kv_format=KVFormat("int4", "float32"))


def test_what_transformers_cannot_load(tmp_path: Path) -> None:
    config = {"model_type": "no_such_model", "vocab_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="'no_such_model' has no decoder of ours, and transformers cannot load it"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"bits": 4}}))
    with pytest.raises(ModelLoadError, match="quantised Hugging Face checkpoints are not supported"):
        load(tmp_path)


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write(tmp_path, "helium", SERVED["helium"])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"missing keys in the weights: model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path)
