// BarRing: reads bit for bit what was pushed, whatever the numbers are, and packs the usual ones.
#include "qts/bar_ring.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "harness.hpp"

using namespace qts;

namespace {

Bar random_bar(std::mt19937_64& random, std::uint32_t at) {
  const auto price = [&](double scale) { return static_cast<double>(1 + random() % 200'000'000) / scale; };
  const double scales[] = {1, 1, 1, 10, 100, 1e4, 1e8, 3};  // a third is no decimal
  const double scale = scales[random() % 8];
  Bar bar{at, static_cast<std::uint32_t>(random()), price(scale), price(scale), price(scale), price(scale), 0, 0};
  bar.volume = random() % 5 == 0 ? 0 : static_cast<double>(random() % 1'000'000'000) / scales[random() % 8];
  bar.value = random() % 3 == 0 ? std::numeric_limits<double>::quiet_NaN() : bar.close * bar.volume * 1.01;
  if (random() % 50 == 0) bar.value = 1e300;
  if (random() % 50 == 0) bar.open = -0.0;
  if (random() % 50 == 0) bar.volume = 9.1e15;
  return bar;
}

void check_last(const BarRing& ring, const std::vector<Bar>& all, std::size_t most, std::size_t capacity) {
  std::vector<Bar> found;
  ring.each(most, [&](const Bar& bar) { found.push_back(bar); });
  const std::size_t expected = std::min({most, capacity, all.size()});
  CHECK_EQ(found.size(), expected);
  CHECK_EQ(ring.size(), std::min(capacity, all.size()));
  if (found.size() == expected && expected != 0)
    CHECK_EQ(std::memcmp(found.data(), all.data() + all.size() - expected, expected * sizeof(Bar)), 0);
}

}  // namespace

TEST(bar_ring_keeps_any_bars_bit_for_bit) {
  std::mt19937_64 random(1);
  for (const std::size_t capacity : {1u, 63u, 64u, 65u, 300u}) {
    BarRing ring(capacity);
    std::vector<Bar> all;
    for (std::uint32_t at = 0; at < 2'000; ++at) {
      all.push_back(random_bar(random, at * 60));
      ring.push(all.back());
      if (random() % 40 == 0) check_last(ring, all, random() % 400, capacity);
    }
    check_last(ring, all, capacity, capacity);
    ring.clear();
    CHECK_EQ(ring.size(), 0u);
  }
}

TEST(bar_ring_packs_whole_prices_and_coins) {
  std::mt19937_64 random(2);
  for (const double scale : {1.0, 1e8}) {
    BarRing ring(500);
    std::vector<Bar> all;
    double last = 70'000;
    for (std::uint32_t i = 0; i < 900; ++i) {
      const auto step = [&] { return 100.0 * static_cast<double>(random() % 5); };
      const double open = last + step() - 200, close = open + step() - 200;
      const double volume = static_cast<double>(random() % 100'000) / scale, high = std::max(open, close) + step();
      all.push_back({1'700'000'000 + 60 * i, static_cast<std::uint32_t>(random() % 300), open, high,
                     std::min(open, close) - step(), close, volume, volume * (open + close) / 2});
      ring.push(all.back());
      last = close;
    }
    check_last(ring, all, 500, 500);
    CHECK_LE(ring.bytes(), 500u * (scale == 1.0 ? 20u : 26u));
  }
}
