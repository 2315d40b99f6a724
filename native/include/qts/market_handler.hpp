// MarketHandler: a market processor as a processor of the router, and ticks as its messages.
//
// A tick's time, in nanoseconds since the epoch, is in `processing_ts_ns` until it is processed. A message
// with price 0 is the clock: it closes what is due in the processor that receives it. Messages of one type
// are in order, and so are ticks and clock. Prices and volumes with at most 8 decimals arrive as they were
// sent, as the nearest doubles.
//
// Thread contract: as in message_handler.hpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "qts/indicator_handler.hpp"
#include "qts/market_plane.hpp"

namespace qts {

inline constexpr double kMaxMessagePrice = 92e9;

inline Message clock_message(std::uint32_t processor, std::int64_t ns) {
  Message message;
  message.symbol_id = processor;
  message.processing_ts_ns = static_cast<std::uint64_t>(ns);
  return message;
}

inline Message tick_message(const MarketTick& tick) {
  Message message = clock_message(tick.symbol, MarketPlane::to_ns(tick.at));
  message.price = std::llround(tick.price * static_cast<double>(kPriceScale));
  int exponent = tick.volume == std::floor(tick.volume) ? 0 : -8;
  double mantissa = exponent == 0 ? tick.volume : tick.volume * 1e8;
  for (; mantissa >= static_cast<double>(kQuantityMantissaLimit); mantissa /= 10) ++exponent;
  message.set_quantity(static_cast<std::uint64_t>(std::llround(mantissa)), exponent);
  return message;
}

// Ticks in order of time as messages, with a clock for each processor whenever a second begins: bars are due
// at whole seconds. `second` is the last second that began.
inline std::vector<Message> tick_messages(std::span<const MarketTick> ticks, std::uint32_t processors, std::int64_t& second) {
  std::vector<Message> messages;
  messages.reserve(ticks.size());
  for (const MarketTick& tick : ticks) {
    const std::int64_t now = MarketPlane::to_ns(tick.at) / kSecondNs;
    if (now > second) {
      second = now;
      for (std::uint32_t i = 0; i < processors; ++i) messages.push_back(clock_message(i, now * kSecondNs));
    }
    messages.push_back(tick_message(tick));
  }
  return messages;
}

class MarketHandler final : public MessageHandler {
 public:
  // The plane outlives the handler.
  MarketHandler(MarketPlane& plane, std::size_t number) : plane_(plane), processor_(plane.processor(number)) {}

  std::size_t run(std::span<Message> batch) override {
    const std::uint32_t symbols = plane_.symbols();
    const std::lock_guard hold(processor_.lock);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Message& message = batch[i];
      const auto ns = static_cast<std::int64_t>(message.processing_ts_ns);
      if (message.price == 0) {
        processor_.advance(ns);
      } else if (message.symbol_id < symbols) {
        processor_.push(message.symbol_id, price_as_double(message), quantity_as_double(message), ns);
      } else {
        error = "symbol_id " + std::to_string(message.symbol_id) + " is unknown: the market plane has " +
                std::to_string(symbols) + " symbols";
        return i;
      }
    }
    return batch.size();
  }

 private:
  MarketPlane& plane_;
  MarketProcessor& processor_;
};

}  // namespace qts
