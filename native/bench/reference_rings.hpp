// Reference rings, as they are usually written, to test and measure Ring against.
//
// Thread contract: one producer thread calls try_push, one consumer thread try_pop.
// Invariant: head <= tail <= head + capacity; items before tail are written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "qts/ring.hpp"

namespace qts {

// Two padded indices; each side reads the other's on every call.
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

// Each side caches the other's index and reads it again only when the copy means full or empty.
template <class T>
class CachedRing {
 public:
  explicit CachedRing(std::size_t capacity, std::uint64_t start = 0)
      : mask_(ring_capacity(capacity) - 1),
        items_(std::make_unique<T[]>(capacity)),
        tail_(start),
        cached_head_(start),
        head_(start),
        cached_tail_(start) {}

  bool try_push(const T& item) {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - cached_head_ > mask_) {
      cached_head_ = head_.load(std::memory_order_acquire);
      if (tail - cached_head_ > mask_) return false;
    }
    items_[tail & mask_] = item;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  bool try_pop(T& item) {
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == cached_tail_) {
      cached_tail_ = tail_.load(std::memory_order_acquire);
      if (head == cached_tail_) return false;
    }
    item = items_[head & mask_];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

 private:
  const std::size_t mask_;
  const std::unique_ptr<T[]> items_;
  alignas(kLinePair) std::atomic<std::uint64_t> tail_;
  std::uint64_t cached_head_;
  alignas(kLinePair) std::atomic<std::uint64_t> head_;
  std::uint64_t cached_tail_;
};

}  // namespace qts
