#include "qts/shared_ring.hpp"

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "harness.hpp"

using namespace std::chrono_literals;

namespace {

struct Shared {
  explicit Shared(std::size_t capacity) : bytes(qts::SharedRing::kOverhead + capacity) {
    memory.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    std::memset(memory.get(), 0, bytes);
  }
  qts::SharedRing side() { return qts::SharedRing(memory.get(), bytes); }

  std::size_t bytes;
  std::unique_ptr<void, void (*)(void*)> memory{nullptr, std::free};
};

// Sizes that reach the end of the ring at every offset.
std::size_t size_of(std::uint64_t number) { return 8 + number * 37 % 900; }

}  // namespace

TEST(shared_ring_returns_whole_records_in_order) {
  constexpr std::uint64_t kRecords = 20'000;
  Shared shared(4096);
  std::thread writer([side = shared.side()]() mutable {
    std::vector<unsigned char> record(1024);
    for (std::uint64_t number = 0; number < kRecords; ++number) {
      const std::size_t size = size_of(number);
      for (std::size_t i = 8; i < size; ++i) record[i] = static_cast<unsigned char>(number + i);
      std::memcpy(record.data(), &number, 8);
      while (!side.try_push(record.data(), size)) side.wait_for_capacity(size, 60s);
      side.wake();
    }
  });
  qts::SharedRing reader = shared.side();
  std::vector<unsigned char> record(1024);
  std::uint64_t wrong = 0;
  for (std::uint64_t expected = 0; expected < kRecords; ++expected) {
    while (reader.front() == SIZE_MAX) reader.wait(60s);  // one lost wake would exceed the test's time limit
    const std::size_t size = reader.front();
    wrong += size != size_of(expected);
    reader.pop(record.data(), std::min(size, record.size()));
    std::uint64_t number = 0;
    std::memcpy(&number, record.data(), 8);
    wrong += number != expected;
    for (std::size_t i = 8; i < size; ++i) wrong += record[i] != static_cast<unsigned char>(number + i);
  }
  writer.join();
  CHECK_EQ(wrong, 0u);
  CHECK_EQ(reader.front(), SIZE_MAX);
}

TEST(shared_ring_is_used_to_the_last_byte) {
  Shared shared(64);
  qts::SharedRing ring = shared.side();
  const std::vector<char> record(56);
  CHECK_EQ(ring.max_record_size(), 56u);
  CHECK(ring.try_push(record.data(), 56));
  CHECK(!ring.try_push(record.data(), 0));
  std::vector<char> out(56);
  ring.pop(out.data(), 56);
  CHECK(ring.try_push(record.data(), 0));
}

TEST(shared_ring_shares_pause_close_flag_and_marks) {
  Shared shared(256);
  qts::SharedRing engine = shared.side(), process = shared.side();
  engine.try_push("word", 4);
  engine.pause(true);
  CHECK_EQ(process.front(), SIZE_MAX);
  engine.pause(false);
  CHECK_EQ(process.front(), 4u);
  process.mark(3).what.store(7);
  CHECK_EQ(engine.mark(3).what.load(), 7u);
  engine.set_flag(true);
  CHECK(process.flag());
  engine.close();
  CHECK(process.closed());
}
