"""The text face, outwards: what a reply gathered -> named output arrays.

Does not know pb_utils (it gives numpy arrays), threads, or where the text came from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from python_llm.engine.plan import SampledToken, TokenLogprob
from python_llm.engine.request import Request
from python_llm.triton_io.reply import Batch
from python_llm.triton_io.user_request import UserRequest

_LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


class TextResponder:
    """Makes the responses of one user request; keeps what runs on from one to the next."""

    def __init__(self, asked: UserRequest, requests: Sequence[Request], token_text: Callable[[int], str]) -> None:
        self._asked = asked
        self._requests = requests
        self._token_text = token_text
        self._cumulative = [0.0] * len(requests)

    def outputs(self, batch: Batch) -> dict[str, np.ndarray]:
        """Output name -> array; BYTES outputs are object arrays of bytes. Entry i of each belongs to sequence i."""
        returns = self._asked.returns
        echo = self._asked.echo if batch.is_first else ""
        outputs = {"text_output": _bytes(echo + delta.text for delta in batch.deltas)}
        if returns.finish_reason:
            outputs["finish_reason"] = _bytes(
                delta.finish_reason.value if delta.finish_reason else "None" for delta in batch.deltas
            )
        if returns.cumulative_logprob:
            for index, delta in enumerate(batch.deltas):
                self._cumulative[index] += sum(t.logprob.logprob for t in delta.tokens if t.logprob is not None)
            outputs["cumulative_logprob"] = np.array(self._cumulative, dtype=np.float32)
        if returns.logprobs:
            outputs["logprobs"] = _bytes(
                json.dumps([self._token_entry(token) for token in delta.tokens]) for delta in batch.deltas
            )
        if batch.is_first and self._asked.params.prompt_logprobs is not None:
            outputs["prompt_logprobs"] = _bytes([json.dumps(self._prompt_entries())])
        if returns.num_input_tokens:
            outputs["num_input_tokens"] = np.array([len(self._asked.prompt_ids)], dtype=np.uint32)
        if returns.num_output_tokens:
            outputs["num_output_tokens"] = np.array([len(delta.tokens) for delta in batch.deltas], dtype=np.uint32)
        if returns.stats and batch.is_last:
            outputs["stats"] = _bytes([json.dumps(request_stats(self._requests))])
        return outputs

    def _token_entry(self, token: SampledToken) -> dict[str, dict[str, object]]:
        assert token.logprob is not None
        return self._entry(token.logprob, token.top)

    def _prompt_entries(self) -> list[dict[str, dict[str, object]] | None]:
        """One entry per prompt token; the first has no prediction: null."""
        return [None, *(self._entry(p.target, p.top) for p in self._requests[0].prompt_logprobs)]

    def _entry(self, chosen: TokenLogprob, top: Sequence[TokenLogprob]) -> dict[str, dict[str, object]]:
        return {
            str(candidate.token_id): {
                "logprob": max(candidate.logprob, _LOWEST_LOGPROB),
                "rank": candidate.rank,
                "decoded_token": self._token_text(candidate.token_id),
            }
            for candidate in (chosen, *top)
        }


def request_stats(requests: Sequence[Request]) -> dict[str, object]:
    """Statistics of a finished user request. Times are in milliseconds; of n sequences the slowest counts."""

    def slowest(spans: Iterable[tuple[float | None, float | None]]) -> float | None:
        known = [1000 * (end - start) for start, end in spans if start is not None and end is not None]
        return round(max(known), 3) if known else None

    times = [request.times for request in requests]
    return {
        "queue_ms": slowest((t.arrival, t.scheduled) for t in times),
        "prefill_ms": slowest((t.scheduled, t.first_token) for t in times),
        "decode_ms": slowest((t.first_token, t.finished) for t in times),
        "prompt_tokens": requests[0].num_prompt,
        "output_tokens": sum(request.num_output for request in requests),
        "cached_tokens": requests[0].num_cached_tokens,
        "preemptions": sum(request.num_preemptions for request in requests),
        "drafted_tokens": sum(request.num_drafted for request in requests),
        "accepted_tokens": sum(request.num_accepted for request in requests),
    }


def _bytes(texts: Iterable[str]) -> np.ndarray:
    return np.array([text.encode("utf-8") for text in texts], dtype=np.object_)
