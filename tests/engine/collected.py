"""Gathers the outputs of one request."""

from __future__ import annotations

import threading

from python_llm.engine.request import FinishReason, Output


class Collected:
    """A request's sink. `wait` fails the test when no last output comes."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.done = threading.Event()

    def __call__(self, output: Output) -> None:
        assert not self.done.is_set(), "an output after the last one"
        self.outputs.append(output)
        if output.is_last:
            self.done.set()

    def wait(self, seconds: float = 20) -> Collected:
        assert self.done.wait(seconds), "the request got no answer"
        return self

    @property
    def token_ids(self) -> list[int]:
        return [token.token_id for output in self.outputs for token in output.tokens]

    @property
    def reason(self) -> FinishReason | None:
        return self.outputs[-1].finish_reason

    @property
    def error(self) -> Exception | None:
        return self.outputs[-1].error
