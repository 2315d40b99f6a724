// qts._native.MarketPlane: bars and indicators as Python drives them.
#include "bindings.hpp"
#include "router_gil.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "qts/market_handler.hpp"

namespace {

using qts::MarketPlane;
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using Numbers = nb::ndarray<nb::numpy, double, nb::ndim<2>>;

// Hands a vector's memory to numpy.
template <class Array, class T>
Array to_numpy(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  return Array(kept->data(), shape, owner);
}

template <class T>
NumpyBytes rows_to_numpy(std::vector<T> rows) {
  const std::size_t size = rows.size() * sizeof(T);
  return to_numpy<NumpyBytes>(std::move(rows), {size});
}

template <class T>
std::span<const T> records(const Bytes& bytes) {
  if (bytes.size() % sizeof(T) != 0) throw nb::value_error("the array has another item size");
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

std::string number(double value) { return nb::cast<std::string>(nb::str(nb::float_(value))); }

void require_valid(double price, double volume, double at, const std::string& where) {
  if (MarketPlane::is_valid(price, volume, at)) return;
  if (!(price > 0 && std::isfinite(price)))
    throw nb::value_error((where + ": price is " + number(price) + "; expected more than 0").c_str());
  if (!(volume >= 0 && std::isfinite(volume)))
    throw nb::value_error((where + ": volume is " + number(volume) + "; expected 0 or more").c_str());
  throw nb::value_error((where + ": at is " + number(at) + "; expected seconds since 1970, before 2106").c_str());
}

void require_time(double at) { require_valid(1, 0, at, "advance"); }

std::uint32_t id_of(const MarketPlane& plane, std::string_view symbol) {
  const auto found = plane.find(symbol);
  if (!found) throw nb::value_error(("no strategy subscribed to " + std::string(symbol)).c_str());
  return *found;
}

// Checks every tick before any is taken.
std::span<const qts::MarketTick> checked(const MarketPlane& plane, const Bytes& bytes, double max_price) {
  const auto ticks = records<qts::MarketTick>(bytes);
  const std::uint32_t symbols = plane.symbols();
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    const qts::MarketTick& tick = ticks[i];
    if (tick.symbol < symbols && MarketPlane::is_valid(tick.price, tick.volume, tick.at) && tick.price < max_price) continue;
    const std::string where = "tick " + std::to_string(i);
    if (tick.symbol >= symbols)
      throw nb::value_error((where + ": symbol is " + std::to_string(tick.symbol) + "; there are " +
                             std::to_string(symbols) + " symbols").c_str());
    require_valid(tick.price, tick.volume, tick.at, where);
    throw nb::value_error((where + ": price is " + number(tick.price) + "; expected less than 92e9").c_str());
  }
  return ticks;
}

std::size_t push(MarketPlane& plane, std::string_view symbol, double price, double volume, double at) {
  const auto id = plane.find(symbol);
  require_valid(price, volume, at, "a tick");
  if (id) plane.push(*id, price, volume, at);
  return plane.waiting();
}

std::size_t push_many(MarketPlane& plane, const Bytes& bytes) {
  const auto ticks = checked(plane, bytes, HUGE_VAL);
  const WithoutGil released;
  plane.push_many(ticks);
  return plane.waiting();
}

std::size_t advance(MarketPlane& plane, double at) {
  require_time(at);
  plane.advance(at);
  return plane.waiting();
}

std::size_t push_bars(MarketPlane& plane, const Bytes& bytes, bool deliver) {
  std::size_t taken = 0;
  const std::uint32_t symbols = plane.symbols();
  for (const qts::BarRow& row : records<qts::BarRow>(bytes)) {
    require_valid(row.close, row.volume, row.at, "a bar");
    if (row.symbol >= symbols) throw nb::value_error("a bar has an unknown symbol");
    const qts::Bar bar{static_cast<std::uint32_t>(row.at), row.ticks, row.open, row.high, row.low, row.close, row.volume, row.value};
    taken += plane.push_bar(row.symbol, row.timeframe, bar, deliver) ? 1 : 0;
  }
  return taken;
}

nb::tuple drain(MarketPlane& plane, std::uint32_t strategy) {
  if (strategy >= plane.strategies()) throw nb::value_error("unknown strategy");
  auto taken = plane.drain(strategy);
  const std::size_t count = taken.rows.size(), columns = plane.columns(strategy);
  return nb::make_tuple(rows_to_numpy(std::move(taken.rows)), to_numpy<Numbers>(std::move(taken.values), {count, columns}));
}

qts::Indicator::Kind kind_named(const std::string& name) {
  using Kind = qts::Indicator::Kind;
  static constexpr std::pair<const char*, Kind> kKinds[] = {
      {"sma", Kind::sma}, {"ema", Kind::ema}, {"rma", Kind::rma}, {"rsi", Kind::rsi}, {"macd", Kind::macd},
      {"bollinger", Kind::bollinger}, {"atr", Kind::atr}, {"vwap", Kind::vwap}, {"donchian", Kind::donchian}};
  for (const auto& [text, kind] : kKinds)
    if (name == text) return kind;
  throw nb::value_error(("no indicator is called " + name).c_str());
}

nb::dict counts(MarketPlane& plane) {
  const qts::MarketCounts now = plane.counts();
  nb::dict row;
  row["ticks"] = now.ticks;
  row["late"] = now.late;
  row["outside"] = now.outside;
  row["bars"] = now.bars;
  row["produced"] = now.produced;
  row["delivered"] = now.delivered;
  row["series"] = plane.series();
  row["bytes"] = plane.bytes();
  return row;
}

nb::tuple tick_messages(const MarketPlane& plane, const Bytes& bytes, std::int64_t second) {
  const auto ticks = checked(plane, bytes, qts::kMaxMessagePrice);
  auto messages = qts::tick_messages(ticks, plane.processors(), second);
  return nb::make_tuple(rows_to_numpy(std::move(messages)), second);
}

NumpyBytes clock_messages(const MarketPlane& plane, double at) {
  require_time(at);
  std::vector<qts::Message> messages;
  for (std::uint32_t i = 0; i < plane.processors(); ++i) messages.push_back(qts::clock_message(i, MarketPlane::to_ns(at)));
  return rows_to_numpy(std::move(messages));
}

void bind_building(nb::class_<MarketPlane>& plane) {
  plane
      .def(
          "add_symbol",
          [](MarketPlane& self, const std::string& name, std::int64_t open_s, std::int64_t length_s, std::int64_t auction_s) {
            return self.add_symbol(name, {open_s, length_s, auction_s});
          },
          "name"_a, "open_s"_a, "length_s"_a, "auction_s"_a, "Add a symbol with its session, and return its id.")
      .def(
          "add_indicator",
          [](MarketPlane& self, const std::string& name, const std::string& kind, std::vector<double> params) {
            return self.add_indicator(name, {kind_named(kind), std::move(params)});
          },
          "name"_a, "kind"_a, "params"_a, "Add an indicator, and return its number.")
      .def(
          "add_step",
          [](MarketPlane& self, const std::string& name, std::uintptr_t address, std::vector<double> params, std::size_t state_size) {
            return self.add_indicator(name, {reinterpret_cast<qts::IndicatorStep>(address), std::move(params), state_size});
          },
          "name"_a, "address"_a, "params"_a, "state_size"_a, "Add a compiled function as an indicator, and return its number.")
      .def("add_strategy", &MarketPlane::add_strategy, "indicators"_a, "Add a strategy with its indicators, and return its number.")
      .def("subscribe", &MarketPlane::subscribe, "strategy"_a, "symbol"_a, "timeframe"_a,
           "Deliver the bars of a symbol and timeframe (in seconds) to a strategy.");
}

void bind_reading(nb::class_<MarketPlane>& plane) {
  plane
      .def(
          "bars",
          [](MarketPlane& self, std::string_view symbol, std::uint32_t timeframe, std::size_t most, bool forming) {
            return rows_to_numpy(self.bars(id_of(self, symbol), timeframe, most, forming));
          },
          "symbol"_a, "timeframe"_a, "most"_a, "forming"_a, "Return the last bars of a series, oldest first.")
      .def(
          "values",
          [](MarketPlane& self, std::string_view symbol, std::uint32_t timeframe, std::uint32_t indicator, bool forming) {
            if (indicator >= self.indicators()) throw nb::value_error("unknown indicator");
            return self.values(id_of(self, symbol), timeframe, indicator, forming);
          },
          "symbol"_a, "timeframe"_a, "indicator"_a, "forming"_a, "Return the values of an indicator; NaN: none yet.")
      .def("counts", &counts, "Ticks, late and outside the session, bars, rows produced and delivered, series, bytes.")
      .def("waiting", &MarketPlane::waiting, "How many rows were produced and not yet drained.")
      .def(
          "snapshot",
          [](MarketPlane& self) {
            const std::string text = self.snapshot();
            return nb::bytes(text.data(), text.size());
          },
          "Return the bars and indicators, without the rows that wait.")
      .def(
          "restore", [](MarketPlane& self, nb::bytes text) { self.restore({text.c_str(), text.size()}); }, "snapshot"_a,
          "Set the series that are subscribed to as a snapshot has them.");
}

}  // namespace

void bind_market(nb::module_& m) {
  nb::class_<MarketPlane> plane(m, "MarketPlane", "Bars and indicators of the symbols that strategies subscribe to.");
  plane.def(nb::init<std::size_t, std::uint32_t>(), "bars_kept"_a, "processors"_a)
      .def("push", &push, "symbol"_a, "price"_a, "volume"_a, "at"_a,
           "Push a tick, unless nobody subscribed to its symbol; return how many rows wait.")
      .def("push_many", &push_many, "ticks"_a, "Push ticks in order of time, which are the clock; return how many rows wait.")
      .def("push_bars", &push_bars, "bars"_a, "deliver"_a, "Push closed bars; return how many were taken.")
      .def("advance", &advance, "at"_a, "Close what is due; return how many rows wait.")
      .def("drain", &drain, "strategy"_a, "Take the rows of a strategy, and the values of its indicators.")
      .def("tick_messages", &tick_messages, "ticks"_a, "second"_a,
           "Return ticks and clocks as messages of the router, and the last second that began.")
      .def("clock_messages", &clock_messages, "at"_a, "Return a clock for each processor as messages of the router.");
  bind_building(plane);
  bind_reading(plane);
}
