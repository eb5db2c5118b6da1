"""The interface of whoever guesses tokens ahead: by looking text up, by asking a small model, in whatever way.

Guesses cannot do harm: the engine verifies each (`engine.acceptance`). They should be good, and cheap to come by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from python_llm.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Ask:
    """What a proposer is told of one sequence: only what is new since it was last told."""

    sequence_id: int
    """Names the sequence from the first ask to `forget`; never used again for another one in this process."""
    new_tokens: np.ndarray
    """int32 [m]: the tokens at positions [num_tokens - m, num_tokens). The first time, and the first time after the
    proposer failed, these are all of the sequence: what it knew of it before is then void."""
    num_tokens: int
    """Length of the sequence, prompt and output so far."""
    num_prompt: int
    most: int
    """Propose at most so many tokens."""
    params: SamplingParams
    seed: int
    """Output token i is drawn with `uniform(seed, i)`: a proposer that samples agrees more often if it draws so too."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess at the tokens that follow a sequence."""

    token_ids: Sequence[int]
    grade: int = 0
    """How sure the proposer is, in steps of its own: the hits of each grade are counted apart."""


class Proposer(Protocol):
    """Owner: the engine thread, which waits for each call: what can take long must end by a time limit of its own.

    Any exception means that the proposer has lost all sequences: `reset` follows. It is left alone for a while and then
    told everything anew; nothing else happens to the requests.
    """

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        """One draft (perhaps empty) for each ask. Called at most once a step, for all sequences that it is to serve."""
        ...

    def forget(self, last: Ask) -> None:
        """The sequence has ended, with `last.new_tokens`. It may never have been asked about."""
        ...

    def reset(self) -> None:
        """Forget all sequences: of those known now, some will end without a word."""
        ...
