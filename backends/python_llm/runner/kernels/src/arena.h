// Memory for a model's weights, in huge pages where the system gives them: a step reads all of it, and with pages of 4 KB
// the CPU would look up tens of thousands of addresses. Given back as a whole. Does not know what lies in it.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace pl {

class Arena {
 public:
  // `bytes` bytes, zeroed, aligned to 64. Throws std::bad_alloc.
  uint8_t* take(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > left_) {
      const size_t size = (std::max(bytes, kChunk) + kHugePage - 1) / kHugePage * kHugePage;
      auto* chunk = static_cast<uint8_t*>(mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      if (chunk == MAP_FAILED) throw std::bad_alloc();
      chunks_.push_back({chunk, size + kHugePage});
      next_ = chunk + (kHugePage - reinterpret_cast<uintptr_t>(chunk) % kHugePage) % kHugePage;
      left_ = size;
      // Only a wish: without huge pages all works the same.
      madvise(next_, size, MADV_HUGEPAGE);
    }
    uint8_t* taken = next_;
    next_ += bytes;
    left_ -= bytes;
    return taken;
  }

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    for (const Chunk& chunk : chunks_) munmap(chunk.data, chunk.size);
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20, kChunk = size_t{32} << 20;
  struct Chunk {
    void* data;
    size_t size;
  };

  std::vector<Chunk> chunks_;
  uint8_t* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace pl
