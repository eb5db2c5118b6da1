"""Hub ids without a network: a cache laid out by hand, and the hub client's errors as it raises them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from python_llm.errors import ModelLoadError
from python_llm.model_files.locate import locate

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def cached(cache: Path, repo: str, **files: bytes) -> Path:
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name, content in files.items():
        (snapshot / name).write_bytes(content)
    return snapshot


def test_folder_from_the_cache(cache: Path) -> None:
    snapshot = cached(cache, "org/model-1.5", **{"config.json": b"{}", "model.safetensors": b""})
    for revision in (None, "main", COMMIT):
        files = locate("org/model-1.5", revision=revision)
        assert (files.kind, files.path) == ("hf", snapshot)


def test_gguf_file_from_the_cache(cache: Path) -> None:
    snapshot = cached(cache, "org/model", **{"m.Q4.gguf": b"GGUF...."})
    files = locate("org/model/m.Q4.gguf")
    assert (files.kind, files.path) == ("gguf", snapshot / "m.Q4.gguf")


def test_split_gguf_file_brings_all_parts(cache: Path) -> None:
    names = [f"m-{number:05d}-of-00002.gguf" for number in (1, 2)]
    snapshot = cached(cache, "org/model", **{names[0]: b"GGUF....", names[1]: b"GGUF...."})
    assert locate(f"org/model/{names[0]}").path == snapshot / names[0]
    (snapshot / names[1]).unlink()
    with pytest.raises(ModelLoadError, match=names[1]):
        locate(f"org/model/{names[0]}")


@pytest.mark.parametrize(
    ("held", "missing"), [("README.md", r"no config\.json"), ("config.json", r"no \*\.safetensors")]
)
def test_repository_of_gguf_files_says_how_to_name_one(cache: Path, held: str, missing: str) -> None:
    cached(cache, "org/model", **{held: b"{}", "m.gguf": b"GGUF...."})
    with pytest.raises(ModelLoadError, match=missing + r".*'org/model/FILE\.gguf'"):
        locate("org/model")


@pytest.mark.parametrize("spec", ["org/absent", "org/absent/m.gguf"])
def test_offline_and_not_cached(cache: Path, spec: str) -> None:
    with pytest.raises(ModelLoadError, match="HF_HUB_OFFLINE is set") as raised:
        locate(spec)
    assert str(cache) in str(raised.value)


def test_a_local_folder_wins_over_a_hub_id(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "org/model").mkdir(parents=True)
    (tmp_path / "org/model/config.json").write_text("{}")
    assert locate("org/model", base_dir=tmp_path).path == tmp_path / "org/model"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError("gated", response=Mock()), "gated: accept its terms.*HF_TOKEN"),
        (errors.RepositoryNotFoundError("404", response=Mock()), "no such repository, or it is private"),
        (errors.RevisionNotFoundError("404", response=Mock()), "no revision 'v9'"),
        (errors.LocalEntryNotFoundError("offline"), "cannot be reached.*check the network"),
        (errors.EntryNotFoundError("404"), "no such file"),
        (ConnectionError("boom"), "ConnectionError: boom"),
        (PermissionError("read-only"), "PermissionError: read-only"),
    ],
)
def test_the_clients_errors_become_sentences(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("snapshot_download", "hf_hub_download"):
        monkeypatch.setattr(huggingface_hub, name, Mock(side_effect=error))
    for spec in ("org/model", "org/model/m.gguf"):
        with pytest.raises(ModelLoadError, match=message):
            locate(spec, revision="v9")
