// Stops: what a held position does when its price moves, decided on the tick itself.
//
// Rules, the strongest verdict wins:
//   fixed stop     the price reaches the stop the position came with
//   excursion      the worst price since entry lies too far from the average: half out, then all
//   time           held too long; longer is allowed while it earns
//   trailing       armed by a gain, follows the best price, never back; hit: all out
//
// Latches: half is sold once, and what was told to leave is told once, until rearm(). A tick that
// jumps is acted on only when the next one agrees with it, or when none comes.
// For one caller at a time: under Python that is whoever holds the GIL.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace qts {

struct StopRules {
  double trail_arm = 0.01;        // gain that arms the trailing stop
  double trail = 0.005;           // its distance from the best price
  double trail_least = 500.0;     // and the least distance, in money
  double excursion_half = 0.015;  // loss at the worst price: half is sold
  double excursion_all = 0.02;    // and all
  double earning_extra_s = 1800;  // longer for a position that earns
  double jump = 0.05;             // a tick this far from the last one has to be confirmed
  double confirm_s = 0.5;         // unless none comes for so long
};

enum class Verdict : std::uint8_t { kNone, kAdjusted, kHalf, kAll };
enum class StopReason : std::uint8_t { kNone, kStop, kExcursion, kTime, kTrailing, kVolatility };

struct StopHit {
  std::string symbol;
  Verdict verdict = Verdict::kNone;
  StopReason reason = StopReason::kNone;
  double quantity = 0;  // to sell (or, short, to buy back), unsigned
  double price = 0;
  double stop = 0;
  bool is_short = false;
};

// One held position, as the stops see it: what others own (quantity, average) and what is ours.
struct Held {
  double quantity = 0;  // signed
  double average = 0;
  double stop = 0;      // a stop it came with; 0: none
  double lot = 1;       // the least that can be sold
  double limit_s = 0;   // how long it may be held; 0: for ever
  std::int64_t entered_ns = 0;

  double best = 0, worst = 0, last = 0;
  std::int64_t last_ns = 0;
  double trailing = 0;
  bool armed = false, half_sold = false, leaving = false;
  double doubted = 0;  // a price that jumped and is not confirmed
  std::int64_t doubted_ns = 0;
};

class Stops {
 public:
  explicit Stops(const StopRules& rules) : rules_(rules) {}

  // The truth changed (a fill, a look at the database). What is ours stays, unless the position
  // is another one: turned round, or grown, which a stop that has fired must not overlook.
  void hold(std::string_view symbol, double quantity, double average, double lot, double stop, double limit_s,
            std::int64_t now_ns) {
    if (quantity == 0) {
      drop(symbol);
      return;
    }
    auto [found, is_new] = held_.try_emplace(std::string(symbol));
    Held& held = found->second;
    if (is_new || (held.quantity > 0) != (quantity > 0)) {
      held = Held{};
      held.entered_ns = now_ns;
      held.best = held.worst = average;
      held.last = average;
    } else if (std::abs(quantity) > std::abs(held.quantity)) {
      held.half_sold = held.leaving = false;
    }
    held.quantity = quantity;
    held.average = average;
    held.lot = lot;
    if (stop > 0) held.stop = stop;
    if (limit_s > 0) held.limit_s = limit_s;
  }

  void drop(std::string_view symbol) {
    if (const auto found = held_.find(symbol); found != held_.end()) held_.erase(found);
  }

  // The exit did not happen (refused, expired): the stops speak again. What is leaving was asked
  // for after any half, so only without it the half is what did not happen.
  void rearm(std::string_view symbol) {
    const auto found = held_.find(symbol);
    if (found == held_.end()) return;
    Held& held = found->second;
    (held.leaving ? held.leaving : held.half_sold) = false;
  }

  // Most symbols are not held: the miss is what has to be quick.
  bool on_tick(std::string_view symbol, double price, std::int64_t now_ns, StopHit& hit) {
    if (held_.empty()) return false;
    const auto found = held_.find(symbol);
    if (found == held_.end() || !(price > 0) || !std::isfinite(price)) return false;
    Held& held = found->second;
    if (!believed(held, price, now_ns)) return false;
    seen(held, price, now_ns);
    return judge(found->first, held, now_ns, hit);
  }

  // Between ticks: positions that are held too long, jumps that nobody contradicted.
  void on_time(std::int64_t now_ns, std::vector<StopHit>& hits) {
    for (auto& [symbol, held] : held_) {
      if (held.doubted > 0 && now_ns - held.doubted_ns >= ns(rules_.confirm_s)) {
        seen(held, held.doubted, now_ns);
        held.doubted = 0;
      }
      StopHit hit;
      if (judge(symbol, held, now_ns, hit)) hits.push_back(std::move(hit));
    }
  }

  // The volatility kill (part 1) or its half measure (part 0.5): everything held, once.
  void leave(double part, std::vector<StopHit>& hits) {
    for (auto& [symbol, held] : held_) {
      const bool all = part >= 1;
      if (held.leaving || (!all && held.half_sold)) continue;
      hits.push_back(verdict_of(symbol, held, all ? Verdict::kAll : Verdict::kHalf, StopReason::kVolatility));
      (all ? held.leaving : held.half_sold) = true;
    }
  }

  const Held* find(std::string_view symbol) const {
    const auto found = held_.find(symbol);
    return found == held_.end() ? nullptr : &found->second;
  }
  std::size_t size() const { return held_.size(); }
  std::uint64_t jumps() const { return jumps_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  static std::int64_t ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

  bool believed(Held& held, double price, std::int64_t now_ns) {
    const auto far = [this](double one, double other) { return std::abs(one - other) > rules_.jump * other; };
    if (!far(price, held.last) || (held.doubted > 0 && !far(price, held.doubted))) {
      held.doubted = 0;
      return true;
    }
    ++jumps_;
    held.doubted = price;
    held.doubted_ns = now_ns;
    return false;
  }

  static void seen(Held& held, double price, std::int64_t now_ns) {
    const bool is_long = held.quantity > 0;
    held.best = is_long ? std::max(held.best, price) : std::min(held.best, price);
    held.worst = is_long ? std::min(held.worst, price) : std::max(held.worst, price);
    held.last = price;
    held.last_ns = now_ns;
  }

  // Positive: in our favour.
  static double gain(const Held& held, double price) {
    if (held.average <= 0) return 0;
    return (held.quantity > 0 ? price - held.average : held.average - price) / held.average;
  }

  bool judge(const std::string& symbol, Held& held, std::int64_t now_ns, StopHit& hit) {
    const bool moved = follow(held);
    if (held.leaving) return false;
    Verdict verdict = moved ? Verdict::kAdjusted : Verdict::kNone;
    StopReason reason = moved ? StopReason::kTrailing : StopReason::kNone;
    const double loss = -gain(held, held.worst);
    if (reached(held, held.stop)) {
      verdict = Verdict::kAll, reason = StopReason::kStop;
    } else if (loss >= rules_.excursion_all) {
      verdict = Verdict::kAll, reason = StopReason::kExcursion;
    } else if (too_long(held, now_ns)) {
      verdict = Verdict::kAll, reason = StopReason::kTime;
    } else if (held.armed && reached(held, held.trailing)) {
      verdict = Verdict::kAll, reason = StopReason::kTrailing;
    } else if (loss >= rules_.excursion_half && !held.half_sold) {
      verdict = Verdict::kHalf, reason = StopReason::kExcursion;
    }
    if (verdict == Verdict::kNone) return false;
    hit = verdict_of(symbol, held, verdict, reason);
    if (verdict == Verdict::kHalf) held.half_sold = true;
    if (verdict == Verdict::kAll) held.leaving = true;
    return true;
  }

  // The trailing stop is armed by a gain and follows the best price, never back.
  bool follow(Held& held) {
    if (!held.armed && gain(held, held.last) < rules_.trail_arm) return false;
    const bool is_long = held.quantity > 0;
    const double distance = std::max(held.best * rules_.trail, rules_.trail_least);
    const double stop = is_long ? held.best - distance : held.best + distance;
    const bool moves = !held.armed || (is_long ? stop > held.trailing : stop < held.trailing);
    held.armed = true;
    if (moves) held.trailing = stop;
    return moves;
  }

  static bool reached(const Held& held, double stop) {
    if (stop <= 0) return false;
    return held.quantity > 0 ? held.last <= stop : held.last >= stop;
  }

  bool too_long(const Held& held, std::int64_t now_ns) const {
    if (held.limit_s <= 0) return false;
    const double allowed = held.limit_s + (gain(held, held.last) > 0 ? rules_.earning_extra_s : 0);
    return now_ns - held.entered_ns > ns(allowed);
  }

  static StopHit verdict_of(const std::string& symbol, const Held& held, Verdict verdict, StopReason reason) {
    const double all = std::abs(held.quantity);
    double quantity = 0;
    if (verdict == Verdict::kAll) quantity = all;
    if (verdict == Verdict::kHalf)  // at least one lot: half of one is one
      quantity = std::min(all, std::max(held.lot, std::floor(all / 2 / held.lot) * held.lot));
    const double stop = reason == StopReason::kStop ? held.stop : held.trailing;
    return {symbol, verdict, reason, quantity, held.last, stop, held.quantity < 0};
  }

  StopRules rules_;
  std::unordered_map<std::string, Held, Hash, std::equal_to<>> held_;
  std::uint64_t jumps_ = 0;
};

}  // namespace qts
