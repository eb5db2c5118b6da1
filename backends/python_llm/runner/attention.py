"""Causal attention of a step's queries over paged keys and values.

Does not know spans, positions or masks' meaning: the tiles say which keys a query sees.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from python_llm.runner.batch import Tile
from python_llm.runner.kv_cache import KVCache


def attend(
    q: torch.Tensor,
    kv: KVCache,
    layer: int,
    tiles: Sequence[Tile],
    *,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(cap(q k^T * scale)) v over the keys each query sees; query head h reads KV head h // (heads / kv_heads).

    `q`: float32 [n, heads, head_dim], every row in exactly one of `tiles`; the step's own keys are already in `kv`.
    `sinks`: float32 [heads], one more score in each head's softmax, of a key whose value is zero.
    Returns float32 [n, heads, head_dim]. Memory that no query of a tile sees never reaches the result, NaN included.
    """
    _, heads, head_dim = q.shape
    out = torch.empty_like(q)
    for tile in tiles:
        g, n = tile.rows.shape
        k, v = kv.gather(layer, tile.head_pages, g)
        kv_heads = k.shape[1]
        # A hidden key's weight is 0, and 0 * NaN would be NaN.
        v.view(-1, head_dim).index_fill_(0, tile.unseen, 0.0)
        grouped = q[tile.rows].view(g, n, kv_heads, heads // kv_heads, head_dim).permute(0, 2, 3, 1, 4)
        scores = grouped.reshape(g, kv_heads, -1, head_dim) @ k.transpose(-1, -2)
        scores *= scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        per_query = scores.view(g, kv_heads, heads // kv_heads, n, -1)
        per_query.masked_fill_(tile.hidden[:, None, None], float("-inf"))
        if sinks is None:
            weights = torch.softmax(scores, dim=-1)
        else:
            extra = sinks.view(1, kv_heads, -1, 1).expand(g, -1, -1, n).reshape(g, kv_heads, -1, 1)
            weights = torch.softmax(torch.cat((scores, extra), dim=-1), dim=-1)[..., :-1]
        mixed = weights @ v
        mixed = mixed.view(g, kv_heads, heads // kv_heads, n, head_dim).permute(0, 3, 1, 2, 4)
        out[tile.rows] = mixed.reshape(g, n, heads, head_dim)
    return out
