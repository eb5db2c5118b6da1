"""A tokenizer small enough to reason about by hand: one token for each byte."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from python_llm.tokenization.token_bytes import CHAR_OF_BYTE
from python_llm.tokenization.tokenizer import Tokenizer

EOS_ID, BOS_ID = 256, 257

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if loop.previtem is defined and loop.previtem.role == message.role %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def toy_tokenizer(chat_template: str | None = CHAT_TEMPLATE, tool_template: str | None = None) -> Tokenizer:
    """Ids 0 to 255 are the byte values, 256 is <eos>, 257 is <bos>; nothing is put around encoded text."""
    backend = Backend(BPE(vocab={char: byte for byte, char in CHAR_OF_BYTE.items()}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<bos>", special=True)])
    return Tokenizer(
        backend,
        eos_token_ids=[EOS_ID],
        bos_token_id=BOS_ID,
        chat_template=chat_template,
        tool_template=tool_template,
        special_tokens={"bos_token": "<bos>", "eos_token": "<eos>"},
    )
