#include "qts/lane_queue.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "harness.hpp"
#include "lane_queue_rig.hpp"

using namespace lane_rig;

TEST(block_refuses_when_full_and_overflows_only_on_request) {
  LaneQueue lane(0, 2, OverflowPolicy::block, 1, nullptr);
  CHECK(put(lane, tick(1, "a")) == PutResult::accepted);
  CHECK(put(lane, tick(1, "a")) == PutResult::accepted);
  CHECK(put(lane, tick(1, "a")) == PutResult::full);
  CHECK(put(lane, tick(1, "a"), true) == PutResult::accepted);
  CHECK_EQ(lane.counts().overflowed, 1u);
  CHECK_EQ(take_all(lane).size(), 3u);
  CHECK(balanced(lane));
}

TEST(collapse_replaces_in_place_and_never_across_keys_or_types) {
  LaneQueue lane(2, 10, OverflowPolicy::collapse, 1, nullptr);
  put(lane, tick(1, "a"));
  put(lane, tick(1, "b"));
  put(lane, tick(2, "a"));
  put(lane, tick(1, "a"));  // 4, replaces 1
  CHECK_EQ(lane.counts().collapsed, 1u);
  const std::vector<std::uint64_t> order = take_all(lane);
  CHECK_EQ(order.size(), 3u);
  CHECK_EQ(order[0], 4u);
  CHECK_EQ(order[1], 2u);
  CHECK_EQ(order[2], 3u);
  CHECK(balanced(lane));
}

TEST(keys_with_the_same_hash_are_not_the_same_key) {
  LaneQueue lane(2, 10, OverflowPolicy::collapse, 1, nullptr);
  LaneEntry one = tick(1, "a"), other = tick(1, "b");
  other.hash = one.hash;
  put(lane, one);
  put(lane, other);
  CHECK_EQ(lane.counts().collapsed, 0u);
  CHECK_EQ(lane.counts().waiting, 2u);
}

TEST(drop_oldest_keeps_the_newest_of_every_key_while_it_can) {
  LaneQueue lane(1, 3, OverflowPolicy::drop_oldest, 1, nullptr);
  put(lane, tick(1, "a"));  // 1
  put(lane, tick(1, "b"));  // 2
  put(lane, tick(1, "b"));  // 3: 2 is superseded
  put(lane, tick(1, "c"));  // 4: displaces 2
  put(lane, tick(1, "a"));  // 5: replaces 1
  CHECK_EQ(lane.counts().collapsed, 2u);
  CHECK_EQ(lane.counts().dropped, 0u);
  put(lane, tick(1, "d"));  // 6: every key waits once, so the oldest is dropped
  CHECK_EQ(lane.counts().dropped, 1u);
  const std::vector<std::uint64_t> order = take_all(lane);
  CHECK_EQ(order.size(), 3u);
  CHECK_EQ(order[0], 3u);
  CHECK_EQ(order[1], 4u);
  CHECK_EQ(order[2], 6u);
  CHECK(balanced(lane));
}

TEST(full_lane_of_undroppable_events_refuses) {
  LaneQueue lane(1, 1, OverflowPolicy::drop_oldest, 1, nullptr);
  LaneEntry kept = tick(1, "a");
  kept.can_drop = false;
  put(lane, kept);
  CHECK(put(lane, tick(1, "b")) == PutResult::full);
}

TEST(sample_keeps_exactly_one_of_n_once_full) {
  LaneQueue lane(3, 100, OverflowPolicy::sample, LaneQueue::kAll / 10, nullptr);
  for (int i = 0; i < 100; ++i) put(lane, tick(1, "a"));
  for (int i = 0; i < 1000; ++i) put(lane, tick(1, "a"));
  const qts::LaneCounts now = lane.counts();
  CHECK_EQ(now.sampled, 900u);
  CHECK_EQ(now.dropped, 100u);
  CHECK_EQ(now.waiting, 100u);
  CHECK(balanced(lane));
}

TEST(sample_keeps_any_share_by_counting) {
  for (const std::uint64_t percent : {1u, 33u, 40u, 60u, 70u, 90u, 99u, 100u}) {
    LaneQueue lane(3, 100, OverflowPolicy::sample, LaneQueue::kAll / 100 * percent, nullptr);
    for (int i = 0; i < 100; ++i) put(lane, tick(1, "a"));
    for (std::uint64_t i = 1; i <= 1000; ++i) {
      put(lane, tick(1, "a"));
      CHECK_EQ(lane.counts().dropped, (i * percent + 99) / 100);  // after each event, not only at the end
    }
    CHECK(balanced(lane));
  }
}

TEST(an_event_that_no_handler_was_called_with_counts_as_dropped) {
  LaneQueue lane(1, 10, OverflowPolicy::drop_oldest, 1, nullptr);
  put(lane, tick(1, "a"));
  LaneEntry entry;
  lane.take(&entry, 1);
  CHECK_EQ(lane.counts().in_flight, 1u);
  lane.settle_dropped(entry);
  CHECK_EQ(lane.counts().dropped, 1u);
  CHECK_EQ(lane.counts().in_flight, 0u);
  CHECK(balanced(lane));
}

TEST(a_window_keeps_other_entries_of_its_type_in_the_lane) {
  LaneQueue lane(1, 10, OverflowPolicy::drop_oldest, 1, nullptr);
  lane.change_limits([](qts::TypeLimits& limits) { limits.set_window(1, 2); });
  for (const char* key : {"a", "b", "c", "d", "e"}) put(lane, tick(1, key));
  put(lane, tick(2, "x"));
  LaneEntry out[10];
  CHECK_EQ(lane.take(out, 10), 3u);  // two of type 1, and the one of type 2 behind them
  CHECK_EQ(out[1].sequence, 2u);
  CHECK_EQ(out[2].type, 2u);
  CHECK_EQ(lane.take(out, 10), 0u);
  CHECK_EQ(lane.size(), 0u);  // none may be taken
  CHECK_EQ(lane.counts().waiting, 3u);
  lane.change_limits([](qts::TypeLimits& limits) { limits.release_permit(1); });
  CHECK_EQ(lane.size(), 1u);
  CHECK(lane.ready(100, UINT64_MAX, 0));
  CHECK_EQ(lane.take(out, 10), 1u);
  CHECK_EQ(out[0].sequence, 3u);
  for (int i = 0; i < 20; ++i) put(lane, tick(3, std::string_view("ABCDEFGHIJKLMNOPQRST").substr(static_cast<std::size_t>(i), 1)));
  CHECK_EQ(lane.counts().waiting, 10u);  // the entries that wait for a permit are dropped first: they are the oldest
  lane.change_limits([](qts::TypeLimits& limits) { limits.clear(); });
  CHECK_EQ(lane.take(out, 10), 10u);
  CHECK(std::all_of(out, out + 10, [](const LaneEntry& each) { return each.type == 3; }));
}

// Whatever is held, released and put back: each entry is taken once, and those of a type in order.
TEST(limited_types_lose_nothing_and_keep_their_order) {
  for (const OverflowPolicy policy : {OverflowPolicy::block, OverflowPolicy::drop_oldest, OverflowPolicy::collapse}) {
    std::mt19937 random(7);
    LaneQueue lane(1, 40, policy, 1, nullptr);
    lane.change_limits([](qts::TypeLimits& limits) { limits.set_window(3, 2); });
    std::map<std::uint32_t, std::uint64_t> last;
    std::vector<LaneEntry> flying;
    const auto finish = [&](const LaneEntry& entry) {
      lane.settle(entry, false);
      if (entry.type == 3) lane.change_limits([](qts::TypeLimits& limits) { limits.release_permit(3); });
    };
    std::uint64_t wrong = 0;
    for (int round = 0; round < 20'000; ++round) {
      const auto type = static_cast<std::uint32_t>(1 + random() % 3);
      LaneEntry out[8];
      switch (random() % 5) {
        case 0:
        case 1: {
          LaneEntry entry = tick(type, std::string_view("abcdefgh").substr(random() % 8, 1));
          entry.can_collapse = policy == OverflowPolicy::collapse && type == 2;
          put(lane, entry);
          break;
        }
        case 2: {
          const std::size_t taken = lane.take(out, 1 + random() % 8);
          const std::size_t back = taken == 0 ? 0 : random() % taken;  // the last ones are put back
          for (std::size_t i = 0; i + back < taken; ++i) {
            if (out[i].type != 2) wrong += out[i].sequence <= last[out[i].type];
            last[out[i].type] = out[i].sequence;
            flying.push_back(out[i]);
          }
          lane.put_back(out + taken - back, back);
          break;
        }
        case 3: lane.change_limits([&](qts::TypeLimits& limits) { limits.hold(type, random() % 2 != 0); }); break;
        default:
          if (!flying.empty()) {
            finish(flying.back());
            flying.pop_back();
          }
      }
      wrong += !balanced(lane) || lane.counts().in_flight != flying.size();
    }
    CHECK_EQ(wrong, 0u);
    for (const LaneEntry& each : flying) finish(each);
    lane.change_limits([](qts::TypeLimits& limits) { limits.clear(); });
    take_all(lane);
    CHECK_EQ(lane.counts().waiting, 0u);
    CHECK(balanced(lane));
  }
}

TEST(put_many_equals_single_puts) {
  const char* keys[] = {"a", "b", "c", "d", "e", "f", "g"};
  for (const OverflowPolicy policy : {OverflowPolicy::block, OverflowPolicy::drop_oldest, OverflowPolicy::collapse, OverflowPolicy::sample}) {
    LaneQueue one(1, 5, policy, LaneQueue::kAll / 3, nullptr), many(1, 5, policy, LaneQueue::kAll / 3, nullptr);
    std::uint64_t random = 3, wrong = 0;
    for (int round = 0; round < 2'000; ++round) {
      std::vector<LaneEntry> entries;
      std::vector<Displaced> out, expected;
      for (int i = 0; i < 1 + round % 9; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        entries.push_back(tick(1 + (random >> 40) % 2, keys[(random >> 50) % 7]));
      }
      std::size_t entered = 0;
      for (; entered < entries.size(); ++entered) {
        LaneEntry entry = entries[entered];
        Displaced displaced;
        const PutResult result = one.put(entry, displaced);
        if (result == PutResult::full) break;
        if (result == PutResult::sampled_out) displaced = {entry, qts::DisplacedReason::sampled_out};
        if (displaced.reason != qts::DisplacedReason::none) expected.push_back(displaced);
      }
      wrong += many.put_many(entries.data(), entries.size(), out) != entered || out.size() != expected.size();
      for (std::size_t i = 0; i < std::min(out.size(), expected.size()); ++i)
        wrong += out[i].reason != expected[i].reason || out[i].entry.sequence != expected[i].entry.sequence;
      LaneEntry a, b;
      const std::size_t taken = one.take(&a, 1);
      wrong += many.take(&b, 1) != taken || a.sequence != b.sequence || a.key != b.key;
      one.settle(a, false);
      many.settle_exclusive(b, false);
    }
    CHECK_EQ(wrong, 0u);
    CHECK_EQ(one.counts().handled, many.counts().handled);
    CHECK_EQ(one.counts().collapsed + one.counts().dropped, many.counts().collapsed + many.counts().dropped);
    CHECK(balanced(one) && balanced(many));
  }
}

TEST(key_hash_depends_on_type_and_key_only) {
  std::map<std::uint64_t, int> seen;
  for (std::uint32_t type = 0; type < 32; ++type)
    for (int number = 0; number < 2'500; ++number) ++seen[qts::key_hash(type, std::to_string(number))];
  CHECK_EQ(seen.size(), 32u * 2'500u);
  const std::string texts[] = {"", "a", "abc", "abcd", "abcdefg", "abcdefgh", "abcdefghi", std::string("a\0", 2)};
  for (const std::string& one : texts)
    for (const std::string& other : texts)
      CHECK_EQ(qts::key_hash(1, one) == qts::key_hash(1, std::string(other)), one == other);
}
