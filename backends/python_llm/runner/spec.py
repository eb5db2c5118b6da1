"""What a decoder looks like, as data: everything that a forward pass needs to know besides the weights.

Does not know config formats (`hf_config` makes a spec), files, or how a layer is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from python_llm.runner.rope import RopeSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Where layers differ from each other."""

    rope: int
    """Index into `DecoderSpec.ropes`."""
    window: int | None
    """A query at position p sees keys at positions (p - window, p]; None: [0, p]."""
    sparse: bool = False
    """The MLP is a choice of `DecoderSpec.experts`."""


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts in place of an MLP: softmax over all experts, each token takes its best `top_k`."""

    count: int
    top_k: int
    intermediate_size: int
    normalise: bool
    """The chosen experts' weights are divided by their sum."""
    bias: bool = False
    """The router and every matrix of an expert have a bias."""
    shared_size: int = 0
    """Intermediate size of an expert that every token takes besides; 0: there is none."""
    shared_gate: bool = False
    """The shared expert's output is multiplied by the sigmoid of a product of its own."""


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """A causal transformer decoder with grouped-query attention. The defaults are those of Llama."""

    model_type: str
    """transformers' name of the architecture: tells how a checkpoint names its tensors, nothing else."""
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
    """Of the MLP: a key of `decoder.ACTIVATIONS` or `decoder.GATED_ACTIVATIONS`."""
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
    residual_scale: float = 1.0
    """What attention and MLP give is multiplied by this before it is added to the residual."""
    logit_scale: float = 1.0
    """Logits are multiplied by this."""
    norm: Literal["rms", "layer"] = "rms"
    """Every norm of the decoder: x / rms(x), or (x - mean(x)) / std(x)."""
    norm_bias: bool = False
    """Norms add a bias (those of queries and keys never do)."""
    pre_norms: bool = True
    """Norms before attention and before the MLP."""
    sandwich_norms: bool = False
    """Norms after attention and after the MLP, before each is added to the residual."""
    parallel_residual: bool = False
    """The MLP reads what attention read, not what attention gave: x + attention(norm(x)) + mlp(norm(x))."""
    one_norm: bool = False
    """With `parallel_residual`: attention and MLP share the norm before them."""
    qk_norm: bool = False
    """A norm of queries and keys before the rotation."""
    qk_norm_span: Literal["head", "each_head", "projection"] = "head"
    """Over each head with the same weights, over each head with its own, or over all heads at once."""
    attention_sinks: bool = False
    """Each query head has a number that joins the softmax as one more score, whose key has no value."""
    qkv_bias: bool = False
    o_bias: bool = False
    gated_mlp: bool = True
    """down(activation(gate(x)) * up(x)); without: down(activation(up(x)))."""
    mlp_bias: bool = False
    experts: ExpertsSpec | None = None
    """Of the layers that are `sparse`."""
    learned_positions: bool = False
    """A learned vector of the position is added to the token's embedding."""
    tied_head: bool = False
    """The output head is the embedding matrix."""
    head_bias: bool = False
    norm_offset: float = 0.0
    """Hugging Face checkpoints of this model store each norm's weight minus this; a loader adds it."""
    head_order: tuple[int, ...] = ()
    """Element i of a query or key head is element head_order[i] in the Hugging Face checkpoint; empty: the same.

    So every rotation, whole, partial or of neighbours, is one of the elements j and j + head_dim / 2 (`RopeSpec`).
    """

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and row-major shape of every tensor that the decoder reads.

        Names are those of Llama in Hugging Face's checkpoints, and in their style for what Llama does not have. An
        expert's are `mlp.experts.E.gate_proj` and so on; `mlp.router` chooses among them.
        """
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        if self.learned_positions:
            shapes["model.embed_positions.weight"] = (self.max_position_embeddings, hidden)
        shapes |= self._norm("model.norm", hidden)
        if not self.tied_head:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        if self.head_bias:
            shapes["lm_head.bias"] = (self.vocab_size,)
        for index, layer in enumerate(self.layers):
            shapes |= {f"model.layers.{index}.{name}": shape for name, shape in self._layer_shapes(layer)}
        return shapes

    def _layer_shapes(self, layer: LayerSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden = self.hidden_size
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield from _linear("self_attn.q_proj", q_size, hidden, self.qkv_bias)
        yield from _linear("self_attn.k_proj", kv_size, hidden, self.qkv_bias)
        yield from _linear("self_attn.v_proj", kv_size, hidden, self.qkv_bias)
        yield from _linear("self_attn.o_proj", hidden, q_size, self.o_bias)
        if layer.sparse and self.experts is not None:
            yield from self._mixture(self.experts)
        else:
            yield from self._mlp("mlp", self.intermediate_size, self.mlp_bias)
        for name in self.norm_names():
            yield from self._norm(name, hidden).items()
        if self.qk_norm:
            head = self.qk_norm_span == "head"
            yield "self_attn.q_norm.weight", (self.head_dim if head else q_size,)
            yield "self_attn.k_norm.weight", (self.head_dim if head else kv_size,)
        if self.attention_sinks:
            yield "self_attn.sinks.weight", (self.num_heads,)

    def _mixture(self, experts: ExpertsSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from _linear("mlp.router", experts.count, self.hidden_size, experts.bias)
        for index in range(experts.count):
            yield from self._mlp(f"mlp.experts.{index}", experts.intermediate_size, experts.bias)
        if experts.shared_size:
            yield from self._mlp("mlp.shared_expert", experts.shared_size, False)
            if experts.shared_gate:
                yield "mlp.shared_expert_gate.weight", (self.hidden_size,)

    def norm_names(self) -> tuple[str, ...]:
        """The norms of a layer over the hidden size."""
        if not self.sandwich_norms:
            return ("input_layernorm",) if self.one_norm else ("input_layernorm", "post_attention_layernorm")
        before = ("input_layernorm", "pre_feedforward_layernorm") if self.pre_norms else ()
        return (*before[:1], "post_attention_layernorm", *before[1:], "post_feedforward_layernorm")

    def _norm(self, name: str, size: int) -> dict[str, tuple[int, ...]]:
        bias: dict[str, tuple[int, ...]] = {f"{name}.bias": (size,)} if self.norm_bias else {}
        return {f"{name}.weight": (size,), **bias}

    def _mlp(self, prefix: str, inner: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
        if self.gated_mlp:
            yield from _linear(f"{prefix}.gate_proj", inner, self.hidden_size, bias)
        yield from _linear(f"{prefix}.up_proj", inner, self.hidden_size, bias)
        yield from _linear(f"{prefix}.down_proj", self.hidden_size, inner, bias)


def _linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)
