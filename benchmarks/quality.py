"""What each format of weights and of the KV cache costs in quality.

Runs a fixed text through the model in each format and compares every next-token distribution with that of float32:
perplexity, mean Kullback-Leibler divergence, and how often the best token is the same. float32 means the file's own
weights, dequantised. Does not know speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.engine_runs import MODEL
from python_llm.engine.plan import Span
from python_llm.model_files.locate import ModelFiles, locate
from python_llm.runner.factory import KVFormat, load_runner
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.kernels.native_decoder import page_bytes
from python_llm.runner.kernels.native_runner import NativeRunner
from python_llm.runner.loader import read_config
from python_llm.runner.runner import StepRunner
from python_llm.tokenization.load import load_tokenizer

TEXT = Path(__file__).parent / "quality_text.md"
"""The project's documentation as it once was. Do not edit it: only over one text do figures of versions compare."""
CHUNK = 512
CHUNKS = 8
QUICK_CHUNKS = 2
_HEAD_ROWS = 64
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Format:
    """One way to hold weights, keys and values in memory."""

    weights: str
    keys: str = "float32"
    values: str = "float32"

    @property
    def kind(self) -> str:
        """Which of the two differs from the reference."""
        if self.keys == self.values == "float32":
            return "weights"
        return "kv" if self.weights == "float32" else "both"


REFERENCE = Format("float32")
FORMATS = (
    *(Format(weights) for weights in ("bfloat16", "auto", "int8", "int4")),
    *(Format("float32", keys, keys) for keys in ("bfloat16", "int8", "int4")),
    Format("float32", "int8", "int4"),
    Format("float32", "int4", "int8"),
    Format("auto", "int8", "int8"),
)
QUICK_FORMATS = (Format("auto"), Format("float32", "int8", "int8"))


@dataclass
class Sums:
    """Over the tokens so far."""

    tokens: int = 0
    loss: float = 0.0
    divergence: float = 0.0
    agreed: int = 0

    def add(self, logs: torch.Tensor, reference: torch.Tensor, targets: torch.Tensor) -> None:
        """`logs`, `reference`: log-probabilities, float32 [n, vocab]; `targets`: what came next, int64 [n]."""
        self.tokens += len(targets)
        self.loss -= float(logs.gather(1, targets[:, None]).double().sum())
        self.divergence += float((reference.exp() * (reference - logs)).sum(dim=-1).double().sum())
        self.agreed += int((logs.argmax(dim=-1) == reference.argmax(dim=-1)).sum())

    def result(self) -> dict[str, float]:
        return {
            "perplexity": math.exp(self.loss / self.tokens),
            "kl_nats": self.divergence / self.tokens,
            "top1_agreement": self.agreed / self.tokens,
        }


def measure(
    *,
    formats: Sequence[Format] = FORMATS,
    chunks: int = CHUNKS,
    model: str = MODEL,
    text: Path = TEXT,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """JSON: one entry for each format, the reference first."""
    files = locate(model)
    ids = np.array(load_tokenizer(files).encode(text.read_text("utf-8")), dtype=np.int32)
    pieces = [ids[at : at + CHUNK] for at in range(0, min(len(ids) - 1, chunks * CHUNK), CHUNK)]
    targets = [torch.from_numpy(piece[1:].astype(np.int64)) for piece in pieces]
    reference: list[torch.Tensor] = []
    entries = []
    for chosen in (REFERENCE, *formats):
        say(f"quality: weights {chosen.weights}, keys {chosen.keys}, values {chosen.values}")
        runner = _load(files, chosen)
        sums = Sums()
        for index, logs in enumerate(_log_probabilities(runner, pieces)):
            if chosen == REFERENCE:
                reference.append(logs)
            sums.add(logs, reference[index], targets[index])
        entries.append(
            {
                "weights": chosen.weights,
                "keys": chosen.keys,
                "values": chosen.values,
                "kind": chosen.kind,
                "weight_bytes": runner.decoder.weight_bytes if isinstance(runner, NativeRunner) else None,
                "kv_bytes_per_token": _kv_bytes_per_token(files, chosen),
                **sums.result(),
            }
        )
    return {"text": text.name, "tokens": sum(map(len, targets)), "chunk": CHUNK, "formats": entries}


def _load(files: ModelFiles, chosen: Format) -> StepRunner:
    return load_runner(
        files,
        block_size=_BLOCK,
        kv_cache_bytes=64 << 20,
        weight_format=chosen.weights,
        kernels="native",
        kv_format=KVFormat(chosen.keys, chosen.values),
    )


def _kv_bytes_per_token(files: ModelFiles, chosen: Format) -> float:
    spec = spec_from_hf_config(read_config(files))
    return page_bytes(spec, _BLOCK, KVFormat(chosen.keys, chosen.values)) / _BLOCK


def _log_probabilities(runner: StepRunner, pieces: Sequence[np.ndarray]) -> Iterator[torch.Tensor]:
    """For each piece, float32 [n - 1, vocab]: the log-probabilities of the tokens after its first."""
    for ids in pieces:
        blocks = np.arange(-(-len(ids) // runner.block_size), dtype=np.int32)
        runner.forward([Span(0, 0, ids, blocks, None)])
        rows = [range(at, min(at + _HEAD_ROWS, len(ids) - 1)) for at in range(0, len(ids) - 1, _HEAD_ROWS)]
        yield torch.cat([torch.log_softmax(runner.logits(part), dim=-1) for part in rows])
