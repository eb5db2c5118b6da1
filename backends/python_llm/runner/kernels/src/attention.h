// Causal attention of some queries of one sequence over its paged keys and values, in whatever format those are.
// Does not know layers, other sequences, or who owns a page.
//
// Keys are taken in tiles of fixed positions with a running maximum and sum (Milakov and Gimelshein 2018, "Online
// normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention"), so that scores stay in the cache whatever the
// length of the sequence.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv_pages.h"

namespace pl {

struct AttentionSettings {
  int heads = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  int window = 0;        // a query sees the last `window` positions, itself included; 0: all
};

constexpr int kTileTokens = 256;  // keys whose scores are held at once

// Keys of a tile, for pages of `page` tokens: whole pages.
inline int tile_tokens(int page) { return std::max(1, kTileTokens / page) * page; }

// Working memory, one for each thread, made large enough before the threads begin: an exception in one of them could not be
// reported.
struct AttentionScratch {
  std::vector<float> memory, largest, total;
  std::vector<float*> scores, sums, target;
  std::vector<const float*> query;

  // For `queries` queries with heads of `head_dim` dims.
  void resize(int queries, const LayerPages& pages) {
    const size_t keys = tile_tokens(pages.page), width = keys + pages.head_dim / kKvGroup;
    memory.resize(queries * width);
    largest.resize(queries);
    total.resize(queries);
    scores.resize(queries);
    sums.resize(queries);
    target.resize(queries);
    query.resize(queries);
    for (int v = 0; v < queries; ++v) {
      scores[v] = memory.data() + v * width;
      sums[v] = scores[v] + keys;
    }
  }
};

// Queries at positions [position, position + rows) of the sequence with pages `table`, KV heads [first_head, first_head +
// heads). `scratch` must hold the queries of these rows. q, out: first query's row, rows `stride` floats apart, heads side by side. An output depends on its own query alone.
void attend(const LayerPages& pages, const AttentionSettings& settings, const int32_t* table, int position, int rows,
            int first_head, int heads, const float* q, float* out, size_t stride, AttentionScratch& scratch);

}  // namespace pl
