// Causal attention of some queries of one sequence over its paged keys and values, float32.
// Does not know layers, other sequences, or who owns a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pl {

// Where one layer's keys and values lie. Key pages are [head_dim, page], value pages [page, head_dim], so that both
// products run along memory.
struct LayerPages {
  float* base = nullptr;   // of this layer in page 0
  size_t page_stride = 0;  // floats from a page to the next
  int kv_heads = 0, head_dim = 0, page = 0;  // page: tokens, a multiple of 8

  float* keys(int page_id, int head) const { return base + page_id * page_stride + head_size() * head; }
  float* values(int page_id, int head) const { return keys(page_id, head) + head_size() * kv_heads; }
  size_t head_size() const { return static_cast<size_t>(page) * head_dim; }
};

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
