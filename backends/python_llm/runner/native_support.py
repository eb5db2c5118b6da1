"""Which features of a `DecoderSpec` the native decoder does not have yet: the one place to change when it gains one.

What the kernels need of a model's sizes and formats is theirs to say (`kernels.native_decoder.why_not`).
"""

from __future__ import annotations

from collections.abc import Callable

from python_llm.runner.spec import DecoderSpec

_LACKING: tuple[tuple[str, Callable[[DecoderSpec], bool]], ...] = (
    ("layer norm", lambda spec: spec.norm == "layer"),
    ("norms with a bias", lambda spec: spec.norm_bias),
    ("layers without norms in front", lambda spec: not spec.pre_norms),
    ("attention and MLP in parallel", lambda spec: spec.parallel_residual),
    ("query and key norms over all heads", lambda spec: spec.qk_norm and spec.qk_norm_span != "head"),
    ("attention sinks", lambda spec: spec.attention_sinks),
    ("an MLP without a gate", lambda spec: not spec.gated_mlp),
    (
        "the activation of this MLP",
        lambda spec: spec.activation not in ("silu", "gelu", "gelu_tanh"),
    ),
    ("mixtures of experts", lambda spec: spec.experts is not None),
    ("learned positions", lambda spec: spec.learned_positions),
    ("a bias of the head", lambda spec: spec.head_bias),
    ("scaled residuals", lambda spec: spec.residual_scale != 1.0),
    ("scaled logits", lambda spec: spec.logit_scale != 1.0),
    (
        "a scaled rotation of a part of each head",
        lambda spec: any(rope.is_partial and rope.scale != 1.0 for rope in spec.ropes),
    ),
)


def lacking(spec: DecoderSpec) -> list[str]:
    """What the native decoder would need for this spec and does not have; empty when it has all."""
    return [feature for feature, needed in _LACKING if needed(spec)]
