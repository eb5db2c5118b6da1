"""One request of the text face (docs/text-face.md) as plain data, and as Triton's input tensors.

Does not know connections. Models of Triton's vLLM backend take the same tensors, but `messages`, `tools`,
`input_ids` and `return_stats`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from python_llm_client.failures import InvalidRequestError

Message = Mapping[str, Any]
"""`{"role": "user", "content": "..."}`"""

_TRUE = np.array([True])


@dataclass(frozen=True)
class GenerationRequest:
    """What to generate. Exactly one of `prompt`, `messages` and `input_ids` is given; ValueError otherwise."""

    model: str
    prompt: str | None = None
    messages: Sequence[Message] | None = None
    """The server applies the model's chat template."""
    input_ids: Sequence[int] | None = None
    """The prompt as token ids."""
    tools: Sequence[Mapping[str, Any]] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """docs/sampling-parameters.md. `logprobs` here asks for them to be returned, too."""
    stream: bool = False
    cumulative_logprob: bool = False
    stats: bool = False

    def __post_init__(self) -> None:
        given = [name for name in ("prompt", "messages", "input_ids") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of prompt, messages and input_ids, not {' and '.join(given) or 'none'}")

    @property
    def num_sequences(self) -> int:
        """As far as the request itself is right about it; the server checks."""
        n = self.sampling.get("n", 1)
        return n if isinstance(n, int) and n > 0 else 1

    @property
    def num_top_logprobs(self) -> int:
        top = self.sampling.get("logprobs")
        return top if isinstance(top, int) and top > 0 else 0

    def tensors(self) -> list[triton.InferInput]:
        """Raises InvalidRequestError for half of a surrogate pair in the prompt, which UTF-8 cannot say."""
        inputs = [_text("sampling_parameters", json.dumps(dict(self.sampling)))]
        if self.prompt is not None:
            inputs.append(_text("text_input", self.prompt))
        elif self.messages is not None:
            inputs.append(_text("messages", json.dumps(list(self.messages))))
        else:
            inputs.append(_input("input_ids", "INT32", np.array(self.input_ids, dtype=np.int32)))
        if self.tools is not None:
            inputs.append(_text("tools", json.dumps(list(self.tools))))
        flags = {
            "stream": self.stream,
            # The whole answer would otherwise begin with the prompt.
            "exclude_input_in_output": not self.stream,
            "return_finish_reason": True,
            "return_num_input_tokens": True,
            "return_num_output_tokens": True,
            "return_logprobs": self.sampling.get("logprobs") is not None,
            "return_cumulative_logprob": self.cumulative_logprob,
            "return_stats": self.stats,
        }
        inputs += [_input(name, "BOOL", _TRUE) for name, wanted in flags.items() if wanted]
        return inputs


def _text(name: str, value: str) -> triton.InferInput:
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} is no text: {error.reason} at {error.start}", "INVALID_ARGUMENT") from None
    return _input(name, "BYTES", np.array([encoded], dtype=np.object_))


def _input(name: str, kind: str, array: np.ndarray) -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor
