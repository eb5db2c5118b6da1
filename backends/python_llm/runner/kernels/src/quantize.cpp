#include "quantize.h"

#include <immintrin.h>

#include "simd.h"

namespace pl {

void quantize_row(const float* x, int k, int8_t* q, float* scale, float* sum) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int g = 0; g < k / kGroup; ++g) {
    __m256 v[4], largest = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + g * kGroup + i * 8);
      largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, v[i]));
    }
    const float top = max_lanes(largest);
    const __m256 inverse = _mm256_set1_ps(top > 0 ? 127.0f / top : 0.0f);
    __m256i total = _mm256_setzero_si256(), whole[4];
    for (int i = 0; i < 4; ++i) {
      whole[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
      total = _mm256_add_epi32(total, whole[i]);
    }
    const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + g * kGroup), bytes);
    alignas(32) int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), total);
    int count = 0;
    for (int lane : lanes) count += lane;
    scale[g] = top / 127.0f;
    sum[g] = scale[g] * static_cast<float>(count);
  }
}

}  // namespace pl
