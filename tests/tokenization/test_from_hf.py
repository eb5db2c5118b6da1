"""Tokenizers from Hugging Face folders, against transformers' AutoTokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors

from corpus import NASTY
from python_llm.errors import ModelLoadError
from python_llm.model_files.locate import locate
from python_llm.tokenization.load import load_tokenizer
from python_llm.tokenization.tokenizer import Tokenizer
from toy_tokenizer import BOS_ID, EOS_ID, toy_tokenizer

NAMES = {"bos_token": "<bos>", "eos_token": "<eos>"}


def folder(path: Path, *, bos_in_json: bool = False, **files: dict[str, Any]) -> Path:
    """A model folder with the toy tokenizer; `files` are further JSON files, without their ending."""
    backend = toy_tokenizer()._backend
    backend.add_tokens([AddedToken("<tool>")])
    if bos_in_json:
        backend.post_processor = processors.TemplateProcessing(
            single=["<bos>:0", "$A:0"], special_tokens=[("<bos>", BOS_ID)]
        )
    backend.save(str(path / "tokenizer.json"))
    defaults = {"config": {"model_type": "llama"}, "tokenizer_config": NAMES}
    for name, content in {**defaults, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def load(path: Path) -> Tokenizer:
    return load_tokenizer(locate(str(path)))


@pytest.mark.parametrize("bos_in_json", [True, False])
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": True, "bos_token": None},
    ],
)
def test_encodes_as_transformers_does(tmp_path: Path, bos_in_json: bool, flags: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    config = {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES, **flags}
    folder(tmp_path, bos_in_json=bos_in_json, tokenizer_config=config)
    ours, theirs = load(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    for text in [*NASTY, "<bos>a<tool>b<eos>"]:
        for special in (True, False):
            assert ours.encode(text, add_special_tokens=special) == theirs.encode(text, add_special_tokens=special)
    assert ours.encode("a") == ([BOS_ID, ord("a")] if bos_in_json else [ord("a")])
    ids = ours.encode("<bos>a<tool>b<eos>")
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_names_and_ids(tmp_path: Path) -> None:
    tokenizer = load(folder(tmp_path))
    assert tokenizer.special_tokens == NAMES
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (BOS_ID, {EOS_ID}, 259)
    assert tokenizer.special_token_ids == {BOS_ID, EOS_ID}


def test_names_as_objects_from_the_older_file_and_new_ones(tmp_path: Path) -> None:
    older = {"eos_token": {"content": "<eos>", "lstrip": False}, "bos_token": "<never>"}
    tokenizer = load(folder(tmp_path, tokenizer_config={"bos_token": "<new>"}, special_tokens_map=older))
    assert tokenizer.special_tokens == {"eos_token": "<eos>", "bos_token": "<new>"}
    assert tokenizer.bos_token_id == 259
    assert tokenizer.encode("<new>") == [259]


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": 10}, {}, {10, EOS_ID}),
        ({"eos_token_id": [10, 11]}, {"eos_token_id": 12}, {10, 11, 12, EOS_ID}),
        ({}, {"text_config": {"eos_token_id": [13]}}, {13, EOS_ID}),
        ({"eos_token_id": None}, {"eos_token_id": 0}, {0, EOS_ID}),
    ],
)
def test_eos_ids_of_every_config(tmp_path: Path, generation: Any, config: Any, expected: set[int]) -> None:
    assert load(folder(tmp_path, generation_config=generation, config=config)).eos_token_ids == expected


def test_bos_id_of_the_model_config_when_the_tokenizer_names_none(tmp_path: Path) -> None:
    tokenizer = load(folder(tmp_path, tokenizer_config={}, config={"bos_token_id": [5, 6]}))
    assert tokenizer.bos_token_id == 5


NAMED = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]


@pytest.mark.parametrize(
    ("files", "jinja", "expected"),
    [
        ({}, None, None),
        ({"tokenizer_config": {"chat_template": "C"}}, None, "C"),
        ({"tokenizer_config": {"chat_template": NAMED}}, None, "D"),
        ({"tokenizer_config": {"chat_template": NAMED[:1]}}, None, None),
        ({"tokenizer_config": {"chat_template": "C"}, "chat_template": {"chat_template": "J"}}, None, "J"),
        ({"tokenizer_config": {"chat_template": "C"}, "chat_template": {"chat_template": "J"}}, "{# ž #}", "{# ž #}"),
    ],
)
def test_chat_template(tmp_path: Path, files: dict[str, Any], jinja: str | None, expected: str | None) -> None:
    folder(tmp_path, **files)
    if jinja is not None:
        (tmp_path / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    assert load(tmp_path).chat_template == expected


def test_template_for_tools(tmp_path: Path) -> None:
    folder(tmp_path, tokenizer_config={"chat_template": NAMED})
    assert (load(tmp_path).chat_template, load(tmp_path).tool_template) == ("D", "T")
    (tmp_path / "chat_template.jinja").write_text("D2")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("T2")
    assert (load(tmp_path).chat_template, load(tmp_path).tool_template) == ("D2", "T2")


def test_folder_without_tokenizer_json_goes_through_transformers(tmp_path: Path) -> None:
    """GPT-2's own two files, vocab.json and merges.txt."""
    toy = toy_tokenizer()._backend
    vocab = {**toy.get_vocab(with_added_tokens=False), "<|endoftext|>": 256, "he": 257}
    folder(tmp_path, tokenizer_config={"tokenizer_class": "GPT2Tokenizer"}, config={"model_type": "gpt2"})
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\n")
    tokenizer = load(tmp_path)
    assert tokenizer.encode("he<|endoftext|>ž") == [257, 256, 0xC5, 0xBE]
    assert tokenizer.eos_token_ids == {256}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"tokenizer.json": "{"}, r"Cannot read .*tokenizer\.json"),
        ({"tokenizer_config.json": "{"}, r"Cannot read .*tokenizer_config\.json"),
        ({"generation_config.json": "[]"}, "must hold a JSON object, not list"),
        ({"generation_config.json": '{"eos_token_id": "x"}'}, "whole number or a list of them, got 'x'"),
        ({"tokenizer_config.json": '{"chat_template": 5}'}, "chat_template must be a string"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: dict[str, str], message: str) -> None:
    folder(tmp_path)
    for name, text in damage.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path)


def test_folder_without_any_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json, and"):
        load(tmp_path)
