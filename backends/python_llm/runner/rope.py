"""Rotary position embedding as data: the inverse frequencies that a config's rope settings amount to.

Does not know layers or weights. Formulas: transformers' `modeling_rope_utils.py`, where each scaling's paper is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from python_llm.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Angle of pair j at position p is `p * inv_freq[j]`; pair j is the elements j and j + head_dim / 2 of a head."""

    inv_freq: tuple[float, ...]
    """float32 values, radians a token; [head_dim / 2]"""
    scale: float = 1.0
    """cos and sin are multiplied by this (YaRN, LongRoPE)."""


def rope_spec(params: Mapping[str, Any], head_dim: int, max_position_embeddings: int) -> RopeSpec:
    """The frequencies for one set of rope settings.

    `params`: `rope_theta`, `rope_type` and what that type needs, named as in transformers' `rope_parameters`.
    Raises ModelLoadError for a type or setting that cannot be served, or one that is missing.
    """
    kind = params.get("rope_type") or params.get("type") or "default"
    if kind not in _KINDS:
        raise ModelLoadError(f"rope type {kind!r} is not supported; supported: {', '.join(sorted(_KINDS))}")
    if params.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError(f"partial_rotary_factor must be 1.0, not {params['partial_rotary_factor']!r}")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    try:
        inv_freq, scale = _KINDS[kind](params, exponents, max_position_embeddings)
    except KeyError as missing:
        raise ModelLoadError(f"rope type {kind!r} needs the setting {missing}") from None
    except (TypeError, ValueError):
        raise ModelLoadError(f"rope settings are malformed: {dict(params)}") from None
    return RopeSpec(tuple(inv_freq.tolist()), scale)


_Frequencies = tuple[torch.Tensor, float]


def _default(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int) -> _Frequencies:
    return 1.0 / (params["rope_theta"] ** exponents), 1.0


def _linear(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int) -> _Frequencies:
    return 1.0 / (params["rope_theta"] ** exponents) / params["factor"], 1.0


def _llama3(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int) -> _Frequencies:
    inv_freq = 1.0 / (params["rope_theta"] ** exponents)
    factor, low, high = params["factor"], params["low_freq_factor"], params["high_freq_factor"]
    context = params.get("original_max_position_embeddings", max_positions)
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > context / low, inv_freq / factor, inv_freq)
    smooth = (context / wavelength - low) / (high - low)
    blended = (1 - smooth) * scaled / factor + smooth * scaled
    is_medium = (wavelength >= context / high) & (wavelength <= context / low)
    return torch.where(is_medium, blended, scaled), 1.0


def _yarn(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int) -> _Frequencies:
    theta, dim = params["rope_theta"], 2 * len(exponents)
    context = params.get("original_max_position_embeddings", max_positions)
    factor = params["factor"] or max_positions / context

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    def dimension_of(rotations: float) -> float:
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    scale = params.get("attention_factor")
    if scale is None:
        above, below = params.get("mscale"), params.get("mscale_all_dim")
        scale = mscale(above) / mscale(below) if above and below else mscale(1.0)
    low, high = dimension_of(params.get("beta_fast") or 32), dimension_of(params.get("beta_slow") or 1)
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = (high - low) or 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    pos_freq = theta**exponents
    extrapolated = 1 - ramp
    return 1.0 / (factor * pos_freq) * (1 - extrapolated) + 1.0 / pos_freq * extrapolated, float(scale)


def _longrope(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int) -> _Frequencies:
    # With two sets of factors, the longest sequence of a batch would choose for all of them, also for keys that are
    # already in the cache: no fixed answer exists to be exact against.
    if list(params["short_factor"]) != list(params["long_factor"]):
        raise ModelLoadError("rope type 'longrope' is supported only where short_factor equals long_factor")
    factors = torch.tensor(params["short_factor"], dtype=torch.float32)
    if len(factors) != len(exponents):
        raise ModelLoadError(f"short_factor must have {len(exponents)} entries (head_dim / 2), not {len(factors)}")
    context = params.get("original_max_position_embeddings", max_positions)
    factor = params.get("factor") or max_positions / context
    scale = params.get("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))
    return 1.0 / (factors * params["rope_theta"] ** exponents), float(scale)


_KINDS: dict[str, Callable[[Mapping[str, Any], torch.Tensor, int], _Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
