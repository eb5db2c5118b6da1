"""Builds the runner for a model's files: native kernels where they can run it, plain torch where a spec can say it,
transformers' own modules otherwise.

Does not know requests or Triton.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from python_llm.errors import ModelLoadError
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.decoder import Decoder
from python_llm.runner.hf_config import has_spec, spec_from_hf_config
from python_llm.runner.kernels.library import KernelsUnavailableError, load_kernels
from python_llm.runner.kernels.native_decoder import KVFormat, NativeDecoder, Weights, page_bytes, why_not
from python_llm.runner.kernels.native_runner import NativeRunner
from python_llm.runner.kernels.packed_weights import gguf_weights, tensor_weights
from python_llm.runner.kernels.quantize import GROUP
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.loader import checked_gguf_places, load_weights, open_weights, read_config
from python_llm.runner.modules_decoder import ModulesDecoder
from python_llm.runner.modules_runner import ModulesRunner
from python_llm.runner.native_support import lacking
from python_llm.runner.runner import StepRunner, TorchRunner
from python_llm.runner.spec import DecoderSpec

_DEFAULT_KV_FORMAT = KVFormat()


def load_runner(
    files: ModelFiles,
    *,
    block_size: int,
    kv_cache_bytes: int,
    max_model_len: int | None = None,
    weight_format: str = "auto",
    kernels: str = "auto",
    cpu_threads: int | None = None,
    kv_format: KVFormat = _DEFAULT_KV_FORMAT,
    warn: Callable[[str], None] = print,
) -> StepRunner:
    """Load the model and set up a KV pool of at most `kv_cache_bytes`, in blocks of `block_size` tokens.

    `max_model_len`: longest sequence to serve, at most the model's own; None: the model's own, or what the pool holds
    if that is less. The other arguments are the settings of their names. `warn` gets one sentence when plain torch
    stands in for the kernels. Raises ModelLoadError, also when the pool cannot hold one sequence of an explicit length.
    """
    config = read_config(files)
    pool = _PoolRequest(files, block_size, kv_cache_bytes, max_model_len)
    if files.kind == "hf" and not has_spec(config):
        return _modules_runner(config, pool, weight_format, kernels, _with_auto(kv_format, "float32"), warn)
    spec = spec_from_hf_config(config)
    native = _use_native(spec, block_size, weight_format, _with_auto(kv_format, "float32"), kernels, warn)
    # 8 bits cost next to nothing beside weights in whole numbers; beside floats the cache stays exact.
    quantised = native and spec.head_dim % GROUP == 0 and _holds_whole_numbers(files, weight_format)
    kv_format = _with_auto(kv_format, "int8" if quantised else "float32")
    block_bytes = page_bytes(spec, block_size, kv_format) if native else KVCache.bytes_per_token(spec) * block_size
    num_blocks, longest = pool.size(block_bytes, spec.max_position_embeddings)
    # LongRoPE has two sets of frequencies, and which one serves is settled by the longest sequence.
    spec = spec_from_hf_config(config, longest)
    try:
        if not native:
            kv = KVCache(spec, num_blocks, block_size)
            return TorchRunner(Decoder(spec, load_weights(files, spec)), kv, longest)
        decoder = NativeDecoder(
            spec,
            _packed_weights(files, spec, weight_format),
            num_blocks=num_blocks,
            block_size=block_size,
            threads=cpu_threads or len(os.sched_getaffinity(0)),
            kv_format=kv_format,
        )
        return NativeRunner(decoder, longest)
    except (MemoryError, RuntimeError):
        raise _too_little_memory(num_blocks * block_bytes) from None


def _with_auto(kv_format: KVFormat, auto: str) -> KVFormat:
    """Put a format in the place of `auto`."""
    return KVFormat(*(auto if name == "auto" else name for name in (kv_format.keys, kv_format.values)))


def _holds_whole_numbers(files: ModelFiles, weight_format: str) -> bool:
    """Whether the weights will lie in memory quantised."""
    if weight_format != "auto":
        return weight_format in {"int8", "int4"}
    return files.kind == "gguf" and any(
        tensor.type_name not in {"F32", "F16", "BF16"} for tensor in files.gguf.tensors.values()
    )


@dataclass(frozen=True)
class _PoolRequest:
    files: ModelFiles
    block_size: int
    kv_cache_bytes: int
    max_model_len: int | None

    def size(self, block_bytes: int, limit: int) -> tuple[int, int]:
        """Number of blocks, and the longest sequence to serve of a model made for `limit` tokens."""
        num_blocks = self.kv_cache_bytes // block_bytes
        capacity = num_blocks * self.block_size
        longest = min(self.max_model_len or limit, limit)
        if capacity < (1 if self.max_model_len is None else longest):
            blocks = 1 if self.max_model_len is None else -(-longest // self.block_size)
            raise ModelLoadError(
                f"A KV cache of {self.kv_cache_bytes} bytes holds {capacity} tokens of {self.files.spec}; "
                f"max_model_len {self.max_model_len} needs at least {blocks * block_bytes} bytes."
            )
        return num_blocks, min(longest, capacity)


def _too_little_memory(wanted: int) -> ModelLoadError:
    return ModelLoadError(f"This machine cannot give {wanted} bytes for the KV cache.")


def _modules_runner(
    config: Mapping[str, Any],
    pool: _PoolRequest,
    weight_format: str,
    kernels: str,
    kv_format: KVFormat,
    warn: Callable[[str], None],
) -> StepRunner:
    reason = f"model_type {config.get('model_type')!r} has no decoder of ours"
    _refuse_what_needs_kernels(weight_format, kv_format, kernels, reason)
    decoder = ModulesDecoder(pool.files.path, config)
    block_bytes = KVCache.bytes_per_token(decoder.shape) * pool.block_size
    num_blocks, longest = pool.size(block_bytes, decoder.max_position_embeddings)
    try:
        kv = KVCache(decoder.shape, num_blocks, pool.block_size)
    except (MemoryError, RuntimeError):
        raise _too_little_memory(num_blocks * block_bytes) from None
    if decoder.limited_from is not None:
        warn(
            f"This model is served up to {decoder.max_position_embeddings} tokens, not {decoder.limited_from}: beyond "
            "its original context transformers' modules choose LongRoPE's frequencies by the longest sequence of the "
            "batch, so an answer would depend on who shares it."
        )
    warn(f"transformers' own modules compute this model, many times slower than the native kernels: {reason}.")
    return ModulesRunner(decoder, kv, longest)


def _packed_weights(files: ModelFiles, spec: DecoderSpec, weight_format: str) -> Weights:
    if files.kind == "gguf":
        return gguf_weights(files.gguf, checked_gguf_places(files.gguf, spec), spec, weight_format)
    return tensor_weights(open_weights(files, spec), spec, weight_format)


def _use_native(
    spec: DecoderSpec,
    block_size: int,
    weight_format: str,
    kv_format: KVFormat,
    kernels: str,
    warn: Callable[[str], None],
) -> bool:
    if kernels == "torch":
        reason: str | None = "the setting kernels is torch"
    else:
        lacks = lacking(spec)
        reason = f"they do not have {', '.join(lacks)}" if lacks else why_not(spec, block_size, kv_format)
        try:
            load_kernels()
        except KernelsUnavailableError as error:
            reason = str(error)
    if reason is None:
        return True
    _refuse_what_needs_kernels(weight_format, kv_format, kernels, reason)
    if kernels == "auto":
        warn(f"Plain torch computes this model, several times slower than the native kernels: {reason}.")
    return False


def _refuse_what_needs_kernels(weight_format: str, kv_format: KVFormat, kernels: str, reason: str) -> None:
    """`reason`: why the kernels cannot be used."""
    if kernels == "native":
        raise ModelLoadError(f"The native kernels cannot be used: {reason}.")
    wanted = [weight_format] if weight_format not in {"auto", "float32"} else []
    wanted += [name for name in (kv_format.keys, kv_format.values) if name != "float32"]
    if wanted:
        raise ModelLoadError(f"The format {wanted[0]} needs the native kernels, and they cannot be used: {reason}.")
