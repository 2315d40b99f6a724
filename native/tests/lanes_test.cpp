#include "qts/lanes.hpp"

#include <algorithm>
#include <string_view>

#include "harness.hpp"

using qts::LaneEntry;
using qts::LaneQueue;
using qts::OverflowPolicy;

namespace {

void publish(LaneQueue& lane, std::string_view key) {
  LaneEntry entry;
  entry.type = 1;
  entry.key = key;
  entry.hash = qts::key_hash(1, key);
  entry.can_collapse = entry.can_drop = true;
  qts::Displaced displaced;
  lane.put(entry, displaced, true);
}

}  // namespace

TEST(replay_repeats_every_drop_and_collapse) {
  const qts::LaneSpec spec{8, OverflowPolicy::drop_oldest, 1, 1, 0, false};
  std::array<qts::LaneSpec, 4> specs{spec, spec, spec, spec};
  specs[2].policy = OverflowPolicy::collapse;
  specs[3].policy = OverflowPolicy::sample;
  specs[3].share = LaneQueue::kAll * 7 / 10;
  qts::Lanes lanes(specs, SIZE_MAX, 1'000'000);
  std::uint64_t random = 7;
  const char* keys[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
  for (int i = 0; i < 5'000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    LaneQueue& lane = lanes[1 + (random >> 35) % 3].queue;
    LaneEntry taken[3];
    if ((random >> 45) % 3 == 0) lane.take(taken, 1 + (random >> 50) % 3);
    else publish(lane, keys[(random >> 55) % 11]);
  }
  const auto recorded = lanes.audit().drain();
  const auto again = qts::replay(specs, recorded);
  CHECK_EQ(again.size(), recorded.size());
  std::uint64_t differ = 0;
  for (std::size_t i = 0; i < std::min(again.size(), recorded.size()); ++i)
    differ += again[i].action != recorded[i].action || again[i].sequence != recorded[i].sequence ||
              again[i].other != recorded[i].other;
  CHECK_EQ(differ, 0u);
}
