from __future__ import annotations

import pytest

from benchmarks.contract import ContractError, Timing, Workload
from benchmarks.peers.run_llama_cpp import timing_of_output

# What the tool printed for -npp 128 -ntg 127 -npl 8, among its log lines.
OUTPUT = """\
llama_context: n_ctx_seq = 256
{"n_kv_max": 2048, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, \
"n_threads": 2, "n_threads_batch": 2, "pp": 128, "tg": 127, "pl": 8, "n_kv": 2040, "t_pp": 5.120000, \
"speed_pp": 200.000000, "t_tg": 10.160000, "speed_tg": 100.000000, "t": 15.280000, "speed": 133.507858}

llama_perf_context_print: load time = 100 ms
"""


def test_the_first_token_comes_from_the_prompt() -> None:
    timing = timing_of_output(OUTPUT, Workload(8, 128, 128))
    assert timing == Timing(Workload(8, 128, 128), 5.12, pytest.approx(15.28), tokens_at_prefill=8)
    assert timing.prefill_tok_s == pytest.approx(200)
    assert timing.decode_tok_s == pytest.approx(100)


def test_a_prompt_alone_leaves_out_the_one_step_that_the_tool_insists_on() -> None:
    output = '{"pp": 512, "tg": 1, "pl": 1, "t_pp": 2.0, "t_tg": 0.1}'
    timing = timing_of_output(output, Workload(1, 512, 1))
    assert (timing.prefill_s, timing.total_s, timing.decode_tok_s) == (2.0, 2.0, None)


def test_a_workload_that_the_tool_left_out_is_an_error() -> None:
    # It skips what does not fit its context, and says so with exit status 0.
    with pytest.raises(ContractError, match=r"nothing of 32x\(128\+128\)"):
        timing_of_output(OUTPUT, Workload(32, 128, 128))
