// Indicators per symbol, updated by every message: EMA, RSI, VWAP.
//
// Thread contract: one worker runs an indicator; any thread may read its values.
// Invariant: the table is memory of the caller, one double per symbol, written with relaxed atomic
// stores, so that a reader never gets a torn value, though perhaps not the latest one. NaN: no value
// yet. Prices are converted to doubles: exact enough for signals, not for accounting.
#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qts/message.hpp"
#include "qts/message_handler.hpp"

namespace qts {

inline double price_as_double(const Message& message) {
  return static_cast<double>(message.price) / static_cast<double>(kPriceScale);
}

// Avoids std::pow for the exponents that occur.
inline double quantity_as_double(const Message& message) {
  static constexpr std::array<double, 13> kPowers{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12};
  const int exponent = message.quantity_exponent;
  const auto mantissa = static_cast<double>(message.quantity_mantissa());
  const auto size = static_cast<std::size_t>(std::abs(exponent));
  if (size >= kPowers.size()) return message.quantity();
  return exponent < 0 ? mantissa / kPowers[size] : mantissa * kPowers[size];
}

// Exponential moving average with alpha = 2 / (period + 1); starts at the first price.
class Ema {
 public:
  struct State {
    double value = 0;
    bool started = false;
  };
  explicit Ema(std::uint32_t period) : alpha_(2.0 / (period + 1.0)) {}

  double next(State& state, const Message& message) const {
    const double price = price_as_double(message);
    state.value = state.started ? state.value + alpha_ * (price - state.value) : price;
    state.started = true;
    return state.value;
  }

 private:
  double alpha_;
};

// Wilder's relative strength index: the mean of the first `period` changes, smoothed from then on.
// 50 when no price changed.
class Rsi {
 public:
  struct State {
    double last = 0, gain = 0, loss = 0;
    std::uint32_t prices = 0;  // received, up to period + 1
  };
  explicit Rsi(std::uint32_t period) : period_(period) {}

  double next(State& state, const Message& message) const {
    const double price = price_as_double(message), change = price - std::exchange(state.last, price);
    if (state.prices == 0) {
      state.prices = 1;
      return std::nan("");
    }
    const bool warming = state.prices <= period_;
    const double period = period_, keep = warming ? 1 : (period - 1) / period;
    state.gain = state.gain * keep + (change > 0 ? change : 0) / period;
    state.loss = state.loss * keep + (change < 0 ? -change : 0) / period;
    if (warming && ++state.prices <= period_) return std::nan("");
    const double moved = state.gain + state.loss;
    return moved > 0 ? 100 * state.gain / moved : 50;
  }

 private:
  std::uint32_t period_;
};

// Volume-weighted average price of all messages since the start.
class Vwap {
 public:
  struct State {
    double amount = 0, quantity = 0;
  };

  double next(State& state, const Message& message) const {
    const double quantity = quantity_as_double(message);
    state.amount += price_as_double(message) * quantity;
    state.quantity += quantity;
    return state.quantity > 0 ? state.amount / state.quantity : std::nan("");
  }
};

// Runs one indicator over all messages of a component, per symbol.
template <class Formula>
class IndicatorHandler final : public MessageHandler {
 public:
  IndicatorHandler(Formula formula, std::span<double> values)
      : formula_(std::move(formula)), values_(values), states_(values.size()) {}

  std::size_t run(std::span<Message> batch) override {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::size_t symbol = batch[i].symbol_id;
      if (symbol >= states_.size()) {
        error = "symbol_id " + std::to_string(symbol) + " is out of range: the indicator has " +
                std::to_string(states_.size()) + " symbols";
        return i;
      }
      const double value = formula_.next(states_[symbol], batch[i]);
      std::atomic_ref<double>(values_[symbol]).store(value, std::memory_order_relaxed);
    }
    return batch.size();
  }

 private:
  Formula formula_;
  std::span<double> values_;
  std::vector<typename Formula::State> states_;
};

}  // namespace qts
