"""What bytes a token adds to running text, read off the tokenizer's own decoder.

Two families are known: byte-level BPE (each character stands for one byte) and SentencePiece ("▁" stands for a space,
`<0xNN>` for a byte). Any other decoder looks at a token's neighbours, so its tokens have no bytes of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer as Backend

from python_llm.errors import ModelLoadError

TokenToBytes = Callable[[str], bytes]

_SPACE = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 stands for itself, the other bytes for U+0100 onwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([BYTE_OF_CHAR[char] for char in token])
    except KeyError:
        # As the `tokenizers` library has it: a token outside the alphabet was never byte-mapped.
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    return token.replace(_SPACE, " ").encode()


def _byte_fallback_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else _sentencepiece_bytes(token)


class TokenBytesRule:
    """How one tokenizer's decoder turns tokens into bytes. Raises ModelLoadError for a decoder of another family."""

    def __init__(self, backend: Backend) -> None:
        steps = _decoder_steps(backend)
        kinds = [step["type"] for step in steps]
        self.strips_leading_space = any(
            (kind == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
            or (kind == "Metaspace" and step.get("prepend_scheme") != "never")
            for kind, step in zip(kinds, steps, strict=True)
        )
        """Decoding a whole text drops one space in front, which encoding had added."""
        self.of_token: TokenToBytes
        """Bytes of an ordinary token."""
        self.of_added_token: TokenToBytes
        """Bytes of an added token: its own text."""
        if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "ByteFallback", "Fuse"}:
            self.of_token, self.of_added_token = byte_level_bytes, str.encode
        elif all(_is_sentencepiece(step) for step in steps) and {"Metaspace", "Replace"} & set(kinds):
            self.of_token = _byte_fallback_bytes if "ByteFallback" in kinds else _sentencepiece_bytes
            self.of_added_token = _sentencepiece_bytes
        else:
            raise ModelLoadError(
                f"The tokenizer's decoder is {' + '.join(kinds) or 'missing'}; only ByteLevel and SentencePiece-like "
                "decoders (Metaspace, or Replace + ByteFallback + Fuse) can be served."
            )


def _decoder_steps(backend: Backend) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    state = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def _is_sentencepiece(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        return bool(step["pattern"] == {"String": _SPACE} and step["content"] == " ")
    if step["type"] == "Metaspace":
        return bool(step["replacement"] == _SPACE)
    if step["type"] == "Strip":
        return bool(step["content"] == " " and step["start"] <= 1 and step["stop"] == 0)
    return step["type"] in {"ByteFallback", "Fuse"}
