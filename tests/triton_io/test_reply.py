"""How outputs gather into responses, without Triton."""

from __future__ import annotations

import gc
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from python_llm.engine.plan import SampledToken
from python_llm.engine.request import FinishReason, Output
from python_llm.errors import CancelledError, EngineError
from python_llm.triton_io.reply import Batch, Reply

REQUESTS: list[Any] = [object(), object()]


class Watched:
    """A reply with a record of its wake-ups and cancellations."""

    def __init__(self, num_sequences: int = 1, *, stream: bool = True, interval: int = 1) -> None:
        self.wakes = 0
        self.cancelled: list[Any] = []
        self.finished: list[Any] = []
        self.reply = Reply(
            num_sequences,
            stream=stream,
            interval=interval,
            wake=self._wake,
            cancel=self.cancelled.extend,
            finish=self.finished.extend,
        )
        self.reply.requests = REQUESTS[:num_sequences]

    def _wake(self) -> None:
        self.wakes += 1

    def push(self, text: str = "", ids: tuple[int, ...] = (), *, index: int = 0, **kwargs: Any) -> None:
        self.reply.push(index, Output(REQUESTS[index], text, tuple(SampledToken(i) for i in ids), **kwargs))

    def take(self) -> Batch:
        batch = self.reply.take()
        assert batch is not None
        return batch


def test_a_stream_sends_each_output_when_nobody_is_busy() -> None:
    watched = Watched()
    watched.push("a", (1,))
    assert watched.wakes == 1
    batch = watched.take()
    assert (batch.deltas[0].text, batch.is_first, batch.is_last) == ("a", True, False)
    assert watched.reply.take() is None
    watched.push("b", (2,), finish_reason=FinishReason.STOP)
    assert watched.wakes == 2
    batch = watched.take()
    assert (batch.deltas[0].text, batch.is_first, batch.is_last) == ("b", False, True)
    assert batch.deltas[0].finish_reason is FinishReason.STOP
    assert watched.reply.closed and watched.reply.take() is None


def test_what_comes_while_the_sender_is_busy_goes_out_together() -> None:
    watched = Watched()
    watched.push("a", (1,))
    watched.take()
    watched.push("b", (2,))
    watched.push("c", (3,), finish_reason=FinishReason.LENGTH)
    assert watched.wakes == 1, "the sender that is at work looks again by itself"
    batch = watched.take()
    assert batch.deltas[0].text == "bc" and batch.is_last
    assert [token.token_id for token in batch.deltas[0].tokens] == [2, 3]


def test_interval_is_the_least_number_of_tokens_but_the_last_response_may_have_fewer() -> None:
    watched = Watched(interval=3)
    watched.push("a", (1,))
    watched.push("b", (2,))
    assert watched.wakes == 0 and watched.reply.take() is None
    watched.push("c", (3,))
    assert watched.wakes == 1 and watched.take().deltas[0].text == "abc"
    assert watched.reply.take() is None
    watched.push("d", (4,), finish_reason=FinishReason.LENGTH)
    assert watched.take().deltas[0].text == "d"


def test_text_without_a_whole_token_is_sent_too() -> None:
    watched = Watched()
    watched.push("a")
    assert watched.take().deltas[0].text == "a"


def test_without_stream_there_is_one_response_when_all_sequences_have_ended() -> None:
    watched = Watched(2, stream=False)
    watched.push("a", (1,), index=0)
    watched.push("b", (2,), index=0, finish_reason=FinishReason.STOP)
    watched.push("c", (3,), index=1)
    assert watched.wakes == 0 and watched.reply.take() is None
    watched.push("d", (4,), index=1, finish_reason=FinishReason.LENGTH)
    batch = watched.take()
    assert [delta.text for delta in batch.deltas] == ["ab", "cd"]
    assert batch.is_first and batch.is_last


def test_a_finished_sequence_keeps_its_reason_in_later_responses() -> None:
    watched = Watched(2)
    watched.push("a", (1,), index=0, finish_reason=FinishReason.STOP)
    assert not watched.take().is_last
    watched.push("b", (2,), index=1, finish_reason=FinishReason.LENGTH)
    batch = watched.take()
    assert [delta.finish_reason for delta in batch.deltas] == [FinishReason.STOP, FinishReason.LENGTH]
    assert batch.deltas[0].text == "" and batch.is_last


def test_one_failing_sequence_ends_the_reply_and_stops_its_siblings() -> None:
    watched = Watched(2, stream=False)
    watched.push(index=0, error=EngineError("broken"))
    assert watched.cancelled == [REQUESTS[1]]
    batch = watched.take()
    assert batch.is_last and isinstance(batch.error, EngineError)
    watched.push(index=1, error=CancelledError("sibling"))
    assert watched.wakes == 1 and watched.reply.take() is None


def test_stopping_ends_the_sequences_with_what_they_have() -> None:
    watched = Watched(2)
    watched.reply.stop()
    assert (watched.finished, watched.cancelled) == (REQUESTS, [])
    watched.push("he", (1,), index=0, finish_reason=FinishReason.CANCELLED)
    watched.push(index=1, finish_reason=FinishReason.CANCELLED)
    batch = watched.take()
    assert batch.is_last and batch.error is None
    assert [(delta.text, delta.finish_reason) for delta in batch.deltas] == [
        ("he", FinishReason.CANCELLED),
        ("", FinishReason.CANCELLED),
    ]


def test_no_output_is_lost_or_reordered_between_threads() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        texts = [chr(0x100 + i) for i in range(300)]
        ready = threading.Semaphore(0)
        received: list[str] = []
        watched = Watched()
        watched.reply = Reply(
            1, stream=True, interval=rng.choice([1, 4]), wake=ready.release, cancel=[].extend, finish=[].extend
        )

        def push_all(watched: Watched = watched, texts: list[str] = texts) -> None:
            for number, text in enumerate(texts):
                reason = FinishReason.LENGTH if number == len(texts) - 1 else None
                watched.push(text, (number,), finish_reason=reason)

        thread = threading.Thread(target=push_all)
        thread.start()
        take: Callable[[], Batch | None] = watched.reply.take
        while not watched.reply.closed:
            assert ready.acquire(timeout=10), "nobody was woken for the rest"
            while (batch := take()) is not None:
                received.append(batch.deltas[0].text)
        thread.join()
        assert "".join(received) == "".join(texts)


def test_a_finished_reply_needs_no_garbage_collection() -> None:
    """Its wake-up and its requests lead back to it: were that circle left, each request would stay for minutes."""

    holder: dict[str, Reply] = {}

    def wake() -> None:
        holder["reply"].take()

    reply = holder["reply"] = Reply(1, stream=True, interval=1, wake=wake, cancel=[].extend, finish=[].extend)
    request: Any = types.SimpleNamespace(sink=reply.push)
    reply.requests = [request]
    reply.push(0, Output(request, "a", finish_reason=FinishReason.STOP))
    assert reply.closed
    gone = weakref.ref(reply)
    gc.disable()
    try:
        holder.clear()
        del reply, request
        assert gone() is None
    finally:
        gc.enable()
