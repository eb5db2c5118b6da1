"""What a model answers, as plain data. Does not know tensors or how answers travel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token and how likely the model itself held it (before temperature, penalties and bans)."""

    token_id: int
    text: str
    """Holds U+FFFD where the token is a part of a character only."""
    logprob: float
    rank: int
    """1 for the likeliest token."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A generated token, and the likeliest tokens at its place, best first, as many as were asked for."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """What the server did for a request. Times in milliseconds, of the slowest of n sequences; None: it never came."""

    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt whose KV was there already."""
    preemptions: int = 0
    drafted_tokens: int = 0
    """Guessed and verified by speculation."""
    accepted_tokens: int = 0
    """Of those, the ones that were right."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens counted by the server, over all sequences of a request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    """None when the statistics were not asked for."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


@dataclass(slots=True)
class Delta:
    """What one response of a stream added to one of the n sequences."""

    index: int
    """Of the sequence, from 0."""
    text: str
    tokens: int
    """How many new tokens; 0 when the model does not tell."""
    finish_reason: str | None = None
    """Set once for each sequence, with its last delta: "stop", "length", or "cancelled" after a stop request."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry per new token, when asked for."""
    cumulative_logprob: float | None = None
    """Over the sequence so far, when asked for."""
    usage: Usage | None = None
    """With the last delta of the request."""
    stats: Stats | None = None
    """With the last delta of the request, when asked for."""


@dataclass(slots=True)
class Choice:
    """One complete sequence."""

    text: str = ""
    finish_reason: str | None = None
    tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    cumulative_logprob: float | None = None


@dataclass(slots=True)
class Answer:
    """A complete answer: n sequences and what they cost."""

    choices: list[Choice] = field(default_factory=list)
    usage: Usage = field(default_factory=lambda: Usage(0, 0))
    stats: Stats | None = None

    @property
    def text(self) -> str:
        """Of the first sequence."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        """Of the first sequence."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        """Of the first sequence."""
        return self.choices[0].logprobs


def collect(deltas: Iterable[Delta], num_sequences: int) -> Answer:
    """The answer whose parts `deltas` are, in the order in which they came."""
    answer = Answer([Choice() for _ in range(num_sequences)])
    for delta in deltas:
        choice = answer.choices[delta.index]
        choice.text += delta.text
        choice.tokens += delta.tokens
        choice.finish_reason = delta.finish_reason or choice.finish_reason
        if delta.logprobs is not None:
            choice.logprobs = [*(choice.logprobs or ()), *delta.logprobs]
        if delta.cumulative_logprob is not None:
            choice.cumulative_logprob = delta.cumulative_logprob
        answer.usage = delta.usage or answer.usage
        answer.stats = delta.stats or answer.stats
    return answer
