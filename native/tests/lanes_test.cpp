#include "qts/lanes.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "harness.hpp"

using qts::Displaced;
using qts::Entry;
using qts::LaneQueue;
using qts::Policy;
using qts::Put;

namespace {

Entry tick(std::uint32_t type, std::string_view key) {
  Entry entry;
  entry.type = type;
  entry.key = key;
  entry.hash = qts::key_hash(type, key);
  entry.can_collapse = entry.can_drop = true;
  return entry;
}

bool balanced(const LaneQueue& lane) {
  const qts::LaneCounts now = lane.counts();
  return now.published == now.handled + now.collapsed + now.dropped + now.sampled + now.dead + now.waiting + now.in_hand;
}

std::vector<std::uint64_t> take_all(LaneQueue& lane) {
  std::vector<std::uint64_t> sequences;
  Entry entry;
  while (lane.take(&entry, 1) != 0) {
    sequences.push_back(entry.sequence);
    lane.settle(entry, false);
  }
  return sequences;
}

Put put(LaneQueue& lane, Entry entry, bool over = false) {
  Displaced displaced;
  return lane.put(entry, displaced, over);
}

}  // namespace

TEST(block_refuses_when_full_and_goes_over_only_when_asked) {
  LaneQueue lane(0, 2, Policy::block, 1, nullptr);
  CHECK(put(lane, tick(1, "a")) == Put::entered);
  CHECK(put(lane, tick(1, "a")) == Put::entered);
  CHECK(put(lane, tick(1, "a")) == Put::full);
  CHECK(put(lane, tick(1, "a"), true) == Put::entered);
  CHECK_EQ(lane.counts().over, 1u);
  CHECK_EQ(take_all(lane).size(), 3u);
  CHECK(balanced(lane));
}

TEST(collapse_replaces_in_place_and_never_across_keys_or_types) {
  LaneQueue lane(2, 10, Policy::collapse, 1, nullptr);
  put(lane, tick(1, "a"));
  put(lane, tick(1, "b"));
  put(lane, tick(2, "a"));
  put(lane, tick(1, "a"));  // 4, in the place of 1
  CHECK_EQ(lane.counts().collapsed, 1u);
  const std::vector<std::uint64_t> order = take_all(lane);
  CHECK_EQ(order.size(), 3u);
  CHECK_EQ(order[0], 4u);
  CHECK_EQ(order[1], 2u);
  CHECK_EQ(order[2], 3u);
  CHECK(balanced(lane));
}

TEST(keys_with_the_same_hash_are_not_the_same_key) {
  LaneQueue lane(2, 10, Policy::collapse, 1, nullptr);
  Entry one = tick(1, "a"), other = tick(1, "b");
  other.hash = one.hash;
  put(lane, one);
  put(lane, other);
  CHECK_EQ(lane.counts().collapsed, 0u);
  CHECK_EQ(lane.counts().waiting, 2u);
}

TEST(drop_oldest_keeps_the_newest_of_every_key_while_there_is_another_way) {
  LaneQueue lane(1, 3, Policy::drop_oldest, 1, nullptr);
  put(lane, tick(1, "a"));  // 1
  put(lane, tick(1, "b"));  // 2
  put(lane, tick(1, "b"));  // 3: 2 is superseded
  put(lane, tick(1, "c"));  // 4: pushes 2 out
  put(lane, tick(1, "a"));  // 5: takes the place of 1
  CHECK_EQ(lane.counts().collapsed, 2u);
  CHECK_EQ(lane.counts().dropped, 0u);
  put(lane, tick(1, "d"));  // 6: only single ones are left, the oldest (a) goes
  CHECK_EQ(lane.counts().dropped, 1u);
  const std::vector<std::uint64_t> order = take_all(lane);
  CHECK_EQ(order.size(), 3u);
  CHECK_EQ(order[0], 3u);
  CHECK_EQ(order[1], 4u);
  CHECK_EQ(order[2], 6u);
  CHECK(balanced(lane));
}

namespace {

// A full lane that drops the oldest, told in the plainest way.
struct PlainLane {
  struct Item {
    std::uint64_t sequence;
    char key;
  };
  std::size_t capacity;
  std::uint64_t published = 0, collapsed = 0, dropped = 0;
  std::vector<Item> items{};
  std::vector<std::uint64_t> superseded{};  // in the order in which newer ones came

  void put(char key) {
    ++published;
    if (items.size() == capacity) {
      if (const std::uint64_t same = newest(key); same != 0) {
        for (Item& each : items)
          if (each.sequence == same) each.sequence = published;
        ++collapsed;
        return;
      }
      ++(superseded.empty() ? dropped : collapsed);
      remove(superseded.empty() ? items.front().sequence : superseded.front());
    }
    if (const std::uint64_t older = newest(key); older != 0) superseded.push_back(older);
    items.push_back({published, key});
  }
  std::uint64_t take() {
    const std::uint64_t sequence = items.front().sequence;
    remove(sequence);
    return sequence;
  }

 private:
  std::uint64_t newest(char key) const {
    std::uint64_t found = 0;
    for (const Item& each : items)
      if (each.key == key) found = std::max(found, each.sequence);
    return found;
  }
  void remove(std::uint64_t sequence) {
    std::erase_if(items, [&](const Item& each) { return each.sequence == sequence; });
    std::erase(superseded, sequence);
  }
};

}  // namespace

TEST(drop_oldest_does_what_the_plainest_lane_does_however_full_it_gets) {
  std::mt19937 random(7);
  for (const std::size_t capacity : {1u, 2u, 5u, 16u, 64u}) {
    LaneQueue lane(1, capacity, Policy::drop_oldest, 1, nullptr);
    PlainLane plain{capacity};
    for (int i = 0; i < 20'000; ++i) {
      // Long floods and long droughts, so that it is full, half full and empty many times.
      const bool flood = (i / 300) % 2 == 0;
      if (random() % 4 != (flood ? 0u : 1u) && (flood || random() % 3 == 0)) {
        static constexpr std::string_view kKeys = "abcdefghijklmnopqrstuvwxyz";
        const std::size_t key = random() % (capacity < 26 ? capacity + 1 : 26);
        CHECK(put(lane, tick(1, kKeys.substr(key, 1))) == Put::entered);
        plain.put(kKeys[key]);
      } else if (!plain.items.empty()) {
        Entry entry;
        CHECK_EQ(lane.take(&entry, 1), 1u);
        CHECK_EQ(entry.sequence, plain.take());
        lane.settle(entry, false);
      }
    }
    CHECK_EQ(lane.counts().collapsed, plain.collapsed);
    CHECK_EQ(lane.counts().dropped, plain.dropped);
    CHECK(plain.collapsed != 0);
    std::vector<Entry> rest(capacity);
    CHECK_EQ(lane.take(rest.data(), capacity), plain.items.size());
    for (const Entry& entry : rest)
      if (entry.sequence != 0) {
        CHECK_EQ(entry.sequence, plain.take());
        lane.settle(entry, false);
      }
    CHECK(balanced(lane));
  }
}

TEST(what_must_not_be_dropped_is_waited_for) {
  LaneQueue lane(1, 1, Policy::drop_oldest, 1, nullptr);
  Entry kept = tick(1, "a");
  kept.can_drop = false;
  put(lane, kept);
  CHECK(put(lane, tick(1, "b")) == Put::full);
}

TEST(sample_keeps_exactly_one_of_n_once_full) {
  LaneQueue lane(3, 100, Policy::sample, 10, nullptr);
  for (int i = 0; i < 100; ++i) put(lane, tick(1, "a"));
  for (int i = 0; i < 1000; ++i) put(lane, tick(1, "a"));
  const qts::LaneCounts now = lane.counts();
  CHECK_EQ(now.sampled, 900u);
  CHECK_EQ(now.dropped, 100u);
  CHECK_EQ(now.waiting, 100u);
  CHECK(balanced(lane));
}

// A twin in the plainest words: a vector searched from end to end.
TEST(drop_oldest_and_collapse_agree_with_a_slow_twin) {
  struct Item {
    std::uint32_t type;
    std::string key;
    std::uint64_t sequence;
  };
  const char* keys[] = {"a", "b", "c", "d", "e", "f", "g"};
  std::uint64_t random = 1;
  for (const Policy policy : {Policy::drop_oldest, Policy::collapse}) {
    LaneQueue lane(1, 5, policy, 1, nullptr);
    std::vector<Item> twin;
    std::vector<std::uint64_t> superseded;  // in the order in which they became so
    std::uint64_t published = 0;
    for (int i = 0; i < 20'000; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const std::uint32_t type = 1 + (random >> 40) % 2;
      const char* key = keys[(random >> 50) % 7];
      if ((random >> 33) % 3 == 0 && !twin.empty()) {
        Entry entry;
        CHECK_EQ(lane.take(&entry, 1), 1u);
        lane.settle(entry, false);
        CHECK_EQ(entry.sequence, twin.front().sequence);
        std::erase(superseded, twin.front().sequence);
        twin.erase(twin.begin());
        continue;
      }
      const Put result = put(lane, tick(type, key));
      auto newest = twin.end();
      for (auto at = twin.begin(); at != twin.end(); ++at)
        if (at->type == type && at->key == key) newest = at;
      const bool full = twin.size() == 5;
      if (newest != twin.end() && (policy == Policy::collapse || full)) {
        newest->sequence = ++published;
        continue;
      }
      if (full && policy == Policy::collapse) {
        CHECK(result == Put::full);
        continue;
      }
      if (full) {
        const std::uint64_t out = superseded.empty() ? twin.front().sequence : superseded.front();
        std::erase(superseded, out);
        std::erase_if(twin, [&](const Item& each) { return each.sequence == out; });
      }
      if (newest != twin.end())
        for (const Item& each : twin)
          if (each.type == type && each.key == key && std::find(superseded.begin(), superseded.end(), each.sequence) == superseded.end())
            superseded.push_back(each.sequence);
      twin.push_back({type, key, ++published});
    }
    CHECK_EQ(lane.counts().waiting, twin.size());
    CHECK(balanced(lane));
  }
}

TEST(publishers_and_takers_at_once_lose_nothing) {
  constexpr std::uint64_t kEach = 5'000, kPublishers = 4;
  LaneQueue lane(0, 50, Policy::block, 1, nullptr);
  std::vector<std::thread> threads;
  for (std::uint64_t p = 0; p < kPublishers; ++p)
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < kEach; ++i)
        while (put(lane, tick(1, "a")) == Put::full) lane.wait_for_room(std::chrono::milliseconds(100));
    });
  std::uint64_t seen = 0, last = 0, wrong = 0;
  Entry entries[16];
  while (seen < kEach * kPublishers) {
    const std::size_t count = lane.take(entries, 16);
    for (std::size_t i = 0; i < count; ++i) {
      wrong += entries[i].sequence != ++last;
      lane.settle(entries[i], false);
    }
    seen += count;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong, 0u);
  CHECK_EQ(lane.counts().handled, kEach * kPublishers);
  CHECK(balanced(lane));
}

TEST(many_at_once_are_put_as_one_by_one) {
  const char* keys[] = {"a", "b", "c", "d", "e", "f", "g"};
  for (const Policy policy : {Policy::block, Policy::drop_oldest, Policy::collapse, Policy::sample}) {
    LaneQueue one(1, 5, policy, 3, nullptr), many(1, 5, policy, 3, nullptr);
    std::uint64_t random = 3, wrong = 0;
    for (int round = 0; round < 2'000; ++round) {
      std::vector<Entry> entries;
      std::vector<Displaced> out, expected;
      for (int i = 0; i < 1 + round % 9; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        entries.push_back(tick(1 + (random >> 40) % 2, keys[(random >> 50) % 7]));
      }
      std::size_t entered = 0;
      for (; entered < entries.size(); ++entered) {
        Entry entry = entries[entered];
        Displaced displaced;
        const Put result = one.put(entry, displaced);
        if (result == Put::full) break;
        if (result == Put::left_out) displaced = {entry, qts::Leaving::left_out};
        if (displaced.why != qts::Leaving::none) expected.push_back(displaced);
      }
      wrong += many.put_many(entries.data(), entries.size(), out) != entered || out.size() != expected.size();
      for (std::size_t i = 0; i < std::min(out.size(), expected.size()); ++i)
        wrong += out[i].why != expected[i].why || out[i].entry.sequence != expected[i].entry.sequence;
      Entry a, b;
      const std::size_t taken = one.take(&a, 1);
      wrong += many.take(&b, 1) != taken || a.sequence != b.sequence || a.key != b.key;
      one.settle(a, false);
      many.settle_alone(b, false);
    }
    CHECK_EQ(wrong, 0u);
    CHECK_EQ(one.counts().handled, many.counts().handled);
    CHECK_EQ(one.counts().collapsed + one.counts().dropped, many.counts().collapsed + many.counts().dropped);
    CHECK(balanced(one) && balanced(many));
  }
}

// Settling takes no lock: whoever counts meanwhile still finds every event once.
TEST(counts_balance_while_events_are_settled) {
  LaneQueue lane(0, 100, Policy::block, 1, nullptr);
  constexpr std::uint64_t kEvents = 20'000;
  std::atomic<bool> done{false};
  std::thread publisher([&] {
    for (std::uint64_t i = 0; i < kEvents; ++i)
      while (put(lane, tick(1, "a")) == Put::full) lane.wait_for_room(std::chrono::milliseconds(100));
  });
  std::thread taker([&] {
    Entry entries[16];
    for (std::uint64_t seen = 0; seen < kEvents;) {
      const std::size_t count = lane.take(entries, 16);
      for (std::size_t i = 0; i < count; ++i) lane.settle(entries[i], i % 3 == 0);
      seen += count;
    }
    done.store(true);
  });
  std::uint64_t wrong = 0;
  while (!done.load()) wrong += !balanced(lane);
  publisher.join();
  taker.join();
  CHECK_EQ(wrong, 0u);
  CHECK_EQ(lane.counts().in_hand, 0u);
}

TEST(a_key_has_one_hash_and_its_type_is_part_of_it) {
  std::map<std::uint64_t, int> seen;
  for (std::uint32_t type = 0; type < 32; ++type)
    for (int number = 0; number < 2'500; ++number) ++seen[qts::key_hash(type, std::to_string(number))];
  CHECK_EQ(seen.size(), 32u * 2'500u);
  const std::string texts[] = {"", "a", "abc", "abcd", "abcdefg", "abcdefgh", "abcdefghi", std::string("a\0", 2)};
  for (const std::string& one : texts)
    for (const std::string& other : texts)
      CHECK_EQ(qts::key_hash(1, one) == qts::key_hash(1, std::string(other)), one == other);
}

TEST(replay_makes_every_drop_and_collapse_again) {
  const qts::LaneSpec spec{8, Policy::drop_oldest, 1, 1, 0, false};
  std::array<qts::LaneSpec, 4> specs{spec, spec, spec, spec};
  specs[2].policy = Policy::collapse;
  specs[3].policy = Policy::sample;
  specs[3].keep_one_of = 3;
  qts::Lanes lanes(specs, SIZE_MAX, 1'000'000);
  std::uint64_t random = 7;
  const char* keys[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
  for (int i = 0; i < 5'000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    LaneQueue& lane = lanes[1 + (random >> 35) % 3].queue;
    Entry taken[3];
    if ((random >> 45) % 3 == 0) lane.take(taken, 1 + (random >> 50) % 3);
    else put(lane, tick(1, keys[(random >> 55) % 11]), true);
  }
  const auto recorded = lanes.audit().drain();
  const auto again = qts::replay(specs, recorded);
  CHECK_EQ(again.size(), recorded.size());
  std::uint64_t differ = 0;
  for (std::size_t i = 0; i < std::min(again.size(), recorded.size()); ++i)
    differ += again[i].deed != recorded[i].deed || again[i].sequence != recorded[i].sequence ||
              again[i].other != recorded[i].other;
  CHECK_EQ(differ, 0u);
}

TEST(the_turn_goes_to_the_highest_lane_that_waits) {
  qts::Turn turn(3'600'000'000'000u, 3'600'000'000'000u);
  std::atomic<bool> stop{false};
  qts::Turn::Seat first, low, high;
  first.lane = 2;
  low.lane = 3;
  high.lane = 1;
  CHECK(turn.take(first, stop));
  std::vector<int> order;
  std::thread a([&] {
    turn.take(low, stop);
    order.push_back(3);
    turn.leave(low);
  });
  std::thread b([&] {
    turn.take(high, stop);
    order.push_back(1);
    turn.leave(high);
  });
  while (!turn.wanted_above(2)) std::this_thread::yield();
  turn.leave(first);
  a.join();
  b.join();
  CHECK_EQ(order.size(), 2u);
  CHECK_EQ(order.front(), 1);
}

TEST(a_higher_lane_overtakes_a_long_event_and_gives_the_turn_back) {
  qts::Turn turn(1'000, 3'600'000'000'000u);
  std::atomic<bool> stop{false};
  qts::Turn::Seat slow, high;
  slow.lane = 2;
  high.lane = 1;
  CHECK(turn.take(slow, stop));
  slow.event_began.store(qts::ticks());
  std::thread other([&] {
    CHECK(turn.take(high, stop));
    turn.leave(high);
  });
  other.join();
  CHECK(turn.keep(slow, qts::ticks()));
  CHECK_EQ(turn.times_overtaken(), 1u);
}

#if defined(__linux__)
TEST(a_sleeping_owner_lends_its_turn) {
  qts::Turn turn(3'600'000'000'000u, 5'000'000);
  std::atomic<bool> stop{false}, taken{false};
  qts::Turn::Seat sleeper, next;
  sleeper.lane = next.lane = 3;
  std::thread asleep([&] {
    sleeper.sit();
    turn.take(sleeper, stop);
    sleeper.event_began.store(qts::ticks());
    taken.store(true);
    while (turn.times_lent() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(!turn.keep(sleeper, qts::ticks()));
  });
  while (!taken.load()) std::this_thread::yield();
  CHECK(turn.take(next, stop));
  CHECK_EQ(turn.times_lent(), 1u);
  asleep.join();
  turn.leave(next);
}
#endif
