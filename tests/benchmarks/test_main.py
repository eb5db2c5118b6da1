from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as program
from benchmarks.processes import RunnerFailedError


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, results: dict[str, Any]) -> dict[str, Any]:
    """What each part measures: the sample's result, or an error to raise."""
    answers: dict[str, Any] = {name: found["result"] for name, found in results.items()}

    def run(name: str) -> Any:
        if isinstance(answers[name], Exception):
            raise answers[name]
        return answers[name]

    monkeypatch.setattr(program, "_parts", lambda asked: {name: lambda name=name: run(name) for name in answers})
    return answers


def test_all_parts_are_measured_and_written(parts: dict[str, Any], tmp_path: Path) -> None:
    assert program.main(["--out", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert list(written) == ["peers", "limits", "growth", "quality", "triton"]
    assert written["growth"]["result"] == parts["growth"]
    environment = written["growth"]["environment"]
    assert environment["versions"]["python-llm"]
    assert environment["threads"] == environment["cores"] > 0
    assert environment["unstable"]["time"] not in (tmp_path / "report.md").read_text("utf-8")


def test_one_part_leaves_the_others_as_they_were(parts: dict[str, Any], tmp_path: Path) -> None:
    assert program.main(["--out", str(tmp_path)]) == 0
    before = json.loads((tmp_path / "results.json").read_text("utf-8"))
    parts["growth"] = {**parts["growth"], "rounds": 9}
    assert program.main(["--out", str(tmp_path), "--only", "growth"]) == 0
    after = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert after["growth"]["result"]["rounds"] == 9
    assert {name: after[name] for name in after if name != "growth"} == {n: before[n] for n in before if n != "growth"}


def test_results_of_another_format_are_dropped(parts: dict[str, Any], tmp_path: Path) -> None:
    assert program.main(["--out", str(tmp_path), "--only", "growth,quality"]) == 0
    file = tmp_path / "results.json"
    old = json.loads(file.read_text("utf-8"))
    old["growth"] = {"format": 0, "result": {"rounds": 1}}
    file.write_text(json.dumps(old), "utf-8")
    assert program.main(["--out", str(tmp_path), "--only", "triton"]) == 0
    assert set(json.loads(file.read_text("utf-8"))) == {"quality", "triton"}


def test_a_failing_part_is_told_and_the_rest_goes_on(parts: dict[str, Any], tmp_path: Path) -> None:
    parts["limits"] = RunnerFailedError("no kernels here")
    assert program.main(["--out", str(tmp_path), "--only", "limits,growth"]) == 1
    report = (tmp_path / "report.md").read_text("utf-8")
    assert "Not measured: no kernels here" in report
    assert "## Growth" in report


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "peers,speed"], '"speed" is none of peers, limits, growth, quality, triton'),
        (["--engines", "python_llm,ollama"], '"ollama" is none of python_llm, openvino_int4'),
        (["--engines", "vllm"], "must include python_llm"),
        (["--rounds", "0"], 'a whole number from 1 is expected, not "0"'),
        (["--threads", "5000"], "must be at most"),
    ],
)
def test_bad_arguments_are_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        program.main(arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_a_quick_run_takes_one_round_and_writes_elsewhere() -> None:
    whole, quick = program._arguments([]), program._arguments(["--quick"])
    assert (whole.rounds, quick.rounds, program._arguments(["--quick", "--rounds", "2"]).rounds) == (3, 1, 2)
    assert whole.out == program.OUT != quick.out
