"""Request bodies of OpenAI's API, as far as they can be honoured, and what lies beyond: refused with a reason.

vLLM's additions (top_k, min_p, ...) are taken too: clients send them as `extra_body`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from python_llm_client.gateway.strict import StrictBody, Unsupported, inconsistent, unsupported

_NO_TOOLS = "tool calling needs a model that can be held to a grammar, and none of this server's can yet"
_NO_STRUCTURE = "structured output needs a model that can be held to a grammar, and none of this server's can yet"
_NO_AUDIO = "the models of this server read and write text only"

MAX_PROMPTS = 64
"""Of one completion request."""
_MAX_LIST = 1 << 20

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class TextPart(StrictBody):
    """The one kind of content part there is."""

    type: Literal["text"]
    text: str


class ChatMessage(StrictBody):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
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
    stop: str | list[str] | None = None
    logit_bias: dict[str, Bias] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Tell nothing about the answer: taken and left alone.
    user: str | None = None
    metadata: dict[str, str] | None = None
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
    stop_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
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

    messages: list[ChatMessage] = Field(min_length=1)
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

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = Field(default=None, ge=1, le=64)

    UNSUPPORTED: ClassVar = {
        "suffix": Unsupported("the models of this server only continue a text"),
        "prompt_logprobs": Unsupported("ask the model itself, over Triton's own API"),
    }

    @model_validator(mode="after")
    def _check_pairs(self) -> CompletionRequest:
        if isinstance(self.prompt, list) and not 1 <= len(self.prompt) <= _MAX_LIST:
            raise inconsistent("prompt", f"prompt must have 1 to {_MAX_LIST} entries, not {len(self.prompt)}")
        if isinstance(self.prompt, list) and isinstance(self.prompt[0], (str, list)) and len(self.prompt) > MAX_PROMPTS:
            raise inconsistent("prompt", f"at most {MAX_PROMPTS} prompts go into one request, {len(self.prompt)} came")
        if self.echo and self.logprobs is not None:
            raise unsupported("echo", "not together with logprobs: the log-probabilities of the prompt are not given")
        if self.echo and not isinstance(self.prompt, str) and not isinstance(self.prompt[0], str):
            raise unsupported("echo", "not with token ids: the gateway has no tokenizer that could write them out")
        if self.best_of is not None:
            if self.best_of < (self.n or 1):
                raise inconsistent("best_of", f"best_of ({self.best_of}) must be at least n ({self.n or 1})")
            if self.stream and self.best_of > (self.n or 1):
                raise inconsistent("best_of", "best_of above n cannot be streamed: the best are known at the end only")
        return self
