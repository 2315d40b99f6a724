// Stops: long and short positions mirror each other, each exit is reported once, one jump closes nothing.
#include "qts/stops.hpp"

#include <cmath>
#include <optional>
#include <random>

#include "harness.hpp"

using namespace qts;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

StopRules rules() {
  StopRules made;
  made.trail_min_distance = 0;
  return made;
}

// Stops with one position at 10,000, and the time of its ticks.
struct StopsRig {
  explicit StopsRig(double quantity = 10, const StopRules& by = rules(), double stop = 0, double time_limit_s = 0) : stops(by) {
    stops.set_position("A", quantity, 10'000, 1, {stop}, time_limit_s, 0);
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

// The price with the same gain for a short position as this one has for a long one.
double mirror(double price) { return 20'000 - price; }

}  // namespace

TEST(stop_price_is_reached_from_either_side) {
  for (const bool is_short : {false, true}) {
    StopsRig rig(is_short ? -10 : 10, rules(), is_short ? mirror(9'900) : 9'900);
    const auto at = [&](double price) { return rig.tick(is_short ? mirror(price) : price); };
    CHECK(at(9'901).action == StopAction::kNone);
    const StopHit hit = at(9'900);
    CHECK(hit.action == StopAction::kAll && hit.reason == StopReason::kStop);
    CHECK_EQ(hit.quantity, 10.0);
    CHECK_EQ(hit.is_short, is_short);
  }
}

TEST(target_is_passed_from_either_side) {
  for (const bool is_short : {false, true}) {
    StopsRig rig;
    const double target = is_short ? mirror(10'050) : 10'050;
    rig.stops.set_position("A", 0, 0, 1, {}, 0, 0);
    rig.stops.set_position("A", is_short ? -10 : 10, 10'000, 1, {0, target, 0}, 0, 0);
    const auto at = [&](double price) { return rig.tick(is_short ? mirror(price) : price); };
    CHECK(at(10'049).action == StopAction::kNone);
    const StopHit hit = at(10'050);
    CHECK(hit.action == StopAction::kAll && hit.reason == StopReason::kTarget);
    CHECK_EQ(hit.stop, target);
  }
}

TEST(trail_of_its_own_is_armed_from_the_start_and_keeps_its_distance) {
  StopsRig rig;
  rig.stops.set_position("A", 0, 0, 1, {}, 0, 0);
  rig.stops.set_position("A", 10, 10'000, 1, {0, 0, 0.01}, 0, 0);
  CHECK(rig.tick(9'950).action == StopAction::kAdjusted);  // at 9,900
  CHECK(rig.tick(10'100).action == StopAction::kAdjusted);  // at 9,999
  CHECK(rig.tick(10'000).action == StopAction::kNone);
  const StopHit hit = rig.tick(9'999);
  CHECK(hit.action == StopAction::kAll && hit.reason == StopReason::kTrailing);
}

TEST(mae_closes_half_once_and_then_all_once) {
  for (const bool is_short : {false, true}) {
    StopsRig rig(is_short ? -10 : 10);
    const auto at = [&](double price) { return rig.tick(is_short ? mirror(price) : price); };
    CHECK(at(9'851).action == StopAction::kNone);
    const StopHit half = at(9'850);
    CHECK(half.action == StopAction::kHalf && half.reason == StopReason::kMae);
    CHECK_EQ(half.quantity, 5.0);
    CHECK(at(9'840).action == StopAction::kNone);  // reported once
    rig.stops.set_position("A", is_short ? -5 : 5, 10'000, 1, {}, 0, rig.now);
    CHECK(at(9'830).action == StopAction::kNone);
    const StopHit all = at(9'800);
    CHECK(all.action == StopAction::kAll && all.reason == StopReason::kMae);
    CHECK_EQ(all.quantity, 5.0);
    CHECK(at(9'700).action == StopAction::kNone);  // the exit was reported
  }
}

TEST(gain_is_no_mae) {
  StopsRig rig;
  for (double price = 10'000; price < 10'100; price += 10) CHECK(rig.tick(price).action == StopAction::kNone);
  CHECK(rig.tick(10'250).action == StopAction::kAdjusted);
}

TEST(half_of_one_lot_is_one_lot) {
  StopsRig rig(1);
  CHECK_EQ(rig.tick(9'850).quantity, 1.0);
  Stops stops(rules());
  stops.set_position("B", 0.003, 10'000, 0.001, {}, 0, 0);
  StopHit hit;
  CHECK(stops.on_tick("B", 9'850, 1, hit));
  CHECK(std::abs(hit.quantity - 0.001) < 1e-12);
}

TEST(trailing_stop_is_armed_by_a_gain_and_never_moves_back) {
  for (const bool is_short : {false, true}) {
    StopsRig rig(is_short ? -10 : 10);
    const auto at = [&](double price) { return rig.tick(is_short ? mirror(price) : price); };
    CHECK(at(10'099).action == StopAction::kNone);
    CHECK(at(10'100).action == StopAction::kAdjusted);
    CHECK(at(10'200).action == StopAction::kAdjusted);
    const double stop = rig.stops.find("A")->trailing;
    CHECK(at(10'180).action == StopAction::kNone);
    CHECK_EQ(rig.stops.find("A")->trailing, stop);
    const StopHit hit = at(is_short ? mirror(stop) : stop);
    CHECK(hit.action == StopAction::kAll && hit.reason == StopReason::kTrailing);
  }
}

TEST(trailing_stop_keeps_its_minimum_distance) {
  StopRules wide = rules();
  wide.trail_min_distance = 500;
  StopsRig rig(10, wide);
  CHECK(rig.tick(10'200).action == StopAction::kAdjusted);
  CHECK_EQ(rig.stops.find("A")->trailing, 9'700.0);
}

TEST(profitable_position_gets_a_longer_time_limit) {
  StopRules extra = rules();
  extra.profit_extension_s = 100;
  for (const bool profitable : {false, true}) {
    StopsRig rig(10, extra, 0, 60);
    rig.tick(profitable ? 10'050 : 9'950);
    std::vector<StopHit> hits;
    rig.stops.on_time(61 * kSecond, hits);
    CHECK_EQ(hits.size(), profitable ? 0u : 1u);
    rig.stops.on_time(161 * kSecond, hits);
    CHECK_EQ(hits.size(), 1u);
    CHECK(hits[0].reason == StopReason::kTime && hits[0].action == StopAction::kAll);
  }
}

TEST(jump_needs_a_second_tick_or_the_confirmation_timeout) {
  StopsRig alone;
  CHECK(alone.tick(9'000).action == StopAction::kNone);
  CHECK(alone.tick(10'000).action == StopAction::kNone);
  CHECK_EQ(alone.stops.find("A")->worst, 10'000.0);
  CHECK_EQ(alone.stops.jumps(), 1u);

  StopsRig confirmed;
  confirmed.tick(9'000);
  CHECK(confirmed.tick(9'010).action == StopAction::kAll);

  StopsRig silent;
  silent.tick(9'000);
  std::vector<StopHit> hits;
  silent.stops.on_time(silent.now + kSecond / 4, hits);
  CHECK(hits.empty());
  silent.stops.on_time(silent.now + kSecond, hits);
  CHECK_EQ(hits.size(), 1u);
}

TEST(exit_is_reported_again_after_rearm) {
  StopsRig rig;
  CHECK(rig.tick(9'800).action == StopAction::kAll);
  CHECK(rig.tick(9'790).action == StopAction::kNone);
  rig.stops.rearm("A");
  CHECK(rig.tick(9'790).action == StopAction::kAll);
}

TEST(rearm_repeats_the_half_unless_a_full_exit_was_reported) {
  StopsRig rig;
  CHECK(rig.tick(9'850).action == StopAction::kHalf);
  CHECK(rig.tick(9'850).action == StopAction::kNone);
  rig.stops.rearm("A");
  CHECK(rig.tick(9'850).action == StopAction::kHalf);
  rig.stops.set_position("A", 5, 10'000, 1, {}, 0, rig.now);
  std::vector<StopHit> hits;
  rig.stops.exit_all(1, hits);
  CHECK_EQ(hits.size(), 1u);
  rig.stops.rearm("A");  // rearms the full exit; the half stays reported
  CHECK(rig.tick(9'850).action == StopAction::kNone);
}

TEST(grown_position_may_exit_again_and_a_closed_one_is_removed) {
  StopsRig rig;
  CHECK(rig.tick(9'800).action == StopAction::kAll);
  rig.stops.set_position("A", 20, 9'900, 1, {}, 0, rig.now);
  CHECK(rig.tick(9'700).action == StopAction::kAll);
  rig.stops.set_position("A", 0, 0, 1, {}, 0, rig.now);
  CHECK_EQ(rig.stops.size(), 0u);
  CHECK(rig.tick(9'000).action == StopAction::kNone);
}

TEST(volatility_exits_half_of_everything_once_and_then_all_once) {
  Stops stops(rules());
  stops.set_position("A", 10, 10'000, 1, {}, 0, 0);
  stops.set_position("B", -4, 500, 1, {}, 0, 0);
  std::vector<StopHit> hits;
  stops.exit_all(0.5, hits);
  CHECK_EQ(hits.size(), 2u);
  stops.exit_all(0.5, hits);
  CHECK_EQ(hits.size(), 2u);
  stops.exit_all(1, hits);
  CHECK_EQ(hits.size(), 4u);
  stops.exit_all(1, hits);
  CHECK_EQ(hits.size(), 4u);
  for (const StopHit& hit : hits) CHECK(hit.reason == StopReason::kVolatility);
}

TEST(invalid_price_or_unknown_symbol_does_nothing) {
  StopsRig rig;
  for (const double price : {0.0, -1.0, std::nan(""), HUGE_VAL}) CHECK(rig.tick(price).action == StopAction::kNone);
  StopHit hit;
  CHECK(!rig.stops.on_tick("Z", 1, 1, hit));
}

// For any random walk: at most two exits, never more than the position in total, and a full exit once
// a confirmed price is 2 % against the position.
TEST(random_walk_exits_in_time_and_never_twice) {
  std::mt19937_64 random(7);
  for (int walk = 0; walk < 2'000; ++walk) {
    const bool is_short = walk % 2;
    StopsRig rig(is_short ? -10 : 10);
    std::normal_distribution<double> step(0, 20);
    double price = 10'000, sold = 0;
    int halves = 0, alls = 0;
    for (int tick = 0; tick < 300; ++tick) {
      price += step(random);
      const StopHit hit = rig.tick(price);
      if (hit.action == StopAction::kHalf || hit.action == StopAction::kAll) {
        (hit.action == StopAction::kHalf ? halves : alls) += 1;
        sold += hit.quantity;
        const double left = hit.action == StopAction::kAll ? 0 : 10 - hit.quantity;
        rig.stops.set_position("A", is_short ? -left : left, 10'000, 1, {}, 0, rig.now);
        if (left == 0) break;
      }
      const double loss = is_short ? price - 10'000 : 10'000 - price;
      CHECK(loss < 200);
    }
    CHECK(halves <= 1 && alls <= 1);
    CHECK(sold <= 10);
  }
}

TEST(restored_state_continues_as_if_the_position_had_been_held_all_along) {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    const bool is_short = run % 2 != 0;
    StopsRig held(is_short ? -10 : 10);
    double price = 10'000;
    for (int step = 0; step < 400; ++step) {
      price *= 1 + std::uniform_real_distribution<>(-0.001, 0.0011)(random);
      const StopHit expected = held.tick(is_short ? mirror(price) : price);
      if (expected.action == StopAction::kAll) break;
      const PositionShadow& before = *held.stops.find("A");
      Stops restarted(rules());
      restarted.set_position("A", before.quantity, before.average, 1, {}, 0, before.entered_ns, &before);
      StopHit hit;  // the same price again: nothing that was reported is reported again
      restarted.on_tick("A", before.last, held.now, hit);
      CHECK(hit.action == StopAction::kNone || hit.action == StopAction::kAdjusted);
      const PositionShadow& after = *restarted.find("A");
      CHECK_EQ(after.best, before.best);
      CHECK_EQ(after.worst, before.worst);
      CHECK_EQ(after.trailing, before.trailing);
      CHECK_EQ(after.armed, before.armed);
      CHECK_EQ(after.half_sent, before.half_sent);
      held.stops = restarted;
    }
  }
}

TEST(restored_state_is_for_new_positions_only) {
  StopsRig rig;
  rig.tick(10'200);
  const StopState other{10'000, 10'000, 0, false, true};
  rig.stops.set_position("A", 10, 10'000, 1, {}, 0, 0, &other);
  CHECK_EQ(rig.stops.find("A")->best, 10'200.0);
  CHECK(!rig.stops.find("A")->half_sent);
}

TEST(four_restarts_at_a_loss_sell_one_half) {
  double quantity = 100;
  std::optional<StopState> state;
  int halves = 0;
  for (int life = 0; life < 5; ++life) {
    Stops stops(rules());
    stops.set_position("A", quantity, 10'000, 1, {}, 0, 0, state ? &*state : nullptr);
    for (int tick = 1; tick < 4; ++tick) {
      StopHit hit;
      if (!stops.on_tick("A", 9'840, tick * kSecond, hit)) continue;
      CHECK(hit.action == StopAction::kHalf);
      ++halves;
      quantity -= hit.quantity;
      stops.set_position("A", quantity, 10'000, 1, {}, 0, 0);
    }
    state = *stops.find("A");
  }
  CHECK_EQ(halves, 1);
  CHECK_EQ(quantity, 50.0);
}

TEST(a_position_may_have_rules_of_its_own) {
  StopsRig rig;
  StopRules wide = rules();
  wide.mae_half = 0.05, wide.mae_full = 0.1, wide.trail_arm = 0.5;
  rig.stops.set_position("B", 10, 10'000, 1, {}, 0, 0, nullptr, &wide);
  for (const double price : {10'200.0, 9'790.0}) {  // arms the trailing stop of A, then passes its limit
    StopHit hit;
    rig.tick(price);
    CHECK(!rig.stops.on_tick("B", price, rig.now, hit));
  }
  CHECK(rig.stops.find("A")->exit_sent);
  CHECK(!rig.stops.find("B")->armed);
  StopHit hit;
  CHECK(rig.stops.on_tick("B", 9'450, rig.now, hit));
  CHECK(hit.action == StopAction::kHalf);
  rig.stops.set_position("B", 5, 10'000, 1, {}, 0, 0);  // without them, those of all hold again
  CHECK(rig.stops.on_tick("B", 9'440, rig.now, hit));
  CHECK(hit.action == StopAction::kAll);
}
