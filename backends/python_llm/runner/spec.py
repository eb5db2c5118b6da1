"""What a decoder looks like, as data: everything that a forward pass needs to know besides the weights.

Does not know config formats (`hf_config` makes a spec), files, or how a layer is computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from python_llm.runner.rope import RopeSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Where layers differ from each other."""

    rope: int
    """Index into `DecoderSpec.ropes`."""
    window: int | None
    """A query at position p sees keys at positions (p - window, p]; None: [0, p]."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A pre-norm transformer decoder with RMS norms, grouped-query attention and a gated MLP."""

    model_type: str
    """transformers' name of the architecture; for messages only."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    norm_eps: float
    activation: str
    """Of the MLP's gate: a key of `decoder.ACTIVATIONS`."""
    attention_scale: float
    """Scores are multiplied by this before the soft cap and the softmax."""
    max_position_embeddings: int
    """Longest sequence the model was made for, in tokens."""
    attention_softcap: float | None = None
    """Scores become cap * tanh(score / cap)."""
    logit_softcap: float | None = None
    """Logits become cap * tanh(logit / cap)."""
    embedding_scale: float = 1.0
    """Token embeddings are multiplied by this."""
    qk_norm: bool = False
    """RMS norm over each query and key head, before the rotation."""
    sandwich_norms: bool = False
    """Norms also after attention and after the MLP, before each is added to the residual (Gemma 2 and 3)."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    tied_head: bool = False
    """The output head is the embedding matrix."""
    norm_offset: float = 0.0
    """Hugging Face checkpoints of this model store each norm's weight minus this; a loader adds it."""

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name (as in Hugging Face checkpoints) and row-major shape of every tensor that the decoder reads."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tied_head:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        linears = [
            ("self_attn.q_proj", q_size, hidden, self.qkv_bias),
            ("self_attn.k_proj", kv_size, hidden, self.qkv_bias),
            ("self_attn.v_proj", kv_size, hidden, self.qkv_bias),
            ("self_attn.o_proj", hidden, q_size, self.o_bias),
            ("mlp.gate_proj", inner, hidden, self.mlp_bias),
            ("mlp.up_proj", inner, hidden, self.mlp_bias),
            ("mlp.down_proj", hidden, inner, self.mlp_bias),
        ]
        norms = [("input_layernorm", hidden), ("post_attention_layernorm", hidden)]
        if self.sandwich_norms:
            norms += [("pre_feedforward_layernorm", hidden), ("post_feedforward_layernorm", hidden)]
        if self.qk_norm:
            norms += [("self_attn.q_norm", self.head_dim), ("self_attn.k_norm", self.head_dim)]
        for index in range(len(self.layers)):
            prefix = f"model.layers.{index}."
            for name, rows, columns, has_bias in linears:
                shapes[f"{prefix}{name}.weight"] = (rows, columns)
                if has_bias:
                    shapes[f"{prefix}{name}.bias"] = (rows,)
            for name, size in norms:
                shapes[f"{prefix}{name}.weight"] = (size,)
        return shapes
