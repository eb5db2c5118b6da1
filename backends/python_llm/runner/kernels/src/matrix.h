// Weight matrices packed for the multiply kernels, activations quantised for them, and their product.
//
// A matrix of n outputs and k inputs is cut into tiles of 16 outputs; within a tile the inputs come in blocks of 32. What
// a weight is worth is d * q + m, with d and m (float16) shared by the inputs of one output's group.
// Does not know layers, threads, or file formats: the loader hands over q, d and m.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "quantize.h"

namespace pl {

constexpr int kTile = 16;  // outputs

enum class Format : int {
  kInt4 = 0,         // q in [0, 15], groups of 32, d and m
  kInt8 = 1,         // q in [-127, 127], groups of 32, d
  kInt5 = 2,         // q in [0, 31], in a byte, groups of 32, d and m
  kInt6Group16 = 3,  // q in [-32, 31], in a byte, groups of 16, d
  kFloat32 = 4,
  kFloat16 = 5,
  kBfloat16 = 6,
};

inline bool is_integer(Format format) { return format < Format::kFloat32; }

struct Matrix {
  Format format = Format::kFloat32;
  int n = 0, k = 0;
  std::vector<float> bias;   // [n] or empty
  uint8_t* data = nullptr;   // in the arena that it was packed into
  size_t tile_bytes = 0;

  int tiles() const { return (n + kTile - 1) / kTile; }
};

// q: [n, k] int8 (or uint8 for kInt4); d: [n, k / group] float32; m the same or null. k must be a multiple of 32.
Matrix pack_integer(Arena& arena, Format format, int n, int k, const int8_t* q, const float* d, const float* m);

// values: [n, k] of 4 bytes (kFloat32) or 2.
Matrix pack_float(Arena& arena, Format format, int n, int k, const void* values);

// Rows of activations in both forms that kernels read. Rows do not depend on each other.
struct Activations {
  int k = 0;
  const float* x = nullptr;      // [rows, k]
  const int8_t* q = nullptr;     // [rows, k], in [-127, 127]
  const float* scale = nullptr;  // [rows, k / 32]
  const float* sum = nullptr;    // [rows, k / 32]: scale * sum of q
};

// out[row * stride + output] = a[row] . matrix[output] (+ bias) for outputs of tiles [tile_begin, tile_end).
// An element's value depends on its row and its output alone, not on how many rows there are.
void multiply(const Matrix& matrix, const Activations& a, int rows, float* out, size_t stride, int tile_begin,
              int tile_end);

}  // namespace pl
