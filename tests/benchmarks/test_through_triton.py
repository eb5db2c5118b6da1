from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.contract import Timing, Workload
from benchmarks.processes import descendants, peak_rss
from benchmarks.through_triton import compare, measure

ONE, MANY = Workload(1, 16, 9), Workload(4, 16, 9)


def test_ratios_are_of_medians() -> None:
    def rounds(*pairs: tuple[float, float]) -> list[list[Timing]]:
        return [[Timing(ONE, 0.1, 0.1 + one, 1), Timing(MANY, 0.5, many, 4)] for one, many in pairs]

    found = compare(rounds((0.8, 2.0), (0.8, 9.0), (0.8, 2.0)), rounds((1.6, 2.5), (1.6, 2.5), (8.0, 9.0)))
    assert found["bare"]["inter_token_ms_1"] == pytest.approx(100)
    assert found["added_inter_token_ms"] == pytest.approx(100)
    assert found["added_first_token_ms"] == 0
    assert found["output_ratio"] == pytest.approx(2.0 / 2.5)


def test_processes_below_a_process_and_their_peak() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        while len(descendants(parent.pid)) < 1:
            pass
        (child, name), *others = descendants(parent.pid)
        assert not others
        assert name.startswith("python")
        assert child in {pid for pid, _ in descendants(os.getpid())}
        assert peak_rss(child) > 1 << 20
        parent.communicate(b"\n")


@pytest.mark.triton
@pytest.mark.real_model
def test_a_real_server_against_the_bare_engine() -> None:
    found = measure(threads=1, rounds=1, one=ONE, many=MANY, say=print)
    assert found["streams"] == 4
    for side in ("bare", "served"):
        assert all(value > 0 for value in found[side].values())
    assert 0 < found["ready_s"] < found["cold_start_s"]
    # The packed weights alone are about as large as the file.
    assert found["stub_peak_rss_bytes"] > found["model_file_bytes"] > 90e6
