"""API keys: made here, kept as hashes, found by what a request brings.

A key has 256 random bits, so a plain SHA-256 cannot be turned back, and a slow hash would only slow requests.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from python_llm_client.errors import UsageError

_PREFIX = "pl-"


class ApiKey(BaseModel):
    """One entry of the key file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    requests_per_minute: int | None = Field(default=None, ge=1)
    max_concurrent: int | None = Field(default=None, ge=1)


class _KeyFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[ApiKey] = Field(min_length=1)


def add_key(path: Path, name: str, requests_per_minute: int | None = None, max_concurrent: int | None = None) -> str:
    """Make a key and write its entry to the file, which only its owner may read. Returns the key; nobody else knows it.

    Raises UsageError when the name is taken, or the file is not a key file.
    """
    entries = list(read_keys(path)) if path.exists() else []
    if any(entry.name == name for entry in entries):
        raise UsageError(f"the key file {path} has a key for {name!r} already: take it out first")
    key = _PREFIX + secrets.token_urlsafe(32)
    entries.append(
        ApiKey(name=name, sha256=_hash(key), requests_per_minute=requests_per_minute, max_concurrent=max_concurrent)
    )
    text = _KeyFile(keys=entries).model_dump_json(indent=2, exclude_none=True) + "\n"
    # Never half a file: a gateway may start at this moment.
    whole = path.with_name(path.name + ".new")
    try:
        with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(text)
        os.replace(whole, path)
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be written: {error.strerror}") from None
    return key


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The entries of a key file: `{"keys": [...]}`. Raises UsageError."""
    try:
        keys = _KeyFile.model_validate_json(path.read_bytes()).keys
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"the key file {path} is not valid: {where or 'it'}: {first['msg']}") from None
    for what, values in (("name", [key.name for key in keys]), ("sha256", [key.sha256 for key in keys])):
        if twice := {value for value in values if values.count(value) > 1}:
            raise UsageError(f"the key file {path} has the {what} {min(twice)!r} twice")
    return tuple(keys)


class KeyRing:
    """Finds the entry of a key that a request brought."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._by_hash = {key.sha256: key for key in keys}

    def find(self, key: str) -> ApiKey | None:
        # Looking the hash up tells by its time at most about the hash, of which the caller chose nothing.
        return self._by_hash.get(_hash(key))


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
