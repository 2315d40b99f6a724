// LaneLock: a priority lock that lets one worker of P1 to P3 at a time run Python, the highest lane first.
//
// CPython has one lock for all threads; four workers that compete for it make P0 wait behind up to four
// of them. With this lock at most one worker competes with P0.
//
//     waiting --free, no higher lane waits--> owner --release()--> waiting
//       owner --its handler sleeps (no CPU for 20 ms), another waiter--> handed over
//       owner --its event takes > 200 ms, another waiter--> handed over
//       owner --its event takes > 5 ms, a higher lane waits--> overtaken
//   overtaken --the overtaking worker releases--> owner
// handed over --its handler returns--> waiting
//
// Thread contract: each Waiter belongs to one thread, and only that thread calls acquire, renew and
// release with it.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <vector>

#include "qts/clock.hpp"

namespace qts {

class LaneLock {
 public:
  static constexpr std::size_t kLanes = 4;
  // How long an event may take before it overruns: whatever it does, others then run beside it.
  static constexpr std::uint64_t kOverrunNs = 200'000'000;

  struct Waiter {
    std::uint8_t lane = 0;
    std::atomic<std::uint64_t> event_began{0};  // ticks; 0: between events
    // Guarded by the lock's mutex.
    bool has_cpu_clock = false;
    std::uint64_t cpu_seen = 0, cpu_seen_at = 0;
#if defined(__linux__)
    clockid_t cpu_clock{};
#endif
    // Called once on the waiter's thread.
    void use_this_thread() {
#if defined(__linux__)
      has_cpu_clock = pthread_getcpuclockid(pthread_self(), &cpu_clock) == 0;
#endif
    }
  };

  // `overtake_after_ns`: how long an event may take before a higher lane overtakes it.
  // `hand_over_after_ns`: how long an owner may use no CPU before its lock is handed over.
  LaneLock(std::uint64_t overtake_after_ns, std::uint64_t hand_over_after_ns) {
    const TickScale scale = tick_scale();
    overtake_after_ = scale.span_ticks(overtake_after_ns);
    hand_over_after_ = scale.span_ticks(hand_over_after_ns);
    overrun_after_ = scale.span_ticks(kOverrunNs);
  }

  // Waits for the lock; returns false when `stop` was set first.
  bool acquire(Waiter& waiter, const std::atomic<bool>& stop) {
    std::unique_lock hold(mutex_);
    waiting_[waiter.lane].fetch_add(1, std::memory_order_relaxed);
    while (!stop.load(std::memory_order_relaxed) && !try_acquire(waiter))
      released_.wait_for(hold, std::chrono::milliseconds(1));
    waiting_[waiter.lane].fetch_sub(1, std::memory_order_relaxed);
    return owner_ == &waiter;
  }

  // Between events: starts the next event at `now`, and returns whether the waiter still owns the lock.
  bool renew(Waiter& waiter, std::uint64_t now) {
    waiter.event_began.store(now, std::memory_order_relaxed);
    if (owner_.load(std::memory_order_relaxed) == &waiter) [[likely]]
      return true;
    const std::lock_guard hold(mutex_);
    std::erase(overtaken_, &waiter);
    return owner_ == &waiter;
  }

  void release(Waiter& waiter) {
    {
      const std::lock_guard hold(mutex_);
      waiter.event_began.store(0, std::memory_order_relaxed);
      std::erase(overtaken_, &waiter);
      if (owner_ != &waiter) return;
      owner_ = nullptr;
      if (!overtaken_.empty()) {
        owner_ = overtaken_.back();
        overtaken_.pop_back();
      }
    }
    released_.notify_all();
  }

  // Whether a worker of a higher lane waits for the lock.
  bool higher_lane_waits(std::uint8_t lane) const {
    for (std::uint8_t higher = 0; higher < lane; ++higher)
      if (waiting_[higher].load(std::memory_order_relaxed) != 0) return true;
    return false;
  }

  // The owner; null: the lock is free.
  const Waiter* owner() const { return owner_.load(std::memory_order_relaxed); }

  // The waiter that is in an event: the owner, or the last one overtaken; null: none. Never blocks.
  const Waiter* in_event() const {
    const Waiter* now = owner();
    if (now != nullptr && now->event_began.load(std::memory_order_relaxed) != 0) return now;
    const std::unique_lock hold(mutex_, std::try_to_lock);
    return !hold || overtaken_.empty() ? nullptr : overtaken_.back();
  }

  std::uint64_t handed_over() const { return handed_over_.load(std::memory_order_relaxed); }
  std::uint64_t overtaken() const { return overtaken_count_.load(std::memory_order_relaxed); }

 private:
  bool try_acquire(Waiter& waiter) {
    if (higher_lane_waits(waiter.lane)) return false;
    if (owner_ == nullptr) return own(waiter);
    Waiter& owner = *owner_.load(std::memory_order_relaxed);
    const std::uint64_t began = owner.event_began.load(std::memory_order_relaxed);
    const std::uint64_t now = ticks();
    if (began == 0 || now < began) return false;
    if (now - began > overrun_after_ || is_asleep(owner, began, now)) {
      handed_over_.fetch_add(1, std::memory_order_relaxed);
      return own(waiter);
    }
    if (owner.lane > waiter.lane && now - began > overtake_after_) {
      overtaken_.push_back(&owner);
      overtaken_count_.fetch_add(1, std::memory_order_relaxed);
      return own(waiter);
    }
    return false;
  }

  bool own(Waiter& waiter) {
    owner_ = &waiter;
    return true;
  }

  // Whether the owner's thread has used no CPU for a while: its handler waits for something outside Python.
  bool is_asleep(Waiter& owner, std::uint64_t began, std::uint64_t now) const {
    std::uint64_t used = 0;
#if defined(__linux__)
    timespec cpu{};
    if (!owner.has_cpu_clock || clock_gettime(owner.cpu_clock, &cpu) != 0) return false;
    used = static_cast<std::uint64_t>(cpu.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(cpu.tv_nsec);
#endif
    if (owner.cpu_seen_at < began || used > owner.cpu_seen + kIdleCpuNs) {
      owner.cpu_seen = used;
      owner.cpu_seen_at = now;
      return false;
    }
    return now - owner.cpu_seen_at > hand_over_after_;
  }

  static constexpr std::uint64_t kIdleCpuNs = 100'000;

  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::atomic<Waiter*> owner_{nullptr};  // written under the mutex
  std::vector<Waiter*> overtaken_;
  std::array<std::atomic<int>, kLanes> waiting_{};
  std::atomic<std::uint64_t> handed_over_{0}, overtaken_count_{0};
  std::uint64_t overtake_after_ = 0, hand_over_after_ = 0, overrun_after_ = 0;
};

}  // namespace qts
