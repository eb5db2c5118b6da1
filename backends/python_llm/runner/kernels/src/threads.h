// A pool of threads that run one function together, phase after phase.
//
// A phase is over when all its pieces of work are done, not when all threads have come by: where cores are scarce, a thread
// that the system has put aside holds nobody up unless it holds a piece. A waiting thread spins for some microseconds,
// since the end of a phase is usually that near, and then sleeps in the kernel, so that it does not take a core from the
// server or from another model. Does not know what it runs.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
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
  // Throws std::system_error where the system gives no more threads.
  explicit ThreadPool(int count) : count_(count) {
    try {
      for (int id = 1; id < count; ++id) threads_.emplace_back([this, id] { work(id); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~ThreadPool() {
    settle();
    stop();
  }

  int count() const { return count_; }

  // Waits until no thread is inside the last task. Until then what the task reads must stay as it is.
  void settle() {
    open_.store(false);
    while (true) {
      const uint32_t seen = left_.value();
      if (inside_.load() == 0) return;
      left_.wait_while(seen, kSpins);
    }
  }

  // Runs task(thread id) on the caller, thread 0, and on whichever other threads get to it in time; returns when the
  // caller is through. Call `settle` first.
  void run(std::function<void(int)> task) {
    task_ = std::move(task);
    open_.store(true);
    start_.raise();
    task_(0);
  }

 private:
  static constexpr int kSpins = 1000;
  static constexpr int kIdleSpins = 200;

  void stop() {
    stopping_ = true;
    start_.raise();
    for (auto& thread : threads_) thread.join();
  }

  void work(int id) {
    uint32_t seen = 0;
    while (true) {
      start_.wait_while(seen, kIdleSpins);
      seen = start_.value();
      if (stopping_) return;
      // First in, then a look at the door: whoever closes it sees us, or we see it closed.
      inside_.fetch_add(1);
      if (open_.load()) task_(id);
      inside_.fetch_sub(1);
      left_.raise();
    }
  }

  const int count_;
  std::vector<std::thread> threads_;
  std::function<void(int)> task_;
  std::atomic<bool> stopping_{false}, open_{false};
  std::atomic<int> inside_{0};
  Signal start_, left_;
};

// The pieces of one phase.
class Phase {
 public:
  // Called by every thread of a task: works on pieces [begin, end) of [0, total), at most `step` long, until none is left,
  // then waits until the others have finished theirs.
  template <typename Body>
  void share(int total, int step, Body body) {
    while (true) {
      const int begin = next_.fetch_add(step, std::memory_order_relaxed);
      if (begin >= total) break;
      const int end = begin + step < total ? begin + step : total;
      body(begin, end);
      if (done_.fetch_add(end - begin, std::memory_order_acq_rel) + (end - begin) == total) over_.raise();
    }
    while (true) {
      const uint32_t seen = over_.value();
      if (done_.load(std::memory_order_acquire) >= total) return;
      over_.wait_while(seen, kSpins);
    }
  }

 private:
  static constexpr int kSpins = 1000;

  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> done_{0};
  Signal over_;
};

}  // namespace pl
