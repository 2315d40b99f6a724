// Wait strategies: how a polling thread waits when there is nothing to do.
//
// Thread contract: idle and reset are called by the one thread that waits; Park::wake by any thread.
// Invariant: a thread that polls, finds nothing and calls idle() polls once more before it sleeps, so
// it never sleeps while there is work that was published before a wake().
//
//   while (running) { if (poll() != 0) wait.reset(); else wait.idle(); }
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace qts {

// Hint to the processor that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// For a thread with a core to itself.
class Spin {
 public:
  void idle() { spin_pause(); }
  void reset() {}
};

// For threads that share cores: spins for some rounds, then yields the core.
class SpinYield {
 public:
  explicit SpinYield(std::uint32_t spins = 100) : spins_(spins) {}
  void idle() {
    if (round_ < spins_) {
      ++round_;
      spin_pause();
    } else {
      sched_yield();
    }
  }
  void reset() { round_ = 0; }

 private:
  std::uint32_t spins_;
  std::uint32_t round_ = 0;
};

struct ParkRounds {
  std::uint32_t spins = 100;
  std::uint32_t yields = 20;
  std::chrono::nanoseconds max_sleep = std::chrono::milliseconds(1);  // the longest sleep without a wake
};

// Spins, yields, then sleeps until woken or for at most `max_sleep`.
//
//   awake --announce--> announced --second poll is empty--> asleep
//     ^                     |                                |
//     +------ wake() or reset() or max_sleep has passed -----+
//
// Both sides exchange one word. Either the exchange of wake() comes second and reads the announcement,
// or it came first and the announcing exchange has acquired everything published before it.
class Park {
 public:
  explicit Park(ParkRounds rounds = {}) : rounds_(rounds) {}
  Park(const Park&) = delete;
  Park& operator=(const Park&) = delete;

  void idle() {
    ++round_;
    if (round_ <= rounds_.spins) {
      spin_pause();
    } else if (round_ <= rounds_.spins + rounds_.yields) {
      sched_yield();
    } else if (!announced_) {
      announced_ = true;
      state_.exchange(kParked, std::memory_order_acq_rel);
    } else {
      sleep();
      announced_ = false;
      round_ = rounds_.spins;
      state_.store(kAwake, std::memory_order_relaxed);
    }
  }

  void reset() {
    round_ = 0;
    if (announced_) {
      announced_ = false;
      state_.store(kAwake, std::memory_order_relaxed);
    }
  }

  // Call after publishing, once per batch. Returns whether the thread was parked.
  bool wake() {
    if (state_.exchange(kAwake, std::memory_order_acq_rel) != kParked) return false;
#if defined(__linux__)
    syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
#endif
    return true;
  }

 private:
  static constexpr std::uint32_t kAwake = 0;
  static constexpr std::uint32_t kParked = 1;
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

  void sleep() {
    timespec timeout{static_cast<std::time_t>(rounds_.max_sleep.count() / 1'000'000'000),
                     static_cast<long>(rounds_.max_sleep.count() % 1'000'000'000)};
#if defined(__linux__)
    // Returns at once when wake() has already changed the word.
    syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kParked, &timeout, nullptr, 0);
#else
    const timespec shortest{0, 50'000};
    if (state_.load(std::memory_order_acquire) == kParked)
      nanosleep(timeout.tv_sec > 0 || timeout.tv_nsec > shortest.tv_nsec ? &shortest : &timeout, nullptr);
#endif
  }

  ParkRounds rounds_;
  std::uint32_t round_ = 0;
  bool announced_ = false;
  alignas(128) std::atomic<std::uint32_t> state_{kAwake};
};

}  // namespace qts
