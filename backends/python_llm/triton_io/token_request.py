"""The token face, inwards: the inputs that models of TensorRT-LLM's Triton backend have -> values.

Does not know the prompt's text, the text face's own inputs, or how answers travel back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from python_llm.engine.sampling_params import SAMPLING_PARAMETERS
from python_llm.errors import InvalidRequestError
from python_llm.triton_io.io_spec import TOKEN_INPUT_NAMES, TOKEN_OUTPUT_NAMES
from python_llm.triton_io.tensor_values import Tensors, flag, number, sampling_values
from python_llm.triton_io.word_lists import unpack_words

_SAMPLING = {
    "request_output_len": "max_tokens",
    "min_length": "min_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "random_seed": "seed",
}
"""Input -> the sampling parameter that it is."""

_NOT_RETURNED = ("return_context_logits", "return_generation_logits")
_NO_END = -1
_PADDING = -1
"""Of rows of `output_ids` that are shorter than others, as TensorRT-LLM pads them."""


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What the token face's inputs say."""

    sampling: dict[str, object]
    """Sampling parameter -> value, checked."""
    end_ids: tuple[int, ...] | None
    """Tokens that end the output; None: the model's own."""
    pad_id: int
    stop_words: tuple[tuple[int, ...], ...]
    bad_words: tuple[tuple[int, ...], ...]


def asks_for_tokens(tensors: Tensors, wanted: frozenset[str], all_outputs: frozenset[str]) -> bool:
    """Whether a request wants the token face's outputs. Raises InvalidRequestError when it names outputs of both faces.

    `wanted`: the outputs that it asks for; a client that names none asks for all, and then its inputs tell.
    """
    if wanted >= all_outputs:
        return any(name in tensors for name in TOKEN_INPUT_NAMES)
    tokens = wanted & TOKEN_OUTPUT_NAMES
    if tokens and "text_output" in wanted:
        raise InvalidRequestError(f"ask for text_output or for {', '.join(sorted(tokens))}, not for both")
    return bool(tokens)


def read_token_inputs(tensors: Tensors, vocab_size: int) -> TokenInputs:
    """Raises InvalidRequestError for values that cannot be served, and for what is malformed."""
    if "beam_width" in tensors and (width := number(tensors, "beam_width")) != 1:
        raise InvalidRequestError(f'input "beam_width" must be 1: there is no beam search, {width} came')
    for name in _NOT_RETURNED:
        if flag(tensors, name, False):
            raise InvalidRequestError(f'input "{name}" must be false: logits are not returned')
    end_ids: tuple[int, ...] | None = None
    if "end_id" in tensors:
        end_id = int(number(tensors, "end_id"))
        if not _NO_END <= end_id < vocab_size:
            raise InvalidRequestError(
                f'input "end_id" must be a token id in [0, {vocab_size - 1}] or -1 for none, {end_id} came'
            )
        end_ids = () if end_id == _NO_END else (end_id,)

    def words(name: str) -> tuple[tuple[int, ...], ...]:
        return unpack_words(name, tensors[name], vocab_size) if name in tensors else ()

    return TokenInputs(
        sampling=_read_sampling(tensors),
        end_ids=end_ids,
        pad_id=int(number(tensors, "pad_id")) if "pad_id" in tensors else _PADDING,
        stop_words=words("stop_words_list"),
        bad_words=words("bad_words_list"),
    )


def _read_sampling(tensors: Tensors) -> dict[str, object]:
    values = sampling_values(tensors, _SAMPLING)
    names = {parameter: name for name, parameter in _SAMPLING.items()}
    for parameter in SAMPLING_PARAMETERS:
        if parameter.name in values:
            try:
                parameter.read(values[parameter.name])
            except InvalidRequestError as error:
                raise InvalidRequestError(f'input "{names[parameter.name]}": {error}') from None
    return values


def read_input_ids(tensors: Tensors) -> np.ndarray:
    """int32 [n]: `input_ids`, as far as `input_lengths` says."""
    ids = tensors["input_ids"].reshape(-1).astype(np.int32)
    if "input_lengths" in tensors:
        length = int(number(tensors, "input_lengths"))
        if not 0 <= length <= len(ids):
            raise InvalidRequestError(
                f'input "input_lengths" must be at most the {len(ids)} ids of "input_ids" that came, got {length}'
            )
        ids = ids[:length]
    return ids
