// TickWatcher: is called with every tick while it is published.
#pragma once

#include <cstdint>
#include <string_view>

#include "bindings.hpp"

// The tick at which the latest P0 event of this thread entered its lane.
inline thread_local std::uint64_t p0_entered = 0;

class TickWatcher {
 public:
  virtual ~TickWatcher() = default;
  // Called with the GIL. `began`: the tick at which its publishing began.
  virtual void on_published(std::string_view symbol, double price, std::uint64_t began) = 0;
  // Sets how to make an event, from its type's name, payload and source, and how to publish it.
  virtual void attach(nb::object make, nb::object publish) = 0;
};
