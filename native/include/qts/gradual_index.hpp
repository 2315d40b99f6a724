// GradualIndex: a KeyIndex of a lane's waiting entries that is built a few entries at a time.
//
// collapse needs the newest entry of each key always, drop_oldest only when the lane is full: that index is
// built from half full on, a few entries at each put, and discarded when the lane is empty.
//
// Thread contract: LaneQueue calls every method under its lock.
// Invariant: while on, every entry older than `next_` is in the index, except entries put back whose key has
// a newer one there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "qts/key_index.hpp"
#include "qts/type_limits.hpp"

namespace qts {

class GradualIndex {
 public:
  static constexpr std::uint32_t kNone = LaneSlots::kNone;

  explicit GradualIndex(bool always) : always_(always), on_(always) {}

  bool on() const { return on_; }
  std::uint32_t find(const LaneSlots& slots, const LaneEntry& entry) const { return index_.find(slots, entry); }
  std::uint32_t first_superseded() const { return index_.first_superseded(); }

  // Returns whether the entry is indexed by its key; its hash is computed then.
  static bool hash_key(LaneEntry& entry) {
    if (!entry.can_collapse) return false;
    if (entry.hash == 0) entry.hash = key_hash(entry.type, entry.key);
    return true;
  }

  void start(LaneSlots& slots, const TypeLimits& limits) {
    on_ = true;
    for (const std::uint32_t type : limits.held_types())  // older than those of the main list
      for (std::uint32_t at = slots.held(type).head; at != kNone; at = slots[at].after) insert(slots, at);
    next_ = slots.head();
  }
  // Adds at most `max` entries that are not in the index yet, the oldest first.
  [[gnu::noinline]] void extend(LaneSlots& slots, std::size_t max) {
    for (; next_ != kNone && max != 0; --max) {
      const std::uint32_t at = next_;
      next_ = slots[at].after;
      insert(slots, at);
    }
  }
  void on_append(LaneSlots& slots, std::uint32_t at) {
    if (next_ == kNone) next_ = at;
    extend(slots, kIndexedPerPut);
  }
  // A newer entry of its key may be waiting; this one then stays out and is handled first.
  void on_put_back(LaneSlots& slots, std::uint32_t at) {
    if (on_ && hash_key(slots[at].entry) && index_.find(slots, slots[at].entry) == kNone) index_.insert(slots, at);
  }
  // Before the entry leaves the main list for the list of its type.
  void on_hold(LaneSlots& slots, std::uint32_t at) {
    if (at == next_) extend(slots, 1);
  }
  void remove(LaneSlots& slots, std::uint32_t at) {
    index_.remove(slots, at);
    if (at == next_) next_ = slots[at].after;
  }
  void stop_if_empty(const LaneSlots& slots) {
    if (slots.size() == 0) on_ = always_;
  }

 private:
  void insert(LaneSlots& slots, std::uint32_t at) {
    if (hash_key(slots[at].entry)) index_.insert(slots, at);
  }

  static constexpr std::size_t kIndexedPerPut = 4;  // puts for half a lane index the whole lane

  KeyIndex index_;
  const bool always_;
  bool on_;
  std::uint32_t next_ = kNone;  // the oldest entry of the main list that is not in the index yet
};

}  // namespace qts
