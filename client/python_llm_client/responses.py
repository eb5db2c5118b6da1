"""Triton's responses to one request -> deltas. Does not know connections.

Reads the tensors' bytes itself: this runs for each response of each stream, and tritonclient's arrays cost more than
what is in them.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from python_llm_client.answers import Delta, Stats, TokenLogprob, TokenLogprobs, Usage

_NUMBERS = {"UINT32": "I", "INT32": "i", "FP32": "f"}


class ResponseReader:
    """Keeps what runs on from one response of a request to the next. Not thread-safe."""

    def __init__(self, num_top: int = 0) -> None:
        """`num_top`: how many of the likeliest tokens were asked for beside each chosen one."""
        self._num_top = num_top
        self.over = False
        """The last response has been read."""
        self._ended: set[int] = set()
        self._prompt_tokens = 0
        self._output_tokens = 0

    def read(self, message: Any) -> list[Delta]:
        """`message`: a protobuf ModelInferResponse. Sequences without news have no delta.

        The last delta of the last response has the usage, and the stats when they came.
        """
        self.over = message.parameters["triton_final_response"].bool_param
        outputs = {
            output.name: _values(output.datatype, raw)
            for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
        }
        texts = outputs.get("text_output", [])
        counts = outputs.get("num_output_tokens")
        reasons = outputs.get("finish_reason")
        logprobs = outputs.get("logprobs")
        cumulative = outputs.get("cumulative_logprob")
        if prompt_tokens := outputs.get("num_input_tokens"):
            self._prompt_tokens = prompt_tokens[0]
        deltas = []
        for index, text in enumerate(texts):
            tokens = counts[index] if counts else 0
            reason = _reason(reasons[index]) if reasons else None
            if index in self._ended or not (text or tokens or reason):
                continue
            delta = Delta(index, text, tokens, reason)
            self._output_tokens += tokens
            if logprobs:
                delta.logprobs = read_logprobs(logprobs[index], self._num_top)
            if cumulative:
                delta.cumulative_logprob = cumulative[index]
            if reason is not None:
                self._ended.add(index)
            deltas.append(delta)
        if self.over:
            stats = outputs.get("stats")
            deltas = self.end(deltas, read_stats(stats[0]) if stats and stats[0] else None)
        return deltas

    def end(self, deltas: list[Delta] | None = None, stats: Stats | None = None) -> list[Delta]:
        """The last deltas, with what the request has cost; one of its own when the end came alone."""
        deltas = deltas or [Delta(0, "", 0)]
        deltas[-1].stats = stats
        deltas[-1].usage = Usage(self._prompt_tokens, self._output_tokens, stats.cached_tokens if stats else None)
        return deltas


def _values(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "BYTES":
        # Each element: its length in 4 bytes, then UTF-8.
        texts, at = [], 0
        while at < len(raw):
            (length,) = struct.unpack_from("<I", raw, at)
            texts.append(raw[at + 4 : at + 4 + length].decode("utf-8"))
            at += 4 + length
        return texts
    kind = _NUMBERS.get(datatype)
    return [] if kind is None else list(struct.unpack(f"<{len(raw) // 4}{kind}", raw))


def _reason(text: str) -> str | None:
    # The wire format says the string "None" until a sequence has ended.
    return None if text in {"", "None"} else text


def read_stats(text: str) -> Stats:
    """The output `stats`; what a later server adds to it is left out."""
    return Stats(**{name: value for name, value in json.loads(text).items() if name in Stats.__slots__})


def read_logprobs(text: str, num_top: int) -> tuple[TokenLogprobs, ...]:
    """The output `logprobs` of one sequence: a list of {token id: {"logprob", "rank", "decoded_token"}}.

    The chosen token is the first of its entry, whether or not it is one of the `num_top` likeliest.
    """
    return tuple(_token(entry, num_top) for entry in json.loads(text)) if text else ()


def _token(entry: dict[str, dict[str, Any]], num_top: int) -> TokenLogprobs:
    tokens = [
        TokenLogprob(int(token_id), told["decoded_token"] or "", told["logprob"], told["rank"])
        for token_id, told in entry.items()
    ]
    best_first = sorted(tokens, key=lambda token: -token.logprob)
    return TokenLogprobs(tokens[0], tuple(best_first[:num_top]))
