// IndicatorHandler: an indicator over all messages of a component, per symbol; each message is a bar.
//
// Thread contract: one worker runs it; any thread may read its values.
// Invariant: the table is memory of the caller, one double per symbol, written with relaxed atomic
// stores, so that a reader never gets a torn value, though perhaps not the latest one. NaN: no value
// yet. Prices are converted to doubles: exact enough for signals, not for accounting.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qts/indicators.hpp"
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

class IndicatorHandler final : public MessageHandler {
 public:
  // The indicator has one output.
  IndicatorHandler(Indicator indicator, std::span<double> values)
      : indicator_(std::move(indicator)), values_(values), states_(values.size() * indicator_.state_size()) {}

  std::size_t run(std::span<Message> batch) override {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const std::size_t symbol = batch[i].symbol_id;
      if (symbol >= values_.size()) {
        error = "symbol_id " + std::to_string(symbol) + " is out of range: the indicator has " +
                std::to_string(values_.size()) + " symbols";
        return i;
      }
      const double price = price_as_double(batch[i]), quantity = quantity_as_double(batch[i]);
      double value = kNoValue;
      indicator_.push(&states_[symbol * indicator_.state_size()],
                      {0, 1, price, price, price, price, quantity, price * quantity}, 0, &value);
      std::atomic_ref<double>(values_[symbol]).store(value, std::memory_order_relaxed);
    }
    return batch.size();
  }

 private:
  Indicator indicator_;
  std::span<double> values_;
  std::vector<double> states_;
};

}  // namespace qts
