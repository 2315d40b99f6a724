// LaneSlots: the slots of a lane's queue, doubly linked lists inside one vector, each oldest entry first.
//
// Entries wait in the main list. Entries of a type that may not be taken now are moved to a list of their
// type, so that taking does not pass over them again and again.
//
// Thread contract: LaneQueue calls every method under its lock.
// Invariant: each slot is in the main list, in the list of its type, or in the chain of free slots.
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
  std::uint32_t place = 0;                       // rises along a list; compared as a difference, because it wraps
  bool superseded = false;                       // a newer entry of its key is waiting
  bool in_index = false;                         // was added to the index, and may be its key's newest
  bool held = false;                             // in the list of its type
};

struct SlotList {
  std::uint32_t head = LaneSlot::kNone, tail = LaneSlot::kNone;
  std::size_t size = 0;
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
  std::uint32_t head() const { return main_.head; }
  std::size_t main_size() const { return main_.size; }
  std::size_t size() const { return main_.size + held_size_; }
  const SlotList& held(std::uint32_t type) const {
    static const SlotList kEmpty;
    return type < held_.size() ? held_[type] : kEmpty;
  }
  bool is_older(std::uint32_t one, std::uint32_t other) const {
    return static_cast<std::int32_t>(slots_[one].place - slots_[other].place) < 0;
  }

  // Copies an entry to the end of the main list and returns its slot.
  std::uint32_t append(const LaneEntry& entry) {
    const std::uint32_t at = take_free();
    LaneSlot& slot = slots_[at];
    slot.entry = entry;
    slot.before = main_.tail;
    slot.after = slot.older = slot.younger = kNone;
    slot.place = next_place_++;
    slot.superseded = slot.in_index = slot.held = false;
    (main_.tail == kNone ? main_.head : slots_[main_.tail].after) = at;
    main_.tail = at;
    ++main_.size;
    return at;
  }

  // Copies an entry to the beginning of the main list, or of its type's list, and returns its slot.
  std::uint32_t prepend(const LaneEntry& entry, bool held) {
    const std::uint32_t at = take_free();
    SlotList& list = held ? held_list(entry.type) : main_;
    LaneSlot& slot = slots_[at];
    slot.entry = entry;
    slot.before = slot.older = slot.younger = kNone;
    slot.after = list.head;
    slot.place = next_place_ - 1;
    for (const std::uint32_t first : {main_.head, list.head})
      if (first != kNone && static_cast<std::int32_t>(slots_[first].place - slot.place) <= 0) slot.place = slots_[first].place - 1;
    slot.superseded = slot.in_index = false;
    slot.held = held;
    (list.head == kNone ? list.tail : slots_[list.head].before) = at;
    list.head = at;
    ++list.size;
    if (held) ++held_size_;
    return at;
  }

  void remove(std::uint32_t at) {
    unlink(at);
    add_free(at, at);
  }

  // Moves a slot of the main list to the end of its type's list.
  void hold(std::uint32_t at) {
    unlink(at);
    LaneSlot& slot = slots_[at];
    SlotList& list = held_list(slot.entry.type);
    slot.held = true;
    slot.before = list.tail;
    slot.after = kNone;
    (list.tail == kNone ? list.head : slots_[list.tail].after) = at;
    list.tail = at;
    ++list.size;
    ++held_size_;
  }

  // Frees the first `count` slots of the main list, of which `last` is the last and `next` follows it, as one chain.
  void remove_front(std::uint32_t last, std::uint32_t next, std::size_t count) {
    add_free(main_.head, last);
    main_.head = next;
    (next == kNone ? main_.tail : slots_[next].before) = kNone;
    main_.size -= count;
  }

 private:
  SlotList& held_list(std::uint32_t type) {
    if (type >= held_.size()) held_.resize(type + 1);
    return held_[type];
  }

  std::uint32_t take_free() {
    std::uint32_t at = free_;
    if (at != kNone) {
      free_ = slots_[at].after;
    } else {
      at = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    return at;
  }

  void unlink(std::uint32_t at) {
    const LaneSlot& slot = slots_[at];
    SlotList& list = slot.held ? held_[slot.entry.type] : main_;
    (slot.before == kNone ? list.head : slots_[slot.before].after) = slot.after;
    (slot.after == kNone ? list.tail : slots_[slot.after].before) = slot.before;
    --list.size;
    if (slot.held) --held_size_;
  }

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
  SlotList main_;
  std::vector<SlotList> held_;  // by type
  std::size_t held_size_ = 0;
  std::uint32_t free_ = kNone, free_tail_ = kNone;
  std::uint32_t next_place_ = 0;
};

}  // namespace qts
