"""The tests of the runner hold it against transformers' own models."""

from __future__ import annotations

import importlib.util
import sys

import torch

# On tiny tensors threads only wait for each other, for milliseconds an operation where cores are busy.
torch.set_num_threads(1)

_triton = importlib.util.find_spec("triton")
if _triton is not None and _triton.origin is None:
    # tests/ is on sys.path, so tests/triton passes for an empty package `triton`, which torch takes for OpenAI's.
    sys.modules["triton"] = None  # type: ignore[assignment]
