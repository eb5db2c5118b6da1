"""The tests of the runner hold it against transformers' own models."""

from __future__ import annotations

import torch

# On tiny tensors threads only wait for each other, for milliseconds an operation where cores are busy.
torch.set_num_threads(1)
