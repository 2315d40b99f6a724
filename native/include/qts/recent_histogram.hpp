// RecentHistogram: what a Histogram has counted in the last minute and in the last ten minutes.
//
// It reads the histogram at the end of every period of ten seconds, so recording costs nothing more. Its
// buckets are eight times as wide: a percentile is within 0.8 % of the recorded value of its rank.
//
// Thread contract: one thread at a time calls these methods; other threads may record meanwhile.
// Invariant: memory does not grow; a value leaves the last minute 50 to 60 s after it was recorded, and the
// last ten minutes 540 to 600 s after it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "qts/histogram.hpp"

namespace qts {

class RecentHistogram {
 public:
  static constexpr std::size_t kPeriodsPerMinute = 6;
  static constexpr std::size_t kMinutes = 10;

  explicit RecentHistogram(const Histogram& of) : of_(of) {
    read(before_);
    for (Counts& each : periods_) each.assign(kBuckets, 0);
    for (Counts& each : minutes_) each.assign(kBuckets, 0);
  }

  // Ends a period.
  void roll() {
    Counts now(kBuckets, 0);
    read(now);
    const std::size_t minute = rolled_ / kPeriodsPerMinute % kMinutes;
    if (rolled_ % kPeriodsPerMinute == 0) std::fill(minutes_[minute].begin(), minutes_[minute].end(), 0);
    Counts& period = periods_[rolled_ % kPeriodsPerMinute];
    for (std::size_t i = 0; i < kBuckets; ++i) {
      period[i] = now[i] - before_[i];
      minutes_[minute][i] += period[i];
    }
    before_.swap(now);
    ++rolled_;
    // The oldest period leaves when the next one begins.
    Counts& oldest = periods_[rolled_ % kPeriodsPerMinute];
    std::fill(oldest.begin(), oldest.end(), 0);
    if (rolled_ % kPeriodsPerMinute == 0) {
      Counts& first = minutes_[rolled_ / kPeriodsPerMinute % kMinutes];
      std::fill(first.begin(), first.end(), 0);
    }
  }

  struct Summary {
    std::uint64_t count = 0, max = 0;
    std::array<std::uint64_t, 4> percentiles{};  // of the percents asked for
  };
  Summary last_minute(const std::array<double, 4>& percents) const { return summary(periods_, percents); }
  Summary last_ten_minutes(const std::array<double, 4>& percents) const { return summary(minutes_, percents); }

 private:
  using Counts = std::vector<std::uint32_t>;  // a bucket wraps; its difference over ten minutes does not
  static constexpr unsigned kBits = 6;
  static constexpr std::size_t kBuckets = std::size_t{Histogram::kTopBits - kBits + 1} << kBits;

  static std::size_t index(std::uint64_t value) {
    if (value < (std::uint64_t{2} << kBits)) return value;
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - kBits - 1;
    return (std::size_t{shift} << kBits) + (value >> shift);
  }
  static std::uint64_t middle(std::size_t i) {
    const unsigned shift = i < (std::size_t{2} << kBits) ? 0 : static_cast<unsigned>(i >> kBits) - 1;
    return ((i - (std::size_t{shift} << kBits)) << shift) + (std::uint64_t{1} << shift) / 2;
  }

  void read(Counts& counts) const {
    counts.assign(kBuckets, 0);
    of_.each([&](const Histogram::Bucket& bucket) { counts[index(bucket.low)] += static_cast<std::uint32_t>(bucket.count); });
  }

  template <std::size_t N>
  Summary summary(const std::array<Counts, N>& windows, const std::array<double, 4>& percents) const {
    Counts sum(kBuckets, 0);
    read(sum);
    Summary found;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      sum[i] -= before_[i];
      for (const Counts& each : windows) sum[i] += each[i];
      found.count += sum[i];
      if (sum[i] != 0) found.max = middle(i);
    }
    for (std::size_t p = 0; p < percents.size() && found.count != 0; ++p) {
      const auto rank = static_cast<std::uint64_t>(std::max(1.0, std::ceil(percents[p] * static_cast<double>(found.count) / 100.0 * (1 - 1e-12))));
      std::uint64_t seen = 0;
      std::size_t i = 0;
      while (i + 1 < kBuckets && (seen += sum[i]) < rank) ++i;
      found.percentiles[p] = middle(i);
    }
    return found;
  }

  const Histogram& of_;
  Counts before_;  // at the end of the last period
  std::array<Counts, kPeriodsPerMinute> periods_;
  std::array<Counts, kMinutes> minutes_;
  std::uint64_t rolled_ = 0;
};

}  // namespace qts
