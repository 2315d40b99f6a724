// Schedule: the intended send time of message k of a producer, computed from k and so without drift.
// A producer that is late catches up.
//
// Thread contract: immutable after construction.
//
// Without a burst, message k is due at k / rate. With one, each period sends `on` seconds at
// factor x rate and the rest at base_factor x rate.
#pragma once

#include <cmath>
#include <cstdint>

namespace qts {

struct Burst {
  double period_s = 0;  // 0: no burst
  double on_s = 0;
  double factor = 1;
  double base_factor = 1;
};

class Schedule {
 public:
  Schedule(double rate_per_s, Burst burst)
      : rate_(rate_per_s),
        burst_(burst),
        on_count_(rate_per_s * burst.factor * burst.on_s),
        period_count_(on_count_ + rate_per_s * burst.base_factor * (burst.period_s - burst.on_s)) {}

  // Seconds after the start at which message k is due.
  double due_s(std::uint64_t k) const {
    const double count = static_cast<double>(k);
    if (burst_.period_s <= 0) return count / rate_;
    const double periods = std::floor(count / period_count_);
    const double left = count - periods * period_count_;
    const double within = left < on_count_
                              ? left / (rate_ * burst_.factor)
                              : burst_.on_s + (left - on_count_) / (rate_ * burst_.base_factor);
    return periods * burst_.period_s + within;
  }

 private:
  double rate_;
  Burst burst_;
  double on_count_;
  double period_count_;
};

}  // namespace qts
