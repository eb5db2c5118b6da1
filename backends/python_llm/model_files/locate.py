"""Turns the setting `model` into files on this machine: a path, a Hugging Face hub id, or a file in a Python package.

Does not know what is inside the files beyond telling a GGUF file from a Hugging Face folder.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from python_llm.errors import ModelLoadError
from python_llm.model_files.gguf import MAGIC, GGUFFile
from python_llm.model_files.hub import download_file, download_folder
from python_llm.model_files.package import find_in_package

_PACKAGE_PREFIX = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILE = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)/(.+\.gguf)")
_LATER_PART = re.compile(r"-(?!00001-of-)\d{5}-of-\d{5}\.gguf$")

FORMS = (
    "a GGUF file, a folder with config.json or with one GGUF file, a hub id `org/name`, a hub file "
    "`org/name/file.gguf`, or `package:NAME/FILE`"
)


@dataclass(frozen=True)
class ModelFiles:
    """Where a model lies. A GGUF file stays open, and its metadata in memory, as long as this object lives."""

    spec: str
    """The setting as it was written."""
    kind: Literal["gguf", "hf"]
    path: Path
    """Absolute. "gguf": the file (of a split model: its first part); "hf": the folder that holds config.json."""

    @functools.cached_property
    def gguf(self) -> GGUFFile:
        """The file, its header read once for all who ask. Raises ModelLoadError. For kind "gguf" only."""
        return GGUFFile(self.path)


def locate(model: str, *, revision: str | None = None, base_dir: Path | None = None) -> ModelFiles:
    """Find, and for a hub id download if needed, the files that `model` names.

    `base_dir` is where relative paths start (default: the working directory); a path that exists wins over a hub id.
    `revision` is a branch, tag or commit of a hub id. Raises ModelLoadError that says what was looked for and where.
    """
    if not model.strip():
        raise ModelLoadError(f"The setting `model` is empty; expected {FORMS}.")
    in_package = model.startswith(_PACKAGE_PREFIX)
    path = ((base_dir or Path.cwd()) / Path(model).expanduser()).absolute()
    if in_package or path.exists():
        if revision is not None:
            raise ModelLoadError(f"A revision ({revision!r}) goes with a hub id only, but `model` is {model!r}.")
        return _local(model, find_in_package(model[len(_PACKAGE_PREFIX) :]) if in_package else path)
    if match := _HUB_FILE.fullmatch(model):
        return _local(model, download_file(match[1], match[2], revision))
    if _HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        return ModelFiles(model, "hf", download_folder(model, revision))
    raise ModelLoadError(f"There is no file or folder {path} (from `model`: {model!r}); expected {FORMS}.")


def _local(spec: str, path: Path) -> ModelFiles:
    try:
        if path.is_dir():
            return _folder(spec, path)
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise ModelLoadError(f"Cannot read {path}: {error.strerror}.") from None
    if magic != MAGIC:
        raise ModelLoadError(
            f"{path} is not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}. "
            "For safetensors weights name the folder that holds config.json."
        )
    return ModelFiles(spec, "gguf", path)


def _folder(spec: str, folder: Path) -> ModelFiles:
    has_config = (folder / "config.json").is_file()
    ggufs = sorted(path for path in folder.glob("*.gguf") if not _LATER_PART.search(path.name))
    # Repositories of GGUF files often carry the original config.json beside them.
    if has_config and (not ggufs or any(folder.glob("*.safetensors"))):
        return ModelFiles(spec, "hf", folder)
    if len(ggufs) == 1:
        return _local(spec, ggufs[0])
    if ggufs:
        names = ", ".join(path.name for path in ggufs)
        raise ModelLoadError(f"{folder} holds {len(ggufs)} GGUF files; name one of them: {names}.")
    raise ModelLoadError(f"{folder} holds neither a config.json nor a .gguf file; expected a model's folder.")
