// A worker: one thread that polls its components, the last of the pipeline first.
//
// Thread contract: `run` is the thread; everything else is for the thread that steers it.
//
//   running --pause()--> asked --the thread's next round--> resting --resume()--> running
//      |
//      +--halt()--> stopped (for good)
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

#include "qts/flow.hpp"
#include "qts/wait.hpp"

namespace qts {

enum class Wait : std::uint8_t { spin, yield, park };

// What a thread needs around its life, such as a Python thread state.
struct ThreadHooks {
  std::function<void()> begin;
  std::function<void()> end;
};

class Worker {
 public:
  Worker(std::size_t number, int on_cpu, Wait wait) : id(number), cpu(on_cpu), wait_(wait) {}

  void set_hooks(ThreadHooks hooks) { hooks_ = std::move(hooks); }

  // Before the start, or while it rests. Components are given in pipeline order.
  void add(Component& component) { components_.insert(components_.begin(), &component); }
  void remove(Component& component) { std::erase(components_, &component); }

  void run() {
    pinned_.store(pin(), std::memory_order_relaxed);
    if (hooks_.begin) hooks_.begin();
    switch (wait_) {
      case Wait::spin: loop(Spin{}); break;
      case Wait::yield: loop(SpinYield{1000}); break;
      case Wait::park: loop_parked(); break;
    }
    if (hooks_.end) hooks_.end();
    current_.store(nullptr, std::memory_order_relaxed);
    stopped_.store(true, std::memory_order_release);
  }

  void wake() {
    if (wait_ == Wait::park) park_.wake();
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
  bool resting() const { return resting_.load(std::memory_order_acquire) || stopped(); }
  bool pinned() const { return pinned_.load(std::memory_order_relaxed); }
  Park* sleeper() { return wait_ == Wait::park ? &park_ : nullptr; }
  // What it is doing, or last did; null before and after.
  const Component* current() const { return current_.load(std::memory_order_relaxed); }

  const std::size_t id;
  const int cpu;  // -1: anywhere

 private:
  template <class Strategy>
  void loop(Strategy&& wait) {
    while (!halt_.load(std::memory_order_relaxed)) {
      if (pause_.load(std::memory_order_relaxed)) rest();
      if (round() != 0) wait.reset();
      else wait.idle();
    }
  }
  void loop_parked() { loop(park_); }

  std::size_t round() {
    std::size_t moved = 0;
    for (Component* component : components_) {
      current_.store(component, std::memory_order_relaxed);
      moved += component->poll();
    }
    return moved;
  }

  void rest() {
    resting_.store(true, std::memory_order_release);
    while (pause_.load(std::memory_order_acquire) && !halt_.load(std::memory_order_relaxed))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    resting_.store(false, std::memory_order_release);
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

  const Wait wait_;
  Park park_{ParkRounds{.spins = 1000, .yields = 100}};
  ThreadHooks hooks_;
  std::vector<Component*> components_;  // last of the pipeline first
  std::atomic<const Component*> current_{nullptr};
  std::atomic<bool> halt_{false}, pause_{false}, resting_{false}, stopped_{false}, pinned_{false};
};

}  // namespace qts
