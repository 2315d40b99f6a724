// Something that looks at every tick while it is being published.
#pragma once

#include <cstdint>
#include <string_view>

#include "bindings.hpp"

// When the latest P0 event of this thread was in its lane, in ticks.
inline thread_local std::uint64_t p0_entered = 0;

class TickWatch {
 public:
  virtual ~TickWatch() = default;
  // With the GIL. `began`: when the publishing of it did, in ticks.
  virtual void on_published(std::string_view symbol, double price, std::uint64_t began) = 0;
  // How to make an event, from its type's name, payload and source, and how to publish it.
  virtual void attach(nb::object make, nb::object publish) = 0;
};
