from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from benchmarks import contract
from benchmarks.contract import (
    ContractError,
    RunnerTask,
    Timing,
    Workload,
    random_prompts,
    read_timings,
    run_runner,
    runner_arguments,
    timing_of_arrivals,
)

TWO = Workload(streams=2, prompt=10, new=4)


def test_rates_count_decoding_only_after_the_last_prompt() -> None:
    # The second prompt is done at 2 s; the first stream has two tokens by then.
    arrivals = [(1.0, [1, 0]), (2.0, [2, 1]), (3.0, [3, 2]), (4.0, [4, 3]), (5.0, [4, 4])]
    timing = timing_of_arrivals(TWO, arrivals)
    assert timing == Timing(TWO, prefill_s=2.0, total_s=5.0, tokens_at_prefill=3)
    assert timing.prefill_tok_s == 20 / 2
    assert timing.decode_tok_s == 5 / 3
    assert timing.output_tok_s == 8 / 5


def test_one_new_token_has_nothing_to_decode() -> None:
    timing = timing_of_arrivals(Workload(1, 512, 1), [(0.5, [1])])
    assert timing.decode_tok_s is None
    assert timing.prefill_tok_s == 1024


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([], "not every stream had a token"),
        ([(1.0, [4, 0])], "not every stream had a token"),
        ([(1.0, [1, 1]), (2.0, [4, 3])], r"\[3, 4\] new tokens instead of 4"),
        ([(1.0, [1, 1]), (2.0, [5, 4])], r"\[4, 5\] new tokens instead of 4"),
    ],
)
def test_incomplete_runs_are_no_timings(arrivals: list[tuple[float, list[int]]], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        timing_of_arrivals(TWO, arrivals)


def test_a_runner_is_asked_and_answers(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[RunnerTask] = []

    def run(task: RunnerTask):
        asked.append(task)
        print("loading ... 100 %")
        for workload in task.workloads:
            yield Timing(workload, 1.0, 2.5, workload.streams)

    workloads = (TWO, Workload(1, 512, 1))
    run_runner(run, runner_arguments("/models/a b", threads=3, seed=7, workloads=workloads))
    assert asked == [RunnerTask("/models/a b", 3, 7, workloads)]
    assert (asked[0].max_streams, asked[0].max_tokens, asked[0].max_pool_tokens) == (2, 513, 513)
    output = capsys.readouterr().out
    assert "loading" in output
    assert read_timings(output) == [Timing(TWO, 1.0, 2.5, 2), Timing(workloads[1], 1.0, 2.5, 1)]


@pytest.mark.parametrize(
    "answer",
    [
        "{",
        '{"workload": {"streams": 1, "prompt": 2}, "prefill_s": 1, "total_s": 2, "tokens_at_prefill": 1}',
        '{"workload": {"streams": 1, "prompt": 2, "new": 3}, "prefill_s": 2, "total_s": 1, "tokens_at_prefill": 1}',
        '{"workload": {"streams": 1, "prompt": 2, "new": 3}, "prefill_s": 0, "total_s": 1, "tokens_at_prefill": 1}',
        '{"workload": {"streams": 1, "prompt": 2, "new": 3}, "prefill_s": 1, "total_s": 1, "tokens_at_prefill": 1}',
        '{"workload": {"streams": 1, "prompt": 2, "new": 3}, "prefill_s": 1, "total_s": 2, "tokens_at_prefill": 4}',
        '{"workload": {"streams": 1, "prompt": 2, "new": 3}, "prefill_s": null, "total_s": 2, "tokens_at_prefill": 1}',
    ],
)
def test_an_answer_without_sense_is_refused(answer: str) -> None:
    with pytest.raises(ContractError):
        read_timings(f"noise\nBENCH-TIMING {answer}\n")


def test_prompts_depend_on_the_seed_alone_and_differ_between_streams() -> None:
    prompts = random_prompts(TWO, 49152, seed=1)
    assert prompts == random_prompts(TWO, 49152, seed=1)
    assert prompts != random_prompts(TWO, 49152, seed=2)
    assert prompts[0] != prompts[1]
    assert [len(prompt) for prompt in prompts] == [10, 10]
    assert all(1000 <= token < 49152 for prompt in prompts for token in prompt)
    assert all(0 <= token < 160 for prompt in random_prompts(TWO, 160, seed=1) for token in prompt)


PEERS = Path(contract.__file__).parent / "peers"
FOREIGN = [Path(contract.__file__), *sorted(set(PEERS.glob("run_*.py")) - {PEERS / "run_python_llm.py"})]


@pytest.mark.parametrize("file", FOREIGN, ids=lambda file: file.stem)
def test_runners_need_nothing_of_ours_but_the_contract(file: Path) -> None:
    """They run in environments where our packages are not installed."""
    tree = ast.parse(file.read_text("utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    theirs = {"torch", "transformers", "vllm", "openvino", "openvino_genai", "numpy"} if file.parent == PEERS else set()
    for module in modules:
        allowed = module == "benchmarks.contract" or module.split(".")[0] in {*sys.stdlib_module_names, *theirs}
        assert allowed, f"{file.name} imports {module}"
