// Thread contract: idle and reset are called by the one thread that waits; Park::wake by any thread.
// Invariant: a thread that polls, finds nothing and calls idle() polls again before it sleeps, so
// work published before a wake() is never slept through.
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

// Tells the processor that this is a spin loop.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// For a thread that owns its core.
class Spin {
 public:
  void idle() { spin_pause(); }
  void reset() {}
};

// For threads that share cores: spins a little, then lets others run.
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
  std::chrono::nanoseconds nap = std::chrono::milliseconds(1);  // the longest sleep without a wake
};

// Spins, yields, then sleeps until woken or for at most `nap`.
//
//   awake --announce--> announced --poll again, nothing--> asleep
//     ^                     |                                |
//     +------- wake() or reset() or the nap is over ---------+
//
// Both sides swap one word. Either the wake's swap comes second and sees the announcement, or it
// came first and the announcement's swap has acquired all that was published before it.
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

  // After publishing, once a batch. True if somebody was parked.
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
    timespec nap{static_cast<std::time_t>(rounds_.nap.count() / 1'000'000'000),
                 static_cast<long>(rounds_.nap.count() % 1'000'000'000)};
#if defined(__linux__)
    // Returns at once when a wake has already changed the word.
    syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kParked, &nap, nullptr, 0);
#else
    const timespec shortest{0, 50'000};
    if (state_.load(std::memory_order_acquire) == kParked)
      nanosleep(nap.tv_sec > 0 || nap.tv_nsec > shortest.tv_nsec ? &shortest : &nap, nullptr);
#endif
  }

  ParkRounds rounds_;
  std::uint32_t round_ = 0;
  bool announced_ = false;
  alignas(128) std::atomic<std::uint32_t> state_{kAwake};
};

}  // namespace qts
