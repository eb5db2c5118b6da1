"""Sampling parameters of one request: which exist, their defaults and ranges, and their one native form.

A drop-in for vLLM's `SamplingParams` as Triton's vLLM backend reads them. The class body below is the only table:
parsing, error messages, defaults and documentation derive from it. Does not know how a parameter acts on logits
(`sampling.py`) or text (`text.py`), nor the tokenizer: `bad_words_token_ids` and `eos_token_ids` are filled in by
whoever has it, with `dataclasses.replace`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from python_llm.engine.parameters import (
    BIASES,
    BOOLEAN,
    INTEGER,
    NUMBER,
    STRINGS,
    TOKEN_IDS,
    Kind,
    Parameter,
    Range,
    choice,
    shown,
)
from python_llm.errors import InvalidRequestError

GREEDY_BELOW = 1e-5
"""Temperatures below this one are greedy, as in vLLM: dividing by them would only overflow."""

OFF = "off"
"""The way to speculate that is always allowed: not at all."""

MOST_DRAFT_TOKENS = 32
"""Longest draft that can be asked for, by setting or by request."""

_LIST_LIMIT = 1024
_STOP_LIMIT = 64
_STRING_LIMIT = 1024


def _parameter(default: object, kind: Kind, doc: str, range: Range | None = None, **rest: object) -> Any:
    return field(default=default, metadata={"kind": kind, "doc": doc, "range": range, **rest})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks of its output. Built by `parse_sampling_params`, which checks; the constructor does not."""

    n: int = _parameter(1, INTEGER, "How many sequences to generate for the prompt.", Range(1, 64))
    max_tokens: int | None = _parameter(
        16, INTEGER, "Most tokens to generate; null: as many as the context holds.", Range(1), nullable=True
    )
    min_tokens: int = _parameter(
        0, INTEGER, "End-of-sequence, stop tokens and stop strings do not act on the first so many tokens.", Range(0)
    )
    temperature: float = _parameter(
        1.0,
        NUMBER,
        f"Divides the logits. 0 (or less than {GREEDY_BELOW}): always the most likely token.",
        Range(0, 100),
    )
    top_k: int = _parameter(
        0, INTEGER, "Draw from the k most likely tokens only. 0 or -1: from all.", Range(-1), aliases={-1: 0}
    )
    top_p: float = _parameter(
        1.0,
        NUMBER,
        "Draw from the fewest most likely tokens that together have this probability.",
        Range(0, 1, open_low=True),
    )
    min_p: float = _parameter(
        0.0, NUMBER, "Draw from tokens at least this many times as likely as the most likely one.", Range(0, 1)
    )
    seed: int | None = _parameter(
        None,
        INTEGER,
        "Equal seeds give equal draws, whatever else the server is doing. null or -1: a new one for each request.",
        Range(-(2**63), 2**64 - 1),
        aliases={-1: None},
    )
    repetition_penalty: float = _parameter(
        1.0,
        NUMBER,
        "Makes tokens of prompt and output less likely (above 1) or more (below 1): positive logits are divided by it, "
        "negative ones multiplied.",
        Range(0, open_low=True),
    )
    presence_penalty: float = _parameter(
        0.0, NUMBER, "Subtracted from the logits of tokens that are in the output.", Range(-2, 2)
    )
    frequency_penalty: float = _parameter(
        0.0, NUMBER, "Subtracted from a token's logit once for each time it is in the output.", Range(-2, 2)
    )
    stop: tuple[str, ...] = _parameter(
        (),
        STRINGS,
        "Strings that end the output when they are complete in it.",
        max_items=_STOP_LIMIT,
        max_length=_STRING_LIMIT,
    )
    stop_token_ids: tuple[int, ...] = _parameter(
        (), TOKEN_IDS, "Tokens that end the output.", Range(0), max_items=_LIST_LIMIT
    )
    include_stop_str_in_output: bool = _parameter(False, BOOLEAN, "Keep the stop string or stop token in the text.")
    ignore_eos: bool = _parameter(False, BOOLEAN, "Go on after an end-of-sequence token.")
    skip_special_tokens: bool = _parameter(True, BOOLEAN, "Leave special tokens out of the text.")
    logprobs: int | None = _parameter(
        None,
        INTEGER,
        "Report each output token's log-probability, and those of so many most likely tokens.",
        Range(0, 20),
    )
    prompt_logprobs: int | None = _parameter(None, INTEGER, "The same for the tokens of the prompt.", Range(0, 20))
    logit_bias: tuple[tuple[int, float], ...] = _parameter(
        (), BIASES, "Added to the logits of these tokens.", Range(-100, 100), max_items=_LIST_LIMIT
    )
    bad_words: tuple[str, ...] = _parameter(
        (),
        STRINGS,
        "Words that must not be generated, at a text's start or after a space.",
        max_items=_LIST_LIMIT,
        max_length=_STRING_LIMIT,
    )

    speculation: str | None = _parameter(
        None,
        choice(OFF, "prompt_lookup"),
        "How to guess tokens ahead; it changes the speed and never the text. Must be among what the model's setting of "
        "this name allows; null: that setting.",
    )
    num_draft_tokens: int | None = _parameter(
        None,
        INTEGER,
        "Guess at most so many tokens ahead in a step; null: the model's setting.",
        Range(0, MOST_DRAFT_TOKENS),
    )

    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """`bad_words` as `tokenize_bad_words` gives them; not a parameter of its own."""
    stop_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end the output when they are complete in it, whatever their text; not a parameter."""
    eos_token_ids: tuple[int, ...] = ()
    """The model's end-of-sequence tokens; not a parameter of its own. `min_tokens` bans them, `ignore_eos` does not."""

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


SAMPLING_PARAMETERS: tuple[Parameter, ...] = tuple(
    Parameter(name=entry.name, default=entry.default, **entry.metadata)
    for entry in fields(SamplingParams)
    if entry.metadata
)
"""Every parameter a request may bring, in order of declaration."""

_BY_NAME = {parameter.name: parameter for parameter in SAMPLING_PARAMETERS}
_LONGEST_NAME = 2 * max(map(len, _BY_NAME))
"""No longer name can resemble one of ours."""


def parse_sampling_params(values: Mapping[str, object]) -> SamplingParams:
    """Checks and coerces what a request brought, by name; what it did not bring has its default.

    Numbers and booleans may come as strings, lists and objects as JSON text. Null means "not given", but for
    `max_tokens`. A string for `stop` or `bad_words` is one string, unless it is a JSON list of non-empty strings.
    Raises InvalidRequestError: unknown name, wrong type, out of range, or min_tokens > max_tokens.
    """
    native: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _BY_NAME:
            raise InvalidRequestError(_unknown(name))
        native[name] = _BY_NAME[name].read(value)
    params = SamplingParams(**native)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequestError(
            f"min_tokens must be at most max_tokens ({params.max_tokens}), got {params.min_tokens}"
        )
    return params


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name[:_LONGEST_NAME], _BY_NAME, n=1)
    if nearest:
        return f"unknown sampling parameter {shown(name)}; did you mean {nearest[0]!r}?"
    return f"unknown sampling parameter {shown(name)}; known are {', '.join(_BY_NAME)}"


def check_vocab(params: SamplingParams, vocab_size: int) -> None:
    """Raises InvalidRequestError when a parameter names a token id outside [0, vocab_size)."""
    for name, token_ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias", tuple(token_id for token_id, _ in params.logit_bias)),
    ):
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(f"{name} must name token ids in [0, {vocab_size - 1}], got {token_id}")


def tokenize_bad_words(words: Sequence[str], encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """The token sequences that write the words, with and without a leading space, each sequence once.

    `encode` must add no special tokens. vLLM drops the spaced form where it has another length than the bare one, and
    so lets common words through; here both forms are always banned.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        # A word of nothing but white space ("\n") has no other form.
        for form in (bare, " " + bare) if bare else (word,):
            sequence = tuple(encode(form))
            if sequence:
                sequences[sequence] = None
    return tuple(sequences)
