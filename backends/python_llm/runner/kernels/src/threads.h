// A pool of threads that run one function together and meet at barriers inside it.
//
// A waiting thread spins for some microseconds, since the next piece of work is usually that near, and then sleeps in the
// kernel, so that it does not take a core from the server or from another model. Does not know what it runs.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace pl {

// A 32-bit word that threads wait on until it changes.
class Signal {
 public:
  uint32_t value() const { return word_.load(std::memory_order_acquire); }

  void raise() {
    word_.fetch_add(1, std::memory_order_release);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
    }
  }

  void wait_while(uint32_t seen, int spins) {
    for (int i = 0; i < spins; ++i) {
      if (value() != seen) return;
      __builtin_ia32_pause();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == seen) {
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<uint32_t> word_{0};
  std::atomic<int> sleepers_{0};
};

class ThreadPool {
 public:
  explicit ThreadPool(int count) : count_(count) {
    for (int id = 1; id < count; ++id) threads_.emplace_back([this, id] { work(id); });
  }

  ~ThreadPool() {
    stopping_ = true;
    start_.raise();
    for (auto& thread : threads_) thread.join();
  }

  int count() const { return count_; }

  // Runs task(thread id) on every thread, the caller being thread 0, and returns when all are done.
  void run(const std::function<void(int)>& task) {
    task_ = &task;
    start_.raise();
    task(0);
    barrier();
  }

  // Every thread of a running task must call it; none goes on before all have.
  void barrier() {
    if (count_ == 1) return;
    const uint32_t seen = met_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      met_.raise();
    } else {
      met_.wait_while(seen, kBarrierSpins);
    }
  }

 private:
  static constexpr int kBarrierSpins = 2000;
  static constexpr int kIdleSpins = 200;

  void work(int id) {
    uint32_t seen = 0;
    while (true) {
      start_.wait_while(seen, kIdleSpins);
      seen = start_.value();
      if (stopping_) return;
      (*task_)(id);
      barrier();
    }
  }

  const int count_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* task_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<int> arrived_{0};
  Signal start_, met_;
};

// Hands out [0, total) in pieces of `step` to whoever asks next.
class Tickets {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }

  template <typename Body>
  void each(int total, int step, Body body) {
    while (true) {
      const int begin = next_.fetch_add(step, std::memory_order_relaxed);
      if (begin >= total) return;
      body(begin, begin + step < total ? begin + step : total);
    }
  }

 private:
  alignas(64) std::atomic<int> next_{0};
};

}  // namespace pl
