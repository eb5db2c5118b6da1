"""Writes the golden files: what transformers' `generate` says after each prompt. Run by hand, only to add prompts.

    pip install accelerate    # transformers wants it to read a GGUF file
    python tests/golden/make_golden.py smollm2
    python tests/golden/make_golden.py gemma3

Greedy, float32, eager attention, weights dequantised from the same GGUF file by transformers' own loader, one prompt at
a time (no padding), end-of-sequence ignored so that every entry has the same length. Prompt ids come from our
tokenizer, because transformers' GGUF tokenizer does not know SmolLM2's pre-tokenizer and splits numbers differently;
they are stored, so that a golden file does not depend on any tokenizer.

Each entry: `text`, `ids` (its tokens), `output` (generated tokens), `margin` (per generated token, by how much the best
logit led the second best: a tiny one is a tie that rounding may turn).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "support"))
from models import gemma3_path, smollm2_path  # noqa: E402


def generate(model: Any, ids: list[int], max_new_tokens: int) -> dict[str, Any]:
    """`output` and `margin` of one prompt."""
    import torch

    inputs = torch.tensor([ids])
    result = model.generate(
        inputs,
        # Left out, it would be guessed, and every <|im_end|> of a chat taken for padding.
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    output = result.sequences[0, len(ids) :].tolist()
    assert len(output) == max_new_tokens
    best = [logits[0].topk(2) for logits in result.logits]
    assert [int(top.indices[0]) for top in best] == output, "generate did not pick the best logit"
    return {"output": output, "margin": [round(float(top.values[0] - top.values[1]), 5) for top in best]}


def main(name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from prompts import GEMMA3, SMOLLM2
    from python_llm.model_files.locate import ModelFiles
    from python_llm.tokenization.load import load_tokenizer

    path, prompts, max_new_tokens = {
        "smollm2": (smollm2_path, SMOLLM2, 32),
        "gemma3": (gemma3_path, GEMMA3, 16),
    }[name]
    gguf = path()
    tokenizer = load_tokenizer(ModelFiles(str(gguf), "gguf", gguf))
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    model.generation_config.eos_token_id = None
    lines = []
    for number, text in enumerate(prompts, 1):
        ids = tokenizer.encode(text)
        entry = {"text": text, "ids": ids, **generate(model, ids, max_new_tokens)}
        lines.append(json.dumps(entry, ensure_ascii=False, separators=(",", ":")))
        print(f"{number}/{len(prompts)}: {len(ids)} tokens, smallest margin {min(entry['margin'])}", flush=True)
    (HERE / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
