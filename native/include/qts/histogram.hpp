// Histogram: counts of whole numbers with percentiles within 0.1 %.
//
// Thread contract: record, merge and every reader may run on any threads at once; record_exclusive only
// while no other thread records. Recording takes no lock and allocates nothing.
// Invariant: each value falls into exactly one bucket no wider than 1/512 of it, so a percentile,
// reported as its bucket's middle, is within 0.1 % of the recorded value of that rank.
//
// Values below 1024 have a bucket each; above, every doubling is divided into 512 equal buckets, up to
// kTop (73 minutes in nanoseconds). Greater values count in the last bucket; count, sum, min and
// max stay exact for them too (sum modulo 2^64).
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace qts {

class Histogram {
 public:
  static constexpr unsigned kBits = 9;  // 512 buckets per doubling
  static constexpr unsigned kTopBits = 42;
  static constexpr std::uint64_t kTop = (std::uint64_t{1} << kTopBits) - 1;
  static constexpr std::size_t kBuckets = std::size_t{kTopBits - kBits + 1} << kBits;

  struct Bucket {
    std::uint64_t low;
    std::uint64_t high;  // inclusive
    std::uint64_t count;
  };

  Histogram() : counts_(std::make_unique<std::atomic<std::uint64_t>[]>(kBuckets)) {}

  void record(std::uint64_t value) {
    counts_[index(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
    widen(value, value);
  }

  // The same without locked instructions.
  void record_exclusive(std::uint64_t value) {
    add_exclusive(counts_[index(value)], 1);
    add_exclusive(sum_, value);
    if (value < min_.load(std::memory_order_relaxed)) min_.store(value, std::memory_order_relaxed);
    if (value > max_.load(std::memory_order_relaxed)) max_.store(value, std::memory_order_relaxed);
  }

  void merge(const Histogram& other) {
    for (std::size_t i = 0; i < kBuckets; ++i)
      if (const std::uint64_t count = other.counts_[i].load(std::memory_order_relaxed))
        counts_[i].fetch_add(count, std::memory_order_relaxed);
    sum_.fetch_add(other.sum(), std::memory_order_relaxed);
    widen(other.min_.load(std::memory_order_relaxed), other.max());
  }

  // Sets this to what `now` has counted since `before`, an earlier copy of it. Min and max are then
  // only as exact as their buckets.
  void set_difference(const Histogram& now, const Histogram& before) {
    sum_.store(now.sum() - before.sum(), std::memory_order_relaxed);
    min_.store(UINT64_MAX, std::memory_order_relaxed);
    max_.store(0, std::memory_order_relaxed);
    for (std::size_t i = 0; i < kBuckets; ++i) {
      const std::uint64_t fresh = now.counts_[i].load(std::memory_order_relaxed) -
                                  before.counts_[i].load(std::memory_order_relaxed);
      counts_[i].store(fresh, std::memory_order_relaxed);
      if (fresh != 0) widen(low(i), low(i) + width(i) - 1);
    }
  }

  std::uint64_t count() const {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) total += counts_[i].load(std::memory_order_relaxed);
    return total;
  }
  std::uint64_t sum() const { return sum_.load(std::memory_order_relaxed); }
  // 0 when empty.
  std::uint64_t min() const {
    const std::uint64_t least = min_.load(std::memory_order_relaxed);
    return least == UINT64_MAX && max() == 0 ? 0 : least;
  }
  std::uint64_t max() const { return max_.load(std::memory_order_relaxed); }
  double mean() const {
    const std::uint64_t total = count();
    return total == 0 ? 0.0 : static_cast<double>(sum()) / static_cast<double>(total);
  }

  // The value of nearest rank: ceil(percent / 100 * count), from 1; 0 when empty.
  std::uint64_t percentile(double percent) const {
    const std::uint64_t total = count();
    if (total == 0) return 0;
    const std::uint64_t rank = rank_of(percent, total);
    if (rank == 1) return min();
    if (rank == total) return max();
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i].load(std::memory_order_relaxed);
      if (seen >= rank) return std::max(min(), std::min(middle(i), max()));
    }
    return max();
  }

  // Calls `visit(Bucket)` for each bucket that is not empty, in rising order.
  template <class Visit>
  void each(Visit&& visit) const {
    for (std::size_t i = 0; i < kBuckets; ++i)
      if (const std::uint64_t count = counts_[i].load(std::memory_order_relaxed))
        visit(Bucket{low(i), low(i) + width(i) - 1, count});
  }

  static std::size_t index(std::uint64_t value) {
    value = std::min(value, kTop);
    if (value < (std::uint64_t{2} << kBits)) return value;
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kBits - 1;
    return (std::size_t{shift} << kBits) + (value >> shift);
  }
  static std::uint64_t low(std::size_t i) {
    return (i - (std::size_t{shift_of(i)} << kBits)) << shift_of(i);
  }
  static std::uint64_t width(std::size_t i) { return std::uint64_t{1} << shift_of(i); }

 private:
  static unsigned shift_of(std::size_t i) {
    return i < (std::size_t{2} << kBits) ? 0 : static_cast<unsigned>(i >> kBits) - 1;
  }
  static std::uint64_t middle(std::size_t i) { return low(i) + width(i) / 2; }

  static std::uint64_t rank_of(double percent, std::uint64_t total) {
    const double exact = std::clamp(percent, 0.0, 100.0) * static_cast<double>(total) / 100.0;
    // 99.9 has no exact double: without the last factor the rank would be one too high.
    const double up = std::ceil(exact * (1 - 1e-12));
    return up < 1 ? 1 : std::min(static_cast<std::uint64_t>(up), total);
  }

  static void add_exclusive(std::atomic<std::uint64_t>& counter, std::uint64_t by) {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  void widen(std::uint64_t least, std::uint64_t greatest) {
    std::uint64_t seen = min_.load(std::memory_order_relaxed);
    while (least < seen && !min_.compare_exchange_weak(seen, least, std::memory_order_relaxed)) {
    }
    seen = max_.load(std::memory_order_relaxed);
    while (greatest > seen && !max_.compare_exchange_weak(seen, greatest, std::memory_order_relaxed)) {
    }
  }

  std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
  std::atomic<std::uint64_t> sum_{0};
  std::atomic<std::uint64_t> min_{UINT64_MAX};
  std::atomic<std::uint64_t> max_{0};
};

}  // namespace qts
