"""The real command in a process: usage, and everything that `serve` refuses before it starts anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "python_llm_client", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, **environ},
    )


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> bool:
    """Exit status 2, nothing on stdout, and one line on stderr that holds all `parts`."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert all(part in done.stderr for part in parts), done.stderr
    return True


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, config in (("smollm2", 'backend: "python_llm"'), ("echo", 'backend: "python"')):
        version = tmp_path / "repository" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        (version / "model.json").write_text('{"model": "org/name"}')
    return tmp_path / "repository"


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "python-llm", "")


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("serve", "chat", "demo"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("sevre",), "No such command 'sevre'"),
        (("serve", "--prot=1"), "--prot"),
        (("serve", "--http-port=http"), "--http-port"),
        (("chat", "--max-tokens=0", "hi"), "--max-tokens"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], part: str) -> None:
    refused(run(*arguments), part, "python-llm --help")


def test_a_missing_repository(tmp_path: Path) -> None:
    refused(run("serve", f"--model-repository={tmp_path / 'nowhere'}"), "nowhere is not a folder", "--model-repository")


def test_an_empty_repository(tmp_path: Path) -> None:
    refused(run("serve", f"--model-repository={tmp_path}"), "is empty", "config.pbtxt")


def test_an_unknown_model(repository: Path) -> None:
    done = run("serve", f"--model-repository={repository}", "--models=smollm2,ecco")
    refused(done, 'no model "ecco"', 'did you mean "echo"', "There are: echo, smollm2")


def test_an_unknown_setting_names_the_nearest(repository: Path) -> None:
    done = run("serve", f"--model-repository={repository}", "--set=smollm2.max_num_seq=4")
    refused(done, 'unknown setting "max_num_seq"', 'did you mean "max_num_seqs"')


def test_an_override_for_a_model_that_is_not_loaded(repository: Path) -> None:
    done = run("serve", f"--model-repository={repository}", "--models=echo", "--set=smollm2.max_num_seqs=4")
    refused(done, 'no model "smollm2"', "There are: echo")


def test_a_cache_that_cannot_be_written(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ports = [f"--{name}-port={port}" for name, port in (("http", 28000), ("grpc", 28001), ("metrics", 28002))]
    done = run("serve", f"--model-repository={repository}", *ports, PYTHON_LLM_CACHE=str(tmp_path / "file"))
    refused(done, "cannot write the cache folder", "PYTHON_LLM_CACHE")


def test_an_environment_without_pytriton_is_told_what_to_install(repository: Path, tmp_path: Path) -> None:
    # A pytriton without a server, found before the installed one.
    (tmp_path / "shadow" / "pytriton").mkdir(parents=True)
    (tmp_path / "shadow" / "pytriton" / "__init__.py").touch()
    done = run("serve", f"--model-repository={repository}", PYTHONPATH=str(tmp_path / "shadow"))
    refused(done, "nvidia-pytriton", "is not installed", "pip install nvidia-pytriton==")


def test_the_gateways_options_are_checked_before_anything_is_started(repository: Path, tmp_path: Path) -> None:
    refused(run("serve", f"--model-repository={repository}", "--api-keys=keys.json"), "--api-keys", "--openai-port")
    ports = ("--grpc-port=8001", "--openai-port=8001")
    refused(run("serve", f"--model-repository={repository}", *ports), "--grpc-port and --openai-port are both 8001")
    missing = tmp_path / "keys.json"
    refused(run("gateway", f"--api-keys={missing}"), f"the key file {missing} cannot be read")
    options = ("--openai-port=65000", f"--api-keys={missing}")
    refused(run("serve", f"--model-repository={repository}", *options), f"the key file {missing} cannot be read")


def test_an_api_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    done = run("api-key", "ann", f"--file={file}", "--requests-per-minute=5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pl-")
    assert done.stdout.strip() not in file.read_text()
    assert '"requests_per_minute": 5' in file.read_text()
    refused(run("api-key", "ann", f"--file={file}"), "has a key for 'ann' already")
