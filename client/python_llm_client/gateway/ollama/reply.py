"""Answers -> the bodies of Ollama's API. Does not know HTTP."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

import orjson

from python_llm_client.answers import Stats, Usage
from python_llm_client.gateway.servers import ServedModel

API_VERSION = "0.6.8"
"""The version of Ollama whose API this follows: its clients ask for it."""


class Writer:
    """The lines of one answer; `is_chat` decides how the text is called."""

    def __init__(self, model: str, *, is_chat: bool) -> None:
        self._model = model
        self._is_chat = is_chat
        self._start = time.monotonic_ns()

    def line(self, text: str) -> bytes:
        """One part of a stream."""
        return orjson.dumps({**self._head(text), "done": False}) + b"\n"

    def last(self, text: str, finish_reason: str | None, usage: Usage, stats: Stats | None) -> bytes:
        """The last line, or the only one."""
        stats = stats or Stats()
        cost = {
            "total_duration": time.monotonic_ns() - self._start,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_ms),
            "eval_count": usage.output_tokens,
            "eval_duration": _nanoseconds(stats.decode_ms),
        }
        done = {"done": True, "done_reason": finish_reason or "stop"}
        return orjson.dumps({**self._head(text), **done, **cost}) + b"\n"

    def loaded(self) -> bytes:
        """The answer to an empty request, by which Ollama's clients ask to load a model."""
        return orjson.dumps({**self._head(""), "done": True, "done_reason": "load"}) + b"\n"

    def _head(self, text: str) -> dict[str, Any]:
        said = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"response": text}
        return {"model": self._model, "created_at": datetime.now(timezone.utc).isoformat(), **said}


def _nanoseconds(milliseconds: float | None) -> int:
    return round(1e6 * (milliseconds or 0))


def listed(model: ServedModel) -> dict[str, Any]:
    """One entry of `/api/tags`. Size, digest and kind are not known outside the server, and are left empty."""
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _iso(model.since),
        "size": 0,
        "digest": "",
        "details": details(),
    }


def running(model: ServedModel) -> dict[str, Any]:
    """One entry of `/api/ps`: a model that is served is loaded, and stays so."""
    return {**listed(model), "expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}


def shown(model: ServedModel) -> dict[str, Any]:
    """Body of `/api/show`."""
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": details(),
        "model_info": {},
        "capabilities": ["completion"],
        "modified_at": _iso(model.since),
    }


def details() -> dict[str, Any]:
    """Of any model."""
    return {
        "parent_model": "",
        "format": "",
        "family": "",
        "families": None,
        "parameter_size": "",
        "quantization_level": "",
    }


def _iso(unix_time: int) -> str:
    return datetime.fromtimestamp(unix_time, timezone.utc).isoformat()
