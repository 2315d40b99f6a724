// LaneSlots: the slots of a lane's queue, a doubly linked list inside one vector, oldest entry first.
//
// Thread contract: LaneQueue calls every method under its lock.
// Invariant: each slot is either in the list of waiting entries or in the chain of free slots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "qts/lane_entry.hpp"

namespace qts {

struct LaneSlot {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  LaneEntry entry;
  std::uint32_t before = kNone, after = kNone;
  std::uint32_t older = kNone, younger = kNone;  // neighbours in the list of superseded entries
  bool superseded = false;                       // a newer entry of its key is waiting
  bool in_index = false;                         // was added to the index, and may be its key's newest
};

class LaneSlots {
 public:
  static constexpr std::uint32_t kNone = LaneSlot::kNone;

  explicit LaneSlots(std::size_t capacity) {
    slots_.reserve(std::min(capacity, kReserved));  // address space: memory is committed on first use,
    slots_.resize(std::min(capacity, kTouched));    // and a usual burst finds it committed
    slots_.clear();
  }

  LaneSlot& operator[](std::uint32_t at) { return slots_[at]; }
  const LaneSlot& operator[](std::uint32_t at) const { return slots_[at]; }
  std::uint32_t head() const { return head_; }
  std::size_t size() const { return size_; }

  // Copies an entry to the end of the list and returns its slot.
  std::uint32_t append(const LaneEntry& entry) {
    std::uint32_t at = free_;
    if (at != kNone) {
      free_ = slots_[at].after;
    } else {
      at = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    LaneSlot& slot = slots_[at];
    slot.entry = entry;
    slot.before = tail_;
    slot.after = slot.older = slot.younger = kNone;
    slot.superseded = slot.in_index = false;
    (tail_ == kNone ? head_ : slots_[tail_].after) = at;
    tail_ = at;
    ++size_;
    return at;
  }

  void remove(std::uint32_t at) {
    LaneSlot& slot = slots_[at];
    (slot.before == kNone ? head_ : slots_[slot.before].after) = slot.after;
    (slot.after == kNone ? tail_ : slots_[slot.after].before) = slot.before;
    add_free(at, at);
    --size_;
  }

  // Frees the first `count` slots, of which `last` is the last and `next` follows it, as one chain.
  void remove_front(std::uint32_t last, std::uint32_t next, std::size_t count) {
    add_free(head_, last);
    head_ = next;
    (next == kNone ? tail_ : slots_[next].before) = kNone;
    size_ -= count;
  }

 private:
  // Free slots are reused first in, first out: slots then follow each other in memory in the order of
  // the list, and hardware prefetching works. Publisher and consumer mostly run on two processors, and
  // the second one would otherwise miss the cache at each slot.
  void add_free(std::uint32_t first, std::uint32_t last) {
    slots_[last].after = kNone;
    (free_ == kNone ? free_ : slots_[free_tail_].after) = first;
    free_tail_ = last;
  }

  static constexpr std::size_t kReserved = 1 << 16;
  static constexpr std::size_t kTouched = 1 << 14;

  std::vector<LaneSlot> slots_;
  std::size_t size_ = 0;
  std::uint32_t head_ = kNone, tail_ = kNone, free_ = kNone, free_tail_ = kNone;
};

}  // namespace qts
