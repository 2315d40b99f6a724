#include "qts/ring.hpp"

#include <array>
#include <deque>
#include <numeric>
#include <random>
#include <vector>

#include "allocations.hpp"
#include "harness.hpp"
#include "qts/message.hpp"

using qts::Ring;
using Numbers = Ring<std::uint64_t>;

namespace {

constexpr std::uint64_t kLast = UINT64_MAX;

std::size_t fill(Numbers& ring, std::uint64_t from) {
  std::size_t count = 0;
  while (ring.try_push(from + count)) ++count;
  return count;
}

std::vector<std::uint64_t> drain(Numbers& ring) {
  std::vector<std::uint64_t> items;
  for (std::uint64_t item = 0; ring.try_pop(item);) items.push_back(item);
  return items;
}

std::vector<std::uint64_t> counting(std::uint64_t from, std::size_t count) {
  std::vector<std::uint64_t> items(count);
  std::iota(items.begin(), items.end(), from);
  return items;
}

// Compares the ring with a deque over random calls.
void walk(std::size_t capacity, std::uint64_t start, unsigned seed) {
  Numbers ring(capacity, start);
  std::deque<std::uint64_t> model;
  std::mt19937 random(seed);
  std::uint64_t next = 0, wrong = 0;
  std::vector<std::uint64_t> buffer(capacity + 3);
  const auto expect = [&](std::uint64_t item) {
    wrong += model.empty() || model.front() != item;
    if (!model.empty()) model.pop_front();
  };
  for (int step = 0; step < 4'000; ++step) {
    const std::size_t n = random() % buffer.size();
    const std::size_t space = capacity - model.size();
    std::size_t pushed = 0, wanted = 0;
    switch (random() % 6) {
      case 0:
        wanted = 1;
        if (ring.try_push(next)) pushed = 1;
        break;
      case 1:
        std::iota(buffer.begin(), buffer.end(), next);
        wanted = n;
        pushed = ring.try_push_many(std::span<const std::uint64_t>(buffer.data(), n));
        break;
      case 2: {
        const auto run = ring.claim(n);
        for (std::size_t i = 0; i < run.size(); ++i) run[i] = next + i;
        pushed = run.size() - (run.size() > 1 ? random() % 2 : 0);
        ring.commit(pushed);
        break;
      }
      case 3:
        if (std::uint64_t item = 0; ring.try_pop(item))
          expect(item);
        else
          wrong += !model.empty();
        break;
      case 4: {
        const std::size_t popped = ring.try_pop_many(std::span(buffer.data(), n));
        wrong += popped != std::min(n, model.size());
        for (std::size_t i = 0; i < popped; ++i) expect(buffer[i]);
        break;
      }
      default: {
        const auto run = ring.peek(n);
        wrong += run.empty() != (n == 0 || model.empty());
        const std::size_t taken = run.empty() ? 0 : 1 + random() % run.size();
        for (std::size_t i = 0; i < taken; ++i) expect(run[i]);
        ring.release(taken);
      }
    }
    wrong += pushed > space;
    // Refused only when full, except for the slots the consumer has not returned yet.
    wrong += pushed < wanted && space - pushed >= ring.lag();
    for (std::size_t i = 0; i < pushed; ++i) model.push_back(next++);
    wrong += ring.size_approx() != model.size();
  }
  CHECK_EQ(wrong, 0u);
  CHECK(drain(ring) == std::vector<std::uint64_t>(model.begin(), model.end()));
}

}  // namespace

TEST(ring_refuses_a_capacity_that_is_not_a_power_of_two) {
  for (const std::size_t capacity : {0, 1, 3, 6, 1000}) CHECK_THROWS(std::invalid_argument, Numbers(capacity));
  CHECK_EQ(Numbers(2).capacity(), 2u);
}

TEST(ring_pops_in_the_order_of_pushing) {
  Numbers ring(8);
  CHECK_EQ(fill(ring, 100), 8u);
  CHECK_EQ(ring.size_approx(), 8u);
  CHECK(drain(ring) == counting(100, 8));
  CHECK_EQ(ring.size_approx(), 0u);
}

TEST(ring_is_full_at_its_capacity_and_empty_at_first) {
  for (const std::size_t capacity : {2, 4, 64, 1024}) {
    Numbers ring(capacity);
    std::uint64_t item = 0;
    CHECK(!ring.try_pop(item));
    CHECK(ring.peek(4).empty());
    CHECK_EQ(fill(ring, 0), capacity);
    CHECK(ring.claim(1).empty());
    CHECK_EQ(ring.try_push_many(std::span<const std::uint64_t>(&item, 1)), 0u);
  }
}

TEST(ring_returns_slots_late_but_always_when_found_empty) {
  Numbers ring(64);
  CHECK_EQ(ring.lag(), 8u);
  fill(ring, 0);
  std::uint64_t item = 0;
  for (std::size_t i = 1; i < ring.lag(); ++i) ring.try_pop(item);
  CHECK(!ring.try_push(64));
  ring.try_pop(item);
  CHECK_EQ(fill(ring, 64), ring.lag());
  drain(ring);
  CHECK_EQ(fill(ring, 0), 64u);
}

TEST(ring_found_empty_accepts_its_whole_capacity) {
  Numbers ring(64);
  for (std::uint64_t i = 0; i < 5; ++i) ring.try_push(i);
  CHECK_EQ(drain(ring).size(), 5u);
  CHECK_EQ(fill(ring, 0), 64u);
}

TEST(ring_batch_goes_around_the_end_in_one_piece) {
  for (const std::uint64_t start : {std::uint64_t{5}, kLast - 2}) {
    Numbers ring(8, start);
    const auto items = counting(1, 7);
    CHECK_EQ(ring.try_push_many(std::span<const std::uint64_t>(items)), 7u);
    std::vector<std::uint64_t> popped(7);
    CHECK_EQ(ring.try_pop_many(std::span(popped)), 7u);
    CHECK(popped == items);
  }
}

TEST(ring_runs_stop_at_the_end_and_continue_at_the_start) {
  Numbers ring(8, 6);
  auto run = ring.claim(5);
  CHECK_EQ(run.size(), 2u);
  run[0] = 10, run[1] = 11;
  ring.commit(2);
  run = ring.claim(5);
  CHECK_EQ(run.size(), 5u);
  for (auto& slot : run) slot = 12;
  ring.commit(3);
  run = ring.peek(8);
  CHECK_EQ(run.size(), 2u);
  CHECK_EQ(run[1], 11u);
  ring.release(2);
  CHECK_EQ(ring.peek(8).size(), 3u);
}

TEST(ring_claim_without_commit_publishes_nothing) {
  Numbers ring(4);
  ring.claim(3)[0] = 1;
  ring.commit(0);
  CHECK(ring.peek(4).empty());
  CHECK_EQ(ring.size_approx(), 0u);
}

TEST(ring_peek_without_release_pops_nothing) {
  Numbers ring(4);
  fill(ring, 7);
  CHECK_EQ(ring.peek(2)[0], 7u);
  CHECK_EQ(ring.peek(4).size(), 4u);
  CHECK(drain(ring) == counting(7, 4));
}

TEST(ring_returns_slots_written_but_not_their_items) {
  Ring<qts::Message> ring(2);
  qts::Message item;
  for (std::uint64_t i = 1; i <= 8; ++i) {
    item.sequence_number = i;
    item.price = -static_cast<std::int64_t>(i);
    CHECK(ring.try_push(item));
    qts::Message popped;
    CHECK(ring.try_pop(popped));
    CHECK(popped == item);
    CHECK(!ring.try_pop(popped));  // found empty: the slot is returned
    CHECK(ring.size_approx() == 0);
  }
  // Claimed slots hold values of an earlier lap.
  CHECK_EQ(ring.claim(1)[0].price, -7);
}

TEST(ring_stores_an_item_of_56_bytes_in_one_line) { CHECK_EQ((Ring<std::array<char, 56>>::Run::stride), 64u); }

TEST(ring_holds_96_byte_messages_in_two_lines) {
  CHECK_EQ(Ring<qts::Message>::Run::stride, 128u);
  Ring<qts::Message> ring(2);
  const auto run = ring.claim(2);
  CHECK_EQ(reinterpret_cast<std::uintptr_t>(&run[0]) % qts::kLine, 8u);
}

TEST(ring_agrees_with_a_deque) {
  for (const std::size_t capacity : {2, 4, 16, 256}) walk(capacity, 0, static_cast<unsigned>(capacity));
}

TEST(ring_agrees_with_a_deque_where_positions_wrap_at_two_to_the_64) {
  for (const std::size_t capacity : {2, 4, 16, 256})
    for (const std::uint64_t back : {0u, 1u, 7u, 300u}) walk(capacity, kLast - back, static_cast<unsigned>(capacity));
}

TEST(ring_allocates_nothing_once_built) {
  Ring<qts::Message> ring(64);
  qts::Message items[48];
  const std::uint64_t before = allocations_of_this_thread();
  std::size_t moved = 0;
  for (int lap = 0; lap < 100; ++lap) {
    moved += ring.try_push(items[0]) ? 1u : 0u;
    moved += ring.try_push_many(std::span<const qts::Message>(items));
    const std::size_t claimed = ring.claim(8).size();
    ring.commit(claimed);
    ring.release(ring.peek(8).size());
    while (ring.try_pop_many(std::span(items)) != 0) {
    }
  }
  CHECK_EQ(allocations_of_this_thread(), before);
  CHECK_EQ(moved, 4'900u);
}
