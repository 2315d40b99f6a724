// Something that looks at every tick while it is being published.
#pragma once

#include <cstdint>
#include <string_view>

class TickWatch {
 public:
  virtual ~TickWatch() = default;
  virtual void on_tick(std::string_view symbol, double price, std::int64_t now_ns) = 0;
};
