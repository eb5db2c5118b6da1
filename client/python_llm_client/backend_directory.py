"""Composes Triton's backend directory in a cache folder: `python` from the wheel, and `python_llm` from this package.

Several servers may compose the same directory at the same time, and running servers have its library mapped: so a file
is only ever replaced whole, and only when it differs. Does not know models or ports.
"""

from __future__ import annotations

import filecmp
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from python_llm_client.errors import UsageError
from python_llm_client.triton_wheel import TritonWheel

CACHE_VARIABLE = "PYTHON_LLM_CACHE"
_LIBRARY = "libtriton_python.so"
_UTILITIES = "triton_python_backend_utils.py"
_STUB = "triton_python_backend_stub"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """`PYTHON_LLM_CACHE`, else `python_llm` in the user's XDG cache folder."""
    if own := environ.get(CACHE_VARIABLE):
        return Path(own).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "python_llm"


def package_folder() -> Path:
    """The folder of the installed package `python_llm`: it is the backend, and Triton starts its model.py."""
    spec = importlib.util.find_spec("python_llm")
    for location in (spec and spec.submodule_search_locations) or ():
        return Path(location).absolute()
    raise UsageError("the package python_llm is not installed in this Python environment: pip install python-llm")


def compose(cache: Path, wheel: TritonWheel, stub: Path, package: Path) -> Path:
    """Make (or bring up to date) the backend directory for this wheel, stub and package, and return it.

    Raises UsageError when the cache folder cannot be written.
    """
    key = hashlib.sha256("\n".join(map(str, (wheel.folder, stub, package))).encode()).hexdigest()[:16]
    directory = cache / "backends" / key
    python = directory / "python"
    try:
        python.mkdir(parents=True, exist_ok=True)
        # Triton refuses a library that is a symbolic link out of its directory.
        _copy(wheel.python_backend / _LIBRARY, python / _LIBRARY)
        _link(wheel.python_backend / _UTILITIES, python / _UTILITIES)
        _link(stub, python / _STUB)
        _link(package, directory / "python_llm")
    except OSError as error:
        raise UsageError(
            f"cannot write the cache folder {cache} ({error.strerror}): make it writable, "
            f"or name another folder in {CACHE_VARIABLE}"
        ) from None
    return directory


def _copy(source: Path, target: Path) -> None:
    if target.is_file() and not target.is_symlink() and filecmp.cmp(source, target, shallow=False):
        return
    _replace(target, lambda new: shutil.copyfile(source, new))


def _link(source: Path, target: Path) -> None:
    if target.is_symlink() and target.readlink() == source:
        return
    _replace(target, lambda new: new.symlink_to(source))


def _replace(target: Path, make: Callable[[Path], object]) -> None:
    # The new file gets its name in one step, so that no server ever sees half of it.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as folder:
        new = Path(folder) / target.name
        make(new)
        os.replace(new, target)
