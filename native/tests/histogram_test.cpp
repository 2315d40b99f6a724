#include "qts/histogram.hpp"

#include <random>
#include <thread>
#include <vector>

#include "allocations.hpp"
#include "harness.hpp"
#include "qts/wait_strategy.hpp"

using qts::Histogram;

namespace {

// Evenly many values of each magnitude, from nanoseconds to an hour.
std::vector<std::uint64_t> log_uniform(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> exponent(0.0, std::log(3.6e12));
  std::vector<std::uint64_t> values(count);
  for (auto& value : values) value = static_cast<std::uint64_t>(std::exp(exponent(random)));
  return values;
}

bool same(const Histogram& a, const Histogram& b) {
  std::vector<std::uint64_t> left, right;
  a.each([&](Histogram::Bucket bucket) { left.insert(left.end(), {bucket.low, bucket.count}); });
  b.each([&](Histogram::Bucket bucket) { right.insert(right.end(), {bucket.low, bucket.count}); });
  return left == right && a.sum() == b.sum() && a.min() == b.min() && a.max() == b.max();
}

}  // namespace

TEST(histogram_buckets_join_without_gap_or_overlap) {
  for (std::size_t i = 0; i < Histogram::kBuckets; ++i) {
    const std::uint64_t low = Histogram::low(i), high = low + Histogram::width(i) - 1;
    if (Histogram::index(low) != i || Histogram::index(high) != i) CHECK_EQ(Histogram::index(low), i);
    if (i + 1 < Histogram::kBuckets && Histogram::low(i + 1) != high + 1) CHECK_EQ(Histogram::low(i + 1), high + 1);
  }
  CHECK_EQ(Histogram::index(Histogram::kTop), Histogram::kBuckets - 1);
  CHECK_EQ(Histogram::index(UINT64_MAX), Histogram::kBuckets - 1);
}

TEST(histogram_percentiles_are_within_a_tenth_of_a_percent_of_the_sorted_values) {
  auto values = log_uniform(20'000, 1);
  Histogram histogram;
  for (const auto value : values) histogram.record(value);
  std::sort(values.begin(), values.end());
  for (const double percent : {0.0, 0.1, 1.0, 25.0, 50.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0}) {
    const double rank = std::max(1.0, std::ceil(percent * static_cast<double>(values.size()) / 100 - 1e-6));
    const double exact = static_cast<double>(values[static_cast<std::size_t>(rank) - 1]);
    CHECK_LE(std::abs(static_cast<double>(histogram.percentile(percent)) - exact), exact * 0.001);
  }
  CHECK_EQ(histogram.min(), values.front());
  CHECK_EQ(histogram.max(), values.back());
  CHECK_EQ(histogram.count(), values.size());
}

TEST(histogram_is_exact_below_1024) {
  Histogram histogram;
  for (std::uint64_t value = 0; value < 1000; ++value) histogram.record(value);
  CHECK_EQ(histogram.percentile(50), 499u);
  CHECK_EQ(histogram.percentile(99.9), 998u);
  CHECK_EQ(histogram.mean(), 499.5);
}

TEST(histogram_is_zero_when_empty) {
  const Histogram histogram;
  CHECK_EQ(histogram.count() + histogram.min() + histogram.max() + histogram.percentile(99), 0u);
  CHECK_EQ(histogram.mean(), 0.0);
}

TEST(histogram_counts_values_above_its_top) {
  Histogram histogram;
  histogram.record(Histogram::kTop + 1);
  histogram.record(UINT64_MAX - Histogram::kTop - 1);
  CHECK_EQ(histogram.count(), 2u);
  CHECK_EQ(histogram.max(), UINT64_MAX - Histogram::kTop - 1);
  CHECK_EQ(histogram.sum(), UINT64_MAX);
}

TEST(histogram_merge_equals_recording_everything_in_one) {
  Histogram first, second, third, all;
  unsigned seed = 2;
  for (Histogram* part : {&first, &second, &third})
    for (const auto value : log_uniform(1'000, seed++)) {
      part->record(value);
      all.record_exclusive(value);
    }
  Histogram left, right;  // (first + second) + third and third + (second + first)
  left.merge(first);
  left.merge(second);
  left.merge(third);
  second.merge(first);
  right.merge(third);
  right.merge(second);
  CHECK(same(left, all));
  CHECK(same(right, all));
  right.merge(Histogram());
  CHECK(same(right, all));
}

TEST(histogram_loses_nothing_when_threads_record_at_once) {
  // Few values, so that the threads use the same buckets; in rounds that start together, so that no
  // thread has finished before the next one starts.
  constexpr std::uint64_t kThreads = 2, kRounds = 500, kEach = 500, kValues = 5;
  Histogram histogram;
  std::atomic<std::uint64_t> arrived{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        arrived.fetch_add(1, std::memory_order_acq_rel);
        qts::SpinYield wait(1'000);
        while (arrived.load(std::memory_order_acquire) < round * kThreads) wait.idle();
        for (std::uint64_t i = 0; i < kEach; ++i) histogram.record(100 + i % kValues);
      }
    });
  for (auto& thread : threads) thread.join();
  const std::uint64_t count = kThreads * kRounds * kEach;
  CHECK_EQ(histogram.count(), count);
  CHECK_EQ(histogram.sum(), count * 102);
  CHECK_EQ(histogram.min(), 100u);
  CHECK_EQ(histogram.max(), 104u);
}

TEST(histogram_allocates_nothing_when_recording) {
  Histogram histogram, other;
  other.record(3);
  const std::uint64_t before = allocations_of_this_thread();
  for (std::uint64_t i = 0; i < 1'000; ++i) histogram.record(i * i * i), histogram.record_exclusive(i);
  histogram.merge(other);
  const std::uint64_t asked = histogram.percentile(99) + histogram.count();
  CHECK_EQ(allocations_of_this_thread(), before);
  CHECK_GE(asked, 2'001u);
}
