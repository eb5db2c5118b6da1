"""Tokenizers from GGUF metadata: hand-made ones, and the two real models against independent encoders."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from corpus import NASTY, texts
from models import gemma3_path, smollm2_path
from python_llm.errors import ModelLoadError
from python_llm.model_files.gguf import GGUFFile
from python_llm.tokenization.from_gguf import tokenizer_from_gguf
from python_llm.tokenization.token_bytes import CHAR_OF_BYTE
from python_llm.tokenization.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def byte_level(extra: list[tuple[str, int]] = (), **keys: Any) -> dict[str, Any]:  # type: ignore[assignment]
    """256 bytes, "he", "Ġhe", and the tokens of `extra`; `keys` replace keys of tokenizer.ggml."""
    entries = [*((CHAR_OF_BYTE[byte], NORMAL) for byte in range(256)), ("he", NORMAL), ("Ġhe", NORMAL), *extra]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [token for token, _ in entries],
        "token_type": np.array([kind for _, kind in entries], np.int32),
        "merges": ["h e", "Ġ he"],
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def sentencepiece(**keys: Any) -> dict[str, Any]:
    entries = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("<x>", USER, -1000.0)]
    entries += [("▁▁", USER, -1000.0), *((f"<0x{byte:02X}>", BYTE, 0.0) for byte in range(256))]
    # "bc" scores above "ab", so "abc" is a + bc, and "▁a" above both.
    pieces = ["▁a", "bc", "ab", "abc", "▁", "a", "b", "c"]
    entries += [(piece, NORMAL, -float(rank)) for rank, piece in enumerate(pieces)]
    values = {
        "model": "llama",
        "tokens": [token for token, _, _ in entries],
        "token_type": np.array([kind for _, kind, _ in entries], np.int32),
        "scores": np.array([score for _, _, score in entries], np.float32),
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def pieces(tokenizer: Tokenizer, text: str, **options: Any) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, **options)]


def test_byte_level_merges_and_tokens() -> None:
    tokenizer = tokenizer_from_gguf(byte_level([("<|x|>", CONTROL), ("<tool>", USER)]))
    assert pieces(tokenizer, "he he<|x|>h<tool>é")[:-2] == ["he", " he", "<|x|>", "h", "<tool>"]
    assert tokenizer.special_token_ids == {258}
    assert tokenizer.vocab_size == 260


def test_ignore_merges_takes_a_whole_word_that_no_merge_makes() -> None:
    extra = [("word", NORMAL)]
    assert pieces(tokenizer_from_gguf(byte_level(extra, pre="llama-bpe", add_bos_token=False)), "word") == ["word"]
    assert pieces(tokenizer_from_gguf(byte_level(extra)), "word") == list("word")


ENDS = [("<bos>", CONTROL), ("<eos>", CONTROL)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["h"]),
        ({"add_bos_token": True}, ["<bos>", "h"]),
        ({"add_bos_token": True, "add_eos_token": True}, ["<bos>", "h", "<eos>"]),
        ({"add_eos_token": True}, ["h", "<eos>"]),
        ({"pre": "llama-bpe"}, ["<bos>", "h"]),
        ({"pre": "llama-bpe", "add_bos_token": False}, ["h"]),
        ({"add_bos_token": True, "bos_token_id": None}, ["h"]),
    ],
)
def test_bos_and_eos_go_where_the_file_says(keys: dict[str, Any], expected: list[str]) -> None:
    tokenizer = tokenizer_from_gguf(byte_level(ENDS, **{"bos_token_id": 258, "eos_token_id": 259, **keys}))
    assert pieces(tokenizer, "h") == expected
    assert pieces(tokenizer, "h", add_special_tokens=False) == ["h"]


def test_every_end_of_turn_ends_a_text() -> None:
    extra = [
        ("<eos>", CONTROL),
        ("<|im_end|>", CONTROL),
        ("<end_of_turn>", USER),
        ("<eot>", CONTROL),
        ("<|end|>", NORMAL),
    ]
    tokenizer = tokenizer_from_gguf(byte_level(extra, eos_token_id=258, eot_token_id=261))
    assert tokenizer.eos_token_ids == {258, 259, 260, 261}
    harmony = tokenizer_from_gguf(byte_level([(f"<|{word}|>", CONTROL) for word in ("return", "call", "end")]))
    assert harmony.eos_token_ids == {258, 259}


def test_template_and_its_special_tokens() -> None:
    metadata = byte_level(ENDS, bos_token_id=258, eos_token_id=259, padding_token_id=9999)
    tokenizer = tokenizer_from_gguf({**metadata, "tokenizer.chat_template": "{{ bos_token }}"})
    assert tokenizer.chat_template == "{{ bos_token }}"
    assert tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>"}
    assert tokenizer.bos_token_id == 258


def test_template_for_tools() -> None:
    named = {"tokenizer.chat_templates": ["tool_use", "rag"], "tokenizer.chat_template.rag": "R"}
    templates = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T", **named}
    tokenizer = tokenizer_from_gguf({**byte_level(), **templates})
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("D", "T")
    assert tokenizer_from_gguf(byte_level()).tool_template is None
    with pytest.raises(ModelLoadError, match=r"tokenizer\.chat_template must be a text, not 5"):
        tokenizer_from_gguf({**byte_level(), "tokenizer.chat_template": 5})


def test_sentencepiece_merges_by_score() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece())
    assert pieces(tokenizer, "abc") == ["<s>", " a", "bc"]
    assert pieces(tokenizer_from_gguf(sentencepiece(add_space_prefix=False)), "abc", add_special_tokens=False) == [
        "abc"
    ]
    assert pieces(tokenizer_from_gguf(sentencepiece(add_space_prefix=False)), "ab", add_special_tokens=False) == ["ab"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, {2})


def test_sentencepiece_user_tokens_bytes_and_spaces() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece(add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("<x>a  b") == [3, tokenizer.encode("a")[0], 4, tokenizer.encode("b")[0]]
    assert [tokenizer.token_bytes(token_id) for token_id in tokenizer.encode("é")] == [b"\xc3", b"\xa9"]
    assert tokenizer.token_bytes(4) == b"  "


def test_sentencepiece_space_prefix_after_special_tokens_and_its_removal() -> None:
    tokenizer = tokenizer_from_gguf(sentencepiece())
    assert pieces(tokenizer, "a<x>a") == ["<s>", " a", "<x>", " a"]
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "has no tokenizer"),
        (byte_level(model="bert"), "of kind 'bert'.*'gpt2' and 'llama'"),
        (byte_level(pre="martian"), "'martian'"),
        (byte_level(merges=None), "no merges"),
        (byte_level(merges=["x yy"]), "damaged"),
        (byte_level([("he", NORMAL)]), "1 tokens appear twice"),
        (byte_level(token_type=np.ones(3, np.int32)), "258 tokens but 3 token types"),
        (sentencepiece(scores=None), "no score"),
    ],
)
def test_what_cannot_be_built_is_explained(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        tokenizer_from_gguf(metadata)


def test_unnamed_pre_tokenizer_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    assert pieces(tokenizer_from_gguf(byte_level(pre=None)), " he?") == [" he", "?"]
    assert "does not name its pre-tokenizer" in caplog.text


@pytest.fixture(scope="module")
def smollm2() -> tuple[dict[str, Any], Tokenizer]:
    metadata = GGUFFile(smollm2_path()).metadata
    return metadata, tokenizer_from_gguf(metadata)


@pytest.fixture(scope="module")
def gemma3() -> tuple[dict[str, Any], Tokenizer]:
    metadata = GGUFFile(gemma3_path()).metadata
    return metadata, tokenizer_from_gguf(metadata)


@pytest.mark.real_model
def test_smollm2_encodes_as_its_original(smollm2: tuple[dict[str, Any], Tokenizer]) -> None:
    """The original tokenizer.json of SmolLM2, put together by hand."""
    metadata, tokenizer = smollm2
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    original = Backend(BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    original.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    original.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:17]])

    @settings(max_examples=200)
    @given(texts)
    def agrees(text: str) -> None:
        ids = tokenizer.encode(text)
        assert ids == original.encode(text).ids
        # Bytes that no text of its training held (such as 0xF1) have no token.
        known = bytes(byte for byte in text.encode() if original.token_to_id(CHAR_OF_BYTE[byte]) is not None)
        assert b"".join(map(tokenizer.token_bytes, ids)) == known

    agrees()
    for text in NASTY:
        assert tokenizer.encode(text) == original.encode(text).ids


@pytest.mark.real_model
def test_smollm2_facts(smollm2: tuple[dict[str, Any], Tokenizer]) -> None:
    _, tokenizer = smollm2
    assert (tokenizer.vocab_size, tokenizer.bos_token_id) == (49152, 1)
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.special_token_ids == set(range(17))
    assert tokenizer.encode("Hello world") == [19556, 905]
    assert tokenizer.chat_template is not None and "<|im_start|>" in tokenizer.chat_template


def sentencepiece_encode(metadata: dict[str, Any], text: str) -> list[int]:
    """SentencePiece BPE from its definition: join the neighbours whose union scores highest, leftmost first.

    `metadata` has besides: "ids" of the tokens, and "splitter", which cuts out the control and user-defined ones.
    """
    scores = metadata["tokenizer.ggml.scores"]
    ids, kinds = metadata["ids"], metadata["tokenizer.ggml.token_type"]
    out: list[int] = []
    for number, part in enumerate(metadata["splitter"].split(text)):
        if number % 2:
            out.append(ids[part])
            continue
        symbols = list(part.replace(" ", "▁"))
        while True:
            joined = [
                (scores[ids[a + b]], -at)
                for at, (a, b) in enumerate(itertools.pairwise(symbols))
                if a + b in ids and kinds[ids[a + b]] == 1
            ]
            if not joined:
                break
            at = -max(joined)[1]
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            out += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return out


@pytest.mark.real_model
def test_gemma3_encodes_as_sentencepiece_defines(gemma3: tuple[dict[str, Any], Tokenizer]) -> None:
    metadata, tokenizer = gemma3
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    whole = [tokens[at] for at in np.flatnonzero((kinds == CONTROL) | (kinds == USER)) if "unused" not in tokens[at]]
    splitter = re.compile("(" + "|".join(map(re.escape, sorted(whole, key=len, reverse=True))) + ")")
    metadata = {**metadata, "ids": {token: at for at, token in enumerate(tokens)}, "splitter": splitter}

    @settings(max_examples=200, deadline=None)
    @given(texts)
    def agrees(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == sentencepiece_encode(metadata, text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.replace("▁", " ").encode()

    agrees()
    for text in NASTY:
        assert tokenizer.encode(text, add_special_tokens=False) == sentencepiece_encode(metadata, text)


@pytest.mark.real_model
def test_gemma3_facts(gemma3: tuple[dict[str, Any], Tokenizer]) -> None:
    _, tokenizer = gemma3
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.chat_template) == (262144, 2, None)
    assert tokenizer.eos_token_ids == {1, 106}
    assert tokenizer.encode("Hello  world") == [2, 9259, 138, 12392]
