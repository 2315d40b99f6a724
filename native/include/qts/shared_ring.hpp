// A ring of byte records between two processes, in memory that both have mapped.
//
// Thread contract: one thread of one process pushes, one thread of the other pops (several may take
// turns under a lock of their own); everything else may be called from any thread of either.
// Invariant: a record is there whole or not at all. Its bytes are written before `tail` moves, so
// that a process killed in the middle of a push leaves the ring as it was before it.
//
//   | control, kSlots marks | records: 8 bytes of length, the bytes, up to the next 8 |
//
// A mark says what a thread of the popping process has in hand; it outlives the process.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <new>
#include <stdexcept>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "qts/clock.hpp"

namespace qts {

// Where threads of either process sleep. Waker and sleeper both change `sleepers_`: a waker that comes
// second sees the sleeper and changes the word, which the kernel looks at last; one that came first
// has handed over all it wrote before, and the sleeper's last look for work sees it.
class SharedBell {
 public:
  template <class Work>
  void sleep(std::chrono::nanoseconds most, Work&& work) {
    const std::uint32_t seen = word_.load(std::memory_order_seq_cst);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (!work()) wait(seen, most);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  void ring() {
    if (sleepers_.fetch_add(0, std::memory_order_seq_cst) == 0) return;
    word_.fetch_add(1, std::memory_order_seq_cst);
#if defined(__linux__)
    syscall(SYS_futex, &word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
  }

 private:
  void wait(std::uint32_t seen, std::chrono::nanoseconds most) {
#if defined(__linux__)
    const timespec nap{static_cast<std::time_t>(most.count() / 1'000'000'000), static_cast<long>(most.count() % 1'000'000'000)};
    syscall(SYS_futex, &word_, FUTEX_WAIT, seen, &nap, nullptr, 0);
#else
    const timespec nap{0, static_cast<long>(std::min<std::int64_t>(most.count(), 200'000))};
    if (word_.load(std::memory_order_seq_cst) == seen) nanosleep(&nap, nullptr);
#endif
  }

  std::atomic<std::uint32_t> word_{0}, sleepers_{0};
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
};

class SharedRing {
 public:
  static constexpr std::size_t kSlots = 16;

  struct Mark {
    std::atomic<std::uint64_t> what{0};   // 0: nothing
    std::atomic<std::uint64_t> began{0};  // ticks
  };

  // The memory must be zero at first; both sides then see one ring.
  SharedRing(void* memory, std::size_t bytes)
      : control_(static_cast<Control*>(memory)), data_(static_cast<std::byte*>(memory) + sizeof(Control)),
        capacity_(bytes > sizeof(Control) ? (bytes - sizeof(Control)) / 8 * 8 : 0) {
    if (reinterpret_cast<std::uintptr_t>(memory) % alignof(Control) != 0)
      throw std::invalid_argument("the memory of a shared ring begins at a cache line");
    if (capacity_ < 64) throw std::invalid_argument("a shared ring needs more memory");
  }

  std::size_t largest() const { return capacity_ - 8; }

  bool try_push(const void* bytes, std::size_t size) {
    if (size > largest()) throw std::length_error("the record is larger than the ring");
    const std::uint64_t tail = control_->tail.load(std::memory_order_relaxed);
    const std::uint64_t need = 8 + padded(size);
    if (capacity_ - (tail - control_->head.load(std::memory_order_acquire)) < need) return false;
    const std::uint64_t length = size;
    write(tail, &length, 8);
    write(tail + 8, bytes, size);
    control_->tail.store(tail + need, std::memory_order_release);
    return true;
  }
  // After one push or many.
  void wake() { control_->filled.ring(); }
  bool wait_for_room(std::size_t size, std::chrono::nanoseconds most) {
    const auto has = [&] { return closed() || room() >= 8 + padded(size); };
    control_->emptied.sleep(most, has);
    return has();
  }

  // The size of the oldest record; SIZE_MAX: there is none, or the ring is paused.
  std::size_t front() const {
    if (control_->paused.load(std::memory_order_relaxed) != 0) return SIZE_MAX;
    const std::uint64_t head = control_->head.load(std::memory_order_relaxed);
    if (head == control_->tail.load(std::memory_order_acquire)) return SIZE_MAX;
    std::uint64_t size = 0;
    read(head, &size, 8);
    return size;
  }
  void pop(void* out, std::size_t size) {
    const std::uint64_t head = control_->head.load(std::memory_order_relaxed);
    read(head + 8, out, size);
    control_->head.store(head + 8 + padded(size), std::memory_order_release);
    control_->emptied.ring();
  }
  bool wait(std::chrono::nanoseconds most) {
    const auto has = [&] { return closed() || front() != SIZE_MAX; };
    control_->filled.sleep(most, has);
    return has();
  }

  void pause(bool paused) {
    control_->paused.store(paused ? 1 : 0, std::memory_order_seq_cst);
    control_->filled.ring();
  }
  void close() {
    control_->closed.store(1, std::memory_order_seq_cst);
    control_->filled.ring();
    control_->emptied.ring();
  }
  bool closed() const { return control_->closed.load(std::memory_order_seq_cst) != 0; }
  void set_flag(bool on) { control_->flag.store(on ? 1 : 0, std::memory_order_relaxed); }
  bool flag() const { return control_->flag.load(std::memory_order_relaxed) != 0; }

  Mark& mark(std::size_t slot) { return control_->marks[slot % kSlots]; }

 private:
  struct Control {
    alignas(64) std::atomic<std::uint64_t> head;
    alignas(64) std::atomic<std::uint64_t> tail;
    alignas(64) SharedBell filled;
    SharedBell emptied;
    std::atomic<std::uint32_t> closed, paused, flag;
    alignas(64) Mark marks[kSlots];
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  static std::size_t padded(std::size_t size) { return (size + 7) / 8 * 8; }
  std::size_t room() const {
    return capacity_ - (control_->tail.load(std::memory_order_acquire) - control_->head.load(std::memory_order_acquire));
  }
  void write(std::uint64_t at, const void* from, std::size_t size) {
    const std::size_t place = at % capacity_, first = std::min(size, capacity_ - place);
    std::memcpy(data_ + place, from, first);
    std::memcpy(data_, static_cast<const std::byte*>(from) + first, size - first);
  }
  void read(std::uint64_t at, void* to, std::size_t size) const {
    const std::size_t place = at % capacity_, first = std::min(size, capacity_ - place);
    std::memcpy(to, data_ + place, first);
    std::memcpy(static_cast<std::byte*>(to) + first, data_, size - first);
  }

  Control* const control_;
  std::byte* const data_;
  const std::size_t capacity_;

 public:
  static constexpr std::size_t kOverhead = sizeof(Control);
};

}  // namespace qts
