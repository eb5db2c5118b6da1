"""`python -m benchmarks.peers.make_hugging_face FILE.gguf FOLDER`, in the environment of transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

source, target = Path(sys.argv[1]), Path(sys.argv[2])
place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
# Its weights are floats by now, but it says that it is quantised, and such a model is not saved.
if hasattr(loaded.config, "quantization_config"):
    del loaded.config.quantization_config
plain = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
plain.load_state_dict(loaded.state_dict())
plain.save_pretrained(target)
AutoTokenizer.from_pretrained(**place).save_pretrained(target)
