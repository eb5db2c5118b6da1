"""Reads the log file that tritonserver writes, while it grows, and finds in its messages what a user wants to know.

Does not know processes or ports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_EVENT = re.compile(r'"(?:(?P<loading>loading: )|(?P<loaded>successfully loaded ))\'?(?P<model>[^\':"]+)')
_POLL_FAILED = re.compile(r"\"Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.*)\"$", re.MULTILINE)
_CODE = re.compile(
    r"^(?:Internal|Invalid argument|Not found|Unavailable|Unsupported|Already exists|Unknown|Cancelled): "
)
_OUR_ERRORS = re.compile(r"^(?:\w+\.)*(?:SettingsError|ModelLoadError|TritonModelException): ")


@dataclass(frozen=True)
class LoadEvent:
    model: str
    loaded: bool
    """False: its loading begins."""


class LogReader:
    """Gives what a growing file got since the last call, in whole lines. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._rest = ""

    def new_text(self) -> str:
        """Whole lines, with their ends; "" when there is none."""
        text = self._rest + self._file.read()
        end = text.rfind("\n") + 1
        self._rest = text[end:]
        return text[:end]

    def close(self) -> None:
        self._file.close()


def load_events(text: str) -> list[LoadEvent]:
    """What lines of the log say about models whose loading begins or is done."""
    return [LoadEvent(found["model"], found["loaded"] is not None) for found in _EVENT.finditer(text)]


def poll_failures(text: str) -> dict[str, str]:
    """Model -> why Triton refused to look at its folder. The repository index gives no reason for those."""
    return {found["model"]: found["reason"] for found in _POLL_FAILED.finditer(text)}


def sentence(reason: str) -> str:
    """Triton's reason why a model did not load, as one line: without error code, Python's class name and stack."""
    text = reason.partition("\n\nAt:\n")[0].strip()
    text = _OUR_ERRORS.sub("", _CODE.sub("", text))
    if re.fullmatch(r"Stub process '.*' is not healthy\.", text):
        return "its Python process ended while it loaded the model (out of memory, or a crash)"
    return " ".join(text.split()) or "Triton gave no reason"


def last_error(text: str) -> str | None:
    """The last error message of the log, for a server that ended by itself."""
    errors = [line for line in text.splitlines() if re.match(r"E\d{4} |error: ", line)]
    if not errors:
        return None
    message = re.sub(r"^(?:E\d{4} .*?\] |error: )", "", errors[-1])
    return message.strip().strip('"')
