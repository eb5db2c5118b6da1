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
    num_cut: int = 0
    """How many of these lie wholly beyond the end of the text: an end token, a stop string's or stop word's tokens."""


class TextStream:
    """The text of one sequence. Owned by the engine thread.

    The concatenation of all deltas is the UTF-8 decoding (invalid bytes become U+FFFD) of the joined bytes of all
    tokens, cut at the first stop string or stop word (a sequence of tokens). Two things are held back, and nothing
    else: an incomplete UTF-8 character, and the longest end of the text that is the beginning of a stop string or stop
    word (not with `include_stop_str_in_output`: then it comes out either way). Once the sequence has ended, every token
    that was appended has been counted.

    Linear in the text; each `take` that releases something also copies what stays held, at most a stop string.
    """

    __slots__ = (
        "_decoded",
        "_decoder",
        "_ended",
        "_held_tokens",
        "_matcher",
        "_num_cut",
        "_num_tokens",
        "_params",
        "_pieces",
        "_released",
        "_special_token_ids",
        "_taken",
        "_token_bytes",
        "_uncounted",
        "_words",
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
        # To the matcher a token is a character like any other.
        words = ["".join(map(chr, word)) for word in params.stop_words_token_ids]
        self._words = StopMatcher(words) if words else None
        self._held_tokens = 0
        """How many of the last tokens are the beginning of some stop word."""
        self._num_cut = 0
        self._ended = False
        self._num_tokens = 0
        # Positions are in characters, from the start of the output: [0, taken) is out, [taken, released) may go out,
        # [released, decoded) is held. `pieces` joined is [taken, decoded).
        self._pieces: list[str] = []
        self._taken = self._released = self._decoded = 0
        # For each token that is not counted yet: where its text begins, and up to where the text must be released.
        self._uncounted: deque[tuple[int, int]] = deque()

    def append(self, token_id: int) -> bool:
        """Adds an output token. True: a stop string or stop word is complete, the text is cut there, and the sequence
        has ended.

        Those that are complete within the first `min_tokens` tokens do not count, as in vLLM.
        Raises ValueError when the sequence has ended.
        """
        if self._ended:
            raise ValueError("the sequence has ended")
        before = self._decoded
        text = self._decode(token_id)
        keep = self._params.include_stop_str_in_output
        if self._complete_word(token_id):
            return True
        if self._matcher is not None:
            match = self._matcher.feed(text, ignore_matches=self._too_early)
            if match is not None:
                begin, end = match
                position = before + (end if keep else begin)
                self._end_at(position, self._num_tokens_from(position))
                return True
        held = 0 if self._matcher is None or keep else self._matcher.held
        self._released = self._decoded - held
        if self._held_tokens:
            self._released = min(self._released, self._start_of_held())
        return False

    def finish(self, end_token_id: int | None = None) -> None:
        """Ends the sequence for another reason than a stop string, and releases all that is held.

        An incomplete UTF-8 character becomes U+FFFD. `end_token_id`: the token that ended the sequence (end-of-sequence
        or a stop token), if one did and it was not appended: it is counted, and its text is given only with
        `include_stop_str_in_output`. A stop word that it completes is left out whole. Does nothing more when the
        sequence has ended already.
        """
        if self._ended:
            return
        if end_token_id is not None:
            if self._params.include_stop_str_in_output:
                self._decode(end_token_id)
            else:
                self._count_token(self._decoded)
                if self._complete_word(end_token_id):
                    return
                self._num_cut = 1
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
        uncounted = self._uncounted
        before = len(uncounted)
        if self._ended:
            uncounted.clear()
        while len(uncounted) > self._held_tokens and uncounted[0][1] <= self._released:
            uncounted.popleft()
        num_cut, self._num_cut = self._num_cut, 0
        return Delta(text, before - len(uncounted), num_cut)

    @property
    def _too_early(self) -> bool:
        return self._num_tokens <= self._params.min_tokens

    def _complete_word(self, token_id: int) -> bool:
        """Whether `token_id`, which has just been counted, completes a stop word: the sequence has then ended."""
        if self._words is None:
            return False
        keep = self._params.include_stop_str_in_output
        match = self._words.feed(chr(token_id), ignore_matches=self._too_early)
        self._held_tokens = 0 if keep else match[1] - match[0] if match else self._words.held
        if match is None:
            return False
        self._end_at(self._decoded if keep else self._start_of_held(), self._held_tokens)
        return True

    def _end_at(self, position: int, num_cut: int) -> None:
        """Ends the sequence with the text up to `position`, and its last `num_cut` tokens beyond it."""
        self._released = position
        self._num_cut = num_cut
        self._ended = True

    def _num_tokens_from(self, position: int) -> int:
        """How many of the last tokens begin at `position` or later."""
        return sum(1 for start, _ in self._uncounted if start >= position)

    def _start_of_held(self) -> int:
        return self._uncounted[-self._held_tokens][0]

    def _decode(self, token_id: int) -> str:
        text, start = "", self._decoded
        if token_id not in self._special_token_ids:
            text = self._decoder.decode(self._token_bytes(token_id))
            self._push(text)
        self._count_token(start)
        return text

    def _push(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._decoded += len(text)

    def _count_token(self, start: int) -> None:
        self._num_tokens += 1
        # Bytes of an incomplete character always become exactly one character: itself, or U+FFFD.
        incomplete = bool(self._decoder.getstate()[0])
        self._uncounted.append((start, self._decoded + incomplete))
