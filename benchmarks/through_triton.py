"""What a real Triton adds to the engine: throughput, time between tokens, start, memory.

The server idles while the bare engine runs, and the other way round; rounds alternate. Does not know peers.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contract import Timing, Workload
from benchmarks.engine_runs import MODEL
from benchmarks.processes import RunnerFailedError, descendants, peak_rss, run_runner_process
from python_llm.model_files.locate import locate
from python_llm_client.client import Client
from python_llm_client.local_server import LocalServer, start_server

ONE, MANY = Workload(1, 128, 128), Workload(32, 128, 128)
QUICK_ONE, QUICK_MANY = Workload(1, 128, 32), Workload(8, 128, 32)
_NAME = "bench"
_STUB = "triton_python_backend_stub"


def measure(
    *,
    threads: int,
    rounds: int,
    one: Workload = ONE,
    many: Workload = MANY,
    model: str = MODEL,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """JSON of what came out. Raises CommandError, RunnerFailedError."""
    files = locate(model)
    bare: list[list[Timing]] = []
    served: list[list[Timing]] = []
    starts: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="python-llm-bench-") as folder:
        repository = _repository(Path(folder), str(files.path))
        for number in range(rounds):
            with _started(repository, threads, starts, say, number) as server:
                # A server that has just started is still tidying up; both orders take turns.
                def through_server(server: LocalServer = server, number: int = number) -> None:
                    where = f"127.0.0.1:{server.grpc_port}/{_NAME}"
                    served.append(_runner("benchmarks.run_triton_client", where, threads, (one, many), number))

                def without(number: int = number) -> None:
                    where = str(files.path)
                    bare.append(_runner("benchmarks.peers.run_python_llm", where, threads, (one, many), number))

                for run in (without, through_server) if number % 2 == 0 else (through_server, without):
                    say(f"triton, round {number + 1} of {rounds}: {run.__name__}")
                    run()
    file_bytes = files.path.stat().st_size
    return {
        "threads": threads,
        "rounds": rounds,
        "streams": many.streams,
        **compare(bare, served),
        "cold_start_s": statistics.median(start["first_token_s"] for start in starts),
        "ready_s": statistics.median(start["ready_s"] for start in starts),
        "stub_peak_rss_bytes": statistics.median(start["stub_peak_rss_bytes"] for start in starts),
        "model_file_bytes": file_bytes,
        "starts": starts,
    }


def compare(bare: Sequence[Sequence[Timing]], served: Sequence[Sequence[Timing]]) -> dict[str, Any]:
    """Each round: the timing of one stream and that of many. Medians; ratios are of the medians."""

    def median(rounds: Sequence[Sequence[Timing]], index: int, rate: str) -> float:
        return statistics.median(getattr(one[index], rate) for one in rounds)

    found: dict[str, Any] = {}
    for name, rounds in (("bare", bare), ("served", served)):
        found[name] = {
            "inter_token_ms_1": 1000 / median(rounds, 0, "decode_tok_s"),
            "first_token_ms_1": 1000 * median(rounds, 0, "prefill_s"),
            "decode_tok_s": median(rounds, 1, "decode_tok_s"),
            "output_tok_s": median(rounds, 1, "output_tok_s"),
        }
    found["output_ratio"] = found["served"]["output_tok_s"] / found["bare"]["output_tok_s"]
    found["decode_ratio"] = found["served"]["decode_tok_s"] / found["bare"]["decode_tok_s"]
    found["added_inter_token_ms"] = found["served"]["inter_token_ms_1"] - found["bare"]["inter_token_ms_1"]
    found["added_first_token_ms"] = found["served"]["first_token_ms_1"] - found["bare"]["first_token_ms_1"]
    return found


def _repository(folder: Path, model: str) -> Path:
    version = folder / _NAME / "1"
    version.mkdir(parents=True)
    (folder / _NAME / "config.pbtxt").write_text('backend: "python_llm"\n', "utf-8")
    (version / "model.json").write_text(json.dumps({"model": model}), "utf-8")
    return folder


@contextmanager
def _started(
    repository: Path, threads: int, starts: list[dict[str, float]], say: Callable[[str], None], number: int
) -> Iterator[LocalServer]:
    """A running server; what its start took is appended to `starts`."""
    say(f"triton: start {number + 1}")
    began = time.perf_counter()
    # Prompts of different workloads share beginnings; the bare engine computes them anew too.
    settings = {_NAME: {"enable_prefix_caching": "false", "cpu_threads": str(threads)}}
    with start_server(repository, settings=settings) as server:
        ready_s = time.perf_counter() - began
        stubs = [pid for pid, name in descendants(server.process.pid) if name == _STUB[:15]]
        peak = max(peak_rss(pid) for pid in stubs)
        answer = Client(f"127.0.0.1:{server.grpc_port}").stream(_NAME, "Hello", sampling={"max_tokens": 4})
        next(answer)
        first_token_s = time.perf_counter() - began
        list(answer)
        starts.append({"ready_s": ready_s, "first_token_s": first_token_s, "stub_peak_rss_bytes": float(peak)})
        yield server


def _runner(module: str, model: str, threads: int, workloads: Sequence[Workload], seed: int) -> list[Timing]:
    timings = run_runner_process(Path(sys.executable), module, model, workloads, threads=threads, seed=seed)
    if len(timings) != len(workloads):
        raise RunnerFailedError(f"{module} answered {len(timings)} of {len(workloads)} workloads", timings)
    return timings
