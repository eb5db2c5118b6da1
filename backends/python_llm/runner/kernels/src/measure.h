// What this machine can do at best: the limits that the kernels are held against. Plain C interface.
#pragma once

#include <cstdint>

extern "C" {
// Bytes a second that `threads` threads read together from memory far larger than the caches; the best of a few passes.
double pl_read_bandwidth(int32_t threads);
// Multiplications and additions a second, of 8-bit whole numbers the way the kernels multiply them, and of float32.
double pl_int8_peak(int32_t threads);
double pl_float32_peak(int32_t threads);
}
