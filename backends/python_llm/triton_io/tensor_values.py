"""Named arrays -> plain values. Every fault of the user is an InvalidRequestError that names the input.

BYTES inputs are object arrays of bytes. Does not know pb_utils or what the values mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from python_llm.errors import InvalidRequestError

Tensors = Mapping[str, np.ndarray]


def scalar(tensors: Tensors, name: str) -> Any:
    """The only element, as a Python or numpy value."""
    values = tensors[name].reshape(-1)
    if values.size != 1:
        raise InvalidRequestError(f'input "{name}" must hold exactly 1 element, {values.size} came')
    return values[0]


def number(tensors: Tensors, name: str) -> int | float:
    value = scalar(tensors, name)
    # The shortest decimal that means this float32: 0.7, which is what the user wrote, and not 0.699999988.
    return float(str(value)) if isinstance(value, np.floating) else int(value)


def flag(tensors: Tensors, name: str, default: bool) -> bool:
    return bool(scalar(tensors, name)) if name in tensors else default


def string(tensors: Tensors, name: str) -> str:
    return _decode(name, scalar(tensors, name))


def strings(tensors: Tensors, name: str) -> list[str]:
    """All elements but empty ones, by which clients say "none"."""
    return [text for text in (_decode(name, value) for value in tensors[name].reshape(-1)) if text]


def json_value(tensors: Tensors, name: str) -> Any:
    text = string(tensors, name)
    try:
        value = json.loads(text)
        # "\\ud800" alone is JSON, but no text: it could be neither tokenised nor sent back.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f'input "{name}" is not valid JSON: {error}; it begins {text[:80]!r}') from None


def bytes_array(texts: Iterable[str]) -> np.ndarray:
    """The other way: an array for a STRING output."""
    return np.array([text.encode("utf-8") for text in texts], dtype=np.object_)


def sampling_values(tensors: Tensors, names: Mapping[str, str]) -> dict[str, object]:
    """Sampling parameter -> value, for those inputs of `names` (input -> sampling parameter) that came.

    As in TensorRT-LLM, a top_k or top_p of 0 is as good as none. Two inputs for one parameter are an error.
    """
    values: dict[str, object] = {}
    source: dict[str, str] = {}
    for name, parameter in names.items():
        if name not in tensors:
            continue
        value = number(tensors, name)
        if parameter in ("top_k", "top_p") and value == 0:
            continue
        if parameter in source:
            raise InvalidRequestError(f'inputs "{source[parameter]}" and "{name}" are the same: send one of them')
        values[parameter], source[parameter] = value, name
    return values


def _decode(name: str, value: Any) -> str:
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f'input "{name}" is not valid UTF-8: {error}') from None
