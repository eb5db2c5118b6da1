"""Reads GGUF files (versions 2 and 3, little endian): metadata, tensor directory, tensor bytes.

The `gguf` package's own reader builds a numpy view for every element of every array, which takes half a minute for a
vocabulary of 262k tokens; this one walks the header once and leaves tensor data mapped, not read.
Does not know what a key or a tensor means.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from python_llm.errors import ModelLoadError

MAGIC = b"GGUF"

_SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_MAX_ARRAY_DEPTH = 4
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """Row-major, as numpy and torch count: the last dimension is contiguous."""
    type_name: str
    """ggml's name of the element type: "F32", "BF16", "Q4_1", ..."""
    offset: int
    """Bytes from the start of its file."""
    nbytes: int
    part: int = 0
    """Index of the file that holds it; 0 unless the model is split over several files."""


class GGUFFile:
    """A GGUF model, possibly split over files named `*-00001-of-0000N.gguf`; open it by the first of them.

    `metadata` maps keys to str, int, float, bool, lists of str (or of arrays), and numpy arrays of numbers.
    `tensors` keeps the order of the file. Raises ModelLoadError when a file is missing, truncated or malformed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        first = _Part(self.path)
        self.metadata = first.metadata
        self._parts = [first]
        for part_path in _later_parts(first):
            self._parts.append(_Part(part_path))
        self.tensors: dict[str, GGUFTensor] = {}
        for index, part in enumerate(self._parts):
            for tensor in part.read_tensors(index):
                if tensor.name in self.tensors:
                    raise ModelLoadError(f"{part.path}: tensor {tensor.name!r} appears twice.")
                self.tensors[tensor.name] = tensor

    def raw(self, name: str) -> np.ndarray:
        """uint8 [nbytes]: the tensor's stored bytes, a read-only view of the mapped file. KeyError: no such tensor."""
        tensor = self.tensors[name]
        return np.frombuffer(self._parts[tensor.part].data, np.uint8, tensor.nbytes, tensor.offset)

    def dequantize(self, name: str, entry: int | None = None) -> np.ndarray:
        """float32 [shape]: a fresh, writable array; with `entry`, only that entry of the first axis.

        KeyError: no such tensor; ModelLoadError: not a type of weights.
        """
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        rows = self.raw(name).reshape(*tensor.shape[:-1], -1) if tensor.nbytes else self.raw(name)
        shape = tensor.shape
        if entry is not None:
            rows, shape = rows[entry], shape[1:]
        try:
            values = dequantize(rows, GGMLQuantizationType[tensor.type_name])
        except NotImplementedError:
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} is stored as {tensor.type_name}, which the installed `gguf` package "
                "cannot turn into float32."
            ) from None
        return np.require(values.reshape(shape), np.float32, ["C", "W"])


class _Part:
    """One file: its mapped bytes, its metadata, and a cursor that moves forward through the header."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelLoadError(f"There is no file {path}.") from None
        except ValueError:
            raise ModelLoadError(f"{path} is empty; expected a GGUF file.") from None
        except OSError as error:
            raise ModelLoadError(f"Cannot read {path}: {error.strerror}.") from None
        self._pos = 0
        try:
            self.metadata = self._read_header()
        except struct.error:
            raise self._truncated() from None

    def read_tensors(self, part: int) -> list[GGUFTensor]:
        """The tensor directory, which follows the metadata; call once."""
        try:
            return self._read_tensors(part)
        except struct.error:
            raise self._truncated() from None

    def count(self, key: str, default: int) -> int:
        """A whole number of the metadata."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int):
            raise ModelLoadError(f"{self.path} is damaged: {key} must be a whole number, not {value!r:.80}.")
        return value

    def _truncated(self) -> ModelLoadError:
        return ModelLoadError(
            f"{self.path} is truncated or damaged: its header runs past the end of the file ({len(self.data)} bytes)."
        )

    def _read_header(self) -> dict[str, Any]:
        magic = self.data[:4]
        if magic != MAGIC:
            raise ModelLoadError(f"{self.path} is not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}.")
        self._pos = 4
        version = self._u32()
        if version not in (2, 3):
            # A big-endian file shows its version with the bytes swapped.
            kind = "a big-endian file" if version and version & 0xFFFF == 0 else f"GGUF version {version}"
            raise ModelLoadError(f"{self.path} is {kind}; only versions 2 and 3, little endian, can be read.")
        self.num_tensors = self._u64()
        metadata: dict[str, Any] = {}
        for _ in range(self._u64()):
            key = self._string()
            if key in metadata:
                raise ModelLoadError(f"{self.path} is damaged: metadata key {key!r} appears twice.")
            metadata[key] = self._value(self._u32())
        return metadata

    def _read_tensors(self, part: int) -> list[GGUFTensor]:
        alignment = self.count("general.alignment", 32)
        if alignment <= 0 or alignment & (alignment - 1):
            raise ModelLoadError(f"{self.path}: general.alignment must be a power of two, not {alignment}.")
        entries = []
        for _ in range(self.num_tensors):
            name = self._string()
            num_dims = self._u32()
            if num_dims > _MAX_DIMS:
                raise ModelLoadError(f"{self.path}: tensor {name!r} has {num_dims} dimensions; at most {_MAX_DIMS}.")
            # The file lists the contiguous dimension first.
            shape = tuple(self._u64() for _ in range(num_dims))[::-1]
            entries.append((name, shape, self._u32(), self._u64()))
        data_start = -(-self._pos // alignment) * alignment
        return [self._tensor(name, shape, code, data_start + at, part) for name, shape, code, at in entries]

    def _tensor(self, name: str, shape: tuple[int, ...], code: int, offset: int, part: int) -> GGUFTensor:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            ggml_type = GGMLQuantizationType(code)
            block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
        except (ValueError, KeyError):
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has element type {code}, which the installed `gguf` package "
                "does not know."
            ) from None
        count = 1
        for size in shape:
            count *= size
        if shape and shape[-1] % block_size:
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} has rows of {shape[-1]}, not a multiple of {ggml_type.name}'s block "
                f"of {block_size}."
            )
        nbytes = count // block_size * block_bytes
        if offset + nbytes > len(self.data):
            raise ModelLoadError(
                f"{self.path} is truncated: tensor {name!r} ends at byte {offset + nbytes}, the file at "
                f"{len(self.data)}."
            )
        return GGUFTensor(name, shape, ggml_type.name, offset, nbytes, part)

    def _u32(self) -> int:
        value: int = _U32.unpack_from(self.data, self._pos)[0]
        self._pos += 4
        return value

    def _u64(self) -> int:
        value: int = _U64.unpack_from(self.data, self._pos)[0]
        self._pos += 8
        return value

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        # The hot loop: a vocabulary and its merges are half a million strings.
        data, pos, size, unpack = self.data, self._pos, len(self.data), _U64.unpack_from
        out: list[str] = []
        try:
            for _ in range(count):
                start = pos + 8
                pos = start + unpack(data, pos)[0]
                if pos > size:
                    raise self._truncated()
                out.append(data[start:pos].decode())
        except UnicodeDecodeError:
            raise ModelLoadError(f"{self.path} is damaged: the string at byte {start} is not UTF-8.") from None
        self._pos = pos
        return out

    def _value(self, code: int, depth: int = 0) -> Any:
        if code == _STRING:
            return self._string()
        if code == _ARRAY:
            return self._array(depth)
        return self._numbers(code, 1)[0].item()

    def _array(self, depth: int) -> Any:
        if depth == _MAX_ARRAY_DEPTH:
            raise ModelLoadError(f"{self.path} is damaged: metadata arrays nest deeper than {_MAX_ARRAY_DEPTH}.")
        code, count = self._u32(), self._u64()
        if code == _STRING:
            return self._strings(count)
        if code == _ARRAY:
            return [self._array(depth + 1) for _ in range(count)]
        return self._numbers(code, count)

    def _numbers(self, code: int, count: int) -> np.ndarray:
        if code not in _SCALARS:
            raise ModelLoadError(f"{self.path} is damaged: byte {self._pos} has metadata of unknown type {code}.")
        dtype = np.dtype(_SCALARS[code])
        nbytes = count * dtype.itemsize
        if self._pos + nbytes > len(self.data):
            raise self._truncated()
        values = np.frombuffer(self.data[self._pos : self._pos + nbytes], dtype)
        self._pos += nbytes
        return values


def _later_parts(first: _Part) -> list[Path]:
    """The other files of a split model, in order; none when it is not split."""
    count, path = first.count("split.count", 1), first.path
    if count <= 1:
        return []
    ending = f"-00001-of-{count:05d}.gguf"
    if first.count("split.no", 0) != 0 or not path.name.endswith(ending):
        raise ModelLoadError(
            f"{path} is one part of a model split over {count} files: name its first part, which ends in {ending!r}."
        )
    stem = path.name[: -len(ending)]
    return [path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(2, count + 1)]
