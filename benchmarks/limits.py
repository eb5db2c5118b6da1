"""Our engine's speed as a share of what this machine can do, both measured in the same run.

At one stream a step has to read every weight once: the limit is memory bandwidth. At many streams, and in prompts,
every weight read serves many rows: the limit is how many 8-bit multiply-adds the cores can do. What a token costs is
counted from the model's spec. Does not know peers or how results are shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.contract import Workload
from benchmarks.engine_runs import MODEL, load, run_workload
from python_llm.model_files.locate import locate
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.kernels.library import load_kernels
from python_llm.runner.kernels.native_decoder import page_bytes
from python_llm.runner.kernels.native_runner import NativeRunner
from python_llm.runner.loader import read_config
from python_llm.runner.spec import DecoderSpec

WORKLOADS = (Workload(1, 128, 128), Workload(32, 128, 128), Workload(1, 512, 1))
QUICK_WORKLOADS = (Workload(1, 128, 32), Workload(8, 128, 32), Workload(1, 512, 1))


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Multiply-adds that one token needs, by where they are."""

    layers: int
    """In the layers' matrices."""
    head: int
    """In the output head; only for tokens whose logits are wanted."""
    attention_per_key: int
    """In attention, for each key that the token sees."""


def token_cost(spec: DecoderSpec) -> TokenCost:
    """Norms, rotations and activations are left out: they are not multiply-adds of matrices and well below 1 %."""
    matrices = [
        shape for name, shape in spec.tensor_shapes().items() if name.startswith("model.layers.") and len(shape) == 2
    ]
    return TokenCost(
        layers=sum(rows * columns for rows, columns in matrices),
        head=spec.vocab_size * spec.hidden_size,
        attention_per_key=2 * spec.num_heads * spec.head_dim * len(spec.layers),
    )


def decode_operations(cost: TokenCost, workload: Workload) -> tuple[float, float]:
    """Operations (two a multiply-add) of one decoded token: in matrices, and in attention at the mean context."""
    return 2.0 * (cost.layers + cost.head), 2.0 * cost.attention_per_key * mean_context(workload)


def prefill_operations(cost: TokenCost, workload: Workload) -> tuple[float, float]:
    """Operations of one prompt token: in matrices (the head once a prompt), and in attention over half the prompt."""
    matrices = 2.0 * (cost.layers + cost.head / workload.prompt)
    return matrices, 2.0 * cost.attention_per_key * (workload.prompt + 1) / 2


def mean_context(workload: Workload) -> float:
    """How many keys a decoded token sees, averaged over its steps."""
    return workload.prompt + workload.new / 2


def measure_machine(threads: int, rounds: int) -> dict[str, float]:
    """Medians of the kernels' own measurements. Raises KernelsUnavailableError."""
    kernels = load_kernels()
    found: dict[str, float] = {}
    for name, function in (
        ("bandwidth_bytes_s", kernels.pl_read_bandwidth),
        ("int8_peak_ops_s", kernels.pl_int8_peak),
        ("float32_peak_ops_s", kernels.pl_float32_peak),
    ):
        found[name] = statistics.median(function(threads) for _ in range(rounds))
    return found


def measure(
    *, threads: int, rounds: int, workloads: Sequence[Workload] = WORKLOADS, model: str = MODEL
) -> dict[str, Any]:
    """JSON: the machine's limits, the model's cost, and for each workload the rates and shares of the median round.

    Raises RuntimeError where the native kernels, which know their limits, do not run the model.
    """
    files = locate(model)
    runner = load(max(w.streams * (w.prompt + w.new) for w in workloads), model=model, threads=threads)
    if not isinstance(runner, NativeRunner):
        raise RuntimeError("plain torch runs this model here; limits are known of the native kernels only")
    spec = spec_from_hf_config(read_config(files))
    cost = token_cost(spec)
    weight_bytes = runner.decoder.weight_bytes
    kv_bytes_per_token = page_bytes(spec, runner.block_size, runner.decoder.kv_format) / runner.block_size
    run_workload(runner, Workload(1, 32, 8), seed=0)
    machines, rates = [], {workload: [] for workload in workloads}  # type: ignore[var-annotated]
    for number in range(rounds):
        machines.append(measure_machine(threads, 1))
        for workload in workloads:
            timing = run_workload(runner, workload, number).timing
            rates[workload].append(timing.decode_tok_s if workload.new > 1 else timing.prefill_tok_s)
    machine = {name: statistics.median(one[name] for one in machines) for name in machines[0]}
    shares = [
        share_of_limits(workload, statistics.median(values), cost, machine, weight_bytes, kv_bytes_per_token)
        for workload, values in rates.items()
    ]
    return {
        "threads": threads,
        "rounds": rounds,
        "machine": machine,
        "weight_bytes": weight_bytes,
        "kv_bytes_per_token": kv_bytes_per_token,
        "multiply_adds_per_token": {"layers": cost.layers, "head": cost.head},
        "attention_multiply_adds_per_key": cost.attention_per_key,
        "workloads": shares,
    }


def share_of_limits(
    workload: Workload,
    tok_s: float,
    cost: TokenCost,
    machine: dict[str, float],
    weight_bytes: int,
    kv_bytes_per_token: float,
) -> dict[str, Any]:
    """`tok_s`: decoded tokens a second of all streams; for a workload of one new token, prompt tokens a second."""
    decodes = workload.new > 1
    matrices, attention = (decode_operations if decodes else prefill_operations)(cost, workload)
    found = {
        "workload": workload.name,
        "phase": "decode" if decodes else "prefill",
        "streams": workload.streams,
        "prompt": workload.prompt,
        "tok_s": tok_s,
        "matrix_ops_s": tok_s * matrices,
        "share_of_int8_peak": tok_s * matrices / machine["int8_peak_ops_s"],
        "attention_ops_s": tok_s * attention,
        "attention_share_of_operations": attention / (matrices + attention),
    }
    if decodes:
        kv_bytes = kv_bytes_per_token * mean_context(workload)
        moved = tok_s * (weight_bytes / workload.streams + kv_bytes)
        found |= {"bytes_s": moved, "share_of_bandwidth": moved / machine["bandwidth_bytes_s"]}
    return found
