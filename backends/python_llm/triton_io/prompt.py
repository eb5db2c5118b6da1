"""A prompt as a user gives it -> token ids: plain text, or chat messages by the model's own template.

Does not know who asks for the ids, nor ids that come ready-made.
"""

from __future__ import annotations

import numpy as np

from python_llm.errors import InvalidRequestError
from python_llm.tokenization.chat import render_chat
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.tensor_values import Tensors, json_value, string


def given_prompt(tensors: Tensors, names: tuple[str, ...]) -> str:
    """Which of the inputs `names` brings the prompt. Raises InvalidRequestError unless it is exactly one."""
    given = [name for name in names if name in tensors]
    if len(given) != 1:
        came = " and ".join(given) if given else "none"
        raise InvalidRequestError(f"exactly one of the inputs {', '.join(names)} is expected, {came} came")
    if "tools" in tensors and given != ["messages"]:
        raise InvalidRequestError(f'input "tools" goes with the input "messages", not with "{given[0]}"')
    return given[0]


def encode_prompt(
    tensors: Tensors, name: str, tokenizer: Tokenizer, max_model_len: int | None
) -> tuple[np.ndarray, str]:
    """Token ids (int32 [n]) and text of the prompt in the input `name`, "text_input" or "messages".

    `max_model_len`: tokens; a text that is far beyond it is refused without being tokenised.
    """
    if name == "text_input":
        text = string(tensors, name)
    else:
        tools = json_value(tensors, "tools") if "tools" in tensors else None
        text = render_chat(tokenizer, json_value(tensors, "messages"), tools)
    if max_model_len is not None:
        _check_length(text, tokenizer, max_model_len)
    # A chat template writes the special tokens itself.
    ids = tokenizer.encode(text, add_special_tokens=name == "text_input")
    return np.array(ids, dtype=np.int32), text


def _check_length(text: str, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Tokenising 10 MB takes seconds, and every other request of the model would wait for it."""
    if len(text) > max_model_len and len(text) > (limit := max_model_len * tokenizer.longest_token):
        raise InvalidRequestError(
            f"the prompt has {len(text)} characters; this model takes at most {max_model_len - 1} tokens "
            f"(max_model_len {max_model_len}), which never hold more than {limit} characters"
        )
