"""The tests of the runner hold it against transformers' own models."""

from __future__ import annotations

import importlib.util
import sys

import torch

# On tiny tensors threads only wait for each other, for milliseconds an operation where cores are busy.
torch.set_num_threads(1)

_triton = importlib.util.find_spec("triton")
if _triton is None or _triton.origin is None:
    # pytest puts tests/ on sys.path for the test files that lie in it; tests/triton would then pass for OpenAI's
    # package of that name, which torch looks for when transformers loads a model.
    sys.modules["triton"] = None  # type: ignore[assignment]
