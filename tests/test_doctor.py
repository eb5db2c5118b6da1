"""`python-llm doctor` describes the machine and a model, and says what is wrong with one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_wrong_model_is_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "model.json"
    wrong.write_text('{"model": "/nowhere.gguf"}')
    done = doctor(str(wrong))
    assert done.returncode == 1
    assert done.stderr.startswith("python-llm: ") and done.stderr.count("\n") == 1
    assert "/nowhere.gguf" in done.stderr
