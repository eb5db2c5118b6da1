#include "attention.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "simd.h"

namespace pl {
namespace {

constexpr size_t kPrefetchBytes = 8192;  // how far ahead pages are fetched
constexpr int kPagesAtOnce = 2;           // pages whose keys are scored together
constexpr int kMaxPage = 1024;            // tokens
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One head's keys, or values, of one page.
struct Block {
  const uint8_t* data;
  const float* scales;  // whole-number formats only
  const float* minima;  // 4 bits only
  int page, head_dim;
};

// 8 keys of consecutive tokens, within one page.
struct KeyColumn {
  const uint8_t* data;  // the page's
  const float* scales;  // of these keys, group 0
  const float* minima;
  int first;  // their first slot
};

// sums[v][w] += q[v][d] * (dim d of the keys of column w). What is used more often stays in registers.
template <KvFormat F, int V, int W>
PL_INLINE inline void add_products(const KeyColumn* columns, int page, int d, const float* const* q, __m256 (&sums)[V][W]) {
  if constexpr (V <= W) {
    __m256 x[V];
    unrolled<V>([&](auto v) PL_INLINE { x[v] = _mm256_broadcast_ss(q[v] + d); });
    unrolled<W>([&](auto w) PL_INLINE {
      const __m256 k = load_keys<F>(columns[w].data, page, d, columns[w].first);
      unrolled<V>([&](auto v) PL_INLINE { sums[v][w] = _mm256_fmadd_ps(x[v], k, sums[v][w]); });
    });
  } else {
    __m256 k[W];
    unrolled<W>([&](auto w) PL_INLINE { k[w] = load_keys<F>(columns[w].data, page, d, columns[w].first); });
    unrolled<V>([&](auto v) PL_INLINE {
      const __m256 x = _mm256_broadcast_ss(q[v] + d);
      unrolled<W>([&](auto w) PL_INLINE { sums[v][w] = _mm256_fmadd_ps(x, k[w], sums[v][w]); });
    });
  }
}

// scores[v][j] = q[v] . key j for the keys of W columns; V queries. sums[v][g]: sum of q[v] over the dims of group g, which
// is what a minimum is multiplied by.
template <KvFormat F, int V, int W>
PL_KERNEL void score_columns(const KeyColumn* columns, int page, int head_dim, const float* const* q, const float* const* sums,
                   float* const* scores) {
  __m256 acc[V][W];
  unrolled<V>([&](auto v) PL_INLINE {
    unrolled<W>([&](auto w) PL_INLINE { acc[v][w] = _mm256_setzero_ps(); });
  });
  if constexpr (!has_scale(F)) {
    for (int d = 0; d < head_dim; ++d) {
      add_products<F, V, W>(columns, page, d, q, acc);
    }
  } else {
    for (int group = 0; group < head_dim / kKvGroup; ++group) {
      __m256 part[V][W];
      unrolled<V>([&](auto v) PL_INLINE {
        unrolled<W>([&](auto w) PL_INLINE { part[v][w] = _mm256_setzero_ps(); });
      });
      for (int d = group * kKvGroup; d < (group + 1) * kKvGroup; ++d) {
        add_products<F, V, W>(columns, page, d, q, part);
      }
      unrolled<W>([&](auto w) PL_INLINE {
        const __m256 scale = _mm256_loadu_ps(columns[w].scales + group * page);
        unrolled<V>([&](auto v) PL_INLINE { acc[v][w] = _mm256_fmadd_ps(part[v][w], scale, acc[v][w]); });
        if constexpr (F == KvFormat::kInt4) {
          const __m256 minimum = _mm256_loadu_ps(columns[w].minima + group * page);
          unrolled<V>([&](auto v) PL_INLINE {
            acc[v][w] = _mm256_fmadd_ps(_mm256_broadcast_ss(sums[v] + group), minimum, acc[v][w]);
          });
        }
      });
    }
  }
  unrolled<V>([&](auto v) PL_INLINE {
    unrolled<W>([&](auto w) PL_INLINE { _mm256_storeu_ps(scores[v] + w * 8, acc[v][w]); });
  });
}

template <KvFormat F, int V>
void score(const KeyColumn* columns, int count, int page, int head_dim, const float* const* q, const float* const* sums,
           float* const* scores) {
  constexpr int W = V == 1 ? 8 : V <= 3 ? 4 : 2;  // enough sums to hide the latency of an addition, few enough for registers
  float* into[V];
  int c = 0;
  const auto advance = [&](int by) {
    for (int v = 0; v < V; ++v) into[v] = scores[v] + (c + by) * 8;
    c += by;
  };
  advance(0);
  for (; c + W <= count; advance(W)) score_columns<F, V, W>(columns + c, page, head_dim, q, sums, into);
  for (; c + 2 <= count; advance(2)) score_columns<F, V, 2>(columns + c, page, head_dim, q, sums, into);
  if (c < count) score_columns<F, V, 1>(columns + c, page, head_dim, q, sums, into);
}

// out[v][d] += sum over j in [begin, end) of weights[v][j] * values[j][d], for 8 * W dims from `dim` on, all of one group.
// Whole-number formats: a value is q * scale + minimum; the scale goes into the weight, and the minima are summed apart.
template <KvFormat F, int V, int W>
PL_KERNEL void mix_dims(const Block& values, int dim, int begin, int end, const float* const* weights, float* const* out) {
  alignas(32) float scaled[V][kMaxPage];
  const float* factors[V];
  __m256 acc[V][W];
  unrolled<V>([&](auto v) PL_INLINE {
    factors[v] = weights[v];
    unrolled<W>([&](auto w) PL_INLINE { acc[v][w] = _mm256_loadu_ps(out[v] + dim + w * 8); });
  });
    if constexpr (has_scale(F)) {
    const size_t at = static_cast<size_t>(dim / kKvGroup) * values.page;
    unrolled<V>([&](auto v) PL_INLINE {
      for (int j = begin; j < end; ++j) scaled[v][j] = weights[v][j] * values.scales[at + j];
      factors[v] = scaled[v];
      if constexpr (F == KvFormat::kInt4) {
        float sum = 0;
        for (int j = begin; j < end; ++j) sum += weights[v][j] * values.minima[at + j];
        unrolled<W>([&](auto w) PL_INLINE { acc[v][w] = _mm256_add_ps(acc[v][w], _mm256_set1_ps(sum)); });
      }
    });
  }
  for (int j = begin; j < end; ++j) {
    const uint8_t* row = values.data + kv_bytes(F, static_cast<size_t>(j) * values.head_dim);
    __m256 p[V];
    unrolled<V>([&](auto v) PL_INLINE { p[v] = _mm256_broadcast_ss(factors[v] + j); });
    unrolled<W>([&](auto w) PL_INLINE {
      const __m256 x = load_elements<F>(row, dim + w * 8);
      unrolled<V>([&](auto v) PL_INLINE { acc[v][w] = _mm256_fmadd_ps(p[v], x, acc[v][w]); });
    });
  }
  unrolled<V>([&](auto v) PL_INLINE {
    unrolled<W>([&](auto w) PL_INLINE { _mm256_storeu_ps(out[v] + dim + w * 8, acc[v][w]); });
  });
}

template <KvFormat F, int V>
void mix_page(const Block& values, int begin, int end, const float* const* weights, float* const* out) {
  int dim = 0;
  for (; dim + 32 <= values.head_dim; dim += 32) mix_dims<F, V, 4>(values, dim, begin, end, weights, out);
  if constexpr (!has_scale(F)) {
    for (; dim < values.head_dim; dim += 8) mix_dims<F, V, 1>(values, dim, begin, end, weights, out);
  }
}

// Scores, [count], become scale * score, capped; those outside [begin, end) become minus infinity. Returns the largest.
// count is a multiple of 8. Lane and order of a key follow from its position alone.
float scale_and_mask(float* scores, int begin, int end, int count, float scale, float softcap) {
  const __m256 factor = _mm256_set1_ps(scale), low = _mm256_set1_ps(kMinusInfinity);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256 top = low;
  for (int j = 0; j < count; j += 8) {
    __m256 x = _mm256_mul_ps(_mm256_loadu_ps(scores + j), factor);
    if (softcap != 0.0f) {
      x = _mm256_mul_ps(tanh_ps(_mm256_div_ps(x, _mm256_set1_ps(softcap))), _mm256_set1_ps(softcap));
    }
    if (j < begin || j + 8 > end) {
      const __m256i index = _mm256_add_epi32(lanes, _mm256_set1_epi32(j));
      const __m256i seen = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), index),
                                               _mm256_cmpgt_epi32(_mm256_set1_epi32(end), index));
      x = _mm256_blendv_ps(low, x, _mm256_castsi256_ps(seen));
    }
    _mm256_storeu_ps(scores + j, x);
    top = _mm256_max_ps(top, x);
  }
  return max_lanes(top);
}

// Scores become e^(score - largest). Returns their sum.
float exponentials(float* scores, int count, float largest) {
  const __m256 most = _mm256_set1_ps(largest);
  __m256 sum = _mm256_setzero_ps();
  for (int j = 0; j < count; j += 8) {
    const __m256 e = exp_ps(_mm256_sub_ps(_mm256_loadu_ps(scores + j), most));
    _mm256_storeu_ps(scores + j, e);
    sum = _mm256_add_ps(sum, e);
  }
  return sum_lanes(sum);
}

void multiply_by(float* x, int count, float factor) {
  const __m256 f = _mm256_set1_ps(factor);
  for (int i = 0; i < count; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), f));
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

// Calls body(first query, constant number of queries) until `count` are covered.
template <int Most, typename Body>
void in_groups(int count, Body body) {
  int v = 0;
  for (; v + Most <= count; v += Most) body(v, std::integral_constant<int, Most>{});
  if constexpr (Most > 1) {
    if (v < count) in_groups<Most - 1>(count - v, [&](int at, auto size) { body(v + at, size); });
  }
}

// Fetches pages ahead of time in the order in which they are read: the pages of a sequence are scattered over memory, and
// the CPU's own prefetching stops at the end of each. Head by head, tile by tile, keys before values.
class Prefetcher {
 public:
  Prefetcher(const LayerPages& pages, const int32_t* table, int first_head, int heads, int first_page, int end_page, int tile)
      : pages_(pages), table_(table), tile_(tile), first_page_(first_page), end_page_(end_page), end_head_(first_head + heads),
        head_(first_head), page_(first_page) {
    const int distance = static_cast<int>(kPrefetchBytes / std::max(pages.key_bytes(), pages.value_bytes())) + 1;
    for (int i = 0; i < distance; ++i) advance();
  }

  // Call it once for each block of keys or values that is read.
  void advance() {
    if (head_ == end_head_) return;
    const uint8_t* data = values_ ? pages_.values(table_[page_], head_) : pages_.keys(table_[page_], head_);
    const size_t bytes = values_ ? pages_.value_bytes() : pages_.key_bytes();
    for (size_t at = 0; at < bytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(data + at), _MM_HINT_T0);
    if (++page_ < end_page_ && page_ % tile_ != 0) return;
    if (!values_) page_ = std::max(first_page_, (page_ - 1) / tile_ * tile_);
    values_ = !values_;
    if (page_ == end_page_) {
      page_ = first_page_;
      ++head_;
    }
  }

 private:
  const LayerPages& pages_;
  const int32_t* table_;
  const int tile_, first_page_, end_page_, end_head_;
  int head_, page_;
  bool values_ = false;
};

}  // namespace

void attend(const LayerPages& pages, const AttentionSettings& settings, const int32_t* table, int position, int rows,
            int first_head, int heads, const float* q, float* out, size_t stride, AttentionScratch& scratch) {
  const int group = settings.heads / pages.kv_heads, queries = rows * group, page = pages.page, head_dim = pages.head_dim;
  const int last = position + rows - 1;
  const int first_key = settings.window > 0 ? std::max(0, position - settings.window + 1) : 0;
  const int first_page = first_key / page, end_page = last / page + 1;
  // Tiles begin at fixed positions: what is summed with what must not depend on the window or on the rows beside one.
  const int tile_pages = tile_tokens(page) / page;
  // Only the minima of 4-bit keys need the sums of queries.
  const int groups = pages.key_format == KvFormat::kInt4 ? head_dim / kKvGroup : 0;
  float** scores = scratch.scores.data();
  Prefetcher prefetcher(pages, table, first_head, heads, first_page, end_page, tile_pages);

  for (int head = first_head; head < first_head + heads; ++head) {
    for (int v = 0; v < queries; ++v) {
      const size_t offset = (v / group) * stride + static_cast<size_t>(head * group + v % group) * head_dim;
      scratch.query[v] = q + offset;
      scratch.target[v] = out + offset;
      std::fill(out + offset, out + offset + head_dim, 0.0f);
      scratch.largest[v] = kMinusInfinity;
      scratch.total[v] = 0.0f;
      for (int g = 0; g < groups; ++g) {
        float sum = 0;
        for (int d = g * kKvGroup; d < (g + 1) * kKvGroup; ++d) sum += q[offset + d];
        scratch.sums[v][g] = sum;
      }
    }
    for (int tile = first_page / tile_pages * tile_pages; tile < end_page; tile += tile_pages) {
      const int begin_page = std::max(tile, first_page), stop_page = std::min(tile + tile_pages, end_page);
      const int base = tile * page;
      for (int p = begin_page; p < stop_page; p += kPagesAtOnce) {
        KeyColumn columns[kPagesAtOnce * kMaxPage / 8];
        int count = 0;
        for (int at = p; at < std::min(p + kPagesAtOnce, stop_page); ++at) {
          prefetcher.advance();
          const Block keys = block_of(pages, pages.key_format, pages.keys(table[at], head));
          for (int slot = 0; slot < page; slot += 8) columns[count++] = {keys.data, keys.scales + slot, keys.minima + slot, slot};
        }
        with_format(pages.key_format, [&](auto format) {
          in_groups<6>(queries, [&](int v, auto size) {
            float* into[size];
            for (int i = 0; i < size; ++i) into[i] = scores[v + i] + (p - tile) * page;
            score<format, size>(columns, count, page, head_dim, &scratch.query[v], &scratch.sums[v], into);
          });
        });
      }
      const int from = (begin_page - tile) * page, until = (stop_page - tile) * page;
      for (int v = 0; v < queries; ++v) {
        const int own = position + v / group;
        const int begin = settings.window > 0 ? std::max(0, own - settings.window + 1) : 0;
        float* row = scores[v];
        // A query may see nothing of a tile that its neighbours look at.
        if (own < base || begin >= stop_page * page) {
          std::fill(row + from, row + until, 0.0f);
          continue;
        }
        const float top = scale_and_mask(row + from, begin - base - from, own + 1 - base - from, until - from, settings.scale,
                                         settings.softcap);
        const float largest = std::max(scratch.largest[v], top);
        if (scratch.total[v] != 0.0f && largest != scratch.largest[v]) {
          const float factor = std::exp(scratch.largest[v] - largest);
          scratch.total[v] *= factor;
          multiply_by(scratch.target[v], head_dim, factor);
        }
        scratch.largest[v] = largest;
        scratch.total[v] += exponentials(row + from, until - from, largest);
      }
      for (int p = begin_page; p < stop_page; ++p) {
        prefetcher.advance();
        const Block values = block_of(pages, pages.value_format, pages.values(table[p], head));
        // Only slots that this sequence has written: 0 times what lies beyond could be NaN.
        const int begin = std::max(0, first_key - p * page), end = std::min(page, last + 1 - p * page);
        with_format(pages.value_format, [&](auto format) {
          in_groups<3>(queries, [&](int v, auto count) {
            const float* weights[count];
            for (int i = 0; i < count; ++i) weights[i] = scores[v + i] + (p - tile) * page;
            mix_page<format, count>(values, begin, end, weights, &scratch.target[v]);
          });
        });
      }
    }
    for (int v = 0; v < queries; ++v) multiply_by(scratch.target[v], head_dim, 1.0f / scratch.total[v]);
  }
}

}  // namespace pl
