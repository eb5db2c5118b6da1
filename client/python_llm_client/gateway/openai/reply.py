"""Whole answers -> OpenAI's response bodies. Does not know HTTP."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from python_llm_client.answers import Answer, Choice, TokenLogprob, TokenLogprobs, Usage


@dataclass(frozen=True)
class Heading:
    """What every part of one response says of it."""

    kind: str
    """Begins the id: "chatcmpl" or "cmpl"."""
    model: str
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, object_name: str) -> dict[str, Any]:
        return {
            "id": f"{self.kind}-{self.id}",
            "object": object_name,
            "created": self.created,
            "model": self.model,
        }


def chat_completion(heading: Heading, answer: Answer) -> dict[str, Any]:
    """Body of a chat completion."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason or "stop",
        }
        for index, choice in enumerate(answer.choices)
    ]
    return {**heading.fields("chat.completion"), "choices": choices, "usage": usage([answer.usage])}


def completion(heading: Heading, answers: Sequence[Answer], echoes: Sequence[str], num_best: int) -> dict[str, Any]:
    """Body of a completion: of each answer the `num_best` sequences that the model itself held likeliest per token."""
    choices: list[dict[str, Any]] = []
    for answer, echo in zip(answers, echoes, strict=True):
        for choice in best(answer.choices, num_best):
            choices.append(
                {
                    "index": len(choices),
                    "text": echo + choice.text,
                    "logprobs": completion_logprobs(choice.logprobs),
                    "finish_reason": choice.finish_reason or "stop",
                }
            )
    spent = usage([answer.usage for answer in answers])
    return {**heading.fields("text_completion"), "choices": choices, "usage": spent}


def best(choices: list[Choice], num_best: int) -> list[Choice]:
    if num_best >= len(choices):
        return choices

    def per_token(choice: Choice) -> float:
        return (choice.cumulative_logprob or 0.0) / max(1, choice.tokens)

    return sorted(choices, key=per_token, reverse=True)[:num_best]


def usage(parts: Sequence[Usage]) -> dict[str, Any]:
    """Over all prompts of a request."""
    prompt, output = sum(part.prompt_tokens for part in parts), sum(part.output_tokens for part in parts)
    cached = [part.cached_tokens for part in parts if part.cached_tokens is not None]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(cached)} if cached else None,
    }


def chat_logprobs(entries: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
    if entries is None:
        return None
    content = [
        {**_chat_token(entry.chosen), "top_logprobs": [_chat_token(token) for token in entry.top]} for entry in entries
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    # A part of a character comes as U+FFFD: which bytes it was is not known here.
    exact = "\ufffd" not in token.text
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode()) if exact else None}


def completion_logprobs(entries: Sequence[TokenLogprobs] | None, offset: int = 0) -> dict[str, Any] | None:
    """`offset`: characters of this sequence before the first entry."""
    if entries is None:
        return None
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.chosen.text)
    return {
        "tokens": [entry.chosen.text for entry in entries],
        "token_logprobs": [entry.chosen.logprob for entry in entries],
        "top_logprobs": [{token.text: token.logprob for token in entry.top} for entry in entries],
        "text_offset": offsets,
    }
