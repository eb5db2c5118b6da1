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
    """float32 values, radians a token; [head_dim / 2]. 0 for a pair that is not rotated."""
    scale: float = 1.0
    """cos and sin of rotated pairs are multiplied by this (YaRN, LongRoPE)."""

    @property
    def is_partial(self) -> bool:
        """Some pairs are rotated and some are not."""
        return 0.0 in self.inv_freq and any(self.inv_freq)


def no_rope(head_dim: int) -> RopeSpec:
    """Nothing is rotated."""
    return RopeSpec((0.0,) * (head_dim // 2))


def rotary_dim(params: Mapping[str, Any], head_dim: int) -> int:
    """How many elements of a head are rotated, by `partial_rotary_factor`. Raises ModelLoadError if not 2, 4, ..."""
    factor = params.get("partial_rotary_factor", 1.0)
    # A factor that was made by a division may fall just short of its whole number.
    dim = int(head_dim * factor + 1e-6) if isinstance(factor, int | float) else 0
    if dim % 2 or not 0 < dim <= head_dim:
        raise ModelLoadError(f"partial_rotary_factor {factor!r} must leave an even part of head_dim {head_dim}")
    return dim


def rope_spec(
    params: Mapping[str, Any], head_dim: int, max_position_embeddings: int, longest: int | None = None
) -> RopeSpec:
    """The frequencies for one set of rope settings.

    `params`: `rope_theta`, `rope_type` and what that type needs, named as in transformers' `rope_parameters`.
    `longest`: the longest sequence that will be served, in tokens, where the frequencies depend on it (LongRoPE);
    None: `max_position_embeddings`. Raises ModelLoadError for a type or setting that cannot be served, or is missing.
    """
    kind = params.get("rope_type") or params.get("type") or "default"
    if kind not in _KINDS:
        raise ModelLoadError(f"rope type {kind!r} is not supported; supported: {', '.join(sorted(_KINDS))}")
    dim = rotary_dim(params, head_dim)
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    try:
        inv_freq, scale = _KINDS[kind](params, exponents, max_position_embeddings, longest or max_position_embeddings)
    except KeyError as missing:
        raise ModelLoadError(f"rope type {kind!r} needs the setting {missing}") from None
    except (TypeError, ValueError):
        raise ModelLoadError(f"rope settings are malformed: {dict(params)}") from None
    return RopeSpec((*inv_freq.tolist(), *[0.0] * ((head_dim - dim) // 2)), scale)


_Frequencies = tuple[torch.Tensor, float]


def _default(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int, longest: int) -> _Frequencies:
    return 1.0 / (params["rope_theta"] ** exponents), 1.0


def _linear(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int, longest: int) -> _Frequencies:
    return 1.0 / (params["rope_theta"] ** exponents) / params["factor"], 1.0


def _llama3(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int, longest: int) -> _Frequencies:
    inv_freq = 1.0 / (params["rope_theta"] ** exponents)
    factor, low, high = params["factor"], params["low_freq_factor"], params["high_freq_factor"]
    context = params.get("original_max_position_embeddings", max_positions)
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > context / low, inv_freq / factor, inv_freq)
    smooth = (context / wavelength - low) / (high - low)
    blended = (1 - smooth) * scaled / factor + smooth * scaled
    is_medium = (wavelength >= context / high) & (wavelength <= context / low)
    return torch.where(is_medium, blended, scaled), 1.0


def _yarn(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int, longest: int) -> _Frequencies:
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


def _longrope(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int, longest: int) -> _Frequencies:
    # transformers chooses between the two sets anew for each batch, by its longest sequence, also for keys that are
    # already cached under the other set. Chosen once for all, as here and in llama.cpp, results depend on no company.
    context = params.get("original_max_position_embeddings") or max_positions
    short, long = params["short_factor"], params["long_factor"]
    for name, given in (("short_factor", short), ("long_factor", long)):
        if len(given) != len(exponents):
            raise ModelLoadError(
                f"{name} must have {len(exponents)} entries (half of the rotated dimensions), not {len(given)}"
            )
    factors = torch.tensor(long if longest > context else short, dtype=torch.float32)
    factor = params.get("factor") or max_positions / context
    scale = params.get("attention_factor")
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(context))
    return 1.0 / (factors * params["rope_theta"] ** exponents), float(scale)


def _dynamic(params: Mapping[str, Any], exponents: torch.Tensor, max_positions: int, longest: int) -> _Frequencies:
    # Scaling begins beyond max_position_embeddings, which is as far as we serve.
    params["factor"]
    return _default(params, exponents, max_positions, longest)


_KINDS: dict[str, Callable[[Mapping[str, Any], torch.Tensor, int, int], _Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "dynamic": _dynamic,
}
