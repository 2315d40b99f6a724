// Thread contract of both: one producer thread calls try_push, one consumer thread try_pop.
// Rings as they are usually written, the twins that Ring is raced against and measured beside.
// Invariant of both: head <= tail <= head + capacity; items before tail are written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "qts/ring.hpp"

namespace qts {

// The textbook: two padded indices, each side reads the other's on every call.
template <class T>
class TextbookRing {
 public:
  explicit TextbookRing(std::size_t capacity, std::uint64_t start = 0)
      : mask_(ring_capacity(capacity) - 1), items_(std::make_unique<T[]>(capacity)), tail_(start), head_(start) {}

  bool try_push(const T& item) {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) > mask_) return false;
    items_[tail & mask_] = item;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  bool try_pop(T& item) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    item = items_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  const std::size_t mask_;
  const std::unique_ptr<T[]> items_;
  alignas(kLinePair) std::atomic<std::uint64_t> tail_;
  alignas(kLinePair) std::atomic<std::uint64_t> head_;
};

// Each side keeps the other's index as last seen and reads it again only when that says full or empty.
template <class T>
class CachedRing {
 public:
  explicit CachedRing(std::size_t capacity, std::uint64_t start = 0)
      : mask_(ring_capacity(capacity) - 1),
        items_(std::make_unique<T[]>(capacity)),
        tail_(start),
        head_seen_(start),
        head_(start),
        tail_seen_(start) {}

  bool try_push(const T& item) {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_seen_ > mask_) {
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail - head_seen_ > mask_) return false;
    }
    items_[tail & mask_] = item;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  bool try_pop(T& item) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_seen_) {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head == tail_seen_) return false;
    }
    item = items_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  const std::size_t mask_;
  const std::unique_ptr<T[]> items_;
  alignas(kLinePair) std::atomic<std::uint64_t> tail_;
  std::uint64_t head_seen_;
  alignas(kLinePair) std::atomic<std::uint64_t> head_;
  std::uint64_t tail_seen_;
};

}  // namespace qts
