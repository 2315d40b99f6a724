// Ring: a bounded lock-free queue between one producer thread and one consumer thread.
//
// Thread contract: one producer thread calls claim, commit and try_push*; one consumer thread
// calls peek, release and try_pop*; any thread may call size_approx.
//
// Positions count items since `start` and wrap at 2^64; position p lives in slot p mod capacity.
// A batch [p, q) becomes visible by one release store of q into the word `published` of slot p,
// which is in the first cache line of the item, so the consumer polls the line it is about to
// read and there is no shared tail:
//
//     published <= p   nothing at p yet (a value of an earlier lap)
//     published == q   every item of [p, q) may be read
//
// Invariant: head <= ready <= tail <= head + capacity, and `ready` is always the start of a batch.
// A value of an earlier lap is never taken for a new one: that batch began at least one capacity
// earlier and was at most one capacity long, so its end is <= p.
//
// Slots are returned lazily: the consumer publishes its head every `lag` items and whenever it finds
// the ring empty. A push may therefore be refused while fewer than `lag` slots are free; a consumer
// that keeps polling always returns them. Nothing is allocated after construction.
//
// The consumer writes to each slot before it returns it. A cache line that was only read stays shared
// by both cores, and the producer must invalidate the other copy before it writes; a line that the
// consumer has written moves to the producer in one step. Between two L3s of a Zen 3 that is 17 ns
// against 1.7 ns a line: three to four times the messages per second, for any batch size. Prefetching
// the lines (prefetchw, 4 to 64 slots ahead) did not help.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace qts {

inline constexpr std::size_t kLine = 64;
// Common processors prefetch lines in pairs: what two threads write is a pair of lines apart.
inline constexpr std::size_t kLinePair = 128;

inline std::size_t ring_capacity(std::size_t capacity) {
  if (capacity < 2 || !std::has_single_bit(capacity))
    throw std::invalid_argument("capacity must be a power of two, 2 or more, not " + std::to_string(capacity));
  return capacity;
}

// A slot shares no cache line: packed slots (104 bytes for a 96-byte item) need fewer lines per batch,
// but share them, and were slower in every use.
template <class T>
class Ring {
  static_assert(std::is_trivially_copyable_v<T> && std::is_default_constructible_v<T>);

  static constexpr std::size_t kSlotAlign = std::max(kLine, alignof(T));
  struct alignas(kSlotAlign) PlainSlot {
    std::atomic<std::uint64_t> published{0};
    T value{};
  };
  struct alignas(kSlotAlign) MarkedSlot {
    std::atomic<std::uint64_t> published{0};
    T value{};
    std::atomic<std::uint64_t> returned{0};  // for the consumer to write, in the slot's last line
  };
  // Where the mark does not enlarge the slot, and `published` is not in the last line already.
  static constexpr bool kMarked = sizeof(MarkedSlot) == sizeof(PlainSlot) && sizeof(PlainSlot) > kLine;
  using Slot = std::conditional_t<kMarked, MarkedSlot, PlainSlot>;

 public:
  // Contiguous items of the ring, `stride` bytes apart; never across its end.
  class Run {
   public:
    class Iterator {
     public:
      using value_type = T;
      using difference_type = std::ptrdiff_t;

      Iterator() = default;
      explicit Iterator(Slot* slot) : slot_(slot) {}
      T& operator*() const { return slot_->value; }
      T* operator->() const { return &slot_->value; }
      Iterator& operator++() {
        ++slot_;
        return *this;
      }
      Iterator operator++(int) { return Iterator(slot_++); }
      bool operator==(const Iterator&) const = default;

     private:
      Slot* slot_ = nullptr;
    };

    static constexpr std::size_t stride = sizeof(Slot);

    Run() = default;
    Run(Slot* first, std::size_t size) : first_(first), size_(size) {}
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    T& operator[](std::size_t i) const { return first_[i].value; }
    Iterator begin() const { return Iterator(first_); }
    Iterator end() const { return Iterator(first_ + size_); }

   private:
    Slot* first_ = nullptr;
    std::size_t size_ = 0;
  };

  explicit Ring(std::size_t capacity, std::uint64_t start = 0)
      : mask_(ring_capacity(capacity) - 1),
        lag_(std::clamp<std::uint64_t>(capacity / 8, 1, 128)),
        slots_(std::make_unique<Slot[]>(capacity)) {
    for (std::size_t i = 0; i < capacity; ++i) slots_[i].published.store(start, std::memory_order_relaxed);
    producer_.tail.store(start, std::memory_order_relaxed);
    producer_.limit = start + capacity;
    consumer_.head.store(start, std::memory_order_relaxed);
    consumer_.ready = consumer_.released = start;
    released_.store(start, std::memory_order_release);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::size_t capacity() const { return mask_ + 1; }
  // Up to lag() - 1 slots may be free without the producer seeing it.
  std::size_t lag() const { return lag_; }

  // For display: exact while neither side runs.
  std::size_t size_approx() const {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    const std::uint64_t size = producer_.tail.load(std::memory_order_relaxed) - head;
    // The two loads are not atomic together: the result is clipped to the possible range.
    return static_cast<std::int64_t>(size) < 0 ? 0 : std::min<std::uint64_t>(size, capacity());
  }

  // ---- producer ----

  bool try_push(const T& item) {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    if (tail == producer_.limit && free_slots(tail, 1) == 0) return false;
    slots_[tail & mask_].value = item;
    publish(tail, 1);
    return true;
  }

  // Pushes the first items that fit and returns how many.
  std::size_t try_push_many(std::span<const T> items) {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    const std::size_t count = std::min<std::uint64_t>(items.size(), free_slots(tail, items.size()));
    for (std::size_t i = 0; i < count; ++i) slots_[(tail + i) & mask_].value = items[i];
    if (count != 0) publish(tail, count);
    return count;
  }

  // Returns at most n free slots to write in place; they hold values of an earlier lap. Shorter than
  // n at the ring's end or when it is nearly full, empty when it is full. Claiming again without
  // commit returns the same slots.
  Run claim(std::size_t n) {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    return run_at(tail, std::min<std::uint64_t>(n, free_slots(tail, n)));
  }

  // Publishes the first n claimed slots.
  void commit(std::size_t n) {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    assert(n <= producer_.limit - tail);
    if (n != 0) publish(tail, n);
  }

  // ---- consumer ----

  bool try_pop(T& item) {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    if (head == consumer_.ready && readable(head, 1) == 0) return false;
    item = slots_[head & mask_].value;
    advance(head, 1);
    return true;
  }

  // Pops the available items, at most items.size(), and returns how many.
  std::size_t try_pop_many(std::span<T> items) {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    const std::size_t count = std::min<std::uint64_t>(items.size(), readable(head, items.size()));
    for (std::size_t i = 0; i < count; ++i) items[i] = slots_[(head + i) & mask_].value;
    if (count != 0) advance(head, count);
    return count;
  }

  // Returns at most n waiting items to read (or change) in place, in order.
  Run peek(std::size_t n) {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    return run_at(head, std::min<std::uint64_t>(n, readable(head, n)));
  }

  // Returns the first n peeked slots to the producer.
  void release(std::size_t n) {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    assert(n <= consumer_.ready - head);
    advance(head, n);
  }

 private:
  // Each is written by one thread; the indices are atomic for size_approx.
  struct alignas(kLinePair) Producer {
    std::atomic<std::uint64_t> tail{0};
    std::uint64_t limit = 0;  // the last head seen, plus capacity
  };
  struct alignas(kLinePair) Consumer {
    std::atomic<std::uint64_t> head{0};
    std::uint64_t ready = 0;     // everything before it may be read
    std::uint64_t released = 0;  // the head last published
  };

  Run run_at(std::uint64_t position, std::uint64_t count) {
    const std::size_t index = position & mask_;
    return Run(&slots_[index], std::min<std::size_t>(count, capacity() - index));
  }

  // Free slots; reads the consumer's line only when fewer than `wanted` are known.
  std::uint64_t free_slots(std::uint64_t tail, std::uint64_t wanted) {
    if (producer_.limit - tail < wanted)
      producer_.limit = released_.load(std::memory_order_acquire) + capacity();
    return producer_.limit - tail;
  }

  void publish(std::uint64_t tail, std::uint64_t count) {
    slots_[tail & mask_].published.store(tail + count, std::memory_order_release);
    producer_.tail.store(tail + count, std::memory_order_relaxed);
  }

  // Items that may be read; checks for new batches while fewer than `wanted` are known.
  std::uint64_t readable(std::uint64_t head, std::uint64_t wanted) {
    std::uint64_t ready = consumer_.ready;
    while (ready - head < wanted) {
      const std::uint64_t end = slots_[ready & mask_].published.load(std::memory_order_acquire);
      if (static_cast<std::int64_t>(end - ready) <= 0) break;
      ready = end;
    }
    consumer_.ready = ready;
    if (ready == head) {
      // Only the first line of a slot is polled: prefetch its last one, so that both arrive together.
      if constexpr (kMarked) __builtin_prefetch(&slots_[head & mask_].returned);
      if (head != consumer_.released) return_slots(head);
    }
    return ready - head;
  }

  void advance(std::uint64_t head, std::uint64_t count) {
    consumer_.head.store(head + count, std::memory_order_relaxed);
    if (head + count - consumer_.released >= lag_) return_slots(head + count);
  }

  void return_slots(std::uint64_t head) {
    for (std::uint64_t position = consumer_.released; position != head; ++position) {
      Slot& slot = slots_[position & mask_];
      slot.published.store(position, std::memory_order_relaxed);  // no newer than the value it replaces
      if constexpr (kMarked) slot.returned.store(position, std::memory_order_relaxed);
    }
    consumer_.released = head;
    released_.store(head, std::memory_order_release);
  }

  const std::size_t mask_;
  const std::uint64_t lag_;
  const std::unique_ptr<Slot[]> slots_;
  Producer producer_;
  Consumer consumer_;
  alignas(kLinePair) std::atomic<std::uint64_t> released_{0};
  // Keeps other objects off the last line.
  [[maybe_unused]] std::byte tail_padding_[kLinePair - sizeof(std::uint64_t)];
};

}  // namespace qts
