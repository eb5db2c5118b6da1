"""The token face, outwards: what a reply gathered -> named output arrays, in the shapes of TensorRT-LLM's backend.

Does not know pb_utils (it gives numpy arrays), threads, or where the tokens came from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from python_llm.engine.request import Request
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.reply import Batch, SequenceDelta
from python_llm.triton_io.tensor_values import bytes_array
from python_llm.triton_io.text_response import TextResponder
from python_llm.triton_io.user_request import TokenOutputs, UserRequest

_CONTEXT = 4
"""Ids of context that go with a delta. One with text would do; the last ones may be special tokens, which have none."""


class _Row:
    """One of the n sequences: what it has sent so far."""

    def __init__(self, prompt_ids: np.ndarray) -> None:
        self.context: deque[int] = deque(prompt_ids[-_CONTEXT:].tolist(), maxlen=_CONTEXT)
        self.num_characters = 0
        """Of the text of all ids that were sent."""
        self.num_shown = 0
        """Characters of the text as the text face shows it."""
        self.cumulative = 0.0


class TokenResponder:
    """Makes the responses of one user request; keeps what runs on from one to the next."""

    def __init__(
        self, asked: UserRequest, tokens: TokenOutputs, requests: Sequence[Request], tokenizer: Tokenizer
    ) -> None:
        self._asked = asked
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._others = TextResponder(asked, requests, tokenizer.token_text)
        self._rows = [_Row(asked.prompt_ids) for _ in requests]

    def outputs(self, batch: Batch) -> dict[str, np.ndarray]:
        """Output name -> array; empty when there is nothing to send: text came free, but no whole token.

        Row i of each output belongs to sequence i. The ids are those of whole tokens, up to the one in which the shown
        text ends.
        """
        if not (batch.is_first or batch.is_last or any(delta.tokens for delta in batch.deltas)):
            for row, delta in zip(self._rows, batch.deltas, strict=True):
                row.num_shown += len(delta.text)
            return {}
        outputs = self._others.outputs(batch)
        del outputs["text_output"]
        echo = self._asked.prompt_ids.tolist() if self._tokens.echo and batch.is_first else []
        kept = [delta.tokens[: len(delta.tokens) - delta.num_cut] for delta in batch.deltas]
        ids = [[*echo, *(token.token_id for token in tokens)] for tokens in kept]
        outputs["output_ids"] = _padded(ids, np.int32, self._tokens.pad_id)
        outputs["sequence_length"] = np.array([[len(row) for row in ids]], dtype=np.int32)
        if self._asked.returns.log_probs:
            log_probs = [[t.logprob.logprob for t in tokens if t.logprob is not None] for tokens in kept]
            for row, values in zip(self._rows, log_probs, strict=True):
                row.cumulative += sum(values)
            outputs["cum_log_probs"] = np.array([[row.cumulative for row in self._rows]], dtype=np.float32)
            outputs["output_log_probs"] = _padded(log_probs, np.float32, 0.0)
        if "finish_reason" in self._tokens.wanted and "finish_reason" not in outputs:
            outputs["finish_reason"] = bytes_array(
                delta.finish_reason.value if delta.finish_reason else "None" for delta in batch.deltas
            )
        if self._tokens.wanted & {"context_ids", "text_length"}:
            outputs.update(self._for_the_detokenizer(batch, ids, stands_alone=bool(echo)))
        return outputs

    def _for_the_detokenizer(self, batch: Batch, ids: list[list[int]], stands_alone: bool) -> dict[str, np.ndarray]:
        contexts = [[] if stands_alone else list(row.context) for row in self._rows]
        length = min(map(len, contexts))
        lengths = [
            self._text_length(row, delta, new, stands_alone)
            for row, delta, new in zip(self._rows, batch.deltas, ids, strict=True)
        ]
        for row, new in zip(self._rows, ids, strict=True):
            row.context.extend(new)
        return {
            "context_ids": np.array([[context[len(context) - length :] for context in contexts]], dtype=np.int32),
            "text_length": np.array([lengths], dtype=np.int32),
        }

    def _text_length(self, row: _Row, delta: SequenceDelta, ids: list[int], stands_alone: bool) -> int:
        """How many characters of the text of `ids` are shown: all, unless a stop string cut the last token."""
        skip = self._asked.params.skip_special_tokens
        length = len(self._tokenizer.decode(ids, skip_special_tokens=skip, continues=not stands_alone))
        num_echoed = 0
        if stands_alone:
            num_echoed = len(self._tokenizer.decode(self._asked.prompt_ids.tolist(), skip_special_tokens=skip))
        row.num_characters += length - num_echoed
        row.num_shown += len(delta.text)
        if delta.finish_reason is None:
            return length
        hidden = row.num_characters - row.num_shown
        row.num_characters = row.num_shown
        return length - hidden


def stop_outputs() -> dict[str, np.ndarray]:
    """The answer to a stop request, in either face: nothing was generated."""
    nothing = np.zeros((1, 1, 0), dtype=np.int32)
    zero = np.zeros((1, 1), dtype=np.int32)
    return {
        "text_output": bytes_array([""]),
        "output_ids": nothing,
        "sequence_length": zero,
        "context_ids": nothing,
        "text_length": zero,
    }


def _padded(rows: Sequence[Sequence[float]], dtype: type, padding: float) -> np.ndarray:
    """[1, rows, longest]."""
    array: np.ndarray = np.full((1, len(rows), max(map(len, rows))), padding, dtype=dtype)
    for index, row in enumerate(rows):
        array[0, index, : len(row)] = row
    return array
