"""Which engines are measured side by side, and how each is started. Does not know how often or in which order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.environments import Cache, pinned_version
from benchmarks.peers.models import Models
from benchmarks.peers.run_llama_cpp import BIN_VARIABLE

OURS = "python_llm"


@dataclass(frozen=True)
class Launch:
    """A runner that may be started."""

    python: Path
    module: str
    model: str
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """One engine with one form of the model."""

    name: str
    engine: str
    weights: str
    version: str
    prepare: Callable[[Cache, Models], Launch]
    """Installs and converts what is missing. Raises SkipError."""


def contenders() -> list[Contender]:
    """All of them, ours first."""
    return [
        Contender(OURS, OURS, "Q4_1 file", version("python-llm"), _ours),
        _openvino("int4", "4 bits, groups of 32"),
        _openvino("int8", "8 bits"),
        _openvino("fp32", "float32"),
        _llama_cpp("q4_1", None, "Q4_1 file"),
        _llama_cpp("q4_0", "Q4_0", "Q4_0, requantised"),
        _llama_cpp("f16", "F16", "float16"),
        Contender("vllm", "vLLM CPU", "float32", pinned_version("vllm"), _vllm),
        Contender("transformers", "transformers generate", "float32", pinned_version("transformers"), _transformers),
    ]


def _ours(cache: Cache, models: Models) -> Launch:
    return Launch(Path(sys.executable), "benchmarks.peers.run_python_llm", str(models.gguf()))


def _vllm(cache: Cache, models: Models) -> Launch:
    # It compiles the model at its first start and keeps the result here.
    environ = {"VLLM_CACHE_ROOT": str(cache.folder / "vllm")}
    return Launch(cache.environment("vllm"), "benchmarks.peers.run_vllm", str(models.hugging_face()), environ)


def _transformers(cache: Cache, models: Models) -> Launch:
    return Launch(cache.environment("transformers"), "benchmarks.peers.run_transformers", str(models.hugging_face()))


def _openvino(name: str, weights: str) -> Contender:
    def prepare(cache: Cache, models: Models) -> Launch:
        return Launch(cache.environment("openvino"), "benchmarks.peers.run_openvino", str(models.openvino(name)))

    return Contender(f"openvino_{name}", "OpenVINO GenAI", weights, pinned_version("openvino"), prepare)


def _llama_cpp(name: str, kind: str | None, weights: str) -> Contender:
    def prepare(cache: Cache, models: Models) -> Launch:
        environ = {BIN_VARIABLE: str(cache.llama_cpp())}
        return Launch(Path(sys.executable), "benchmarks.peers.run_llama_cpp", str(models.gguf(kind)), environ)

    return Contender(f"llama_cpp_{name}", "llama.cpp", weights, pinned_version("llama_cpp"), prepare)
