#include "attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "simd.h"

namespace pl {
namespace {

// One head's keys, or values, of one page.
struct Block {
  const uint8_t* data;
  const float* scales;  // whole-number formats only
  const float* minima;
  int page, head_dim;
};

// scores[v][j] = q[v] . key j for the 8 * W keys of a page from column `column` on; V queries. sums[v][g]: sum of q[v] over
// the dims of group g, which is what a minimum is multiplied by.
template <KvFormat F, int V, int W>
void score_columns(const Block& keys, int column, const float* const* q, const float* const* sums,
                   float* const* scores) {
  __m256 acc[V][W];
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) acc[v][w] = _mm256_setzero_ps();
  }
  const int step = has_scale(F) ? kKvGroup : keys.head_dim;
  for (int first = 0; first < keys.head_dim; first += step) {
    __m256 part[V][W];
    for (int v = 0; v < V; ++v) {
      for (int w = 0; w < W; ++w) part[v][w] = _mm256_setzero_ps();
    }
    for (int d = first; d < first + step; ++d) {
      __m256 k[W];
      for (int w = 0; w < W; ++w) k[w] = load_keys<F>(keys.data, keys.page, d, column + w * 8);
      for (int v = 0; v < V; ++v) {
        const __m256 x = _mm256_broadcast_ss(q[v] + d);
        for (int w = 0; w < W; ++w) part[v][w] = _mm256_fmadd_ps(x, k[w], part[v][w]);
      }
    }
    const int group = first / kKvGroup;
    for (int v = 0; v < V; ++v) {
      for (int w = 0; w < W; ++w) {
        if constexpr (!has_scale(F)) {
          acc[v][w] = part[v][w];
        } else {
          const size_t at = static_cast<size_t>(group) * keys.page + column + w * 8;
          acc[v][w] = _mm256_fmadd_ps(part[v][w], _mm256_loadu_ps(keys.scales + at), acc[v][w]);
          if constexpr (F == KvFormat::kInt4) {
            acc[v][w] = _mm256_fmadd_ps(_mm256_broadcast_ss(sums[v] + group), _mm256_loadu_ps(keys.minima + at), acc[v][w]);
          }
        }
      }
    }
  }
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) _mm256_storeu_ps(scores[v] + column + w * 8, acc[v][w]);
  }
}

template <KvFormat F, int V>
void score_page(const Block& keys, const float* const* q, const float* const* sums, float* const* scores) {
  int column = 0;
  for (; column + 16 <= keys.page; column += 16) score_columns<F, V, 2>(keys, column, q, sums, scores);
  if (column < keys.page) score_columns<F, V, 1>(keys, column, q, sums, scores);
}

// out[v][d] += sum over j in [begin, end) of weights[v][j] * values[j][d], for 8 * W dims from `dim` on, all of one group.
template <KvFormat F, int V, int W>
void mix_dims(const Block& values, int dim, int begin, int end, const float* const* weights, float* const* out) {
  const int groups = values.head_dim / kKvGroup, group = dim / kKvGroup;
  __m256 acc[V][W];
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) acc[v][w] = _mm256_loadu_ps(out[v] + dim + w * 8);
  }
  for (int j = begin; j < end; ++j) {
    const uint8_t* row = values.data + kv_bytes(F, static_cast<size_t>(j) * values.head_dim);
    __m256 x[W];
    for (int w = 0; w < W; ++w) {
      x[w] = load_elements<F>(row, dim + w * 8);
      if constexpr (has_scale(F)) {
        const size_t at = static_cast<size_t>(j) * groups + group;
        x[w] = _mm256_mul_ps(x[w], _mm256_broadcast_ss(values.scales + at));
        if constexpr (F == KvFormat::kInt4) x[w] = _mm256_add_ps(x[w], _mm256_broadcast_ss(values.minima + at));
      }
    }
    for (int v = 0; v < V; ++v) {
      const __m256 p = _mm256_broadcast_ss(weights[v] + j);
      for (int w = 0; w < W; ++w) acc[v][w] = _mm256_fmadd_ps(p, x[w], acc[v][w]);
    }
  }
  for (int v = 0; v < V; ++v) {
    for (int w = 0; w < W; ++w) _mm256_storeu_ps(out[v] + dim + w * 8, acc[v][w]);
  }
}

template <KvFormat F, int V>
void mix_page(const Block& values, int begin, int end, const float* const* weights, float* const* out) {
  int dim = 0;
  for (; dim + 32 <= values.head_dim; dim += 32) mix_dims<F, V, 4>(values, dim, begin, end, weights, out);
  if constexpr (!has_scale(F)) {
    for (; dim < values.head_dim; dim += 8) mix_dims<F, V, 1>(values, dim, begin, end, weights, out);
  }
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

Block block_of(const LayerPages& pages, KvFormat format, const uint8_t* data) {
  const float* scales = has_scale(format) ? pages.scales(format, data) : nullptr;
  return {data, scales, scales == nullptr ? nullptr : scales + pages.scale_count(), pages.page, pages.head_dim};
}

// Calls body with the format as a constant.
template <typename Body>
void with_format(KvFormat format, Body body) {
  switch (format) {
    case KvFormat::kFloat32: return body(std::integral_constant<KvFormat, KvFormat::kFloat32>{});
    case KvFormat::kBfloat16: return body(std::integral_constant<KvFormat, KvFormat::kBfloat16>{});
    case KvFormat::kInt8: return body(std::integral_constant<KvFormat, KvFormat::kInt8>{});
    case KvFormat::kInt4: return body(std::integral_constant<KvFormat, KvFormat::kInt4>{});
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
  // Only the minima of 4-bit keys need them.
  const int groups = pages.key_format == KvFormat::kInt4 ? pages.head_dim / kKvGroup : 0;
  std::vector<float> sums(static_cast<size_t>(queries) * groups);
  std::vector<const float*> sums_of(queries);
  for (int v = 0; v < queries; ++v) {
    sums_of[v] = sums.data() + static_cast<size_t>(v) * groups;
    for (int d = 0; d < groups * kKvGroup; ++d) sums[static_cast<size_t>(v) * groups + d / kKvGroup] += query[v][d];
  }
  for (int p = first_page; p < end_page; ++p) {
    const Block keys = block_of(pages, pages.key_format, pages.keys(table[p], head));
    for (int v = 0; v < queries; v += 4) {
      float* scores[4];
      const int count = std::min(4, queries - v);
      for (int i = 0; i < count; ++i) {
        scores[i] = scratch.data() + static_cast<size_t>(v + i) * total + (p - first_page) * page;
      }
      with_format(pages.key_format, [&](auto format) {
        constexpr KvFormat F = decltype(format)::value;
        switch (count) {
          case 4: return score_page<F, 4>(keys, &query[v], &sums_of[v], scores);
          case 3: return score_page<F, 3>(keys, &query[v], &sums_of[v], scores);
          case 2: return score_page<F, 2>(keys, &query[v], &sums_of[v], scores);
          default: return score_page<F, 1>(keys, &query[v], &sums_of[v], scores);
        }
      });
    }
  }
  for (int v = 0; v < queries; ++v) {
    const int own = position + v / group, base = first_page * page;
    const int begin = settings.window > 0 ? std::max(0, own - settings.window + 1) : 0;
    softmax(scratch.data() + static_cast<size_t>(v) * total, begin - base, own + 1 - base, total, settings.scale,
            settings.softcap);
  }
  for (int p = first_page; p < end_page; ++p) {
    const Block values = block_of(pages, pages.value_format, pages.values(table[p], head));
    // Only slots that this sequence has written: 0 times what lies beyond could be NaN.
    const int begin = std::max(0, first_key - p * page), end = std::min(page, last + 1 - p * page);
    for (int v = 0; v < queries; v += 3) {
      const float* weights[3];
      const int count = std::min(3, queries - v);
      for (int i = 0; i < count; ++i) {
        weights[i] = scratch.data() + static_cast<size_t>(v + i) * total + (p - first_page) * page;
      }
      with_format(pages.value_format, [&](auto format) {
        constexpr KvFormat F = decltype(format)::value;
        switch (count) {
          case 3: return mix_page<F, 3>(values, begin, end, weights, &target[v]);
          case 2: return mix_page<F, 2>(values, begin, end, weights, &target[v]);
          default: return mix_page<F, 1>(values, begin, end, weights, &target[v]);
        }
      });
    }
  }
}

}  // namespace pl
