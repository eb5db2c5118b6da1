from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.peers import environments
from benchmarks.peers.environments import Cache, SkipError, open_cache, pinned_version
from benchmarks.processes import last_words


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path, may_make=True, say=print)


def test_a_thing_is_made_once_until_its_recipe_changes(cache: Cache) -> None:
    target = cache.folder / "thing"
    made = []

    def make() -> None:
        assert not list(target.iterdir()), "what was made from another recipe must be gone"
        made.append(1)
        (target / "file").touch()

    for recipe, times in (("a", 1), ("a", 1), ("b", 2), ("b", 2)):
        cache.once(target, recipe, make)
        assert len(made) == times


def test_a_failed_making_is_tried_again(cache: Cache) -> None:
    def fail() -> None:
        (cache.folder / "thing" / "half").touch()
        raise SkipError("no compiler")

    for _ in range(2):
        with pytest.raises(SkipError, match="no compiler"):
            cache.once(cache.folder / "thing", "a", fail)
    cache.once(cache.folder / "thing", "a", lambda: None)
    assert not (cache.folder / "thing" / "half").exists()


def test_a_run_that_installs_nothing_uses_what_is_there(tmp_path: Path, cache: Cache) -> None:
    cache.once(tmp_path / "thing", "a", lambda: None)
    frugal = Cache(tmp_path, may_make=False, say=print)
    frugal.once(tmp_path / "thing", "a", lambda: pytest.fail("it is there"))
    with pytest.raises(SkipError, match=r"other is not installed in .*, and this run installs nothing"):
        frugal.once(tmp_path / "other", "a", lambda: pytest.fail("not allowed"))


def test_a_failing_command_is_a_reason_to_skip(cache: Cache) -> None:
    code = "import sys; print('trying'); print('ERROR: no wheel for this Python'); print('hint: ...'); sys.exit(3)"
    with pytest.raises(SkipError, match="failed: ERROR: no wheel for this Python"):
        cache.run([sys.executable, "-c", code])
    with pytest.raises(SkipError, match="cannot be run"):
        cache.run([str(cache.folder / "absent")])
    assert cache.run([sys.executable, "-c", "print('fine')"]) == "fine\n"


def test_last_words_prefer_an_error_and_stay_short() -> None:
    assert last_words("a\nValueError: b\nnote: c\n") == "ValueError: b"
    assert last_words("first\nlast\n\n") == "last"
    assert last_words("") == "it said nothing"
    assert len(last_words("x" * 5000)) < 400


def test_the_environment_variable_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environments.CACHE_VARIABLE, str(tmp_path))
    assert open_cache(may_make=False, say=print).folder == tmp_path
    monkeypatch.delenv(environments.CACHE_VARIABLE)
    assert open_cache(may_make=False, say=print).folder.parts[-2:] == ("benchmarks", ".cache")


@pytest.mark.parametrize("name", ["vllm", "openvino", "transformers", "llama_cpp"])
def test_every_requirement_is_pinned(name: str) -> None:
    assert pinned_version(name)
    text = (Path(environments.__file__).parent / "requirements" / f"{name}.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert "==" in line, line


def test_a_part_of_a_source_archive_is_unpacked_without_its_folders(tmp_path: Path) -> None:
    archive = tmp_path / "source.tar.gz"
    with tarfile.open(archive, "w:gz") as files:
        for name in ("pkg-1/vendor/llama.cpp/CMakeLists.txt", "pkg-1/vendor/other/x", "pkg-1/vendor/llama.cpp/src/a.c"):
            info = tarfile.TarInfo(name)
            info.size = 2
            files.addfile(info, io.BytesIO(b"ok"))
    environments._unpack(archive, "vendor/llama.cpp", tmp_path / "out")
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found == ["CMakeLists.txt", "src/a.c"]
