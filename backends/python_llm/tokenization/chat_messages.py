"""Checks chat messages and brings them into the one shape that chat templates are written for.

Does not know any template.
"""

from __future__ import annotations

import json
from typing import Any

from python_llm.errors import InvalidRequestError


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages whose `content` is a string or, beside tool calls, absent. Raises InvalidRequestError.

    The texts of a list of parts are joined by newlines. A tool call's `arguments` become an object.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidRequestError(f"messages must be a non-empty list of objects, got {_shown(messages)}.")
    return [_checked_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def checked_tools(tools: Any) -> list[dict[str, Any]] | None:
    """A list of objects, or None for none. Raises InvalidRequestError."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidRequestError(f"tools must be a list of objects, got {_shown(tools)}.")
    return tools or None


def _checked_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequestError(f"{where} must be an object with a role and content, got {_shown(message)}.")
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequestError(f"{where}.role must be a string, got {_shown(role)}.")
    # Templates test whether a key is there, and would print a null as "None".
    checked = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in checked:
        checked["tool_calls"] = _checked_calls(checked["tool_calls"], f"{where}.tool_calls")
    content = checked.get("content")
    if isinstance(content, list):
        checked["content"] = "\n".join(_part_text(part, f"{where}.content[{at}]") for at, part in enumerate(content))
    elif not isinstance(content, str) and not (content is None and checked.get("tool_calls")):
        raise InvalidRequestError(
            f"{where}.content must be a string or a list of text parts (it may be null beside tool_calls), "
            f"got {_shown(content)}."
        )
    return checked


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, dict) else part
        raise InvalidRequestError(f"{where}: only parts of type 'text' are supported, got {_shown(kind)}.")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a string, got {_shown(text)}.")
    return text


def _checked_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequestError(f"{where} must be a list of objects, got {_shown(calls)}.")
    return [_with_parsed_arguments(call, f"{where}[{at}]") for at, call in enumerate(calls)]


def _with_parsed_arguments(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    # On the wire arguments are JSON in a string; templates print them as JSON themselves.
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        raise InvalidRequestError(f"{where}.function.arguments must be JSON, got {_shown(arguments)}.") from None
    return {**call, "function": {**function, "arguments": parsed}}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
