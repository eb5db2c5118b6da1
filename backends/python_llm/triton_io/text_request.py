"""The text face, inwards: named tensors and request parameters -> a checked `TextRequest`.

Every fault of the user ends here, in an InvalidRequestError that says what came and what was expected.
Does not know pb_utils (tensors come as numpy arrays), the engine's state, or how answers travel back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from python_llm.engine.parameters import INTEGER, Parameter, Range
from python_llm.engine.sampling_params import (
    SamplingParams,
    check_vocab,
    parse_sampling_params,
    tokenize_bad_words,
)
from python_llm.errors import InvalidRequestError
from python_llm.tokenization.chat import render_chat
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.io_spec import REFUSED_INPUTS

_PROMPT_INPUTS = ("text_input", "messages", "input_ids")
_TIMEOUT = Parameter(
    "timeout",
    dataclasses.replace(INTEGER, name="an integer of microseconds"),
    default=0,
    doc="The request's own deadline; 0 for none.",
    range=Range(0, 2**63 - 1),
)
_TRITONS_FIELDS = ("id",)
"""Of a `/generate` body: Triton acts on them itself, and hands them on as request parameters all the same."""


@dataclass(frozen=True, slots=True)
class Returns:
    """Which outputs beside the text the user asked for."""

    finish_reason: bool = False
    cumulative_logprob: bool = False
    logprobs: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False
    stats: bool = False


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What one Triton request asks for."""

    prompt_ids: np.ndarray
    """int32 [n]"""
    echo: str
    """Text to put before the output; empty for none."""
    params: SamplingParams
    stream: bool
    returns: Returns
    timeout_s: float | None
    """The user's own deadline, seconds from now; None: the model's default."""


def read_text_request(
    tensors: Mapping[str, np.ndarray],
    parameters: Mapping[str, Any],
    timeout_us: int,
    tokenizer: Tokenizer,
    vocab_size: int,
    *,
    max_model_len: int,
) -> TextRequest:
    """`tensors`: the inputs that the request brings, BYTES as object arrays of bytes. `parameters`: Triton's request
    parameters. `timeout_us`: Triton's request timeout in microseconds, 0 for none. `vocab_size`: the model's, which its
    tokenizer need not share. `max_model_len`: tokens; a text that is far beyond it is refused without being tokenised.
    Raises InvalidRequestError."""
    for name, message in REFUSED_INPUTS.items():
        if name in tensors:
            raise InvalidRequestError(f'input "{name}": {message}')
    stream = _flag(tensors, "stream", False)
    prompt_ids, prompt_text, echo_by_default = _read_prompt(tensors, tokenizer, max_model_len)
    if (bad := prompt_ids[(prompt_ids < 0) | (prompt_ids >= vocab_size)]).size:
        raise InvalidRequestError(
            f"the prompt has the token id {int(bad[0])}; this model knows the ids 0 to {vocab_size - 1}"
        )
    echo = not _flag(tensors, "exclude_input_in_output", stream or not echo_by_default)
    if echo and stream:
        raise InvalidRequestError(
            "exclude_input_in_output=false cannot be combined with stream=true: a stream carries the output only"
        )
    returns = Returns(**{f.name: _flag(tensors, f"return_{f.name}", False) for f in dataclasses.fields(Returns)})
    own_parameters = {k: v for k, v in parameters.items() if k not in _TRITONS_FIELDS and not k.startswith("triton_")}
    deadline_us = _TIMEOUT.read(own_parameters.pop("timeout", timeout_us))
    assert isinstance(deadline_us, int)
    params = _read_params(tensors, own_parameters, tokenizer, vocab_size)
    return TextRequest(
        prompt_ids=prompt_ids,
        echo=prompt_text if echo else "",
        params=params,
        stream=stream,
        returns=returns,
        timeout_s=deadline_us / 1e6 if deadline_us else None,
    )


def _read_prompt(
    tensors: Mapping[str, np.ndarray], tokenizer: Tokenizer, max_model_len: int
) -> tuple[np.ndarray, str, bool]:
    """Token ids of the prompt (int32 [n]), its text, and whether the text is part of the output by default."""
    given = [name for name in _PROMPT_INPUTS if name in tensors]
    if len(given) != 1:
        came = " and ".join(given) if given else "none"
        raise InvalidRequestError(f"exactly one of the inputs {', '.join(_PROMPT_INPUTS)} is expected, {came} came")
    if "tools" in tensors and given != ["messages"]:
        raise InvalidRequestError(f'input "tools" goes with the input "messages", not with "{given[0]}"')
    if given == ["text_input"]:
        text = _string(tensors, "text_input")
        return _encode(text, tokenizer, max_model_len), text, True
    if given == ["messages"]:
        tools = _json(tensors, "tools") if "tools" in tensors else None
        text = render_chat(tokenizer, _json(tensors, "messages"), tools)
        # The template writes the special tokens itself.
        return _encode(text, tokenizer, max_model_len, add_special_tokens=False), text, False
    ids = tensors["input_ids"].reshape(-1).astype(np.int32)
    return ids, tokenizer.decode(ids.tolist(), skip_special_tokens=False), False


def _encode(text: str, tokenizer: Tokenizer, max_model_len: int, *, add_special_tokens: bool = True) -> np.ndarray:
    """int32 [n]. Tokenising 10 MB takes seconds, and every other request of the model would wait for it."""
    if len(text) > max_model_len and len(text) > (limit := max_model_len * tokenizer.longest_token):
        raise InvalidRequestError(
            f"the prompt has {len(text)} characters; this model takes at most {max_model_len - 1} tokens "
            f"(max_model_len {max_model_len}), which never hold more than {limit} characters"
        )
    return np.array(tokenizer.encode(text, add_special_tokens=add_special_tokens), dtype=np.int32)


def _read_params(
    tensors: Mapping[str, np.ndarray], parameters: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int
) -> SamplingParams:
    values: dict[str, object] = dict(parameters)
    if "sampling_parameters" in tensors:
        given = _json(tensors, "sampling_parameters")
        if not isinstance(given, dict):
            raise InvalidRequestError(
                f'input "sampling_parameters" must be a JSON object, for example {{"max_tokens": 16}}, '
                f"not {given!r:.100}"
            )
        values.update(given)
    params = parse_sampling_params(values)
    check_vocab(params, vocab_size)
    return dataclasses.replace(
        params,
        eos_token_ids=tuple(sorted(tokenizer.eos_token_ids)),
        bad_words_token_ids=tokenize_bad_words(
            params.bad_words, lambda word: tokenizer.encode(word, add_special_tokens=False)
        ),
    )


def _scalar(tensors: Mapping[str, np.ndarray], name: str) -> Any:
    values = tensors[name].reshape(-1)
    if values.size != 1:
        raise InvalidRequestError(f'input "{name}" must hold exactly 1 element, {values.size} came')
    return values[0]


def _flag(tensors: Mapping[str, np.ndarray], name: str, default: bool) -> bool:
    return bool(_scalar(tensors, name)) if name in tensors else default


def _string(tensors: Mapping[str, np.ndarray], name: str) -> str:
    try:
        return bytes(_scalar(tensors, name)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f'input "{name}" is not valid UTF-8: {error}') from None


def _json(tensors: Mapping[str, np.ndarray], name: str) -> Any:
    text = _string(tensors, name)
    try:
        value = json.loads(text)
        # "\\ud800" alone is JSON, but no text: it could be neither tokenised nor sent back.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f'input "{name}" is not valid JSON: {error}; it begins {text[:80]!r}') from None
