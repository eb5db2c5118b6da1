"""Shows on stderr which models are loading: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.status import Status

from python_llm_client.server_log import LoadEvent


class LoadProgress:
    """Use it as a context manager around the loading of `models` (names)."""

    def __init__(self, console: Console, models: list[str]) -> None:
        self._console = console
        self._waiting = list(models)
        self._since: dict[str, float] = {}
        self._start = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> LoadProgress:
        if self._console.is_terminal:
            self._status = self._console.status(f"loading {', '.join(self._waiting)}")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._status:
            self._status.stop()

    def event(self, event: LoadEvent) -> None:
        if not event.loaded:
            self._since[event.model] = time.monotonic()
            if not self._status:
                self._line(f"loading {event.model}")
            return
        seconds = time.monotonic() - self._since.get(event.model, self._start)
        self._line(f"loaded {event.model} in {seconds:.1f} s")
        if event.model in self._waiting:
            self._waiting.remove(event.model)

    def tick(self) -> None:
        if self._status:
            what = ", ".join(self._waiting) or "the server"
            self._status.update(f"loading {what}, {time.monotonic() - self._start:.0f} s")

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
