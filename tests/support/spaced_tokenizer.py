"""A tokenizer of SentencePiece's kind: "▁" is a space, and a text that stands alone loses its first one."""

from __future__ import annotations

from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from python_llm.tokenization.tokenizer import Tokenizer

PIECES = ["▁", "▁the", "▁sea", "s", "ide", "!", "▁中", "文", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
EOS_ID = len(PIECES)


def spaced_tokenizer() -> Tokenizer:
    """Ids 0 to 7 are text, 8 to 11 are the bytes of one emoji, `EOS_ID` is </s>."""
    backend = Backend(BPE(vocab={piece: i for i, piece in enumerate(PIECES)}, merges=[]))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(backend, eos_token_ids=[EOS_ID], bos_token_id=None, chat_template=None)
