"""The parts that run our own engine, on models small enough to be quick."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from benchmarks import growth, limits, quality
from benchmarks.contract import Workload
from benchmarks.engine_runs import run_workload
from benchmarks.quality import Format
from tiny_models import tiny_hf_folder, toy_runner


def test_every_token_of_every_stream_is_seen() -> None:
    run = run_workload(toy_runner(), Workload(streams=3, prompt=20, new=6), seed=0)
    assert [len(times) for times in run.arrivals] == [6, 6, 6]
    assert all(times == sorted(times) and times[0] > 0 for times in run.arrivals)
    last_first = max(times[0] for times in run.arrivals)
    assert run.timing.prefill_s == last_first
    assert run.timing.total_s == max(times[-1] for times in run.arrivals)
    assert run.timing.tokens_at_prefill == sum(t <= last_first for times in run.arrivals for t in times)
    decoded = 18 - run.timing.tokens_at_prefill
    # Each stream's last token before decoding begins one gap, except those that came before the last prompt was done.
    assert decoded - 3 < len(run.decode_gaps()) <= decoded
    assert (run.decode_gaps() > 0).all()


def test_a_stream_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"1x\(20\+6\): .*"):
        run_workload(toy_runner(num_blocks=1), Workload(1, 20, 6), seed=0)


def test_growth(tmp_path: Path) -> None:
    folder = tiny_hf_folder(tmp_path / "tiny")
    found = growth.measure(
        threads=1, rounds=2, streams=(1, 2), contexts=(8, 200), model=str(folder), say=lambda text: None
    )
    assert [one["streams"] for one in found["streams"]] == [1, 2]
    assert [one["context"] for one in found["contexts"]] == [8, 200]
    for one in found["streams"]:
        assert one["decode_tok_s"] == pytest.approx(one["streams"] * one["per_stream_tok_s"])
        assert 0 < one["inter_token_ms_p50"] <= one["inter_token_ms_p95"]
    assert all(value > 0 for one in found["contexts"] for value in one.values())


def test_limits_are_those_of_the_native_kernels(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="plain torch"):
        limits.measure(
            threads=1, rounds=1, model=str(tiny_hf_folder(tmp_path / "tiny")), workloads=(Workload(1, 8, 4),)
        )


@pytest.mark.real_model
def test_shares_of_a_real_model() -> None:
    found = limits.measure(threads=1, rounds=1, workloads=(Workload(1, 16, 4), Workload(1, 32, 1)))
    decode, prefill = found["workloads"]
    assert 90e6 < found["weight_bytes"] < 110e6
    # int8, and a float32 scale for 32 dims.
    per_token = 30 * 2 * 3 * (64 + 64 // 32 * 4)
    assert found["kv_bytes_per_token"] == per_token
    assert decode["bytes_s"] == pytest.approx(decode["tok_s"] * (found["weight_bytes"] + 18 * per_token))
    assert decode["share_of_bandwidth"] > 0
    assert "share_of_bandwidth" not in prefill
    assert prefill["share_of_int8_peak"] > 0


@pytest.mark.real_model
def test_quality_falls_with_the_bits() -> None:
    chosen = (Format("float32", "int8", "int8"), Format("float32", "int4", "int4"))
    found = quality.measure(formats=chosen, chunks=1, say=lambda text: None)
    reference, eight, four = found["formats"]
    assert found["tokens"] == quality.CHUNK - 1
    assert reference["kl_nats"] == 0
    assert reference["top1_agreement"] == 1
    assert 0 < eight["kl_nats"] < four["kl_nats"]
    assert 1 > eight["top1_agreement"] > four["top1_agreement"] > 0.3
    assert reference["kv_bytes_per_token"] > eight["kv_bytes_per_token"] > four["kv_bytes_per_token"]
    assert eight["perplexity"] == pytest.approx(reference["perplexity"], rel=0.1)


def test_the_text_of_the_quality_figures_has_not_changed() -> None:
    digest = hashlib.sha256(quality.TEXT.read_bytes()).hexdigest()
    assert digest == "cc3c7b69a55f807b66eedc26a0b49b3337ddeaa58fc65b0190aedf8de01d1168", (
        "figures measured over another text do not compare"
    )
