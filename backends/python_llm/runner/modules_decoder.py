"""A causal model that no `DecoderSpec` can say, computed by transformers' own modules over our KV pages.

Attention is plugged into transformers' attention interface: it stores a step's keys and values in the pages and reads
all it needs from there. Whether that is the whole of what a model does with the past is not in its config, so it is
tried at load: a model whose logits over pages are not those of transformers' own attention is refused.
Does not know requests or sampling.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from python_llm.engine.plan import Span
from python_llm.errors import ModelLoadError
from python_llm.runner.attention import attend
from python_llm.runner.batch import Batch, make_batch
from python_llm.runner.kv_cache import KVCache

_NUMBERS = itertools.count()
_PROBE_LENGTH, _PROBE_CHUNKS = 23, (9, 10, 17, 23)
_TOLERANCE = 1e-3
"""Most that a logit of the trial may differ, as a share of the largest."""
_IGNORED = frozenset({"dropout", "is_causal", "position_ids", "use_cache", "output_attentions", "cache_position"})
"""Arguments to attention that say nothing that the pages do not."""


@dataclass
class _Layer:
    """What one layer's attention asks for."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


@dataclass
class _Step:
    """What the attention of all layers works on during one forward pass."""

    batch: Batch | None = None
    kv: KVCache | None = None
    layers: dict[int, _Layer] = field(default_factory=dict)
    """Without pages: what was seen."""
    masks: set[int | None] = field(default_factory=set)
    """Without pages: the windows of the masks that the model makes."""


@dataclass(frozen=True)
class _Shape:
    """A `kv_cache.PageShape`."""

    num_kv_heads: int
    head_dim: int
    layers: tuple[_Layer, ...]


class ModulesDecoder:
    """transformers' model in `folder`. Float32, on the CPU. Owner: the engine thread.

    Raises ModelLoadError when transformers cannot load it, or it cannot be served over pages.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """`config`: the folder's config.json."""
        self.model_type = config.get("model_type")
        if config.get("quantization_config"):
            raise ModelLoadError(
                f"model_type {self.model_type!r}: quantization_config: quantised Hugging Face checkpoints are not "
                "supported"
            )
        self._step = _Step()
        self._name = f"python_llm_pages_{next(_NUMBERS)}"
        self._model = self._load(folder)
        text = self._model.config.get_text_config()
        self.vocab_size = int(text.vocab_size)
        # Where a config names no limit, positions are relative, and 2048 tokens are what such models were made with.
        self.max_position_embeddings = int(getattr(text, "max_position_embeddings", None) or 2048)
        self.limited_from: int | None = None
        """The model's own limit, where it is served up to a lower one: within the original context of LongRoPE."""
        if (original := _original_context(text.to_dict())) is not None and original < self.max_position_embeddings:
            self.limited_from, self.max_position_embeddings = self.max_position_embeddings, original
        try:
            self.shape = self._seen_shape()
            self._try_out()
        except ModelLoadError:
            raise
        except Exception as error:  # anything at all, from anywhere in the model's modules
            raise self._refused(f"its modules fail over them ({type(error).__name__}: {error})") from None

    @property
    def windows(self) -> frozenset[int | None]:
        return frozenset(layer.window for layer in self.shape.layers)

    @torch.inference_mode()
    def logits(self, spans: Sequence[Span], kv: KVCache, rows: Sequence[int]) -> torch.Tensor:
        """Compute `spans`, storing their keys and values; -> the logits of `rows`, float32 [len(rows), vocab]."""
        batch = make_batch(spans, kv, self.windows)
        self._step.batch, self._step.kv = batch, kv
        try:
            return self._forward(batch.token_ids, batch.positions, torch.tensor(list(rows) or [0]))[: len(rows)]
        finally:
            self._step.batch = self._step.kv = None

    def _forward(self, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        result = self._model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows
        )
        logits: torch.Tensor = result.logits[0]
        return logits

    def _load(self, folder: Path) -> Any:
        from transformers import AttentionInterface, AutoModelForCausalLM
        from transformers.masking_utils import AttentionMaskInterface
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        interface = _Interface(self._step)
        AttentionInterface.register(self._name, interface.attention)
        AttentionMaskInterface.register(self._name, interface.mask)
        try:
            model, found = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except Exception as error:  # anything at all, from anywhere in transformers
            raise ModelLoadError(
                f"{folder}: model_type {self.model_type!r} has no decoder of ours, and transformers cannot load it: "
                f"{str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
            ) from None
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if found.get(what):
                name = sorted(map(str, found[what]))[0]
                raise ModelLoadError(f"{folder}: transformers finds {what.replace('_', ' ')} in the weights: {name}")
        return model.eval()

    @torch.inference_mode()
    def _seen_shape(self) -> _Shape:
        """One pass without pages, to learn what each layer's attention asks for."""
        self._model.set_attn_implementation(self._name)
        ids = self._probe_ids()
        self._forward(ids, torch.arange(len(ids)), torch.tensor([0]))
        seen = self._step.layers
        count = int(self._model.config.get_text_config().num_hidden_layers)
        if sorted(seen) != list(range(count)):
            raise self._refused(f"{len(seen)} of its {count} layers attend through transformers' attention interface")
        layers = tuple(seen[index] for index in range(count))
        if len({layer.kv_heads for layer in layers}) > 1:
            raise self._refused("its layers differ in their number of key heads")
        if not self._step.masks <= {layer.window for layer in layers} | {None}:
            raise self._refused("it masks the past in another way than by one sliding window a layer")
        return _Shape(layers[0].kv_heads, max(max(layer.key_dim, layer.value_dim) for layer in layers), layers)

    @torch.inference_mode()
    def _try_out(self) -> None:
        """A prompt in chunks over pages in disorder against transformers' own attention over the whole."""
        ids, positions = self._probe_ids(), torch.arange(_PROBE_LENGTH)
        self._model.set_attn_implementation("eager")
        expected = self._forward(ids, positions, positions)
        self._model.set_attn_implementation(self._name)
        kv = KVCache(self.shape, num_blocks=8, block_size=4)
        blocks = np.array([6, 2, 7, 0, 4, 1], dtype=np.int32)
        found, start = [], 0
        for end in _PROBE_CHUNKS:
            span = Span(0, start, ids[start:end].numpy().astype(np.int32), blocks[: -(-end // 4)], None)
            found.append(self.logits([span], kv, range(end - start)))
            start = end
        worst = float((torch.cat(found) - expected).abs().max() / expected.abs().max())
        if not worst < _TOLERANCE:
            raise self._refused(f"its logits then differ by {worst:.1%} of the largest")

    def _probe_ids(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, self.vocab_size, (_PROBE_LENGTH,), generator=generator)

    def _refused(self, why: str) -> ModelLoadError:
        return ModelLoadError(
            f"model_type {self.model_type!r} has no decoder of ours, and transformers' modules cannot serve it over a "
            f"paged KV cache: {why}."
        )


class _Interface:
    """The two functions that transformers calls, bound to the model that they work for."""

    def __init__(self, step: _Step) -> None:
        self._step = step

    def mask(self, *arguments: Any, **options: Any) -> None:
        """In place of a mask: pages bring their own. Remembers the window that the model asks for."""
        self._step.masks.add(options.get("local_size"))

    def attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """`query`: [1, heads, n, d], `key`, `value`: [1, kv_heads, n, d]. Returns [1, n, heads, d]."""
        unknown = [name for name, given in others.items() if name not in _IGNORED and not _is_off(given)]
        if unknown or attention_mask is not None:
            raise NotImplementedError(f"attention is given {unknown[0] if unknown else 'a mask'}")
        step, index = self._step, int(module.layer_idx)  # type: ignore[arg-type]
        q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
        if step.kv is None or step.batch is None:
            step.layers[index] = _Layer(k.shape[1], k.shape[2], v.shape[2], sliding_window)
            return v.new_zeros(1, len(q), q.shape[1], v.shape[2]), None
        wide = step.kv.head_dim
        step.kv.write(index, step.batch.token_index, _padded(k, wide), _padded(v, wide))
        mixed = attend(
            _padded(q, wide).contiguous(),
            step.kv,
            index,
            step.batch.tiles[sliding_window],
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            softcap=softcap,
            sinks=s_aux,
        )
        return mixed[None, ..., : v.shape[2]], None


def _is_off(given: Any) -> bool:
    return given is None or given is False


def _padded(states: torch.Tensor, width: int) -> torch.Tensor:
    """[..., d] -> [..., width]: zeros add nothing to a product."""
    return functional.pad(states, (0, width - states.shape[-1]))


def _original_context(config: Mapping[str, Any]) -> int | None:
    """The context up to which LongRoPE's frequencies are the short ones; None: no layer has LongRoPE.

    Beyond it transformers chooses all rows' frequencies by the longest position of the batch.
    """
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        parameters = config.get(name)
        if isinstance(parameters, Mapping):
            # One set for all layers, or one for each type of layer.
            for rope in (parameters, *(value for value in parameters.values() if isinstance(value, Mapping))):
                if "longrope" in (rope.get("rope_type"), rope.get("type")):
                    found.append(
                        rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
                    )
    return min((int(context) for context in found if context), default=None)
