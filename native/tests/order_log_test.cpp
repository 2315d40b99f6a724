#include "qts/order_log.hpp"

#include <string>
#include <vector>

#include "harness.hpp"

namespace {

using qts::LogKind;

qts::ExactDecimal number(const char* text) { return *qts::parse(text); }
std::string text(qts::ExactDecimal number) { return qts::to_text(number); }
std::string text(qts::PackedDecimal number) { return qts::to_text(qts::unpacked(number)); }

struct Written {
  std::vector<qts::LogRow> rows;
  std::vector<double> values, times;

  void add(LogKind kind, std::int64_t symbol, double value) {
    rows.push_back({static_cast<std::int64_t>(kind), symbol, static_cast<std::int64_t>(times.size())});
    values.push_back(value);
    times.push_back(100.0 + static_cast<double>(times.size()));
  }
};

// A share with a fee of one thousandth, in whole won, and a coin with one of five ten-thousandths.
qts::OrderLog venue(const char* max_value = "500000", const char* max_quantity = "1000") {
  qts::OrderLog log(number(max_value), number(max_quantity));
  log.set_terms({{number("1"), number("1000"), number("0.001"), number("0.003"), 0},
                 {number("1E-8"), number("1000.00000000"), number("0.0005"), number("0.0005"), 8}},
                {0, 1});
  return log;
}

qts::LogAmounts cash(const char* amount) { return {number(amount), {}, {}, {}, 0}; }

std::optional<qts::AppliedLog> apply(qts::OrderLog& log, const Written& written, const qts::LogAmounts& amounts,
                                     std::vector<qts::LogPosition> positions = {}) {
  return log.apply(written.rows, written.values.data(), written.times.data(), positions, amounts);
}

}  // namespace

TEST(order_log_buys_and_sells_whole_lots_with_fees_that_round_down) {
  auto log = venue();
  Written written;
  written.add(LogKind::kBought, 0, 9990.0);
  written.add(LogKind::kFilled, 0, 9995.0);
  written.add(LogKind::kPrice, 0, 10005.0);
  written.add(LogKind::kSampled, 0, 60.0);
  written.add(LogKind::kSold, 0, 10000.0);
  written.add(LogKind::kFilled, 0, 10001.0);
  written.add(LogKind::kSampled, 0, 120.0);
  const auto found = apply(log, written, cash("1000000"));
  CHECK(found.has_value());
  CHECK_EQ(found->orders.size(), 2u);
  CHECK_EQ(text(found->orders[0].quantity), "50");  // 500,000 / 9,990 is 50.05
  CHECK_EQ(text(found->fills[0].price), "9995.0");
  CHECK_EQ(text(found->fills[0].fee), "499");  // of 499.75
  CHECK_EQ(text(found->fills[1].fee), "1500");  // of 1500.15
  CHECK_EQ(found->trades.size(), 1u);
  CHECK_EQ(found->trades[0].profit, 50 * 6.0 - 499 - 1500);
  CHECK_EQ(text(found->profit), "-1699.0");
  CHECK_EQ(text(found->profit_size), "1699.0");
  CHECK_EQ(text(found->amounts.cash), "998301.0");
  CHECK_EQ(text(found->amounts.realised), "300.000000000000000000");
  CHECK_EQ(text(found->amounts.day), "-1699.000000000000000000");
  CHECK_EQ(text(found->amounts.fees), "1999");
  CHECK_EQ(text(found->traded), "999800.0");
  CHECK_EQ(found->amounts.hold_decimals, 4);
  CHECK_EQ(found->points.size(), 2u);
  CHECK_EQ(found->points[0].equity, 1000000.0 - 499 - 50 * 9995.0 + 50 * 10005.0);
  CHECK_EQ(found->points[0].invested, 50 * 10005.0);
  CHECK_EQ(found->points[1].equity, 998301.0);
  CHECK_EQ(found->points[1].invested, 0.0);
  CHECK(found->held.empty() && found->waiting.empty() && found->entered.empty());
}

TEST(order_log_cuts_an_entry_to_the_largest_quantity_and_keeps_its_places) {
  auto log = venue("1000000000", "2");
  log.set_terms({{number("1E-8"), number("2"), number("0"), number("0"), 8}}, {0, 0});
  Written written;
  written.add(LogKind::kBought, 1, 10.5);
  written.add(LogKind::kFilled, 1, 10.5);
  const auto found = apply(log, written, cash("100"));
  CHECK(found.has_value());
  CHECK_EQ(found->cuts, 1);
  CHECK_EQ(text(found->orders[0].quantity), "2");
  CHECK_EQ(text(found->fills[0].fee), "0.00000000");
  CHECK_EQ(text(found->amounts.cash), "79.00000000");
  CHECK_EQ(found->held.size(), 1u);
  CHECK_EQ(found->entered[0], 0);
}

TEST(order_log_ends_trades_of_positions_from_before) {
  auto log = venue();
  Written written;
  written.add(LogKind::kSold, 1, 3.5);
  written.add(LogKind::kFilled, 1, 3.25);
  written.add(LogKind::kBought, 0, 7000.0);
  const std::vector<qts::LogPosition> before = {{1, number("1.50000000"), number("3.0"), number("0.00225000")}};
  const auto found = apply(log, written, cash("0"), before);
  CHECK(found.has_value());
  CHECK_EQ(found->trades[0].entry, -1);
  CHECK_EQ(text(found->profit), "0.3703125000");  // 0.375 less fees of 0.00225 and 0.0024375
  CHECK_EQ(found->waiting.size(), 1u);
  CHECK_EQ(found->orders[static_cast<std::size_t>(found->waiting[0])].symbol, 0);
  CHECK_EQ(found->changed.size(), 2u);
  CHECK(found->held.empty());
}

TEST(order_log_lists_positions_in_the_order_of_their_entry) {
  auto log = venue();
  Written written;
  for (const std::int64_t each : {1, 0}) {
    written.add(LogKind::kBought, each, 100.0);
    written.add(LogKind::kFilled, each, 100.0);
  }
  written.add(LogKind::kSold, 1, 100.0);
  written.add(LogKind::kFilled, 1, 100.0);
  written.add(LogKind::kBought, 1, 100.0);
  written.add(LogKind::kFilled, 1, 100.0);
  const auto found = apply(log, written, cash("10000000"));
  CHECK(found.has_value());
  CHECK(found->held == std::vector<std::int32_t>({0, 1}));
  CHECK(found->changed == std::vector<std::int32_t>({1, 0}));
  CHECK(found->entered == std::vector<std::int32_t>({1, 3}));
}

TEST(order_log_begins_a_day_without_orders_and_profits) {
  auto log = venue();
  Written written;
  written.add(LogKind::kBought, 0, 100.0);
  written.add(LogKind::kFilled, 0, 100.0);
  written.add(LogKind::kNewDay, 0, 86400.0);
  written.add(LogKind::kSold, 0, 101.0);
  const auto found = apply(log, written, cash("10000000"));
  CHECK(found.has_value() && found->is_new_day);
  CHECK_EQ(found->day_orders, 1u);
  CHECK_EQ(text(found->amounts.day), "0");
  CHECK_EQ(text(found->amounts.fees), "100");  // of 1,000 pieces
}

TEST(order_log_leaves_to_python_what_may_not_be_exact) {
  auto log = venue();
  Written written;
  written.add(LogKind::kBought, 0, 9990.0);
  written.add(LogKind::kFilled, 0, 0.1 + 0.2);
  CHECK(!apply(log, written, cash("1000000")).has_value());  // 0.30000000000000004 has 17 digits
  written.values[1] = 9990.0;
  CHECK(!apply(log, written, cash("999999999999999999999999999")).has_value());
  written.add(LogKind::kFilled, 0, 9990.0);  // of no order
  CHECK(!apply(log, written, cash("1000000")).has_value());
  written.rows.pop_back();
  CHECK(apply(log, written, cash("1000000")).has_value());  // nothing is left of the calls before
}
