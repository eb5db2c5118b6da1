"""How often guesses came true, by sequence, grade and place in the draft: the estimate for the next ones.

Every guess counts, whether it was verified or only compared with what came later; so a sequence whose drafts are not
worth verifying is noticed when they get better. Does not know costs.
"""

from __future__ import annotations

from python_llm.speculation.proposer import Draft

_FIRST, _LATER = 0.5, 0.8
"""What is believed before anything is known: a guess is worth more when the one before it was right."""
_LAST_PLACE = 3
"""Places from here on are counted together."""
_KEEP_OWN, _KEEP_ALL = 0.9, 0.98
"""What counts from one guess to the next: about 10 guesses of a sequence, 50 of all."""
_WEIGHT_OF_BELIEF = 2.0
_WEIGHT_OF_ALL = 4.0

Cell = tuple[int, int]


class Tally:
    """Guesses that came true among recent ones, by (grade, place)."""

    __slots__ = ("_cells", "_keep")

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._cells: dict[Cell, tuple[float, float]] = {}

    def rate(self, cell: Cell, prior: float, weight: float) -> float:
        hits, total = self._cells.get(cell, (0.0, 0.0))
        return (hits + weight * prior) / (total + weight)

    def count(self, cell: Cell, came_true: bool) -> None:
        hits, total = self._cells.get(cell, (0.0, 0.0))
        self._cells[cell] = (hits * self._keep + came_true, total * self._keep + 1)


class Agreement:
    """The record of one proposer. What is known of one sequence weighs more with each of its guesses."""

    def __init__(self) -> None:
        self._all = Tally(_KEEP_ALL)

    def new_sequence(self) -> Tally:
        return Tally(_KEEP_OWN)

    def survival(self, sequence: Tally, grade: int, count: int) -> list[float]:
        """Entry j of `count`: the probability that the first j + 1 guesses of a draft are all right."""
        survival, probability, rate = [], 1.0, 0.0
        for place in range(count):
            if place <= _LAST_PLACE:
                cell = (grade, place)
                belief = _LATER if place else _FIRST
                rate = sequence.rate(cell, self._all.rate(cell, belief, _WEIGHT_OF_BELIEF), _WEIGHT_OF_ALL)
            probability *= rate
            survival.append(probability)
        return survival

    def count(self, sequence: Tally, draft: Draft, place: int, came_true: bool) -> None:
        """The guess at `place` of `draft`, whose earlier guesses all came true, did or did not."""
        cell = (draft.grade, min(place, _LAST_PLACE))
        sequence.count(cell, came_true)
        self._all.count(cell, came_true)
