// KeyIndex: finds the newest waiting entry of each key, and lists the older ones that may be dropped.
//
// Thread contract: LaneQueue calls every method under its lock.
// Invariant: of the indexed entries of a key the newest is in a cell of the table; the others are in the
// list of superseded entries, in the order in which they became so, except those that must not be dropped.
//
// The table uses open addressing with backward-shift deletion. A cell holds part of the hash beside the
// slot's number, so that probing does not read the slots of other keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "qts/lane_slots.hpp"

namespace qts {

class KeyIndex {
 public:
  static constexpr std::uint32_t kNone = LaneSlot::kNone;

  KeyIndex() : cells_(16) {}

  // The slot of the newest indexed entry of the entry's key; kNone: there is none.
  std::uint32_t find(const LaneSlots& slots, const LaneEntry& entry) const {
    for (std::size_t i = home(short_hash(entry));; i = next(i))
      if (cells_[i].slot == kNone || matches(slots, cells_[i], entry)) return cells_[i].slot;
  }
  std::uint32_t first_superseded() const { return superseded_head_; }

  // Adds a slot, whose entry's hash is known, as the newest of its key.
  void insert(LaneSlots& slots, std::uint32_t at) {
    if (2 * (keys_ + 1) > cells_.size()) grow();
    const LaneEntry& entry = slots[at].entry;
    slots[at].in_index = true;
    for (std::size_t i = home(short_hash(entry));; i = next(i)) {
      if (cells_[i].slot == kNone) {
        cells_[i] = {at, short_hash(entry)};
        ++keys_;
        return;
      }
      if (matches(slots, cells_[i], entry)) {
        add_superseded(slots, cells_[i].slot);
        cells_[i].slot = at;
        return;
      }
    }
  }

  // Removes a slot from the list or from the table, wherever it is.
  void remove(LaneSlots& slots, std::uint32_t at) {
    if (slots[at].superseded) remove_superseded(slots, at);
    else if (slots[at].in_index) remove_cell(slots, at);
  }

 private:
  struct Cell {
    std::uint32_t slot = kNone;
    std::uint32_t hash = 0;
  };

  static std::uint32_t short_hash(const LaneEntry& entry) { return static_cast<std::uint32_t>(entry.hash); }
  std::size_t home(std::uint32_t hash) const { return hash & (cells_.size() - 1); }
  std::size_t next(std::size_t i) const { return (i + 1) & (cells_.size() - 1); }
  static bool matches(const LaneSlots& slots, const Cell& cell, const LaneEntry& entry) {
    if (cell.hash != short_hash(entry)) return false;
    const LaneEntry& found = slots[cell.slot].entry;
    return found.hash == entry.hash && found.type == entry.type &&
           ((found.key.data() == entry.key.data() && found.key.size() == entry.key.size()) || found.key == entry.key);
  }

  void add_superseded(LaneSlots& slots, std::uint32_t at) {
    LaneSlot& slot = slots[at];
    if (!slot.entry.can_drop) return;
    slot.superseded = true;
    slot.older = superseded_tail_;
    (superseded_tail_ == kNone ? superseded_head_ : slots[superseded_tail_].younger) = at;
    superseded_tail_ = at;
  }
  [[gnu::noinline]] void remove_superseded(LaneSlots& slots, std::uint32_t at) {
    LaneSlot& slot = slots[at];
    (slot.older == kNone ? superseded_head_ : slots[slot.older].younger) = slot.younger;
    (slot.younger == kNone ? superseded_tail_ : slots[slot.younger].older) = slot.older;
    slot.superseded = false;
    slot.older = slot.younger = kNone;
  }

  [[gnu::noinline]] void remove_cell(const LaneSlots& slots, std::uint32_t at) {
    std::size_t hole = home(short_hash(slots[at].entry));
    for (; cells_[hole].slot != at; hole = next(hole))
      if (cells_[hole].slot == kNone) return;  // an older entry that must not be dropped: the cell is a newer one's
    --keys_;
    for (std::size_t i = next(hole); cells_[i].slot != kNone; i = next(i))
      if (((i - home(cells_[i].hash)) & (cells_.size() - 1)) >= ((i - hole) & (cells_.size() - 1))) {
        cells_[hole] = cells_[i];
        hole = i;
      }
    cells_[hole] = Cell{};
  }

  void grow() {
    std::vector<Cell> old(cells_.size() * 2);
    old.swap(cells_);
    for (const Cell& cell : old) {
      if (cell.slot == kNone) continue;
      std::size_t i = home(cell.hash);
      while (cells_[i].slot != kNone) i = next(i);
      cells_[i] = cell;
    }
  }

  std::vector<Cell> cells_;
  std::size_t keys_ = 0;
  std::uint32_t superseded_head_ = kNone, superseded_tail_ = kNone;
};

}  // namespace qts
