#include "measure.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "arena.h"
#include "simd.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void on_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int id = 1; id < count; ++id) threads.emplace_back(body, id);
  body(0);
  for (auto& thread : threads) thread.join();
}

volatile int sink;

// Units a second: `pass` does `units` of work on each thread. The best of several passes, since others use the machine.
double best_rate(int threads, double units, const std::function<void(int)>& pass) {
  double best = 0;
  for (int i = 0; i < 7; ++i) {
    const auto start = Clock::now();
    on_threads(threads, pass);
    best = std::max(best, units * threads / seconds_since(start));
  }
  return best;
}

constexpr int kRounds = 1 << 20;
constexpr int kChains = 8;  // independent sums, enough to hide the latency of an instruction

}  // namespace

extern "C" {

double pl_read_bandwidth(int32_t threads) {
  const size_t share = size_t{96} << 20;
  pl::Arena arena;  // as weights lie in memory
  uint8_t* data = arena.take(share * threads);
  std::memset(data, 1, share * threads);
  const double rate = best_rate(threads, static_cast<double>(share), [&](int id) {
    const auto* p = reinterpret_cast<const __m256i*>(data + share * id);
    __m256i sums[4] = {};
    for (size_t i = 0; i < share / 32; i += 4) {
      for (int j = 0; j < 4; ++j) sums[j] = _mm256_add_epi32(sums[j], _mm256_load_si256(p + i + j));
    }
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(sums[0], sums[1]), _mm256_add_epi32(sums[2], sums[3]));
    sink = _mm256_extract_epi32(sum, 0);
  });
  return rate;
}

double pl_int8_peak(int32_t threads) {
  // maddubs makes 32 products and 16 sums, the addition to the running total 16 more.
  return best_rate(threads, 64.0 * kRounds * kChains, [](int id) {
    __m256i sums[kChains], a = _mm256_set1_epi8(static_cast<char>(id + 1)), b = _mm256_set1_epi8(3);
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    for (int round = 0; round < kRounds; ++round) {
      pl::unrolled<kChains>([&](auto i) PL_INLINE {
        // Keeps the compiler from computing one product for all.
        __asm__ volatile("" : "+x"(a));
        sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(a, b));
      });
    }
    for (auto& sum : sums) sink = _mm256_extract_epi32(sum, 0);
  });
}

double pl_float32_peak(int32_t threads) {
  return best_rate(threads, 16.0 * kRounds * kChains, [](int id) {
    __m256 sums[kChains], a = _mm256_set1_ps(id * 1e-9f), b = _mm256_set1_ps(0.999f);
    for (auto& sum : sums) sum = _mm256_setzero_ps();
    for (int round = 0; round < kRounds; ++round) {
      pl::unrolled<kChains>([&](auto i) PL_INLINE { sums[i] = _mm256_fmadd_ps(a, b, sums[i]); });
      __asm__ volatile("" : "+x"(a), "+x"(b));
    }
    for (auto& sum : sums) sink = static_cast<int>(_mm256_cvtss_f32(sum));
  });
}
}
