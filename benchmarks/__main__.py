"""`python -m benchmarks`: measures, and writes results.json, report.md and plots into a folder."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment, growth, limits, quality, through_triton
from benchmarks.engine_runs import MODEL, default_threads
from benchmarks.peers import side_by_side
from benchmarks.peers.catalog import OURS, contenders
from benchmarks.peers.environments import CACHE_VARIABLE, open_cache
from benchmarks.peers.models import Models
from benchmarks.processes import RunnerFailedError
from benchmarks.report import PARTS, markdown
from python_llm.errors import PythonLLMError
from python_llm.model_files.locate import locate
from python_llm_client.errors import CommandError

OUT = Path(__file__).parent / "results"
_ROUNDS = 3
_FORMAT = 1
"""Of results.json: raise it with any change of what a part writes."""


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _arguments(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    parts = _parts(asked)
    file = asked.out / "results.json"
    # Parts that this run leaves out stay as they were measured, with their own environment.
    results = _read_results(file)
    failed = False
    for name in asked.only or list(parts):
        say(f"--- {name}")
        found: dict[str, Any] = {"format": _FORMAT, "environment": environment.describe(asked.threads)}
        started = time.monotonic()
        try:
            found["result"] = parts[name]()
        except (PythonLLMError, CommandError, RunnerFailedError, RuntimeError) as error:
            found["error"] = str(error)
            failed = True
            say(f"{name} was not measured: {error}")
        found["environment"]["unstable"]["seconds"] = round(time.monotonic() - started, 1)
        results[name] = found
        file.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    _write_report(results, asked.out)
    return 1 if failed else 0


def _read_results(file: Path) -> dict[str, Any]:
    """The parts that an earlier run wrote, without those of another format."""
    if not file.exists():
        return {}
    results: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return {name: found for name, found in results.items() if found.get("format") == _FORMAT}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write_report(results: Mapping[str, Any], folder: Path) -> None:
    try:
        from benchmarks.plots import draw

        plots = draw(results, folder)
    except ModuleNotFoundError as error:
        say(f"no plots: {error} (pip install 'python-llm[bench]')")
        plots = []
    text = markdown(results, plots)
    (folder / "report.md").write_text(text, "utf-8")
    print(text)
    say(f"written: {folder / 'report.md'}, results.json, {', '.join(plots) or 'no plots'}")


def _parts(asked: argparse.Namespace) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Part -> what measures it; the names and the order are those of the report."""
    quick, rounds, threads = asked.quick, asked.rounds, asked.threads
    common = {"threads": threads, "model": asked.model}
    few: dict[str, dict[str, Any]] = {name: {} for name in PARTS}
    if quick:
        few = {
            "limits": {"workloads": limits.QUICK_WORKLOADS},
            "growth": {"streams": growth.QUICK_STREAMS, "contexts": growth.QUICK_CONTEXTS},
            "quality": {"formats": quality.QUICK_FORMATS, "chunks": quality.QUICK_CHUNKS},
            "triton": {"one": through_triton.QUICK_ONE, "many": through_triton.QUICK_MANY},
        }
    return {
        "peers": lambda: _peers(asked),
        "limits": lambda: limits.measure(rounds=rounds, **common, **few["limits"]),
        "growth": lambda: growth.measure(rounds=1, say=say, **common, **few["growth"]),
        "quality": lambda: quality.measure(model=asked.model, say=say, **few["quality"]),
        "triton": lambda: through_triton.measure(rounds=rounds, say=say, **common, **few["triton"]),
    }


def _peers(asked: argparse.Namespace) -> Mapping[str, Any]:
    cache = open_cache(may_make=not asked.quick, say=say)
    chosen = [one for one in contenders() if not asked.engines or one.name in asked.engines]
    return side_by_side.measure(
        chosen,
        side_by_side.QUICK_WORKLOADS if asked.quick else side_by_side.WORKLOADS,
        rounds=asked.rounds,
        budget_s=60 * asked.minutes,
        threads=asked.threads,
        cache=cache,
        models=Models(cache, locate(asked.model).path),
        say=say,
    )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [one.name for one in contenders()]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Peers are installed on first use into benchmarks/.cache, or into ${CACHE_VARIABLE}.",
    )
    parser.add_argument("--only", type=_list_of(list(PARTS)), help=f"parts, with commas: {', '.join(PARTS)}")
    parser.add_argument("--engines", type=_list_of(names), help=f"of part peers: {', '.join(names)}")
    parser.add_argument("--rounds", type=_positive, help=f"default {_ROUNDS}; 1 with --quick. Growth takes one")
    parser.add_argument(
        "--minutes", type=float, default=11.0, help="what the rounds of part peers may take, see --rounds (default 11)"
    )
    parser.add_argument("--threads", type=_positive, default=default_threads(), help="of every engine (default: all)")
    parser.add_argument("--model", default=MODEL, help=f"a GGUF file, as model.json has it (default {MODEL})")
    parser.add_argument("--out", type=Path, help="folder of what is written (benchmarks/results, or its quick/)")
    parser.add_argument("--quick", action="store_true", help="less of everything; installs no peers")
    asked = parser.parse_args(arguments)
    if asked.rounds is None:
        asked.rounds = 1 if asked.quick else _ROUNDS
    if asked.out is None:
        asked.out = OUT / "quick" if asked.quick else OUT
    if asked.engines and OURS not in asked.engines:
        parser.error(f"--engines must include {OURS}: the others are compared with it")
    if asked.threads > default_threads():
        parser.error(f"--threads must be at most {default_threads()}, the cores of this process, not {asked.threads}")
    return asked


def _list_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f'"{name}" is none of {", ".join(known)}')
        return names

    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'a whole number from 1 is expected, not "{text}"')
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
