"""Builds a tokenizer from a Hugging Face model folder.

`tokenizer.json` is read by the `tokenizers` library; only a folder without one needs transformers, which takes seconds
to import. What encoding puts around a text is what tokenizer.json's post-processor says: transformers, too, ignores
add_bos_token and add_eos_token beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from python_llm.errors import ModelLoadError
from python_llm.tokenization.tokenizer import Tokenizer

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """ModelLoadError when the folder has no tokenizer, or one that is damaged or of a kind we cannot serve."""
    config = _read_json(folder / "tokenizer_config.json")
    named = _named_tokens({**_read_json(folder / "special_tokens_map.json"), **config})
    if (folder / "tokenizer.json").is_file():
        backend = _read_backend(folder / "tokenizer.json")
        backend.add_special_tokens([text for text in named.values() if backend.token_to_id(text) is None])
    else:
        backend, named = _through_transformers(folder)
    model_config = _read_json(folder / "config.json")
    bos = named.get("bos_token")
    chat_template, tool_template = _chat_templates(folder, config)
    return Tokenizer(
        backend,
        eos_token_ids=_eos_ids(folder, model_config, backend, named),
        bos_token_id=next(iter(_ids(model_config.get("bos_token_id"))), None)
        if bos is None
        else backend.token_to_id(bos),
        chat_template=chat_template,
        tool_template=tool_template,
        special_tokens=named,
    )


def _read_json(path: Path) -> dict[str, Any]:
    """{} when there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"Cannot read {path}: {error}.") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value


def _read_backend(path: Path) -> Backend:
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"Cannot read {path}: {error}.") from None


def _through_transformers(folder: Path) -> tuple[Backend, dict[str, str]]:
    from transformers import AutoTokenizer

    try:
        slow = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # anything at all, from anywhere in transformers
        raise ModelLoadError(
            f"{folder} has no tokenizer.json, and transformers cannot make a tokenizer from the folder: {error}"
        ) from None
    backend = getattr(slow, "backend_tokenizer", None)
    if backend is None:
        raise ModelLoadError(
            f"{folder} has no tokenizer.json, and its {type(slow).__name__} runs in Python only. Convert it with "
            "transformers' convert_slow_tokenizer and save the tokenizer.json beside it."
        )
    return backend, _named_tokens({name: getattr(slow, name, None) for name in _NAMED})


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The texts of bos_token etc., which are written as a string or as a serialised AddedToken."""
    named = {}
    for name in _NAMED:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


def _eos_ids(folder: Path, model_config: dict[str, Any], backend: Backend, named: dict[str, str]) -> set[int]:
    # A model's config may name fewer ids than its generation config; a text ends at any of them.
    text_config = model_config.get("text_config") or {}
    values = [_read_json(folder / "generation_config.json").get("eos_token_id")]
    values += [model_config.get("eos_token_id"), text_config.get("eos_token_id")]
    values += [backend.token_to_id(named["eos_token"]) if "eos_token" in named else None]
    return {token_id for value in values for token_id in _ids(value)}


def _ids(value: Any) -> list[int]:
    """The ids in a config's `eos_token_id` or `bos_token_id`: a number, a list of numbers, or nothing."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) for token_id in found):
        raise ModelLoadError(
            f"A token id in the model's config must be a whole number or a list of them, got {value!r}."
        )
    return found


def _chat_templates(folder: Path, config: dict[str, Any]) -> tuple[str | None, str | None]:
    """The default template, and the one for messages with tools where the model has one of its own."""
    default = _read_text(folder / "chat_template.jinja")
    tools = _read_text(folder / "additional_chat_templates" / "tool_use.jinja")
    if default is not None or tools is not None:
        return default, tools
    given = _read_json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    named = {"default": given}
    if isinstance(given, list):
        named = {str(entry.get("name")): entry.get("template") for entry in given if isinstance(entry, dict)}
    found = named.get("default"), named.get("tool_use")
    if not all(template is None or isinstance(template, str) for template in found):
        raise ModelLoadError(f"{folder}: chat_template must be a string or a list of named templates.")
    return found


def _read_text(path: Path) -> str | None:
    """None when there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"Cannot read {path}: {error}.") from None
