// TypeLimits: which types of a lane's entries may be taken now.
//
// A type may have a window, the number of its entries that may be in flight (its async handlers accept no
// more), and may be held (too many calls of its handlers overrun).
//
// Thread contract: LaneQueue calls every method under its lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "qts/lane_slots.hpp"

namespace qts {

class TypeLimits {
 public:
  static constexpr std::uint32_t kNone = LaneSlot::kNone;

  // Whether a type is limited, or has entries in a list of its own.
  bool any() const { return limited_ != 0 || !held_types_.empty(); }
  bool may_take(std::uint32_t type) const { return type >= limits_.size() || limits_[type].may_take(); }

  // At most `window` entries are in flight; 0: any number.
  void set_window(std::uint32_t type, std::uint32_t window) {
    Limit& limit = limit_of(type);
    limit.window = limit.permits = window;
    count();
  }
  void hold(std::uint32_t type, bool held) {
    limit_of(type).held = held;
    count();
  }
  void clear() {
    limits_.clear();
    count();
  }
  void use_permit(std::uint32_t type) {
    if (type < limits_.size() && limits_[type].window != 0) --limits_[type].permits;
  }
  void release_permit(std::uint32_t type) {
    if (type < limits_.size()) limits_[type].permits = std::min(limits_[type].permits + 1, limits_[type].window);
  }

  // The type has entries in a list of its own.
  void add_list(std::uint32_t type) {
    if (std::find(held_types_.begin(), held_types_.end(), type) == held_types_.end()) held_types_.push_back(type);
  }
  void remove_empty_lists(const LaneSlots& slots) {
    std::erase_if(held_types_, [&](std::uint32_t type) { return slots.held(type).size == 0; });
  }
  const std::vector<std::uint32_t>& held_types() const { return held_types_; }

  // How many entries in lists of their types may be taken.
  std::size_t takeable(const LaneSlots& slots) const {
    std::size_t count = 0;
    for (const std::uint32_t type : held_types_)
      if (may_take(type)) {
        const std::size_t size = slots.held(type).size;
        const bool has_window = type < limits_.size() && limits_[type].window != 0;
        count += has_window ? std::min<std::size_t>(size, limits_[type].permits) : size;
      }
    return count;
  }
  // The slot of the oldest entry of the main list and of the lists of types that may be taken; kNone: none.
  std::uint32_t next(const LaneSlots& slots) const {
    std::uint32_t next = slots.head();
    for (const std::uint32_t type : held_types_) {
      const std::uint32_t first = slots.held(type).head;
      if (first != kNone && may_take(type) && (next == kNone || slots.is_older(first, next))) next = first;
    }
    return next;
  }

 private:
  struct Limit {
    std::uint32_t window = 0, permits = 0;  // window 0: none
    bool held = false;

    bool may_take() const { return !held && (window == 0 || permits != 0); }
  };

  Limit& limit_of(std::uint32_t type) {
    if (type >= limits_.size()) limits_.resize(type + 1);
    return limits_[type];
  }
  void count() {
    limited_ = static_cast<std::size_t>(
        std::count_if(limits_.begin(), limits_.end(), [](const Limit& each) { return each.held || each.window != 0; }));
  }

  std::vector<Limit> limits_;              // by type
  std::size_t limited_ = 0;                // how many of them limit something
  std::vector<std::uint32_t> held_types_;  // types with entries in a list of their own
};

}  // namespace qts
