"""Deltas -> the server-sent events of OpenAI's streams.

What is equal in all chunks of a stream is written once: a chunk costs the JSON of its text.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from python_llm_client.answers import Delta, Usage
from python_llm_client.gateway.errors import ApiError, error_json
from python_llm_client.gateway.openai.reply import Heading, chat_logprobs, completion_logprobs, usage

DONE = b"data: [DONE]\n\n"


class _Chunks:
    def __init__(self, heading: Heading, object_name: str, *, include_usage: bool) -> None:
        self._fields = heading.fields(object_name)
        self._include_usage = include_usage
        # A model's name may hold a percent sign.
        fields = orjson.dumps(self._fields)[:-1].replace(b"%", b"%%")
        self._start = b"data: " + fields + b',"choices":[{"index":%d,'
        # OpenAI's chunks have the key, empty, when the usage is to come.
        self._end = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"

    def _chunk(self, index: int, rest: bytes) -> bytes:
        return self._start % index + rest + self._end

    def last(self, spent: Sequence[Usage]) -> bytes:
        """What ends a stream."""
        if not self._include_usage:
            return DONE
        return b"data: " + orjson.dumps({**self._fields, "choices": [], "usage": usage(spent)}) + b"\n\n" + DONE


class ChatChunks(_Chunks):
    """The chunks of one chat completion."""

    def __init__(self, heading: Heading, *, include_usage: bool) -> None:
        super().__init__(heading, "chat.completion.chunk", include_usage=include_usage)
        self._greeted: set[int] = set()

    def parts(self, delta: Delta) -> bytes:
        """The chunks of one delta."""
        chunks = b""
        index = delta.index
        if index not in self._greeted:
            self._greeted.add(index)
            greeting = b'"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
            chunks = self._chunk(index, greeting)
        if delta.text or delta.logprobs:
            logprobs = b"null" if delta.logprobs is None else orjson.dumps(chat_logprobs(delta.logprobs))
            said = b'"delta":{"content":' + orjson.dumps(delta.text) + b'},"logprobs":' + logprobs
            chunks += self._chunk(index, said + b',"finish_reason":null')
        if delta.finish_reason is not None:
            reason = orjson.dumps(delta.finish_reason)
            chunks += self._chunk(index, b'"delta":{},"logprobs":null,"finish_reason":' + reason)
        return chunks


class CompletionChunks(_Chunks):
    """The chunks of one completion of one or several prompts, `n` sequences each."""

    def __init__(self, heading: Heading, echoes: Sequence[str], n: int, *, include_usage: bool) -> None:
        super().__init__(heading, "text_completion", include_usage=include_usage)
        self._n = n
        self._echoes = [echo for echo in echoes for _ in range(n)]
        self._offsets = [0] * len(self._echoes)

    def parts(self, delta: Delta, prompt: int) -> bytes:
        """The chunk of one delta of an answer to prompt number `prompt`."""
        index = prompt * self._n + delta.index
        text = self._echoes[index] + delta.text
        self._echoes[index] = ""
        logprobs = b"null"
        if delta.logprobs is not None:
            logprobs = orjson.dumps(completion_logprobs(delta.logprobs, self._offsets[index]))
            self._offsets[index] += sum(len(entry.chosen.text) for entry in delta.logprobs)
        elif not text and delta.finish_reason is None:
            return b""
        reason = b"null" if delta.finish_reason is None else orjson.dumps(delta.finish_reason)
        return self._chunk(
            index, b'"text":' + orjson.dumps(text) + b',"logprobs":' + logprobs + b',"finish_reason":' + reason
        )


def error_event(error: ApiError) -> bytes:
    """For what goes wrong when the status has been sent already."""
    return b"data: " + error_json(error.openai_body()) + b"\n\n"
