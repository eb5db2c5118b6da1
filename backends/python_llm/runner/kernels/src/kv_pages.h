// How keys and values lie in a page, in any of their formats, and how a token is stored.
//
// Of one head, a key page is [head_dim, page] and a value page [page, head_dim], so that both products of attention run
// along memory. Whole-number formats add, for each token and 32 dims, a scale (and for 4 bits a minimum):
// x = scale * q (+ minimum). Does not know attention or who owns a page.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace pl {

constexpr int kKvGroup = 32;  // dims that share a scale

enum class KvFormat : int { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt4 = 3 };

constexpr bool has_scale(KvFormat format) { return format >= KvFormat::kInt8; }

// Bytes of `count` elements.
constexpr size_t kv_bytes(KvFormat format, size_t count) {
  switch (format) {
    case KvFormat::kFloat32: return count * 4;
    case KvFormat::kBfloat16: return count * 2;
    case KvFormat::kInt8: return count;
    default: return count / 2;
  }
}

// Bytes of one head's keys, or values, of a page.
constexpr size_t kv_head_bytes(KvFormat format, int head_dim, int page) {
  const size_t elements = static_cast<size_t>(head_dim) * page;
  const size_t scales = elements / kKvGroup * sizeof(float);
  return kv_bytes(format, elements) + (has_scale(format) ? scales : 0) + (format == KvFormat::kInt4 ? scales : 0);
}

// Where one layer's keys and values lie.
struct LayerPages {
  uint8_t* base = nullptr;  // of this layer in page 0
  size_t page_stride = 0;   // bytes from a page to the next
  int kv_heads = 0, head_dim = 0, page = 0;  // page: tokens, a multiple of 8
  KvFormat key_format = KvFormat::kFloat32, value_format = KvFormat::kFloat32;

  uint8_t* keys(int page_id, int head) const { return base + page_id * page_stride + key_bytes() * head; }
  uint8_t* values(int page_id, int head) const {
    return base + page_id * page_stride + key_bytes() * kv_heads + value_bytes() * head;
  }
  size_t key_bytes() const { return kv_head_bytes(key_format, head_dim, page); }
  size_t value_bytes() const { return kv_head_bytes(value_format, head_dim, page); }
  size_t layer_bytes() const { return (key_bytes() + value_bytes()) * kv_heads; }

  // Scales of a head's keys, and of its values, are [head_dim / 32, page]; minima follow the scales.
  const float* scales(KvFormat format, const uint8_t* block) const {
    return reinterpret_cast<const float*>(block + kv_bytes(format, static_cast<size_t>(head_dim) * page));
  }
  size_t scale_count() const { return static_cast<size_t>(head_dim) * page / kKvGroup; }
};

// Elements [index, index + 8) of a row of values. 4-bit elements come in blocks of 16: the first 8 in the low halves of 8 bytes, the
// others in the high halves.
template <KvFormat F>
inline __m256 load_elements(const uint8_t* row, int index) {
  if constexpr (F == KvFormat::kFloat32) return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + index);
  if constexpr (F == KvFormat::kBfloat16) return load_bfloat(reinterpret_cast<const uint16_t*>(row) + index);
  if constexpr (F == KvFormat::kInt8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + index));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + index / 16 * 8));
  if (index % 16 != 0) bytes = _mm_srli_epi16(bytes, 4);
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15))));
}

// Keys of tokens [column, column + 8) of a head's block, dim `d`. 4-bit keys keep two dims of one token in a byte, never two
// tokens: tokens are stored by different threads.
template <KvFormat F>
inline __m256 load_keys(const uint8_t* block, int page, int d, int column) {
  if constexpr (F != KvFormat::kInt4) return load_elements<F>(block + kv_bytes(F, static_cast<size_t>(d) * page), column);
  __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + static_cast<size_t>(d / 2) * page + column));
  if (d % 2 != 0) bytes = _mm_srli_epi16(bytes, 4);
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15))));
}

// Store one token's key or value, [head_dim], at `slot` of the head's block.
void store_key(const LayerPages& pages, uint8_t* block, int slot, const float* key);
void store_value(const LayerPages& pages, uint8_t* block, int slot, const float* value);

}  // namespace pl
