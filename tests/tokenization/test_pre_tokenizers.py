"""How text is cut, against the tokenizers that transformers builds for the same models."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from tokenizers import normalizers, pre_tokenizers

from corpus import NASTY, texts
from python_llm.errors import ModelLoadError
from python_llm.tokenization import pre_tokenizers as ours
from python_llm.tokenization.token_bytes import byte_level_bytes


def words(cut: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [word for word, _ in cut.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "module", "class_name"),
    [
        ("qwen2", "qwen2", "Qwen2Tokenizer"),
        ("qwen35", "qwen3_5", "Qwen3_5Tokenizer"),
        ("command-r", "cohere", "CohereTokenizer"),
        ("olmo", "gpt_neox", "GPTNeoXTokenizer"),
        ("gpt-2", "gpt2", "GPT2Tokenizer"),
    ],
)
def test_cuts_and_normalises_as_transformers_does(name: str, module: str, class_name: str) -> None:
    backend = getattr(
        importlib.import_module(f"transformers.models.{module}.tokenization_{module}"), class_name
    )().backend_tokenizer
    kind = ours.pre_tokenizer(name)
    normalizer = kind.normalizer() or normalizers.Sequence([])
    reference = backend.normalizer or normalizers.Sequence([])
    for text in NASTY:
        normal = normalizer.normalize_str(text)
        assert normal == reference.normalize_str(text)
        assert words(kind.build(), normal) == words(backend.pre_tokenizer, normal)


SMOLLM = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
)
OURS = {name: ours.pre_tokenizer(name).build() for name in ours._BY_NAME}


@given(texts)
def test_smollm_cuts_as_its_own_tokenizer_json(text: str) -> None:
    assert words(OURS["smollm"], text) == words(SMOLLM, text)


@given(texts)
def test_gpt2_regex_is_the_librarys_own(text: str) -> None:
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    assert words(OURS["gpt-2"], text) == words(own, text)


@pytest.mark.parametrize("name", sorted(OURS))
def test_no_cut_loses_text(name: str) -> None:
    for text in NASTY:
        assert b"".join(map(byte_level_bytes, words(OURS[name], text))) == text.encode()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama-bpe", "It'S 12345  x\n\n y", ["It", "'S", "Ġ", "123", "45", "Ġ", "Ġx", "ĊĊ", "Ġy"]),
        ("qwen2", "a 123", ["a", "Ġ", "1", "2", "3"]),
        ("gpt-2", "a 123", ["a", "Ġ123"]),
        ("smollm", "a 123", ["a", "Ġ", "1", "2", "3"]),
        ("gpt-4o", "HelloWorld's 1234/\n", ["Hello", "World's", "Ġ", "123", "4", "/Ċ"]),
        ("tekken", "HelloWorld's 12", ["Hello", "World", "'s", "Ġ", "1", "2"]),
        ("deepseek-v3", "x 12345.abc .d", ["x", "Ġ", "123", "45", ".abc", "Ġ.", "d"]),
        ("viking", "hello world 12.", ["hello", "Ġworld", "Ġ", "1", "2", "."]),
        ("bloom", "hello world 12.", ["hello", "Ġworld", "Ġ12", "."]),
        ("default", "a 12345?!", ["a", "Ġ", "123", "45", "?!"]),
    ],
)
def test_known_cuts(name: str, text: str, expected: list[str]) -> None:
    assert words(OURS[name], text) == expected


def test_unknown_name_is_not_guessed() -> None:
    with pytest.raises(ModelLoadError, match=r"'martian'.*not supported; supported are: .*llama-bpe"):
        ours.pre_tokenizer("martian")
