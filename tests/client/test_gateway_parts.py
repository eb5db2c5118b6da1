"""The gateway's parts that need no server: keys, the choice of a server, streams that are merged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from python_llm_client.answers import Delta
from python_llm_client.errors import UsageError
from python_llm_client.failures import (
    ClientError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
)
from python_llm_client.gateway import servers
from python_llm_client.gateway.keys import KeyRing, add_key, read_keys
from python_llm_client.gateway.merge import merged
from python_llm_client.gateway.servers import ServerPool
from python_llm_client.request import GenerationRequest


def test_a_key_is_found_by_itself_and_kept_as_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    first, second = add_key(file, "ann", 60, 2), add_key(file, "bob")
    assert first not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing(read_keys(file))
    found = ring.find(first)
    assert found is not None
    assert (found.name, found.requests_per_minute, found.max_concurrent) == ("ann", 60, 2)
    assert ring.find(second) is not None
    assert ring.find(first[:-1]) is ring.find("") is ring.find("\udcff") is None
    with pytest.raises(UsageError, match="has a key for 'ann' already"):
        add_key(file, "ann")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not valid"),
        ('{"keys": []}', "keys: List should have at least 1 item"),
        ('{"keys": [{"name": "a", "sha256": "short"}]}', "keys.0.sha256"),
        ('{"keys": [{"name": "a", "sha256": "%s", "rpm": 3}]}' % ("0" * 64), "keys.0.rpm"),
        (json.dumps({"keys": [{"name": name, "sha256": "0" * 64} for name in "ab"]}), "the sha256 '000"),
    ],
)
def test_a_key_file_that_is_wrong_says_where(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_keys(tmp_path / "keys.json")
    assert part in str(caught.value)


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "keys.json")


class Answering:
    """Plays the client of one server: gives `parts`, then raises `error`."""

    def __init__(self, parts: list[str], error: ClientError | None = None) -> None:
        self.parts, self.error, self.asked, self.closed = parts, error, 0, 0

    async def responses(self, request: GenerationRequest, timeout: float) -> AsyncGenerator[list[Delta], None]:
        self.asked += 1
        try:
            for part in self.parts:
                yield [Delta(0, part, 1)]
            if self.error is not None:
                raise self.error
        finally:
            self.closed += 1


def pool_of(*clients: Answering) -> ServerPool:
    pool = ServerPool([f"server{i}:1" for i in range(len(clients))])
    for server, client in zip(pool._servers, clients, strict=True):
        server.client = client  # type: ignore[assignment]
        server.models, server.fault = {"m": frozenset()}, None
    return pool


async def texts(pool: ServerPool) -> list[str]:
    request = GenerationRequest("m", prompt="a")
    return [delta.text async for deltas in pool.responses(request, 5.0) for delta in deltas]


def test_a_server_that_refuses_or_is_away_is_followed_by_the_next() -> None:
    full, away = Answering([], UnavailableError("full")), Answering([], UnreachableError("away"))
    good = Answering(["a", "b"])
    pool = pool_of(full, away, good)
    assert asyncio.run(texts(pool)) == ["a", "b"]
    assert list(pool.status().values()) == ["ok", "away", "ok"]
    assert [server.in_flight for server in pool._servers] == [0, 0, 0]
    asyncio.run(texts(pool))
    assert away.asked == 1, "while it is away it comes last"


@pytest.mark.parametrize("error", [ConnectionLostError("gone"), InvalidRequestError("wrong")])
def test_no_other_server_is_asked_after_the_first_part_or_for_a_wrong_request(error: ClientError) -> None:
    begun = Answering(["a"] if isinstance(error, ConnectionLostError) else [], error)
    other = Answering(["b"])
    with pytest.raises(type(error)):
        asyncio.run(texts(pool_of(begun, other)))
    assert other.asked == 0


def test_when_all_refuse_the_last_refusal_is_the_answer() -> None:
    with pytest.raises(UnavailableError, match="full 2"):
        asyncio.run(texts(pool_of(*(Answering([], UnavailableError(f"full {i}")) for i in range(3)))))


def test_the_least_loaded_server_is_asked() -> None:
    first, second = Answering(["a", "b"]), Answering(["c"])
    pool = pool_of(first, second)

    async def run() -> None:
        held = pool.responses(GenerationRequest("m", prompt="a"), 5.0)
        await anext(held)
        assert await texts(pool) == ["c"]
        await held.aclose()
        assert (first.closed, [server.in_flight for server in pool._servers]) == (1, [0, 0])
        assert await texts(pool) == ["a", "b"]

    asyncio.run(run())


class Listing:
    """Plays the client of one server that tells its models; `said` may hold an error instead of names."""

    def __init__(self, said: list[str] | Exception, inputs: Exception | None = None) -> None:
        self.said, self.inputs_error, self.asked = said, inputs, 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def models(self) -> list[str]:
        self.asked += 1
        await self.may_answer.wait()
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    async def inputs(self, model: str) -> frozenset[str]:
        if self.inputs_error is not None:
            raise self.inputs_error
        return frozenset({"text_input", "sampling_parameters"})

    async def close(self) -> None: ...


def listing_pool(*clients: Listing) -> ServerPool:
    pool = ServerPool([f"server{i}:1" for i in range(len(clients))])
    for server, client in zip(pool._servers, clients, strict=True):
        server.client = client  # type: ignore[assignment]
    return pool


async def look_again(pool: ServerPool) -> None:
    await pool._refresh()


def test_a_model_is_there_as_soon_as_its_own_server_has_told() -> None:
    async def run() -> None:
        quick, slow = Listing(["m"]), Listing(["other"])
        slow.may_answer.clear()
        pool = listing_pool(quick, slow)
        looking = asyncio.create_task(look_again(pool))
        while not pool._servers[0].models:
            await asyncio.sleep(0)
        assert (await pool.model("m")).since > 0
        slow.may_answer.set()
        await looking

    asyncio.run(run())


def test_a_model_whose_server_is_down_is_unavailable_and_not_unknown() -> None:
    async def run() -> None:
        up, down = Listing(["m"]), Listing(["gone"])
        pool = listing_pool(up, down)
        await look_again(pool)
        down.said = UnreachableError("away", "UNAVAILABLE")
        await look_again(pool)
        with pytest.raises(UnreachableError, match="'gone'"):
            await pool.model("gone")
        with pytest.raises(NotFoundError, match="there are: m"):
            await pool.model("nobody")
        assert [model.name for model in pool.models()] == ["m"]

    asyncio.run(run())


@pytest.mark.parametrize("error", [UnreachableError("away"), ConnectionLostError("gone")])
def test_a_server_that_goes_away_while_it_tells_its_models_is_passed_over(error: ClientError) -> None:
    async def run() -> None:
        client = Listing(["m"])
        pool = listing_pool(client)
        await look_again(pool)
        client.inputs_error = error
        await look_again(pool)
        assert list(pool.status().values()) == [str(error)]
        assert pool._servers[0].models

    asyncio.run(run())


def test_a_model_that_is_unloaded_meanwhile_is_left_out() -> None:
    async def run() -> None:
        pool = listing_pool(Listing(["m"], UnavailableError("unloaded")))
        await look_again(pool)
        assert (pool.models(), list(pool.status().values())) == ([], ["ok"])

    asyncio.run(run())


def test_a_busy_server_may_be_late_and_a_silent_one_is_passed_over() -> None:
    async def run() -> None:
        client = Listing(["m"])
        pool = listing_pool(client)
        await look_again(pool)
        client.said = DeadlineExceededError("late", "DEADLINE_EXCEEDED")
        seen = []
        for _ in range(3):
            await look_again(pool)
            seen.append(pool._servers[0].fault)
        assert seen == [None, None, "late"]
        client.said = ["m"]
        await look_again(pool)
        assert pool.models()

    asyncio.run(run())


def test_all_who_look_for_an_unknown_model_at_once_share_one_look() -> None:
    async def run() -> None:
        client = Listing(["m"])
        pool = listing_pool(client)
        client.may_answer.clear()
        looks = [asyncio.create_task(pool.model("m")) for _ in range(50)]
        await asyncio.sleep(0)
        looks[0].cancel()
        await asyncio.sleep(0)
        client.may_answer.set()
        found = await asyncio.gather(*looks, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert {model.name for model in found[1:] if not isinstance(model, BaseException)} == {"m"}
        assert client.asked == 1

    asyncio.run(run())


def test_the_gateway_looks_on_after_a_fault_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servers, "_REFRESH_SECONDS", 0)

    async def run() -> None:
        client = Listing(RuntimeError("unforeseen"))
        pool = listing_pool(client)
        await pool.start()
        assert list(pool.status().values()) == ["RuntimeError: unforeseen"]
        client.said = ["m"]
        while not pool.models():
            await asyncio.sleep(0)
        await pool.stop()

    asyncio.run(run())
    assert "could not be looked up" in caplog.text


def test_sources_wait_while_nobody_takes_what_they_have() -> None:
    made = 0

    async def source() -> AsyncGenerator[int, None]:
        nonlocal made
        while True:
            made += 1
            yield made
            await asyncio.sleep(0)

    async def run() -> None:
        async with contextlib.aclosing(merged([source(), source()])) as items:
            await anext(items)
            for _ in range(1000):
                await asyncio.sleep(0)

    asyncio.run(run())
    assert made < 100


def test_merged_streams_keep_their_own_order_and_end_together() -> None:
    closed: list[int] = []

    async def source(number: int, fails: bool = False) -> AsyncGenerator[int, None]:
        try:
            for item in range(3):
                await asyncio.sleep(0)
                yield item
            if fails:
                raise ValueError(number)
            await asyncio.sleep(3600 if number == 9 else 0)
        finally:
            closed.append(number)

    async def run() -> None:
        got = [pair async for pair in merged([source(0), source(1)])]
        assert sorted(got) == [(n, item) for n in (0, 1) for item in range(3)]
        with pytest.raises(ValueError, match="1"):
            async for _ in merged([source(9), source(1, fails=True)]):
                pass
        assert sorted(closed) == [0, 1, 1, 9]
        async with contextlib.aclosing(merged([source(9), source(9)])) as left:
            await anext(left)
        assert sorted(closed) == [0, 1, 1, 9, 9, 9]

    asyncio.run(run())
