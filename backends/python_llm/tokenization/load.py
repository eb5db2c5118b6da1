"""Loads the tokenizer that belongs to a model's files."""

from __future__ import annotations

from python_llm.model_files.locate import ModelFiles
from python_llm.tokenization.from_gguf import tokenizer_from_gguf
from python_llm.tokenization.from_hf import tokenizer_from_folder
from python_llm.tokenization.tokenizer import Tokenizer


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer inside a GGUF file or a Hugging Face folder; ModelLoadError when there is none we can serve."""
    if files.kind == "gguf":
        return tokenizer_from_gguf(files.gguf.metadata)
    return tokenizer_from_folder(files.path)
