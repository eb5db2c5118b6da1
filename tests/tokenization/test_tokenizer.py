"""Tokenizer itself: bytes of tokens, decoding, which tokens are special."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from corpus import NASTY, texts
from python_llm.errors import InvalidRequestError, ModelLoadError
from python_llm.tokenization.tokenizer import Tokenizer
from toy_tokenizer import BOS_ID, EOS_ID, toy_tokenizer

TOY = toy_tokenizer()


def sentencepiece(*, prefix_space: bool) -> Tokenizer:
    """Single characters, with bytes to fall back on."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}, "▁": 257, "a": 258, "é": 259}
    backend = Backend(BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.normalizer = normalizers.Replace(" ", "▁")
    if prefix_space:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), backend.normalizer])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken("<eos>", normalized=False)])
    backend.add_tokens([AddedToken("<0x41> ▁", normalized=False)])
    return Tokenizer(backend, eos_token_ids=[260], bos_token_id=None, chat_template=None)


PLAIN, PREFIXED = sentencepiece(prefix_space=False), sentencepiece(prefix_space=True)


@given(texts)
def test_joined_token_bytes_are_the_text(text: str) -> None:
    assert b"".join(map(TOY.token_bytes, TOY.encode(text))) == text.encode()


@pytest.mark.parametrize("text", NASTY)
def test_joined_token_bytes_are_the_text_of_the_nasty_corpus(text: str) -> None:
    assert b"".join(map(TOY.token_bytes, TOY.encode(text))) == text.encode()
    # "▁" and a space are one to SentencePiece.
    assert b"".join(map(PLAIN.token_bytes, PLAIN.encode(text))) == text.replace("▁", " ").encode()


@given(texts)
def test_decode_agrees_with_the_backend(text: str) -> None:
    for tokenizer in (TOY, PLAIN, PREFIXED):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer._backend.decode(
            ids, skip_special_tokens=False
        )


def test_text_that_goes_on_keeps_the_space_that_decode_strips() -> None:
    ids = PREFIXED.encode("a a")
    assert b"".join(map(PREFIXED.token_bytes, ids)) == b" a a"
    assert PREFIXED.decode(ids) == "a a"


@pytest.mark.parametrize(("scheme", "text"), [("always", "a a"), ("first", "a a"), ("never", " a a")])
def test_metaspace_strips_the_space_that_it_prepends(scheme: str, text: str) -> None:
    backend = Backend(BPE(vocab={"▁": 0, "a": 1}, merges=[]))
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer = Tokenizer(backend, eos_token_ids=[], bos_token_id=None, chat_template=None)
    assert tokenizer.decode([0, 1, 0, 1]) == text == backend.decode([0, 1, 0, 1])


def test_special_tokens_are_skipped_or_shown() -> None:
    ids = [BOS_ID, ord("a"), EOS_ID]
    assert TOY.decode(ids) == "a"
    assert TOY.decode(ids, skip_special_tokens=False) == "<bos>a<eos>"
    assert TOY.special_token_ids == {EOS_ID, BOS_ID}
    assert TOY.token_bytes(EOS_ID) == b"<eos>"


def test_ids_that_are_not_special_in_the_backend_are_when_they_end_a_text() -> None:
    assert (
        ord("x")
        in Tokenizer(TOY._backend, eos_token_ids=[ord("x")], bos_token_id=None, chat_template=None).special_token_ids
    )


def test_bytes_of_each_kind_of_token() -> None:
    assert PLAIN.token_bytes(1 + 0x41) == b"A"
    assert PLAIN.token_bytes(1 + 0xE6) == b"\xe6"
    assert PLAIN.token_bytes(257) == b" "
    assert PLAIN.token_bytes(259) == "é".encode()
    assert PLAIN.token_bytes(260) == b"<eos>"
    assert PLAIN.token_bytes(261) == b"<0x41>  "
    assert TOY.token_bytes(0xE6) == b"\xe6"


def test_token_outside_the_byte_alphabet_is_itself() -> None:
    backend = Backend(BPE(vocab={"日": 0, "a b": 1, "Ġa": 2}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend, eos_token_ids=[], bos_token_id=None, chat_template=None)
    assert [tokenizer.token_bytes(at) for at in range(3)] == ["日".encode(), b"a b", b" a"]


def test_token_text_shows_broken_characters() -> None:
    assert TOY.token_text(0xE6) == "\ufffd"
    assert TOY.token_text(ord("z")) == "z"


def test_ids_without_a_token_add_nothing() -> None:
    assert TOY.vocab_size == 258
    assert TOY.token_bytes(258) == TOY.token_bytes(10**12) == TOY.token_bytes(-1) == b""


def test_ids_without_a_token_leave_nothing_behind() -> None:
    tokenizer = toy_tokenizer()
    before = len(tokenizer._bytes)
    assert tokenizer.decode([*range(1_000_000, 1_000_100), -5]) == ""
    assert len(tokenizer._bytes) == before


def test_vocab_size_counts_gaps() -> None:
    backend = Backend(BPE(vocab={"a": 0, "b": 7}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    assert Tokenizer(backend, eos_token_ids=[], bos_token_id=None, chat_template=None).vocab_size == 8


def test_half_a_surrogate_pair_is_an_error_of_the_request() -> None:
    with pytest.raises(InvalidRequestError, match="half a surrogate pair at character 2"):
        TOY.encode("ab\ud83d")


def test_padding_and_truncation_of_the_backend_are_undone() -> None:
    backend = toy_tokenizer()._backend
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    tokenizer = Tokenizer(backend, eos_token_ids=[], bos_token_id=None, chat_template=None)
    assert tokenizer.encode("hello") == list(b"hello")


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (None, "missing"),
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.Sequence([decoders.Replace("_", " "), decoders.Fuse()]), "Replace . Fuse"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 2, 0)]), "Replace . Strip"),
        (decoders.Fuse(), "Fuse"),
    ],
)
def test_other_decoders_are_refused(decoder: decoders.Decoder | None, name: str) -> None:
    backend = Backend(BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(ModelLoadError, match=f"decoder is {name};"):
        Tokenizer(backend, eos_token_ids=[], bos_token_id=None, chat_template=None)


def test_importing_costs_neither_transformers_nor_torch() -> None:
    code = (
        "import sys, python_llm.tokenization.load, python_llm.tokenization.chat, python_llm.model_files.locate;"
        "print(*{'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == ""
