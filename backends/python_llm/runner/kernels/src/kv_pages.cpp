#include "kv_pages.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quantize.h"

namespace pl {
namespace {

uint16_t bfloat_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

struct Group {
  float scale, minimum;
};

// The whole numbers of 32 elements and what they are worth.
Group quantize(KvFormat format, const float* x, int8_t* q) {
  if (format == KvFormat::kInt8) {
    float scale, sum;
    quantize_row(x, kKvGroup, q, &scale, &sum);
    return {scale, 0.0f};
  }
  const auto [low, high] = std::minmax_element(x, x + kKvGroup);
  const float scale = (*high - *low) / 15.0f, minimum = *low, inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kKvGroup; ++i) {
    q[i] = static_cast<int8_t>(std::clamp(std::lrintf((x[i] - minimum) * inverse), 0L, 15L));
  }
  return {scale, minimum};
}

void put_half(uint8_t& byte, bool high, int8_t q) { byte = high ? (byte & 0x0F) | (q << 4) : (byte & 0xF0) | q; }

float* mutable_scales(const LayerPages& pages, KvFormat format, uint8_t* block) {
  return const_cast<float*>(pages.scales(format, block));
}

}  // namespace

void store_key(const LayerPages& pages, uint8_t* block, int slot, const float* key) {
  const KvFormat format = pages.key_format;
  const int page = pages.page;
  if (format == KvFormat::kFloat32) {
    for (int d = 0; d < pages.head_dim; ++d) reinterpret_cast<float*>(block)[d * page + slot] = key[d];
    return;
  }
  if (format == KvFormat::kBfloat16) {
    for (int d = 0; d < pages.head_dim; ++d) reinterpret_cast<uint16_t*>(block)[d * page + slot] = bfloat_bits(key[d]);
    return;
  }
  float* scales = mutable_scales(pages, format, block);
  for (int g = 0; g < pages.head_dim / kKvGroup; ++g) {
    int8_t q[kKvGroup];
    const Group group = quantize(format, key + g * kKvGroup, q);
    for (int i = 0; i < kKvGroup; ++i) {
      const int d = g * kKvGroup + i;
      if (format == KvFormat::kInt8) {
        block[d * page + slot] = static_cast<uint8_t>(q[i]);
      } else {
        put_half(block[d / 2 * page + slot], d % 2 != 0, q[i]);
      }
    }
    scales[g * page + slot] = group.scale;
    if (format == KvFormat::kInt4) scales[pages.scale_count() + g * page + slot] = group.minimum;
  }
}

void store_value(const LayerPages& pages, uint8_t* block, int slot, const float* value) {
  const KvFormat format = pages.value_format;
  const int head_dim = pages.head_dim;
  uint8_t* row = block + kv_bytes(format, static_cast<size_t>(slot) * head_dim);
  if (format == KvFormat::kFloat32) {
    std::memcpy(row, value, head_dim * sizeof(float));
    return;
  }
  if (format == KvFormat::kBfloat16) {
    for (int d = 0; d < head_dim; ++d) reinterpret_cast<uint16_t*>(row)[d] = bfloat_bits(value[d]);
    return;
  }
  const int groups = head_dim / kKvGroup;
  float* scales = mutable_scales(pages, format, block) + slot;
  for (int g = 0; g < groups; ++g) {
    int8_t q[kKvGroup];
    const Group group = quantize(format, value + g * kKvGroup, q);
    for (int i = 0; i < kKvGroup; ++i) {
      const int d = g * kKvGroup + i;
      if (format == KvFormat::kInt8) {
        row[d] = static_cast<uint8_t>(q[i]);
      } else {
        put_half(row[d / 16 * 8 + d % 8], d % 16 >= 8, q[i]);
      }
    }
    scales[g * pages.page] = group.scale;
    if (format == KvFormat::kInt4) scales[pages.scale_count() + g * pages.page] = group.minimum;
  }
}

}  // namespace pl
