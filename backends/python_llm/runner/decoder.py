"""The decoder in plain torch: a spec and a dictionary of weights, run over paged KV.

The oracle for the native kernels, and the path on devices that have none. Float32, no per-element Python, any device.
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
from python_llm.runner.spec import DecoderSpec

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}

_Rotation = tuple[torch.Tensor, torch.Tensor]
"""cos and sin, float32 [n, 1, head_dim]"""


class Decoder:
    """`spec` says what to compute, `weights` (float32, named and shaped as `spec.tensor_shapes()`) with what.

    All weights lie on one device. A norm's weight is the factor itself: `spec.norm_offset` is already added.
    """

    def __init__(self, spec: DecoderSpec, weights: Mapping[str, torch.Tensor]) -> None:
        self.spec = spec
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = self._embedding if spec.tied_head else weights["lm_head.weight"]
        self._norm = weights["model.norm.weight"]
        self._inv_freqs = [torch.tensor(rope.inv_freq, device=self.device) for rope in spec.ropes]
        self._layers = [_Layer(spec, index, weights) for index in range(len(spec.layers))]

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
        rotations = [self._rotation(index, batch.positions) for index in range(len(self.spec.ropes))]
        for layer in self._layers:
            x = layer(x, rotations[layer.rope], batch, kv)
        return _rms_norm(x, self._norm, self.spec.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [r, hidden], rows of `forward`'s result -> float32 [r, vocab]"""
        logits = functional.linear(hidden, self._head)
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _rotation(self, index: int, positions: torch.Tensor) -> _Rotation:
        angles = positions[:, None].float() * self._inv_freqs[index]
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        scale = self.spec.ropes[index].scale
        return angles.cos() * scale, angles.sin() * scale


class _Layer:
    def __init__(self, spec: DecoderSpec, index: int, weights: Mapping[str, torch.Tensor]) -> None:
        self.rope = spec.layers[index].rope
        self._spec = spec
        self._index = index
        self._window = spec.layers[index].window
        self._activation = ACTIVATIONS[spec.activation]
        prefix = f"model.layers.{index}."
        self._weights = {name[len(prefix) :]: weights[name] for name in spec.tensor_shapes() if name.startswith(prefix)}
        self._mlp_norm = "pre_feedforward_layernorm" if spec.sandwich_norms else "post_attention_layernorm"

    def __call__(self, x: torch.Tensor, rotation: _Rotation, batch: Batch, kv: KVCache) -> torch.Tensor:
        attention = self._attention(self._normed(x, "input_layernorm"), rotation, batch, kv)
        if self._spec.sandwich_norms:
            attention = self._normed(attention, "post_attention_layernorm")
        x = x + attention
        mlp = self._mlp(self._normed(x, self._mlp_norm))
        if self._spec.sandwich_norms:
            mlp = self._normed(mlp, "post_feedforward_layernorm")
        return x + mlp

    def _attention(self, x: torch.Tensor, rotation: _Rotation, batch: Batch, kv: KVCache) -> torch.Tensor:
        spec, n = self._spec, len(x)
        q = self._linear(x, "self_attn.q_proj").view(n, spec.num_heads, spec.head_dim)
        k = self._linear(x, "self_attn.k_proj").view(n, spec.num_kv_heads, spec.head_dim)
        v = self._linear(x, "self_attn.v_proj").view(n, spec.num_kv_heads, spec.head_dim)
        if spec.qk_norm:
            q, k = self._normed(q, "self_attn.q_norm"), self._normed(k, "self_attn.k_norm")
        kv.write(self._index, batch.token_index, _rotate(k, rotation), v)
        mixed = attend(
            _rotate(q, rotation),
            kv,
            self._index,
            batch.tiles[self._window],
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
        )
        return self._linear(mixed.view(n, -1), "self_attn.o_proj")

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        gated = self._activation(self._linear(x, "mlp.gate_proj")) * self._linear(x, "mlp.up_proj")
        return self._linear(gated, "mlp.down_proj")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias"))

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return _rms_norm(x, self._weights[f"{name}.weight"], self._spec.norm_eps)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def _rotate(x: torch.Tensor, rotation: _Rotation) -> torch.Tensor:
    cos, sin = rotation
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
