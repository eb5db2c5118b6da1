"""Settings: what is taken, converted and refused, and from where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from python_llm.config import OVERRIDES_VARIABLE, ModelSettings, load_settings, parse_settings, validate_override
from python_llm.errors import SettingsError


def test_defaults_and_conversion() -> None:
    settings = parse_settings(
        {"model": "m", "max_num_seqs": "8", "request_timeout_s": "1.5", "enable_prefix_caching": "false"}, source="s"
    )
    assert settings == ModelSettings(model="m", max_num_seqs=8, request_timeout_s=1.5, enable_prefix_caching=False)
    assert parse_settings({"model": "m", "max_model_len": None}, source="s").max_model_len is None
    assert isinstance(parse_settings({"model": "m", "max_num_seqs": 8.0}, source="s").max_num_seqs, int)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, '"model" is missing'),
        ({"model": 3}, '"model" must be a string, not 3'),
        ({"model": "m", "max_num_seq": 3}, 'unknown setting "max_num_seq"; did you mean "max_num_seqs"'),
        ({"model": "m", "max_num_seqs": 0}, '"max_num_seqs" must be between 1 and 4096, not 0'),
        ({"model": "m", "max_num_seqs": 1.5}, '"max_num_seqs" must be a whole number, not 1.5'),
        ({"model": "m", "max_num_seqs": True}, '"max_num_seqs" must be a whole number, not True'),
        ({"model": "m", "max_num_seqs": None}, '"max_num_seqs" must not be null'),
        ({"model": "m", "request_timeout_s": "nan"}, '"request_timeout_s" must be a number'),
        ({"model": "m", "request_timeout_s": 0}, '"request_timeout_s" must be at least 0.001'),
        ({"model": "m", "speculation": "medusa"}, "\"speculation\" must be one of off, prompt_lookup, not 'medusa'"),
        ({"model": "m", "num_draft_tokens": 33}, '"num_draft_tokens" must be between 1 and 32, not 33'),
        (
            {"model": "m", "prompt_lookup_min_ngram": 9},
            r'"prompt_lookup_min_ngram" must be at most prompt_lookup_max_ngram \(8\), not 9',
        ),
        ({"model": "m", "enable_prefix_caching": "maybe"}, '"enable_prefix_caching" must be true or false'),
        ({"model": "m", "kind": "detokeniser"}, '"kind" must be one of llm, tokenizer, detokenizer'),
        ({"model": "m", "kind": "tokenizer", "max_num_seqs": 4}, '"max_num_seqs" is not for a tokenizer, which takes'),
        ({"model": "m", "kind": "detokenizer", "max_model_len": 4}, '"max_model_len" is not for a detokenizer'),
    ],
)
def test_what_is_wrong_is_said_with_its_source(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=f"^some/file: .*{message}"):
        parse_settings(values, source="some/file")


def test_overrides_apply_to_their_model_only(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"model": "m", "max_num_seqs": 4}')
    environ = {OVERRIDES_VARIABLE: json.dumps({"mine": {"max_num_seqs": "9"}, "other": {"block_size": "7"}})}
    assert load_settings(path, "mine", environ) == ModelSettings(model="m", max_num_seqs=9)
    assert load_settings(path, "third", environ).max_num_seqs == 4
    environ = {OVERRIDES_VARIABLE: json.dumps({"mine": {"max_num_seqs": "many"}})}
    with pytest.raises(SettingsError, match="--set max_num_seqs"):
        load_settings(path, "mine", environ)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), ("{", "not readable JSON"), ("[]", "one JSON object of settings, not list")],
)
def test_unreadable_files(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "model.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=message):
        load_settings(path, "m", {})


@pytest.mark.parametrize("text", ["{", "[]", '{"m": 3}'])
def test_a_broken_override_variable_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"model": "m"}')
    with pytest.raises(SettingsError, match=OVERRIDES_VARIABLE):
        load_settings(path, "m", {OVERRIDES_VARIABLE: text})


def test_one_override_can_be_checked_alone() -> None:
    validate_override("max_num_seqs", "5")
    with pytest.raises(SettingsError, match="did you mean"):
        validate_override("max_seqs", "5")
