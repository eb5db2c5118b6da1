"""What a model of kind "tokenizer" does: a request in the words of TensorRT-LLM's ensembles -> inputs of a token face.

Text or chat messages become ids. Everything that is a sampling parameter goes into one JSON text, stop and bad words
as strings: a list of ids could not say every way in which a model may write a word. For models that take only ids, the
words also come in TensorRT-LLM's layout. Values are checked by the model that uses them. Does not know pb_utils.
"""

from __future__ import annotations

import json
from collections.abc import Collection

import numpy as np

from python_llm.engine.sampling_params import tokenize_bad_words
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.prompt import encode_prompt, given_prompt
from python_llm.triton_io.tensor_values import Tensors, bytes_array, flag, sampling_values, scalar, strings
from python_llm.triton_io.word_lists import pack_words

_SAMPLING = {
    "max_tokens": "max_tokens",
    "min_length": "min_tokens",
    "min_tokens": "min_tokens",
    "top_k": "top_k",
    "top_p": "top_p",
    "temperature": "temperature",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "random_seed": "seed",
    "seed": "seed",
}
"""Input -> the sampling parameter that it is."""

_HANDED_ON = {
    "end_id": "end_id",
    "pad_id": "pad_id",
    "beam_width": "beam_width",
    "stream": "streaming",
    "exclude_input_in_output": "exclude_input_in_output",
    "return_log_probs": "return_log_probs",
    "return_num_input_tokens": "return_num_input_tokens",
    "return_num_output_tokens": "return_num_output_tokens",
    "stop": "stop",
}
"""Input [1, 1] -> output [1] of the same value; one that does not come does not go on."""


def tokenize(
    tensors: Tensors, tokenizer: Tokenizer, max_model_len: int | None, wanted: Collection[str]
) -> dict[str, np.ndarray]:
    """Output name -> array, of at least those outputs that are `wanted`. Raises InvalidRequestError.

    `max_model_len`: tokens; a longer prompt may be refused without being tokenised. None: no limit.
    """
    outputs = {
        output: np.array([scalar(tensors, name)], dtype=tensors[name].dtype)
        for name, output in _HANDED_ON.items()
        if name in tensors
    }
    if flag(tensors, "stop", False):
        return {"stop": outputs["stop"]}
    ids, _ = encode_prompt(tensors, given_prompt(tensors, ("text_input", "messages")), tokenizer, max_model_len)
    words = {name: strings(tensors, name) if name in tensors else [] for name in ("stop_words", "bad_words")}
    sampling = sampling_values(tensors, _SAMPLING)
    if words["stop_words"]:
        sampling["stop"] = words["stop_words"]
    if words["bad_words"]:
        sampling["bad_words"] = words["bad_words"]
    outputs["input_ids"] = ids
    outputs["input_lengths"] = np.array([len(ids)], dtype=np.int32)
    outputs["sampling_parameters"] = bytes_array([json.dumps(sampling)])
    if "stop_words_list" in wanted:
        outputs["stop_words_list"] = pack_words([_encode(tokenizer, word) for word in words["stop_words"]])
    if "bad_words_list" in wanted:
        forms = tokenize_bad_words(words["bad_words"], lambda word: _encode(tokenizer, word))
        outputs["bad_words_list"] = pack_words(forms)
    return outputs


def _encode(tokenizer: Tokenizer, word: str) -> list[int]:
    return tokenizer.encode(word, add_special_tokens=False)
