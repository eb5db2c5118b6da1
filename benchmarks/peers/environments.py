"""Where the peers live: a virtual environment for each engine and a build of llama.cpp, kept in a cache folder.

Everything is made on first use and stamped with what it was made from; a changed recipe makes it anew. What cannot be
made is a `SkipError` with the reason. Does not know how an engine is run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.processes import ROOT, last_words

CACHE_VARIABLE = "PYTHON_LLM_BENCH_CACHE"
_DEFAULT_CACHE = ROOT / "benchmarks" / ".cache"
_REQUIREMENTS = Path(__file__).parent / "requirements"
# Imported when they are there, and they do not load beside a torch for CPUs from another index.
_UNWANTED = {"vllm": ("torchvision", "torchaudio", "torchcodec"), "openvino": ("torchvision",)}
_LLAMA_SOURCE = "llama-cpp-python==0.3.36"
_LLAMA_PROGRAMS = ("llama-batched-bench", "llama-quantize")
_LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_OPENSSL=OFF",
    *(f"-DLLAMA_BUILD_{what}=OFF" for what in ("TESTS", "EXAMPLES", "SERVER", "APP", "UI")),
)
_BUILD_JOBS = 2
_STAMP = ".made-from"


class SkipError(Exception):
    """A peer cannot be measured here; the message is the reason, for the report."""


class Cache:
    """The folder of everything that peers need. `may_make` False: use only what is there."""

    def __init__(self, folder: Path, *, may_make: bool, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.may_make = may_make
        self.say = say

    def environment(self, name: str) -> Path:
        """The Python of the environment that requirements/`name`.txt describes. Raises SkipError."""
        requirements = _REQUIREMENTS / f"{name}.txt"
        folder = self.folder / "environments" / name
        recipe = requirements.read_text("utf-8") + f"{sys.version_info[:2]} {_UNWANTED.get(name)}"
        python = folder / "bin" / "python3"

        def make() -> None:
            self.run([sys.executable, "-m", "venv", "--clear", str(folder)])
            self.run([str(python), "-m", "pip", "install", "--quiet", "--requirement", str(requirements)])
            if name in _UNWANTED:
                self.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *_UNWANTED[name]])

        self.once(folder, recipe, make)
        return python

    def llama_cpp(self) -> Path:
        """The folder of llama.cpp's programs, built for this machine. Raises SkipError."""
        folder = self.folder / "llama.cpp"
        recipe = f"{_LLAMA_SOURCE} {_LLAMA_OPTIONS} {_LLAMA_PROGRAMS} {_cpu()}"

        def make() -> None:
            if not shutil.which("c++"):
                raise SkipError("building llama.cpp needs a C++ compiler (c++)")
            python = self.environment("llama_cpp")
            downloads = self.folder / "downloads"
            download = [str(python), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(downloads)]
            self.run([*download, "--no-binary", "llama-cpp-python", _LLAMA_SOURCE])
            archive = next(downloads.glob("llama_cpp_python-*.tar.gz"))
            _unpack(archive, "vendor/llama.cpp", folder / "source")
            cmake, source, build = str(python.parent / "cmake"), str(folder / "source"), str(folder / "build")
            ninja = f"-DCMAKE_MAKE_PROGRAM={python.parent / 'ninja'}"
            self.run([cmake, "-S", source, "-B", build, "-G", "Ninja", ninja, *_LLAMA_OPTIONS])
            compile_it = ["nice", cmake, "--build", build, "--parallel", str(_BUILD_JOBS)]
            self.run([*compile_it, "--target", *_LLAMA_PROGRAMS])

        self.once(folder, recipe, make)
        return folder / "build" / "bin"

    def once(self, target: Path, recipe: str, make: Callable[[], None]) -> None:
        """Run `make`, which makes the folder `target`, unless it was made from this very `recipe`. Raises SkipError."""
        stamp = target / _STAMP
        mark = hashlib.sha256(recipe.encode()).hexdigest()
        if stamp.exists() and stamp.read_text("ascii") == mark:
            return
        if not self.may_make:
            raise SkipError(f"{target.name} is not installed in {self.folder}, and this run installs nothing")
        self.say(f"making {target.relative_to(self.folder)}, once")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        make()
        stamp.write_text(mark, "ascii")

    def run(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> str:
        """Run a command of an installation; its output. Raises SkipError with its last words when it fails."""
        try:
            done = subprocess.run(
                command,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise SkipError(f"{command[0]} cannot be run: {error}") from None
        if done.returncode:
            raise SkipError(f"{Path(command[0]).name} failed: {last_words(done.stdout)}")
        return done.stdout


def open_cache(*, may_make: bool, say: Callable[[str], None]) -> Cache:
    """The folder that the environment variable names, or benchmarks/.cache."""
    return Cache(Path(os.environ.get(CACHE_VARIABLE) or _DEFAULT_CACHE).absolute(), may_make=may_make, say=say)


def pinned_version(name: str) -> str:
    """Of an engine: what its environment is pinned to, by the first line of its requirements."""
    if name == "llama_cpp":
        return f"in {_LLAMA_SOURCE.replace('==', ' ')}"
    return (_REQUIREMENTS / f"{name}.txt").read_text("utf-8").splitlines()[0].partition("==")[2]


def _cpu() -> str:
    """Of the instructions that a native build uses."""
    for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return line
    return ""


def _unpack(archive: Path, part: str, target: Path) -> None:
    """The folder `part` of a source archive, without the archive's own top folder."""
    with tarfile.open(archive) as files:
        members = []
        for member in files.getmembers():
            inner = member.name.partition("/")[2]
            if inner.startswith(part + "/"):
                member.name = inner[len(part) + 1 :]
                members.append(member)
        files.extractall(target, members=members, filter="data")
