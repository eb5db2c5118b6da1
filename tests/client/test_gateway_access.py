"""What becomes of a request before the application sees it, and of clients that stay silent or do not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from python_llm_client.gateway import access
from python_llm_client.gateway.access import Access
from python_llm_client.gateway.metrics import GatewayMetrics
from python_llm_client.gateway.settings import GatewaySettings

PATH = "/v1/completions"


async def for_ever() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


class Caller:
    """One request, and what was sent in answer to it."""

    def __init__(self, *parts: bytes, then: Receive = for_ever, reads: bool = True) -> None:
        """After `parts`, none of them the last unless it is empty, comes what `then` gives."""
        self._messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": bool(part)} for part in reversed(parts)
        ]
        self._then = then
        self._reads = reads
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        return self._messages.pop() if self._messages else await self._then()

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if not self._reads and message["type"] == "http.response.body":
            await for_ever()

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def error(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(b"".join(message.get("body", b"") for message in self.sent))["error"]
        return told


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    assert not message["more_body"]
    await Response(message["body"])(scope, receive, send)


class Gate:
    """The middleware under test, around `app`."""

    def __init__(self, app: ASGIApp, **settings: Any) -> None:
        self.metrics = GatewayMetrics()
        self._access = Access(app, GatewaySettings(**settings), self.metrics, frozenset({PATH}))

    async def ask(self, caller: Caller, path: str = PATH, method: str = "POST") -> Caller:
        # As uvicorn has it, so that a stream's end is watched as there.
        scope = {"type": "http", "path": path, "method": method, "headers": [], "asgi": {"spec_version": "2.3"}}
        await self._access(scope, caller.receive, caller.send)
        return caller

    def has_counted(self, status: int) -> bool:
        return f'requests_total{{path="{PATH}",status="{status}"}} 1.0' in self.metrics.page().decode()


def test_a_body_arrives_whole_whatever_its_pieces() -> None:
    caller = asyncio.run(Gate(echo).ask(Caller(b"a", b"bc", b"d", b"")))
    assert [message.get("body") for message in caller.sent] == [None, b"abcd"]


def test_a_client_that_sends_no_body_takes_nobodys_place_and_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_BODY_SECONDS", 0.05)
    gate = Gate(echo, max_concurrent=1)

    async def run() -> Caller:
        silent = asyncio.create_task(gate.ask(Caller(b"half")))
        await asyncio.sleep(0)
        assert (await gate.ask(Caller(b"a", b""))).status == 200
        return await silent

    silent = asyncio.run(run())
    assert silent.status == 408
    assert silent.error["code"] == "request_timeout"
    assert gate.has_counted(408)


def test_a_client_that_hangs_up_before_its_body_is_there_reaches_nobody() -> None:
    async def hang_up() -> Message:
        return {"type": "http.disconnect"}

    gate = Gate(echo)
    assert asyncio.run(gate.ask(Caller(b"half", then=hang_up))).sent == []
    assert gate.has_counted(499)


@pytest.mark.parametrize(
    ("path", "method", "size", "status"),
    [
        (PATH, "POST", 1 << 20, 200),
        (PATH, "POST", (8 << 20) + 1, 413),
        (PATH, "GET", 1 << 20, 413),
        ("/", "POST", 1 << 20, 413),
        ("/api/show", "POST", 1000, 200),
    ],
)
def test_only_requests_for_text_may_have_a_long_body(path: str, method: str, size: int, status: int) -> None:
    assert asyncio.run(Gate(echo).ask(Caller(b"a" * size, b""), path, method)).status == status


def test_a_client_that_does_not_read_its_stream_is_left_and_its_answer_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_SEND_SECONDS", 0.05)
    ended = []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def parts() -> Any:
            while True:
                yield b"part"

        try:
            await StreamingResponse(parts())(scope, receive, send)
        finally:
            ended.append(True)

    gate = Gate(answer, max_concurrent=1)
    caller = asyncio.run(gate.ask(Caller(b"", reads=False)))
    assert (caller.status, len(caller.sent), ended) == (200, 2, [True])
    assert gate.has_counted(200)
    assert "requests_running 0.0" in gate.metrics.page().decode()


def test_a_fault_of_the_application_counts_as_one() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    gate = Gate(fail)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(gate.ask(Caller(b"")))
    assert gate.has_counted(500)
