"""What is read out of tritonserver's log and reasons. The samples are lines that Triton 2.51 wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_llm_client.server_log import LoadEvent, LogReader, last_error, load_events, poll_failures, sentence

LOG = r"""I1130 04:33:36.164325 4325 model_lifecycle.cc:472] "loading: echo:1"
I1130 04:33:37.784267 4325 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: echo_0 (CPU device 0)"
I1130 04:33:37.978562 4325 model_lifecycle.cc:839] "successfully loaded 'echo'"
E1130 04:33:36.164169 4325 model_repository_manager.cc:1460] "Poll failed for model directory 'bare': failed to read"
E1130 04:33:38.526762 4325 tritonserver.cc:2607] "Internal: failed to load all models"
"""


def test_load_events_name_the_model_and_what_happened() -> None:
    assert load_events(LOG) == [LoadEvent("echo", loaded=False), LoadEvent("echo", loaded=True)]


def test_poll_failures_give_the_reason_that_the_index_lacks() -> None:
    assert poll_failures(LOG) == {"bare": "failed to read"}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "Internal: SettingsError: unknown setting 'x'\n\nAt:\n  /r/bad/1/model.py(3): initialize\n",
            "unknown setting 'x'",
        ),
        ("Internal: KeyError: 'x'\n\nAt:\n  /r/bad/1/model.py(3): initialize\n", "KeyError: 'x'"),
        ("Internal: a sentence: with a colon", "a sentence: with a colon"),
        ("Invalid argument: two\n  lines", "two lines"),
        (
            "Internal: Stub process 'crash_0' is not healthy.",
            "its Python process ended while it loaded the model (out of memory, or a crash)",
        ),
        ("", "Triton gave no reason"),
    ],
)
def test_a_reason_becomes_one_sentence_without_a_stack(reason: str, expected: str) -> None:
    assert sentence(reason) == expected


def test_the_last_error_is_the_message_alone() -> None:
    assert last_error(LOG) == "Internal: failed to load all models"
    assert last_error('I1130 04:33:36.1 1 a.cc:1] "fine"\nerror: creating server: no\n') == "creating server: no"
    assert last_error("I1130 all is well\n") is None


def test_a_growing_log_is_read_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntw")
    reader = LogReader(path)
    assert reader.new_text() == "one\n"
    assert reader.new_text() == ""
    with path.open("a") as log:
        log.write("o\nthree\n")
    assert reader.new_text() == "two\nthree\n"
    reader.close()
