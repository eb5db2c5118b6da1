"""Loads a model: files -> config and weights, checked against each other.

Does not know how weights are computed with, requests or Triton.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from python_llm.errors import ModelLoadError
from python_llm.model_files.gguf import GGUFFile
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.gguf_config import config_from_gguf
from python_llm.runner.gguf_names import NOT_WEIGHTS, gguf_places
from python_llm.runner.hf_names import hf_places, stored_name
from python_llm.runner.placement import Place, check_places
from python_llm.runner.spec import DecoderSpec

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Source = dict[str, Callable[[], torch.Tensor]]
"""By the decoder's name of a tensor, how to read it: those of a GGUF file as float32, others in their stored type."""
_Stored = dict[str, tuple[tuple[int, ...], Callable[[int | None], torch.Tensor]]]
"""By stored name: the shape, and how to read it or (a number given) one entry of its first axis."""


def read_config(files: ModelFiles) -> dict[str, Any]:
    """The model's config in the form of config.json; for a GGUF file, the fields that we read."""
    if files.kind == "gguf":
        return config_from_gguf(files.gguf)
    path = files.path / "config.json"
    return _read_json(path)


def open_weights(files: ModelFiles, spec: DecoderSpec) -> Source:
    """The tensors of `spec.tensor_shapes()`, not yet read. Norms will come as float32 with their offset added.

    Raises ModelLoadError when a tensor is missing, has another shape, or is one that the decoder would not read.
    """
    if files.kind == "gguf":
        stored, places = _gguf_tensors(files.gguf), checked_gguf_places(files.gguf, spec)
        offset = 0.0
    else:
        stored, places = _folder_tensors(files.path, spec), hf_places(spec)
        check_places(places, {name: shape for name, (shape, _) in stored.items()}, files.path, spec.model_type)
        offset = spec.norm_offset
    shapes = spec.tensor_shapes()
    return {name: _reader(stored, place, shapes[name], name, offset) for name, place in places.items()}


def load_weights(files: ModelFiles, spec: DecoderSpec) -> dict[str, torch.Tensor]:
    """All tensors, float32; see `open_weights`."""
    return {name: read().float() for name, read in open_weights(files, spec).items()}


def checked_gguf_places(gguf: GGUFFile, spec: DecoderSpec) -> dict[str, Place]:
    """Where the tensors of `spec.tensor_shapes()` lie in a GGUF file. Raises ModelLoadError as `open_weights` does."""
    places = gguf_places(spec, gguf.tensors)
    shapes = {name: tensor.shape for name, tensor in gguf.tensors.items() if name not in NOT_WEIGHTS}
    check_places(places, shapes, gguf.path, spec.model_type)
    return places


def _reader(
    stored: _Stored, place: Place, shape: tuple[int, ...], name: str, norm_offset: float
) -> Callable[[], torch.Tensor]:
    def read() -> torch.Tensor:
        pieces = [stored[stored_as][1](place.entry) for stored_as in place.names]
        values = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if place.transposed:
            values = values.T
        if len(shape) == 1:
            # Some vectors are stored as matrices of one row, or of a row for each head.
            values = values.reshape(-1)
        if place.rows is not None:
            values = values[torch.from_numpy(place.rows)]
        if norm_offset and name.endswith("norm.weight"):
            values = values.float() + norm_offset
        return values.contiguous()

    return read


def _gguf_tensors(gguf: GGUFFile) -> _Stored:
    def reader(name: str) -> Callable[[int | None], torch.Tensor]:
        return lambda entry: torch.from_numpy(gguf.dequantize(name, entry))

    return {name: (tensor.shape, reader(name)) for name, tensor in gguf.tensors.items()}


def _folder_tensors(folder: Path, spec: DecoderSpec) -> _Stored:
    from safetensors import SafetensorError, safe_open

    stored: _Stored = {}
    for path in _safetensors_files(folder):
        try:
            file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"Cannot read {path}: {error}") from None
        for name in file.keys():  # noqa: SIM118 (not a dictionary)
            known_as = stored_name(_plain_name(name), spec)
            if known_as is None or known_as.startswith(_VISION):
                continue

            def read(entry: int | None, file: Any = file, name: str = name, path: Path = path) -> torch.Tensor:
                values: torch.Tensor = file.get_tensor(name) if entry is None else file.get_slice(name)[entry]
                if values.dtype not in _DTYPES:
                    raise ModelLoadError(f"{path}: tensor {name} is {values.dtype}; supported: {_DTYPES}")
                return values

            stored[known_as] = (tuple(file.get_slice(name).get_shape()), read)
    return stored


_VISION = ("vision_tower.", "multi_modal_projector.")
"""Of Gemma 3 with vision: its text decoder does not read them."""


def _plain_name(name: str) -> str:
    """Gemma 3 with vision names its text decoder in two ways, before and since transformers 5; both -> `model.*`."""
    name = name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)
    return name.removeprefix("model.") if name.startswith(("model.vision_tower", "model.multi_modal")) else name


def _safetensors_files(folder: Path) -> Iterable[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelLoadError(f"{index} has no weight_map")
        return [folder / name for name in sorted(set(weight_map.values()))]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    if any(folder.glob("*.bin")):
        raise ModelLoadError(
            f"{folder} holds PyTorch .bin weights, which can run code when read; convert them to safetensors "
            "(`save_pretrained` of current transformers writes it)."
        )
    raise ModelLoadError(f"{folder} holds neither model.safetensors nor model.safetensors.index.json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"Cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return content
