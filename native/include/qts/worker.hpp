// Worker: one thread that polls its components, the last of the pipeline first.
//
// Thread contract: `run` is the thread's body; every other method is for the one thread that controls it.
//
//   running --pause()--> pausing --the thread's next round--> paused --resume()--> running
//      |
//      +--halt()--> stopped (final)
#pragma once

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "qts/component.hpp"
#include "qts/wait_strategy.hpp"

namespace qts {

enum class WaitStrategy : std::uint8_t { spin, yield, park };

// Called on the worker's thread at its start and end, e.g. to release a Python thread state.
struct ThreadHooks {
  std::function<void()> begin;
  std::function<void()> end;
};

class Worker {
 public:
  Worker(std::size_t number, int on_cpu, WaitStrategy wait) : id(number), cpu(on_cpu), wait_(wait) {}

  void set_hooks(ThreadHooks hooks) { hooks_ = std::move(hooks); }

  // Before the start, or while paused. Components are added in pipeline order.
  void add(Component& component) { components_.insert(components_.begin(), &component); }
  void remove(Component& component) { std::erase(components_, &component); }

  void run() {
    pinned_.store(pin(), std::memory_order_relaxed);
    if (hooks_.begin) hooks_.begin();
    switch (wait_) {
      case WaitStrategy::spin: loop(Spin{}); break;
      case WaitStrategy::yield: loop(SpinYield{1000}); break;
      case WaitStrategy::park: loop_parked(); break;
    }
    if (hooks_.end) hooks_.end();
    current_.store(nullptr, std::memory_order_relaxed);
    stopped_.store(true, std::memory_order_release);
  }

  void wake() {
    if (wait_ == WaitStrategy::park) park_.wake();
  }
  void halt() {
    halt_.store(true, std::memory_order_relaxed);
    wake();
  }
  void pause() {
    pause_.store(true, std::memory_order_release);
    wake();
  }
  void resume() { pause_.store(false, std::memory_order_release); }

  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  bool paused() const { return paused_.load(std::memory_order_acquire) || stopped(); }
  bool pinned() const { return pinned_.load(std::memory_order_relaxed); }
  Park* park() { return wait_ == WaitStrategy::park ? &park_ : nullptr; }
  // The component that is being polled, or was last; null before the start and after the end.
  const Component* current() const { return current_.load(std::memory_order_relaxed); }

  const std::size_t id;
  const int cpu;  // -1: any

 private:
  template <class Strategy>
  void loop(Strategy&& wait) {
    while (!halt_.load(std::memory_order_relaxed)) {
      if (pause_.load(std::memory_order_relaxed)) wait_until_resumed();
      if (poll_all() != 0) wait.reset();
      else wait.idle();
    }
  }
  void loop_parked() { loop(park_); }

  std::size_t poll_all() {
    std::size_t moved = 0;
    for (Component* component : components_) {
      current_.store(component, std::memory_order_relaxed);
      moved += component->poll();
    }
    return moved;
  }

  void wait_until_resumed() {
    paused_.store(true, std::memory_order_release);
    while (pause_.load(std::memory_order_acquire) && !halt_.load(std::memory_order_relaxed))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    paused_.store(false, std::memory_order_release);
  }

  bool pin() const {
#if defined(__linux__)
    if (cpu < 0) return false;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(cpu), &set);
    return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
#else
    return false;
#endif
  }

  const WaitStrategy wait_;
  Park park_{ParkRounds{.spins = 1000, .yields = 100}};
  ThreadHooks hooks_;
  std::vector<Component*> components_;  // last of the pipeline first
  std::atomic<const Component*> current_{nullptr};
  std::atomic<bool> halt_{false}, pause_{false}, paused_{false}, stopped_{false}, pinned_{false};
};

}  // namespace qts
