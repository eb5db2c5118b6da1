"""A model's settings -> its files, tokenizer, runner and speculator: what the door and the doctor need.

Does not know requests, the engine or Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from python_llm.config import ModelSettings
from python_llm.model_files.locate import ModelFiles, locate
from python_llm.tokenization.load import load_tokenizer
from python_llm.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from python_llm.runner.runner import StepRunner
    from python_llm.speculation.speculator import BatchSpeculator


def locate_model(settings: ModelSettings, folder: Path) -> ModelFiles:
    """`folder`: where model.json lies. Raises ModelLoadError."""
    return locate(settings.model, revision=settings.revision, base_dir=folder)


def tokenizer_of(settings: ModelSettings, folder: Path, files: ModelFiles) -> Tokenizer:
    """The tokenizer of `files`, the model's own, unless the settings name another source. Raises ModelLoadError."""
    return load_tokenizer(locate(settings.tokenizer, base_dir=folder) if settings.tokenizer else files)


def runner_of(settings: ModelSettings, files: ModelFiles, warn: Callable[[str], None]) -> StepRunner:
    """Loads the weights and sets up the KV pool; see `load_runner`. Raises ModelLoadError."""
    # They bring torch, which a tokenizer model does without.
    from python_llm.runner.factory import load_runner
    from python_llm.runner.kernels.native_decoder import KVFormat

    return load_runner(
        files,
        block_size=settings.block_size,
        kv_cache_bytes=settings.kv_cache_memory_mib << 20,
        max_model_len=settings.max_model_len,
        weight_format=settings.weight_format,
        kernels=settings.kernels,
        cpu_threads=settings.cpu_threads,
        kv_format=KVFormat(settings.key_cache_format, settings.value_cache_format),
        warn=warn,
    )


def speculator_of(settings: ModelSettings, runner: StepRunner, warn: Callable[[str], None]) -> BatchSpeculator | None:
    """Measures steps of `runner`, not yet in use, for some tenths of a second; None: speculation is off."""
    if settings.speculation == "off":
        return None
    from python_llm.speculation.prompt_lookup import PromptLookup
    from python_llm.speculation.speculator import BatchSpeculator
    from python_llm.speculation.step_costs import measure_step_costs

    lookup = PromptLookup(
        min_ngram=settings.prompt_lookup_min_ngram,
        max_ngram=settings.prompt_lookup_max_ngram,
        memory_tokens=settings.prompt_lookup_memory_tokens,
    )
    return BatchSpeculator(
        {"prompt_lookup": lookup},
        default=settings.speculation,
        num_draft_tokens=settings.num_draft_tokens,
        vocab_size=runner.vocab_size,
        costs=measure_step_costs(runner),
        log_warning=warn,
    )
