#include "qts/stall_floor.hpp"

#include "harness.hpp"

TEST(stall_floor_lasts_its_duration_and_adds_up) {
  const qts::StallFloor floor = qts::stall_floor(20'000'000);
  CHECK_GE(floor.duration_ns, 19'900'000u);
  CHECK_LE(floor.over_20us, floor.over_1us);
  CHECK_GE(floor.share_lost, 0.0);
  CHECK_LE(floor.share_lost, 1.0);
  CHECK_LE(floor.longest_ns, floor.duration_ns);
  CHECK_EQ(floor.over_1us == 0, floor.longest_ns == 0);
}

TEST(ping_pong_takes_between_a_nanosecond_and_a_second) {
  const double round_trip = qts::ping_pong(2'000);
  CHECK_GE(round_trip, 1.0);
  CHECK_LE(round_trip, 1e9);
}
