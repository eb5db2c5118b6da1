"""A model repository with tiny models that load in milliseconds; their text is nonsense but never the same twice."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from python_llm.runner.hf_config import spec_from_hf_config
from tiny_models import random_weights
from toy_tokenizer import CHAT_TEMPLATE, toy_tokenizer

ROOT = Path(__file__).parent.parent.parent
CONFIG = {
    "model_type": "llama",
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 256,
    "bos_token_id": 257,
}


def write_hf_folder(folder: Path, seed: int = 0) -> Path:
    """A Llama of 2 layers with random weights, and a tokenizer of 256 bytes, `<eos>` and `<bos>`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(random_weights(spec_from_hf_config(CONFIG), seed), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    toy_tokenizer()._backend.save(str(folder / "tokenizer.json"))
    tokenizer_config = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


def add_model(repository: Path, name: str, **settings: object) -> Path:
    """A folder of the repository that serves a tiny model with `settings`. Returns the folder."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text('backend: "python_llm"\n')
    write_hf_folder(version / "weights")
    (version / "model.json").write_text(json.dumps({"model": "weights", **settings}))
    return repository / name


def add_ensemble(repository: Path, model: str) -> None:
    """`MODEL_tokenizer`, `MODEL_detokenizer` and `MODEL_ensemble` around a model that `add_model` made.

    The ensemble is the one that ships, of other models.
    """
    for kind in ("tokenizer", "detokenizer"):
        version = repository / f"{model}_{kind}" / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text('backend: "python_llm"\n')
        (version / "model.json").write_text(json.dumps({"kind": kind, "model": f"../../{model}/1/weights"}))
    shipped = ROOT / "ensembles" / "smollm2_ensemble" / "config.pbtxt"
    (repository / f"{model}_ensemble" / "1").mkdir(parents=True)
    config = shipped.read_text().replace('"smollm2', f'"{model}')
    (repository / f"{model}_ensemble" / "config.pbtxt").write_text(config)
