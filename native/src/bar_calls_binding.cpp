// qts._native.BarCalls: bars of a tape as Python objects, and the calls of a strategy with them.
//
//   closes, bars   the next ticks and bars, for moments at which Python handles everything
//   next_open      the bars that open at the moment and that something waits for
//   play           moments at which nothing waits for a price or a time: prices, on_bar, a point of the equity curve
//   play_rest      calls of on_bar with the bars of the moment that are left
//
// What nobody sees while it plays is written when that ends: counts of calls, the clock, points, the ends of series, which
// are written earlier when a strategy reads them. Last ticks wait until somebody reads them, also after a play. A bar and
// a view that nothing refers to after a call are filled again for the next one; what a strategy keeps never changes.
//
// One thread uses it, with the GIL.
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "objects.hpp"
#include "position_worth.hpp"
#include "strategy_calls.hpp"

namespace {

using qts::call;
using qts::checked;
using qts::get;
using qts::name;
using qts::number;
using qts::set;
using qts::Worth;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Columns of the table: the fields of a bar after its symbol and timeframe.
enum Field : std::size_t { kAt, kOpen, kHigh, kLow, kClose, kVolume, kValue, kFields };
constexpr double kQuarters = 4;  // of its volume: open, worse, better, close

// Bars as named tuples. Numbers that are as in the bar before are not made again.
class BarMaker {
 public:
  BarMaker(nb::object type, nb::object timeframe) : type_(std::move(type)), timeframe_(std::move(timeframe)) {
    auto* const found = reinterpret_cast<PyTypeObject*>(type_.ptr());
    if (!PyType_Check(type_.ptr()) || !PyType_IsSubtype(found, &PyTuple_Type)) throw nb::type_error("Bar is no tuple");
    allocate_ = reinterpret_cast<allocfunc>(PyType_GetSlot(found, Py_tp_alloc));
  }

  // Fills the last bar again if nothing refers to it, and its numbers likewise.
  nb::handle make(nb::handle symbol, const std::array<double, kFields>& fields) {
    const bool is_free = kIsRefillable && last_.is_valid() && Py_REFCNT(last_.ptr()) == 1;
    if (!is_free) {
      last_ = checked(allocate_(reinterpret_cast<PyTypeObject*>(type_.ptr()), 2 + kFields));
      put(1, timeframe_);
    }
    if (!is_free || !symbol_.is(symbol)) put(0, symbol_ = nb::borrow(symbol));
    for (std::size_t i = 0; i < kFields; ++i) {
      const bool is_same = numbers_[i].is_valid() && qts::same_bits(fields[i], values_[i]);
      if (is_free && is_same) continue;
      if (!is_same) {
        values_[i] = fields[i];
        // Only the bar and this object refer to the number: it becomes the next one.
        if (is_free && Py_REFCNT(numbers_[i].ptr()) == 2 && float_value_.set(numbers_[i], fields[i])) continue;
        numbers_[i] = number(fields[i]);
      }
      put(2 + i, numbers_[i]);
    }
    return last_;
  }

 private:
  // From 3.14 on, a tuple keeps its hash.
  static constexpr bool kIsRefillable = PY_VERSION_HEX < 0x030E0000;

  void put(std::size_t place, nb::object item) {
    PyTuple_SetItem(last_.ptr(), static_cast<Py_ssize_t>(place), item.release().ptr());
  }

  nb::object type_, timeframe_, last_, symbol_;
  allocfunc allocate_ = nullptr;
  std::array<nb::object, kFields> numbers_;
  std::array<double, kFields> values_{};
  qts::FloatValue float_value_;
};

class BarCalls {
 public:
  BarCalls(nb::object bar, nb::object tick, nb::list symbols, nb::object timeframe, nb::dict ticks)
      : bars_(std::move(bar), std::move(timeframe)), tick_(std::move(tick)), ticks_(std::move(ticks)),
        symbols_(qts::list_items(symbols)), closed_(symbols_.size(), kNone), moved_(symbols_.size(), 0) {
    worth_.number_symbols(symbols_);
    for (std::size_t i = 0; i < symbols_.size(); ++i) places_[symbols_[i]] = nb::int_(i);
  }

  // `closing`: how many bars close at each of the times `at`; `numbers`: their symbols; `table`: a column per field;
  // `series`: by symbol, None or what has the `end` of the bars that came.
  void begin(Column<double> at, Column<std::int64_t> closing, Column<std::int64_t> numbers, Table table, nb::list series) {
    if (at.size() != closing.size() || table.shape(1) != kFields || table.shape(0) != numbers.size())
      throw nb::value_error("columns of different lengths");
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < closing.size(); ++i) rows += closing.data()[i];
    if (rows != static_cast<std::int64_t>(numbers.size())) throw nb::value_error("other bars than close");
    check_symbols(numbers);
    write_ticks();
    write_ends();
    at_ = std::move(at);
    closing_ = std::move(closing);
    numbers_ = std::move(numbers);
    table_ = std::move(table);
    series_ = qts::list_items(series);
    moment_ = row_ = end_ = open_ = 0;
    opens_.reset();
  }

  // The bars that open, after `begin`: where those of each moment end, their rows and their symbols.
  void set_opens(Column<std::int64_t> ends, Column<std::int64_t> rows, Column<std::int64_t> numbers) {
    if (ends.size() != at_.size() || rows.size() != numbers.size()) throw nb::value_error("columns of different lengths");
    std::int64_t last = 0;
    for (std::size_t i = 0; i < ends.size(); last = ends.data()[i++])
      if (ends.data()[i] < last) throw nb::value_error("opens end before they begin");
    if (last != static_cast<std::int64_t>(rows.size())) throw nb::value_error("other bars than open");
    check_symbols(numbers);
    opens_ = Opens{std::move(ends), std::move(rows), std::move(numbers)};
  }

  std::size_t moment() const { return moment_; }
  std::int64_t calls() const { return count_.calls(); }
  std::size_t left() const { return end_ - row_; }
  nb::bytes points() const { return nb::bytes(points_.data(), points_.size() * sizeof(Point)); }

  // Begins the moment: its rows are those of `closes` and `bars`.
  void enter() {
    if (moment_ >= at_.size() || row_ != end_) throw nb::index_error("no moment to enter");
    end_ = row_ + static_cast<std::size_t>(closing_.data()[moment_]);
  }

  // Ends the moment.
  void leave() {
    row_ = end_;
    open_ = opens_end();
    ++moment_;
  }

  // The row of the next bar that opens at the moment and whose symbol is in `watched`; None: there are no more.
  nb::object next_open(nb::handle watched) {
    if (moment_ >= at_.size()) throw nb::index_error("no moment to open bars of");
    for (const std::size_t end = opens_end(); open_ < end;) {
      const std::size_t place = open_++;
      const int found = PySet_Contains(watched.ptr(), symbols_[static_cast<std::size_t>(opens_->numbers.data()[place])].ptr());
      if (found < 0) throw nb::python_error();
      if (found != 0) return nb::int_(opens_->rows.data()[place]);
    }
    return nb::none();
  }

  nb::list closes() const {
    nb::list made;
    for (std::size_t row = row_; row < end_; ++row) made.append(close(row));
    return made;
  }

  nb::list bars() {
    nb::list made;
    while (row_ < end_) made.append(next_bar());
    return made;
  }

  // Makes ticks of the closes since the last call.
  void write_ticks() {
    for (const std::size_t each : closed_since_) write_close(each);
    closed_since_.clear();
  }

  // Makes the tick of the last close of a symbol, if it waits.
  void write_tick(nb::handle symbol) {
    if (const std::size_t found = place(symbol); found != kNone) write_close(found);
  }

  // Drops the last close of a symbol: there is a later tick.
  void drop_tick(nb::handle symbol) {
    if (const std::size_t found = place(symbol); found != kNone) closed_[found] = kNone;
  }

  // The equity at the last prices of the last play, also as a double, and the invested part; None: it was not computed.
  nb::object worth() const {
    if (!worth_now_.equity.is_valid()) return nb::none();
    return nb::make_tuple(worth_now_.equity, worth_now_.value, worth_now_.invested);
  }

  // Moves the ends of series by the bars since the last call.
  void write_ends() {
    for (const std::size_t each : moved_since_) {
      set(series_[each], end_name_, nb::int_(nb::cast<std::int64_t>(get(series_[each], end_name_)) + moved_[each]));
      moved_[each] = 0;
    }
    moved_since_.clear();
  }

  // Plays moments before `until`. Returns what `on_bar` returned, if it is anything, within its moment; else None.
  // `first` is the view before; while only time and prices change, so do only its time and its equity.
  nb::object play(nb::handle run, nb::handle on_bar, nb::handle clock, nb::handle reprice, nb::handle first, double until) {
    qts::Views views(view_type_, first);
    points_.clear();
    times_.begin(nb::cast<double>(clock.attr("at")), first.attr("now"));
    worth_now_ = Worth{};
    worth_.load(views.positions(), views.cash(), ticks_, [&](std::size_t which) { return last_close(which); });
    Worth worth{views.equity(), nb::cast<double>(nb::float_(views.equity())), 0.0};
    return counted(run, clock, [&] {
      for (; moment_ < at_.size() && at_.data()[moment_] < until; leave()) {
        enter();
        if (row_ == end_) continue;
        const double at = at_.data()[moment_];
        count_.set_time(at);
        for (std::size_t row = row_; row < end_; ++row) note_close(row);
        if (worth_.has_any()) {
          worth_now_ = worth = worth_.value(reprice, [&] { write_ticks(); });
          views.set_equity(worth.equity);
        }
        if (nb::object returned = call_each(on_bar, views.at(times_.now(at))); returned.is_valid()) return returned;
        points_.push_back({at, worth.value, worth.invested});
      }
      return nb::object(nb::none());
    });
  }

  // Calls `on_bar` with the bars of the moment that are left. Returns what it returned, if it is anything; else None.
  nb::object play_rest(nb::handle run, nb::handle on_bar, nb::handle view) {
    return counted(run, nb::handle(), [&] {
      nb::object returned = call_each(on_bar, view);
      return returned.is_valid() ? returned : nb::object(nb::none());
    });
  }

 private:
  struct Point {
    double at, equity, invested;
  };
  struct Opens {
    Column<std::int64_t> ends, rows, numbers;
  };
  static constexpr std::size_t kNone = ~std::size_t{0};

  void check_symbols(const Column<std::int64_t>& numbers) const {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (numbers.data()[i] < 0 || static_cast<std::size_t>(numbers.data()[i]) >= symbols_.size())
        throw nb::index_error("no such symbol");
  }

  std::size_t opens_end() const { return opens_ ? static_cast<std::size_t>(opens_->ends.data()[moment_]) : open_; }
  double field(Field which, std::size_t row) const { return table_.data()[row * kFields + which]; }
  std::size_t symbol(std::size_t row) const { return static_cast<std::size_t>(numbers_.data()[row]); }

  nb::object close(std::size_t row) const {
    const nb::object price = number(field(kClose, row)), volume = number(field(kVolume, row) / kQuarters);
    const nb::object at = number(field(kAt, row));
    return call(tick_, {symbols_[symbol(row)].ptr(), price.ptr(), volume.ptr(), price.ptr(), price.ptr(), at.ptr()});
  }

  // The number of a symbol; kNone: it is none of the tape.
  std::size_t place(nb::handle symbol) const {
    PyObject* const found = PyDict_GetItemWithError(places_.ptr(), symbol.ptr());
    if (found == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      return kNone;
    }
    return nb::cast<std::size_t>(nb::handle(found));
  }

  void write_close(std::size_t which) {
    if (closed_[which] == kNone) return;
    const nb::object tick = close(closed_[which]);
    if (PyDict_SetItem(ticks_.ptr(), symbols_[which].ptr(), tick.ptr()) != 0) throw nb::python_error();
    closed_[which] = kNone;
  }

  // The last close of a symbol, if its tick waits.
  std::optional<double> last_close(std::size_t which) const {
    return closed_[which] == kNone ? std::nullopt : std::optional(field(kClose, closed_[which]));
  }

  nb::handle next_bar() {
    std::array<double, kFields> fields;
    const std::size_t row = row_++;
    for (std::size_t i = 0; i < kFields; ++i) fields[i] = field(static_cast<Field>(i), row);
    return bars_.make(symbols_[symbol(row)], fields);
  }

  void note_close(std::size_t row) {
    const std::size_t which = symbol(row);
    if (closed_[which] == kNone) closed_since_.push_back(which);
    closed_[which] = row;
    if (worth_.has_any()) worth_.set_price(which, field(kClose, row));
  }

  // Returns what ended it: anything that a call returned.
  nb::object call_each(nb::handle on_bar, nb::handle view) {
    while (row_ < end_) {
      const std::size_t which = symbol(row_);
      if (moved_[which]++ == 0) moved_since_.push_back(which);
      const nb::handle bar = next_bar();
      if (nb::object returned = count_.call(on_bar, bar, view); returned.is_valid()) return returned;
    }
    return nb::object();
  }

  // Runs `work`, and writes what it changed also where it raises.
  template <class Work>
  nb::object counted(nb::handle run, nb::handle clock, Work work) {
    count_.begin();
    return qts::and_then(work, [&] {
      write_ends();
      count_.write(run, clock);
      if (clock.is_valid()) times_.write(clock);
    });
  }

  BarMaker bars_;
  qts::Times times_;
  nb::object tick_;
  nb::dict ticks_;
  std::vector<nb::object> symbols_, series_;
  nb::dict places_;  // by symbol, its number
  qts::PositionWorth worth_;
  Worth worth_now_;  // of the last moment with positions in the last play
  std::vector<std::size_t> closed_, closed_since_;  // rows of closes whose ticks are to be made; symbols that may have one
  std::vector<std::int64_t> moved_;                 // bars since the end of a series was written
  std::vector<std::size_t> moved_since_;
  std::vector<Point> points_;
  qts::CallCount count_;
  qts::ViewType view_type_;
  Column<double> at_;
  Column<std::int64_t> closing_, numbers_;
  Table table_;
  std::size_t moment_ = 0, row_ = 0, end_ = 0;  // the current moment, and its rows that are left
  std::optional<Opens> opens_;
  std::size_t open_ = 0;  // the next of the bars that open
  const nb::object end_name_ = name("end");
};

}  // namespace

void bind_bar_calls(nb::module_& m) {
  nb::class_<BarCalls>(m, "BarCalls", "Bars of a tape as Python objects, and calls of a strategy with them. Not thread-safe.")
      .def(nb::init<nb::object, nb::object, nb::list, nb::object, nb::dict>(), "bar"_a, "tick"_a, "symbols"_a, "timeframe"_a,
           "ticks"_a, "Make `bar` and `tick` objects, of a named tuple and a type; `ticks` has the last tick of every symbol.")
      .def("begin", &BarCalls::begin, "at"_a, "closing"_a, "numbers"_a, "table"_a, "series"_a,
           "Begin a part: its times, how many bars close at each, the symbols and fields of these bars, and the series.")
      .def("set_opens", &BarCalls::set_opens, "ends"_a, "rows"_a, "numbers"_a,
           "Set the bars that open in the part: where those of each time end, their rows and their symbols.")
      .def_prop_ro("moment", &BarCalls::moment, "The number of the current time of the part.")
      .def_prop_ro("left", &BarCalls::left, "How many bars of the moment are left.")
      .def_prop_ro("calls", &BarCalls::calls, "How often it has called a strategy, with the current call.")
      .def_prop_ro("points", &BarCalls::points, "Time, equity and invested part at each moment of the last play, as doubles.")
      .def("enter", &BarCalls::enter, "Begin the current moment.")
      .def("leave", &BarCalls::leave, "End the current moment; the next one is current.")
      .def("next_open", &BarCalls::next_open, "watched"_a,
           "Return the row of the next bar that opens at the moment and whose symbol is in this set; None: no more do.")
      .def("closes", &BarCalls::closes, "Return the closes of the moment as ticks.")
      .def("bars", &BarCalls::bars, "Return the bars of the moment that are left.")
      .def_prop_ro("worth", &BarCalls::worth,
                   "Equity at the last prices of the last play, also as a float, and its invested part; None: not computed.")
      .def("write_ticks", &BarCalls::write_ticks, "Bring `ticks` up to date.")
      .def("write_tick", &BarCalls::write_tick, "symbol"_a, "Bring the last tick of a symbol up to date.")
      .def("drop_tick", &BarCalls::drop_tick, "symbol"_a, "Leave the last tick of a symbol to the caller.")
      .def("write_ends", &BarCalls::write_ends, "Bring the ends of the series up to date.")
      .def("play", &BarCalls::play, "run"_a, "on_bar"_a, "clock"_a, "reprice"_a, "view"_a, "until"_a,
           "Call `on_bar` with each bar that closes before `until`, with prices before and a point after each moment.\n\n"
           "A call that returns anything ends it inside its moment, and so does one that raises. None: no bars are left.")
      .def("play_rest", &BarCalls::play_rest, "run"_a, "on_bar"_a, "view"_a,
           "Call `on_bar` with the bars of the moment that are left, up to a call that returns anything or raises.");
}
