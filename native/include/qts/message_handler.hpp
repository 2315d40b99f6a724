// MessageHandler: what a processor or a strategy runs for its messages.
//
// Thread contract: `run` is called by the component's worker only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "qts/clock.hpp"
#include "qts/component.hpp"

namespace qts {

// Code supplied by the user: a compiled function, a Python callable, an indicator.
class MessageHandler {
 public:
  virtual ~MessageHandler() = default;
  // Handles a batch of one type, in order, and returns how many messages it handled: fewer than all
  // means that the next message failed, and `error` says why.
  virtual std::size_t run(std::span<Message> batch) = 0;
  // Valid after run has returned fewer than it was given.
  std::string error;
};

// A busy loop of a fixed length per type, in place of a handler of that cost.
class BusyWork {
 public:
  explicit BusyWork(const std::array<std::uint64_t, kTypes>& ns) {
    const TickScale scale = tick_scale();
    for (std::size_t type = 0; type < kTypes; ++type) ticks_[type] = scale.span_ticks(ns[type]);
  }

  bool none(std::uint8_t type) const { return ticks_[type] == 0; }

  // Spins from `start` on for the time of the type, and returns the tick at which it ended.
  std::uint64_t spin(std::uint8_t type, std::uint64_t start) const {
    const std::uint64_t end = start + ticks_[type];
    std::uint64_t now = ticks();
    while (now < end) now = ticks();
    return now;
  }

 private:
  std::array<std::uint64_t, kTypes> ticks_{};
};

// A function compiled outside, such as a numba cfunc: called once per batch, without the GIL.
class CompiledHandler final : public MessageHandler {
 public:
  using Function = void (*)(Message* messages, std::uint64_t count, void* state);

  CompiledHandler(Function function, void* state) : function_(function), state_(state) {}

  std::size_t run(std::span<Message> batch) override {
    function_(batch.data(), batch.size(), state_);
    return batch.size();
  }

 private:
  Function function_;
  void* state_;
};

// The component that failed, the message at which it failed, and the error.
struct Failure {
  std::string component;
  Message message;
  std::string text;
};

}  // namespace qts
