"""GGUFFile against the `gguf` package: what its writer wrote, and what its reader reads."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import gemma3_path, smollm2_path
from python_llm.errors import ModelLoadError
from python_llm.model_files.gguf import GGUFFile

QUANTISED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "F32"]


def write_small(path: Path, *, data: np.ndarray | None = None) -> np.ndarray:
    """A file with every kind of metadata and one [3, 4, 64] tensor of each type; returns the tensor's values."""
    if data is None:
        data = np.random.default_rng(0).normal(size=(3, 4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("text", "žluťoučký 🐎")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_array("strings", ["a", "", "日本"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("bools", [True, False])
    for name in QUANTISED:
        kind = gguf.GGMLQuantizationType[name]
        packed = gguf.quants.quantize(data, kind)
        writer.add_tensor(f"weight.{name}", packed, raw_dtype=kind)
    writer.add_tensor("bias", data[0, 0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return data


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    return path, write_small(path)


def test_metadata_is_what_was_written(small: tuple[Path, np.ndarray]) -> None:
    metadata = GGUFFile(small[0]).metadata
    scalars = {key: metadata[key] for key in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64")}
    assert scalars == {
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.5,
        "f64": 1e300,
    }
    assert metadata["text"] == "žluťoučký 🐎"
    assert metadata["yes"] is True and metadata["no"] is False
    assert metadata["strings"] == ["a", "", "日本"]
    for key, expected in {"ints": [1, -2, 3], "floats": [0.5, -1.5], "bools": [True, False]}.items():
        assert isinstance(metadata[key], np.ndarray)
        assert metadata[key].tolist() == expected


def test_tensors_agree_with_the_reference_reader(small: tuple[Path, np.ndarray]) -> None:
    path, data = small
    ours, theirs = GGUFFile(path), gguf.GGUFReader(path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for reference in theirs.tensors:
        tensor = ours.tensors[reference.name]
        assert tensor.shape == (data.shape if reference.name != "bias" else data.shape[-1:])
        assert (tensor.type_name, tensor.nbytes) == (reference.tensor_type.name, int(reference.n_bytes))
        assert tensor.offset == int(reference.data_offset)
        raw = ours.raw(reference.name)
        assert raw.dtype == np.uint8 and not raw.flags.writeable
        assert np.array_equal(raw, reference.data.reshape(-1).view(np.uint8))
        values = ours.dequantize(reference.name)
        expected = gguf.quants.dequantize(reference.data, reference.tensor_type)
        assert values.dtype == np.float32 and values.flags.writeable and values.flags.c_contiguous
        assert np.array_equal(values, expected.reshape(tensor.shape))


def test_float32_comes_back_exactly(small: tuple[Path, np.ndarray]) -> None:
    path, data = small
    assert np.array_equal(GGUFFile(path).dequantize("weight.F32"), data)


def test_every_truncation_is_a_clear_error(small: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    whole = small[0].read_bytes()
    first_tensor = min(tensor.offset for tensor in GGUFFile(small[0]).tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, first_tensor, 7), first_tensor, len(whole) - 100]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            GGUFFile(cut)


@given(st.data())
def test_damaged_headers_never_raise_anything_else(
    small: tuple[Path, np.ndarray], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(small[0].read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(4, 1500))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(whole)
    try:
        file = GGUFFile(path)
    except ModelLoadError:
        return
    for name in file.tensors:
        assert file.raw(name).nbytes == file.tensors[name].nbytes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02\x03rest", "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 99), "unknown type 99"),
        (struct.pack("<4sIQQQ1sIQ1s", b"GGUF", 3, 0, 1, 1, b"k", 8, 1, b"\xff"), "not UTF-8"),
        (struct.pack("<4sIQQ" + "Q1sIB" * 2, b"GGUF", 3, 0, 2, 1, b"k", 0, 0, 1, b"k", 0, 0), "'k' appears twice"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 32, 77, 0), "element type 77"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 31, 2, 0), "multiple of Q4_0"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 1, 0, 1, b"t", 9), "9 dimensions"),
    ],
)
def test_foreign_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=message):
        GGUFFile(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="There is no file"):
        GGUFFile(tmp_path / "none.gguf")


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.full((2, 3), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("model-*-of-00003.gguf"))


def test_split_model_is_one(split: list[Path]) -> None:
    file = GGUFFile(split[0])
    assert file.metadata["general.architecture"] == "llama"
    assert list(file.tensors) == [f"t{number}" for number in range(5)]
    for number in range(5):
        assert np.array_equal(file.dequantize(f"t{number}"), np.full((2, 3), number, np.float32))


def test_split_model_wants_its_first_part_and_all_of_them(split: list[Path]) -> None:
    with pytest.raises(ModelLoadError, match="name its first part"):
        GGUFFile(split[1])
    split[2].unlink()
    with pytest.raises(ModelLoadError, match=r"There is no file .*-00003-of-00003"):
        GGUFFile(split[0])


@pytest.mark.real_model
def test_real_files_open() -> None:
    for path, tokens, tensors in ((smollm2_path(), 49152, 272), (gemma3_path(), 262144, 236)):
        file = GGUFFile(path)
        assert len(file.metadata["tokenizer.ggml.tokens"]) == tokens
        assert len(file.tensors) == tensors


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["blk.0.attn_k.weight", "blk.3.ffn_down.weight", "output_norm.weight"])
def test_real_tensors_dequantize(name: str) -> None:
    for path in (smollm2_path(), gemma3_path()):
        file = GGUFFile(path)
        tensor = file.tensors[name]
        values = file.dequantize(name)
        assert values.shape == tensor.shape
        assert np.isfinite(values).all() and values.std() > 0
