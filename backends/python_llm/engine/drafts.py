"""What the engine needs of whoever guesses tokens ahead.

The engine hands over a planned step and gets guesses to verify in it; right or wrong, they change no token of any
output (`acceptance.py`). Does not know how guesses are made or how many are worth while: the room `speculation/` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from python_llm.engine.request import Request


@dataclass(frozen=True, slots=True)
class Opening:
    """A place in the planned step where drafts could be verified: after the last known token of `request`."""

    request: Request
    most: int
    """More drafts than this could not all become output, even if all were right. At least 1."""


class Speculator(Protocol):
    """Owner: the engine thread."""

    methods: frozenset[str]
    """The values that a request's parameter `speculation` may have, besides "off"."""

    def draft(self, num_rows: int, openings: Sequence[Opening]) -> Mapping[int, np.ndarray]:
        """Request id -> drafts, int32 [k], k <= `most`, each in the vocabulary; requests without drafts may be missing.

        `num_rows`: tokens that the step computes anyway. The engine may verify fewer than it is given. Called once a
        step, with the engine waiting. If it raises, the engine logs that and speculates no more.
        """
        ...

    def forget(self, request: Request) -> None:
        """`request` has ended. It may never have been drafted for."""
        ...
