#include "qts/lane_lock.hpp"

#include <thread>
#include <vector>

#include "harness.hpp"

TEST(lane_lock_goes_to_the_highest_waiting_lane) {
  qts::LaneLock lock(3'600'000'000'000u, 3'600'000'000'000u);
  std::atomic<bool> stop{false};
  qts::LaneLock::Waiter first, low, high;
  first.lane = 2;
  low.lane = 3;
  high.lane = 1;
  CHECK(lock.acquire(first, stop));
  std::vector<int> order;
  std::thread a([&] {
    lock.acquire(low, stop);
    order.push_back(3);
    lock.release(low);
  });
  std::thread b([&] {
    lock.acquire(high, stop);
    order.push_back(1);
    lock.release(high);
  });
  while (!lock.higher_lane_waits(2)) std::this_thread::yield();
  lock.release(first);
  a.join();
  b.join();
  CHECK_EQ(order.size(), 2u);
  CHECK_EQ(order.front(), 1);
}

TEST(higher_lane_overtakes_a_long_event_and_returns_the_lock) {
  qts::LaneLock lock(1'000, 3'600'000'000'000u);
  std::atomic<bool> stop{false};
  qts::LaneLock::Waiter slow, high;
  slow.lane = 2;
  high.lane = 1;
  CHECK(lock.acquire(slow, stop));
  slow.event_began.store(qts::ticks());
  std::thread other([&] {
    CHECK(lock.acquire(high, stop));
    lock.release(high);
  });
  other.join();
  CHECK(lock.renew(slow, qts::ticks()));
  CHECK_EQ(lock.overtaken(), 1u);
}

#if defined(__linux__)
TEST(lock_of_a_sleeping_owner_is_handed_over) {
  qts::LaneLock lock(3'600'000'000'000u, 5'000'000);
  std::atomic<bool> stop{false}, taken{false};
  qts::LaneLock::Waiter sleeper, next;
  sleeper.lane = next.lane = 3;
  std::thread asleep([&] {
    sleeper.use_this_thread();
    lock.acquire(sleeper, stop);
    sleeper.event_began.store(qts::ticks());
    taken.store(true);
    while (lock.handed_over() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(!lock.renew(sleeper, qts::ticks()));
  });
  while (!taken.load()) std::this_thread::yield();
  CHECK(lock.acquire(next, stop));
  CHECK_EQ(lock.handed_over(), 1u);
  asleep.join();
  lock.release(next);
}
#endif
