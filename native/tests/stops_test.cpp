// Stops: long and short mirror each other, every latch holds, and a single wild tick sells nothing.
#include "qts/stops.hpp"

#include <cmath>
#include <random>

#include "harness.hpp"

using namespace qts;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

StopRules rules() {
  StopRules made;
  made.trail_least = 0;
  return made;
}

// A position at 10,000 and the time of its ticks.
struct Desk {
  explicit Desk(double quantity = 10, const StopRules& by = rules(), double stop = 0, double limit_s = 0) : stops(by) {
    stops.hold("A", quantity, 10'000, 1, stop, limit_s, 0);
  }
  StopHit tick(double price) {
    StopHit hit;
    now += kSecond / 10;
    stops.on_tick("A", price, now, hit);
    return hit;
  }
  Stops stops;
  std::int64_t now = 0;
};

// The price that is as good for a short as this one is for a long.
double mirror(double price) { return 20'000 - price; }

}  // namespace

TEST(stop_price_is_reached_from_either_side) {
  for (const bool is_short : {false, true}) {
    Desk desk(is_short ? -10 : 10, rules(), is_short ? mirror(9'900) : 9'900);
    const auto at = [&](double price) { return desk.tick(is_short ? mirror(price) : price); };
    CHECK(at(9'901).verdict == Verdict::kNone);
    const StopHit hit = at(9'900);
    CHECK(hit.verdict == Verdict::kAll && hit.reason == StopReason::kStop);
    CHECK_EQ(hit.quantity, 10.0);
    CHECK_EQ(hit.is_short, is_short);
  }
}

TEST(excursion_sells_half_once_and_then_all_once) {
  for (const bool is_short : {false, true}) {
    Desk desk(is_short ? -10 : 10);
    const auto at = [&](double price) { return desk.tick(is_short ? mirror(price) : price); };
    CHECK(at(9'851).verdict == Verdict::kNone);
    const StopHit half = at(9'850);
    CHECK(half.verdict == Verdict::kHalf && half.reason == StopReason::kExcursion);
    CHECK_EQ(half.quantity, 5.0);
    CHECK(at(9'840).verdict == Verdict::kNone);  // not again, though it still lies there
    desk.stops.hold("A", is_short ? -5 : 5, 10'000, 1, 0, 0, desk.now);
    CHECK(at(9'830).verdict == Verdict::kNone);
    const StopHit all = at(9'800);
    CHECK(all.verdict == Verdict::kAll && all.reason == StopReason::kExcursion);
    CHECK_EQ(all.quantity, 5.0);
    CHECK(at(9'700).verdict == Verdict::kNone);  // it is leaving
  }
}

TEST(gain_is_no_excursion) {
  Desk desk;
  for (double price = 10'000; price < 10'100; price += 10) CHECK(desk.tick(price).verdict == Verdict::kNone);
  CHECK(desk.tick(10'250).verdict == Verdict::kAdjusted);
}

TEST(half_of_one_lot_is_one_lot) {
  Desk desk(1);
  CHECK_EQ(desk.tick(9'850).quantity, 1.0);
  Stops stops(rules());
  stops.hold("B", 0.003, 10'000, 0.001, 0, 0, 0);
  StopHit hit;
  CHECK(stops.on_tick("B", 9'850, 1, hit));
  CHECK(std::abs(hit.quantity - 0.001) < 1e-12);
}

TEST(trailing_stop_is_armed_by_a_gain_follows_and_never_goes_back) {
  for (const bool is_short : {false, true}) {
    Desk desk(is_short ? -10 : 10);
    const auto at = [&](double price) { return desk.tick(is_short ? mirror(price) : price); };
    CHECK(at(10'099).verdict == Verdict::kNone);
    CHECK(at(10'100).verdict == Verdict::kAdjusted);
    CHECK(at(10'200).verdict == Verdict::kAdjusted);
    const double stop = desk.stops.find("A")->trailing;
    CHECK(at(10'180).verdict == Verdict::kNone);
    CHECK_EQ(desk.stops.find("A")->trailing, stop);
    const StopHit hit = at(is_short ? mirror(stop) : stop);
    CHECK(hit.verdict == Verdict::kAll && hit.reason == StopReason::kTrailing);
  }
}

TEST(least_distance_of_the_trailing_stop_is_a_least) {
  StopRules wide = rules();
  wide.trail_least = 500;
  Desk desk(10, wide);
  CHECK(desk.tick(10'200).verdict == Verdict::kAdjusted);
  CHECK_EQ(desk.stops.find("A")->trailing, 9'700.0);
}

TEST(position_held_too_long_leaves_later_when_it_earns) {
  StopRules extra = rules();
  extra.earning_extra_s = 100;
  for (const bool earns : {false, true}) {
    Desk desk(10, extra, 0, 60);
    desk.tick(earns ? 10'050 : 9'950);
    std::vector<StopHit> hits;
    desk.stops.on_time(61 * kSecond, hits);
    CHECK_EQ(hits.size(), earns ? 0u : 1u);
    desk.stops.on_time(161 * kSecond, hits);
    CHECK_EQ(hits.size(), 1u);
    CHECK(hits[0].reason == StopReason::kTime && hits[0].verdict == Verdict::kAll);
  }
}

TEST(wild_tick_sells_nothing_until_another_agrees_or_none_comes) {
  Desk alone;
  CHECK(alone.tick(9'000).verdict == Verdict::kNone);
  CHECK(alone.tick(10'000).verdict == Verdict::kNone);
  CHECK_EQ(alone.stops.find("A")->worst, 10'000.0);
  CHECK_EQ(alone.stops.jumps(), 1u);

  Desk confirmed;
  confirmed.tick(9'000);
  CHECK(confirmed.tick(9'010).verdict == Verdict::kAll);

  Desk silent;
  silent.tick(9'000);
  std::vector<StopHit> hits;
  silent.stops.on_time(silent.now + kSecond / 4, hits);
  CHECK(hits.empty());
  silent.stops.on_time(silent.now + kSecond, hits);
  CHECK_EQ(hits.size(), 1u);
}

TEST(refused_exit_is_asked_for_again_after_rearm) {
  Desk desk;
  CHECK(desk.tick(9'800).verdict == Verdict::kAll);
  CHECK(desk.tick(9'790).verdict == Verdict::kNone);
  desk.stops.rearm("A");
  CHECK(desk.tick(9'790).verdict == Verdict::kAll);
}

TEST(refused_half_is_asked_for_again_and_a_sold_one_is_not) {
  Desk desk;
  CHECK(desk.tick(9'850).verdict == Verdict::kHalf);
  CHECK(desk.tick(9'850).verdict == Verdict::kNone);
  desk.stops.rearm("A");
  CHECK(desk.tick(9'850).verdict == Verdict::kHalf);
  desk.stops.hold("A", 5, 10'000, 1, 0, 0, desk.now);
  std::vector<StopHit> hits;
  desk.stops.leave(1, hits);
  CHECK_EQ(hits.size(), 1u);
  desk.stops.rearm("A");  // of all that is left: the half stays sold
  CHECK(desk.tick(9'850).verdict == Verdict::kNone);
}

TEST(grown_position_is_watched_anew_and_a_closed_one_is_gone) {
  Desk desk;
  CHECK(desk.tick(9'800).verdict == Verdict::kAll);
  desk.stops.hold("A", 20, 9'900, 1, 0, 0, desk.now);
  CHECK(desk.tick(9'700).verdict == Verdict::kAll);
  desk.stops.hold("A", 0, 0, 1, 0, 0, desk.now);
  CHECK_EQ(desk.stops.size(), 0u);
  CHECK(desk.tick(9'000).verdict == Verdict::kNone);
}

TEST(volatility_halves_everything_once_and_then_ends_everything_once) {
  Stops stops(rules());
  stops.hold("A", 10, 10'000, 1, 0, 0, 0);
  stops.hold("B", -4, 500, 1, 0, 0, 0);
  std::vector<StopHit> hits;
  stops.leave(0.5, hits);
  CHECK_EQ(hits.size(), 2u);
  stops.leave(0.5, hits);
  CHECK_EQ(hits.size(), 2u);
  stops.leave(1, hits);
  CHECK_EQ(hits.size(), 4u);
  stops.leave(1, hits);
  CHECK_EQ(hits.size(), 4u);
  for (const StopHit& hit : hits) CHECK(hit.reason == StopReason::kVolatility);
}

TEST(tick_that_is_no_price_or_of_nobody_does_nothing) {
  Desk desk;
  for (const double price : {0.0, -1.0, std::nan(""), HUGE_VAL}) CHECK(desk.tick(price).verdict == Verdict::kNone);
  StopHit hit;
  CHECK(!desk.stops.on_tick("Z", 1, 1, hit));
}

// For any walk of prices: never more than two exits, never more sold than is held, and once a
// believed price lay 2 % against us the position has been told to leave.
TEST(any_walk_of_prices_leaves_in_time_and_never_twice) {
  std::mt19937_64 random(7);
  for (int walk = 0; walk < 2'000; ++walk) {
    const bool is_short = walk % 2;
    Desk desk(is_short ? -10 : 10);
    std::normal_distribution<double> step(0, 20);
    double price = 10'000, sold = 0;
    int halves = 0, alls = 0;
    for (int tick = 0; tick < 300; ++tick) {
      price += step(random);
      const StopHit hit = desk.tick(price);
      if (hit.verdict == Verdict::kHalf || hit.verdict == Verdict::kAll) {
        (hit.verdict == Verdict::kHalf ? halves : alls) += 1;
        sold += hit.quantity;
        const double left = hit.verdict == Verdict::kAll ? 0 : 10 - hit.quantity;
        desk.stops.hold("A", is_short ? -left : left, 10'000, 1, 0, 0, desk.now);
        if (left == 0) break;
      }
      const double loss = is_short ? price - 10'000 : 10'000 - price;
      CHECK(loss < 200);
    }
    CHECK(halves <= 1 && alls <= 1);
    CHECK(sold <= 10);
  }
}
