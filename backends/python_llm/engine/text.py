"""Turns the tokens of one sequence into text, piece by piece, and finds the stop strings in it.

Does not know the tokenizer (it is given each token's bytes), nor why a sequence ends other than by a stop string.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass

from python_llm.engine.sampling_params import SamplingParams
from python_llm.engine.stop_strings import StopMatcher


@dataclass(frozen=True, slots=True)
class Delta:
    """What was released since the last look."""

    text: str
    num_tokens: int
    """Tokens whose text is released in full. A token without text counts with the text before it."""


class TextStream:
    """The text of one sequence. Owned by the engine thread.

    The concatenation of all deltas is the UTF-8 decoding (invalid bytes become U+FFFD) of the joined bytes of all
    tokens, cut at the first stop string. Two things are held back, and nothing else: an incomplete UTF-8 character, and
    the longest end of the text that is the beginning of a stop string (not with `include_stop_str_in_output`: then it
    comes out either way). Once the sequence has ended, every token that was appended has been counted.

    Linear in the text; each `take` that releases something also copies what stays held, at most a stop string.
    """

    __slots__ = (
        "_decoded",
        "_decoder",
        "_ended",
        "_matcher",
        "_num_tokens",
        "_params",
        "_pieces",
        "_released",
        "_special_token_ids",
        "_taken",
        "_token_bytes",
        "_token_ends",
    )

    def __init__(
        self, token_bytes: Callable[[int], bytes], special_token_ids: Container[int], params: SamplingParams
    ) -> None:
        """`token_bytes`: the bytes that a token adds to running text. If `params.skip_special_tokens`, special tokens
        are left out of the text, and the bytes before and after one join.
        """
        self._token_bytes = token_bytes
        self._special_token_ids: Container[int] = special_token_ids if params.skip_special_tokens else ()
        self._params = params
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._matcher = StopMatcher(params.stop) if params.stop else None
        self._ended = False
        self._num_tokens = 0
        # Positions are in characters, from the start of the output: [0, taken) is out, [taken, released) may go out,
        # [released, decoded) is held. `pieces` joined is [taken, decoded).
        self._pieces: list[str] = []
        self._taken = self._released = self._decoded = 0
        # For each token that is not counted yet, the position up to which the text must be released.
        self._token_ends: deque[int] = deque()

    def append(self, token_id: int) -> bool:
        """Adds an output token. True: a stop string is complete, the text is cut there, and the sequence has ended.

        Stop strings that are complete within the first `min_tokens` tokens do not count, as in vLLM.
        Raises ValueError when the sequence has ended.
        """
        if self._ended:
            raise ValueError("the sequence has ended")
        before = self._decoded
        text = self._decode(token_id)
        if self._matcher is None:
            self._released = self._decoded
            return False
        match = self._matcher.feed(text, ignore_matches=self._num_tokens <= self._params.min_tokens)
        if match is not None:
            begin, end = match
            self._released = before + (end if self._params.include_stop_str_in_output else begin)
            self._ended = True
            return True
        held = 0 if self._params.include_stop_str_in_output else self._matcher.held
        self._released = self._decoded - held
        return False

    def finish(self, end_token_id: int | None = None) -> None:
        """Ends the sequence for another reason than a stop string, and releases all that is held.

        An incomplete UTF-8 character becomes U+FFFD. `end_token_id`: the token that ended the sequence (end-of-sequence
        or a stop token), if one did and it was not appended: it is counted, and its text is given only with
        `include_stop_str_in_output`. Does nothing more when the sequence has ended already.
        """
        if self._ended:
            return
        if end_token_id is not None:
            if self._params.include_stop_str_in_output:
                self._decode(end_token_id)
            else:
                self._count_token()
        self._push(self._decoder.decode(b"", final=True))
        self._released = self._decoded
        self._ended = True

    def take(self) -> Delta:
        """What was released since the last `take`."""
        text = ""
        if self._released > self._taken:
            joined = "".join(self._pieces)
            text = joined[: self._released - self._taken]
            self._pieces = [joined[len(text) :]]
            self._taken = self._released
        ends = self._token_ends
        waiting = len(ends)
        if self._ended:
            ends.clear()
        while ends and ends[0] <= self._released:
            ends.popleft()
        return Delta(text, waiting - len(ends))

    def _decode(self, token_id: int) -> str:
        text = ""
        if token_id not in self._special_token_ids:
            text = self._decoder.decode(self._token_bytes(token_id))
            self._push(text)
        self._count_token()
        return text

    def _push(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._decoded += len(text)

    def _count_token(self) -> None:
        self._num_tokens += 1
        # Bytes of an incomplete character always become exactly one character: itself, or U+FFFD.
        incomplete = bool(self._decoder.getstate()[0])
        self._token_ends.append(self._decoded + incomplete)
