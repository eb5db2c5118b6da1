"""Text to token ids and back, the same for every kind of model file.

Wraps a `tokenizers.Tokenizer`. Does not know where it came from, nor which tokens a request wants to see.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Tokenizer as Backend

from python_llm.errors import InvalidRequestError
from python_llm.tokenization.token_bytes import TokenBytesRule


class Tokenizer:
    """Safe to share between threads once built. Raises ModelLoadError for a decoder that is not supported."""

    def __init__(
        self,
        backend: Backend,
        *,
        eos_token_ids: Iterable[int],
        bos_token_id: int | None,
        chat_template: str | None,
        tool_template: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """`special_tokens`: what chat templates may name, such as {"bos_token": "<s>", "eos_token": "</s>"}.

        `vocab_size`: for who knows it; asking a backend of 262k tokens takes half a second.
        """
        # Both can be baked into a tokenizer.json by its training run; a prompt must be encoded whole and alone.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._rule = TokenBytesRule(backend)
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._bytes: dict[int, bytes] = {}

        if vocab_size is None:
            vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocab_size = vocab_size
        """One more than the largest token id."""
        self.bos_token_id = bos_token_id
        self.eos_token_ids = frozenset(eos_token_ids)
        """Every token that ends a text or a turn."""
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special) | (
            self.eos_token_ids if bos_token_id is None else self.eos_token_ids | {bos_token_id}
        )
        """Tokens that are no part of the text; includes BOS and EOS."""
        self.chat_template = chat_template
        """Jinja source, or None for a model that was not trained to chat."""
        self.tool_template = tool_template
        """Jinja source in place of `chat_template` for messages with tools, where the model has one of its own."""
        self.special_tokens: Mapping[str, str] = dict(special_tokens or {})

    @functools.cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: no text has fewer tokens than its characters divided by this."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Text that spells a special token becomes that token.

        `add_special_tokens` puts BOS (EOS, ...) around it as the model wants; a rendered chat template brings its own.
        InvalidRequestError for half a surrogate pair, which JSON can spell and UTF-8 cannot.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"The text cannot be written in UTF-8: half a surrogate pair at character {error.start}."
            ) from None
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True, continues: bool = False) -> str:
        """The text of `ids`, standing alone or with `continues` after other text; bytes that are not UTF-8 become
        U+FFFD. Only text that stands alone loses the space that encoding puts before some."""
        special = self.special_token_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(token_id) for token_id in ids if token_id not in special)
        if self._rule.strips_leading_space and not continues:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes (maybe part of a character) that the token adds to text that goes on.

        A special token gives its own text; an id without a token (padding of the embedding matrix) gives nothing.
        """
        data = self._bytes.get(token_id)
        if data is None:
            data = self._find_bytes(token_id)
            # Requests can name any number of ids that do not exist.
            if 0 <= token_id < self.vocab_size:
                self._bytes[token_id] = data
        return data

    def token_text(self, token_id: int) -> str:
        """The token for people's eyes; bytes that are not UTF-8 become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def _find_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return self._rule.of_added_token(added)
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        return b"" if token is None else self._rule.of_token(token)
