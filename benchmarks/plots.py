"""Draws what was measured: results (JSON) -> PNG files. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, ScalarFormatter

from benchmarks.report import peer_columns, workload_label

# Okabe and Ito's palette: told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#999999"
_DPI = 130
_LEAST_KL = 1e-7
"""Drawn for anything below, which rounding can make zero or negative."""

Result = Mapping[str, Any]


def draw(results: Mapping[str, Result], folder: Path) -> list[str]:
    """Writes a file for each part that has a picture; their names, `PART.png` or `PART-WHAT.png`."""
    names = []
    for name, figure_of in _FIGURES.items():
        found = results.get(name.split("-")[0], {})
        if "result" not in found:
            continue
        figure = figure_of(found["result"])
        if figure is not None:
            figure.savefig(folder / f"{name}.png", dpi=_DPI)
            plt.close(figure)
            names.append(f"{name}.png")
    return names


def _peers(result: Result) -> Figure | None:
    engines = [engine for engine in result["engines"] if engine["results"]]
    columns = [column for column in peer_columns(result) if column[1] != "output_tok_s"]
    # The long prompt says how fast prompts are; the short ones of many streams say nearly the same.
    columns = [c for c in columns if c[1] == "decode_tok_s"] + [c for c in columns if c[1] == "prefill_tok_s"][-1:]
    if not engines or not columns:
        return None
    height = 1.0 + 0.36 * len(engines)
    figure, axes = plt.subplots(
        1, len(columns), figsize=(3.0 + 2.4 * len(columns), height), sharey=True, layout="constrained", squeeze=False
    )
    labels = [f"{engine['engine']}, {engine['weights']}" for engine in engines]
    for axis, (workload, rate, title) in zip(axes[0], columns, strict=True):
        values = [engine["results"].get(workload, {}).get(rate) or 0.0 for engine in engines]
        colours = [VERMILION if engine["name"] == "python_llm" else BLUE for engine in engines]
        bars = axis.barh(labels, values, color=colours, height=0.7)
        axis.bar_label(bars, [f"{value:,.0f}" if value else "not measured" for value in values], padding=3, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("tokens/s")
        axis.margins(x=0.22)
        _tidy(axis, grid="x")
    axes[0][0].invert_yaxis()
    return figure


def _streams(result: Result) -> Figure:
    entries = result["streams"]
    counts = [one["streams"] for one in entries]
    figure, (rates, gaps) = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    rates.plot(counts, [one["decode_tok_s"] for one in entries], "o-", color=VERMILION, label="all streams together")
    rates.plot(counts, [one["per_stream_tok_s"] for one in entries], "s--", color=BLUE, label="each stream")
    rates.set_ylabel("decode, tokens/s")
    gaps.plot(counts, [one["inter_token_ms_p50"] for one in entries], "o-", color=VERMILION, label="median")
    gaps.plot(counts, [one["inter_token_ms_p95"] for one in entries], "s--", color=BLUE, label="95th percentile")
    gaps.set_ylabel("time between tokens of a stream, ms")
    for axis in (rates, gaps):
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_formatter(NullFormatter())
        _powers_of_two(axis, counts)
        axis.set_xlabel("streams at once")
        axis.legend(frameon=False)
        _tidy(axis, grid="both")
    return figure


def _contexts(result: Result) -> Figure:
    entries = result["contexts"]
    lengths = [one["context"] for one in entries]
    figure, (steps, prompts) = plt.subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    steps.plot(lengths, [one["decode_step_ms"] for one in entries], "o-", color=VERMILION)
    steps.set_ylabel("decode step of one stream, ms")
    steps.set_xlabel("tokens before it")
    prompts.plot(lengths, [one["prefill_tok_s"] for one in entries], "o-", color=VERMILION)
    prompts.set_ylabel("prompt tokens/s")
    prompts.set_xlabel("length of the prompt, tokens")
    for axis in (steps, prompts):
        _powers_of_two(axis, lengths)
        axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
        _tidy(axis, grid="both")
    return figure


def _quality(result: Result) -> Figure:
    entries = sorted(result["formats"][1:], key=lambda one: one["kl_nats"])
    labels = [_format_label(one) for one in entries]
    kinds = {
        "weights": ("weights", BLUE, "o"),
        "kv": ("keys and values", ORANGE, "s"),
        "both": ("both", GREEN, "D"),
    }
    figure, (distance, agreement) = plt.subplots(
        1, 2, figsize=(10.0, 1.6 + 0.32 * len(entries)), sharey=True, layout="constrained"
    )
    # Dots, since on a log scale a bar has no beginning.
    for kind, (word, colour, marker) in kinds.items():
        chosen = [index for index, one in enumerate(entries) if one["kind"] == kind]
        style = {"linestyle": "none", "color": colour, "marker": marker, "markersize": 8, "label": word}
        distance.plot([max(entries[index]["kl_nats"], _LEAST_KL) for index in chosen], chosen, **style)
        agreement.plot([100 * entries[index]["top1_agreement"] for index in chosen], chosen, **style)
    distance.set_xscale("log")
    distance.set_xlabel("KL divergence from float32, nats a token")
    agreement.set_xlabel("same best token as float32, %")
    distance.set_yticks(range(len(entries)), labels)
    distance.invert_yaxis()
    for axis in (distance, agreement):
        axis.margins(x=0.08, y=0.06)
        _tidy(axis, grid="both")
    handles, words = distance.get_legend_handles_labels()
    figure.legend(handles, words, title="held in fewer bits:", loc="outside upper center", ncols=3, frameon=False)
    return figure


def _format_label(one: Result) -> str:
    parts = [] if one["weights"] == "float32" else [f"weights {one['weights']}"]
    if one["keys"] != "float32" or one["values"] != "float32":
        same = one["keys"] == one["values"]
        parts.append(f"KV {one['keys']}" if same else f"keys {one['keys']}, values {one['values']}")
    return "; ".join(parts)


def _limits(result: Result) -> Figure:
    entries = result["workloads"]
    figure, axis = plt.subplots(figsize=(7.2, 1.2 + 0.62 * len(entries)), layout="constrained")
    for name, offset, colour, label in (
        ("share_of_bandwidth", -0.19, BLUE, "of the memory bandwidth"),
        ("share_of_int8_peak", 0.19, ORANGE, "of the 8-bit peak (matrices only)"),
    ):
        places = [index + offset for index, one in enumerate(entries) if name in one]
        values = [100 * one[name] for one in entries if name in one]
        bars = axis.barh(places, values, height=0.36, color=colour, label=label)
        axis.bar_label(bars, [f"{value:.0f} %" for value in values], padding=3, fontsize=8)
    axis.set_yticks(range(len(entries)), [workload_label(one) for one in entries])
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of what the machine can do, %")
    axis.invert_yaxis()
    axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=2)
    _tidy(axis, grid="x")
    return figure


def _powers_of_two(axis: Axes, values: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(values)
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_locator(NullLocator())


def _tidy(axis: Axes, grid: str) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.grid(axis=grid, color=GREY, alpha=0.3, linewidth=0.6)  # type: ignore[arg-type]
    axis.set_axisbelow(True)


_FIGURES: dict[str, Callable[[Result], Figure | None]] = {
    "peers": _peers,
    "limits": _limits,
    "growth-streams": _streams,
    "growth-context": _contexts,
    "quality": _quality,
}
