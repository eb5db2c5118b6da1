"""Loads a model: files -> config and weights, checked against each other.

Does not know how weights are computed with, requests or Triton.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from python_llm.errors import ModelLoadError
from python_llm.model_files.gguf import GGUFFile
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.gguf_names import ROPE_FACTORS, config_from_gguf, hf_rows, hf_tensor_name
from python_llm.runner.spec import DecoderSpec

_WITHOUT_EFFECT = re.compile(r".*\.rotary_emb\.inv_freq|vision_tower\..*|multi_modal_projector\..*")
"""Tensors of a checkpoint that its text decoder does not read: old Llama files store rope's frequencies."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Source = dict[str, tuple[tuple[int, ...], Callable[[], torch.Tensor]]]
"""By Hugging Face name: the shape, and how to read the tensor: GGUF tensors as float32, others in their stored type."""


def read_config(files: ModelFiles) -> dict[str, Any]:
    """The model's config in the form of config.json; for a GGUF file, the fields that we read."""
    if files.kind == "gguf":
        return config_from_gguf(GGUFFile(files.path))
    path = files.path / "config.json"
    return _read_json(path)


def open_weights(files: ModelFiles, config: Mapping[str, Any], spec: DecoderSpec) -> Source:
    """The tensors of `spec.tensor_shapes()`, not yet read. Norms will come as float32 with their offset added.

    Raises ModelLoadError when a tensor is missing, has another shape, or is one that the decoder would not read.
    """
    source = _gguf_source(GGUFFile(files.path), config) if files.kind == "gguf" else _folder_source(files.path, spec)
    expected = spec.tensor_shapes()
    missing = sorted(set(expected) - set(source))
    if missing:
        raise ModelLoadError(f"{files.path}: {_some(missing)} missing")
    unknown = sorted(set(source) - set(expected))
    if unknown:
        raise ModelLoadError(f"{files.path}: {_some(unknown)} not part of model_type {spec.model_type!r}")
    for name, shape in expected.items():
        if source[name][0] != shape:
            raise ModelLoadError(f"{files.path}: tensor {name} has shape {source[name][0]}, expected {shape}")
    return source


def load_weights(files: ModelFiles, config: Mapping[str, Any], spec: DecoderSpec) -> dict[str, torch.Tensor]:
    """All tensors, float32; see `open_weights`."""
    return {name: read().float() for name, (_, read) in open_weights(files, config, spec).items()}


def _gguf_source(gguf: GGUFFile, config: Mapping[str, Any]) -> Source:
    source: Source = {}
    for name, tensor in gguf.tensors.items():
        if name == ROPE_FACTORS:
            continue
        hf_name = hf_tensor_name(name, config["model_type"])

        def read(name: str = name) -> torch.Tensor:
            return torch.from_numpy(hf_rows(name, gguf.dequantize(name), config))

        source[hf_name or name] = (tensor.shape, read)
    return source


def _folder_source(folder: Path, spec: DecoderSpec) -> Source:
    from safetensors import SafetensorError, safe_open

    source: Source = {}
    for path in _safetensors_files(folder):
        try:
            file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"Cannot read {path}: {error}") from None
        for stored_name in file.keys():  # noqa: SIM118 (not a dictionary)
            name = _plain_name(stored_name)
            if _WITHOUT_EFFECT.fullmatch(name) or (spec.tied_head and name == "lm_head.weight"):
                continue

            def read(file: Any = file, stored_name: str = stored_name, name: str = name, path: Path = path) -> Any:
                values = file.get_tensor(stored_name)
                if values.dtype not in _DTYPES:
                    raise ModelLoadError(f"{path}: tensor {stored_name} is {values.dtype}; supported: {_DTYPES}")
                return values.float() + spec.norm_offset if name.endswith("norm.weight") else values

            source[name] = (tuple(file.get_slice(stored_name).get_shape()), read)
    return source


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


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"tensors {shown} are" if len(names) > 1 else f"tensor {shown} is"
