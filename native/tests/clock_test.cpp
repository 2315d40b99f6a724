#include "qts/clock.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>

#include "harness.hpp"

namespace {
std::int64_t apart(std::uint64_t a, std::uint64_t b) { return std::abs(static_cast<std::int64_t>(a - b)); }
}  // namespace

TEST(clock_names_its_source) {
  const std::string source = qts::clock_source();
  CHECK(source == "tsc" || source == "clock_monotonic");
  CHECK_EQ(source == "tsc", qts::tsc_is_invariant());
}

TEST(clock_never_goes_back) {
  std::uint64_t last = qts::ticks(), backward = 0;
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t now = qts::ticks();
    backward += now < last;
    last = now;
  }
  CHECK_EQ(backward, 0u);
}

TEST(clock_never_goes_back_between_threads) {
  const std::uint64_t before = qts::ticks();
  std::uint64_t inside = 0;
  std::thread([&] { inside = qts::ticks(); }).join();
  CHECK_LE(before, inside);
  CHECK_LE(inside, qts::ticks());
}

// A tick converted to ns lies between two readings of CLOCK_MONOTONIC, within the error of calibration.
TEST(clock_agrees_with_clock_monotonic) {
  std::int64_t best = INT64_MAX;
  for (int i = 0; i < 2'000 && best > 5'000; ++i) {
    if (i % 200 == 0) qts::refine_scale();
    const qts::TickScale scale = qts::tick_scale();
    const std::uint64_t before = qts::monotonic_ns();
    const std::uint64_t ours = scale.to_ns(qts::ticks());
    const std::uint64_t after = qts::monotonic_ns();
    best = std::min(best, apart(ours, before + (after - before) / 2));
  }
  CHECK_LE(best, 5'000);
}

// The best of ten calibrations: a thread that loses its core between two readings measures the wait, not the clock.
TEST(clock_rate_stays_within_a_hundred_parts_per_million) {
  double rate = 1, refined = 1;
  for (int i = 0; i < 10 && std::max(rate, refined) > 100e-6; ++i) {
    const qts::TickScale short_one = qts::TickScale::calibrate(15'000'000);
    const qts::TickScale longer = qts::TickScale::calibrate(60'000'000);
    rate = std::abs(short_one.ticks_per_ns() / longer.ticks_per_ns() - 1);
    refined = std::abs(short_one.refined().ticks_per_ns() / longer.ticks_per_ns() - 1);
  }
  CHECK_LE(rate, 100e-6);
  CHECK_LE(refined, 100e-6);
}

TEST(clock_conversions_are_inverse) {
  const qts::TickScale scale = qts::tick_scale();
  const std::uint64_t now = qts::ticks();
  const std::uint64_t hour = scale.span_ticks(3'600'000'000'000);
  for (const std::uint64_t moment : {now, now + hour, now - scale.span_ticks(1'000'000), now + 24 * hour})
    CHECK_LE(apart(scale.to_ticks(scale.to_ns(moment)), moment), 8);
  CHECK_LE(apart(scale.span_ns(hour), 3'600'000'000'000), 8);
  CHECK_OP(scale.to_ns(now - 1000), <, scale.to_ns(now));
}
