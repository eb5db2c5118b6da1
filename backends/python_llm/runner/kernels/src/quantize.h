// Floats -> whole numbers in groups that share a scale. Does not know what they are.
#pragma once

#include <cstdint>

namespace pl {

constexpr int kGroup = 32;  // elements that share a scale

// Quantises one row: per group of 32, scale = largest magnitude / 127. q: [k], in [-127, 127]; scale, sum: [k / 32], sum
// being scale * sum of q.
void quantize_row(const float* x, int k, int8_t* q, float* scale, float* sum);

}  // namespace pl
