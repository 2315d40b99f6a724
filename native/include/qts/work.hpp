// What a processor or a strategy does with its messages.
//
// Thread contract: `run` is called by the component's worker only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "qts/clock.hpp"
#include "qts/flow.hpp"

namespace qts {

// Work given from outside: a compiled function, a Python callable, an indicator.
class Work {
 public:
  virtual ~Work() = default;
  // Handles a batch of one type, in order. Answers how many it handled: fewer than all means that
  // the next message failed, and `failure` says why.
  virtual std::size_t run(std::span<Message> batch) = 0;
  // May be read once run has answered fewer than it was given.
  std::string failure;
};

// Time spent doing nothing useful, per type: stands for work of a known length.
class BusyWork {
 public:
  explicit BusyWork(const std::array<std::uint64_t, kTypes>& ns) {
    const TickScale scale = tick_scale();
    for (std::size_t type = 0; type < kTypes; ++type) ticks_[type] = scale.span_ticks(ns[type]);
  }

  bool none(std::uint8_t type) const { return ticks_[type] == 0; }

  // Spins from `start` on for the type's time, and answers the moment it ended.
  std::uint64_t spin(std::uint8_t type, std::uint64_t start) const {
    const std::uint64_t end = start + ticks_[type];
    std::uint64_t now = ticks();
    while (now < end) now = ticks();
    return now;
  }

 private:
  std::array<std::uint64_t, kTypes> ticks_{};
};

// A function compiled outside, such as a numba cfunc: called once a batch, never with the GIL.
class CompiledWork final : public Work {
 public:
  using Function = void (*)(Message* messages, std::uint64_t count, void* state);

  CompiledWork(Function function, void* state) : function_(function), state_(state) {}

  std::size_t run(std::span<Message> batch) override {
    function_(batch.data(), batch.size(), state_);
    return batch.size();
  }

 private:
  Function function_;
  void* state_;
};

// Why a component gave up, and at which message.
struct Failure {
  std::string component;
  Message message;
  std::string text;
};

}  // namespace qts
