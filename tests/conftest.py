"""One thread for torch: on tiny tensors threads only wait for each other, for milliseconds where cores are busy. And
hypothesis must not take a busy machine for a slow test."""

import os
from typing import Any

from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What `runner/test_families.py` found, family by family."""
    from family_report import REPORT

    if lines := REPORT.lines():
        terminalreporter.section("model families against transformers (exact, or 1 - cosine similarity of the logits)")
        terminalreporter.write_line("\n".join(lines))
