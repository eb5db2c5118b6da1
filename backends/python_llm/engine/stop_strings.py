"""Finds the first of several strings in a text that arrives in pieces.

Knows characters only: no tokens, no UTF-8, no requests.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A prefix of some stop string."""

    depth: int
    children: dict[str, _Node] = field(default_factory=dict)
    suffix: _Node | None = None
    """The longest proper suffix of this prefix that is a prefix too; None at the root."""
    match: int = 0
    """Length of the longest stop string that ends here; 0: none does."""
    held: int = 0
    """Length of the longest suffix of this prefix from which some stop string can still grow."""


class StopMatcher:
    """Aho and Corasick's automaton (Efficient string matching, CACM 1975): linear time, however many the strings.

    Reading character by character, the stop string that is complete first wins; of those that are complete at the same
    character, the longest. So the result depends neither on how the text is cut into pieces nor on the strings' order,
    and it is never necessary to read on to know it.
    """

    __slots__ = ("_node",)

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: non-empty strings."""
        self._node = _automaton(tuple(stops))

    @property
    def held(self) -> int:
        """How many of the last characters are the beginning of some stop string."""
        return self._node.held

    def feed(self, text: str, *, ignore_matches: bool = False) -> tuple[int, int] | None:
        """Reads on. Returns the match as [begin, end) relative to the start of `text`, or None.

        `begin` is negative when the match began in earlier pieces. With `ignore_matches`, strings complete within this
        piece do not count; ones that begin in it still can be completed later.
        """
        node = self._node
        for position, character in enumerate(text, start=1):
            node = _step(node, character)
            if node.match and not ignore_matches:
                return position - node.match, position
        self._node = node
        return None


@functools.lru_cache(maxsize=4)
def _automaton(stops: tuple[str, ...]) -> _Node:
    """The root. Nobody changes the nodes once they are linked, so the n sequences of a request share them."""
    root = _Node(depth=0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.children.setdefault(character, _Node(depth=node.depth + 1))
        node.match = len(stop)
    # Breadth first: a node's links are made of those of shorter prefixes.
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for character, child in node.children.items():
            child.suffix = _step(node.suffix, character) if node.suffix else root
            child.match = child.match or child.suffix.match
            child.held = child.depth if child.children else child.suffix.held
            queue.append(child)
    return root


def _step(node: _Node, character: str) -> _Node:
    while character not in node.children:
        if node.suffix is None:
            return node
        node = node.suffix
    return node.children[character]
