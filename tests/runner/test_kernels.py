"""The compiled kernels against their plain twins: blocks, matrix products, and whole decoders of every family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from python_llm.engine.plan import Span
from python_llm.runner.decoder import Decoder
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.kernels.gguf_blocks import FloatRows, Format, IntegerRows, PackedRows, unpack
from python_llm.runner.kernels.library import address, load_kernels
from python_llm.runner.kernels.native_decoder import KVFormat, NativeDecoder, to_float32, why_not
from python_llm.runner.kernels.packed_weights import tensor_weights
from python_llm.runner.kernels.quantize import to_format
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.native_support import lacking
from python_llm.runner.runner import TorchRunner
from runner_steps import chunked_logits, pages, span
from tiny_configs import TINY_CONFIGS
from tiny_models import random_weights

NATIVE = [kind for kind in sorted(TINY_CONFIGS) if not lacking(spec_from_hf_config(TINY_CONFIGS[kind]))]
"""Kinds of tiny models whose every feature the kernels have."""
FLOATS = ["F32", "F16", "BF16"]
INTEGERS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
ROWS_EXACT_IN_FLOAT16 = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"}
"""Types whose scales are float16 in the file; those of the others are products, rounded to float16 by the kernels."""


def random_tensor(type_name: str, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of an [n, k] tensor with every bit pattern, and its values by the `gguf` package."""
    rng = np.random.default_rng(seed)
    kind = GGMLQuantizationType[type_name]
    if type_name in FLOATS:
        values = rng.standard_normal((n, k)).astype(np.float32)
        if type_name == "BF16":
            values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1), values
        stored = values if type_name == "F32" else values.astype(np.float16)
        return stored.view(np.uint8).reshape(-1), stored.astype(np.float32)
    block, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (n * k // block, size), dtype=np.uint8)

    def halves(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (len(raw), 1)).astype(np.float16).view(np.uint8)

    raw[:, slice(208, 210) if type_name == "Q6_K" else slice(0, 2)] = halves(0.001, 0.1)
    if type_name in {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}:
        raw[:, 2:4] = halves(-0.1, 0.1)
    return raw.reshape(-1), dequantize(raw.reshape(n, -1), kind)


def multiply(rows: PackedRows, x: np.ndarray) -> np.ndarray:
    """x [r, k] times the packed [n, k] matrix, by the kernels."""
    integer = isinstance(rows, IntegerRows)
    n, k = rows.q.shape if isinstance(rows, IntegerRows) else rows.values.shape
    out = np.full((len(x), n), np.nan, dtype=np.float32)
    arrays = [rows.q, rows.d, rows.m, None] if isinstance(rows, IntegerRows) else [None, None, None, rows.values]
    pointers = [address(array) for array in arrays]
    x = np.ascontiguousarray(x)
    assert load_kernels().pl_multiply(rows.format, n, k, *pointers, address(x), len(x), address(out)) == 0, integer
    return out


def quantized_activations(x: np.ndarray) -> np.ndarray:
    """What the integer kernels see of x: 8 bits in groups of 32, float64."""
    groups = x.reshape(len(x), -1, 32)
    top = np.abs(groups).max(axis=-1, keepdims=True)
    q = np.rint(groups * (np.float32(127) / np.where(top == 0, 1, top)))
    return (q * (top / np.float32(127)).astype(np.float64)).reshape(x.shape)


@pytest.mark.parametrize("type_name", FLOATS + INTEGERS)
def test_unpacked_blocks_are_worth_what_gguf_says(type_name: str) -> None:
    raw, values = random_tensor(type_name, 24, 512)
    np.testing.assert_allclose(to_float32(unpack(type_name, raw, (24, 512))), values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [16, 40, 7])
@pytest.mark.parametrize("type_name", FLOATS + INTEGERS)
def test_products_match_their_twin_and_rows_do_not_depend_on_each_other(type_name: str, n: int) -> None:
    raw, values = random_tensor(type_name, n, 512)
    rows = unpack(type_name, raw, (n, 512))
    x = np.random.default_rng(1).standard_normal((11, 512)).astype(np.float32)
    x[3] = 0
    out = multiply(rows, x)
    seen = x.astype(np.float64) if isinstance(rows, FloatRows) else quantized_activations(x)
    tolerance = 1e-5 if type_name in ROWS_EXACT_IN_FLOAT16 or isinstance(rows, FloatRows) else 1e-3
    expected = seen @ values.T.astype(np.float64)
    assert np.abs(out - expected).max() <= tolerance * np.abs(expected).max()
    for count in (1, 2, 3, 4, 5, 8):
        for first in (0, 11 - count):
            assert (multiply(rows, x[first : first + count]) == out[first : first + count]).all(), "bit for bit"


def test_extreme_weights_and_activations_do_not_overflow() -> None:
    """The largest magnitudes everywhere, with equal and with alternating signs."""
    signs = np.where(np.arange(64) % 2, 1, -1)
    x = np.stack([np.full(64, 3.0), -np.full(64, 3.0), 3.0 * signs]).astype(np.float32)
    ones = np.ones((16, 2), dtype=np.float32)
    cases = [
        IntegerRows(Format.INT4, np.full((16, 64), 15, dtype=np.int8), ones, -ones),
        IntegerRows(Format.INT8, np.full((16, 64), -127, dtype=np.int8), ones, None),
        IntegerRows(Format.INT8, np.full((16, 64), -128, dtype=np.int8), ones, None),
        IntegerRows(Format.INT5, np.full((16, 64), 31, dtype=np.int8), ones, -ones),
        IntegerRows(Format.INT6_GROUP16, np.full((16, 64), -32, dtype=np.int8), np.ones((16, 4), np.float32), None),
    ]
    for rows in cases:
        np.testing.assert_allclose(multiply(rows, x), x @ to_float32(rows).T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    ("weight_format", "error"), [("float32", 0), ("bfloat16", 0.004), ("int8", 0.008), ("int4", 0.08)]
)
def test_quantising_loses_what_its_bits_say(weight_format: str, error: float) -> None:
    values = np.random.default_rng(2).standard_normal((32, 256)).astype(np.float32)
    values[5, :32] = 0.25
    values[6, :32] = 0
    kept = to_float32(to_format(values, weight_format))
    assert np.abs(kept - values).max() <= error * np.abs(values).max() + 1e-4


def native_and_torch(
    kind: str,
    weight_format: str = "float32",
    *,
    num_blocks: int = 64,
    block_size: int = 8,
    threads: int = 2,
    kv_format: KVFormat | None = None,
    query_scale: float = 1.0,
    **changes: Any,
) -> tuple[NativeDecoder, TorchRunner]:
    """The same tiny model on the kernels and in plain torch."""
    config: dict[str, Any] = {**TINY_CONFIGS[kind], "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    spec = spec_from_hf_config({**config, **changes})
    kv_format = kv_format or KVFormat()
    assert why_not(spec, block_size, kv_format) is None
    # Embeddings stay as stored on both sides, so let bfloat16 lose nothing.
    weights = {name: weight.bfloat16().float() for name, weight in random_weights(spec).items()}
    for name, weight in weights.items():
        weights[name] = weight * query_scale if name.endswith("q_proj.weight") else weight
    packed = tensor_weights({name: (lambda w=w: w) for name, w in weights.items()}, spec, weight_format)
    native = NativeDecoder(
        spec, packed, num_blocks=num_blocks, block_size=block_size, threads=threads, kv_format=kv_format
    )
    poison(native)
    rounded = {
        name: torch.from_numpy(to_float32(packed.matrices[name.removesuffix(".weight")]()))
        if weight.ndim == 2 and name != "model.embed_tokens.weight"
        else weight
        for name, weight in weights.items()
    }
    torch_runner = TorchRunner(Decoder(spec, rounded), KVCache(spec, num_blocks, block_size), 256)
    return native, torch_runner


def poison(native: NativeDecoder) -> None:
    """Every float in the pool becomes a NaN: what no request has written must never be read."""
    native._kv.fill(0xFF)


def native_logits(native: NativeDecoder, spans: list[Span]) -> list[torch.Tensor]:
    native.forward(spans)
    sizes = [len(one.token_ids) for one in spans]
    return list(native.logits(range(sum(sizes))).split(sizes))


IDS = np.random.default_rng(3).integers(3, 160, 61).tolist()


@pytest.mark.parametrize("weight_format", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", NATIVE)
def test_a_float_decoder_gives_the_twins_logits(kind: str, weight_format: str) -> None:
    native, twin = native_and_torch(kind, weight_format)
    table = pages(twin, 2)[1]
    expected = chunked_logits(twin, IDS, len(IDS), table)
    (found,) = native_logits(native, [span(twin, IDS, 0, len(IDS), table)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_an_integer_decoder_is_close_to_its_dequantised_weights(kind: str, weight_format: str) -> None:
    native, twin = native_and_torch(kind, weight_format)
    table = pages(twin, 2)[1]
    expected = chunked_logits(twin, IDS, len(IDS), table)
    (found,) = native_logits(native, [span(twin, IDS, 0, len(IDS), table)])
    # Only the activations' 8 bits are between the two.
    similarity = torch.cosine_similarity(found, expected, dim=-1)
    assert similarity.mean() > 0.99 and similarity.min() > 0.95


@pytest.mark.parametrize("weight_format", ["float32", "int4"])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3"])
@pytest.mark.parametrize("threads", [1, 3])
def test_company_chunks_and_pages_change_no_bit(kind: str, weight_format: str, threads: int) -> None:
    native, twin = native_and_torch(kind, weight_format, threads=threads)
    first, second, third = pages(twin, 3)
    other = IDS[::-1]
    (alone,) = native_logits(native, [span(twin, IDS, 0, len(IDS), first)])
    for chunk in (1, 3, 4, 7, 16):
        poison(native)
        found = []
        for start in range(0, len(IDS), chunk):
            end = min(start + chunk, len(IDS))
            mate = span(twin, other, 0, 1 + start % 13, third)
            spans = [mate, span(twin, IDS, start, end, second)]
            found.append(native_logits(native, spans if start % 2 else spans[::-1])[1 if start % 2 else 0])
        assert torch.equal(torch.cat(found), alone), f"chunks of {chunk}"


def test_logits_of_chosen_rows_only() -> None:
    native, twin = native_and_torch("gemma2", "int8")
    table = pages(twin, 1)[0]
    (every,) = native_logits(native, [span(twin, IDS, 0, 20, table)])
    assert torch.equal(native.logits([19, 3]), every[[19, 3]])


def test_widths_that_the_kernels_cannot_run_are_named() -> None:
    spec = spec_from_hf_config(TINY_CONFIGS["llama"])
    assert "48" in str(why_not(spec, 16, KVFormat()))
    spec = spec_from_hf_config({**TINY_CONFIGS["llama"], "hidden_size": 64, "intermediate_size": 96})
    assert "block_size 12" in str(why_not(spec, 12, KVFormat()))
    assert "multiple of 32, not 16" in str(why_not(spec, 16, KVFormat(keys="int8")))


KV_LOSS = {"float32": 1e-9, "bfloat16": 1e-3, "int8": 1e-3, "int4": 0.05}
"""Most that 1 - cosine similarity of the logits may be, on average."""


@pytest.mark.parametrize("values", KV_LOSS)
@pytest.mark.parametrize("keys", KV_LOSS)
def test_kv_formats_are_close_to_float32_and_change_no_bit_in_company(keys: str, values: str) -> None:
    kv_format = KVFormat(keys, values)
    native, twin = native_and_torch("llama", kv_format=kv_format, head_dim=64, query_scale=0.25, threads=4)
    reference, _ = native_and_torch("llama", head_dim=64, query_scale=0.25)
    first, second = pages(twin, 2)
    (expected,) = native_logits(reference, [span(twin, IDS, 0, len(IDS), first)])
    (alone,) = native_logits(native, [span(twin, IDS, 0, len(IDS), first)])
    loss = 1 - torch.cosine_similarity(alone.double(), expected.double(), dim=-1).mean()
    assert loss <= max(KV_LOSS[keys], KV_LOSS[values])
    if (keys, values) != ("float32", "float32"):
        assert not torch.equal(alone, expected), "the format has an effect"
    poison(native)
    found = []
    for start in range(0, len(IDS), 5):
        end = min(start + 5, len(IDS))
        mate = span(twin, IDS[::-1], 0, 1 + start, second)
        found.append(native_logits(native, [mate, span(twin, IDS, start, end, first)])[1])
    assert torch.equal(torch.cat(found), alone)


@pytest.mark.parametrize("kv_format", [KVFormat("int4", "int4"), KVFormat("int8", "bfloat16")])
def test_threads_that_store_neighbouring_tokens_do_not_disturb_each_other(kv_format: KVFormat) -> None:
    native, twin = native_and_torch("llama", kv_format=kv_format, head_dim=64, threads=4)
    table = pages(twin, 1)[0]
    ids = IDS * 4
    (expected,) = native_logits(native, [span(twin, ids, 0, len(ids), table)])
    for _ in range(100):
        poison(native)
        assert torch.equal(native_logits(native, [span(twin, ids, 0, len(ids), table)])[0], expected)


def test_a_decoder_may_go_while_its_threads_are_late() -> None:
    """More threads than cores: some come to the last step when the decoder is being taken down."""
    for _ in range(30):
        native, twin = native_and_torch("llama", threads=8)
        native.forward([span(twin, [1, 2, 3, 4, 5], 0, 5, pages(twin, 1)[0])])
        del native
