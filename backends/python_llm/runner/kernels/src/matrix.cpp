#include "matrix.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "simd.h"

namespace pl {
namespace {

constexpr int kHalfBytes = kTile * 2;  // one float16 for each output of a tile

// Bytes of one block: 16 outputs x 32 inputs with their scales.
constexpr size_t block_bytes(Format format) {
  switch (format) {
    case Format::kInt4: return kTile * kGroup / 2 + 2 * kHalfBytes;
    case Format::kInt8: return kTile * kGroup + kHalfBytes;
    case Format::kInt5:
    case Format::kInt6Group16: return kTile * kGroup + 2 * kHalfBytes;
    case Format::kFloat32: return kTile * kGroup * 4;
    default: return kTile * kGroup * 2;
  }
}

Matrix allocate(Arena& arena, Format format, int n, int k) {
  Matrix matrix;
  matrix.format = format;
  matrix.n = n;
  matrix.k = k;
  matrix.tile_bytes = block_bytes(format) * (k / kGroup);
  matrix.data = arena.take(matrix.tile_bytes * matrix.tiles());
  return matrix;
}

uint16_t half_bits(float value) {
  return static_cast<uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0));
}

// Weights lie as the kernels read them: 4 inputs of 8 outputs in 32 bytes, outputs 0-7 before 8-15. For 4 bits two such
// pieces share bytes: inputs 8j..8j+3 in the low halves, 8j+4..8j+7 in the high ones.
size_t position(int output, int input) { return (input / 4) * 64 + (output / 8) * 32 + (output % 8) * 4 + input % 4; }

size_t nibble_position(int output, int input) {
  return (input / 8) * 64 + (output / 8) * 32 + (output % 8) * 4 + input % 4;
}

// One row reads each weight once, from memory: ask for what comes some blocks later.
inline void prefetch_block(const uint8_t* w, size_t bytes) {
  constexpr size_t kAhead = 2048;
  for (size_t at = 0; at < bytes; at += 64) _mm_prefetch(reinterpret_cast<const char*>(w + kAhead + at), _MM_HINT_T0);
}

// The same 4 inputs for 8 outputs, straight from memory: by way of a general register it would take three instructions.
inline __m256i broadcast4(const int8_t* four) {
  return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(four)));
}

// Keeps a running sum where it is: left alone, GCC computes all products first, parks them in memory and adds them last.
PL_INLINE inline void pin(__m256i& sum) { __asm__("" : "+x"(sum)); }

// R rows of quantised activations, k inputs each.
struct Inputs {
  const int8_t* q;
  const float* scale;
  const float* sum;
  size_t k;

  float scale_of(int row, int group) const { return scale[row * (k / kGroup) + group]; }
  float sum_of(int row, int group) const { return sum[row * (k / kGroup) + group]; }
};

// sums[r][h] (+)= 4 inputs of R rows, at `a` of row 0, times 8 * 2 outputs; the first time sums are set.
template <int R, bool kFirst>
PL_INLINE inline void add_products(const int8_t* a, size_t k, __m256i w0, __m256i w1, __m256i (&sums)[R][2]) {
  unrolled<R>([&](auto r) PL_INLINE {
    const __m256i four = broadcast4(a + r * k);
    const __m256i s0 = _mm256_maddubs_epi16(w0, four), s1 = _mm256_maddubs_epi16(w1, four);
    sums[r][0] = kFirst ? s0 : _mm256_add_epi16(sums[r][0], s0);
    sums[r][1] = kFirst ? s1 : _mm256_add_epi16(sums[r][1], s1);
    pin(sums[r][0]);
    pin(sums[r][1]);
  });
}

template <int R>
PL_INLINE inline void store(const __m256 (&acc)[R][2], float* out, size_t stride) {
  unrolled<R>([&](auto r) PL_INLINE {
    _mm256_storeu_ps(out + r * stride, acc[r][0]);
    _mm256_storeu_ps(out + r * stride + 8, acc[r][1]);
  });
}

// R rows times one tile of 4-bit weights. 8 sums of 2 products fit 16 bits: 8 * 2 * 15 * 127 = 30,480.
template <int R>
PL_KERNEL void tile_int4(const uint8_t* w, int groups, const Inputs& inputs, float* out, size_t stride) {
  const Inputs a = inputs;
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 acc[R][2];
  unrolled<R>([&](auto r) PL_INLINE { acc[r][0] = acc[r][1] = _mm256_setzero_ps(); });
  for (int g = 0; g < groups; ++g) {
    if constexpr (R == 1) prefetch_block(w, block_bytes(Format::kInt4));
    __m256i part[R][2];
    unrolled<4>([&](auto j) PL_INLINE {
      const __m256i b0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + j * 64));
      const __m256i b1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + j * 64 + 32));
      const __m256i low0 = _mm256_and_si256(b0, nibble), low1 = _mm256_and_si256(b1, nibble);
      const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(b0, 4), nibble);
      const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(b1, 4), nibble);
      const int8_t* eight = a.q + g * kGroup + j * 8;
      if (j == 0) {
        add_products<R, true>(eight, a.k, low0, low1, part);
      } else {
        add_products<R, false>(eight, a.k, low0, low1, part);
      }
      add_products<R, false>(eight + 4, a.k, high0, high1, part);
    });
    const auto* halves = reinterpret_cast<const uint16_t*>(w + 256);
    const __m256 d0 = load_half(halves), d1 = load_half(halves + 8);
    const __m256 m0 = load_half(halves + 16), m1 = load_half(halves + 24);
    unrolled<R>([&](auto r) PL_INLINE {
      const __m256 s = _mm256_set1_ps(a.scale_of(r, g)), t = _mm256_set1_ps(a.sum_of(r, g));
      const __m256 f0 = _mm256_cvtepi32_ps(_mm256_madd_epi16(part[r][0], ones));
      const __m256 f1 = _mm256_cvtepi32_ps(_mm256_madd_epi16(part[r][1], ones));
      acc[r][0] = _mm256_fmadd_ps(m0, t, _mm256_fmadd_ps(_mm256_mul_ps(f0, s), d0, acc[r][0]));
      acc[r][1] = _mm256_fmadd_ps(m1, t, _mm256_fmadd_ps(_mm256_mul_ps(f1, s), d1, acc[r][1]));
    });
    w += block_bytes(Format::kInt4);
  }
  store(acc, out, stride);
}

// What maddubs makes of 4 signed weights and 4 inputs: it wants one unsigned side, so |w| * (a with w's sign).
inline __m256i signed_products(__m256i w, __m256i magnitude, __m256i a) {
  return _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(a, w));
}

// sums[r][h] = the products of inputs [4 * kFrom, 4 * kTo) of a group, in 16 bits.
template <int R, bool kUnsigned, int kFrom, int kTo>
PL_INLINE inline void narrow_sums(const uint8_t* w, const int8_t* a, size_t k, __m256i (&sums)[R][2]) {
  unrolled<kTo - kFrom>([&](auto i) PL_INLINE {
    constexpr int j = kFrom + i;
    const __m256i w0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + j * 64));
    const __m256i w1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + j * 64 + 32));
    const __m256i u0 = _mm256_abs_epi8(w0), u1 = _mm256_abs_epi8(w1);
    unrolled<R>([&](auto r) PL_INLINE {
      const __m256i four = broadcast4(a + r * k + j * 4);
      const __m256i s0 = kUnsigned ? _mm256_maddubs_epi16(w0, four) : signed_products(w0, u0, four);
      const __m256i s1 = kUnsigned ? _mm256_maddubs_epi16(w1, four) : signed_products(w1, u1, four);
      sums[r][0] = j == kFrom ? s0 : _mm256_add_epi16(sums[r][0], s0);
      sums[r][1] = j == kFrom ? s1 : _mm256_add_epi16(sums[r][1], s1);
      pin(sums[r][0]);
      pin(sums[r][1]);
    });
  });
}

// wide (+)= narrow
template <int R, bool kFirst>
PL_INLINE inline void widen(const __m256i (&narrow)[R][2], __m256i (&wide)[R][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  unrolled<R>([&](auto r) PL_INLINE {
    const __m256i s0 = _mm256_madd_epi16(narrow[r][0], ones), s1 = _mm256_madd_epi16(narrow[r][1], ones);
    wide[r][0] = kFirst ? s0 : _mm256_add_epi32(wide[r][0], s0);
    wide[r][1] = kFirst ? s1 : _mm256_add_epi32(wide[r][1], s1);
  });
}

// The products of a whole group of signed weights, in 32 bits.
template <int R>
PL_INLINE inline void wide_sums(const uint8_t* w, const int8_t* a, size_t k, __m256i (&sums)[R][2]) {
  const __m256i ones = _mm256_set1_epi16(1);
  unrolled<8>([&](auto j) PL_INLINE {
    const __m256i w0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + j * 64));
    const __m256i w1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(w + j * 64 + 32));
    const __m256i u0 = _mm256_abs_epi8(w0), u1 = _mm256_abs_epi8(w1);
    unrolled<R>([&](auto r) PL_INLINE {
      const __m256i four = broadcast4(a + r * k + j * 4);
      const __m256i s0 = _mm256_madd_epi16(signed_products(w0, u0, four), ones);
      const __m256i s1 = _mm256_madd_epi16(signed_products(w1, u1, four), ones);
      sums[r][0] = j == 0 ? s0 : _mm256_add_epi32(sums[r][0], s0);
      sums[r][1] = j == 0 ? s1 : _mm256_add_epi32(sums[r][1], s1);
      pin(sums[r][0]);
      pin(sums[r][1]);
    });
  });
}

// acc[r][h] += sums * scale of the row * scale of the outputs
template <int R>
PL_INLINE inline void add_scaled(const __m256i (&sums)[R][2], const Inputs& a, int g, const uint16_t* d, __m256 (&acc)[R][2]) {
  const __m256 d0 = load_half(d), d1 = load_half(d + 8);
  unrolled<R>([&](auto r) PL_INLINE {
    const __m256 s = _mm256_set1_ps(a.scale_of(r, g));
    acc[r][0] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][0]), s), d0, acc[r][0]);
    acc[r][1] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][1]), s), d1, acc[r][1]);
  });
}

// R rows times one tile of weights that lie in bytes.
template <int R, Format F>
PL_KERNEL void tile_bytes(const uint8_t* w, int groups, const Inputs& inputs, float* out, size_t stride) {
  const Inputs a = inputs;
  __m256 acc[R][2];
  unrolled<R>([&](auto r) PL_INLINE { acc[r][0] = acc[r][1] = _mm256_setzero_ps(); });
  for (int g = 0; g < groups; ++g) {
    if constexpr (R == 1) prefetch_block(w, block_bytes(F));
    const int8_t* q = a.q + g * kGroup;
    const auto* halves = reinterpret_cast<const uint16_t*>(w + kTile * kGroup);
    __m256i narrow[R][2], wide[R][2];
    if constexpr (F == Format::kInt8) {
      // Not even 2 sums of 2 products fit 16 bits: 2 * 127 * 127 = 32,258.
      wide_sums(w, q, a.k, wide);
      add_scaled(wide, a, g, halves, acc);
    } else if constexpr (F == Format::kInt6Group16) {
      // 4 sums fit: 4 * 2 * 32 * 127 = 32,512.
      narrow_sums<R, false, 0, 4>(w, q, a.k, narrow);
      widen<R, true>(narrow, wide);
      add_scaled(wide, a, g, halves, acc);
      narrow_sums<R, false, 4, 8>(w, q, a.k, narrow);
      widen<R, true>(narrow, wide);
      add_scaled(wide, a, g, halves + kTile, acc);
    } else {
      static_assert(F == Format::kInt5);
      // 4 sums fit: 4 * 2 * 31 * 127 = 31,496.
      narrow_sums<R, true, 0, 4>(w, q, a.k, narrow);
      widen<R, true>(narrow, wide);
      narrow_sums<R, true, 4, 8>(w, q, a.k, narrow);
      widen<R, false>(narrow, wide);
      add_scaled(wide, a, g, halves, acc);
      const __m256 m0 = load_half(halves + kTile), m1 = load_half(halves + kTile + 8);
      unrolled<R>([&](auto r) PL_INLINE {
        const __m256 t = _mm256_set1_ps(a.sum_of(r, g));
        acc[r][0] = _mm256_fmadd_ps(m0, t, acc[r][0]);
        acc[r][1] = _mm256_fmadd_ps(m1, t, acc[r][1]);
      });
    }
    w += block_bytes(F);
  }
  store(acc, out, stride);
}

template <Format F>
inline __m256 load_weights(const uint8_t* w, int input, int half) {
  const int index = input * kTile + half * 8;
  if constexpr (F == Format::kFloat32) return _mm256_load_ps(reinterpret_cast<const float*>(w) + index);
  if constexpr (F == Format::kFloat16) return load_half(reinterpret_cast<const uint16_t*>(w) + index);
  return load_bfloat(reinterpret_cast<const uint16_t*>(w) + index);
}

template <int R, Format F>
PL_KERNEL void tile_float(const uint8_t* w, int k, const float* x, float* out, size_t stride) {
  __m256 acc[R][2];
  unrolled<R>([&](auto r) PL_INLINE { acc[r][0] = acc[r][1] = _mm256_setzero_ps(); });
  for (int i = 0; i < k; ++i) {
    const __m256 w0 = load_weights<F>(w, i, 0), w1 = load_weights<F>(w, i, 1);
    unrolled<R>([&](auto r) PL_INLINE {
      const __m256 a = _mm256_broadcast_ss(x + static_cast<size_t>(r) * k + i);
      acc[r][0] = _mm256_fmadd_ps(a, w0, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(a, w1, acc[r][1]);
    });
  }
  store(acc, out, stride);
}

template <int R>
void tile(const Matrix& matrix, const uint8_t* w, const Activations& a, int row, float* out, size_t stride) {
  const size_t k = a.k;
  const int groups = a.k / kGroup;
  const int8_t* q = a.q + row * k;
  const size_t group = static_cast<size_t>(row) * groups;
  const Inputs inputs{q, a.scale + group, a.sum + group, k};
  const float* x = a.x + row * k;
  switch (matrix.format) {
    case Format::kInt4: return tile_int4<R>(w, groups, inputs, out, stride);
    case Format::kInt8: return tile_bytes<R, Format::kInt8>(w, groups, inputs, out, stride);
    case Format::kInt5: return tile_bytes<R, Format::kInt5>(w, groups, inputs, out, stride);
    case Format::kInt6Group16: return tile_bytes<R, Format::kInt6Group16>(w, groups, inputs, out, stride);
    case Format::kFloat32: return tile_float<R, Format::kFloat32>(w, a.k, x, out, stride);
    case Format::kFloat16: return tile_float<R, Format::kFloat16>(w, a.k, x, out, stride);
    case Format::kBfloat16: return tile_float<R, Format::kBfloat16>(w, a.k, x, out, stride);
  }
}

}  // namespace

Matrix pack_integer(Arena& arena, Format format, int n, int k, const int8_t* q, const float* d, const float* m) {
  Matrix matrix = allocate(arena, format, n, k);
  const int groups = k / kGroup;
  const int parts = format == Format::kInt6Group16 ? 2 : 1;
  const size_t scales = format == Format::kInt4 ? kTile * kGroup / 2 : kTile * kGroup;
  for (int output = 0; output < n; ++output) {
    const int o = output % kTile;
    for (int g = 0; g < groups; ++g) {
      uint8_t* block = matrix.data + (output / kTile) * matrix.tile_bytes + g * block_bytes(format);
      const int8_t* source = q + static_cast<size_t>(output) * k + g * kGroup;
      for (int i = 0; i < kGroup; ++i) {
        if (format == Format::kInt4) {
          block[nibble_position(o, i)] |= static_cast<uint8_t>(source[i] << (i % 8 < 4 ? 0 : 4));
        } else {
          block[position(o, i)] = static_cast<uint8_t>(source[i]);
        }
      }
      auto* halves = reinterpret_cast<uint16_t*>(block + scales);
      const size_t index = static_cast<size_t>(output) * groups + g;
      for (int p = 0; p < parts; ++p) halves[p * kTile + o] = half_bits(d[index * parts + p]);
      if (m != nullptr) halves[kTile + o] = half_bits(m[index]);
    }
  }
  return matrix;
}

Matrix pack_float(Arena& arena, Format format, int n, int k, const void* values) {
  Matrix matrix = allocate(arena, format, n, k);
  const size_t size = format == Format::kFloat32 ? 4 : 2;
  for (int output = 0; output < n; ++output) {
    const auto* source = static_cast<const uint8_t*>(values) + static_cast<size_t>(output) * k * size;
    uint8_t* target = matrix.data + (output / kTile) * matrix.tile_bytes + (output % kTile) * size;
    for (int i = 0; i < k; ++i) std::memcpy(target + i * kTile * size, source + i * size, size);
  }
  return matrix;
}

void multiply(const Matrix& matrix, const Activations& a, int rows, float* out, size_t stride, int tile_begin,
              int tile_end) {
  for (int t = tile_begin; t < tile_end; ++t) {
    const uint8_t* w = matrix.data + t * matrix.tile_bytes;
    const int first = t * kTile, outputs = std::min(kTile, matrix.n - first);
    for (int row = 0; row < rows; row += 4) {
      const int count = std::min(4, rows - row);
      // The last tile of a matrix may be narrower than what a kernel stores.
      alignas(32) float narrow[4 * kTile];
      const bool whole = outputs == kTile;
      float* target = whole ? out + row * stride + first : narrow;
      const size_t step = whole ? stride : kTile;
      switch (count) {
        case 4: tile<4>(matrix, w, a, row, target, step); break;
        case 3: tile<3>(matrix, w, a, row, target, step); break;
        case 2: tile<2>(matrix, w, a, row, target, step); break;
        default: tile<1>(matrix, w, a, row, target, step); break;
      }
      for (int r = 0; r < count; ++r) {
        float* values = out + (row + r) * stride + first;
        if (!whole) std::memcpy(values, narrow + r * kTile, outputs * sizeof(float));
        if (!matrix.bias.empty()) {
          for (int o = 0; o < outputs; ++o) values[o] += matrix.bias[first + o];
        }
      }
    }
  }
}

}  // namespace pl
