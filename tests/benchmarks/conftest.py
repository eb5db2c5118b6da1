"""Results as `python -m benchmarks` writes them, with round numbers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.contract import Timing, Workload
from benchmarks.limits import TokenCost, share_of_limits
from benchmarks.peers.side_by_side import summary
from benchmarks.through_triton import compare

ONE, MANY, PROMPT = Workload(1, 128, 128), Workload(32, 128, 128), Workload(1, 512, 1)


def engine(name: str, title: str, speed: float, rounds: int, reason: str | None = None) -> dict[str, Any]:
    timings = {
        one: [Timing(one, 1 / speed, 1 / speed + (one.new > 1) * 10 / speed, one.streams)] * rounds
        for one in (ONE, MANY, PROMPT)
    }
    results = {one.name: summary(list_of) for one, list_of in timings.items() if list_of}
    return {
        "name": name,
        "engine": title,
        "weights": "float32",
        "version": "1.2",
        "reason": reason,
        "load_s": 1.0,
        "results": results,
    }


def environment(commit: str = "abc") -> dict[str, Any]:
    return {
        "cpu": "A CPU",
        "cpu_features": ["avx2"],
        "cores": 2,
        "threads": 2,
        "memory_gib": 8.0,
        "kernel": "6.1",
        "python": "3.11.7",
        "versions": {"torch": "2.13"},
        "commit": commit,
        "unstable": {"time": "2001-02-03T04:05:06Z", "load_average": 0.1, "nice": 0, "seconds": 1.0},
    }


@pytest.fixture
def results() -> dict[str, Any]:
    machine = {"bandwidth_bytes_s": 20e9, "int8_peak_ops_s": 300e9, "float32_peak_ops_s": 100e9}
    cost = TokenCost(layers=100_000_000, head=25_000_000, attention_per_key=34_560)
    limits = {
        "threads": 2,
        "rounds": 1,
        "machine": machine,
        "weight_bytes": 96_000_000,
        "kv_bytes_per_token": 46_080.0,
        "multiply_adds_per_token": {"layers": cost.layers, "head": cost.head},
        "attention_multiply_adds_per_key": cost.attention_per_key,
        "workloads": [
            share_of_limits(workload, rate, cost, machine, 96_000_000, 46_080.0)
            for workload, rate in ((ONE, 100.0), (MANY, 400.0), (PROMPT, 800.0))
        ],
    }
    growth = {
        "threads": 2,
        "rounds": 1,
        "prompt": 128,
        "new": 64,
        "streams": [
            {
                "streams": count,
                "decode_tok_s": 100.0 * count**0.5,
                "per_stream_tok_s": 100.0 * count**-0.5,
                "output_tok_s": 80.0,
                "inter_token_ms_p50": 10.0 * count**0.5,
                "inter_token_ms_p95": 12.0 * count**0.5,
                "first_token_ms_p50": 190.0 * count,
            }
            for count in (1, 2, 4, 8, 16, 32, 64, 128)
        ],
        "contexts": [
            {"context": length, "prefill_tok_s": 900 - length / 20, "decode_step_ms": 8 + length / 500}
            for length in (128, 256, 512, 1024, 2048, 4096, 8160)
        ],
    }
    formats = [
        ("float32", "float32", "float32", "weights", 46.0, 0.0, 1.0),
        ("int4", "float32", "float32", "weights", 49.0, 0.05, 0.83),
        ("float32", "int8", "int4", "kv", 46.4, 0.001, 0.98),
        ("auto", "int8", "int8", "both", 46.5, 0.004, 0.96),
    ]
    quality = {
        "text": "quality_text.md",
        "tokens": 4088,
        "chunk": 512,
        "formats": [
            {
                "weights": weights,
                "keys": keys,
                "values": values,
                "kind": kind,
                "weight_bytes": 96_000_000,
                "kv_bytes_per_token": 46_080.0,
                "perplexity": perplexity,
                "kl_nats": divergence,
                "top1_agreement": agreement,
            }
            for weights, keys, values, kind, perplexity, divergence, agreement in formats
        ],
    }
    bare = [[Timing(ONE, 0.2, 1.47, 1), Timing(MANY, 5.0, 15.0, 32)]]
    served = [[Timing(ONE, 0.25, 1.774, 1), Timing(MANY, 5.2, 16.0, 40)]]
    triton = {
        "threads": 2,
        "rounds": 1,
        "streams": 32,
        **compare(bare, served),
        "cold_start_s": 3.5,
        "ready_s": 3.2,
        "stub_peak_rss_bytes": 419_430_400.0,
        "model_file_bytes": 98_000_000,
        "starts": [],
    }
    peers = {
        "threads": 2,
        "rounds": 3,
        "seconds": 600.0,
        "workloads": [ONE.name, MANY.name, PROMPT.name],
        "engines": [
            engine("python_llm", "python_llm", 2.0, 3),
            engine("llama_cpp", "llama.cpp", 1.0, 1),
            engine("vllm", "vLLM CPU", 1.0, 0, "pip failed: no wheel | for 3.13"),
            engine("openvino", "OpenVINO GenAI", 1.25, 2),
        ],
    }
    found = {"peers": peers, "limits": limits, "growth": growth, "quality": quality, "triton": triton}
    return {part: {"environment": environment(), "result": result} for part, result in found.items()}
