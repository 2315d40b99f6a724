// The clock of the core: a fast tick counter, and its conversion to nanoseconds of CLOCK_MONOTONIC.
//
// Thread contract: every function may be called from any thread at any time.
// Invariant: ticks() never costs more than one predictable branch over reading the counter; ticks are
// converted to nanoseconds in integer arithmetic.
//
// The counter is the x86-64 time stamp counter where the processor reports it as invariant (one
// rate on all cores, also in sleep states); elsewhere a tick is a nanosecond of CLOCK_MONOTONIC.
// Reading it is not ordered with the surrounding instructions: it is exact to a few nanoseconds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <mutex>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace qts {

inline std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

inline bool tsc_is_invariant() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1u << 8)) != 0;
#else
  return false;
#endif
}

inline const bool kTicksAreTsc = tsc_is_invariant();

inline const char* clock_source() { return kTicksAreTsc ? "tsc" : "clock_monotonic"; }

inline std::uint64_t ticks() {
#if defined(__x86_64__)
  if (kTicksAreTsc) [[likely]]
    return __rdtsc();
#endif
  return monotonic_ns();
}

// One point in time on both clocks, and how many ticks apart the two readings may be.
struct ClockPair {
  std::uint64_t ticks;
  std::uint64_t ns;
  std::uint64_t width;

  // The narrowest of many: an interrupt between the readings makes a pair wide.
  static ClockPair sample(int tries = 64) {
    ClockPair best{0, 0, UINT64_MAX};
    for (int i = 0; i < tries; ++i) {
      const std::uint64_t before = qts::ticks();
      const std::uint64_t ns = monotonic_ns();
      const std::uint64_t width = qts::ticks() - before;
      if (width < best.width) best = {before + width / 2, ns, width};
    }
    return best;
  }
};

// Linear conversion through two pairs: ns = anchor.ns + (ticks - anchor.ticks) * rate.
class TickScale {
 public:
  TickScale(ClockPair first, ClockPair last) : first_(first), anchor_(last) {
    const std::uint64_t span = std::max<std::uint64_t>(last.ticks - first.ticks, 1);
    const std::uint64_t ns = std::max<std::uint64_t>(last.ns - first.ns, 1);
    rate_ = kTicksAreTsc ? static_cast<std::uint64_t>((static_cast<Wide>(ns) << kBits) / span) : kOne;
    if (!kTicksAreTsc) anchor_ = ClockPair{0, 0, 0};
  }

  // Accurate to some hundred nanoseconds; `refined` improves the rate, the more the longer the time since.
  static TickScale calibrate(std::uint64_t baseline_ns = 15'000'000) {
    const ClockPair first = ClockPair::sample();
    while (kTicksAreTsc && monotonic_ns() - first.ns < baseline_ns) {
    }
    return TickScale(first, ClockPair::sample());
  }

  // The same first pair, with a second one sampled now.
  TickScale refined() const { return TickScale(first_, ClockPair::sample()); }

  std::uint64_t to_ns(std::uint64_t ticks) const {
    return anchor_.ns + scaled(ticks - anchor_.ticks, rate_, kOne);
  }
  std::uint64_t to_ticks(std::uint64_t ns) const {
    return anchor_.ticks + scaled(ns - anchor_.ns, kOne, rate_);
  }
  // Durations rather than points in time.
  std::uint64_t span_ns(std::uint64_t ticks) const { return scaled(ticks, rate_, kOne); }
  std::uint64_t span_ticks(std::uint64_t ns) const { return scaled(ns, kOne, rate_); }
  double ticks_per_ns() const { return static_cast<double>(kOne) / static_cast<double>(rate_); }

 private:
  __extension__ using Wide = unsigned __int128;
  static constexpr int kBits = 40;  // one part in 10^12 of a nanosecond per tick
  static constexpr std::uint64_t kOne = std::uint64_t{1} << kBits;

  // A time before the anchor is a difference with the top bit set; this keeps its sign.
  static std::uint64_t scaled(std::uint64_t difference, std::uint64_t by, std::uint64_t over) {
    const bool negative = static_cast<std::int64_t>(difference) < 0;
    const Wide size = negative ? 0 - difference : difference;
    const std::uint64_t result = static_cast<std::uint64_t>(size * by / over);
    return negative ? 0 - result : result;
  }

  ClockPair first_;
  ClockPair anchor_;
  std::uint64_t rate_ = kOne;
};

// The scale of this process: calibrated on first use, improved by refine_scale.
class SharedScale {
 public:
  static SharedScale& instance() {
    static SharedScale shared;
    return shared;
  }
  TickScale get() {
    const std::lock_guard hold(lock_);
    return scale_;
  }
  void refine() {
    const std::lock_guard hold(lock_);
    scale_ = scale_.refined();
  }

 private:
  std::mutex lock_;
  TickScale scale_ = TickScale::calibrate();
};

// A copy; take one for many conversions.
inline TickScale tick_scale() { return SharedScale::instance().get(); }
inline void refine_scale() { SharedScale::instance().refine(); }

inline std::uint64_t to_ns(std::uint64_t ticks) { return tick_scale().to_ns(ticks); }
inline std::uint64_t ns_to_ticks(std::uint64_t ns) { return tick_scale().to_ticks(ns); }

}  // namespace qts
