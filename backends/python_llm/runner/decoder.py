"""The decoder in plain torch: a spec and a dictionary of weights, run over paged KV.

The oracle for the native kernels, and the path for devices and specs that they cannot run. Float32, any device.
Does not know requests, sampling or files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch.nn import functional

from python_llm.runner.attention import attend
from python_llm.runner.batch import Batch
from python_llm.runner.kv_cache import KVCache
from python_llm.runner.spec import DecoderSpec, ExpertsSpec


def _clamped_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gpt-oss: both sides clamped, a steeper sigmoid, and one added to the linear side."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
GATED_ACTIVATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"clamped_swiglu": _clamped_swiglu}
"""Of gate and up together, where it is not activation(gate) * up."""

_Rotation = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, float32 [n, 1, head_dim]"""


class Decoder:
    """`spec` says what to compute, `weights` (float32, named and shaped as `spec.tensor_shapes()`) with what.

    All weights lie on one device. A norm's weight is the factor itself: `spec.norm_offset` is already added.
    """

    def __init__(self, spec: DecoderSpec, weights: Mapping[str, torch.Tensor]) -> None:
        self.spec = spec
        self._embedding = weights["model.embed_tokens.weight"]
        self._positions = weights.get("model.embed_positions.weight")
        self._head = self._embedding if spec.tied_head else weights["lm_head.weight"]
        self._head_bias = weights.get("lm_head.bias")
        self._norm = weights["model.norm.weight"], weights.get("model.norm.bias")
        self._ropes = []
        for rope in spec.ropes:
            inv_freq = torch.tensor(rope.inv_freq, device=self.device)
            self._ropes.append((inv_freq, torch.where(inv_freq != 0, rope.scale, 1.0)))
        by_layer: list[dict[str, torch.Tensor]] = [{} for _ in spec.layers]
        for name in spec.tensor_shapes():
            if name.startswith("model.layers."):
                number, own_name = name.removeprefix("model.layers.").split(".", 1)
                by_layer[int(number)][own_name] = weights[name]
        self._layers = [_Layer(spec, index, own) for index, own in enumerate(by_layer)]

    @property
    def device(self) -> torch.device:
        return self._embedding.device

    def forward(self, batch: Batch, kv: KVCache) -> torch.Tensor:
        """Run every layer for the batch's rows, writing their keys and values to `kv`.

        Returns float32 [n, hidden]: normed, ready for `logits`.
        """
        x = self._embedding[batch.token_ids]
        if self.spec.embedding_scale != 1.0:
            x = x * self.spec.embedding_scale
        if self._positions is not None:
            x = x + self._positions[batch.positions]
        rotations = [self._rotation(index, batch.positions) for index in range(len(self.spec.ropes))]
        for layer in self._layers:
            x = layer(x, rotations[layer.rope], batch, kv)
        return _norm(self.spec, x, *self._norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [r, hidden], rows of `forward`'s result -> float32 [r, vocab]"""
        logits = functional.linear(hidden, self._head, self._head_bias)
        if self.spec.logit_scale != 1.0:
            logits *= self.spec.logit_scale
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _rotation(self, index: int, positions: torch.Tensor) -> _Rotation:
        inv_freq, scale = self._ropes[index]
        angles = positions[:, None].float() * inv_freq
        cos, sin = angles.cos() * scale, angles.sin() * scale
        return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((sin, sin), dim=-1)[:, None]


class _Layer:
    def __init__(self, spec: DecoderSpec, index: int, weights: Mapping[str, torch.Tensor]) -> None:
        self.rope = spec.layers[index].rope
        self._spec = spec
        self._index = index
        self._window = spec.layers[index].window
        self._experts = spec.experts if spec.layers[index].sparse else None
        self._weights = weights
        self._mlp_norm = "pre_feedforward_layernorm" if spec.sandwich_norms else "post_attention_layernorm"

    def __call__(self, x: torch.Tensor, rotation: _Rotation, batch: Batch, kv: KVCache) -> torch.Tensor:
        spec = self._spec
        normed = self._normed(x, "input_layernorm") if spec.pre_norms else x
        attention = self._attention(normed, rotation, batch, kv)
        if spec.sandwich_norms:
            attention = self._normed(attention, "post_attention_layernorm")
        between = x + attention * spec.residual_scale
        if not spec.one_norm:
            read = x if spec.parallel_residual else between
            normed = self._normed(read, self._mlp_norm) if spec.pre_norms else read
        mlp = self._mlp(normed, "mlp") if self._experts is None else self._mixture(normed, self._experts)
        if spec.sandwich_norms:
            mlp = self._normed(mlp, "post_feedforward_layernorm")
        return between + mlp * spec.residual_scale

    def _attention(self, x: torch.Tensor, rotation: _Rotation, batch: Batch, kv: KVCache) -> torch.Tensor:
        spec, n = self._spec, len(x)
        q = self._qk_normed(self._linear(x, "self_attn.q_proj"), "self_attn.q_norm").view(n, -1, spec.head_dim)
        k = self._qk_normed(self._linear(x, "self_attn.k_proj"), "self_attn.k_norm").view(n, -1, spec.head_dim)
        v = self._linear(x, "self_attn.v_proj").view(n, -1, spec.head_dim)
        kv.write(self._index, batch.token_index, _rotate(k, rotation), v)
        mixed = attend(
            _rotate(q, rotation),
            kv,
            self._index,
            batch.tiles[self._window],
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
            sinks=self._weights.get("self_attn.sinks.weight"),
        )
        return self._linear(mixed.view(n, -1), "self_attn.o_proj")

    def _qk_normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """`x`: [n, heads * head_dim]"""
        spec = self._spec
        if not spec.qk_norm:
            return x
        weight = self._weights[f"{name}.weight"]
        if spec.qk_norm_span == "projection":
            return _norm(spec, x, weight, None)
        heads = x.view(len(x), -1, spec.head_dim)
        return _norm(spec, heads, weight.view(-1, spec.head_dim), None)

    def _mlp(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        up = self._linear(x, f"{prefix}.up_proj")
        activation = self._spec.activation
        if not self._spec.gated_mlp:
            inner = ACTIVATIONS[activation](up)
        else:
            gate = self._linear(x, f"{prefix}.gate_proj")
            gated = GATED_ACTIVATIONS.get(activation)
            inner = ACTIVATIONS[activation](gate) * up if gated is None else gated(gate, up)
        return self._linear(inner, f"{prefix}.down_proj")

    def _mixture(self, x: torch.Tensor, experts: ExpertsSpec) -> torch.Tensor:
        """Each row's sum runs over its experts in their own order, so it does not depend on the other rows."""
        probabilities = torch.softmax(self._linear(x, "mlp.router"), dim=-1)
        weights, chosen = probabilities.topk(experts.top_k, dim=-1)
        if experts.normalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in chosen.unique().tolist():
            rows, places = torch.where(chosen == expert)
            out[rows] += self._mlp(x[rows], f"mlp.experts.{expert}") * weights[rows, places, None]
        if experts.shared_size:
            shared = self._mlp(x, "mlp.shared_expert")
            if experts.shared_gate:
                shared = shared * torch.sigmoid(x @ self._weights["mlp.shared_expert_gate.weight"])[:, None]
            out = out + shared
        return out

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return _norm(self._spec, x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))


def _norm(spec: DecoderSpec, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if spec.norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + spec.norm_eps) * weight
    return x if bias is None else x + bias


def _rotate(x: torch.Tensor, rotation: _Rotation) -> torch.Tensor:
    cos, sin = rotation
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
