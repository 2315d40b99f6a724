// The latency floor of the machine: stalls of a busy thread, and the round trip of a cache line.
//
// Thread contract: stall_floor keeps the calling thread busy; ping_pong does too, and starts one more.
// Invariant: both measure with ticks() and report nanoseconds.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "qts/clock.hpp"
#include "qts/ring.hpp"
#include "qts/wait_strategy.hpp"

namespace qts {

struct StallFloor {
  std::uint64_t duration_ns = 0;
  std::uint64_t over_1us = 0;
  std::uint64_t over_20us = 0;
  std::uint64_t longest_ns = 0;
  double share_lost = 0.0;  // share of the time spent in stalls over 1 us
};

// Spins on the clock: each gap is time that the machine took from the thread.
inline StallFloor stall_floor(std::uint64_t duration_ns) {
  const TickScale scale = tick_scale();
  const std::uint64_t start = ticks(), end = start + scale.span_ticks(duration_ns);
  const std::uint64_t short_stall = scale.span_ticks(1'000), long_stall = scale.span_ticks(20'000);
  StallFloor floor;
  std::uint64_t lost = 0, longest = 0, last = start;
  while (last < end) {
    const std::uint64_t now = ticks(), gap = now - last;
    last = now;
    if (gap <= short_stall) continue;
    lost += gap;
    longest = std::max(longest, gap);
    ++floor.over_1us;
    if (gap > long_stall) ++floor.over_20us;
  }
  floor.duration_ns = scale.span_ns(last - start);
  floor.longest_ns = scale.span_ns(longest);
  floor.share_lost = last == start ? 0.0 : static_cast<double>(lost) / static_cast<double>(last - start);
  return floor;
}

// The round trip of one cache line between two threads in ns: the median of sixteen groups.
inline double ping_pong(std::uint64_t round_trips) {
  struct alignas(kLinePair) Line {
    std::atomic<std::uint64_t> word{0};
  };
  constexpr std::uint64_t kGroups = 16;
  const std::uint64_t each = std::max<std::uint64_t>(round_trips / kGroups, 1), total = each * kGroups;
  Line there, back;
  const auto await = [](const std::atomic<std::uint64_t>& word, std::uint64_t value) {
    // Yields in the end: on one core a pure spin would use up the other side's time slices.
    for (std::uint32_t spins = 0; word.load(std::memory_order_acquire) != value; ++spins)
      if (spins > 10'000) sched_yield();
  };
  std::thread other([&] {
    for (std::uint64_t i = 1; i <= total; ++i) {
      await(there.word, i);
      back.word.store(i, std::memory_order_release);
    }
  });
  const TickScale scale = tick_scale();
  std::vector<double> groups;
  for (std::uint64_t g = 0, i = 0; g < kGroups; ++g) {
    const std::uint64_t start = ticks();
    for (std::uint64_t k = 0; k < each; ++k) {
      there.word.store(++i, std::memory_order_release);
      await(back.word, i);
    }
    groups.push_back(static_cast<double>(scale.span_ns(ticks() - start)) / static_cast<double>(each));
  }
  other.join();
  std::sort(groups.begin(), groups.end());
  return groups[kGroups / 2];
}

}  // namespace qts
