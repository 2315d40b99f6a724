// qts._native.TickCalls: ticks of a chunk as Python objects, and the calls of a strategy with them.
//
//   take          the next tick, where Python handles it
//   play_prices   ticks that nothing waits for: on_price(tick, position) of a strategy
//   play_ticks    the same with on_tick(tick, view)
//
// Counts of calls and the clock are written when a play ends; last ticks also when a strategy reads them. A tick and a
// view that nothing refers to after a call are filled again for the next one; what a strategy keeps never changes.
//
// One thread uses it, with the GIL.
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "objects.hpp"
#include "position_worth.hpp"
#include "strategy_calls.hpp"

namespace {

using qts::checked;
using qts::get;
using qts::name;
using qts::number;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = Column<double>;

// Ticks as immutable structs. Numbers that are as in the tick before are not made again.
class TickMaker {
 public:
  explicit TickMaker(nb::object type) : type_(std::move(type)) {
    constexpr const char* kNames[] = {"price", "volume", "bid", "ask", "at"};
    symbol_field_ = qts::StructField(type_, "symbol");
    for (std::size_t i = 0; i < kFields; ++i) fields_[i] = qts::StructField(type_, kNames[i]);
  }

  static constexpr std::size_t kFields = 5;
  using Fields = std::array<double, kFields>;

  // Fills the last tick again if nothing refers to it.
  nb::handle make(const nb::object& symbol, const Fields& values) {
    const bool is_free = last_.is_valid() && Py_REFCNT(last_.ptr()) == 1;
    for (std::size_t i = 0; i < kFields; ++i) {
      if (numbers_[i].is_valid() && qts::same_bits(values[i], values_[i])) continue;
      const bool is_price = i > 0 && i < kFields - 1 && qts::same_bits(values[i], values[0]);
      numbers_[i] = is_price ? numbers_[0] : number(values[i]);
      values_[i] = values[i];
      if (is_free) fields_[i].set(last_, numbers_[i]);
    }
    if (!is_free) {
      const auto& [price, volume, bid, ask, at] = numbers_;
      last_ = qts::call(type_, {symbol.ptr(), price.ptr(), volume.ptr(), bid.ptr(), ask.ptr(), at.ptr()});
    } else if (!symbol_.is(symbol)) {
      symbol_field_.set(last_, symbol);
    }
    symbol_ = symbol;
    return last_;
  }

  // A tick that is not filled again.
  nb::object give(const nb::object& symbol, const Fields& values) {
    make(symbol, values);
    return std::move(last_);
  }

 private:
  nb::object type_, last_, symbol_;
  qts::StructField symbol_field_;
  std::array<qts::StructField, kFields> fields_;
  std::array<nb::object, kFields> numbers_;
  Fields values_{};
};

class TickCalls {
 public:
  TickCalls(nb::object tick, nb::dict ticks) : maker_(std::move(tick)), ticks_(std::move(ticks)) {}

  // Columns of a chunk; `symbols` may have more names than before.
  void begin(Column<std::int32_t> symbol, Numbers price, Numbers volume, Numbers bid, Numbers ask, Numbers at,
             nb::list symbols) {
    const std::size_t size = symbol.size();
    for (const Numbers* each : {&price, &volume, &bid, &ask, &at})
      if (each->size() != size) throw nb::value_error("columns of different lengths");
    for (std::size_t i = 0; i < size; ++i)
      if (symbol.data()[i] < 0 || static_cast<std::size_t>(symbol.data()[i]) >= nb::len(symbols))
        throw nb::index_error("no such symbol");
    write_ticks();
    if (symbols_.size() != nb::len(symbols)) {
      symbols_ = qts::list_items(symbols);
      worth_.number_symbols(symbols_);
      seen_.resize(symbols_.size(), kNone);
      held_.resize(symbols_.size());
    }
    symbol_ = std::move(symbol);
    columns_ = {std::move(price), std::move(volume), std::move(bid), std::move(ask), std::move(at)};
    index_ = 0;
    size_ = size;
  }

  std::size_t left() const { return size_ - index_; }
  std::int64_t calls() const { return count_.calls(); }
  double at() const { return column(4)[current()]; }
  nb::object symbol() const { return symbols_[which(current())]; }

  // Returns the next tick; None: its price is none.
  nb::object take() {
    const std::size_t row = current();
    ++index_;
    return is_priced(row) ? maker_.give(symbols_[which(row)], fields(row)) : nb::none();
  }

  // Makes the last ticks since the last call.
  void write_ticks() {
    for (const std::size_t each : seen_since_) {
      const nb::object tick = maker_.give(symbols_[each], fields(seen_[each]));
      if (PyDict_SetItem(ticks_.ptr(), symbols_[each].ptr(), tick.ptr()) != 0) throw nb::python_error();
      seen_[each] = kNone;
    }
    seen_since_.clear();
  }

  // Plays ticks before `until`, up to one of a symbol in `watched`. Returns what `on_price` returned, if it is anything.
  nb::object play_prices(nb::handle run, nb::handle on_price, nb::handle clock, nb::handle watched, nb::handle positions,
                         double until) {
    const bool has_positions = nb::len(positions) > 0;
    return play(run, clock, watched, until, [&](std::size_t row) {
      const nb::object position = has_positions ? held(positions, which(row)) : zero_;
      return count_.call(on_price, maker_.make(symbols_[which(row)], fields(row)), position);
    });
  }

  // The same with `on_tick`; `first` is the view before.
  nb::object play_ticks(nb::handle run, nb::handle on_tick, nb::handle clock, nb::handle watched, nb::handle reprice,
                        nb::handle first, double until) {
    qts::Views views(view_type_, first);
    times_.begin(nb::cast<double>(clock.attr("at")), first.attr("now"));
    worth_.load(views.positions(), views.cash(), ticks_);
    return play(run, clock, watched, until, [&](std::size_t row) {
      if (worth_.has_any()) {
        worth_.set_price(which(row), column(0)[row]);
        views.set_equity(worth_.value(reprice, [&] { write_ticks(); }).equity);
      }
      const nb::handle view = views.at(times_.now(column(4)[row]));
      return count_.call(on_tick, maker_.make(symbols_[which(row)], fields(row)), view);
    });
  }

 private:
  struct Held {
    nb::object position, quantity;  // the latter as a float
  };
  static constexpr std::size_t kNone = ~std::size_t{0};

  const double* column(std::size_t field) const { return columns_[field].data(); }
  std::size_t which(std::size_t row) const { return static_cast<std::size_t>(symbol_.data()[row]); }

  std::size_t current() const {
    if (index_ >= size_) throw nb::index_error("no ticks are left");
    return index_;
  }

  bool is_priced(std::size_t row) const {
    return column(0)[row] > 0 && column(0)[row] < std::numeric_limits<double>::infinity();
  }

  // Without a bid or an ask, it is the price.
  TickMaker::Fields fields(std::size_t row) const {
    const double price = column(0)[row], bid = column(2)[row], ask = column(3)[row];
    return {price, column(1)[row], bid != 0 ? bid : price, ask != 0 ? ask : price, column(4)[row]};
  }

  static bool is_in(nb::handle watched, const nb::object& symbol) {
    const int found = PySet_Contains(watched.ptr(), symbol.ptr());
    if (found < 0) throw nb::python_error();
    return found != 0;
  }

  template <class Call>
  nb::object play(nb::handle run, nb::handle clock, nb::handle watched, double until, Call call) {
    const bool has_watched = nb::len(watched) > 0;
    const auto ticks = [&] {
      for (; index_ < size_ && column(4)[index_] < until;) {
        const std::size_t row = index_;
        if (has_watched && is_in(watched, symbols_[which(row)])) break;
        ++index_;
        if (!is_priced(row)) continue;
        count_.set_time(column(4)[row]);
        if (seen_[which(row)] == kNone) seen_since_.push_back(which(row));
        seen_[which(row)] = row;
        if (nb::object returned = call(row); returned.is_valid()) return returned;
      }
      return nb::object(nb::none());
    };
    count_.begin();
    return qts::and_then(ticks, [&] {
      write_ticks();
      count_.write(run, clock);
    });
  }

  const nb::object& held(nb::handle positions, std::size_t which) {
    PyObject* const position = PyDict_GetItemWithError(positions.ptr(), symbols_[which].ptr());
    if (position == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      return zero_;
    }
    Held& known = held_[which];
    if (!known.position.is(position)) {
      known.quantity = checked(PyNumber_Float(get(position, quantity_name_).ptr()));
      known.position = nb::borrow(position);
    }
    return known.quantity;
  }

  TickMaker maker_;
  qts::Times times_;
  qts::PositionWorth worth_;
  qts::CallCount count_;
  qts::ViewType view_type_;
  nb::dict ticks_;
  std::vector<nb::object> symbols_;
  std::vector<Held> held_;                       // by symbol
  std::vector<std::size_t> seen_, seen_since_;   // rows of the last ticks; symbols whose ticks are to be made
  Column<std::int32_t> symbol_;
  std::array<Numbers, TickMaker::kFields> columns_;
  std::size_t index_ = 0, size_ = 0;
  const nb::object zero_ = number(0), quantity_name_ = name("quantity");
};

}  // namespace

void bind_tick_calls(nb::module_& m) {
  nb::class_<TickCalls>(m, "TickCalls", "Ticks of a chunk as Python objects, and calls of a strategy with them. Not thread-safe.")
      .def(nb::init<nb::object, nb::dict>(), "tick"_a, "ticks"_a,
           "Make objects of the type `tick`; `ticks` has the last one of every symbol.")
      .def("begin", &TickCalls::begin, "symbol"_a, "price"_a, "volume"_a, "bid"_a, "ask"_a, "at"_a, "symbols"_a,
           "Begin a chunk: its columns, and the names of the symbols.")
      .def_prop_ro("left", &TickCalls::left, "How many ticks of the chunk are left.")
      .def_prop_ro("calls", &TickCalls::calls, "How often it has called a strategy, with the current call.")
      .def_prop_ro("at", &TickCalls::at, "The time of the next tick.")
      .def_prop_ro("symbol", &TickCalls::symbol, "The symbol of the next tick.")
      .def("take", &TickCalls::take, "Return the next tick; None: its price is none.")
      .def("write_ticks", &TickCalls::write_ticks, "Bring `ticks` up to date.")
      .def("play_prices", &TickCalls::play_prices, "run"_a, "on_price"_a, "clock"_a, "watched"_a, "positions"_a, "until"_a,
           "Call `on_price` with each tick before `until` and the position in its symbol, up to one of a watched symbol.\n\n"
           "A call that returns anything ends it behind its tick, and so does one that raises.")
      .def("play_ticks", &TickCalls::play_ticks, "run"_a, "on_tick"_a, "clock"_a, "watched"_a, "reprice"_a, "view"_a, "until"_a,
           "Call `on_tick` with each tick before `until` and a view, up to one of a watched symbol.");
}
