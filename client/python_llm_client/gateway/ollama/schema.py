"""Request bodies of Ollama's API, as far as they can be honoured, and what lies beyond: refused with a reason."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from python_llm_client.gateway.strict import Messages, Parts, StrictBody, Unsupported, Words, unsupported

_NO_STRUCTURE = "structured output needs a model that can be held to a grammar, and none of this server's can yet"
_NO_TOOLS = "tool calling needs a model that can be held to a grammar, and none of this server's can yet"
_NO_IMAGES = "the models of this server read and write text only"
_NO_CUTTING = "a text is never cut: what does not fit is refused"
_NO_MIROSTAT = "there is no such way of sampling here"

LOADER_OPTIONS = (
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "vocab_only",
    "f16_kv",
    "numa",
)
"""How Ollama's loader is to load a model. Here that is settled when the server starts, so they have nothing to say."""


class Options(StrictBody):
    """`options`: sampling. Ollama's defaults for what is left out."""

    num_predict: int | None = Field(default=None, ge=-2)
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: int | None = Field(default=None, ge=-1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stop: str | Words | None = None
    repeat_penalty: float | None = Field(default=None, gt=0)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)

    UNSUPPORTED: ClassVar = {
        "mirostat": Unsupported(_NO_MIROSTAT, 0),
        "mirostat_eta": Unsupported(_NO_MIROSTAT, 0.1),
        "mirostat_tau": Unsupported(_NO_MIROSTAT, 5.0, 5),
        "tfs_z": Unsupported("there is no tail-free sampling here", 1, 1.0),
        "typical_p": Unsupported("there is no typical sampling here", 1, 1.0),
        "repeat_last_n": Unsupported("penalties look at the whole text", -1),
        "num_keep": Unsupported(_NO_CUTTING, 0),
        "penalize_newline": Unsupported("penalties treat a line's end as any other token", True),
    }

    @model_validator(mode="before")
    @classmethod
    def _leave_loading_out(cls, options: Any) -> Any:
        if not isinstance(options, dict):
            return options
        return {name: value for name, value in options.items() if name not in LOADER_OPTIONS}


class _Generation(StrictBody):
    model: str
    stream: bool | None = None
    options: Options | None = None
    keep_alive: str | int | float | None = None
    """Models stay loaded."""


class OllamaMessage(StrictBody):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: Parts[dict[str, Any]] | None = None
    tool_name: str | None = None

    UNSUPPORTED: ClassVar = {"images": Unsupported(_NO_IMAGES, []), "thinking": Unsupported("it is not kept", "")}


class ChatRequest(_Generation):
    """Body of `POST /api/chat`."""

    messages: Messages[OllamaMessage] = Field(default_factory=list)

    UNSUPPORTED: ClassVar = {
        "format": Unsupported(_NO_STRUCTURE, ""),
        "tools": Unsupported(_NO_TOOLS, []),
        "think": Unsupported("the models of this server have no such setting", False),
        "logprobs": Unsupported("use /v1/chat/completions", False),
        "top_logprobs": Unsupported("use /v1/chat/completions", 0),
        "truncate": Unsupported(_NO_CUTTING, False),
        "shift": Unsupported(_NO_CUTTING, False),
    }


class GenerateRequest(_Generation):
    """Body of `POST /api/generate`."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None

    UNSUPPORTED: ClassVar = {
        "format": Unsupported(_NO_STRUCTURE, ""),
        "suffix": Unsupported("the models of this server only continue a text", ""),
        "images": Unsupported(_NO_IMAGES, []),
        "template": Unsupported("the model's own template is used; raw: true uses none", ""),
        "context": Unsupported("send the conversation to /api/chat instead", []),
        "think": Unsupported("the models of this server have no such setting", False),
        "logprobs": Unsupported("use /v1/completions", False),
        "top_logprobs": Unsupported("use /v1/completions", 0),
        "truncate": Unsupported(_NO_CUTTING, False),
        "shift": Unsupported(_NO_CUTTING, False),
    }

    @model_validator(mode="after")
    def _check_raw(self) -> GenerateRequest:
        if self.raw and self.system:
            raise unsupported("system", "not with raw: true, which sends the prompt as it is")
        return self


class ShowRequest(StrictBody):
    """Body of `POST /api/show`."""

    model: str | None = None
    name: str | None = None
    """Its older name."""
    verbose: bool | None = None
