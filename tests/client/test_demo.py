"""The demo's arithmetic: what it prints is derived from arrivals alone."""

from __future__ import annotations

import pytest
from rich.console import Console

from python_llm_client.demo import Timing, summary


def test_a_response_of_several_tokens_shares_its_gap_between_them() -> None:
    timing = Timing([(0.5, 1), (0.6, 1), (1.0, 4)])
    assert timing.tokens == 6
    assert timing.first == 0.5
    assert timing.gaps() == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])


def test_the_summary_counts_all_tokens_and_gives_percentiles() -> None:
    timings = [Timing([(0.1, 1), (0.2, 1)]), Timing([(0.3, 1), (0.6, 3)])]
    console = Console(width=120)
    with console.capture() as captured:
        console.print(summary(timings, streams=2, seconds=2.0))
    cells = [cell.strip() for cell in captured.get().splitlines()[3].strip("│").split("│")]
    assert cells == ["2", "2", "3.0", "200 / 290", "100 / 100"]
