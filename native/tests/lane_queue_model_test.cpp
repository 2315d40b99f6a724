// A lane's queue beside a slow model of it, and under concurrent calls.
#include "qts/lane_queue.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "lane_queue_rig.hpp"

using namespace lane_rig;

namespace {

// A reference model of a drop_oldest lane: vectors searched from end to end.
struct ModelLane {
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

TEST(drop_oldest_agrees_with_the_model_at_every_fill_level) {
  std::mt19937 random(7);
  for (const std::size_t capacity : {1u, 2u, 5u, 16u, 64u}) {
    LaneQueue lane(1, capacity, OverflowPolicy::drop_oldest, 1, nullptr);
    ModelLane model{capacity};
    for (int i = 0; i < 20'000; ++i) {
      // Long phases of mostly puts and mostly takes: the lane is full, half full and empty many times.
      const bool flood = (i / 300) % 2 == 0;
      if (random() % 4 != (flood ? 0u : 1u) && (flood || random() % 3 == 0)) {
        static constexpr std::string_view kKeys = "abcdefghijklmnopqrstuvwxyz";
        const std::size_t key = random() % (capacity < 26 ? capacity + 1 : 26);
        CHECK(put(lane, tick(1, kKeys.substr(key, 1))) == PutResult::accepted);
        model.put(kKeys[key]);
      } else if (!model.items.empty()) {
        LaneEntry entry;
        CHECK_EQ(lane.take(&entry, 1), 1u);
        CHECK_EQ(entry.sequence, model.take());
        lane.settle(entry, false);
      }
    }
    CHECK_EQ(lane.counts().collapsed, model.collapsed);
    CHECK_EQ(lane.counts().dropped, model.dropped);
    CHECK(model.collapsed != 0);
    std::vector<LaneEntry> rest(capacity);
    CHECK_EQ(lane.take(rest.data(), capacity), model.items.size());
    for (const LaneEntry& entry : rest)
      if (entry.sequence != 0) {
        CHECK_EQ(entry.sequence, model.take());
        lane.settle(entry, false);
      }
    CHECK(balanced(lane));
  }
}

// The model is a vector searched from end to end.
TEST(drop_oldest_and_collapse_agree_with_a_slow_model) {
  struct Item {
    std::uint32_t type;
    std::string key;
    std::uint64_t sequence;
  };
  const char* keys[] = {"a", "b", "c", "d", "e", "f", "g"};
  std::uint64_t random = 1;
  for (const OverflowPolicy policy : {OverflowPolicy::drop_oldest, OverflowPolicy::collapse}) {
    LaneQueue lane(1, 5, policy, 1, nullptr);
    std::vector<Item> model;
    std::vector<std::uint64_t> superseded;  // in the order in which they became so
    std::uint64_t published = 0;
    for (int i = 0; i < 20'000; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const std::uint32_t type = 1 + (random >> 40) % 2;
      const char* key = keys[(random >> 50) % 7];
      if ((random >> 33) % 3 == 0 && !model.empty()) {
        LaneEntry entry;
        CHECK_EQ(lane.take(&entry, 1), 1u);
        lane.settle(entry, false);
        CHECK_EQ(entry.sequence, model.front().sequence);
        std::erase(superseded, model.front().sequence);
        model.erase(model.begin());
        continue;
      }
      const PutResult result = put(lane, tick(type, key));
      auto newest = model.end();
      for (auto at = model.begin(); at != model.end(); ++at)
        if (at->type == type && at->key == key) newest = at;
      const bool full = model.size() == 5;
      if (newest != model.end() && (policy == OverflowPolicy::collapse || full)) {
        newest->sequence = ++published;
        continue;
      }
      if (full && policy == OverflowPolicy::collapse) {
        CHECK(result == PutResult::full);
        continue;
      }
      if (full) {
        const std::uint64_t out = superseded.empty() ? model.front().sequence : superseded.front();
        std::erase(superseded, out);
        std::erase_if(model, [&](const Item& each) { return each.sequence == out; });
      }
      if (newest != model.end())
        for (const Item& each : model)
          if (each.type == type && each.key == key && std::find(superseded.begin(), superseded.end(), each.sequence) == superseded.end())
            superseded.push_back(each.sequence);
      model.push_back({type, key, ++published});
    }
    CHECK_EQ(lane.counts().waiting, model.size());
    CHECK(balanced(lane));
  }
}

TEST(concurrent_publishers_and_consumer_lose_nothing) {
  constexpr std::uint64_t kEach = 5'000, kPublishers = 4;
  LaneQueue lane(0, 50, OverflowPolicy::block, 1, nullptr);
  std::vector<std::thread> threads;
  for (std::uint64_t p = 0; p < kPublishers; ++p)
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; i < kEach; ++i)
        while (put(lane, tick(1, "a")) == PutResult::full) lane.wait_for_capacity(std::chrono::milliseconds(100));
    });
  std::uint64_t seen = 0, last = 0, wrong = 0;
  LaneEntry entries[16];
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

// Settling takes no lock: concurrent counts still contain every event once.
TEST(counts_balance_while_events_are_settled) {
  LaneQueue lane(0, 100, OverflowPolicy::block, 1, nullptr);
  constexpr std::uint64_t kEvents = 20'000;
  std::atomic<bool> done{false};
  std::thread publisher([&] {
    for (std::uint64_t i = 0; i < kEvents; ++i)
      while (put(lane, tick(1, "a")) == PutResult::full) lane.wait_for_capacity(std::chrono::milliseconds(100));
  });
  std::thread consumer([&] {
    LaneEntry entries[16];
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
  consumer.join();
  CHECK_EQ(wrong, 0u);
  CHECK_EQ(lane.counts().in_flight, 0u);
}
