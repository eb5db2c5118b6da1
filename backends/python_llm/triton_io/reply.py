"""What a user request has gained and not yet been sent: the meeting point of the engine thread and a sender thread.

Responses coalesce by themselves: whatever arrives while a sender is busy goes into the next response.
Does not know tensors or pb_utils.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from python_llm.engine.plan import SampledToken
from python_llm.engine.request import FinishReason, Output, Request
from python_llm.errors import RequestError


@dataclass(slots=True)
class SequenceDelta:
    """News of one of the n sequences since the last response."""

    text: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """Set from the response that ends the sequence on."""
    num_cut: int = 0
    """How many of the tokens lie wholly beyond the end of the text."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes into one response."""

    deltas: list[SequenceDelta]
    is_first: bool
    is_last: bool
    error: RequestError | None
    """Ends the whole request; `deltas` are then not sent."""


def _nobody() -> None:
    """Wakes nobody: nothing follows the last response."""


class Reply:
    """Collects the outputs of the sequences of one user request."""

    def __init__(
        self,
        num_sequences: int,
        *,
        stream: bool,
        interval: int,
        wake: Callable[[], None],
        cancel: Callable[[list[Request]], None],
        finish: Callable[[list[Request]], None],
    ) -> None:
        """`interval`: least number of new tokens in a streamed response. `wake` asks for a sender; never more than one
        serves a reply at a time. `cancel` ends sequences in the engine with an error, `finish` with what they have."""
        self.requests: list[Request] = []
        """Set by whoever submits them, before they are submitted; empty again when the last response has been taken."""
        self._stream = stream
        self._interval = interval
        self._wake = wake
        self._cancel = cancel
        self._finish = finish
        self._lock = threading.Lock()
        self._deltas = [SequenceDelta() for _ in range(num_sequences)]
        self._news = 0
        self._num_open = num_sequences
        self._error: RequestError | None = None
        self._is_first = True
        self._awake = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """The last response has been taken."""
        return self._closed

    def push(self, index: int, output: Output) -> None:
        """Add an output of sequence `index`. Called on the engine thread; never blocks."""
        siblings: list[Request] = []
        with self._lock:
            if self._error is not None:
                return
            delta = self._deltas[index]
            delta.text += output.text
            delta.tokens.extend(output.tokens)
            delta.finish_reason = output.finish_reason
            delta.num_cut = output.num_cut
            # Text can be released before the token it belongs to is, when the token ends in a held-back part.
            self._news += max(len(output.tokens), 1 if output.text else 0)
            self._num_open -= output.is_last
            if output.error is not None:
                self._error = output.error
                siblings = [request for request in self.requests if request is not output.request]
            wake = self._is_ready() and not self._awake
            self._awake |= wake
        if wake:
            self._wake()
        if siblings:
            self._cancel(siblings)

    def cancel(self) -> None:
        """End all sequences: nobody waits for them. Their outputs still arrive here, as cancelled. Any thread."""
        self._cancel(self.requests)

    def stop(self) -> None:
        """End all sequences where they are: whoever waits gets what there is, and no error. Any thread."""
        self._finish(self.requests)

    def take(self) -> Batch | None:
        """What to send now; None when there is nothing: the sender is then done until the next wake-up."""
        with self._lock:
            if self._closed or not self._is_ready():
                self._awake = False
                return None
            taken, is_first = self._deltas, self._is_first
            self._deltas = [SequenceDelta(finish_reason=delta.finish_reason) for delta in taken]
            self._news = 0
            self._is_first = False
            self._closed = self._error is not None or self._num_open == 0
            if self._closed:
                # Both lead back here, and a circle lives until a full garbage collection: thousands of requests.
                self.requests = []
                self._wake = _nobody
            return Batch(taken, is_first=is_first, is_last=self._closed, error=self._error)

    def _is_ready(self) -> bool:
        if self._error is not None or self._num_open == 0:
            return True
        return self._stream and self._news >= self._interval
