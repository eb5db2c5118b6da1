"""GGUF tokenizers against the originals they were converted from, built here with small trained vocabularies.

Each original is transformers' or the `tokenizers` library's own, and its GGUF metadata is what llama.cpp's converter
would write: tokens by id, their types, merges or scores.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from corpus import NASTY, texts
from python_llm.tokenization import pre_tokenizers as cuts
from python_llm.tokenization.from_gguf import tokenizer_from_gguf
from python_llm.tokenization.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "   "]
TRAINING = [
    *NASTY,
    "The quick brown fox jumps over the lazy dog. It's 1234567 o'clock, isn't it? HelloWorld CamelCase snake_case",
    "for i in range(100):\n\tprint(f'{i:>5}')  # 日本語 コメント\n\n\n    return None\n",
    "Dvacet tisíc mil pod mořem; 두 번째 문장. Привет, мир! مرحبا",
] * 3
WITH_TOKENS = [
    "<|im_start|>user\nHi <tool_call>{}</tool_call><|im_end|>\n<|endoftext|>",
    "a<|im_end|> b   c<tool_call>  \n<|im_start|>",
    "<|im_end|><|im_end|>é<tool_call>日本",
]


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def of_transformers(module: str, name: str) -> tuple[pre_tokenizers.PreTokenizer, normalizers.Normalizer | None]:
    package = importlib.import_module(f"transformers.models.{module}.tokenization_{module}")
    backend = getattr(package, name)().backend_tokenizer
    return backend.pre_tokenizer, backend.normalizer


def of_transformers_gguf(name: str) -> tuple[pre_tokenizers.PreTokenizer, normalizers.Normalizer | None]:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return split(GGUF_PRE_TOKENIZER_SPLITS[name]), None


def digits_then_gpt2() -> tuple[pre_tokenizers.PreTokenizer, normalizers.Normalizer | None]:
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(steps), None


ORIGINALS: dict[str, Any] = {
    "gpt-2": lambda: of_transformers("gpt2", "GPT2Tokenizer"),
    "qwen2": lambda: of_transformers("qwen2", "Qwen2Tokenizer"),
    "olmo": lambda: of_transformers("gpt_neox", "GPTNeoXTokenizer"),
    "command-r": lambda: of_transformers("cohere", "CohereTokenizer"),
    "smollm": digits_then_gpt2,
    "refact": digits_then_gpt2,
    "starcoder": digits_then_gpt2,
    **{
        name: (lambda name=name: of_transformers_gguf(name))
        for name in ("llama-bpe", "dbrx", "tekken", "gpt-4o", "smaug-bpe", "falcon3")
    },
}
"""The pre-tokenizers of the families we serve: `tokenizer.ggml.pre` -> the original's."""


def trained(name: str) -> Backend:
    pre_tokenizer, normalizer = ORIGINALS[name]()
    ignore_merges = cuts.pre_tokenizer(name).ignore_merges
    backend = Backend(BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING, trainer)
    assert backend.get_vocab_size() > 500, "merges have been learned"
    backend.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return backend


def byte_level_metadata(backend: Backend, pre: str) -> dict[str, Any]:
    model = json.loads(backend.to_str())["model"]
    ids = {index: token for token, index in backend.get_vocab(with_added_tokens=True).items()}
    tokens = [ids[index] for index in range(len(ids))]
    kinds = [CONTROL if token in SPECIAL else USER if token in ADDED else NORMAL for token in tokens]
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": np.array(kinds, np.int32),
        "merges": [" ".join(merge) for merge in model["merges"]],
        "add_bos_token": False,
        "eos_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@pytest.mark.parametrize("name", sorted(ORIGINALS))
def test_byte_level_bpe_gives_the_originals_ids(name: str) -> None:
    original = trained(name)
    ours = tokenizer_from_gguf(byte_level_metadata(original, name))
    for text in [*NASTY, *WITH_TOKENS]:
        assert ours.encode(text) == original.encode(text).ids, text

    @settings(max_examples=50, deadline=None)
    @given(texts)
    def agrees(text: str) -> None:
        assert ours.encode(text) == original.encode(text).ids

    agrees()


MARKERS = ["<|user|>", "<|assistant|>", "<|end|>"]


def sentencepiece_pair(*, prefix: bool, strip: bool = False) -> tuple[Backend, dict[str, Any]]:
    """The tokenizer.json that the hub has for a SentencePiece BPE model, and that model's GGUF metadata."""
    from transformers.tokenization_utils_base import generate_merges

    learner = Backend(BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
    learner.train_from_iterator(TRAINING, trainers.BpeTrainer(vocab_size=700, limit_alphabet=150, show_progress=False))
    learned = sorted(learner.get_vocab().items(), key=lambda entry: entry[1])
    letters = [token for token, _ in learned if len(token) == 1]
    pieces = [token for token, _ in learned if len(token) > 1] + letters
    whole = ["<unk>", "<s>", "</s>"]
    tokens = [*whole, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *MARKERS]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *[CONTROL] * 2, USER]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [-1000.0] * 3
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = generate_merges(vocab, {piece: -float(rank) for rank, piece in enumerate(pieces)})
    original = Backend(BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    to_marks = normalizers.Replace(" ", "▁")
    original.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), to_marks]) if prefix else to_marks
    ends = [decoders.Strip(" ", 1, 0)] if prefix else []
    original.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    original.add_special_tokens(
        [AddedToken(token, normalized=False, rstrip=strip and token not in ("<unk>", "<s>")) for token in whole]
        + [AddedToken(token, normalized=False, rstrip=strip) for token in MARKERS]
    )
    values = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": np.array(kinds, np.int32),
        "scores": np.array(scores, np.float32),
        "add_bos_token": False,
        "add_space_prefix": prefix,
    }
    return original, {f"tokenizer.ggml.{key}": value for key, value in values.items()}


CHAT = ["<|user|>\nSYS\nHi<|end|>\n<|assistant|>\n", "<s> a</s>  b <|end|>   c", "<|user|> é 日 \U0001f600<|end|>"]


def agree(ours: Tokenizer, original: Backend) -> None:
    for text in [*NASTY, *CHAT]:
        ids = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == original.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_bpe_gives_the_originals_ids(prefix: bool) -> None:
    """As Llama 2, Mistral and Mixtral (with a space put in front) and Gemma (without)."""
    original, metadata = sentencepiece_pair(prefix=prefix)
    agree(tokenizer_from_gguf(metadata), original)


def test_phi3s_tokens_swallow_the_whitespace_behind_them() -> None:
    original, metadata = sentencepiece_pair(prefix=True, strip=True)
    ours = tokenizer_from_gguf({**metadata, "general.architecture": "phi3"})
    agree(ours, original)
    plain = tokenizer_from_gguf({**metadata, "general.architecture": "llama"})
    assert ours.encode(CHAT[0]) != plain.encode(CHAT[0])
    assert ours.decode(ours.encode(CHAT[0]), skip_special_tokens=False).replace(" ", "").startswith("<|user|>SYS")
