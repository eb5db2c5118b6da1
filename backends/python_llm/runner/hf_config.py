"""Turns a Hugging Face config (the content of config.json) into a `DecoderSpec`, or says why it cannot.

What differs between architectures is the table in `hf_families`. Does not know files or weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_llm.errors import ModelLoadError
from python_llm.runner.hf_families import FAMILIES, Family
from python_llm.runner.placement import neighbours_as_halves
from python_llm.runner.rope import RopeSpec, no_rope, rope_spec, rotary_dim
from python_llm.runner.spec import DecoderSpec, ExpertsSpec, LayerSpec

FULL, SLIDING = "full_attention", "sliding_attention"

_ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of `config` that describes the text decoder: Gemma 3 with vision keeps it one level down."""
    if config.get("model_type") != "gemma3":
        return config
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        raise ModelLoadError("model_type 'gemma3': the config has no text_config")
    return {**nested, "model_type": "gemma3_text"}


def has_spec(config: Mapping[str, Any]) -> bool:
    """Whether `spec_from_hf_config` knows the config's model_type."""
    return config.get("model_type") == "gemma3" or config.get("model_type") in FAMILIES


def spec_from_hf_config(config: Mapping[str, Any], max_model_len: int | None = None) -> DecoderSpec:
    """The decoder that `config` describes; old and transformers 5 forms of the rope fields are both read.

    `max_model_len`: the longest sequence that will be served, in tokens, which LongRoPE's choice depends on; None: the
    model's own limit. Raises ModelLoadError, naming the model_type and the field, for anything the spec cannot say.
    """
    given = text_config(config)
    model_type = given.get("model_type")
    if model_type not in FAMILIES:
        raise ModelLoadError(f"model_type {model_type!r} is not supported; supported: {', '.join(sorted(FAMILIES))}")
    try:
        if config.get("quantization_config") or given.get("quantization_config"):
            raise ModelLoadError("quantization_config: quantised Hugging Face checkpoints are not supported")
        return _Reader(model_type, given, max_model_len).spec()
    except ModelLoadError as error:
        raise ModelLoadError(f"model_type {model_type!r}: {error}") from None


class _Reader:
    """One config, its fields under common names."""

    def __init__(self, model_type: str, given: Mapping[str, Any], max_model_len: int | None) -> None:
        self.model_type = model_type
        self.family: Family = FAMILIES[model_type]
        self.max_model_len = max_model_len
        self.fields: dict[str, Any] = {**self.family.defaults, **given}
        for common, own in self.family.own_names.items():
            if own in given:
                self.fields[common] = given[own]
        self._refuse_what_we_do_not_serve(given)
        hidden, heads = self._size("hidden_size"), self._size("num_attention_heads")
        self.heads = heads
        self.kv_heads = heads if self.fields["num_key_value_heads"] is None else self._size("num_key_value_heads")
        if heads % self.kv_heads:
            raise ModelLoadError(
                f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({self.kv_heads})"
            )
        self.head_dim = hidden // heads if self.fields["head_dim"] is None else self._size("head_dim")
        if self.head_dim % 2:
            raise ModelLoadError(f"head_dim must be even, not {self.head_dim}")
        if "rotary_dim" in self.fields:
            self.fields["partial_rotary_factor"] = self._size("rotary_dim") / self.head_dim
        if self.fields["intermediate_size"] is None:
            self.fields["intermediate_size"] = 4 * hidden
        if not self.fields.get("use_sliding_window", True):
            self.fields["sliding_window"] = None

    def spec(self) -> DecoderSpec:
        fields, family = self.fields, self.family
        stated = {name: fields[source] for name, source in family.says.items()}
        layers, ropes = self._layers()
        derived: dict[str, Any] = {}
        if "activation" not in family.fixed:
            derived["activation"] = self._activation()
        if family.scaled_embedding:
            derived["embedding_scale"] = fields["hidden_size"] ** 0.5
        if family.logit_divisor:
            derived["logit_scale"] = 1.0 / fields[family.logit_divisor]
        return DecoderSpec(
            model_type=self.model_type,
            vocab_size=self._size("vocab_size"),
            hidden_size=self._size("hidden_size"),
            intermediate_size=self._size("intermediate_size"),
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            layers=layers,
            ropes=ropes,
            norm_eps=float(fields["norm_eps"]),
            attention_scale=self._attention_scale(),
            max_position_embeddings=self._size("max_position_embeddings"),
            experts=self._experts() if any(layer.sparse for layer in layers) else None,
            tied_head=bool(fields["tie_word_embeddings"]),
            head_order=self._head_order(),
            **stated,
            **family.fixed,
            **derived,
        )

    def _refuse_what_we_do_not_serve(self, given: Mapping[str, Any]) -> None:
        for name, served in self.family.only.items():
            value = given.get(name, served)
            # A null stands for false in some configs.
            if value != served and not (served is False and value is None):
                raise ModelLoadError(f"{name} {value!r} is not supported; only {served!r} is")

    def _size(self, name: str) -> int:
        value = self.fields[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelLoadError(f"{self._own(name)} must be a positive integer, not {value!r}")
        return value

    def _own(self, name: str) -> str:
        return self.family.own_names.get(name, name)

    def _activation(self) -> str:
        name = self.fields["hidden_act"]
        if name not in _ACTIVATIONS:
            raise ModelLoadError(
                f"{self._own('hidden_act')} {name!r} is not supported; supported: {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[name]

    def _attention_scale(self) -> float:
        if self.family.score_scale == "head_dim":
            return float(self.head_dim) ** -0.5
        value = float(self.fields[self.family.score_scale])
        return value if self.family.score_scale == "attention_multiplier" else value**-0.5

    def _layers(self) -> tuple[tuple[LayerSpec, ...], tuple[RopeSpec, ...]]:
        kinds = self._layer_types()
        by_kind = self._ropes(sorted(set(kinds)))
        unrotated = no_rope(self.head_dim)
        windows = {FULL: None, SLIDING: self.fields["sliding_window"]}
        rotated, sparse = self._rotated(len(kinds)), self._sparse(len(kinds))
        ropes: list[RopeSpec] = []
        layers = []
        for i, kind in enumerate(kinds):
            rope = by_kind[kind] if rotated[i] else unrotated
            if rope not in ropes:
                ropes.append(rope)
            layers.append(LayerSpec(ropes.index(rope), windows[kind], sparse[i]))
        return tuple(layers), tuple(ropes)

    def _layer_types(self) -> list[str]:
        fields, rule = self.fields, self.family.sliding
        layers = range(self._size("num_hidden_layers"))
        window = fields["sliding_window"]
        given = fields.get("layer_types")
        if given is not None and rule in ("no", "all"):
            raise ModelLoadError("layer_types: this model_type has one kind of layer")
        if given is not None:
            kinds = list(given)
        elif window is None or rule == "no":
            kinds = [FULL] * len(layers)
        elif rule == "all":
            kinds = [SLIDING] * len(layers)
        elif rule == "last":
            kinds = [SLIDING if i >= fields["max_window_layers"] else FULL for i in layers]
        elif rule == "pattern":
            pattern = self._size("sliding_window_pattern")
            kinds = [SLIDING if (i + 1) % pattern else FULL for i in layers]
        else:
            kinds = [FULL if rotated else SLIDING for rotated in self._rotated(len(layers))]
        if len(kinds) != len(layers) or not set(kinds) <= {FULL, SLIDING}:
            raise ModelLoadError(
                f"layer_types must name {FULL} or {SLIDING} for each of {len(layers)} layers, not {given}"
            )
        if SLIDING in kinds:
            self._size("sliding_window")
        return kinds

    def _rotated(self, count: int) -> list[bool]:
        """For each layer whether queries and keys are rotated."""
        if self.family.rotation == "none":
            return [False] * count
        if "no_rope_layers" not in self.fields:
            return [True] * count
        given = self.fields["no_rope_layers"]
        if given is None:
            interval = self._size("no_rope_layer_interval")
            return [(i + 1) % interval != 0 for i in range(count)]
        if not isinstance(given, list) or len(given) != count:
            raise ModelLoadError(f"no_rope_layers must have one entry for each of {count} layers, not {given}")
        return [bool(value) for value in given]

    def _sparse(self, count: int) -> list[bool]:
        """For each layer whether its MLP is a mixture of experts."""
        fields = self.fields
        if not fields.get("num_experts"):
            return [False] * count
        step, dense = fields.get("decoder_sparse_step", 1), fields.get("mlp_only_layers") or []
        return [i not in dense and (i + 1) % step == 0 for i in range(count)]

    def _experts(self) -> ExpertsSpec:
        fields = self.fields
        count, top_k = self._size("num_experts"), self._size("num_experts_per_tok")
        if top_k > count:
            raise ModelLoadError(f"num_experts_per_tok ({top_k}) is more than num_experts ({count})")
        shared = self._size("shared_expert_intermediate_size") if "shared_expert_intermediate_size" in fields else 0
        return ExpertsSpec(
            count=count,
            top_k=top_k,
            intermediate_size=self._size(
                "moe_intermediate_size" if "moe_intermediate_size" in fields else "intermediate_size"
            ),
            normalise=bool(fields["norm_topk_prob"]),
            bias=self.family.experts_bias,
            shared_size=shared,
            shared_gate=shared > 0,
        )

    def _ropes(self, kinds: list[str]) -> dict[str, RopeSpec]:
        """The rotation of each kind of layer."""
        if self.family.rotation == "none":
            return dict.fromkeys(kinds, no_rope(self.head_dim))
        return {kind: self._rope(self._rope_params(kind)) for kind in kinds}

    def _rope(self, params: dict[str, Any]) -> RopeSpec:
        params.setdefault("rope_theta", self.fields["rope_theta"])
        params.setdefault("partial_rotary_factor", self.fields["partial_rotary_factor"])
        if self.fields.get("original_max_position_embeddings") is not None:
            params["original_max_position_embeddings"] = self.fields["original_max_position_embeddings"]
        kind = params.get("rope_type") or params.get("type")
        params["rope_type"] = self.family.rope_aliases.get(str(kind), kind)
        return rope_spec(params, self.head_dim, self._size("max_position_embeddings"), self.max_model_len)

    def _rope_params(self, kind: str) -> dict[str, Any]:
        """transformers 5 has one set of settings for each kind of layer where they may differ. Before, Gemma 3 had
        `rope_scaling` for full layers only and a theta of its own for sliding ones."""
        fields = self.fields
        params = dict(fields.get("rope_scaling") or fields.get("rope_parameters") or {})
        nested = any(isinstance(value, Mapping) for value in params.values())
        if nested and not self.family.rope_by_kind:
            raise ModelLoadError("rope_parameters: this model_type has one set for all layers")
        if not self.family.rope_by_kind:
            return params
        by_kind = fields.get("rope_parameters") or {}
        if set(by_kind) - {FULL, SLIDING}:
            raise ModelLoadError(f"rope_parameters must hold one set each for {FULL} and {SLIDING}")
        own = dict(by_kind.get(kind) or {})
        if kind == FULL:
            return {**own, **(fields.get("rope_scaling") or {})}
        own.setdefault("rope_theta", fields.get("rope_local_base_freq", fields["rope_theta"]))
        return own

    def _head_order(self) -> tuple[int, ...]:
        """See `DecoderSpec.head_order`: the rotated part's pairs first, then those of the part that is not rotated."""
        if self.family.rotation == "none":
            return ()
        params = self._rope_params(FULL)
        params.setdefault("partial_rotary_factor", self.fields["partial_rotary_factor"])
        dim = rotary_dim(params, self.head_dim)
        rotated = neighbours_as_halves(dim).tolist() if self.family.rotation == "neighbours" else list(range(dim))
        passed = list(range(dim, self.head_dim))
        half, rest = dim // 2, len(passed) // 2
        order = (*rotated[:half], *passed[:rest], *rotated[half:], *passed[rest:])
        return () if order == tuple(range(self.head_dim)) else order
