"""What a model of kind "detokenizer" does: the ids of a token face's response -> text, without memory of earlier ones.

Does not know pb_utils, requests, or the model that made the ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from python_llm.engine.sampling_params import SAMPLING_PARAMETERS
from python_llm.errors import InvalidRequestError
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.tensor_values import Tensors, bytes_array

_SKIP_SPECIAL_TOKENS = next(entry for entry in SAMPLING_PARAMETERS if entry.name == "skip_special_tokens")


def detokenize(tensors: Tensors, parameters: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """`text_output`, one text for each row of `output_ids`, int32 [1, rows, n].

    `sequence_length`, int32 [1, rows]: how many ids of each row count (all). `context_ids`, int32 [1, rows, k]: ids
    before these, whose text was given before; without any, the text stands alone. `text_length`, int32 [1, rows]: how
    many characters of the text to give (all). The request parameter `skip_special_tokens` is the language model's.
    Raises InvalidRequestError.
    """
    ids = tensors["output_ids"]
    if ids.ndim != 3 or ids.shape[0] != 1:
        raise InvalidRequestError(f'input "output_ids" must have the shape [1, rows, n], {list(ids.shape)} came')
    _, num_rows, length = ids.shape
    lengths = _per_row(tensors, "sequence_length", num_rows, length)
    characters = _per_row(tensors, "text_length", num_rows, None)
    context = tensors.get("context_ids")
    if context is not None and (context.ndim != 3 or context.shape[:2] != ids.shape[:2]):
        raise InvalidRequestError(
            f'input "context_ids" must have the shape [1, {num_rows}, k], {list(context.shape)} came'
        )
    continues = context is not None and context.shape[2] > 0
    skip = bool(_SKIP_SPECIAL_TOKENS.read(parameters.get("skip_special_tokens")))
    texts = [
        tokenizer.decode(row[:count].tolist(), skip_special_tokens=skip, continues=continues)[:shown]
        for row, count, shown in zip(ids[0], lengths, characters, strict=True)
    ]
    return {"text_output": bytes_array(texts)}


def _per_row(tensors: Tensors, name: str, num_rows: int, limit: int | None) -> list[int | None]:
    if name not in tensors:
        return [None] * num_rows
    values = tensors[name].reshape(-1).tolist()
    if len(values) != num_rows or any(value < 0 or (limit is not None and value > limit) for value in values):
        allowed = "of at least 0" if limit is None else f"in [0, {limit}]"
        raise InvalidRequestError(f'input "{name}" must hold {num_rows} numbers {allowed}, {values} came')
    return values
