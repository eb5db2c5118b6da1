"""The families of models we serve, as docs/models.md shows them: one table for the tests and for the docs.

`python tests/support/families.py` writes the docs' table; a test holds the two together.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

from python_llm.runner.gguf_config import SUPPORTED
from python_llm.runner.hf_config import spec_from_hf_config
from python_llm.runner.native_support import lacking
from python_llm.runner.spec import DecoderSpec
from tiny_configs import TINY_CONFIGS
from tiny_gguf import ARCHITECTURES

DOCS = Path(__file__).parent.parent.parent / "docs" / "models.md"
BEGIN, END = "<!-- families: written by tests/support/families.py -->", "<!-- end of families -->"


@dataclass(frozen=True)
class Family:
    name: str
    kinds: tuple[str, ...]
    """Of `TINY_CONFIGS`: together they switch on every part of the family that we serve."""
    needs: str = ""
    """What its decoder has beyond Llama's."""

    @property
    def model_types(self) -> list[str]:
        return list(dict.fromkeys(TINY_CONFIGS[kind]["model_type"] for kind in self.kinds))

    @property
    def architectures(self) -> list[str]:
        return list(dict.fromkeys(ARCHITECTURES[name] for name in self.model_types if name in ARCHITECTURES))

    @property
    def lacking(self) -> list[str]:
        """What the native kernels lack for it."""
        return list(dict.fromkeys(feature for kind in self.kinds for feature in lacking(spec(kind))))


FAMILIES = (
    Family("Llama 2, 3.x, SmolLM 2", ("llama", "llama3", "dynamic")),
    Family("SmolLM 3", ("smollm3",), "layers without rotation"),
    Family("Mistral, Ministral", ("mistral", "ministral"), "sliding window"),
    Family("Mixtral", ("mixtral",), "experts"),
    Family("Qwen 2, 2.5", ("qwen2",), "biases, sliding window of later layers"),
    Family("Qwen 3", ("qwen3",), "query and key norms"),
    Family("Qwen 1.5, 2 MoE", ("qwen2_moe",), "experts, a shared expert"),
    Family("Qwen 3 MoE", ("qwen3_moe",), "experts, query and key norms"),
    Family("Gemma", ("gemma",), "scaled embeddings"),
    Family("Gemma 2", ("gemma2",), "norms around each block, soft caps, sliding and full layers"),
    Family("Gemma 3 (text)", ("gemma3",), "the same with two rotations, query and key norms"),
    Family("Phi 1, 1.5, 2", ("phi",), "layer norm, parallel attention and MLP, partial rotation"),
    Family("Phi 3, 3.5, 4", ("phi3", "phi3_long"), "fused matrices, sliding window, LongRoPE"),
    Family("Phi 4 mini", ("phi4_mini",), "the same with partial rotation"),
    Family("Granite 3", ("granite",), "multipliers of embedding, attention, residual and logits"),
    Family("Granite 3 MoE", ("granitemoe",), "the same with experts"),
    Family("OLMo 2", ("olmo2",), "norms behind each block, query and key norms over all heads"),
    Family("OLMo 3", ("olmo3",), "the same with sliding and full layers"),
    Family("OLMoE", ("olmoe",), "experts, query and key norms over all heads"),
    Family("StableLM", ("stablelm", "stablelm_parallel"), "layer norm, partial rotation, norms of each head"),
    Family("StarCoder 2", ("starcoder2",), "layer norm, biases, MLP without a gate"),
    Family("Command R", ("cohere",), "layer norm, parallel, rotated neighbours, scaled logits"),
    Family("GLM 4", ("glm", "glm4"), "partial rotation of neighbours, fused matrices"),
    Family("GPT-2", ("gpt2",), "learned positions, layer norm, MLP without a gate"),
    Family("GPT-J", ("gptj",), "partial rotation of neighbours, parallel, bias of the head"),
    Family("GPT-NeoX, Pythia", ("gpt_neox", "gpt_neox_sequential"), "parallel, layer norm, partial rotation"),
    Family("gpt-oss", ("gpt_oss",), "experts with biases, attention sinks, sliding and full layers"),
)


def wide_config(kind: str) -> dict[str, Any]:
    """`TINY_CONFIGS[kind]` with widths that the kernels can run, multiples of 32."""
    config = dict(TINY_CONFIGS[kind])
    for name, width in _WIDTHS.items():
        if name in config:
            config[name] = width
    return config


_WIDTHS = {
    "hidden_size": 64,
    "n_embd": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
    "query_pre_attn_scalar": 16,
}


def spec(kind: str) -> DecoderSpec:
    return spec_from_hf_config(wide_config(kind))


def table() -> str:
    """The docs' table, in Markdown."""
    rows = [
        "| family | Hugging Face folder | GGUF | beyond Llama | computed by | weights held as |",
        "|---|---|---|---|---|---|",
    ]
    for family in FAMILIES:
        assert set(family.architectures) <= set(SUPPORTED)
        native = not family.lacking
        cells = (
            family.name,
            ", ".join(f"`{name}`" for name in family.model_types),
            ", ".join(f"`{name}`" for name in family.architectures) or "-",
            family.needs or "-",
            "native kernels" if native else f"torch: the kernels lack {', '.join(family.lacking)}",
            "any format" if native else "float32",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def in_docs() -> str:
    """What stands between the marks in docs/models.md."""
    return DOCS.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


if __name__ == "__main__":
    text = DOCS.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    DOCS.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")
