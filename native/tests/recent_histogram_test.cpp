#include "qts/recent_histogram.hpp"

#include "harness.hpp"

using qts::Histogram;
using qts::RecentHistogram;

namespace {

constexpr std::array<double, 4> kPercents{50, 95, 99, 99.9};

void roll(RecentHistogram& recent, int periods) {
  for (int i = 0; i < periods; ++i) recent.roll();
}

}  // namespace

TEST(a_value_leaves_the_last_minute_and_then_the_last_ten) {
  for (int offset = 0; offset < 70; offset += harness::kSanitized ? 7 : 1) {  // wherever in a minute it was recorded
    Histogram histogram;
    RecentHistogram recent(histogram);
    roll(recent, offset);
    for (int i = 0; i < 100; ++i) histogram.record(30'000'000);
    CHECK_EQ(recent.last_minute(kPercents).count, 100u);
    roll(recent, 5);
    CHECK_EQ(recent.last_minute(kPercents).count, 100u);
    roll(recent, 1);
    CHECK_EQ(recent.last_minute(kPercents).count, 0u);
    CHECK_EQ(recent.last_ten_minutes(kPercents).count, 100u);
    roll(recent, 48);
    CHECK_EQ(recent.last_ten_minutes(kPercents).count, 100u);
    roll(recent, 6);
    CHECK_EQ(recent.last_ten_minutes(kPercents).count, 0u);
  }
}

TEST(recent_percentiles_are_within_one_percent) {
  Histogram histogram;
  for (int i = 0; i < 60'000; ++i) histogram.record(1);  // before it exists: not recent
  RecentHistogram recent(histogram);
  for (std::uint64_t i = 1; i <= 1000; ++i) histogram.record(i * 1'000'000);
  const RecentHistogram::Summary found = recent.last_minute(kPercents);
  CHECK_EQ(found.count, 1000u);
  const std::uint64_t expected[] = {500, 950, 990, 999};
  for (int p = 0; p < 4; ++p) {
    const double error = static_cast<double>(found.percentiles[p]) / static_cast<double>(expected[p] * 1'000'000) - 1;
    CHECK(error < 0.01 && error > -0.01);
  }
  CHECK(found.max > 990'000'000 && found.max < 1'010'000'000);
}

TEST(a_long_run_counts_each_value_once) {
  Histogram histogram;
  RecentHistogram recent(histogram);
  for (int period = 0; period < (harness::kSanitized ? 250 : 1000); ++period) {
    for (int i = 0; i < 10; ++i) histogram.record(5);
    if (period >= 60) {
      CHECK_EQ(recent.last_minute(kPercents).count, 60u);
      const std::uint64_t ten = recent.last_ten_minutes(kPercents).count;
      CHECK(ten > 540 && ten <= 600);
    }
    recent.roll();
  }
}
