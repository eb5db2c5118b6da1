"""OpenAI's response bodies as pydantic models: for the OpenAPI document and the tests.

Answers are built without them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PromptTokensDetails(_Body):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class UsageBody(_Body):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None


class LogprobToken(_Body):
    """One token."""

    token: str
    logprob: float
    bytes: list[int] | None


class LogprobEntry(LogprobToken):
    """A generated token and its likeliest alternatives."""

    top_logprobs: list[LogprobToken]


class ChatLogprobs(_Body):
    """Of one choice."""

    content: list[LogprobEntry]
    refusal: None


class AssistantMessage(_Body):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Body):
    """One of n answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(_Body):
    """Answer of `POST /v1/chat/completions` without a stream."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class CompletionLogprobs(_Body):
    """Of one choice."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(_Body):
    """One of n answers to one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str


class Completion(_Body):
    """Answer of `POST /v1/completions` without a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody


class ModelBody(_Body):
    """One model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(_Body):
    """Answer of `GET /v1/models`."""

    object: Literal["list"]
    data: list[ModelBody]


class ErrorDetail(_Body):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(_Body):
    """Every error of the API."""

    error: ErrorDetail
