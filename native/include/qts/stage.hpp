// The two routing stages: a table lookup and nothing else.
//
// A type goes to one target, to several in turn, or by content: by symbol, or by price to one of
// two groups. Room is promised so that it holds whatever the content turns out to be:
//   in turn      the roomiest target can take them all, so the largest room is safe
//   by content   all may go to the fullest group, so the smallest room is
// Targets that share something further down share its room too, and the rule still holds, since
// no more messages are sent than the promise named.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "qts/clock.hpp"
#include "qts/flow.hpp"

namespace qts {

// Targets of a type; `next` is where the turn stands.
struct Group {
  std::vector<Port*> targets;
  std::size_t next = 0;

  std::size_t room(std::uint8_t type, std::size_t wanted) const {
    std::size_t most = 0;
    for (Port* target : targets) {
      most = std::max(most, target->room(type, wanted));
      if (most >= wanted) break;
    }
    return most;
  }

  void send(std::span<Message> batch) {
    if (targets.size() == 1) return targets[0]->send(batch);
    const std::uint8_t type = batch[0].msg_type;
    std::size_t refused = 0;  // in a row
    while (!batch.empty()) {  // a full target loses its turn
      Port* target = targets[next];
      next = next + 1 == targets.size() ? 0 : next + 1;
      if (target->room(type, 1) == 0) {
        // The promised room went with a target that failed since: the rest is its to abandon.
        if (++refused > targets.size() && target->abandons(type)) return target->send(batch);
        continue;
      }
      refused = 0;
      target->send(batch.first(1));
      batch = batch.subspan(1);
    }
  }
};

struct Route {
  enum class By : std::uint8_t { turn, symbol, price };
  By by = By::turn;
  Group group;       // for symbol: one target per residue
  Group otherwise;   // for price: where the condition does not hold
  std::int64_t threshold = 0;  // for price, in the message's units
  bool above = true;
};

class Stage final : public Taker {
 public:
  using Stamp = std::uint64_t Message::*;

  Stage(std::string called, Stamps stamps, Stamp entry, Stamp exit)
      : Taker(std::move(called)), stamps_(stamps), entry_(entry), exit_(exit) {}

  Route& route(std::uint8_t type) { return routes_[type]; }
  void set_tap(Tap* tap) { tap_ = tap; }
  // Nothing of a type passes: its way is about to change. Any thread.
  void hold(std::uint8_t type, bool held) { held_[type].store(held, std::memory_order_relaxed); }

  std::size_t room(std::uint8_t type, std::size_t wanted) override {
    const Route& route = routes_[type];
    if (held_[type].load(std::memory_order_relaxed)) return 0;
    if (tap_ != nullptr) wanted = tap_->room(wanted);
    if (wanted == 0) return 0;
    switch (route.by) {
      case Route::By::turn:
        return route.group.room(type, wanted);
      case Route::By::price:
        return std::min(route.group.room(type, wanted), route.otherwise.room(type, wanted));
      case Route::By::symbol:
        for (Port* target : route.group.targets) wanted = target->room(type, wanted);
        return wanted;
    }
    return 0;
  }

  void send(std::span<Message> batch) override {
    if (tap_ != nullptr) tap_->append(batch);
    stamp(batch);
    Route& route = routes_[batch[0].msg_type];
    if (route.by == Route::By::turn) return route.group.send(batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto one = batch.subspan(i, 1);
      if (route.by == Route::By::symbol)
        route.group.targets[one[0].symbol_id % route.group.targets.size()]->send(one);
      else
        ((one[0].price > route.threshold) == route.above ? route.group : route.otherwise).send(one);
    }
  }

  bool abandons(std::uint8_t type) const override {
    const auto abandons = [type](const Port* target) { return target->abandons(type); };
    return std::ranges::any_of(routes_[type].group.targets, abandons) ||
           std::ranges::any_of(routes_[type].otherwise.targets, abandons);
  }

 private:
  void stamp(std::span<Message> batch) const {
    if (stamps_ == Stamps::all) {
      for (Message& message : batch) {
        message.*entry_ = ticks();
        message.*exit_ = ticks();
      }
    } else if (stamps_ == Stamps::hop_batch) {
      const std::uint64_t now = ticks();
      for (Message& message : batch) message.*entry_ = message.*exit_ = now;
    }
  }

  const Stamps stamps_;
  const Stamp entry_, exit_;
  Tap* tap_ = nullptr;
  std::array<Route, kTypes> routes_{};
  std::array<std::atomic<bool>, kTypes> held_{};
};

}  // namespace qts
