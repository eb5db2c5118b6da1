"""Every setting of a model: name, type, default, unit, check.

`model.json` in a model's version folder gives the values; `python-llm serve --set MODEL.SETTING=VALUE` overrides them
through the environment variable `PYTHON_LLM_SET`. Standard library only: the command line and the docs read the same
table.
Does not know requests' sampling parameters (see `engine.sampling_params`).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from python_llm.errors import SettingsError

OVERRIDES_VARIABLE = "PYTHON_LLM_SET"
"""Environment variable: JSON object, model name -> setting -> value (strings are converted)."""


def _setting(
    default: Any,
    *,
    doc: str,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    kind: type = str,
    choices: tuple[str, ...] = (),
) -> Any:
    metadata = {"doc": doc, "unit": unit, "low": low, "high": high, "kind": kind, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of one model, checked. Build it with `parse_settings` or `load_settings`."""

    model: str = _setting(
        "",
        doc="What to serve: path of a GGUF file or a Hugging Face folder (relative to this file), a hub id `org/name`, "
        "`org/name/file.gguf`, or `package:NAME/FILE` (a file shipped inside an installed Python package). Required.",
    )
    kind: str = _setting(
        "llm",
        choices=("llm", "tokenizer", "detokenizer"),
        doc="What the model does. llm: serves the language model. tokenizer, detokenizer: text to ids and back, for "
        "ensembles; no weights are loaded, and of the other settings only `model`, `revision`, `tokenizer` and (of a "
        "tokenizer) `max_model_len` may be given.",
    )
    revision: str | None = _setting(None, doc="Branch, tag or commit of a hub id.")
    tokenizer: str | None = _setting(
        None, doc="Where the tokenizer and chat template come from, when not from `model`. Same forms as `model`."
    )
    weight_format: str = _setting(
        "auto",
        choices=("auto", "float32", "bfloat16", "int8", "int4"),
        doc="How weights are held in memory. auto: as the file has them (GGUF blocks stay packed; activations are then "
        "quantised to 8 bits per token). int8, int4: quantised at load in groups of 32.",
    )
    kernels: str = _setting(
        "auto",
        choices=("auto", "native", "torch"),
        doc="What computes. native: the compiled CPU kernels; torch: plain torch, float32; auto: native where it can.",
    )
    cpu_threads: int | None = _setting(
        None, kind=int, low=1, high=1024, doc="Threads of the native kernels. Default: the cores this process may use."
    )
    max_model_len: int | None = _setting(
        None,
        kind=int,
        low=2,
        unit="tokens",
        doc="Longest prompt plus output. Default: the model's own limit, or what the KV pool holds if that is less.",
    )
    max_num_seqs: int = _setting(64, kind=int, low=1, high=4096, doc="Sequences that run at the same time.")
    max_num_batched_tokens: int = _setting(
        512,
        kind=int,
        low=1,
        high=1 << 20,
        unit="tokens",
        doc="Token budget of one step, prompt chunks and decode tokens together. Larger: faster prompts; "
        "smaller: steadier streams while prompts come in.",
    )
    block_size: int = _setting(16, kind=int, low=1, high=1024, unit="tokens", doc="Tokens in one page of the KV cache.")
    kv_cache_memory_mib: int = _setting(
        1024,
        kind=int,
        low=1,
        unit="MiB",
        doc="Size of the KV pool. The memory is reserved at load and touched only when used.",
    )
    key_cache_format: str = _setting(
        "auto",
        choices=("auto", "float32", "bfloat16", "int8", "int4"),
        doc="How keys are held in the KV pool. Smaller formats hold more tokens and are read faster; native kernels "
        "only. auto: int8 where the weights are quantised, float32 otherwise.",
    )
    value_cache_format: str = _setting(
        "auto", choices=("auto", "float32", "bfloat16", "int8", "int4"), doc="How values are held in the KV pool."
    )
    enable_prefix_caching: bool = _setting(
        True,
        kind=bool,
        doc="Keep the pages of finished requests and share them with requests that begin with the same tokens.",
    )
    max_queue_size: int = _setting(
        512,
        kind=int,
        low=1,
        doc="Sequences that may wait for a place. More are refused with UNAVAILABLE.",
    )
    request_timeout_s: float = _setting(
        600.0,
        kind=float,
        low=0.001,
        unit="s",
        doc="Deadline of a request that brings none of its own; waiting counts. "
        "Past it the request ends with UNAVAILABLE.",
    )
    stream_interval: int = _setting(
        1,
        kind=int,
        low=1,
        high=1024,
        unit="tokens",
        doc="Least number of new tokens in a streamed response (the last may have fewer). Responses also grow by "
        "themselves when the server is busy.",
    )
    speculation: str = _setting(
        "off",
        choices=("off", "prompt_lookup"),
        doc="How tokens are guessed ahead, for requests that do not say; outputs stay the same, token for token. "
        "prompt_lookup: what followed the same words earlier in prompt and output, at about 250 bytes for each token "
        "of the running requests. off: no request can ask for it. "
        "See docs/speculation.md.",
    )
    num_draft_tokens: int = _setting(
        8,
        kind=int,
        low=1,
        high=32,
        unit="tokens",
        doc="Most tokens to guess ahead in one step. How many are verified is chosen step by step, and is 0 where that "
        "would make the batch slower.",
    )
    prompt_lookup_min_ngram: int = _setting(
        2, kind=int, low=1, high=64, unit="tokens", doc="Shortest match that prompt_lookup takes for one."
    )
    prompt_lookup_max_ngram: int = _setting(
        8, kind=int, low=1, high=64, unit="tokens", doc="Longer matches are not told apart by prompt_lookup."
    )
    prompt_lookup_memory_tokens: int = _setting(
        0,
        kind=int,
        low=0,
        high=1 << 24,
        unit="tokens",
        doc="How many output tokens of ended requests prompt_lookup remembers for later ones, at about 250 bytes each. "
        "Off by default: how fast an answer comes can then tell one user what another was told.",
    )


_WITHOUT_WEIGHTS = frozenset({"kind", "model", "revision", "tokenizer"})
_SETTINGS_OF_KIND = {"tokenizer": _WITHOUT_WEIGHTS | {"max_model_len"}, "detokenizer": _WITHOUT_WEIGHTS}
"""The only settings of these kinds of model."""


def setting_names() -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(ModelSettings))


def parse_settings(values: Mapping[str, object], *, source: str) -> ModelSettings:
    """Check `values` (numbers and booleans may be strings).

    Raises SettingsError that names `source`, the setting, what is allowed and what came.
    """
    checked: dict[str, Any] = {name: _check(name, value, source) for name, value in values.items()}
    if not checked.get("model"):
        raise SettingsError(
            f'{source}: the setting "model" is missing: a path, a hub id, or package:NAME/FILE is expected'
        )
    settings = ModelSettings(**checked)
    allowed = _SETTINGS_OF_KIND.get(settings.kind, setting_names())
    for name in values:
        if name not in allowed:
            raise SettingsError(
                f'{source}: the setting "{name}" is not for a {settings.kind}, which takes {", ".join(sorted(allowed))}'
            )
    low, high = settings.prompt_lookup_min_ngram, settings.prompt_lookup_max_ngram
    if low > high:
        raise SettingsError(
            f'{source}: the setting "prompt_lookup_min_ngram" must be at most prompt_lookup_max_ngram '
            f"({high}), not {low}"
        )
    return settings


def validate_override(name: str, value: str) -> None:
    """Check one `--set` value before anything is started. Raises SettingsError."""
    _check(name, value, "--set")


def load_settings(path: Path, model_name: str, environ: Mapping[str, str] = os.environ) -> ModelSettings:
    """Read `model.json` and apply the overrides that the environment holds for `model_name`. Raises SettingsError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f'{path} does not exist; it must hold at least {{"model": "..."}}') from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold one JSON object of settings, not {type(values).__name__}")
    source = str(path)
    overrides = _overrides(environ).get(model_name, {})
    if overrides:
        source += f" with --set {', '.join(overrides)}"
    return parse_settings({**values, **overrides}, source=source)


def _overrides(environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
    text = environ.get(OVERRIDES_VARIABLE, "")
    if not text:
        return {}
    try:
        overrides = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{OVERRIDES_VARIABLE} is not JSON: {error}") from None
    if not isinstance(overrides, dict) or not all(isinstance(v, dict) for v in overrides.values()):
        raise SettingsError(f'{OVERRIDES_VARIABLE} must look like {{"model": {{"setting": value}}}}, not {text}')
    return overrides


def _check(name: str, value: object, source: str) -> object:
    spec = ModelSettings.__dataclass_fields__.get(name)
    if spec is None:
        nearest = difflib.get_close_matches(name, setting_names(), n=1, cutoff=0.0)[0]
        raise SettingsError(
            f'{source}: unknown setting "{name}"; did you mean "{nearest}"? Known: {", ".join(setting_names())}'
        )
    if value is None or (isinstance(value, str) and value.lower() in {"null", "none"}):
        if spec.default is None:
            return None
        raise SettingsError(f'{source}: the setting "{name}" must not be null')
    kind: type = spec.metadata["kind"]
    converted = _convert(value, kind)
    if converted is None:
        word = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}[kind]
        raise SettingsError(f'{source}: the setting "{name}" must be {word}, not {value!r}')
    choices = spec.metadata["choices"]
    if choices and converted not in choices:
        raise SettingsError(f'{source}: the setting "{name}" must be one of {", ".join(choices)}, not {value!r}')
    low, high = spec.metadata["low"], spec.metadata["high"]
    if (low is not None and converted < low) or (high is not None and converted > high):
        allowed = f"at least {low}" if high is None else f"between {low} and {high}"
        raise SettingsError(f'{source}: the setting "{name}" must be {allowed}, not {value!r}')
    return converted


def _convert(value: object, kind: type) -> Any:
    """`value` as `kind`, or None when it is not one."""
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
        if not math.isfinite(number) or (kind is int and number != int(number)):
            return None
        return kind(value) if not isinstance(value, str) else kind(number)
    except ValueError:
        return None
