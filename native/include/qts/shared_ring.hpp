// SharedRing: a ring of byte records between two processes, in memory that both have mapped.
//
// Thread contract: one thread of one process pushes, one thread of the other pops (several may share
// the role under a lock); everything else may be called from any thread of either process.
// Invariant: a record is visible completely or not at all. Its bytes are written before `tail` moves, so
// that a process killed in the middle of a push leaves the ring as it was before the push.
//
//   | control, kMarks marks | records: 8 bytes of length, the bytes, up to the next 8 |
//
// A mark holds what a thread of the popping process has in flight; it stays readable when the process ends.
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
#include <string>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "qts/clock.hpp"

namespace qts {

// Where threads of either process wait. notify() and wait() both modify `waiters_`: a notify() that comes
// second finds the waiter and changes the word, which the kernel compares last; one that came first has
// released everything it wrote before, and the waiter's last check finds it.
class SharedWakeSignal {
 public:
  template <class HasWork>
  void wait(std::chrono::nanoseconds timeout, HasWork&& has_work) {
    const std::uint32_t seen = word_.load(std::memory_order_seq_cst);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    if (!has_work()) wait_on_word(seen, timeout);
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
  }
  void notify() {
    if (waiters_.fetch_add(0, std::memory_order_seq_cst) == 0) return;
    word_.fetch_add(1, std::memory_order_seq_cst);
#if defined(__linux__)
    syscall(SYS_futex, &word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
  }

 private:
  void wait_on_word(std::uint32_t seen, std::chrono::nanoseconds timeout) {
#if defined(__linux__)
    const timespec limit{static_cast<std::time_t>(timeout.count() / 1'000'000'000),
                         static_cast<long>(timeout.count() % 1'000'000'000)};
    syscall(SYS_futex, &word_, FUTEX_WAIT, seen, &limit, nullptr, 0);
#else
    const timespec limit{0, static_cast<long>(std::min<std::int64_t>(timeout.count(), 200'000))};
    if (word_.load(std::memory_order_seq_cst) == seen) nanosleep(&limit, nullptr);
#endif
  }

  std::atomic<std::uint32_t> word_{0}, waiters_{0};
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
};

class SharedRing {
 public:
  static constexpr std::size_t kMarks = 16;

  struct InFlightMark {
    std::atomic<std::uint64_t> what{0};   // 0: nothing
    std::atomic<std::uint64_t> began{0};  // ticks
  };

  // The memory must be zero before the first side maps it; both sides then share one ring.
  SharedRing(void* memory, std::size_t bytes)
      : control_(static_cast<Control*>(memory)), data_(static_cast<std::byte*>(memory) + sizeof(Control)),
        capacity_(bytes > sizeof(Control) ? (bytes - sizeof(Control)) / 8 * 8 : 0) {
    if (reinterpret_cast<std::uintptr_t>(memory) % alignof(Control) != 0)
      throw std::invalid_argument("the memory of a shared ring must start at a multiple of 64 bytes");
    if (capacity_ < 64) throw std::invalid_argument("a shared ring needs at least " + std::to_string(sizeof(Control) + 64) +
                                                       " bytes of memory, not " + std::to_string(bytes));
  }

  std::size_t max_record_size() const { return capacity_ - 8; }

  bool try_push(const void* bytes, std::size_t size) {
    if (size > max_record_size())
      throw std::length_error("a record of " + std::to_string(size) + " bytes is larger than the ring, which takes " +
                              std::to_string(max_record_size()));
    const std::uint64_t tail = control_->tail.load(std::memory_order_relaxed);
    const std::uint64_t need = 8 + padded(size);
    if (capacity_ - (tail - control_->head.load(std::memory_order_acquire)) < need) return false;
    const std::uint64_t length = size;
    write(tail, &length, 8);
    write(tail + 8, bytes, size);
    control_->tail.store(tail + need, std::memory_order_release);
    return true;
  }
  // Wakes the popping side; call after one or more pushes.
  void wake() { control_->pushed.notify(); }
  bool wait_for_capacity(std::size_t size, std::chrono::nanoseconds timeout) {
    const auto fits = [&] { return closed() || free_bytes() >= 8 + padded(size); };
    control_->popped.wait(timeout, fits);
    return fits();
  }

  // The size of the oldest record; SIZE_MAX: the ring is empty or paused.
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
    control_->popped.notify();
  }
  bool wait(std::chrono::nanoseconds timeout) {
    const auto readable = [&] { return closed() || front() != SIZE_MAX; };
    control_->pushed.wait(timeout, readable);
    return readable();
  }

  void pause(bool paused) {
    control_->paused.store(paused ? 1 : 0, std::memory_order_seq_cst);
    control_->pushed.notify();
  }
  void close() {
    control_->closed.store(1, std::memory_order_seq_cst);
    control_->pushed.notify();
    control_->popped.notify();
  }
  bool closed() const { return control_->closed.load(std::memory_order_seq_cst) != 0; }
  void set_flag(bool on) { control_->flag.store(on ? 1 : 0, std::memory_order_relaxed); }
  bool flag() const { return control_->flag.load(std::memory_order_relaxed) != 0; }

  InFlightMark& mark(std::size_t slot) { return control_->marks[slot % kMarks]; }

 private:
  struct Control {
    alignas(64) std::atomic<std::uint64_t> head;
    alignas(64) std::atomic<std::uint64_t> tail;
    alignas(64) SharedWakeSignal pushed;
    SharedWakeSignal popped;
    std::atomic<std::uint32_t> closed, paused, flag;
    alignas(64) InFlightMark marks[kMarks];
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

  static std::size_t padded(std::size_t size) { return (size + 7) / 8 * 8; }
  std::size_t free_bytes() const {
    return capacity_ - (control_->tail.load(std::memory_order_acquire) - control_->head.load(std::memory_order_acquire));
  }
  void write(std::uint64_t at, const void* from, std::size_t size) {
    const std::size_t offset = at % capacity_, first = std::min(size, capacity_ - offset);
    std::memcpy(data_ + offset, from, first);
    std::memcpy(data_, static_cast<const std::byte*>(from) + first, size - first);
  }
  void read(std::uint64_t at, void* to, std::size_t size) const {
    const std::size_t offset = at % capacity_, first = std::min(size, capacity_ - offset);
    std::memcpy(to, data_ + offset, first);
    std::memcpy(static_cast<std::byte*>(to) + first, data_, size - first);
  }

  Control* const control_;
  std::byte* const data_;
  const std::size_t capacity_;

 public:
  static constexpr std::size_t kOverhead = sizeof(Control);
};

}  // namespace qts
