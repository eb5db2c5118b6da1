#include "attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "simd.h"

namespace pl {
namespace {

// scores[v * stride + j] = q[v] . key j for the 8 * W keys of a page from column `column` on; V queries.
template <int V, int W>
void score_columns(const float* keys, int page, int head_dim, int column, const float* const* q, float* const* scores) {
  __m256 acc[V][W];
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) acc[v][w] = _mm256_setzero_ps();
  }
  for (int d = 0; d < head_dim; ++d) {
    const float* row = keys + static_cast<size_t>(d) * page + column;
    __m256 k[W];
    for (int w = 0; w < W; ++w) k[w] = _mm256_loadu_ps(row + w * 8);
    for (int v = 0; v < V; ++v) {
      const __m256 x = _mm256_broadcast_ss(q[v] + d);
      for (int w = 0; w < W; ++w) acc[v][w] = _mm256_fmadd_ps(x, k[w], acc[v][w]);
    }
  }
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) _mm256_storeu_ps(scores[v] + column + w * 8, acc[v][w]);
  }
}

template <int V>
void score_page(const float* keys, int page, int head_dim, const float* const* q, float* const* scores) {
  int column = 0;
  for (; column + 16 <= page; column += 16) score_columns<V, 2>(keys, page, head_dim, column, q, scores);
  if (column < page) score_columns<V, 1>(keys, page, head_dim, column, q, scores);
}

// out[v][d] += sum over j in [begin, end) of weights[v][j] * values[j][d], for 8 * W dims from `dim` on.
template <int V, int W>
void mix_dims(const float* values, int head_dim, int dim, int begin, int end, const float* const* weights,
              float* const* out) {
  __m256 acc[V][W];
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) acc[v][w] = _mm256_loadu_ps(out[v] + dim + w * 8);
  }
  for (int j = begin; j < end; ++j) {
    const float* row = values + static_cast<size_t>(j) * head_dim + dim;
    __m256 x[W];
    for (int w = 0; w < W; ++w) x[w] = _mm256_loadu_ps(row + w * 8);
    for (int v = 0; v < V; ++v) {
      const __m256 p = _mm256_broadcast_ss(weights[v] + j);
      for (int w = 0; w < W; ++w) acc[v][w] = _mm256_fmadd_ps(p, x[w], acc[v][w]);
    }
  }
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) _mm256_storeu_ps(out[v] + dim + w * 8, acc[v][w]);
  }
}

template <int V>
void mix_page(const float* values, int head_dim, int begin, int end, const float* const* weights, float* const* out) {
  int dim = 0;
  for (; dim + 32 <= head_dim; dim += 32) mix_dims<V, 4>(values, head_dim, dim, begin, end, weights, out);
  for (; dim < head_dim; dim += 8) mix_dims<V, 1>(values, head_dim, dim, begin, end, weights, out);
}

// Scores of keys [begin, end) become softmax weights, the rest of [0, total) becomes 0. total is a multiple of 8.
// Lane and order of a key follow from its position alone.
void softmax(float* scores, int begin, int end, int total, float scale, float softcap) {
  const __m256 factor = _mm256_set1_ps(scale);
  const __m256 low = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 top = low;
  for (int j = 0; j < total; j += 8) {
    const __m256i index = _mm256_add_epi32(lanes, _mm256_set1_epi32(j));
    const __m256i seen = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), index),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index));
    __m256 x = _mm256_mul_ps(_mm256_loadu_ps(scores + j), factor);
    if (softcap != 0.0f) {
      x = _mm256_mul_ps(tanh_ps(_mm256_div_ps(x, _mm256_set1_ps(softcap))), _mm256_set1_ps(softcap));
    }
    x = _mm256_blendv_ps(low, x, _mm256_castsi256_ps(seen));
    _mm256_storeu_ps(scores + j, x);
    top = _mm256_max_ps(top, x);
  }
  const __m256 largest = _mm256_set1_ps(max_lanes(top));
  __m256 sum = _mm256_setzero_ps();
  for (int j = 0; j < total; j += 8) {
    const __m256 e = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + j), largest));
    _mm256_storeu_ps(scores + j, e);
    sum = _mm256_add_ps(sum, e);
  }
  const __m256 inverse = _mm256_set1_ps(1.0f / sum_lanes(sum));
  for (int j = 0; j < total; j += 8) {
    _mm256_storeu_ps(scores + j, _mm256_mul_ps(_mm256_loadu_ps(scores + j), inverse));
  }
}

}  // namespace

void attend(const LayerPages& pages, const AttentionSettings& settings, const int32_t* table, int position, int rows,
            int head, const float* q, float* out, size_t stride, std::vector<float>& scratch) {
  const int group = settings.heads / pages.kv_heads, queries = rows * group, page = pages.page;
  const int last = position + rows - 1;
  const int first_key = settings.window > 0 ? std::max(0, position - settings.window + 1) : 0;
  const int first_page = first_key / page, end_page = last / page + 1;
  const int total = (end_page - first_page) * page;
  if (scratch.size() < static_cast<size_t>(queries) * total) scratch.resize(static_cast<size_t>(queries) * total);

  std::vector<const float*> query(queries);
  std::vector<float*> target(queries);
  for (int v = 0; v < queries; ++v) {
    const size_t offset = (v / group) * stride + static_cast<size_t>(head * group + v % group) * pages.head_dim;
    query[v] = q + offset;
    target[v] = out + offset;
    std::fill(target[v], target[v] + pages.head_dim, 0.0f);
  }
  for (int p = first_page; p < end_page; ++p) {
    const float* keys = pages.keys(table[p], head);
    for (int v = 0; v < queries; v += 4) {
      float* scores[4];
      const int count = std::min(4, queries - v);
      for (int i = 0; i < count; ++i) {
        scores[i] = scratch.data() + static_cast<size_t>(v + i) * total + (p - first_page) * page;
      }
      switch (count) {
        case 4: score_page<4>(keys, page, pages.head_dim, &query[v], scores); break;
        case 3: score_page<3>(keys, page, pages.head_dim, &query[v], scores); break;
        case 2: score_page<2>(keys, page, pages.head_dim, &query[v], scores); break;
        default: score_page<1>(keys, page, pages.head_dim, &query[v], scores);
      }
    }
  }
  for (int v = 0; v < queries; ++v) {
    const int own = position + v / group, base = first_page * page;
    const int begin = settings.window > 0 ? std::max(0, own - settings.window + 1) : 0;
    softmax(scratch.data() + static_cast<size_t>(v) * total, begin - base, own + 1 - base, total, settings.scale,
            settings.softcap);
  }
  for (int p = first_page; p < end_page; ++p) {
    const float* values = pages.values(table[p], head);
    // Only slots that this sequence has written: 0 times what lies beyond could be NaN.
    const int begin = std::max(0, first_key - p * page), end = std::min(page, last + 1 - p * page);
    for (int v = 0; v < queries; v += 3) {
      const float* weights[3];
      const int count = std::min(3, queries - v);
      for (int i = 0; i < count; ++i) {
        weights[i] = scratch.data() + static_cast<size_t>(v + i) * total + (p - first_page) * page;
      }
      switch (count) {
        case 3: mix_page<3>(values, pages.head_dim, begin, end, weights, &target[v]); break;
        case 2: mix_page<2>(values, pages.head_dim, begin, end, weights, &target[v]); break;
        default: mix_page<1>(values, pages.head_dim, begin, end, weights, &target[v]);
      }
    }
  }
}

}  // namespace pl
