// Thread contract: one producer thread calls claim, commit and try_push*; one consumer thread
// calls peek, release and try_pop*; any thread may ask for size_approx.
//
// Positions count items since `start` and wrap at 2^64; position p lives in slot p mod capacity.
// A batch [p, q) becomes visible by one release store of q into the word `published` of slot p,
// which stands in the first cache line of the item, so the consumer polls the line it is about
// to read and there is no shared tail:
//
//     published <= p   nothing at p yet (left over from an earlier lap)
//     published == q   every item of [p, q) may be read
//
// Invariant: head <= ready <= tail <= head + capacity, and `ready` is always the start of a batch.
// A word left by an earlier lap can never look fresh: that batch began at least one capacity
// earlier and was at most one capacity long, so its end is <= p.
//
// The way back is lazy: the consumer publishes its head every `lag` items and whenever it finds
// the ring empty. A push may therefore be refused while fewer than `lag` slots are free in truth;
// a consumer that keeps polling always frees them. Nothing is allocated after construction.
//
// Slots go back changed, not only read. A line that was only read stays shared by both cores, and
// to write it again the producer must have every copy thrown away first; a line the consumer has
// written moves to the producer in one step. Between two L3s of a Zen 3 that is 17 ns against
// 1.7 ns a line: three to four times the messages a second, whatever the batch. Asking for the
// lines early (prefetchw, 4 to 64 slots ahead) did not help.
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
#include <type_traits>

namespace qts {

inline constexpr std::size_t kLine = 64;
// Neighbouring lines travel in pairs on common machines: what two threads write stays a pair apart.
inline constexpr std::size_t kLinePair = 128;

inline std::size_t ring_capacity(std::size_t capacity) {
  if (capacity < 2 || !std::has_single_bit(capacity))
    throw std::invalid_argument("a ring's capacity is a power of two, 2 or more");
  return capacity;
}

// A slot has its lines to itself: packed slots (104 bytes for a 96-byte item) move fewer lines in
// batches, but share them, and were slower in every use.
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
  // Where the mark costs no room, and `published` is not in the last line already.
  static constexpr bool kMarked = sizeof(MarkedSlot) == sizeof(PlainSlot) && sizeof(PlainSlot) > kLine;
  using Slot = std::conditional_t<kMarked, MarkedSlot, PlainSlot>;

 public:
  // Items next to each other in the ring, `stride` bytes apart: never across its end.
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
  // How many slots may be free and not yet known to the producer, plus one.
  std::size_t lag() const { return lag_; }

  // For display: exact when both sides rest.
  std::size_t size_approx() const {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    const std::uint64_t size = producer_.tail.load(std::memory_order_relaxed) - head;
    // The two loads are not one moment: a head read too early or too late is clipped.
    return static_cast<std::int64_t>(size) < 0 ? 0 : std::min<std::uint64_t>(size, capacity());
  }

  // ---- producer ----

  bool try_push(const T& item) {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    if (tail == producer_.limit && room(tail, 1) == 0) return false;
    slots_[tail & mask_].value = item;
    publish(tail, 1);
    return true;
  }

  // Pushes the first items that fit and says how many.
  std::size_t try_push_many(std::span<const T> items) {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    const std::size_t count = std::min<std::uint64_t>(items.size(), room(tail, items.size()));
    for (std::size_t i = 0; i < count; ++i) slots_[(tail + i) & mask_].value = items[i];
    if (count != 0) publish(tail, count);
    return count;
  }

  // At most n free slots to write in place; they hold what an earlier lap left. Shorter than n at
  // the ring's end or when it is nearly full, empty when it is full. Claiming again without
  // commit gives the same slots.
  Run claim(std::size_t n) {
    const std::uint64_t tail = producer_.tail.load(std::memory_order_relaxed);
    return run_at(tail, std::min<std::uint64_t>(n, room(tail, n)));
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
    if (head == consumer_.ready && waiting(head, 1) == 0) return false;
    item = slots_[head & mask_].value;
    advance(head, 1);
    return true;
  }

  // Pops what is there, at most items.size(), and says how many.
  std::size_t try_pop_many(std::span<T> items) {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    const std::size_t count = std::min<std::uint64_t>(items.size(), waiting(head, items.size()));
    for (std::size_t i = 0; i < count; ++i) items[i] = slots_[(head + i) & mask_].value;
    if (count != 0) advance(head, count);
    return count;
  }

  // At most n waiting items to read (or change) in place, in order.
  Run peek(std::size_t n) {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    return run_at(head, std::min<std::uint64_t>(n, waiting(head, n)));
  }

  // Gives the first n peeked slots back.
  void release(std::size_t n) {
    const std::uint64_t head = consumer_.head.load(std::memory_order_relaxed);
    assert(n <= consumer_.ready - head);
    advance(head, n);
  }

 private:
  // Written by one thread only; atomic so that size_approx may look.
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

  // Free slots; looks at the consumer's line only when fewer than `wanted` are known.
  std::uint64_t room(std::uint64_t tail, std::uint64_t wanted) {
    if (producer_.limit - tail < wanted)
      producer_.limit = released_.load(std::memory_order_acquire) + capacity();
    return producer_.limit - tail;
  }

  void publish(std::uint64_t tail, std::uint64_t count) {
    slots_[tail & mask_].published.store(tail + count, std::memory_order_release);
    producer_.tail.store(tail + count, std::memory_order_relaxed);
  }

  // Items that may be read; looks for new batches while fewer than `wanted` are known.
  std::uint64_t waiting(std::uint64_t head, std::uint64_t wanted) {
    std::uint64_t ready = consumer_.ready;
    while (ready - head < wanted) {
      const std::uint64_t end = slots_[ready & mask_].published.load(std::memory_order_acquire);
      if (static_cast<std::int64_t>(end - ready) <= 0) break;
      ready = end;
    }
    consumer_.ready = ready;
    if (ready == head) {
      // Only the first line of a slot is polled: asks for its last one too, so that both come together.
      if constexpr (kMarked) __builtin_prefetch(&slots_[head & mask_].returned);
      if (head != consumer_.released) hand_back(head);
    }
    return ready - head;
  }

  void advance(std::uint64_t head, std::uint64_t count) {
    consumer_.head.store(head + count, std::memory_order_relaxed);
    if (head + count - consumer_.released >= lag_) hand_back(head + count);
  }

  void hand_back(std::uint64_t head) {
    for (std::uint64_t position = consumer_.released; position != head; ++position) {
      Slot& slot = slots_[position & mask_];
      slot.published.store(position, std::memory_order_relaxed);  // as old as what stood there
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
  // Nothing else may move onto the last line.
  [[maybe_unused]] std::byte tail_padding_[kLinePair - sizeof(std::uint64_t)];
};

}  // namespace qts
