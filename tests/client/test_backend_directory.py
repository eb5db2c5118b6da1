"""Composing the backend directory: whole files only, nothing rewritten without need, many at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from python_llm_client.backend_directory import cache_folder, compose
from python_llm_client.errors import UsageError
from python_llm_client.launch import server_environment
from python_llm_client.triton_wheel import TritonWheel


@pytest.fixture
def wheel(tmp_path: Path) -> TritonWheel:
    wheel = TritonWheel(tmp_path / "wheel")
    for file in (
        "bin/tritonserver",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_utils.py",
        "python_backend_stubs/3.9/triton_python_backend_stub",
        "python_backend_stubs/3.11/triton_python_backend_stub",
    ):
        (wheel.folder / file).parent.mkdir(parents=True, exist_ok=True)
        (wheel.folder / file).write_text(file)
    return wheel


def compose_in(cache: Path, wheel: TritonWheel) -> Path:
    return compose(cache, wheel, wheel.stub("3.11"), cache.parent / "package" / "python_llm")


def test_a_python_without_a_stub_is_told_which_have_one(wheel: TritonWheel) -> None:
    with pytest.raises(UsageError, match=r"this is Python 3\.14, .* only for 3\.9, 3\.11: make"):
        wheel.stub("3.14")


def test_the_library_is_a_real_file_and_the_rest_are_links(tmp_path: Path, wheel: TritonWheel) -> None:
    directory = compose_in(tmp_path / "cache", wheel)
    library = directory / "python" / "libtriton_python.so"
    assert library.read_text() == "backends/python/libtriton_python.so" and not library.is_symlink()
    assert (directory / "python" / "triton_python_backend_stub").readlink() == wheel.stub("3.11")
    assert (directory / "python_llm").readlink() == tmp_path / "package" / "python_llm"


def test_composing_again_touches_nothing(tmp_path: Path, wheel: TritonWheel) -> None:
    def files() -> dict[str, tuple[int, int]]:
        return {str(p): (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in sorted((tmp_path / "cache").rglob("*"))}

    compose_in(tmp_path / "cache", wheel)
    before = files()
    compose_in(tmp_path / "cache", wheel)
    assert files() == before


def test_a_new_library_gets_a_new_file_and_the_old_one_stays_as_it_was(tmp_path: Path, wheel: TritonWheel) -> None:
    library = compose_in(tmp_path / "cache", wheel) / "python" / "libtriton_python.so"
    with library.open() as mapped:
        (wheel.python_backend / "libtriton_python.so").write_text("newer")
        compose_in(tmp_path / "cache", wheel)
        assert mapped.read() == "backends/python/libtriton_python.so"
    assert library.read_text() == "newer"


def test_many_compose_at_once_and_leave_no_scraps(tmp_path: Path, wheel: TritonWheel) -> None:
    (wheel.python_backend / "libtriton_python.so").write_bytes(bytes(2_000_000))
    with ThreadPoolExecutor(16) as pool:
        directories = set(pool.map(lambda _: compose_in(tmp_path / "cache", wheel), range(64)))
    (directory,) = directories
    assert sorted(path.name for path in directory.rglob("*")) == [
        "libtriton_python.so",
        "python",
        "python_llm",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    ]


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, wheel: TritonWheel) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="PYTHON_LLM_CACHE"):
        compose_in(tmp_path / "file" / "cache", wheel)


def test_the_cache_folder_is_ours_then_xdg_then_home() -> None:
    assert cache_folder({"PYTHON_LLM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/python_llm")
    assert cache_folder({}) == Path.home() / ".cache" / "python_llm"


def test_the_servers_environment_leads_to_this_python_and_holds_only_our_overrides(tmp_path: Path) -> None:
    (tmp_path / "python3").touch()
    inherited = {"PATH": "/bin", "LD_LIBRARY_PATH": "/x", "PYTHON_LLM_SET": "stale"}
    environ = server_environment(inherited, tmp_path, "/lib/python", {})
    assert environ["PATH"] == f"{tmp_path}:/bin"
    assert environ["LD_LIBRARY_PATH"] == "/lib/python:/x"
    assert "PYTHON_LLM_SET" not in environ
    environ = server_environment({}, tmp_path, None, {"m": {"block_size": "8"}})
    assert environ["PYTHON_LLM_SET"] == '{"m": {"block_size": "8"}}'


def test_a_python_that_triton_cannot_find_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no python3"):
        server_environment({}, tmp_path, None, {})
