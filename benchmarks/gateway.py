"""What the gateway costs: the same streams over gRPC straight from Triton and through the gateway, by turns in one run.

    python benchmarks/gateway.py [--streams 32] [--tokens 64] [--rounds 3]

Prints output tokens per second and time to first token of both, and their ratio. Load generator, gateway, server and
engine share the machine's cores: on few of them the gateway takes time from the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from python_llm_client.async_client import AsyncClient
from python_llm_client.local_server import LocalServer, free_ports, start_server

REPOSITORY = Path(__file__).parent.parent / "model_repository"
MODEL = "smollm2"

Stream = Callable[[list[dict[str, str]], int], AsyncIterator[int | None]]
"""Yields None for each part that came, and at last the number of tokens."""


@dataclass(frozen=True)
class Round:
    """All streams of one way, once."""

    tokens_per_second: float
    first_ms: float
    """Median time to the first part."""
    parts: int
    """Responses or events; a busy server puts several tokens into one."""


def sampling(tokens: int) -> dict[str, object]:
    return {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}


def straight(client: AsyncClient) -> Stream:
    async def stream(messages: list[dict[str, str]], tokens: int) -> AsyncIterator[int | None]:
        async for delta in client.stream(MODEL, messages=messages, sampling=sampling(tokens)):
            yield None
            if delta.usage is not None:
                yield delta.usage.output_tokens

    return stream


def through(session: aiohttp.ClientSession, url: str) -> Stream:
    async def stream(messages: list[dict[str, str]], tokens: int) -> AsyncIterator[int | None]:
        body = {"model": MODEL, "messages": messages, "stream": True, **sampling(tokens)}
        body["stream_options"] = {"include_usage": True}
        async with session.post(url + "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    if b'"choices":[]' in line:
                        yield json.loads(line[6:])["usage"]["completion_tokens"]
                    else:
                        yield None

    return stream


async def measure(stream: Stream, streams: int, tokens: int, name: str) -> Round:
    """`name` makes prompts differ between rounds, so that none finds its own in the prefix index."""
    counts, firsts, parts = [], [], 0

    async def one(number: int) -> None:
        nonlocal parts
        start, first = time.monotonic(), None
        question = f"{name}, story {number}: tell me about the sea, the moon, and what the old sailor saw there."
        async for part in stream([{"role": "user", "content": question}], tokens):
            if part is None:
                first = first or time.monotonic()
                parts += 1
            else:
                counts.append(part)
        firsts.append(1e3 * ((first or time.monotonic()) - start))

    start = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(streams)))
    seconds = time.monotonic() - start
    assert counts == [tokens] * streams, "every stream must have come whole"
    return Round(streams * tokens / seconds, statistics.median(firsts), parts)


@contextlib.contextmanager
def running_gateway(server: LocalServer) -> Iterator[str]:
    port = free_ports()[0]
    command = [sys.executable, "-m", "python_llm_client", "gateway", f"--port={port}"]
    process = subprocess.Popen([*command, f"--triton=127.0.0.1:{server.grpc_port}"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the gateway did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def compare(server: LocalServer, url: str, streams: int, tokens: int, rounds: int) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        AsyncClient(f"127.0.0.1:{server.grpc_port}") as client,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
    ):
        ways = {"gRPC": straight(client), "gateway": through(session, url)}
        for name, stream in ways.items():
            await measure(stream, 2, 8, f"warming up {name}")
        results: dict[str, list[Round]] = {name: [] for name in ways}
        for number in range(rounds):
            # The one that goes first changes: a machine that slows down must not look like a slow way.
            order = list(ways) if number % 2 == 0 else list(ways)[::-1]
            for name in order:
                results[name].append(await measure(ways[name], streams, tokens, f"{name} {number}"))
                print(f"round {number}, {name}: {results[name][-1].tokens_per_second:.1f} tokens/s", file=sys.stderr)
    print(f"{streams} streams of {tokens} tokens, medians of {rounds} rounds")
    for name, measured in results.items():
        rate, first = (statistics.median(getattr(r, f) for r in measured) for f in ("tokens_per_second", "first_ms"))
        per_part = streams * tokens / statistics.median(r.parts for r in measured)
        print(f"{name:8} {rate:7.1f} tokens/s   first token {first:7.1f} ms   {per_part:4.1f} tokens a part")
    rates = [b.tokens_per_second / a.tokens_per_second for a, b in zip(*results.values(), strict=True)]
    firsts = [b.first_ms - a.first_ms for a, b in zip(*results.values(), strict=True)]
    by_round = ", ".join(f"{rate:.3f}" for rate in rates)
    print(f"gateway / gRPC, by rounds: {by_round}; median {statistics.median(rates):.3f}")
    print(f"first token later by {statistics.median(firsts):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with start_server(REPOSITORY, models=[MODEL]) as server, running_gateway(server) as url:
        asyncio.run(compare(server, url, arguments.streams, arguments.tokens, arguments.rounds))


if __name__ == "__main__":
    main()
