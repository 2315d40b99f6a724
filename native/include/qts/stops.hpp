// Stops: decides on each tick whether a position must be reduced or closed.
//
// Rules, the strongest action wins:
//   fixed stop   the price reaches the stop price set for the position
//   MAE          the worst price since entry is too far from the average (maximum adverse excursion):
//                close half, then all
//   time         the position is older than its time limit; a profitable one gets an extension
//   trailing     armed by a gain, follows the best price, never moves back; reached: close all.
//                A position whose order carried a trail is armed from the start
//   target       the price reaches the target set for the position: close all
//
// Each exit is reported once, until rearm(): half of a position, then all of it. A tick that jumps is
// acted on only when the next tick confirms it, or when none comes in time.
//
// Thread contract: one caller at a time; under Python that is the thread with the GIL.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace qts {

struct StopRules {
  double trail_arm = 0.01;           // gain that arms the trailing stop
  double trail = 0.005;              // its distance from the best price, as a share of it
  double trail_min_distance = 500;   // and its least distance, in money
  double mae_half = 0.015;           // loss at the worst price that closes half
  double mae_full = 0.02;            // and all
  double profit_extension_s = 1800;  // added to the time limit of a profitable position
  double jump = 0.05;                // a tick this far from the last one must be confirmed
  double confirm_s = 0.5;            // unless no tick comes for this long
};

enum class StopAction : std::uint8_t { kNone, kAdjusted, kHalf, kAll };
enum class StopReason : std::uint8_t { kNone, kStop, kMae, kTime, kTrailing, kVolatility, kTarget };

struct StopHit {
  std::string symbol;
  StopAction action = StopAction::kNone;
  StopReason reason = StopReason::kNone;
  double quantity = 0;  // to sell (or, short, to buy back), unsigned
  double price = 0;
  double stop = 0;
  bool is_short = false;
};

// What the stops have computed of a position: all that a restart must not lose.
struct StopState {
  double best = 0, worst = 0;  // price since entry
  double trailing = 0;
  bool armed = false, half_sent = false;
};

// Exit prices of one position, beside the rules that hold for all; 0: none.
struct ExitLevels {
  double stop = 0;
  double target = 0;
  double trail = 0;  // distance from the best price, as a share of it
};

// The copy of a position that the stops work on.
struct PositionShadow : StopState {
  // Set by the ledger.
  double quantity = 0;  // signed
  double average = 0;
  StopRules rules;  // its strategy's, or those that hold for all
  ExitLevels levels;
  double lot = 1;           // the least quantity that can be traded
  double time_limit_s = 0;  // 0: none
  std::int64_t entered_ns = 0;

  // Computed here, and not restored: an exit that was reported before a restart may have been lost.
  double last = 0;
  std::int64_t last_ns = 0;
  bool exit_sent = false;
  double unconfirmed = 0;  // a price that jumped; 0: none
  std::int64_t unconfirmed_ns = 0;
};

class Stops {
 public:
  explicit Stops(const StopRules& rules) : rules_(rules) {}

  // Sets quantity and average of a position after a fill or a reconciliation; quantity 0 removes it. The
  // computed fields stay, unless the position changed sides, or grew after an exit was reported. A position
  // that is new here begins with `restored`, in the same call: no tick sees it without its state. `own` replaces
  // the rules for this position, but for jumps, which concern the prices of all.
  void set_position(std::string_view symbol, double quantity, double average, double lot, const ExitLevels& levels,
                    double time_limit_s, std::int64_t entered_ns, const StopState* restored = nullptr,
                    const StopRules* own = nullptr) {
    if (quantity == 0) {
      remove_position(symbol);
      return;
    }
    auto [found, is_new] = positions_.try_emplace(std::string(symbol));
    PositionShadow& position = found->second;
    if (is_new || (position.quantity > 0) != (quantity > 0)) {
      position = PositionShadow{};
      position.entered_ns = entered_ns;
      position.best = position.worst = average;
      position.last = average;
      if (is_new && restored) static_cast<StopState&>(position) = *restored;
    } else if (std::abs(quantity) > std::abs(position.quantity)) {
      position.half_sent = position.exit_sent = false;
    }
    position.quantity = quantity;
    position.average = average;
    position.lot = lot;
    position.levels = levels;
    position.rules = own ? *own : rules_;
    if (time_limit_s > 0) position.time_limit_s = time_limit_s;
  }

  void remove_position(std::string_view symbol) {
    if (const auto found = positions_.find(symbol); found != positions_.end()) positions_.erase(found);
  }

  // The last exit was not carried out (refused, expired): it may be reported again. A full exit is
  // reported after any half, so the half is meant only when no full exit was reported.
  void rearm(std::string_view symbol) {
    const auto found = positions_.find(symbol);
    if (found == positions_.end()) return;
    PositionShadow& position = found->second;
    (position.exit_sent ? position.exit_sent : position.half_sent) = false;
  }

  // Optimised for a symbol without a position, the most frequent case.
  bool on_tick(std::string_view symbol, double price, std::int64_t now_ns, StopHit& hit) {
    if (positions_.empty()) return false;
    const auto found = positions_.find(symbol);
    if (found == positions_.end() || !(price > 0) || !std::isfinite(price)) return false;
    PositionShadow& position = found->second;
    if (!is_confirmed(position, price, now_ns)) return false;
    record_price(position, price, now_ns);
    return evaluate(found->first, position, now_ns, hit);
  }

  // Between ticks: positions past their time limit, and jumps that no tick has contradicted.
  void on_time(std::int64_t now_ns, std::vector<StopHit>& hits) {
    for (auto& [symbol, position] : positions_) {
      if (position.unconfirmed > 0 && now_ns - position.unconfirmed_ns >= ns(rules_.confirm_s)) {
        record_price(position, position.unconfirmed, now_ns);
        position.unconfirmed = 0;
      }
      StopHit hit;
      if (evaluate(symbol, position, now_ns, hit)) hits.push_back(std::move(hit));
    }
  }

  // Exits every position (part 1), or half of each (part 0.5), because of volatility; each once.
  void exit_all(double part, std::vector<StopHit>& hits) {
    for (auto& [symbol, position] : positions_) {
      const bool all = part >= 1;
      if (position.exit_sent || (!all && position.half_sent)) continue;
      hits.push_back(make_hit(symbol, position, all ? StopAction::kAll : StopAction::kHalf, StopReason::kVolatility));
      (all ? position.exit_sent : position.half_sent) = true;
    }
  }

  const PositionShadow* find(std::string_view symbol) const {
    const auto found = positions_.find(symbol);
    return found == positions_.end() ? nullptr : &found->second;
  }
  std::size_t size() const { return positions_.size(); }
  std::uint64_t jumps() const { return jumps_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  static std::int64_t ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

  bool is_confirmed(PositionShadow& position, double price, std::int64_t now_ns) {
    const auto far = [this](double one, double other) { return std::abs(one - other) > rules_.jump * other; };
    if (!far(price, position.last) || (position.unconfirmed > 0 && !far(price, position.unconfirmed))) {
      position.unconfirmed = 0;
      return true;
    }
    ++jumps_;
    position.unconfirmed = price;
    position.unconfirmed_ns = now_ns;
    return false;
  }

  static void record_price(PositionShadow& position, double price, std::int64_t now_ns) {
    const bool is_long = position.quantity > 0;
    position.best = is_long ? std::max(position.best, price) : std::min(position.best, price);
    position.worst = is_long ? std::min(position.worst, price) : std::max(position.worst, price);
    position.last = price;
    position.last_ns = now_ns;
  }

  // Relative to the average; positive: in our favour.
  static double gain(const PositionShadow& position, double price) {
    if (position.average <= 0) return 0;
    return (position.quantity > 0 ? price - position.average : position.average - price) / position.average;
  }

  bool evaluate(const std::string& symbol, PositionShadow& position, std::int64_t now_ns, StopHit& hit) {
    const bool moved = trail(position);
    if (position.exit_sent) return false;
    StopAction action = moved ? StopAction::kAdjusted : StopAction::kNone;
    StopReason reason = moved ? StopReason::kTrailing : StopReason::kNone;
    const double loss = -gain(position, position.worst);
    if (reached(position, position.levels.stop)) {
      action = StopAction::kAll, reason = StopReason::kStop;
    } else if (loss >= position.rules.mae_full) {
      action = StopAction::kAll, reason = StopReason::kMae;
    } else if (is_expired(position, now_ns)) {
      action = StopAction::kAll, reason = StopReason::kTime;
    } else if (position.armed && reached(position, position.trailing)) {
      action = StopAction::kAll, reason = StopReason::kTrailing;
    } else if (passed(position, position.levels.target)) {
      action = StopAction::kAll, reason = StopReason::kTarget;
    } else if (loss >= position.rules.mae_half && !position.half_sent) {
      action = StopAction::kHalf, reason = StopReason::kMae;
    }
    if (action == StopAction::kNone) return false;
    hit = make_hit(symbol, position, action, reason);
    if (action == StopAction::kHalf) position.half_sent = true;
    if (action == StopAction::kAll) position.exit_sent = true;
    return true;
  }

  // Arms and moves the trailing stop; returns whether it moved.
  static bool trail(PositionShadow& position) {
    const double own = position.levels.trail;
    const StopRules& rules = position.rules;
    if (!position.armed && own <= 0 && gain(position, position.last) < rules.trail_arm) return false;
    const bool is_long = position.quantity > 0;
    const double distance = own > 0 ? position.best * own : std::max(position.best * rules.trail, rules.trail_min_distance);
    const double stop = is_long ? position.best - distance : position.best + distance;
    const bool moves = !position.armed || (is_long ? stop > position.trailing : stop < position.trailing);
    position.armed = true;
    if (moves) position.trailing = stop;
    return moves;
  }

  static bool reached(const PositionShadow& position, double stop) {
    if (stop <= 0) return false;
    return position.quantity > 0 ? position.last <= stop : position.last >= stop;
  }

  static bool passed(const PositionShadow& position, double target) {
    if (target <= 0) return false;
    return position.quantity > 0 ? position.last >= target : position.last <= target;
  }

  static bool is_expired(const PositionShadow& position, std::int64_t now_ns) {
    if (position.time_limit_s <= 0) return false;
    const bool profitable = gain(position, position.last) > 0;
    return now_ns - position.entered_ns > ns(position.time_limit_s + (profitable ? position.rules.profit_extension_s : 0));
  }

  static StopHit make_hit(const std::string& symbol, const PositionShadow& position, StopAction action, StopReason reason) {
    const double all = std::abs(position.quantity);
    double quantity = 0;
    if (action == StopAction::kAll) quantity = all;
    if (action == StopAction::kHalf)  // in whole lots, at least one
      quantity = std::min(all, std::max(position.lot, std::floor(all / 2 / position.lot) * position.lot));
    double stop = position.trailing;
    if (reason == StopReason::kStop) stop = position.levels.stop;
    if (reason == StopReason::kTarget) stop = position.levels.target;
    return {symbol, action, reason, quantity, position.last, stop, position.quantity < 0};
  }

  StopRules rules_;
  std::unordered_map<std::string, PositionShadow, Hash, std::equal_to<>> positions_;
  std::uint64_t jumps_ = 0;
};

}  // namespace qts
