"""`python-llm demo`: starts the server, streams one answer, then eight at a time, and shows how fast they came.

Does not know tensors or processes: see `client` and `local_server`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from python_llm_client.backend_directory import package_folder
from python_llm_client.client import Client
from python_llm_client.errors import CommandError
from python_llm_client.local_server import LocalServer, start_server
from python_llm_client.repository import default_repository

MODEL = "smollm2"
QUESTION = "Explain in two sentences why the sky is blue."
TOPICS = ("the sea", "bicycles", "bread", "the moon", "bees", "trains", "winter", "music")
STREAM_SECONDS = 8.0


@dataclass
class Timing:
    """When the tokens of one answer came, in seconds since its request."""

    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """(time, tokens) of each response: a busy server puts several tokens into one."""

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.arrivals)

    @property
    def first(self) -> float:
        """Time to the first token."""
        return self.arrivals[0][0]

    def gaps(self) -> list[float]:
        """One gap per token after the first response: the time since the response before, shared by its tokens."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [(now - before) / tokens for (before, _), (now, tokens) in pairs for _ in range(tokens)]


def demo(console: Console) -> None:
    """Raises CommandError with the reason when anything fails."""
    folder = default_repository(Path.cwd(), package_folder())
    console.print(f"Starting Triton with [bold]{MODEL}[/] from {os.path.relpath(folder)} ...", highlight=False)
    start = time.monotonic()
    with start_server(folder, models=[MODEL]) as server:
        console.print(f"Ready after {time.monotonic() - start:.1f} s.\n")
        client = Client(f"127.0.0.1:{server.grpc_port}")
        _show_one(client, console)
        _show_many(client, console)
        _stop(server)
    console.print("Stopped. Next: [bold]python-llm serve[/], then [bold]python-llm chat[/] in another terminal.")


def _show_one(client: Client, console: Console) -> None:
    console.print(f"[bold]> {QUESTION}[/]")
    timing = run_stream(client, QUESTION, max_tokens=96, show=lambda text: console.out(text, end="", highlight=False))
    if len(timing.arrivals) < 2:
        raise CommandError(f"the model {MODEL} answered with {timing.tokens} token(s) in one piece: it does not stream")
    rate = 1 / np.mean(timing.gaps())
    console.print(
        f"\n\n{timing.tokens} tokens, the first after {timing.first * 1e3:.0f} ms, then {rate:.1f} tokens/s.\n",
        highlight=False,
    )


def _show_many(client: Client, console: Console) -> None:
    console.print(f"{len(TOPICS)} streams at once, for {STREAM_SECONDS:.0f} s ...")
    start = time.monotonic()
    end = start + STREAM_SECONDS

    def worker(topic: str) -> list[Timing]:
        timings: list[Timing] = []
        while time.monotonic() < end:
            question = f"Story {len(timings) + 1}: tell me about {topic}."
            timings.append(run_stream(client, question, max_tokens=64, until=end))
        return timings

    with ThreadPoolExecutor(len(TOPICS)) as pool:
        timings = [timing for answers in pool.map(worker, TOPICS) for timing in answers if timing.arrivals]
    if not timings:
        raise CommandError(f"none of {len(TOPICS)} streams had a token")
    console.print(summary(timings, streams=len(TOPICS), seconds=time.monotonic() - start))


def run_stream(
    client: Client,
    question: str,
    *,
    max_tokens: int,
    until: float = math.inf,
    show: Callable[[str], object] = lambda text: None,
) -> Timing:
    """Ask, give each piece of text to `show`, and return when the tokens came.

    `until`: the time (of `time.monotonic`) when to leave an answer that is not complete. One gap is waited for even
    then, so that a slow machine shows its speed too.
    """
    timing = Timing()
    start = time.monotonic()
    messages = [{"role": "user", "content": question}]
    sampling = {"max_tokens": max_tokens, "temperature": 0.0}
    with contextlib.closing(client.stream(MODEL, messages=messages, sampling=sampling)) as answer:
        for delta in answer:
            now = time.monotonic()
            if delta.tokens:
                timing.arrivals.append((now - start, delta.tokens))
            show(delta.text)
            if now > until and len(timing.arrivals) > 1:
                break
    return timing


def summary(timings: Sequence[Timing], *, streams: int, seconds: float) -> Table:
    """The table for answers that came from `streams` clients within `seconds`."""
    first = [timing.first * 1e3 for timing in timings]
    gaps = [gap * 1e3 for timing in timings for gap in timing.gaps()]
    table = Table()
    for title in ("streams", "answers", "tokens/s", "TTFT p50/p95, ms", "ITL p50/p95, ms"):
        table.add_column(title, justify="right")
    rate = sum(timing.tokens for timing in timings) / seconds
    # There are no gaps when every answer came in one piece.
    percentiles = [
        "{:.0f} / {:.0f}".format(*np.percentile(values, [50, 95])) if values else "-" for values in (first, gaps)
    ]
    table.add_row(str(streams), str(len(timings)), f"{rate:.1f}", *percentiles)
    return table


def _stop(server: LocalServer) -> None:
    status = server.stop()
    if status != 0:
        raise CommandError(f"the server ended with exit status {status} after SIGTERM")
