#include "reference_rings.hpp"

#include "harness.hpp"

namespace {

template <class R>
void expect_queue(std::uint64_t start) {
  R ring(4, start);
  int item = 0;
  CHECK(!ring.try_pop(item));
  for (int lap = 0; lap < 10; ++lap) {
    for (int i = 0; i < 4; ++i) CHECK(ring.try_push(lap * 4 + i));
    CHECK(!ring.try_push(-1));
    for (int i = 0; i < 4; ++i) {
      CHECK(ring.try_pop(item));
      CHECK_EQ(item, lap * 4 + i);
    }
    CHECK(!ring.try_pop(item));
  }
  CHECK_THROWS(std::invalid_argument, R(3));
}

}  // namespace

TEST(textbook_ring_is_a_queue) {
  expect_queue<qts::TextbookRing<int>>(0);
  expect_queue<qts::TextbookRing<int>>(UINT64_MAX - 9);
}

TEST(cached_index_ring_is_a_queue) {
  expect_queue<qts::CachedRing<int>>(0);
  expect_queue<qts::CachedRing<int>>(UINT64_MAX - 9);
}
