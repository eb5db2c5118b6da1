"""Stopping by id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from python_llm.engine.request import Request
from python_llm.errors import InvalidRequestError
from python_llm.triton_io.reply import Reply
from python_llm.triton_io.running_requests import RunningRequests


@pytest.fixture
def stopped() -> Iterator[list[str]]:
    yield []


def reply(stopped: list[str], name: str) -> Reply:
    def finish(requests: list[Request]) -> None:
        stopped.append(name)

    def cancel(requests: list[Request]) -> None:
        raise AssertionError("a stopped request ends without error")

    return Reply(1, stream=True, interval=1, wake=lambda: None, cancel=cancel, finish=finish)


def test_all_requests_with_the_id_stop_and_no_other(stopped: list[str]) -> None:
    running = RunningRequests()
    for name, request_id in (("a", "1"), ("b", "1"), ("c", "2")):
        running.add(request_id, reply(stopped, name))
    running.stop("1")
    assert stopped == ["a", "b"]
    running.stop("nobody's")
    assert len(stopped) == 2


def test_what_has_ended_is_forgotten(stopped: list[str]) -> None:
    running = RunningRequests()
    first, second = reply(stopped, "a"), reply(stopped, "b")
    running.add("1", first)
    running.add("1", second)
    running.remove("1", first)
    running.stop("1")
    assert stopped == ["b"]
    running.remove("1", second)
    running.remove("1", second)
    assert len(running) == 0


def test_no_id_is_no_id(stopped: list[str]) -> None:
    running = RunningRequests()
    running.add("", reply(stopped, "a"))
    assert len(running) == 0
    with pytest.raises(InvalidRequestError, match="must carry the request id"):
        running.stop("")
