// The setup of the lanes from Python: lane specs, event types, watchers and handlers.
//
// Thread contract: with the GIL, and while no worker thread runs.
#pragma once

#include "lanes_core.hpp"

#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace qts::events {

// (capacity, policy, share of 10^9 that is sampled, batch, window in ns, batch by key)
using LaneSpecTuple = std::tuple<std::size_t, std::string, std::uint64_t, std::size_t, std::uint64_t, bool>;
// (kind, callable or address, state address or window of a managed handler, essential)
using HandlerTuple = std::tuple<std::string, nb::object, std::uint64_t, bool>;

std::array<LaneSpec, Lanes::kLanes> make_specs(const std::array<LaneSpecTuple, Lanes::kLanes>& tuples);

// Adds an event type and returns its number.
std::size_t add_type(LaneCore& core, std::uint8_t lane, nb::object payload, nb::object key,
                     const std::vector<std::pair<nb::str, unsigned>>& fields, bool checked_in_python,
                     double time_limit_ms);

// Calls `watcher` with every event of the type while it is published: its key, and this field.
void add_watcher(LaneCore& core, std::size_t type, nb::object watcher, const std::string& field);

void set_handlers(LaneCore& core, std::size_t type, const std::vector<HandlerTuple>& handlers);

}  // namespace qts::events
