"""Both faces, inwards: named tensors and request parameters -> a checked `UserRequest`.

Every fault of the user ends here, in an InvalidRequestError that says what came and what was expected.
Does not know pb_utils (tensors come as numpy arrays), the engine's state, or how answers travel back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from python_llm.engine.parameters import INTEGER, Parameter, Range, is_null
from python_llm.engine.sampling_params import (
    SamplingParams,
    check_vocab,
    parse_sampling_params,
    tokenize_bad_words,
)
from python_llm.errors import InvalidRequestError
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.io_spec import OUTPUT_NAMES, REFUSED_INPUTS
from python_llm.triton_io.prompt import encode_prompt, given_prompt
from python_llm.triton_io.tensor_values import Tensors, flag, json_value
from python_llm.triton_io.token_request import TokenInputs, asks_for_tokens, read_input_ids, read_token_inputs

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
    """Which outputs beside text or tokens the user asked for."""

    finish_reason: bool = False
    cumulative_logprob: bool = False
    logprobs: bool = False
    num_input_tokens: bool = False
    num_output_tokens: bool = False
    stats: bool = False
    log_probs: bool = False


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """How the token face is to answer."""

    wanted: frozenset[str]
    """Outputs that the client asks for."""
    pad_id: int
    """Fills rows of `output_ids` that are shorter than others."""
    echo: bool
    """Whether the prompt's ids come before the output."""


@dataclass(frozen=True, slots=True)
class UserRequest:
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
    tokens: TokenOutputs | None = None
    """None: the answer is text."""


def read_request(
    tensors: Tensors,
    parameters: Mapping[str, Any],
    timeout_us: int,
    tokenizer: Tokenizer,
    vocab_size: int,
    *,
    max_model_len: int,
    wanted: Collection[str] = OUTPUT_NAMES,
) -> UserRequest:
    """`tensors`: the inputs that the request brings, BYTES as object arrays of bytes. `parameters`: Triton's request
    parameters. `timeout_us`: Triton's request timeout in microseconds, 0 for none. `vocab_size`: the model's, which its
    tokenizer need not share. `max_model_len`: tokens; a text that is far beyond it is refused without being tokenised.
    `wanted`: the outputs asked for. Raises InvalidRequestError."""
    for name, message in REFUSED_INPUTS.items():
        if name in tensors:
            raise InvalidRequestError(f'input "{name}": {message}')
    wanted = frozenset(wanted)
    token_face = asks_for_tokens(tensors, wanted, OUTPUT_NAMES)
    token_inputs = read_token_inputs(tensors, vocab_size)
    stream = _read_stream(tensors)
    prompt_ids, prompt_text, echo_by_default = _read_prompt(tensors, tokenizer, max_model_len)
    _check_ids(prompt_ids, vocab_size)
    echo = not flag(tensors, "exclude_input_in_output", stream or token_face or not echo_by_default)
    if echo and stream:
        raise InvalidRequestError(
            "exclude_input_in_output=false cannot be combined with stream=true: a stream carries the output only"
        )
    returns = Returns(**{f.name: flag(tensors, f"return_{f.name}", False) for f in dataclasses.fields(Returns)})
    own_parameters = {k: v for k, v in parameters.items() if k not in _TRITONS_FIELDS and not k.startswith("triton_")}
    if echo and prompt_text is None and not token_face:
        prompt_text = tokenizer.decode(prompt_ids.tolist(), skip_special_tokens=False)
    deadline_us = _TIMEOUT.read(own_parameters.pop("timeout", timeout_us))
    assert isinstance(deadline_us, int)
    return UserRequest(
        prompt_ids=prompt_ids,
        echo=prompt_text if echo and prompt_text is not None else "",
        params=_read_params(tensors, own_parameters, token_inputs, tokenizer, vocab_size, token_face),
        stream=stream,
        returns=returns,
        timeout_s=deadline_us / 1e6 if deadline_us else None,
        tokens=TokenOutputs(wanted, token_inputs.pad_id, echo) if token_face else None,
    )


def _read_stream(tensors: Tensors) -> bool:
    if "stream" in tensors and "streaming" in tensors:
        raise InvalidRequestError('inputs "stream" and "streaming" are the same: send one of them')
    return flag(tensors, "streaming", flag(tensors, "stream", False))


def _read_prompt(tensors: Tensors, tokenizer: Tokenizer, max_model_len: int) -> tuple[np.ndarray, str | None, bool]:
    """Token ids of the prompt (int32 [n]), its text if it came as one, and whether the text is part of the output by
    default."""
    name = given_prompt(tensors, _PROMPT_INPUTS)
    if name == "input_ids":
        ids = read_input_ids(tensors)
        if len(ids) >= max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(ids)} tokens; this model takes at most {max_model_len - 1} "
                f"(max_model_len {max_model_len})"
            )
        return ids, None, False
    if "input_lengths" in tensors:
        raise InvalidRequestError(f'input "input_lengths" goes with the input "input_ids", not with "{name}"')
    return *encode_prompt(tensors, name, tokenizer, max_model_len), name == "text_input"


def _check_ids(prompt_ids: np.ndarray, vocab_size: int) -> None:
    if (bad := prompt_ids[(prompt_ids < 0) | (prompt_ids >= vocab_size)]).size:
        raise InvalidRequestError(
            f"the prompt has the token id {int(bad[0])}; this model knows the ids 0 to {vocab_size - 1}"
        )


def _read_params(
    tensors: Tensors,
    parameters: Mapping[str, Any],
    token_inputs: TokenInputs,
    tokenizer: Tokenizer,
    vocab_size: int,
    token_face: bool,
) -> SamplingParams:
    values: dict[str, object] = {**parameters, **token_inputs.sampling}
    if "sampling_parameters" in tensors:
        given = json_value(tensors, "sampling_parameters")
        if not isinstance(given, dict):
            raise InvalidRequestError(
                f'input "sampling_parameters" must be a JSON object, for example {{"max_tokens": 16}}, '
                f"not {given!r:.100}"
            )
        values.update(given)
    params = parse_sampling_params(values)
    if token_face and not _asks_for_draws(values, params):
        params = dataclasses.replace(params, temperature=0.0)
    check_vocab(params, vocab_size)
    end_ids = tokenizer.eos_token_ids if token_inputs.end_ids is None else token_inputs.end_ids
    bad_words = tokenize_bad_words(params.bad_words, lambda word: tokenizer.encode(word, add_special_tokens=False))
    return dataclasses.replace(
        params,
        eos_token_ids=tuple(sorted(end_ids)),
        bad_words_token_ids=(*bad_words, *token_inputs.bad_words),
        stop_words_token_ids=token_inputs.stop_words,
    )


def _asks_for_draws(values: Mapping[str, object], params: SamplingParams) -> bool:
    """Unless a request says a temperature or filters tokens, the token face is greedy, as TensorRT-LLM is.

    A parameter that is null, or that lets every token pass, asks for nothing.
    """
    return not is_null(values.get("temperature")) or params.top_k > 0 or params.top_p < 1 or params.min_p > 0
