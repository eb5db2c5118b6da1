from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import markdown, number, table


def row(text: str, start: str) -> list[str]:
    """The cells of the table row whose first cell is `start`."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0] == start:
            return cells[1:]
    raise AssertionError(f"no row {start!r} in\n{text}")


def test_everything_that_was_measured_is_told(results: dict[str, Any]) -> None:
    text = markdown(json.loads(json.dumps(results)), ["peers.png", "growth-streams.png"])
    for title in (
        "Side by side",
        "Share of the machine's limits",
        "Growth",
        "Quality of the formats",
        "Through Triton",
    ):
        assert f"## {title}\n" in text
    assert text.count("A CPU (avx2), 2 threads on 2 cores, 8.0 GiB") == 1
    assert "![Side by side](peers.png)" in text
    assert text.index("![Growth](growth-streams.png)") < text.index("## Quality")
    assert "2001-02-03" not in text


def test_side_by_side_rates_ratios_and_who_was_skipped(results: dict[str, Any]) -> None:
    text = markdown({"peers": results["peers"]})
    # 127 tokens a stream in 10 / speed seconds, 128 in 11 / speed; 512 prompt tokens in 1 / speed.
    assert row(text, "python_llm, float32") == ["**25.4**", "**813**", "**745**", "**8,192**", "**1,024**", "3"]
    assert row(text, "llama.cpp, float32")[0] == "12.7"
    assert row(text, "1 stream: decode") == ["1.60", "OpenVINO GenAI, float32"]
    assert "- vLLM CPU, float32: skipped: pip failed: no wheel | for 3.13" in text
    assert "vLLM CPU 1.2" in text


def test_an_engine_that_failed_after_a_while_keeps_its_figures(results: dict[str, Any]) -> None:
    results["peers"]["result"]["engines"][1]["reason"] = "it failed: out of memory"
    text = markdown({"peers": results["peers"]})
    assert "- llama.cpp, float32: cut short: it failed: out of memory" in text
    assert row(text, "llama.cpp, float32")[-1] == "1"


def test_alone_there_are_no_ratios(results: dict[str, Any]) -> None:
    peers = results["peers"]
    peers["result"]["engines"] = peers["result"]["engines"][:1]
    assert "ratio" not in markdown({"peers": peers})


def test_shares_of_limits(results: dict[str, Any]) -> None:
    text = markdown({"limits": results["limits"]})
    # 100 steps of 96 MB and 192 keys and values of 46,080 bytes; 250 million operations each.
    assert row(text, "decode, 1 stream") == ["100", "10.5", "52%", "25.0", "8%", "5%"]
    # 800 tokens of 200 million operations, and the head once in 512.
    assert row(text, "prompt of 512 tokens") == ["800", "–", "–", "160", "53%", "8%"]


def test_quality_is_told_against_the_reference(results: dict[str, Any]) -> None:
    text = markdown({"quality": results["quality"]})
    assert row(text, "float32; float32 / float32")[2:] == ["46.00", "–", "–", "–"]
    assert row(text, "int4; float32 / float32")[2:] == ["49.00", "+6.52%", "0.05000", "83.0%"]


def test_what_triton_adds(results: dict[str, Any]) -> None:
    text = markdown({"triton": results["triton"]})
    # 127 tokens in 1.27 s and in 1.524 s; 4096 in 15 s and in 16 s.
    assert row(text, "1 stream, between tokens, ms") == ["10.0", "12.0", "+2.00 ms"]
    assert row(text, "32 streams, output, tokens/s") == ["273", "256", "ratio 0.94"]
    assert "400 MiB in memory while loading, 4.3 times the file's 93 MiB" in text


def test_a_part_that_failed_says_why(results: dict[str, Any]) -> None:
    text = markdown({"triton": {"environment": results["triton"]["environment"], "error": "port in use"}})
    assert "Not measured: port in use" in text


def test_parts_of_different_runs_are_told_apart(results: dict[str, Any]) -> None:
    results["growth"]["environment"]["commit"] = "def"
    text = markdown(results)
    assert "different environments" in text
    assert "growth: A CPU" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"), (0.0, "0"), (1234.5, "1,234"), (999.6, "1,000"), (99.96, "100"), (12.34, "12.3"), (9.996, "10.0"),
        (1.0, "1.00"), (0.1234, "0.12"), (0.00123, "0.0012"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value: float | None, expected: str) -> None:
    assert number(value) == expected


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(["a", "b"], [["x|y", "1"]]).splitlines() == ["| a | b |", "| --- | ---: |", "| x\\|y | 1 |"]


def test_plots_are_drawn_for_the_parts_that_are_there(results: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    del results["limits"]
    results["quality"] = {"environment": {}, "error": "no kernels"}
    names = draw(results, tmp_path)
    assert names == ["peers.png", "growth-streams.png", "growth-context.png"]
    for name in names:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
