"""What a parameter of a request is: its type, its range, and how a loosely typed value becomes a native one.

Clients send `0.7` or `"0.7"`, `16` or `16.0`, `[1, 2]` or `"[1, 2]"`; after `Parameter.read` there is one form.
Does not know which parameters exist (`sampling_params.py`) nor what they do (`sampling.py`, `text.py`).
"""

from __future__ import annotations

import json
import math
import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from python_llm.errors import InvalidRequestError

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def shown(value: object) -> str:
    """What came, for a message: as Python writes it, and cut where it is long."""
    return _REPR.repr(value)


@dataclass(frozen=True, slots=True)
class Range:
    """The interval [low, high], or (low, high] with `open_low`; `high` may be infinite."""

    low: float
    high: float = math.inf
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.open_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"{'greater than' if self.open_low else 'of at least'} {self.low}"
        return f"in {'(' if self.open_low else '['}{self.low}, {self.high}]"


@dataclass(frozen=True, slots=True)
class Kind:
    """A type that a parameter can have."""

    name: str
    """As in "must be <name>"."""
    read: Callable[[object], object]
    """Any accepted form -> the native one. Raises ValueError on every other."""
    numbers: Callable[[Any], Iterable[float]] = lambda value: ()
    """The numbers in a native value that must lie in the parameter's range."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of a table of parameters."""

    name: str
    kind: Kind
    default: object
    doc: str
    range: Range | None = None
    max_items: int | None = None
    """Longest list or object taken: what a request brings is walked by the engine's one thread at every token."""
    max_length: int | None = None
    """Longest string taken, in characters, alone or in a list: what is made of it grows with it."""
    nullable: bool = False
    """Null is a value of its own. Otherwise null means "not given"."""
    aliases: Mapping[object, object] = field(default_factory=dict)
    """Values in the range that are another way to write a value."""

    @property
    def allowed(self) -> str:
        """What may come, for messages and documentation: "a number in (0, 1]"."""
        parts = [self.kind.name]
        if self.range is not None:
            parts.append(str(self.range))
        if self.max_items is not None:
            length = f", each of at most {self.max_length} characters" if self.max_length is not None else ""
            parts.append(f"(at most {self.max_items}{length})")
        if self.nullable:
            parts.append("or null")
        return " ".join(parts)

    def read(self, value: object) -> object:
        """The native value. Raises InvalidRequestError that says the name, what is allowed and what came."""
        if value is None or (self.kind is not STRINGS and is_null(value)):
            return None if self.nullable else self.default
        try:
            native = self.kind.read(value)
        except (ValueError, OverflowError, RecursionError):
            raise self._refusal(value) from None
        if self.range is not None and any(number not in self.range for number in self.kind.numbers(native)):
            raise self._refusal(value)
        if isinstance(native, tuple):
            if self.max_items is not None and len(native) > self.max_items:
                raise self._refusal(value)
            if self.max_length is not None and max(map(len, native), default=0) > self.max_length:
                raise self._refusal(value)
        return self.aliases.get(native, native) if self.aliases else native

    def _refusal(self, value: object) -> InvalidRequestError:
        return InvalidRequestError(f"{self.name} must be {self.allowed}, got {shown(value)}")


def is_null(value: object) -> bool:
    """Whether a value that is no text of the user's says null."""
    return value is None or (isinstance(value, str) and value.strip() in ("null", "None"))


def _from_json(value: object) -> object:
    """A JSON text becomes what it says; anything else stays as it is."""
    return json.loads(value) if isinstance(value, str) else value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, str)):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(value: object) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        # Not through float: it would round the low bits of a 64-bit seed away.
        try:
            return int(value)
        except ValueError:
            pass
    number = _number(value)
    if not number.is_integer():
        raise ValueError
    return int(number)


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else str(_integer(value))
    if text not in _BOOLEANS:
        raise ValueError
    return _BOOLEANS[text]


def _is_words(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(word, str) and word for word in value)


def _strings(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        # Request parameters cannot hold lists, so a list may come as JSON text. Whatever else a string holds, "[]" and
        # "[1]" included, is itself the one string.
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = None
        value = parsed if parsed and _is_words(parsed) else [value]
    if not isinstance(value, (list, tuple)) or not _is_words(value):
        raise ValueError
    return tuple(value)


def _integers(value: object) -> tuple[int, ...]:
    value = _from_json(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError
    return tuple(_integer(item) for item in value)


def _biases(value: object) -> tuple[tuple[int, float], ...]:
    value = _from_json(value)
    if not isinstance(value, Mapping):
        raise ValueError
    pairs = {_integer(token_id): _number(bias) for token_id, bias in value.items()}
    if len(pairs) != len(value) or any(token_id < 0 for token_id in pairs):
        raise ValueError
    return tuple(sorted(pairs.items()))


def choice(*words: str) -> Kind:
    """One of `words`."""

    def read(value: object) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return Kind("one of " + ", ".join(words), read)


INTEGER = Kind("an integer", _integer, lambda value: (value,))
NUMBER = Kind("a number", _number, lambda value: (value,))
BOOLEAN = Kind("a boolean", _boolean)
STRINGS = Kind("a non-empty string or a list of them", _strings)
TOKEN_IDS = Kind("a list of token ids", _integers, lambda value: value)
BIASES = Kind("an object of token id (each once) to bias", _biases, lambda value: (bias for _, bias in value))
