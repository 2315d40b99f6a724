// Orders that a compiled scan has logged, applied to an account in exact decimals.
//
//   BOUGHT, SOLD ──▶ an order that waits ──▶ FILLED: a fill; that of a sale ends a trade
//   PRICE of each position, SAMPLED ──▶ a point of the equity curve
//   NEW_DAY ──▶ orders and profits of the day begin at none
//
// Thread contract: one thread owns an OrderLog. An AppliedLog does not change.
// Invariant: every number is the one that order_log.py computes with Python's decimals, with as many places. Where 28
// digits or a whole number of 128 bits might not be enough, nothing is returned, and nothing has changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "qts/decimal_sum.hpp"

namespace qts {

enum class LogKind : std::int64_t { kBought, kSold, kFilled, kSampled, kPrice, kNewDay };

struct LogRow {
  std::int64_t kind, symbol, row;  // the last is that of the chunk
};

// What orders in a symbol cost, and how large they are.
struct LogTerms {
  ExactDecimal lot, most;           // the latter is the largest quantity, in whole lots
  ExactDecimal buy_rate, sell_rate;  // fees and tax, as fractions of an amount
  int fee_decimals = 0;             // fees round down to it
};

// A position that one purchase has opened.
struct LogPosition {
  std::int32_t symbol = 0;
  ExactDecimal quantity, price, fee;
};

struct LogAmounts {
  ExactDecimal cash;
  ExactDecimal day;             // realised today, after fees
  ExactDecimal realised, fees;  // of the strategy; the former before fees
  int hold_decimals = 0;        // places of the cash that orders hold
};

struct LogOrder {
  std::int32_t symbol;
  bool is_entry;
  PackedDecimal quantity;
  double at, quote;
};

struct LogFill {
  std::int32_t order;  // its place among the orders
  PackedDecimal price, fee;
  double at;
};

struct LogTrade {
  std::int32_t entry, exit;  // places among the fills; -1 - n is the position n from before
  double profit;
};

struct LogPoint {
  double at, equity, invested;
};

struct AppliedLog {
  std::vector<LogOrder> orders;
  std::vector<LogFill> fills;
  std::vector<LogTrade> trades;
  std::vector<LogPoint> points;
  std::vector<std::int32_t> waiting;  // orders without a fill
  std::vector<std::int32_t> changed;  // symbols, in the order of their first order
  std::vector<std::int32_t> held;     // symbols, in the order of their entry
  std::vector<std::int32_t> entered;  // fills that opened positions which are held
  LogAmounts amounts;
  ExactDecimal traded, fees, profit, profit_size;  // sums; the last is of the profits without their signs
  bool is_new_day = false;
  std::size_t day_orders = 0;                      // orders before the last day began
  std::int64_t cuts = 0;                           // entries that the largest quantity made smaller
};

class OrderLog {
 public:
  OrderLog(ExactDecimal max_value, ExactDecimal max_quantity) : max_value_(max_value), max_quantity_(max_quantity) {}

  // The terms of each symbol are at its place.
  void set_terms(std::vector<LogTerms> terms, std::vector<std::int32_t> of_symbol) {
    terms_ = std::move(terms);
    of_symbol_ = std::move(of_symbol);
    slots_.assign(of_symbol_.size(), Slot());
  }

  std::size_t symbols() const { return of_symbol_.size(); }

  // Rows with their values, and the times of the chunk's rows. Positions are in the order of their entry.
  std::optional<AppliedLog> apply(std::span<const LogRow> rows, const double* values, const double* times,
                                  std::span<const LogPosition> positions, const LogAmounts& amounts) {
    begin(rows.size(), positions, amounts);
    for (std::size_t i = 0; i < rows.size() && is_exact_; ++i) {
      const auto symbol = static_cast<std::int32_t>(rows[i].symbol);
      const double at = times[rows[i].row];
      switch (static_cast<LogKind>(rows[i].kind)) {
        case LogKind::kBought: order(symbol, true, at, values[i]); break;
        case LogKind::kSold: order(symbol, false, at, values[i]); break;
        case LogKind::kFilled: fill(symbol, at, values[i]); break;
        case LogKind::kSampled: sample(values[i]); break;
        case LogKind::kPrice: price(symbol, values[i]); break;
        case LogKind::kNewDay: begin_day(); break;
        default: is_exact_ = false;
      }
    }
    finish();
    if (!is_exact_) return std::nullopt;
    return std::move(found_);
  }

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr int kGainDecimals = 18;  // of realised profits, as the database stores them
  struct Slot {
    std::int32_t order = kNone;  // that waits
    std::int32_t entry = 0;      // as in a trade
    bool is_held = false, has_changed = false;
    ExactDecimal quantity, price, fee;  // of the position
  };

  void begin(std::size_t rows, std::span<const LogPosition> positions, const LogAmounts& amounts) {
    found_ = AppliedLog();
    found_.orders.reserve(rows / 2 + 1);
    found_.fills.reserve(rows / 2 + 1);
    found_.trades.reserve(rows / 4 + 1);
    found_.amounts = amounts;
    value_ = {};
    is_exact_ = true;
    for (const LogPosition& each : positions) {
      Slot& slot = slots_[static_cast<std::size_t>(each.symbol)];
      slot.is_held = true;
      slot.entry = -1 - static_cast<std::int32_t>(found_.held.size());
      slot.quantity = each.quantity;
      slot.price = each.price;
      slot.fee = each.fee;
      found_.held.push_back(each.symbol);
    }
  }

  // Lists what is left, and clears the slots.
  void finish() {
    for (const std::int32_t each : found_.changed) {
      Slot& slot = slots_[static_cast<std::size_t>(each)];
      if (slot.order != kNone) found_.waiting.push_back(slot.order);
      slot.order = kNone;
      slot.has_changed = false;
    }
    std::sort(found_.waiting.begin(), found_.waiting.end());
    for (const std::int32_t each : found_.held) {
      Slot& slot = slots_[static_cast<std::size_t>(each)];
      if (slot.entry >= 0) found_.entered.push_back(slot.entry);
      slot.is_held = false;
    }
    found_.orders.shrink_to_fit();
    found_.fills.shrink_to_fit();
    found_.trades.shrink_to_fit();
  }

  const LogTerms& terms_of(std::int32_t symbol) const {
    return terms_[static_cast<std::size_t>(of_symbol_[static_cast<std::size_t>(symbol)])];
  }

  void order(std::int32_t symbol, bool is_entry, double at, double quote) {
    Slot& slot = slots_[static_cast<std::size_t>(symbol)];
    if (slot.order != kNone || slot.is_held == is_entry) {
      is_exact_ = false;
      return;
    }
    const ExactDecimal quantity = is_entry ? enter(terms_of(symbol), exact(quote)) : slot.quantity;
    slot.order = static_cast<std::int32_t>(found_.orders.size());
    found_.orders.push_back({symbol, is_entry, packed(quantity), at, quote});
    if (!slot.has_changed) found_.changed.push_back(symbol);
    slot.has_changed = true;
  }

  // Returns the quantity of an entry.
  ExactDecimal enter(const LogTerms& terms, ExactDecimal price) {
    const ExactDecimal most = times(max_quantity_, price);
    const bool is_cut = is_less(most, max_value_);
    found_.cuts += is_cut ? 1 : 0;
    const ExactDecimal quantity = is_cut ? terms.most : whole_lots(terms.lot, price);
    const ExactDecimal amount = times(quantity, price), cost = plus(amount, times(amount, terms.buy_rate));
    LogAmounts& amounts = found_.amounts;
    amounts.hold_decimals = std::max(amounts.hold_decimals, cost.decimals);
    checked(with_decimals(amounts.cash, std::max(amounts.hold_decimals, amounts.cash.decimals)));
    return quantity;
  }

  // Returns the largest value of an order at a price in whole lots.
  ExactDecimal whole_lots(ExactDecimal lot, ExactDecimal price) {
    const ExactDecimal lot_value = times(lot, price);
    const int more = lot_value.decimals - max_value_.decimals;
    const auto value = more > 0 ? with_decimals(max_value_, lot_value.decimals) : max_value_;
    const auto part = more < 0 ? with_decimals(lot_value, max_value_.decimals) : lot_value;
    if (!value || !part || part->coefficient <= 0) {
      is_exact_ = false;
      return {};
    }
    return times({value->coefficient / part->coefficient, 0}, lot);
  }

  void fill(std::int32_t symbol, double at, double quote) {
    Slot& slot = slots_[static_cast<std::size_t>(symbol)];
    if (slot.order == kNone) {
      is_exact_ = false;
      return;
    }
    const LogTerms& terms = terms_of(symbol);
    const LogOrder& sent = found_.orders[static_cast<std::size_t>(slot.order)];
    const ExactDecimal price = exact(quote), quantity = unpacked(sent.quantity), amount = times(price, quantity);
    const ExactDecimal rate = sent.is_entry ? terms.buy_rate : terms.sell_rate;
    const ExactDecimal fee = floored(times(amount, rate), terms.fee_decimals);
    const auto place = static_cast<std::int32_t>(found_.fills.size());
    found_.fills.push_back({slot.order, packed(price), packed(fee), at});
    slot.order = kNone;
    found_.traded = plus(found_.traded, amount);
    found_.fees = plus(found_.fees, fee);
    if (sent.is_entry) {
      pay(minus({}, plus(amount, fee)), {}, fee);
      slot.is_held = true;
      slot.entry = place;
      slot.quantity = quantity;
      slot.price = price;
      slot.fee = fee;
      found_.held.push_back(symbol);
    } else {
      pay(minus(amount, fee), gain(slot, price), fee);
      close(slot, place, amount, fee);
      slot.is_held = false;
      std::erase(found_.held, symbol);
    }
  }

  void pay(ExactDecimal change, ExactDecimal realised, ExactDecimal fee) {
    LogAmounts& amounts = found_.amounts;
    amounts.cash = plus(amounts.cash, change);
    amounts.day = plus(amounts.day, minus(realised, fee));
    amounts.realised = plus(amounts.realised, realised);
    amounts.fees = plus(amounts.fees, fee);
  }

  ExactDecimal gain(const Slot& slot, ExactDecimal price) {
    const ExactDecimal found = times(minus(price, slot.price), slot.quantity);
    if (found.decimals > kGainDecimals) is_exact_ = false;
    return is_exact_ ? checked(with_decimals(found, kGainDecimals)) : ExactDecimal();
  }

  void close(const Slot& slot, std::int32_t exit, ExactDecimal amount, ExactDecimal fee) {
    const ExactDecimal entered = times(slot.quantity, slot.price);
    const ExactDecimal profit = minus(minus(amount, entered), plus(slot.fee, fee));
    found_.trades.push_back({slot.entry, exit, nearest(profit)});
    found_.profit = plus(found_.profit, profit);
    const bool is_loss = profit.coefficient < 0;
    found_.profit_size = plus(found_.profit_size, is_loss ? minus({}, profit) : profit);
  }

  void price(std::int32_t symbol, double last) {
    const Slot& slot = slots_[static_cast<std::size_t>(symbol)];
    if (!slot.is_held) is_exact_ = false;
    value_ = plus(value_, times(exact(last), slot.quantity));
  }

  void sample(double at) {
    const ExactDecimal cash = found_.amounts.cash, equity = found_.held.empty() ? cash : plus(cash, value_);
    found_.points.push_back({at, nearest(equity), nearest(value_)});
    value_ = {};
  }

  void begin_day() {
    found_.is_new_day = true;
    found_.day_orders = found_.orders.size();
    found_.amounts.day = {};
  }

  ExactDecimal checked(std::optional<ExactDecimal> number) {
    if (!number) is_exact_ = false;
    return number.value_or(ExactDecimal());
  }
  ExactDecimal exact(double price) { return checked(shortest(price)); }
  ExactDecimal times(ExactDecimal one, ExactDecimal other) { return checked(multiply(one, other)); }
  ExactDecimal plus(ExactDecimal one, ExactDecimal other) { return checked(add(one, other)); }
  ExactDecimal minus(ExactDecimal one, ExactDecimal other) {
    return plus(one, {-other.coefficient, other.decimals});
  }
  PackedDecimal packed(ExactDecimal number) {
    const auto found = pack(number);
    if (!found) is_exact_ = false;
    return found.value_or(PackedDecimal());
  }

  // Of a number that is not negative.
  ExactDecimal floored(ExactDecimal number, int decimals) {
    const int fewer = number.decimals - decimals;
    if (fewer <= 0) return checked(with_decimals(number, decimals));
    return {number.coefficient / kTens[static_cast<std::size_t>(fewer)], decimals};
  }

  bool is_less(ExactDecimal one, ExactDecimal other) { return minus(one, other).coefficient < 0; }

  ExactDecimal max_value_, max_quantity_;
  std::vector<LogTerms> terms_;
  std::vector<std::int32_t> of_symbol_;
  std::vector<Slot> slots_;  // by symbol
  AppliedLog found_;
  ExactDecimal value_;  // of positions whose prices were read for the next sample
  bool is_exact_ = true;
};

}  // namespace qts
