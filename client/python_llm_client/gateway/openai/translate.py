"""OpenAI's request bodies -> requests of the text face. Does not know HTTP or servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from python_llm_client.gateway.errors import ApiError
from python_llm_client.gateway.openai.schema import ChatCompletionRequest, ChatMessage, CompletionRequest, Generation
from python_llm_client.gateway.servers import ServedModel
from python_llm_client.request import GenerationRequest

_SAME_NAME = (
    "n",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "bad_words",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)
"""Parameters that mean here what they mean there; what is left out has the same default."""
_DEFAULT_COMPLETION_TOKENS = 16


def chat_request(body: ChatCompletionRequest, model: ServedModel) -> GenerationRequest:
    """Raises ApiError when the model cannot chat."""
    if "messages" not in model.inputs:
        raise ApiError(400, f"the model {model.name} takes no chat messages; use /v1/completions", param="model")
    sampling = _sampling(body)
    # null: as many as fit. OpenAI's chat has no other limit by default.
    sampling["max_tokens"] = body.max_completion_tokens or body.max_tokens
    if body.logprobs:
        sampling["logprobs"] = body.top_logprobs or 0
    return GenerationRequest(
        model.name,
        messages=[_message(message) for message in body.messages],
        sampling=sampling,
        stream=bool(body.stream),
        stats="return_stats" in model.inputs,
    )


def completion_requests(body: CompletionRequest, model: ServedModel) -> list[GenerationRequest]:
    """One for each prompt."""
    sampling = _sampling(body)
    sampling["max_tokens"] = body.max_tokens or _DEFAULT_COMPLETION_TOKENS
    if body.logprobs is not None:
        sampling["logprobs"] = body.logprobs
    num_candidates = body.best_of or body.n or 1
    sampling["n"] = num_candidates
    prompts = _prompts(body.prompt)
    if "input_ids" not in model.inputs and "input_ids" in prompts[0]:
        raise ApiError(400, f"the model {model.name} takes no token ids: send the prompt as text", param="prompt")
    return [
        GenerationRequest(
            model.name,
            **prompt,
            sampling=sampling,
            stream=bool(body.stream),
            cumulative_logprob=num_candidates > (body.n or 1),
            stats="return_stats" in model.inputs,
        )
        for prompt in prompts
    ]


def echoes(body: CompletionRequest) -> list[str]:
    """What to put before the text of each prompt's answers."""
    prompts = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if isinstance(prompts[0], int):
        return [""]
    return [str(prompt) if body.echo else "" for prompt in prompts]


def _sampling(body: Generation) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in _SAME_NAME}
    return {name: value for name, value in given.items() if value is not None}


def _prompts(prompt: str | Sequence[Any]) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"prompt": prompt}]
    if isinstance(prompt[0], int):
        return [{"input_ids": prompt}]
    return [{"prompt": one} if isinstance(one, str) else {"input_ids": one} for one in prompt]


def _message(message: ChatMessage) -> dict[str, Any]:
    sent = message.model_dump(exclude_none=True)
    # OpenAI's newer name of the same thing, which no chat template knows.
    return {**sent, "role": "system" if message.role == "developer" else message.role}
