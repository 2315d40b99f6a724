// qts._native.OrderLog: applies orders that a compiled scan has logged, in exact decimals.
// qts._native.AppliedLog: what they were, as rows and sums that are made when somebody reads them.
//
// One thread uses them, with the GIL.
#include "qts/order_log.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "decimals.hpp"

namespace {

using qts::checked;
using qts::number;

template <class T, std::size_t N>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

nb::object integer(std::int64_t value) { return checked(PyLong_FromLongLong(value)); }

struct Names {
  std::vector<nb::object> symbols;
  mutable qts::DecimalMaker decimals;
};

class Applied {
 public:
  Applied(qts::AppliedLog log, std::shared_ptr<const Names> names) : log_(std::move(log)), names_(std::move(names)) {}

  std::size_t orders() const { return log_.orders.size(); }
  std::size_t fills() const { return log_.fills.size(); }
  std::size_t trades() const { return log_.trades.size(); }
  std::int64_t cuts() const { return log_.cuts; }
  bool is_new_day() const { return log_.is_new_day; }
  int hold_decimals() const { return log_.amounts.hold_decimals; }

  nb::object cash() const { return decimal(log_.amounts.cash); }
  nb::object day() const { return decimal(log_.amounts.day); }
  nb::object realised() const { return decimal(log_.amounts.realised); }
  nb::object fees() const { return decimal(log_.amounts.fees); }
  nb::object traded() const { return decimal(log_.traded); }
  nb::object charged() const { return decimal(log_.fees); }
  nb::object profit() const { return decimal(log_.profit); }
  nb::object profit_size() const { return decimal(log_.profit_size); }

  nb::bytes points() const { return nb::bytes(log_.points.data(), log_.points.size() * sizeof(qts::LogPoint)); }

  nb::list profits() const {
    return listed(log_.trades, [](const qts::LogTrade& each) { return number(each.profit); });
  }
  nb::list times() const {
    const std::span of_day = std::span(log_.orders).subspan(log_.day_orders);
    return listed(of_day, [](const qts::LogOrder& each) { return number(each.at); });
  }
  nb::list changed() const { return listed(log_.changed, [&](std::int32_t each) { return symbol(each); }); }
  nb::list held() const { return listed(log_.held, [&](std::int32_t each) { return symbol(each); }); }

  nb::list order_rows() const {
    return listed(log_.orders, [&](const qts::LogOrder& each) { return order_row(each); });
  }
  nb::list fill_rows(std::int64_t first) const {
    return listed(log_.fills, [&](const qts::LogFill& each) { return fill_row(each, first); });
  }
  nb::list trade_places() const {
    return listed(log_.trades, [](const qts::LogTrade& each) { return nb::make_tuple(each.entry, each.exit); });
  }
  nb::list entered(std::int64_t first) const {
    return listed(log_.entered, [&](std::int32_t each) { return fill_row(log_.fills[static_cast<std::size_t>(each)], first); });
  }
  nb::list waiting() const {
    return listed(log_.waiting, [&](std::int32_t each) {
      const qts::LogOrder& sent = log_.orders[static_cast<std::size_t>(each)];
      return nb::make_tuple(each, order_row(sent), sent.quote);
    });
  }

 private:
  template <class Items, class Make>
  static nb::list listed(const Items& items, Make make) {
    nb::list found;
    for (const auto& each : items) found.append(make(each));
    return found;
  }

  nb::object symbol(std::int32_t place) const { return names_->symbols[static_cast<std::size_t>(place)]; }
  nb::object decimal(qts::ExactDecimal value) const { return names_->decimals.make(value); }
  nb::object decimal(qts::PackedDecimal value) const { return decimal(qts::unpacked(value)); }

  nb::tuple order_row(const qts::LogOrder& each) const {
    return nb::make_tuple(symbol(each.symbol), each.is_entry, decimal(each.quantity), each.at);
  }
  nb::tuple fill_row(const qts::LogFill& each, std::int64_t first) const {
    const qts::LogOrder& sent = log_.orders[static_cast<std::size_t>(each.order)];
    return nb::make_tuple(integer(first + each.order), symbol(sent.symbol), sent.is_entry, decimal(sent.quantity),
                          decimal(each.price), decimal(each.fee), each.at);
  }

  const qts::AppliedLog log_;
  const std::shared_ptr<const Names> names_;
};

qts::ExactDecimal read(nb::handle decimal) {
  const auto found = qts::read_decimal(decimal);
  if (!found) throw nb::value_error("a decimal with too many digits");
  return *found;
}

class Log {
 public:
  Log(nb::handle max_value, nb::handle max_quantity) : log_(read(max_value), read(max_quantity)) {}

  void set_symbols(nb::list symbols, nb::list terms, std::vector<std::int32_t> of_symbol) {
    std::vector<qts::LogTerms> found;
    for (nb::handle each : terms) {
      found.push_back({read(each[0]), read(each[1]), read(each[2]), read(each[3]), nb::cast<int>(each[4])});
      const int decimals = found.back().fee_decimals;
      if (decimals < 0 || decimals > qts::kMostDecimals) throw nb::value_error("a fee with so many decimals");
    }
    if (of_symbol.size() != nb::len(symbols)) throw nb::value_error("a symbol without terms");
    for (const std::int32_t each : of_symbol)
      if (each < 0 || static_cast<std::size_t>(each) >= found.size()) throw nb::index_error("no such terms");
    auto names = std::make_shared<Names>();
    names->symbols = qts::list_items(symbols);
    names_ = std::move(names);
    log_.set_terms(std::move(found), std::move(of_symbol));
  }

  nb::object apply(Array<std::int64_t, 2> rows, Array<double, 1> values, Array<double, 1> at, nb::list positions,
                   nb::tuple amounts, int hold_decimals) {
    const std::size_t count = rows.shape(0);
    if (rows.shape(1) != 3 || values.size() != count) throw nb::value_error("columns of different lengths");
    static_assert(sizeof(qts::LogRow) == 3 * sizeof(std::int64_t));
    const std::span found(reinterpret_cast<const qts::LogRow*>(rows.data()), count);
    for (const qts::LogRow& each : found)
      if (each.symbol < 0 || static_cast<std::size_t>(each.symbol) >= log_.symbols() || each.row < 0 ||
          static_cast<std::size_t>(each.row) >= at.size())
        throw nb::index_error("no such symbol or row");
    qts::LogAmounts before;
    before.hold_decimals = hold_decimals;
    if (hold_decimals < 0 || !read_amounts(amounts, before) || !read_positions(positions)) return nb::none();
    auto applied = log_.apply(found, values.data(), at.data(), positions_, before);
    if (!applied) return nb::none();
    return nb::cast(Applied(std::move(*applied), names_));
  }

 private:
  static bool read_amounts(const nb::tuple& given, qts::LogAmounts& found) {
    qts::ExactDecimal* const parts[] = {&found.cash, &found.day, &found.realised, &found.fees};
    if (nb::len(given) != std::size(parts)) throw nb::value_error("amounts: expected four");
    for (std::size_t i = 0; i < std::size(parts); ++i) {
      const auto read = qts::read_decimal(given[i]);
      if (!read) return false;
      *parts[i] = *read;
    }
    return true;
  }

  bool read_positions(const nb::list& given) {
    positions_.clear();
    for (nb::handle each : given) {
      const auto symbol = nb::cast<std::int32_t>(each[0]);
      if (symbol < 0 || static_cast<std::size_t>(symbol) >= log_.symbols()) throw nb::index_error("no such symbol");
      const auto quantity = qts::read_decimal(each[1]), price = qts::read_decimal(each[2]), fee = qts::read_decimal(each[3]);
      if (!quantity || !price || !fee) return false;
      positions_.push_back({symbol, *quantity, *price, *fee});
    }
    return true;
  }

  qts::OrderLog log_;
  std::vector<qts::LogPosition> positions_;
  std::shared_ptr<const Names> names_ = std::make_shared<Names>();
};

}  // namespace

void bind_order_log(nb::module_& m) {
  nb::class_<Applied>(m, "AppliedLog", "Orders, fills and trades of a log, and the account after them.")
      .def_prop_ro("orders", &Applied::orders, "How many orders there are.")
      .def_prop_ro("fills", &Applied::fills, "How many fills there are.")
      .def_prop_ro("trades", &Applied::trades, "How many trades were completed.")
      .def_prop_ro("cuts", &Applied::cuts, "How many entries the largest quantity made smaller.")
      .def_prop_ro("is_new_day", &Applied::is_new_day, "Whether a day began.")
      .def_prop_ro("cash", &Applied::cash, "The cash of the account.")
      .def_prop_ro("day", &Applied::day, "What the day has realised, after fees.")
      .def_prop_ro("realised", &Applied::realised, "What the strategy has realised, before fees.")
      .def_prop_ro("fees", &Applied::fees, "What the strategy has paid in fees.")
      .def_prop_ro("hold_decimals", &Applied::hold_decimals, "Places of the cash that orders hold.")
      .def_prop_ro("traded", &Applied::traded, "The sum of the amounts of these fills.")
      .def_prop_ro("charged", &Applied::charged, "The sum of the fees of these fills.")
      .def_prop_ro("profit", &Applied::profit, "The sum of the profits of these trades.")
      .def_prop_ro("profit_size", &Applied::profit_size, "The same of the profits without their signs.")
      .def("points", &Applied::points, "Return the points of the curve: times, equities and invested parts.")
      .def("profits", &Applied::profits, "Return the profits of the trades.")
      .def("times", &Applied::times, "Return the times of the orders of the last day.")
      .def("changed", &Applied::changed, "Return the symbols with orders, in the order of their first one.")
      .def("held", &Applied::held, "Return the symbols that are held, in the order of their entry.")
      .def("order_rows", &Applied::order_rows, "Return symbol, whether it is an entry, quantity and time of the orders.")
      .def("fill_rows", &Applied::fill_rows, "first"_a,
           "Return order number, symbol, whether it is an entry, quantity, price, fee and time of the fills.\n\n"
           "`first` is the number of the first order.")
      .def("trade_places", &Applied::trade_places,
           "Return the places of the entry and the exit of the trades among the fills; -1 - n is the position n from before.")
      .def("entered", &Applied::entered, "first"_a, "Return the rows of the fills that opened positions which are held.")
      .def("waiting", &Applied::waiting, "Return place, row and quote of the orders that are not filled.");
  nb::class_<Log>(m, "OrderLog", "Orders that a compiled scan has logged, applied in exact decimals. Not thread-safe.")
      .def(nb::init<nb::handle, nb::handle>(), "max_value"_a, "max_quantity"_a,
           "Limits of an order as decimals. Raises ValueError if they have too many digits.")
      .def("set_symbols", &Log::set_symbols, "symbols"_a, "terms"_a, "of_symbol"_a,
           "Set the symbols, terms, and the place of each symbol's terms.\n\n"
           "Terms are the lot, the largest quantity, the fees of a purchase and of a sale, and the places of a fee. Raises\n"
           "ValueError if they have too many digits.")
      .def("apply", &Log::apply, "rows"_a, "values"_a, "at"_a, "positions"_a, "amounts"_a, "hold_decimals"_a,
           "Apply rows with their values; `at` has the times of the chunk. None: they have too many digits.\n\n"
           "A position is the place of its symbol, the quantity, the price and the fee of its only purchase.");
}
