// Stage: routes each message by its type, through a table lookup.
//
// A type goes to one target, to several in round robin, or by content: by symbol, or by price to one
// of two groups. The free capacity that a stage reports holds whatever the content turns out to be:
//   round robin  one target can take them all, so the largest capacity of a target is safe
//   by content   all may go to the fullest target, so the smallest capacity is
// Targets that share something further downstream share its capacity too, and the rule still holds,
// since no more messages are sent than the reported capacity.
//
// Thread contract: as in component.hpp; `hold` may be called from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "qts/clock.hpp"
#include "qts/component.hpp"

namespace qts {

// Targets of a type in round robin; `next` is the index of the next one.
struct TargetGroup {
  std::vector<OutputPort*> targets;
  std::size_t next = 0;

  std::size_t free_capacity(std::uint8_t type, std::size_t wanted) const {
    std::size_t largest = 0;
    for (OutputPort* target : targets) {
      largest = std::max(largest, target->free_capacity(type, wanted));
      if (largest >= wanted) break;
    }
    return largest;
  }

  void send(std::span<Message> batch) {
    if (targets.size() == 1) return targets[0]->send(batch);
    const std::uint8_t type = batch[0].msg_type;
    std::size_t full = 0;     // targets in a row
    while (!batch.empty()) {  // a full target is skipped
      OutputPort* target = targets[next];
      next = next + 1 == targets.size() ? 0 : next + 1;
      if (target->free_capacity(type, 1) == 0) {
        // A target that failed since took the reported capacity with it: it abandons the rest.
        if (++full > targets.size() && target->abandons(type)) return target->send(batch);
        continue;
      }
      full = 0;
      target->send(batch.first(1));
      batch = batch.subspan(1);
    }
  }
};

struct Route {
  enum class By : std::uint8_t { round_robin, symbol, price };
  By by = By::round_robin;
  TargetGroup group;      // for symbol: one target per residue
  TargetGroup otherwise;  // for price: where the condition does not hold
  std::int64_t threshold = 0;  // for price, in the message's units
  bool above = true;
};

class Stage final : public Receiver {
 public:
  using Stamp = std::uint64_t Message::*;

  Stage(std::string stage_name, StampMode stamps, Stamp entry, Stamp exit)
      : Receiver(std::move(stage_name)), stamps_(stamps), entry_(entry), exit_(exit) {}

  Route& route(std::uint8_t type) { return routes_[type]; }
  void set_tap(Tap* tap) { tap_ = tap; }
  // While held, no message of the type passes: its route is about to change.
  void hold(std::uint8_t type, bool held) { held_[type].store(held, std::memory_order_relaxed); }

  std::size_t free_capacity(std::uint8_t type, std::size_t wanted) override {
    const Route& route = routes_[type];
    if (held_[type].load(std::memory_order_relaxed)) return 0;
    if (tap_ != nullptr) wanted = tap_->free_capacity(wanted);
    if (wanted == 0) return 0;
    switch (route.by) {
      case Route::By::round_robin:
        return route.group.free_capacity(type, wanted);
      case Route::By::price:
        return std::min(route.group.free_capacity(type, wanted), route.otherwise.free_capacity(type, wanted));
      case Route::By::symbol:
        for (OutputPort* target : route.group.targets) wanted = target->free_capacity(type, wanted);
        return wanted;
    }
    return 0;
  }

  void send(std::span<Message> batch) override {
    if (tap_ != nullptr) tap_->append(batch);
    stamp(batch);
    Route& route = routes_[batch[0].msg_type];
    if (route.by == Route::By::round_robin) return route.group.send(batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto one = batch.subspan(i, 1);
      if (route.by == Route::By::symbol)
        route.group.targets[one[0].symbol_id % route.group.targets.size()]->send(one);
      else
        ((one[0].price > route.threshold) == route.above ? route.group : route.otherwise).send(one);
    }
  }

  bool abandons(std::uint8_t type) const override {
    const auto abandons = [type](const OutputPort* target) { return target->abandons(type); };
    return std::ranges::any_of(routes_[type].group.targets, abandons) ||
           std::ranges::any_of(routes_[type].otherwise.targets, abandons);
  }

 private:
  void stamp(std::span<Message> batch) const {
    if (stamps_ == StampMode::all) {
      for (Message& message : batch) {
        message.*entry_ = ticks();
        message.*exit_ = ticks();
      }
    } else if (stamps_ == StampMode::hop_batch) {
      const std::uint64_t now = ticks();
      for (Message& message : batch) message.*entry_ = message.*exit_ = now;
    }
  }

  const StampMode stamps_;
  const Stamp entry_, exit_;
  Tap* tap_ = nullptr;
  std::array<Route, kTypes> routes_{};
  std::array<std::atomic<bool>, kTypes> held_{};
};

}  // namespace qts
