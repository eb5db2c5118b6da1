"""Words and tables for what was measured: results (JSON) -> Markdown. Measures nothing, draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
NONE = "–"
"""In a cell that has no figure."""


def markdown(results: Mapping[str, Result], plots: Sequence[str] = ()) -> str:
    """`results`: part -> {"environment", "result" or "error"}. `plots`: names of PNG files beside the report."""
    blocks = ["# Benchmark results", *_environments(results)]
    for part, (title, words) in PARTS.items():
        if part not in results:
            continue
        blocks.append(f"## {title}")
        found = results[part]
        if "error" in found:
            blocks.append(f"Not measured: {found['error']}")
            continue
        blocks += words(found["result"])
        blocks += [f"![{title}]({name})" for name in plots if name.split("-")[0].removesuffix(".png") == part]
    return "\n\n".join(blocks) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are figures."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """Rounded to so many significant digits, but never inside the whole part."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    if abs(rounded) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    decimals = max(0, digits - len(str(int(abs(rounded)))))
    return f"{value:.{decimals}f}" if abs(rounded) >= 1 else f"{value:.{digits - 1}g}"


def _environments(results: Mapping[str, Result]) -> list[str]:
    described: dict[str, list[str]] = {}
    for part, found in results.items():
        described.setdefault(environment_line(found["environment"]), []).append(part)
    if len(described) == 1:
        return [next(iter(described))]
    return ["**The parts were measured in different environments**, so compare only within a part:"] + [
        f"{', '.join(parts)}: {line}" for line, parts in described.items()
    ]


def environment_line(environment: Result) -> str:
    features = ", ".join(environment["cpu_features"]) or "none of note"
    versions = ", ".join(f"{name} {value}" for name, value in environment["versions"].items())
    return (
        f"{environment['cpu']} ({features}), {environment['threads']} threads on {environment['cores']} cores, "
        f"{environment['memory_gib']} GiB, Linux {environment['kernel']}, Python {environment['python']}, {versions}, "
        f"commit {environment['commit'] or 'unknown'}."
    )


def _peers(result: Result) -> list[str]:
    columns = peer_columns(result)
    best = {
        (workload, rate): max((_rate(engine, workload, rate) or 0.0 for engine in result["engines"]), default=0.0)
        for workload, rate, _ in columns
    }
    rows = []
    for engine in result["engines"]:
        if not engine["results"]:
            continue
        rounds = {one["rounds"] for one in engine["results"].values()}
        cells = []
        for workload, rate, _ in columns:
            value = _rate(engine, workload, rate)
            text = number(value)
            cells.append(f"**{text}**" if value is not None and value == best[workload, rate] else text)
        span = f"{min(rounds)}" if len(rounds) == 1 else f"{min(rounds)}–{max(rounds)}"
        rows.append([f"{engine['engine']}, {engine['weights']}", *cells, span])
    blocks = [
        f"Tokens a second, medians; all engines in one run of {result['rounds']} interleaved rounds "
        f"({result['seconds'] / 60:.0f} minutes), {result['threads']} threads each. Decode: once every prompt is done. "
        "Output: new tokens over the whole run, prompts included. Bold: the best of its column.",
        table(["engine, weights", *(title for _, _, title in columns), "rounds"], rows),
        *_ratios(result, columns),
    ]
    notes = [
        f"- {engine['engine']}, {engine['weights']}: {'skipped' if not engine['results'] else 'cut short'}: "
        f"{engine['reason']}"
        for engine in result["engines"]
        if engine["reason"]
    ]
    if notes:
        blocks += ["Skipped or incomplete:", "\n".join(notes)]
    versions = {engine["engine"]: engine["version"] for engine in result["engines"]}
    blocks.append("Versions: " + ", ".join(f"{engine} {version}" for engine, version in versions.items()) + ".")
    return blocks


def peer_columns(result: Result) -> list[tuple[str, str, str]]:
    """(workload, rate, title) of the figures worth a column, from the workloads that were run."""
    columns = []
    seen: dict[str, Result] = {}
    for engine in result["engines"]:
        seen |= engine["results"]
    ordered = [(name, seen[name]) for name in result["workloads"] if name in seen]
    for name, one in ordered:
        if one["new"] > 1:
            columns.append((name, "decode_tok_s", f"{_streams(one['streams'])}: decode"))
    if several := [(name, one) for name, one in ordered if one["new"] > 1 and one["streams"] > 1]:
        name, one = max(several, key=lambda pair: pair[1]["streams"])
        columns.append((name, "output_tok_s", f"{_streams(one['streams'])}: output"))
        columns.append((name, "prefill_tok_s", f"{one['streams']} x {one['prompt']} prompt"))
    columns += [(name, "prefill_tok_s", f"{one['prompt']}-token prompt") for name, one in ordered if one["new"] == 1]
    return columns


def _ratios(result: Result, columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """Ours against the best other, for each figure."""
    ours = next((engine for engine in result["engines"] if engine["name"] == "python_llm"), None)
    others = [engine for engine in result["engines"] if engine is not ours and engine["results"]]
    if ours is None or not others:
        return []
    cells = []
    for workload, rate, title in columns:
        mine = _rate(ours, workload, rate)
        theirs = [(value, engine) for engine in others if (value := _rate(engine, workload, rate)) is not None]
        if mine is None or not theirs:
            continue
        value, engine = max(theirs, key=lambda pair: pair[0])
        cells.append([title, f"{mine / value:.2f}", f"{engine['engine']}, {engine['weights']}"])
    return [table(["python_llm against the best other", "ratio", "which is"], cells)] if cells else []


def _rate(engine: Result, workload: str, rate: str) -> float | None:
    one = engine["results"].get(workload)
    return None if one is None else one[rate]


def _streams(count: int) -> str:
    return f"{count} stream" + ("s" if count != 1 else "")


def _limits(result: Result) -> list[str]:
    machine = result["machine"]
    cost = result["multiply_adds_per_token"]
    rows = [
        [
            workload_label(one),
            number(one["tok_s"]),
            number(one["bytes_s"] / 1e9) if "bytes_s" in one else NONE,
            f"{one['share_of_bandwidth']:.0%}" if "bytes_s" in one else NONE,
            number(one["matrix_ops_s"] / 1e9),
            f"{one['share_of_int8_peak']:.0%}",
            f"{one['attention_share_of_operations']:.0%}",
        ]
        for one in result["workloads"]
    ]
    return [
        f"The machine, in the same run: {number(machine['bandwidth_bytes_s'] / 1e9)} GB/s read by "
        f"{result['threads']} threads, {number(machine['int8_peak_ops_s'] / 1e9)} GOP/s on 8 bits, "
        f"{number(machine['float32_peak_ops_s'] / 1e9)} GFLOP/s on float32. A token costs "
        f"{number(cost['layers'] / 1e6)} million multiply-adds in the layers' matrices and "
        f"{number(cost['head'] / 1e6)} million in the head; a step reads {number(result['weight_bytes'] / 1e6)} MB of "
        f"weights and {number(result['kv_bytes_per_token'] / 1e3)} kB for each token of context.",
        table(
            [
                "phase",
                "tokens/s",
                "GB/s moved",
                "of bandwidth",
                "GOP/s in matrices",
                "of 8-bit peak",
                "attention's part of all operations",
            ],
            rows,
        ),
        "Attention is counted in the bytes (keys and values read) and left out of GOP/s; the last column says how much "
        "that leaves out.",
    ]


def workload_label(share: Result) -> str:
    """What was measured, of one entry of part limits."""
    if share["phase"] == "decode":
        return f"decode, {_streams(share['streams'])}"
    return f"prompt of {share['prompt']} tokens"


def _growth(result: Result) -> list[str]:
    streams = [
        [
            str(one["streams"]),
            number(one["decode_tok_s"]),
            number(one["per_stream_tok_s"]),
            f"{number(one['inter_token_ms_p50'])} / {number(one['inter_token_ms_p95'])}",
            number(one["output_tok_s"]),
            number(one["first_token_ms_p50"]),
        ]
        for one in result["streams"]
    ]
    contexts = [
        [str(one["context"]), number(one["decode_step_ms"]), number(one["prefill_tok_s"])] for one in result["contexts"]
    ]
    return [
        f"Prompts of {result['prompt']} tokens, {result['new']} new ones, all at once:",
        table(
            [
                "streams",
                "decode, tokens/s",
                "for each stream",
                "between tokens p50 / p95, ms",
                "output, tokens/s",
                "first token p50, ms",
            ],
            streams,
        ),
        "One stream, by the tokens before it:",
        table(["context, tokens", "decode step, ms", "prompt of that length, tokens/s"], contexts),
    ]


def _quality(result: Result) -> list[str]:
    reference = result["formats"][0]
    rows = [
        [
            f"{one['weights']}; {one['keys']} / {one['values']}",
            number(one["weight_bytes"] / 1e6) if one["weight_bytes"] else NONE,
            number(one["kv_bytes_per_token"] / 1e3),
            f"{one['perplexity']:.2f}",
            NONE if one is reference else f"{one['perplexity'] / reference['perplexity'] - 1:+.2%}",
            NONE if one is reference else f"{one['kl_nats']:.5f}",
            NONE if one is reference else f"{one['top1_agreement']:.1%}",
        ]
        for one in result["formats"]
    ]
    return [
        f"{result['tokens']:,} tokens of `benchmarks/{result['text']}`, in pieces of {result['chunk']}; against "
        "float32 weights, keys and values.",
        table(
            [
                "weights; keys / values",
                "weights, MB",
                "KV, kB a token",
                "perplexity",
                "change",
                "KL divergence, nats",
                "same best token",
            ],
            rows,
        ),
    ]


def _triton(result: Result) -> list[str]:
    bare, served = result["bare"], result["served"]
    many = f"{result['streams']} streams"

    def row(title: str, key: str, difference: str) -> list[str]:
        return [title, number(bare[key]), number(served[key]), difference]

    return [
        "gRPC streams from a client on the same machine, against the engine without a server in the same run; medians "
        f"of {result['rounds']} rounds. Server and client take their share of the same cores.",
        table(
            ["", "engine alone", "through Triton", "difference"],
            [
                row(f"{many}, output, tokens/s", "output_tok_s", f"ratio {result['output_ratio']:.2f}"),
                row(f"{many}, decode, tokens/s", "decode_tok_s", f"ratio {result['decode_ratio']:.2f}"),
                row("1 stream, between tokens, ms", "inter_token_ms_1", f"{result['added_inter_token_ms']:+.2f} ms"),
                row("1 stream, first token, ms", "first_token_ms_1", f"{result['added_first_token_ms']:+.0f} ms"),
            ],
        ),
        f"From `python-llm serve` to ready: {result['ready_s']:.1f} s, to the first streamed token: "
        f"{result['cold_start_s']:.1f} s (the file in the page cache). The model's process had at most "
        f"{result['stub_peak_rss_bytes'] / 2**20:.0f} MiB in memory while loading, "
        f"{result['stub_peak_rss_bytes'] / result['model_file_bytes']:.1f} times the file's "
        f"{result['model_file_bytes'] / 2**20:.0f} MiB.",
    ]


PARTS: dict[str, tuple[str, Callable[[Result], list[str]]]] = {
    "peers": ("Side by side", _peers),
    "limits": ("Share of the machine's limits", _limits),
    "growth": ("Growth", _growth),
    "quality": ("Quality of the formats", _quality),
    "triton": ("Through Triton", _triton),
}
"""Part -> its title, and what puts its result into words."""
