"""Reads model repositories from outside the server: which models there are, on which backend, and their settings.

Finds what can be known to be wrong before anything is started. Does not know the server.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from python_llm.config import OVERRIDES_VARIABLE, SettingsError, load_settings, validate_override
from python_llm_client.errors import UsageError

BACKEND = "python_llm"


@dataclass(frozen=True)
class Model:
    """One folder of a model repository."""

    name: str
    folder: Path
    backend: str
    """"" when config.pbtxt leaves it to Triton."""
    instances: int
    steps: tuple[str, ...]
    """Names of the models that an ensemble calls."""


def default_repository(working_folder: Path, package: Path) -> Path:
    """`./model_repository`, else the one of the source tree that holds `package`."""
    here = working_folder / "model_repository"
    if here.is_dir():
        return here
    beside = package.parent.parent / "model_repository"
    if beside.is_dir():
        return beside
    raise UsageError(
        f"there is no model repository {here}: run the command where one is, or name it with --model-repository"
    )


def default_repositories(working_folder: Path, package: Path) -> list[Path]:
    """The default repository, and the folder `ensembles` beside it if that holds any. Raises UsageError."""
    models = default_repository(working_folder, package)
    ensembles = models.parent / "ensembles"
    return [models, ensembles] if any(ensembles.glob("*/config.pbtxt")) else [models]


def read_repositories(folders: Iterable[Path]) -> dict[str, Model]:
    """All models of `folders`, by name. UsageError for a folder that holds none, or for a name that is there twice."""
    models: dict[str, Model] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(
                f"the model repository {folder} is not a folder: --model-repository must name a folder that holds one "
                "folder per model"
            )
        if (folder / "config.pbtxt").is_file():
            raise UsageError(
                f"{folder} is a model, not a repository of models: --model-repository must name the folder above it"
            )
        found = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
        if not found:
            raise UsageError(
                f"the model repository {folder} is empty: it must hold one folder per model, each with a config.pbtxt "
                "and a numbered folder such as 1/"
            )
        for child in found:
            if other := models.get(child.name):
                raise UsageError(
                    f"the model {child.name} is in two repositories ({other.folder.parent} and {folder}): rename one"
                )
            models[child.name] = _read_model(child)
    return models


def _read_model(folder: Path) -> Model:
    # Both take a fifth of a second to import, and `python-llm --help` needs neither.
    from google.protobuf import text_format  # type: ignore[import-untyped]
    from tritonclient.grpc import model_config_pb2

    config: Any = model_config_pb2.ModelConfig()
    path = folder / "config.pbtxt"
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
    except FileNotFoundError:
        pass  # Triton completes the configuration of some backends by itself.
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise UsageError(f"{path} is not a Triton model configuration: {error}") from None
    steps = tuple(step.model_name for step in config.ensemble_scheduling.step)
    instances = sum(max(1, group.count) for group in config.instance_group) or 1
    return Model(folder.name, folder, config.backend, 0 if steps else instances, steps)


def select(models: Mapping[str, Model], names: Iterable[str]) -> dict[str, Model]:
    """The models `names` (all, when there are none) with the models that their ensembles call."""
    selected: dict[str, Model] = {}
    waiting = list(names) or list(models)
    while waiting:
        name = waiting.pop()
        if name not in models:
            raise UsageError(unknown_model(name, models))
        if name not in selected:
            selected[name] = models[name]
            waiting += models[name].steps
    return dict(sorted(selected.items()))


def unknown_model(name: str, models: Iterable[str]) -> str:
    """The sentence for a model that is not there: names the nearest, and all."""
    there = sorted(models)
    near = difflib.get_close_matches(name, there, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else "."
    return f'there is no model "{name}"{hint} There are: {", ".join(there)}'


def parse_overrides(assignments: Iterable[str], models: Mapping[str, Model]) -> dict[str, dict[str, str]]:
    """`MODEL.SETTING=VALUE` texts -> model -> setting -> value, each checked. Raises UsageError."""
    overrides: dict[str, dict[str, str]] = {}
    for assignment in assignments:
        left, equals, value = assignment.partition("=")
        # Model names may hold dots, settings do not.
        name, dot, setting = left.rpartition(".")
        if not (equals and dot and name and setting):
            raise UsageError(f'--set must look like MODEL.SETTING=VALUE, not "{assignment}"')
        if name not in models:
            raise UsageError(f"--set {assignment}: {unknown_model(name, models)}")
        if models[name].backend != BACKEND:
            raise UsageError(
                f'--set {assignment}: the model {name} runs on the backend "{models[name].backend}"; only models with '
                f'backend: "{BACKEND}" have settings'
            )
        try:
            validate_override(setting, value)
        except SettingsError as error:
            raise UsageError(str(error)) from None
        overrides.setdefault(name, {})[setting] = value
    return overrides


def check_settings(models: Iterable[Model], overrides: Mapping[str, Mapping[str, str]]) -> None:
    """Read the model.json of every `python_llm` model as the backend will. Raises UsageError."""
    environ = {OVERRIDES_VARIABLE: json.dumps(overrides)}
    for model in models:
        versions = [child for child in model.folder.iterdir() if child.is_dir() and child.name.isdigit()]
        if not model.backend and any((version / "model.json").exists() for version in versions):
            raise UsageError(
                f"the model {model.name} has a model.json and no backend: "
                f'write backend: "{BACKEND}" into {model.folder / "config.pbtxt"}'
            )
        if model.backend != BACKEND:
            if difflib.get_close_matches(model.backend, [BACKEND], cutoff=0.8):
                raise UsageError(
                    f'{model.folder / "config.pbtxt"} names the backend "{model.backend}"; did you mean "{BACKEND}"?'
                )
            continue
        if not versions:
            raise UsageError(f"the model {model.name} has no version: put its model.json into {model.folder / '1'}")
        try:
            # Triton serves the highest version unless config.pbtxt says otherwise.
            load_settings(max(versions, key=lambda v: int(v.name)) / "model.json", model.name, environ)
        except SettingsError as error:
            raise UsageError(str(error)) from None
