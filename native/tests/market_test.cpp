// Bars, indicators, market processors: alignment, gaps, late ticks, snapshots, one result for any division.
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <tuple>

#include "harness.hpp"
#include "qts/market_handler.hpp"

using namespace qts;

namespace {

constexpr std::int64_t kMarketDay = 20'000;  // 2024-10-04
constexpr double kMarketOpen = kMarketDay * 86'400.0;
constexpr Session kKrx{0, 23'400, 60};  // 09:00 to 15:30 in Seoul
constexpr Session kUpbit{0, 86'400, 0};

std::int64_t market_ns(double at) { return MarketPlane::to_ns(at); }

// A plane with one strategy over some symbols, timeframes and indicators.
struct MarketRig {
  explicit MarketRig(std::uint32_t processors = 1, std::size_t kept = 500, std::uint32_t symbols = 5) : plane(kept, processors) {
    plane.add_indicator("sma(3)", {Indicator::Kind::sma, {3}});
    plane.add_indicator("macd(3,5,2)", {Indicator::Kind::macd, {3, 5, 2}});
    plane.add_indicator("vwap()", {Indicator::Kind::vwap, {}});
    plane.add_strategy({0, 1, 2});
    for (std::uint32_t i = 0; i < symbols; ++i) {
      plane.add_symbol("S" + std::to_string(i), i % 2 == 0 ? kKrx : kUpbit);
      for (const std::uint32_t timeframe : {1u, 60u, 300u, 86'400u}) plane.subscribe(0, i, timeframe);
    }
  }
  MarketPlane plane;
};

std::vector<MarketTick> market_session(unsigned seed, std::size_t count, std::uint32_t symbols = 5) {
  std::mt19937 random(seed);
  std::vector<MarketTick> ticks(count);
  double at = kMarketOpen + 60;
  for (MarketTick& tick : ticks) {
    at += std::exponential_distribution<>(random() % 50 == 0 ? 0.005 : 2.0)(random);
    tick = {static_cast<std::uint32_t>(random()) % symbols, 0, 100.0 + static_cast<double>(random() % 1000), static_cast<double>(random() % 10), at};
  }
  return ticks;
}

bool same_rows(const MarketProcessor::Delivery& a, const MarketProcessor::Delivery& b) {
  return a.rows.size() == b.rows.size() && a.values.size() == b.values.size() &&
         std::memcmp(a.rows.data(), b.rows.data(), a.rows.size() * sizeof(BarRow)) == 0 &&
         std::memcmp(a.values.data(), b.values.data(), a.values.size() * sizeof(double)) == 0;
}

}  // namespace

TEST(intervals_are_aligned_to_the_open) {
  const Session half{34'200, 23'400, 0};  // 09:30
  const Interval hour = interval_at(half, 3600, market_ns(kMarketOpen + 34'200 + 3'700));
  CHECK_EQ(hour.start, market_ns(kMarketOpen + 34'200 + 3'600));
  CHECK_EQ(hour.close, market_ns(kMarketOpen + 34'200 + 7'200));
  const Interval before = interval_at(half, 60, market_ns(kMarketOpen + 1));
  CHECK_EQ(before.start, market_ns(kMarketOpen));
  const Interval day = interval_at(kKrx, 86'400, market_ns(kMarketOpen + 5));
  CHECK_EQ(day.start, market_ns(kMarketOpen));
  CHECK_EQ(day.close, market_ns(kMarketOpen + 23'400));
  CHECK_EQ(day.due, market_ns(kMarketOpen + 23'460));
  CHECK_EQ(kUpbit.day_of(-1), -1);
  CHECK_EQ(interval_at(kUpbit, 86'400, market_ns(kMarketOpen)).close, market_ns(kMarketOpen + 86'400));
}

TEST(a_bar_closes_once_and_late_ticks_are_dropped) {
  BarBuilder builder(kUpbit, 60);
  CHECK(builder.push(10, 1, market_ns(kMarketOpen + 61)) == TickFate::taken);
  CHECK(builder.push(12, 2, market_ns(kMarketOpen + 119)) == TickFate::taken);
  CHECK(builder.push(9, 1, market_ns(kMarketOpen + 59)) == TickFate::late);
  CHECK(builder.push(11, 0, market_ns(kMarketOpen + 62)) == TickFate::taken);
  CHECK(builder.closes_before(market_ns(kMarketOpen + 120)));
  const Bar bar = builder.close();
  CHECK_EQ(bar.at, static_cast<std::uint32_t>(kMarketOpen + 120));
  CHECK(bar.open == 10 && bar.high == 12 && bar.low == 10 && bar.close == 11);
  CHECK(bar.volume == 3 && bar.value == 34 && bar.ticks == 3);
  CHECK(builder.push(9, 1, market_ns(kMarketOpen + 119.5)) == TickFate::late);
  CHECK(!builder.is_open());
  CHECK(builder.push(9, 1, market_ns(kMarketOpen + 120)) == TickFate::taken);
}

TEST(a_day_takes_its_closing_auction_and_nothing_after_it) {
  BarBuilder day(kKrx, 86'400);
  CHECK(day.push(10, 1, market_ns(kMarketOpen)) == TickFate::taken);
  CHECK(!day.closes_before(market_ns(kMarketOpen + 23'430)));
  CHECK(day.push(11, 1, market_ns(kMarketOpen + 23'430)) == TickFate::taken);
  CHECK(day.closes_before(market_ns(kMarketOpen + 23'460)));
  CHECK_EQ(day.close().at, static_cast<std::uint32_t>(kMarketOpen + 23'400));
  CHECK(day.push(12, 1, market_ns(kMarketOpen + 30'000)) == TickFate::outside);
  CHECK(day.push(12, 1, market_ns(kMarketOpen + 86'400)) == TickFate::taken);
}

TEST(advance_closes_on_time_in_order_without_a_tick) {
  MarketRig rig(1);
  for (std::uint32_t symbol = 5; symbol-- > 0;) rig.plane.push(symbol, 100, 1, kMarketOpen + 10);
  rig.plane.advance(kMarketOpen + 10.999);
  CHECK_EQ(rig.plane.waiting(), 0u);
  rig.plane.advance(kMarketOpen + 300);
  const auto found = rig.plane.drain(0);
  CHECK_EQ(found.rows.size(), 15u);
  for (std::size_t i = 1; i < found.rows.size(); ++i) {
    const BarRow &a = found.rows[i - 1], &b = found.rows[i];
    CHECK(std::tuple(a.at, a.timeframe, a.symbol) < std::tuple(b.at, b.timeframe, b.symbol));
  }
  rig.plane.advance(kMarketOpen + 600);
  CHECK_EQ(rig.plane.waiting(), 0u);  // no ticks, no bar
}

TEST(any_number_of_processors_gives_the_same_rows) {
  const auto ticks = market_session(1, 20'000);
  MarketRig one(1), three(3);
  one.plane.push_many(ticks);
  three.plane.push_many(ticks);
  one.plane.advance(kMarketOpen + 10 * 86'400);
  three.plane.advance(kMarketOpen + 10 * 86'400);
  const auto first = one.plane.drain(0);
  CHECK_GE(first.rows.size(), 1000u);
  CHECK(same_rows(first, three.plane.drain(0)));
  const MarketCounts counts = three.plane.counts();
  CHECK_EQ(counts.produced, counts.delivered);
  CHECK_EQ(counts.ticks, ticks.size());
}

TEST(a_restored_plane_continues_bit_for_bit) {
  const auto ticks = market_session(2, 8'000);
  for (const std::size_t cut : {1u, 77u, 4'001u}) {
    MarketRig whole(1), before(2), after(1);
    const std::span<const MarketTick> all(ticks);
    whole.plane.push_many(all.first(cut));
    whole.plane.drain(0);
    before.plane.push_many(all.first(cut));
    after.plane.restore(before.plane.snapshot());
    whole.plane.push_many(all.subspan(cut));
    after.plane.push_many(all.subspan(cut));
    CHECK(same_rows(whole.plane.drain(0), after.plane.drain(0)));
    CHECK_EQ(whole.plane.snapshot() == after.plane.snapshot(), true);
  }
}

TEST(a_damaged_snapshot_is_refused) {
  MarketRig rig;
  rig.plane.push_many(market_session(3, 500));
  const std::string good = rig.plane.snapshot();
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 + random() % 255);
    CHECK_THROWS(std::invalid_argument, rig.plane.restore(bad));
    CHECK_THROWS(std::invalid_argument, rig.plane.restore(std::string_view(good).substr(0, random() % good.size())));
  }
}

TEST(the_ring_keeps_the_last_bars) {
  MarketRig rig(1, 7, 1);
  for (int i = 0; i < 40; ++i) rig.plane.push(0, 100 + i, 1, kMarketOpen + i);
  const auto rows = rig.plane.bars(0, 1, 100, true);
  CHECK_EQ(rows.size(), 8u);
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK_EQ(rows[i].close, 132.0 + static_cast<double>(i));
  CHECK_EQ(rig.plane.bars(0, 1, 3, false)[0].close, 136.0);
  CHECK_EQ(rig.plane.bars(0, 900, 3, true).size(), 0u);
}

TEST(a_late_subscription_begins_with_the_bars_of_the_ring) {
  MarketRig rig(1, 50, 1);
  for (int i = 0; i < 20; ++i) rig.plane.push(0, 100 + i, 1, kMarketOpen + i);
  const std::uint32_t average = rig.plane.add_indicator("sma(10)", {Indicator::Kind::sma, {10}});
  rig.plane.subscribe(rig.plane.add_strategy({average}), 0, 1);
  CHECK_EQ(rig.plane.values(0, 1, average, false)[0], 113.5);  // of 109 to 118
  CHECK_EQ(rig.plane.values(0, 1, average, true)[0], 114.5);
  CHECK_EQ(rig.plane.values(0, 1, average, false)[0], 113.5);
}

TEST(history_enters_the_indicators_and_is_not_delivered) {
  MarketRig rig(1, 50, 1);
  const auto at = [](int i) { return static_cast<std::uint32_t>(kMarketOpen) + static_cast<std::uint32_t>(60 * i); };
  for (int i = 1; i <= 5; ++i) CHECK(rig.plane.push_bar(0, 60, {at(i), 1, 10, 10, 10, 10.0 * i, 1, 10}, false));
  CHECK(!rig.plane.push_bar(0, 60, {at(5), 1, 1, 1, 1, 1, 1, 1}, false));      // twice
  CHECK(!rig.plane.push_bar(0, 60, {at(6) + 1, 1, 1, 1, 1, 1, 1, 1}, false));  // between two closes
  CHECK_EQ(rig.plane.waiting(), 0u);
  CHECK_EQ(rig.plane.values(0, 60, 0, false)[0], 40.0);
  CHECK(rig.plane.push_bar(0, 60, {at(6), 1, 1, 1, 1, 60, 1, 1}, true));
  CHECK_EQ(rig.plane.drain(0).rows.size(), 1u);
  rig.plane.push(0, 1, 1, at(6) - 30.0);
  CHECK(rig.plane.bars(0, 60, 9, true).back().at == at(6));  // late: the bar of that minute is known
}

TEST(a_step_of_the_user_keeps_its_state) {
  MarketPlane plane(10, 1);
  const IndicatorStep count = [](double* state, const double* params, double, double, double, double close, double,
                                 double) { return state[0] += params[0] * close; };
  const std::uint32_t own = plane.add_indicator("own", {count, {2}, 1});
  plane.subscribe(plane.add_strategy({own}), plane.add_symbol("A", kUpbit), 1);
  for (int i = 0; i < 4; ++i) plane.push(0, 5, 1, kMarketOpen + i);
  CHECK_EQ(plane.values(0, 1, own, false)[0], 30.0);
}

TEST(bars_may_be_read_and_drained_while_ticks_are_pushed) {
  MarketRig rig(2, 50, 4);
  const auto ticks = market_session(5, 20'000, 4);
  std::size_t rows = 0;
  std::thread writer([&] { rig.plane.push_many(ticks); });
  for (int i = 0; i < 200; ++i) {
    rows += rig.plane.drain(0).rows.size();
    static_cast<void>(rig.plane.bars(1, 60, 10, true));
    static_cast<void>(rig.plane.snapshot());
  }
  writer.join();
  rows += rig.plane.drain(0).rows.size();
  CHECK_EQ(rows, rig.plane.counts().delivered);
  CHECK_EQ(rig.plane.counts().produced, rig.plane.counts().delivered);
}

TEST(indicators_refuse_what_makes_no_sense) {
  using Kind = Indicator::Kind;
  CHECK_THROWS(std::invalid_argument, Indicator(Kind::sma, {0}));
  CHECK_THROWS(std::invalid_argument, Indicator(Kind::sma, {2.5}));
  CHECK_THROWS(std::invalid_argument, Indicator(Kind::sma, {5001}));
  CHECK_THROWS(std::invalid_argument, Indicator(Kind::macd, {26, 12, 9}));
  CHECK_THROWS(std::invalid_argument, Indicator(Kind::bollinger, {20, 0}));
  CHECK_THROWS(std::invalid_argument, Indicator(Kind::vwap, {1}));
}

TEST(ticks_arrive_unchanged_through_messages) {
  std::mt19937 random(6);
  for (int i = 0; i < 20'000; ++i) {
    const double scale = std::pow(10.0, static_cast<double>(random() % 9));
    MarketTick tick{static_cast<std::uint32_t>(i), 0, 0, 0, kMarketOpen + i};
    tick.price = static_cast<double>(1 + random() % 150'000'000) / scale;
    tick.volume = static_cast<double>(random()) / scale;
    const Message message = tick_message(tick);
    CHECK_EQ(price_as_double(message), tick.price);
    CHECK_EQ(quantity_as_double(message), tick.volume);
    CHECK_EQ(message.processing_ts_ns, static_cast<std::uint64_t>(market_ns(tick.at)));
  }
}

TEST(handlers_of_the_router_give_the_rows_of_push_many) {
  const auto ticks = market_session(7, 5'000);
  MarketRig inline_rig(1);
  MarketRig routed(2);
  inline_rig.plane.push_many(ticks);
  std::int64_t second = 0;
  const std::vector<Message> messages = tick_messages(ticks, 2, second);
  MarketHandler handlers[] = {{routed.plane, 0}, {routed.plane, 1}};
  for (Message message : messages) CHECK_EQ(handlers[message.symbol_id % 2].run({&message, 1}), 1u);
  CHECK(same_rows(inline_rig.plane.drain(0), routed.plane.drain(0)));
  Message unknown = tick_message({99, 0, 1, 1, kMarketOpen});
  CHECK_EQ(handlers[1].run({&unknown, 1}), 0u);
}
