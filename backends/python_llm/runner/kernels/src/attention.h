// Causal attention of some queries of one sequence over its paged keys and values, in whatever format those are.
// Does not know layers, other sequences, or who owns a page.
#pragma once

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

// Queries at positions [position, position + rows) of the sequence with pages `table`, KV head `head`.
// q, out: first query's row, rows `stride` floats apart, heads side by side. An output depends on its own query alone.
// `scratch` is the caller's, one for each thread.
void attend(const LayerPages& pages, const AttentionSettings& settings, const int32_t* table, int position, int rows,
            int head, const float* q, float* out, size_t stride, std::vector<float>& scratch);

}  // namespace pl
