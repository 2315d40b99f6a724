// Two threads: every kind of push against every kind of pop, on Ring and on the reference rings.
#include <string>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "qts/message.hpp"
#include "qts/ring.hpp"
#include "qts/wait_strategy.hpp"
#include "reference_rings.hpp"

using qts::Message;

namespace {

constexpr std::uint64_t kItems = 200'000;
constexpr std::size_t kBatch = 13;

// Every field follows from the number, so a torn or stale slot is seen.
void write(Message& message, std::uint64_t i) {
  message = Message{};
  message.sequence_number = i;
  message.symbol_id = static_cast<std::uint32_t>(i * 7);
  message.stage1_exit_ns = i ^ 0x5555;
  message.processing_exit_ns = i * 3;
  message.price = -static_cast<std::int64_t>(i);
}

bool is(const Message& message, std::uint64_t i) {
  Message expected;
  write(expected, i);
  return message == expected;
}

struct OneByOne {
  template <class R>
  static std::size_t push(R& ring, std::uint64_t next, std::uint64_t) {
    Message message;
    write(message, next);
    return ring.try_push(message) ? 1 : 0;
  }
  template <class R>
  static std::size_t pop(R& ring, std::uint64_t next, std::uint64_t& wrong) {
    Message message;
    if (!ring.try_pop(message)) return 0;
    wrong += !is(message, next);
    return 1;
  }
};

struct Batches {
  template <class R>
  static std::size_t push(R& ring, std::uint64_t next, std::uint64_t end) {
    Message batch[kBatch];
    const std::size_t count = std::min<std::uint64_t>(kBatch, end - next);
    for (std::size_t i = 0; i < count; ++i) write(batch[i], next + i);
    return ring.try_push_many(std::span<const Message>(batch, count));
  }
  template <class R>
  static std::size_t pop(R& ring, std::uint64_t next, std::uint64_t& wrong) {
    Message batch[kBatch + 4];
    const std::size_t count = ring.try_pop_many(std::span<Message>(batch));
    for (std::size_t i = 0; i < count; ++i) wrong += !is(batch[i], next + i);
    return count;
  }
};

struct InPlace {
  template <class R>
  static std::size_t push(R& ring, std::uint64_t next, std::uint64_t end) {
    const auto run = ring.claim(std::min<std::uint64_t>(kBatch, end - next));
    std::uint64_t i = next;
    for (Message& message : run) write(message, i++);
    ring.commit(run.size());
    return run.size();
  }
  // Sometimes releases only a part of what it peeked.
  template <class R>
  static std::size_t pop(R& ring, std::uint64_t next, std::uint64_t& wrong) {
    const auto run = ring.peek(kBatch + 4);
    const std::size_t count = run.size() > 2 && next % 3 == 0 ? run.size() - 1 : run.size();
    for (std::size_t i = 0; i < count; ++i) wrong += !is(run[i], next + i);
    ring.release(count);
    return count;
  }
};

struct Outcome {
  std::uint64_t received = 0;
  std::uint64_t wrong = 0;
};

template <class R, class Push, class Pop>
Outcome race(std::size_t capacity, std::uint64_t start, std::uint64_t items = kItems) {
  R ring(capacity, start);
  Outcome outcome;
  std::thread consumer([&] {
    qts::SpinYield wait;
    while (outcome.received < items) {
      const std::size_t count = Pop::pop(ring, outcome.received, outcome.wrong);
      outcome.received += count;
      count == 0 ? wait.idle() : wait.reset();
    }
    Message extra;
    outcome.wrong += ring.try_pop(extra);
  });
  qts::SpinYield wait;
  for (std::uint64_t next = 0; next < items;) {
    const std::size_t count = Push::push(ring, next, items);
    next += count;
    count == 0 ? wait.idle() : wait.reset();
  }
  consumer.join();
  return outcome;
}

template <class R, class Push, class Pop>
void expect_order(std::size_t capacity = 256) {
  for (const std::uint64_t start : {std::uint64_t{0}, UINT64_MAX - kItems / 2}) {
    const Outcome outcome = race<R, Push, Pop>(capacity, start);
    CHECK_EQ(outcome.received, kItems);
    CHECK_EQ(outcome.wrong, 0u);
  }
}

using Ours = qts::Ring<Message>;

}  // namespace

TEST(race_one_by_one_to_one_by_one) { expect_order<Ours, OneByOne, OneByOne>(); }
TEST(race_one_by_one_to_batches) { expect_order<Ours, OneByOne, Batches>(); }
TEST(race_one_by_one_to_in_place) { expect_order<Ours, OneByOne, InPlace>(); }
TEST(race_batches_to_one_by_one) { expect_order<Ours, Batches, OneByOne>(); }
TEST(race_batches_to_batches) { expect_order<Ours, Batches, Batches>(); }
TEST(race_batches_to_in_place) { expect_order<Ours, Batches, InPlace>(); }
TEST(race_in_place_to_one_by_one) { expect_order<Ours, InPlace, OneByOne>(); }
TEST(race_in_place_to_batches) { expect_order<Ours, InPlace, Batches>(); }
TEST(race_in_place_to_in_place) { expect_order<Ours, InPlace, InPlace>(); }
TEST(race_on_a_ring_of_two) {
  const Outcome outcome = race<Ours, Batches, InPlace>(2, UINT64_MAX - 1'000, 20'000);
  CHECK_EQ(outcome.received, 20'000u);
  CHECK_EQ(outcome.wrong, 0u);
}
TEST(race_textbook_ring) { expect_order<qts::TextbookRing<Message>, OneByOne, OneByOne>(); }
TEST(race_cached_index_ring) { expect_order<qts::CachedRing<Message>, OneByOne, OneByOne>(); }

TEST(race_depth_seen_from_a_third_thread_stays_within_capacity) {
  Ours ring(64);
  std::atomic<bool> done{false};
  std::uint64_t too_deep = 0, looks = 0;
  std::thread watcher([&] {
    while (!done.load(std::memory_order_acquire)) {
      too_deep += ring.size_approx() > 64;
      ++looks;
      sched_yield();
    }
  });
  std::thread consumer([&] {
    qts::SpinYield wait;
    for (std::uint64_t got = 0, wrong = 0; got < 30'000;) {
      const std::size_t count = OneByOne::pop(ring, got, wrong);
      got += count;
      count == 0 ? wait.idle() : wait.reset();
    }
  });
  qts::SpinYield wait;
  for (std::uint64_t next = 0; next < 30'000;) {
    const std::size_t count = OneByOne::push(ring, next, 30'000);
    next += count;
    count == 0 ? wait.idle() : wait.reset();
  }
  consumer.join();
  done.store(true, std::memory_order_release);
  watcher.join();
  CHECK_EQ(too_deep, 0u);
  CHECK_EQ(ring.size_approx(), 0u);
}
