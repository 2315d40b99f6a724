// Who of the lower lanes' workers may run Python: one at a time, the highest lane first.
//
// CPython has one lock for all threads; four workers that compete for it make P0 wait in a queue
// of four. Behind this turn at most one of them competes with P0.
//
//   waiting --free, nobody above waits--> owner --release--> waiting
//               owner --its handler sleeps (no CPU for 20 ms), somebody waits--> lent: the turn goes on
//               owner --its event takes > 5 ms, a higher lane waits--> overtaken
//           overtaken --the overtaker releases--> owner again
//                lent --its handler returns--> waiting
//
// Thread contract: each Seat belongs to one thread, which alone calls take, keep and leave with it.
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

class Turn {
 public:
  static constexpr std::size_t kLanes = 4;

  struct Seat {
    std::uint8_t lane = 0;
    std::atomic<std::uint64_t> event_began{0};  // ticks; 0: between events
    // Guarded by the turn's lock.
    bool sits = false;  // its thread has begun and not ended
    std::uint64_t cpu_seen = 0, cpu_seen_at = 0;
#if defined(__linux__)
    clockid_t cpu_clock{};
#endif
    void sit() {
#if defined(__linux__)
      sits = pthread_getcpuclockid(pthread_self(), &cpu_clock) == 0;
#endif
    }
  };

  Turn(std::uint64_t patience_ns, std::uint64_t sleep_ns) {
    const TickScale scale = tick_scale();
    patience_ = scale.span_ticks(patience_ns);
    sleep_ = scale.span_ticks(sleep_ns);
  }

  // Waits for the turn; false when `stop` came first.
  bool take(Seat& seat, const std::atomic<bool>& stop) {
    std::unique_lock hold(lock_);
    above_[seat.lane].fetch_add(1, std::memory_order_relaxed);
    while (!stop.load(std::memory_order_relaxed) && !try_take(seat))
      free_.wait_for(hold, std::chrono::milliseconds(1));
    above_[seat.lane].fetch_sub(1, std::memory_order_relaxed);
    return owner_ == &seat;
  }

  // Between events: is the turn still this seat's? The next event, if any, begins now.
  bool keep(Seat& seat, std::uint64_t now) {
    seat.event_began.store(now, std::memory_order_relaxed);
    if (owner_.load(std::memory_order_relaxed) == &seat) [[likely]]
      return true;
    const std::lock_guard hold(lock_);
    std::erase(overtaken_, &seat);
    return owner_ == &seat;
  }

  void leave(Seat& seat) {
    {
      const std::lock_guard hold(lock_);
      seat.event_began.store(0, std::memory_order_relaxed);
      std::erase(overtaken_, &seat);
      if (owner_ != &seat) return;
      owner_ = nullptr;
      if (!overtaken_.empty()) {
        owner_ = overtaken_.back();
        overtaken_.pop_back();
      }
    }
    free_.notify_all();
  }

  // A worker of a higher lane waits for the turn.
  bool wanted_above(std::uint8_t lane) const {
    for (std::uint8_t higher = 0; higher < lane; ++higher)
      if (above_[higher].load(std::memory_order_relaxed) != 0) return true;
    return false;
  }

  // Whose turn it is; null: nobody's.
  const Seat* owner() const { return owner_.load(std::memory_order_relaxed); }

  // Who is in an event: the owner, or whom it has overtaken and still waits for; null: nobody. Never waits.
  const Seat* at_work() const {
    const Seat* now = owner();
    if (now != nullptr && now->event_began.load(std::memory_order_relaxed) != 0) return now;
    const std::unique_lock hold(lock_, std::try_to_lock);
    return !hold || overtaken_.empty() ? nullptr : overtaken_.back();
  }

  std::uint64_t times_lent() const { return lent_.load(std::memory_order_relaxed); }
  std::uint64_t times_overtaken() const { return overtook_.load(std::memory_order_relaxed); }

 private:
  bool try_take(Seat& seat) {
    if (wanted_above(seat.lane)) return false;
    if (owner_ == nullptr) return own(seat);
    Seat& owner = *owner_.load(std::memory_order_relaxed);
    const std::uint64_t began = owner.event_began.load(std::memory_order_relaxed);
    const std::uint64_t now = ticks();
    if (began == 0 || now < began) return false;
    if (asleep(owner, began, now)) {
      lent_.fetch_add(1, std::memory_order_relaxed);
      return own(seat);
    }
    if (owner.lane > seat.lane && now - began > patience_) {
      overtaken_.push_back(&owner);
      overtook_.fetch_add(1, std::memory_order_relaxed);
      return own(seat);
    }
    return false;
  }

  bool own(Seat& seat) {
    owner_ = &seat;
    return true;
  }

  // Its thread has used no CPU for a while: the handler waits for something that is not Python.
  bool asleep(Seat& owner, std::uint64_t began, std::uint64_t now) const {
    std::uint64_t used = 0;
#if defined(__linux__)
    timespec cpu{};
    if (!owner.sits || clock_gettime(owner.cpu_clock, &cpu) != 0) return false;
    used = static_cast<std::uint64_t>(cpu.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(cpu.tv_nsec);
#endif
    if (owner.cpu_seen_at < began || used > owner.cpu_seen + kIdleCpuNs) {
      owner.cpu_seen = used;
      owner.cpu_seen_at = now;
      return false;
    }
    return now - owner.cpu_seen_at > sleep_;
  }

  static constexpr std::uint64_t kIdleCpuNs = 100'000;

  mutable std::mutex lock_;
  std::condition_variable free_;
  std::atomic<Seat*> owner_{nullptr};  // written under the lock
  std::vector<Seat*> overtaken_;
  std::array<std::atomic<int>, kLanes> above_{};
  std::atomic<std::uint64_t> lent_{0}, overtook_{0};
  std::uint64_t patience_ = 0, sleep_ = 0;
};

}  // namespace qts
