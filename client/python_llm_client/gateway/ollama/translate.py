"""Ollama's request bodies -> requests of the text face. Does not know HTTP or servers."""

from __future__ import annotations

from typing import Any

from python_llm_client.gateway.errors import ApiError
from python_llm_client.gateway.ollama.schema import ChatRequest, GenerateRequest, Options
from python_llm_client.gateway.servers import ServedModel
from python_llm_client.request import GenerationRequest

_DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Ollama's own."""
_NAMES = {"repeat_penalty": "repetition_penalty"}
"""Options that are called otherwise here."""


def model_name(name: str) -> str:
    """Ollama's clients add the tag `:latest` to a name without one; models have no tags here."""
    return name.removesuffix(":latest")


def chat_request(body: ChatRequest, model: ServedModel) -> GenerationRequest:
    """Raises ApiError when the model cannot chat."""
    messages = [message.model_dump(exclude_none=True) for message in body.messages]
    return _request(model, body.options, body.stream, messages=messages)


def generate_request(body: GenerateRequest, model: ServedModel) -> GenerationRequest:
    """Raises ApiError when the model has no chat template to put the prompt into, and the prompt is not raw."""
    prompt = body.prompt or ""
    if body.raw:
        return _request(model, body.options, body.stream, prompt=prompt)
    messages = [{"role": "system", "content": body.system}] if body.system else []
    return _request(model, body.options, body.stream, messages=[*messages, {"role": "user", "content": prompt}])


def _request(model: ServedModel, options: Options | None, stream: bool | None, **prompt: Any) -> GenerationRequest:
    if "messages" in prompt and "messages" not in model.inputs:
        raise ApiError(400, f"the model {model.name} takes no chat messages; use /api/generate with raw: true")
    return GenerationRequest(
        model.name,
        **prompt,
        sampling=_sampling(options or Options()),
        stream=stream is not False,
        stats="return_stats" in model.inputs,
    )


def _sampling(options: Options) -> dict[str, Any]:
    given = options.model_dump(exclude_none=True)
    num_predict = given.pop("num_predict", -1)
    sampling = {**_DEFAULTS, **{_NAMES.get(name, name): value for name, value in given.items()}}
    # -1: until it ends by itself; -2: until the context is full. Here neither goes beyond the context.
    sampling["max_tokens"] = None if num_predict < 0 else num_predict
    return sampling
