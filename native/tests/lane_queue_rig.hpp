// Entries and small steps for the tests of a lane's queue.
#pragma once

#include <string_view>
#include <vector>

#include "qts/lane_queue.hpp"

namespace lane_rig {

using qts::Displaced;
using qts::LaneEntry;
using qts::LaneQueue;
using qts::OverflowPolicy;
using qts::PutResult;

inline LaneEntry tick(std::uint32_t type, std::string_view key) {
  LaneEntry entry;
  entry.type = type;
  entry.key = key;
  entry.hash = qts::key_hash(type, key);
  entry.can_collapse = entry.can_drop = true;
  return entry;
}

inline bool balanced(const LaneQueue& lane) {
  const qts::LaneCounts now = lane.counts();
  return now.published == now.handled + now.collapsed + now.dropped + now.sampled + now.dead + now.waiting + now.in_flight;
}

inline std::vector<std::uint64_t> take_all(LaneQueue& lane) {
  std::vector<std::uint64_t> sequences;
  LaneEntry entry;
  while (lane.take(&entry, 1) != 0) {
    sequences.push_back(entry.sequence);
    lane.settle(entry, false);
  }
  return sequences;
}

inline PutResult put(LaneQueue& lane, LaneEntry entry, bool overflow = false) {
  Displaced displaced;
  return lane.put(entry, displaced, overflow);
}

}  // namespace lane_rig
