"""Request bodies of OpenAI's API, as far as they can be honoured, and what lies beyond: refused with a reason.

vLLM's additions (top_k, min_p, ...) are taken too: clients send them as `extra_body`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from python_llm_client.gateway.strict import (
    MAX_PARTS,
    Entries,
    Messages,
    Parts,
    StrictBody,
    Unsupported,
    Words,
    inconsistent,
    unsupported,
)

_NO_TOOLS = "tool calling needs a model that can be held to a grammar, and none of this server's can yet"
_NO_STRUCTURE = "structured output needs a model that can be held to a grammar, and none of this server's can yet"
_NO_AUDIO = "the models of this server read and write text only"

MAX_PROMPTS = 64
"""Of one completion request."""
_MAX_SEQUENCES = 64
"""Of one request, over all its prompts: each is work of its own for the model."""

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=1 << 20)]
Bias = Annotated[float, Field(ge=-100, le=100)]


def _check_number(prompt: Any) -> Any:
    if not isinstance(prompt, list):
        return prompt
    if not prompt:
        raise inconsistent("prompt", "prompt must have at least 1 entry")
    if isinstance(prompt[0], (str, list)) and len(prompt) > MAX_PROMPTS:
        raise inconsistent("prompt", f"at most {MAX_PROMPTS} prompts go into one request, {len(prompt)} came")
    return prompt


def _kind(prompt: Any) -> str:
    """By its first entry, so that the others are checked once only, and one fault is told as one."""
    if not isinstance(prompt, list):
        return "str"
    first = prompt[0] if prompt else None
    if isinstance(first, list):
        return "list[list[int]]"
    return "list[int]" if isinstance(first, (int, float)) else "list[str]"


Prompt = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[Annotated[list[str], Field(fail_fast=True)], Tag("list[str]")]
    | Annotated[TokenIds, Tag("list[int]")]
    | Annotated[Annotated[list[TokenIds], Field(fail_fast=True)], Tag("list[list[int]]")],
    Discriminator(_kind),
    BeforeValidator(_check_number),
]


class TextPart(StrictBody):
    """The one kind of content part there is."""

    type: Literal["text"]
    text: str


class ChatMessage(StrictBody):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Parts[TextPart] | None = None
    name: str | None = None
    tool_calls: Parts[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    # What OpenAI's answers have and clients send back with the history.
    UNSUPPORTED: ClassVar = {
        "refusal": Unsupported("a message is either said or not"),
        "annotations": Unsupported("the models of this server search nothing", []),
        "audio": Unsupported(_NO_AUDIO),
        "function_call": Unsupported("use tool_calls"),
    }

    @model_validator(mode="before")
    @classmethod
    def _check_parts(cls, message: Any) -> Any:
        parts = message.get("content") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                raise unsupported("messages", f"a content part of type {kind[:40]!r}: {_NO_AUDIO}")
        return message


def _check_number_of_parts(messages: Any) -> Any:
    if not isinstance(messages, list):
        return messages
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    number = sum(len(content) for content in contents if isinstance(content, list))
    if number > MAX_PARTS:
        raise inconsistent("messages", f"the messages have {number} content parts; at most {MAX_PARTS} are taken")
    return messages


class StreamOptions(StrictBody):
    """`include_usage`: the last chunk but `[DONE]` tells the tokens."""

    include_usage: bool | None = None

    UNSUPPORTED: ClassVar = {"include_obfuscation": Unsupported("chunks are not padded", False)}


class Generation(StrictBody):
    """What both kinds of requests have."""

    model: str
    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=64)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: str | Words | None = None
    logit_bias: Entries[Bias] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Tell nothing about the answer: taken and left alone.
    user: str | None = None
    metadata: Entries[str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # vLLM's.
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    min_tokens: int | None = Field(default=None, ge=0)
    stop_token_ids: TokenIds | None = None
    bad_words: Words | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> Generation:
        if self.stream_options is not None and not self.stream:
            raise inconsistent("stream_options", "stream_options goes with stream: true only")
        return self


class ChatCompletionRequest(Generation):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[Messages[ChatMessage], BeforeValidator(_check_number_of_parts)] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)

    UNSUPPORTED: ClassVar = {
        "response_format": Unsupported(_NO_STRUCTURE, {"type": "text"}),
        "tools": Unsupported(_NO_TOOLS, []),
        "tool_choice": Unsupported(_NO_TOOLS, "none", "auto"),
        "parallel_tool_calls": Unsupported(_NO_TOOLS, True, False),
        "functions": Unsupported(_NO_TOOLS, []),
        "function_call": Unsupported(_NO_TOOLS, "none", "auto"),
        "modalities": Unsupported(_NO_AUDIO, ["text"]),
        "audio": Unsupported(_NO_AUDIO),
        "prediction": Unsupported("predicted outputs are not used"),
        "reasoning_effort": Unsupported("the models of this server have no such setting", "none"),
        "verbosity": Unsupported("the models of this server have no such setting"),
        "web_search_options": Unsupported("the models of this server search nothing"),
    }

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise inconsistent("top_logprobs", "top_logprobs goes with logprobs: true only")
        limits = (self.max_tokens, self.max_completion_tokens)
        if None not in limits and self.max_tokens != self.max_completion_tokens:
            raise inconsistent(
                "max_tokens", f"max_tokens ({limits[0]}) and max_completion_tokens ({limits[1]}) differ: give one"
            )
        return self


class CompletionRequest(Generation):
    """Body of `POST /v1/completions`."""

    prompt: Prompt
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = Field(default=None, ge=1, le=64)

    UNSUPPORTED: ClassVar = {
        "suffix": Unsupported("the models of this server only continue a text"),
        "prompt_logprobs": Unsupported("ask the model itself, over Triton's own API"),
    }

    @model_validator(mode="after")
    def _check_pairs(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise unsupported("echo", "not together with logprobs: the log-probabilities of the prompt are not given")
        if self.echo and not isinstance(self.prompt, str) and not isinstance(self.prompt[0], str):
            raise unsupported("echo", "not with token ids: the gateway has no tokenizer that could write them out")
        if self.best_of is not None:
            if self.best_of < (self.n or 1):
                raise inconsistent("best_of", f"best_of ({self.best_of}) must be at least n ({self.n or 1})")
            if self.stream and self.best_of > (self.n or 1):
                raise inconsistent("best_of", "best_of above n cannot be streamed: the best are known at the end only")
        num_prompts = len(self.prompt) if isinstance(self.prompt, list) and not isinstance(self.prompt[0], int) else 1
        num_each = self.best_of or self.n or 1
        if num_prompts * num_each > _MAX_SEQUENCES:
            name = "n" if self.best_of is None else "best_of"
            raise inconsistent(
                name,
                f"{num_prompts} prompts with {name} {num_each} make {num_prompts * num_each} sequences; "
                f"at most {_MAX_SEQUENCES} go into one request",
            )
        return self
