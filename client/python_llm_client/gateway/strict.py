"""The base of all request bodies: what is unknown is refused by name, what is known and cannot be honoured says why."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

_LONGEST_SHOWN = 80
T = TypeVar("T")

MAX_PARTS = 1 << 14
"""Of all messages of a request together, too: each is checked for itself."""

# Lists and objects whose first wrong entry ends the check: an error for each of a million would hold everybody up.
Messages = Annotated[list[T], Field(fail_fast=True, max_length=1 << 14)]
Parts = Annotated[list[T], Field(fail_fast=True, max_length=MAX_PARTS)]
"""Of one message: content parts, calls of tools."""
Words = Annotated[list[str], Field(fail_fast=True, max_length=1024)]
"""The model itself takes fewer, and says how many."""
Entries = Annotated[dict[str, T], Field(fail_fast=True)]


class Unsupported:
    """A parameter that the API has and this server cannot honour.

    `harmless`: the values that ask for nothing. The parameter may come with one of these.
    """

    def __init__(self, reason: str, *harmless: object) -> None:
        self.reason = reason
        self.harmless = (None, *harmless)


class StrictBody(BaseModel):
    """`UNSUPPORTED` is the list to shorten when a model learns something: the parameter then becomes a field."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    UNSUPPORTED: ClassVar[Mapping[str, Unsupported]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        kept = {}
        for name, value in body.items():
            if name in cls.UNSUPPORTED:
                if not any(_same(value, harmless) for harmless in cls.UNSUPPORTED[name].harmless):
                    raise unsupported(name, cls.UNSUPPORTED[name].reason)
            elif name in cls.model_fields:
                kept[name] = value
            else:
                raise _unknown(name, [*cls.model_fields, *cls.UNSUPPORTED])
        return kept


def _same(value: object, other: object) -> bool:
    # True == 1 in Python, not in JSON.
    return type(value) is type(other) and value == other


def _unknown(param: str, known: Iterable[str]) -> PydanticCustomError:
    param = str(param)[:_LONGEST_SHOWN]
    near = difflib.get_close_matches(param, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return PydanticCustomError("unknown", "unknown parameter '{param}'{hint}", {"param": param, "hint": hint})


def unsupported(param: str, reason: str) -> PydanticCustomError:
    """The error of a parameter that is known and cannot be honoured."""
    return PydanticCustomError("unsupported", "{param} is not supported: {reason}", {"param": param, "reason": reason})


def inconsistent(param: str, message: str) -> PydanticCustomError:
    """The error of parameters that contradict each other."""
    # The message may hold braces of what came.
    return PydanticCustomError("inconsistent", "{message}", {"param": param, "message": message})
