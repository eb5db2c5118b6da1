"""Drives a `TorchRunner` step by step, as a scheduler would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from python_llm.engine.plan import SamplingTask, Span, StepPlan
from python_llm.engine.sampling_params import SamplingParams
from python_llm.model_files.locate import ModelFiles
from python_llm.runner.batch import make_batch
from python_llm.runner.decoder import Decoder
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.loader import load_weights, read_config
from python_llm.runner.runner import StepRunner, TorchRunner

GREEDY = SamplingParams(temperature=0.0)


def runner_of(
    path: Path, *, num_blocks: int = 64, block_size: int = 4, max_model_len: int | None = None
) -> TorchRunner:
    """A runner over the model in folder or GGUF file `path`."""
    files = ModelFiles(str(path), "hf" if path.is_dir() else "gguf", path)
    config = read_config(files)
    spec = spec_from_hf_config(config, max_model_len)
    kv = KVCache(spec, num_blocks, block_size)
    return TorchRunner(Decoder(spec, load_weights(files, spec)), kv, spec.max_position_embeddings)


def pages(runner: StepRunner, count: int, seed: int = 0) -> list[np.ndarray]:
    """`count` equal shares of the pool, shuffled: no page table is in order."""
    order = np.random.default_rng(seed).permutation(runner.num_blocks).astype(np.int32)
    return np.array_split(order, count)


def span(
    runner: StepRunner,
    ids: Sequence[int],
    start: int,
    end: int,
    blocks: np.ndarray,
    *,
    sampling: SamplingTask | None = None,
) -> Span:
    """Tokens [start, end) of a sequence, with the pages that hold [0, end) and no more."""
    return Span(0, start, np.array(ids[start:end], np.int32), blocks[: -(-end // runner.block_size)], sampling)


@torch.inference_mode()
def logits(runner: TorchRunner, spans: Sequence[Span]) -> list[torch.Tensor]:
    """One forward pass; for each span its logits, float32 [n, vocab]."""
    batch = make_batch(spans, runner.kv, {layer.window for layer in runner.decoder.spec.layers})
    rows = runner.decoder.logits(runner.decoder.forward(batch, runner.kv))
    return list(rows.split([len(one.token_ids) for one in spans]))


def chunked_logits(runner: TorchRunner, ids: Sequence[int], chunk: int, blocks: np.ndarray) -> torch.Tensor:
    """float32 [len(ids), vocab], `chunk` tokens a step."""
    starts = range(0, len(ids), chunk)
    return torch.cat([logits(runner, [span(runner, ids, i, min(i + chunk, len(ids)), blocks)])[0] for i in starts])


def greedy(runner: StepRunner, prompt: Sequence[int], count: int, blocks: np.ndarray, chunk: int = 1000) -> list[int]:
    """The next `count` tokens, by `execute`."""
    ids, start = list(prompt), 0
    while len(ids) < len(prompt) + count:
        end = min(start + chunk, len(ids))
        task = None
        if end == len(ids):
            task = SamplingTask(GREEDY, 0, np.array(ids, np.int32), len(prompt), None)
        tokens = runner.execute(StepPlan((span(runner, ids, start, end, blocks, sampling=task),))).tokens[0]
        ids.extend(token.token_id for token in tokens)
        start = end
    return ids[len(prompt) :]
