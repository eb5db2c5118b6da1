"""`python-llm doctor` describes the machine and a model, and says what is wrong with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from python_llm import doctor as doctor_module
from python_llm import loading

MODEL = Path(__file__).parent.parent / "model_repository" / "smollm2" / "1" / "model.json"


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "python_llm_client", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.real_model
def test_machine_and_model() -> None:
    done = doctor(str(MODEL))
    assert done.returncode == 0, done.stderr
    for what in ("CPU features", "memory bandwidth", "8-bit peak", "KV pool", "longest sequence", "weights"):
        assert f"\n{what}" in done.stdout
    assert "native" in done.stdout


@pytest.mark.real_model
@pytest.mark.parametrize("kind", ["tokenizer", "detokenizer"])
def test_a_tokenizer_is_described_without_its_weights(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(loading, "runner_of", refuse)
    source = json.loads(MODEL.read_text(encoding="utf-8"))["model"]
    (tmp_path / "model.json").write_text(json.dumps({"kind": kind, "model": source}))
    found = dict(doctor_module.model(tmp_path / "model.json"))
    assert kind in found["model"] and "tokens" in found["vocabulary"]
    assert "KV pool" not in found


def test_a_wrong_model_is_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "model.json"
    wrong.write_text('{"model": "/nowhere.gguf"}')
    done = doctor(str(wrong))
    assert done.returncode == 1
    assert done.stderr.startswith("python-llm: ") and done.stderr.count("\n") == 1
    assert "/nowhere.gguf" in done.stderr
