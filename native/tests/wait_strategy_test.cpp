#include "qts/wait_strategy.hpp"

#include <thread>

#include "harness.hpp"
#include "qts/clock.hpp"
#include "qts/ring.hpp"

using namespace std::chrono_literals;

TEST(park_sleeps_no_longer_than_max_sleep) {
  qts::Park park({.spins = 0, .yields = 0, .max_sleep = 2ms});
  park.idle();  // announces only
  const std::uint64_t start = qts::monotonic_ns();
  park.idle();
  const std::uint64_t slept = qts::monotonic_ns() - start;
  CHECK_LE(slept, 60'000'000'000u);
#if defined(__linux__)
  CHECK_GE(slept, 1'900'000u);
#endif
  CHECK(!park.wake());  // awake again
}

TEST(park_does_not_sleep_after_a_wake_that_follows_the_announcement) {
  qts::Park park({.spins = 0, .yields = 0, .max_sleep = 60s});
  park.idle();
  CHECK(park.wake());
  park.idle();  // would sleep for a minute
  CHECK(!park.wake());
}

TEST(park_is_awake_after_reset) {
  qts::Park park({.spins = 0, .yields = 0, .max_sleep = 60s});
  park.idle();
  park.reset();
  CHECK(!park.wake());
}

// With a max_sleep of ten minutes, one lost wake would exceed the test's time limit, and a slow machine does not.
TEST(park_loses_no_wake) {
  constexpr std::uint64_t kItems = 3'000;
  qts::Ring<std::uint64_t> ring(4);
  qts::Park park({.spins = 1, .yields = 0, .max_sleep = 600s});
  std::uint64_t wrong = 0;
  const std::uint64_t start = qts::monotonic_ns();
  std::thread consumer([&] {
    for (std::uint64_t expected = 0, item = 0; expected < kItems;) {
      if (ring.try_pop(item)) {
        wrong += item != expected++;
        park.reset();
      } else {
        park.idle();
      }
    }
  });
  qts::SpinYield wait;
  for (std::uint64_t i = 0; i < kItems;) {
    if (ring.try_push(i)) {
      ++i;
      park.wake();
      wait.reset();
    } else {
      wait.idle();
    }
  }
  consumer.join();
  CHECK_EQ(wrong, 0u);
  CHECK_LE(qts::monotonic_ns() - start, 300'000'000'000u);
}

TEST(spin_policies_return_at_once) {
  qts::Spin spin;
  qts::SpinYield yield(2);
  const std::uint64_t start = qts::monotonic_ns();
  for (int i = 0; i < 100; ++i) {
    spin.idle();
    yield.idle();
  }
  spin.reset();
  yield.reset();
  CHECK_LE(qts::monotonic_ns() - start, 60'000'000'000u);
}
