"""Puts BOS and EOS around what a `tokenizers.Tokenizer` encodes."""

from __future__ import annotations

from tokenizers import Tokenizer as Backend
from tokenizers import processors


def surround(backend: Backend, *, bos: str | None, eos: str | None) -> None:
    """Replace the backend's post-processor: `bos` first and `eos` last, where given. Both must be in the vocabulary."""
    special = [(token, backend.token_to_id(token)) for token in (bos, eos) if token is not None]
    single = [*([f"{bos}:0"] if bos is not None else []), "$A:0", *([f"{eos}:0"] if eos is not None else [])]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
