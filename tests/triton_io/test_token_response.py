"""Ids out of the token face, back through the detokenizer: the text must be that of the text face."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_llm.engine.plan import SampledToken, TokenLogprob
from python_llm.engine.request import Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.engine.text import TextStream
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.detokenizer_face import detokenize
from python_llm.triton_io.io_spec import OUTPUT_NAMES
from python_llm.triton_io.reply import Reply
from python_llm.triton_io.text_response import TextResponder
from python_llm.triton_io.token_response import TokenResponder
from python_llm.triton_io.user_request import Returns, TokenOutputs, UserRequest
from spaced_tokenizer import EOS_ID as SPACED_EOS
from spaced_tokenizer import spaced_tokenizer
from toy_tokenizer import EOS_ID, toy_tokenizer

TOY = toy_tokenizer()
SPACED = spaced_tokenizer()


def _nothing(requests: list[Request]) -> None:
    """There is no engine."""


class Run:
    """What a client of either face gets when a model samples `sequences`; `chance` decides what coalesces."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: list[int],
        sequences: list[list[int]],
        params: SamplingParams,
        *,
        stream: bool = True,
        echo: bool = False,
        chance: random.Random | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.prompt = np.array(prompt, dtype=np.int32)
        self.params = replace(params, n=len(sequences), eos_token_ids=tuple(tokenizer.eos_token_ids))
        self.texts = [""] * len(sequences)
        self.responses: list[dict[str, np.ndarray]] = []
        self.shown: list[str] = [""] * len(sequences)
        reply = Reply(len(sequences), stream=stream, interval=1, wake=lambda: None, cancel=_nothing, finish=_nothing)
        requests = [self._request(partial(reply.push, index)) for index in range(len(sequences))]
        reply.requests = requests
        asked = UserRequest(self.prompt, "", self.params, stream, Returns(log_probs=True), None)
        tokens = TokenOutputs(OUTPUT_NAMES, -1, echo)
        text_face = TextResponder(asked, requests, tokenizer.token_text)
        token_face = TokenResponder(asked, tokens, requests, tokenizer)
        chance = chance or random.Random(0)
        feeds = [iter(sequence) for sequence in sequences]
        while not reply.closed:
            for index, request in enumerate(requests):
                if request.times.finished is None:
                    self._sample(request, next(feeds[index]))
            if chance.random() < 0.5 or all(request.times.finished is not None for request in requests):
                while (batch := reply.take()) is not None:
                    for index, text in enumerate(text_face.outputs(batch)["text_output"]):
                        self.texts[index] += text.decode()
                    if outputs := token_face.outputs(batch):
                        self._receive(outputs)

    def _request(self, sink: object) -> Request:
        text = TextStream(self.tokenizer.token_bytes, self.tokenizer.special_token_ids, self.params)
        limit = self.params.max_tokens or 16
        return Request(self.prompt, self.params, seed=0, max_new_tokens=limit, sink=sink, text=text)  # type: ignore[arg-type]

    @staticmethod
    def _sample(request: Request, token_id: int) -> None:
        reason = request.append(SampledToken(token_id, TokenLogprob(token_id, -float(token_id), 1)))
        if reason is not None:
            request.times.finished = 0.0
        if (output := request.release(reason)) is not None:
            request.sink(output)

    def _receive(self, outputs: dict[str, np.ndarray]) -> None:
        self.responses.append(outputs)
        names = ("output_ids", "sequence_length", "context_ids", "text_length")
        parameters = {"skip_special_tokens": self.params.skip_special_tokens}
        answer = detokenize({name: outputs[name] for name in names}, parameters, self.tokenizer)
        for index, text in enumerate(answer["text_output"]):
            self.shown[index] += text.decode()

    def ids(self, index: int = 0) -> list[int]:
        """All ids of one sequence."""
        found: list[int] = []
        for response in self.responses:
            found += response["output_ids"][0, index, : response["sequence_length"][0, index]].tolist()
        return found


def written(text: str, length: int = 40) -> list[int]:
    """The bytes of `text`, and filling up to `length`."""
    return [*text.encode(), *[ord(".")] * length][:length]


STREAMS = ["plain words", "中文字符，测试", "👨‍👩‍👧 family 🏽 é", "é", "", "stop STOP st", "\ufffd ok"]


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(
        st.one_of(st.sampled_from(STREAMS).map(written), st.lists(st.integers(0, 257), min_size=40, max_size=40)),
        min_size=1,
        max_size=3,
    ),
    stop=st.lists(st.sampled_from(["STOP", "st", "文字", "👧 f", ".."]), max_size=2, unique=True),
    words=st.lists(st.sampled_from([(115, 116), (46, 46, 46), (0xE6,)]), max_size=1),
    include=st.booleans(),
    skip=st.booleans(),
    seed=st.integers(0, 99),
)
def test_detokenized_text_is_the_text_faces(
    texts: list[list[int]],
    stop: list[str],
    words: list[tuple[int, ...]],
    include: bool,
    skip: bool,
    seed: int,
) -> None:
    params = SamplingParams(
        max_tokens=30,
        stop=tuple(stop),
        stop_words_token_ids=tuple(words),
        include_stop_str_in_output=include,
        skip_special_tokens=skip,
    )
    streamed = Run(TOY, [1, 2], texts, params, chance=random.Random(seed))
    single = Run(TOY, [1, 2], texts, params, stream=False)
    assert streamed.shown == streamed.texts == single.shown
    assert [streamed.ids(i) for i in range(len(texts))] == [single.ids(i) for i in range(len(texts))]
    assert len(single.responses) == 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, SPACED_EOS), min_size=12, max_size=12), st.integers(0, 99))
def test_spaces_survive_where_text_that_stands_alone_would_lose_one(ids: list[int], seed: int) -> None:
    run = Run(SPACED, [1, 2], [ids], SamplingParams(max_tokens=12), chance=random.Random(seed))
    assert run.shown == run.texts


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([[1], [2], [3], [4], [5], [6], [7], [8, 9, 10, 11]]), min_size=12, max_size=12))
def test_context_is_enough_for_a_detokenizer_that_knows_nothing_of_ours(pieces: list[list[int]]) -> None:
    """The rule that clients of other servers use: what the ids add to the decoding of the context."""
    ids = [token_id for piece in pieces for token_id in piece][:12]
    whole = ids[: max(i for i in range(13) if i == 0 or ids[i - 1] not in (8, 9, 10))]
    if not whole:
        return
    run = Run(SPACED, [1, 2], [whole], SamplingParams(max_tokens=len(whole)))
    decode = SPACED._backend.decode
    text = ""
    for response in run.responses:
        context, new = response["context_ids"][0, 0].tolist(), response["output_ids"][0, 0].tolist()
        assert "\ufffd" not in decode(new), "a delta begins and ends on whole characters"
        text += decode([*context, *new])[len(decode(context)) :]
    assert text == run.texts[0]
    assert decode([1, 2, *whole]) == decode([1, 2]) + text


def test_a_stop_string_that_ends_within_a_token_cuts_its_text() -> None:
    run = Run(SPACED, [1], [[1, 2, 3, 4]], SamplingParams(stop=("aside",), max_tokens=9))
    assert run.shown == run.texts == [" the se"]
    assert run.ids() == [1, 2], "up to the token in which the text ends"


def test_neither_the_end_token_nor_a_stop_word_is_among_the_ids() -> None:
    ended = Run(TOY, [1], [[*b"ab", EOS_ID]], SamplingParams())
    assert (ended.ids(), ended.shown) == (list(b"ab"), ["ab"])
    assert ended.responses[-1]["finish_reason"].tolist() == [b"stop"]
    stopped = Run(TOY, [1], [[*b"abcd"]], SamplingParams(stop_words_token_ids=((99, 100),)))
    assert (stopped.ids(), stopped.shown) == (list(b"ab"), ["ab"])
    both = Run(TOY, [1], [[*b"abc", EOS_ID]], SamplingParams(stop_words_token_ids=((99, EOS_ID),)))
    assert (both.ids(), both.shown) == (list(b"ab"), ["ab"])


def test_shapes_are_those_of_tensorrt_llm() -> None:
    run = Run(TOY, [1], [[*b"abcd"], [*b"xy", EOS_ID]], SamplingParams(max_tokens=4), stream=False)
    (response,) = run.responses
    assert response["output_ids"].tolist() == [[[97, 98, 99, 100], [120, 121, -1, -1]]]
    assert response["sequence_length"].tolist() == [[4, 2]]
    assert response["output_log_probs"].tolist() == [[[-97, -98, -99, -100], [-120, -121, 0, 0]]]
    assert response["cum_log_probs"].tolist() == [[-394, -241]]
    assert response["finish_reason"].tolist() == [b"length", b"stop"]
    for name, array in response.items():
        assert array.dtype == np.object_ or array.dtype in (np.int32, np.float32), name


def test_log_probs_are_for_the_new_ids_and_their_sum_runs_on() -> None:
    run = Run(TOY, [1], [written("some text", 16)], SamplingParams(max_tokens=16))
    total = 0.0
    for response in run.responses:
        assert response["output_log_probs"].shape == response["output_ids"].shape
        total += float(response["output_log_probs"].sum())
        assert response["cum_log_probs"][0, 0] == pytest.approx(total)


@pytest.mark.parametrize("prompt", [[*"é€".encode()], [0xE2], [EOS_ID, 65]])
def test_the_prompt_comes_before_the_output_when_asked_for(prompt: list[int]) -> None:
    run = Run(TOY, prompt, [[*b"xSTOP"]], SamplingParams(stop=("STOP",)), stream=False, echo=True)
    assert run.ids() == [*prompt, *b"x"]
    assert run.shown == [TOY.decode(prompt) + "x"]
    assert run.responses[0]["context_ids"].shape == (1, 1, 0), "nothing comes before the prompt"
