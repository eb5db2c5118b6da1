"""Builds a tokenizer from the metadata of a GGUF file.

Two kinds of vocabulary: "gpt2" (byte-level BPE with its merges) and "llama" (SentencePiece BPE, whose merges are
implied by the scores). What the file leaves out is filled in as llama.cpp does.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, normalizers, processors
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from python_llm.errors import ModelLoadError
from python_llm.tokenization.pre_tokenizers import pre_tokenizer
from python_llm.tokenization.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "▁"

# Ends of a turn or of a text, known by their text because converters seldom record them all.
_END_TOKENS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
)


def tokenizer_from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    """`metadata` as `GGUFFile` reads it; ModelLoadError when the tokenizer is missing, damaged or of another kind."""
    vocab = _Vocab(metadata)
    model = metadata.get(_KEY + "model")
    if model == "gpt2":
        backend, add_bos = _byte_level(vocab, metadata)
    elif model == "llama":
        backend, add_bos = _sentencepiece(vocab, metadata), True
    else:
        raise ModelLoadError(
            f"The GGUF file's tokenizer is of kind {model!r} (tokenizer.ggml.model); supported are 'gpt2' and 'llama'."
        )
    strips = _tokens_that_strip(vocab, metadata)
    backend.add_special_tokens(
        [AddedToken(text, normalized=False, special=True, rstrip=text in strips) for text in vocab.special]
    )
    backend.add_tokens([AddedToken(text, normalized=False, rstrip=text in strips) for text in vocab.user_defined])
    # llama.cpp's defaults for files that leave the ids out.
    bos = vocab.special_id("bos", 1 if model == "llama" else None)
    eos = vocab.special_id("eos", 2 if model == "llama" else None)
    named = {"bos": bos, "eos": eos, "unk": vocab.special_id("unknown"), "pad": vocab.special_id("padding")}
    _surround(
        backend,
        bos=vocab.tokens[bos] if bos is not None and metadata.get(_KEY + "add_bos_token", add_bos) else None,
        eos=vocab.tokens[eos] if eos is not None and metadata.get(_KEY + "add_eos_token", False) else None,
    )
    return Tokenizer(
        backend,
        eos_token_ids=vocab.end_ids(eos),
        bos_token_id=bos,
        chat_template=_template(metadata, ""),
        tool_template=_template(metadata, ".tool_use"),
        vocab_size=len(vocab.tokens),
        special_tokens={f"{name}_token": vocab.tokens[at] for name, at in named.items() if at is not None},
    )


def _template(metadata: dict[str, Any], name: str) -> str | None:
    """The nameless template is the default one; llama.cpp keeps the others beside it under their names."""
    template = metadata.get(f"tokenizer.chat_template{name}")
    if template is not None and not isinstance(template, str):
        raise ModelLoadError(f"The GGUF file's tokenizer.chat_template{name} must be a text, not {template!r:.80}.")
    return template


def _tokens_that_strip(vocab: _Vocab, metadata: dict[str, Any]) -> set[str]:
    """Tokens that swallow the whitespace behind them. Files do not say so; llama.cpp knows it of Phi-3 by its name."""
    is_phi3 = metadata.get("general.architecture") == "phi3" and metadata.get(_KEY + "model") == "llama"
    return {*vocab.special, *vocab.user_defined} - {"<unk>", "<s>", "<|endoftext|>"} if is_phi3 else set()


class _Vocab:
    """The token list and each token's kind."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        tokens = metadata.get(_KEY + "tokens")
        if not isinstance(tokens, list):
            raise ModelLoadError("The GGUF file has no tokenizer (tokenizer.ggml.tokens is missing).")
        self.types = np.asarray(metadata.get(_KEY + "token_type", np.full(len(tokens), _NORMAL)))
        if len(self.types) != len(tokens):
            raise ModelLoadError(f"The GGUF file has {len(tokens)} tokens but {len(self.types)} token types.")
        self.tokens: list[str] = list(tokens)
        if metadata.get(_KEY + "model") == "llama":
            # User-defined tokens are looked for in the raw text, before spaces become "▁"; old converters wrote "▁".
            for at in np.flatnonzero(self.types == _USER_DEFINED):
                self.tokens[at] = self.tokens[at].replace(_SPACE, " ")
        self.ids = {token: at for at, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise ModelLoadError(
                f"The GGUF file's tokenizer is damaged: {len(self.tokens) - len(self.ids)} tokens appear twice."
            )

    @property
    def special(self) -> list[str]:
        return [self.tokens[at] for at in np.flatnonzero((self.types == _CONTROL) | (self.types == _UNKNOWN))]

    @property
    def user_defined(self) -> list[str]:
        return [self.tokens[at] for at in np.flatnonzero(self.types == _USER_DEFINED)]

    def special_id(self, name: str, default: int | None = None) -> int | None:
        at = self._metadata.get(f"{_KEY}{name}_token_id", default)
        return int(at) if at is not None and 0 <= at < len(self.tokens) else None

    def end_ids(self, eos: int | None) -> set[int]:
        known = {eos, self.special_id("eot"), self.special_id("eom")}
        # In the Harmony format <|end|> closes one message of a turn and <|return|> the turn.
        harmony = "<|return|>" in self.ids and "<|call|>" in self.ids
        for text in _END_TOKENS:
            at = self.ids.get(text)
            if at is not None and self.types[at] in (_CONTROL, _USER_DEFINED) and not (harmony and text == "<|end|>"):
                known.add(at)
        return {at for at in known if at is not None}


def _byte_level(vocab: _Vocab, metadata: dict[str, Any]) -> tuple[Backend, bool]:
    """The backend, and whether BOS goes in front unless the file says otherwise."""
    name = metadata.get(_KEY + "pre", "default")
    if name == "default":
        _log.warning("The GGUF file does not name its pre-tokenizer: text is cut by llama.cpp's default rules.")
    cut = pre_tokenizer(name)
    if _KEY + "merges" not in metadata:
        raise ModelLoadError("The GGUF file's tokenizer has no merges (tokenizer.ggml.merges).")
    # The first piece may itself be a space.
    merges = [(merge[:at], merge[at + 1 :]) for merge in metadata[_KEY + "merges"] if (at := merge.find(" ", 1)) > 0]
    backend = _bpe(vocab, merges, ignore_merges=cut.ignore_merges)
    backend.pre_tokenizer = cut.build()
    if (normalizer := cut.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    return backend, cut.add_bos


def _sentencepiece(vocab: _Vocab, metadata: dict[str, Any]) -> Backend:
    scores = metadata.get(_KEY + "scores")
    if scores is None or len(scores) != len(vocab.tokens):
        raise ModelLoadError("The GGUF file's tokenizer has no score for each token (tokenizer.ggml.scores).")
    unknown = vocab.special_id("unknown", 0)
    backend = _bpe(
        vocab,
        _merges_by_score(vocab, np.asarray(scores)),
        unk_token=None if unknown is None else vocab.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    to_marks = normalizers.Replace(" ", _SPACE)
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(_KEY + "add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), to_marks])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = to_marks
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(vocab: _Vocab, scores: np.ndarray) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the highest-scored token first: SentencePiece merges in that order."""
    normal = np.flatnonzero(vocab.types == _NORMAL)
    ids, tokens = vocab.ids, vocab.tokens
    merges: list[tuple[str, str]] = []
    for at in normal[np.argsort(-scores[normal], kind="stable")].tolist():
        token = tokens[at]
        # Among the ways to the same token, the one with the longest left part first, as the reference converters do.
        cuts = range(len(token) - 1, 0, -1)
        merges += [(token[:cut], token[cut:]) for cut in cuts if token[cut:] in ids and token[:cut] in ids]
    return merges


def _bpe(vocab: _Vocab, merges: list[tuple[str, str]], **options: Any) -> Backend:
    try:
        return Backend(BPE(vocab=vocab.ids, merges=merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"The GGUF file's tokenizer is damaged: {error}.") from None


def _surround(backend: Backend, *, bos: str | None, eos: str | None) -> None:
    """Make encoding put `bos` first and `eos` last, where given."""
    template = [*([f"{bos}:0"] if bos is not None else []), "$A:0", *([f"{eos}:0"] if eos is not None else [])]
    special = [(token, backend.token_to_id(token)) for token in (bos, eos) if token is not None]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
