"""Turns chat messages into a prompt, by the model's own Jinja template.

The environment is the one that templates on the Hugging Face hub are written for. Templates come with the model, so
they run in a sandbox.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from python_llm.errors import InvalidRequestError
from python_llm.tokenization.chat_messages import checked_messages, checked_tools
from python_llm.tokenization.tokenizer import Tokenizer

_OURS = frozenset({"messages", "tools", "add_generation_prompt"})


def render_chat(
    tokenizer: Tokenizer,
    messages: Any,
    tools: Any = None,
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The prompt for `messages`, ready for `encode(..., add_special_tokens=False)`: a template writes BOS itself.

    `messages`: non-empty list of {"role": str, "content": str | list of text parts}; `tools`: list of objects (JSON
    schemas); `variables`: further names that the template reads, such as enable_thinking. InvalidRequestError when the
    model has no usable template, or the messages are malformed or refused by the template (with the template's words).
    """
    source = tokenizer.chat_template
    if tools and tokenizer.tool_template is not None:
        source = tokenizer.tool_template
    if source is None and tokenizer.tool_template is not None:
        raise InvalidRequestError("This model's only chat template is for messages with tools: send tools too.")
    if source is None:
        raise InvalidRequestError("This model has no chat template, so it cannot take messages: send a text prompt.")
    variables = variables or {}
    if taken := sorted(_OURS & variables.keys()):
        raise InvalidRequestError(f"Template variables cannot be called {', '.join(taken)}.")
    checked, checked_tool_list = checked_messages(messages), checked_tools(tools)
    try:
        template = _compiled(source)
    except jinja2.TemplateError as error:
        raise InvalidRequestError(f"This model's chat template is not valid: {error}.") from None
    try:
        return template.render(
            {
                **tokenizer.special_tokens,
                "documents": None,
                **variables,
                "messages": checked,
                "tools": checked_tool_list,
                "add_generation_prompt": add_generation_prompt,
            }
        )
    except _RefusedByTemplate as error:
        raise InvalidRequestError(f"The model's chat template refuses these messages: {error}") from None
    except Exception as error:  # a template can fail in any way on messages it was not written for
        raise InvalidRequestError(
            f"The model's chat template cannot render these messages: {type(error).__name__}: {error}"
        ) from None


class _RefusedByTemplate(Exception):
    """The template called raise_exception."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; when serving, its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own protocol)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedByTemplate(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes HTML, which a model would read as text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


@functools.cache
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)
