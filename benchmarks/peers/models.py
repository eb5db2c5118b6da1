"""One model in the form that each peer wants, all made from the one GGUF file that we serve. Kept in the cache."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.environments import Cache, SkipError
from benchmarks.processes import runner_environ

OPENVINO_FORMATS = {
    "fp32": ("--weight-format", "fp32"),
    "int8": ("--weight-format", "int8"),
    "int4": ("--weight-format", "int4", "--group-size", "32", "--ratio", "1.0"),
}
"""Ours -> the exporter's options."""
GGUF_TYPES = ("Q4_0", "F16")
"""What `llama-quantize` makes of the file."""


_EXPORT_THREADS = 2


class Models:
    """The forms of the model in the GGUF file `source`."""

    def __init__(self, cache: Cache, source: Path) -> None:
        self._cache = cache
        self._source = source
        self._folder = cache.folder / "models" / source.stem
        self._origin = f"{source.name} {source.stat().st_size}"

    def gguf(self, kind: str | None = None) -> Path:
        """The file itself, or requantised to one of `GGUF_TYPES`. Raises SkipError."""
        if kind is None:
            return self._source
        folder = self._folder / f"gguf-{kind}"
        made = folder / f"{kind}.gguf"

        def make() -> None:
            program = self._cache.llama_cpp() / "llama-quantize"
            self._cache.run([str(program), "--allow-requantize", str(self._source), str(made), kind])

        self._cache.once(folder, f"{self._origin} {kind}", make)
        return made

    def hugging_face(self) -> Path:
        """A Hugging Face folder, float32: the file's weights, dequantised by transformers. Raises SkipError."""
        folder = self._folder / "hugging-face"

        def make() -> None:
            python = self._cache.environment("transformers")
            program = [str(python), "-m", "benchmarks.peers.make_hugging_face", str(self._source), str(folder)]
            self._cache.run(program, runner_environ(_EXPORT_THREADS))

        self._cache.once(folder, f"{self._origin} float32", make)
        return folder

    def openvino(self, name: str) -> Path:
        """An OpenVINO folder in one of `OPENVINO_FORMATS`. Raises SkipError."""
        folder = self._folder / f"openvino-{name}"
        options = OPENVINO_FORMATS[name]

        def make() -> None:
            source = self.hugging_face()
            python = self._cache.environment("openvino")
            exporter = [str(python.parent / "optimum-cli"), "export", "openvino", "--model", str(source)]
            exporter += ["--task", "text-generation-with-past", *options, str(folder)]
            self._cache.run(exporter, runner_environ(_EXPORT_THREADS))
            if not (folder / "openvino_tokenizer.xml").exists():
                raise SkipError("the exporter made no openvino_tokenizer.xml, without which GenAI does not start")

        self._cache.once(folder, f"{self._origin} {options}", make)
        return folder
