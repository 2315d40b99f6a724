// qts._native.BarCalls: bars of a tape as Python objects, and the calls of a strategy with them.
//
//   closes, bars   the next ticks and bars, for moments at which Python handles everything
//   play           moments at which nothing waits for a price or a time: prices, on_bar, a point of the equity curve
//
// One thread uses it, with the GIL.
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings.hpp"

namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Rows of the table: the fields of a bar after its symbol and timeframe.
enum Field : std::size_t { kAt, kOpen, kHigh, kLow, kClose, kVolume, kValue, kFields };
constexpr double kQuarters = 4;  // of its volume: open, worse, better, close

nb::object checked(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

nb::object number(double value) { return checked(PyFloat_FromDouble(value)); }

template <std::size_t N>
nb::object call(nb::handle callable, PyObject* const (&arguments)[N]) {
  return checked(PyObject_Vectorcall(callable.ptr(), arguments, N, nullptr));
}

nb::object name(const char* text) { return checked(PyUnicode_InternFromString(text)); }

void set(nb::handle object, nb::handle attribute, nb::handle value) {
  if (PyObject_SetAttr(object.ptr(), attribute.ptr(), value.ptr()) != 0) throw nb::python_error();
}

// The equity, and as floats it and the value of the positions in it.
struct Worth {
  nb::object equity, value, invested;
};

Worth value_of(nb::handle worth) {
  const nb::object found = checked(PyObject_CallNoArgs(worth.ptr()));
  return {found[0], found[1], found[2]};
}

class BarCalls {
 public:
  BarCalls(nb::object bar, nb::object tick, nb::object point, nb::list symbols, nb::object timeframe)
      : bar_(std::move(bar)), tick_(std::move(tick)), point_(std::move(point)), timeframe_(std::move(timeframe)) {
    for (nb::handle symbol : symbols) symbols_.push_back(nb::borrow(symbol));
    auto* type = reinterpret_cast<PyTypeObject*>(bar_.ptr());
    if (!PyType_Check(bar_.ptr()) || !PyType_IsSubtype(type, &PyTuple_Type)) throw nb::type_error("Bar is no tuple");
    allocate_ = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  }

  // `closing`: how many bars close at each of the times `at`; `numbers`: their symbols; `table`: a row per field.
  void begin(Column<double> at, Column<std::int64_t> closing, Column<std::int64_t> numbers, Table table) {
    if (at.size() != closing.size() || table.shape(0) != kFields || table.shape(1) != numbers.size())
      throw nb::value_error("columns of different lengths");
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < closing.size(); ++i) rows += closing.data()[i];
    if (rows != static_cast<std::int64_t>(numbers.size())) throw nb::value_error("other bars than close");
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (numbers.data()[i] < 0 || static_cast<std::size_t>(numbers.data()[i]) >= symbols_.size())
        throw nb::index_error("no such symbol");
    at_ = std::move(at);
    closing_ = std::move(closing);
    numbers_ = std::move(numbers);
    table_ = std::move(table);
    moment_ = row_ = end_ = 0;
  }

  std::size_t moment() const { return moment_; }

  // Begins the moment: its rows are those of `closes` and `bars`.
  void enter() {
    if (moment_ >= at_.size() || row_ != end_) throw nb::index_error("no moment to enter");
    end_ = row_ + static_cast<std::size_t>(closing_.data()[moment_]);
  }

  // Ends the moment.
  void leave() {
    row_ = end_;
    ++moment_;
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

  // Plays moments before `until`. Returns what `on_bar` returned, if it is anything, within its moment; else None.
  // `first` is the view before; while only time and prices change, so do only its time and its equity.
  nb::object play(nb::handle run, nb::handle on_bar, nb::list series, nb::dict ticks, nb::handle clock, nb::handle worth,
                  nb::handle first, nb::list points, double until) {
    const nb::object make_view = nb::borrow(first.type()), now = clock.attr("now"), held = first.attr("positions");
    const nb::object latest = first.attr("ticks"), account = first.attr("account"), version = first.attr("version");
    const nb::object books = first.attr("books"), bars_of = first.attr("series"), orders = first.attr("orders");
    const bool has_positions = nb::len(held) > 0;
    Worth money = value_of(worth);
    std::int64_t calls = nb::cast<std::int64_t>(run.attr(calls_name_));
    for (; moment_ < at_.size() && at_.data()[moment_] < until; leave()) {
      enter();
      if (row_ == end_) continue;
      const nb::object at = number(at_.data()[moment_]);
      set(clock, at_name_, at);
      for (std::size_t row = row_; row < end_; ++row) {
        const nb::object tick = close(row);
        if (PyDict_SetItem(ticks.ptr(), symbol(row).ptr(), tick.ptr()) != 0) throw nb::python_error();
      }
      if (has_positions) money = value_of(worth);
      const nb::object time = checked(PyObject_CallNoArgs(now.ptr()));
      const nb::object view = call(make_view, {time.ptr(), latest.ptr(), held.ptr(), account.ptr(), money.equity.ptr(),
                                               version.ptr(), books.ptr(), bars_of.ptr(), orders.ptr()});
      while (row_ < end_) {
        const nb::object entry = nb::borrow(series[static_cast<std::size_t>(numbers_.data()[row_])]);
        set(entry, end_name_, nb::int_(nb::cast<std::int64_t>(entry.attr(end_name_)) + 1));
        const nb::object bar = next_bar();
        const nb::int_ count(++calls);
        set(run, calls_name_, count);
        const nb::object returned = call(on_bar, {bar.ptr(), view.ptr()});
        const int is_any = PyObject_IsTrue(returned.ptr());
        if (is_any < 0) throw nb::python_error();
        if (is_any != 0) return returned;
        set(run, returned_name_, count);
        set(run, errors_name_, zero_);
      }
      points.append(call(point_, {at.ptr(), money.value.ptr(), money.invested.ptr()}));
    }
    return nb::none();
  }

 private:
  double field(Field which, std::size_t row) const { return table_.data()[which * numbers_.size() + row]; }
  const nb::object& symbol(std::size_t row) const { return symbols_[static_cast<std::size_t>(numbers_.data()[row])]; }

  nb::object close(std::size_t row) const {
    const nb::object price = number(field(kClose, row)), volume = number(field(kVolume, row) / kQuarters);
    const nb::object at = number(field(kAt, row));
    return call(tick_, {symbol(row).ptr(), price.ptr(), volume.ptr(), price.ptr(), price.ptr(), at.ptr()});
  }

  nb::object next_bar() {
    const std::size_t row = row_++;
    nb::object made = checked(allocate_(reinterpret_cast<PyTypeObject*>(bar_.ptr()), 2 + kFields));
    PyTuple_SetItem(made.ptr(), 0, nb::object(symbol(row)).release().ptr());
    PyTuple_SetItem(made.ptr(), 1, nb::object(timeframe_).release().ptr());
    for (std::size_t i = 0; i < kFields; ++i)
      PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(2 + i), number(field(static_cast<Field>(i), row)).release().ptr());
    return made;
  }

  nb::object bar_, tick_, point_, timeframe_;
  std::vector<nb::object> symbols_;
  allocfunc allocate_ = nullptr;
  Column<double> at_;
  Column<std::int64_t> closing_, numbers_;
  Table table_;
  std::size_t moment_ = 0, row_ = 0, end_ = 0;  // the current moment, and its rows that are left
  const nb::object calls_name_ = name("calls"), returned_name_ = name("returned"), errors_name_ = name("errors_in_a_row");
  const nb::object at_name_ = name("at"), end_name_ = name("end"), zero_ = nb::int_(0);
};

}  // namespace

void bind_bar_calls(nb::module_& m) {
  nb::class_<BarCalls>(m, "BarCalls", "Bars of a tape as Python objects, and calls of a strategy with them. Not thread-safe.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::list, nb::object>(), "bar"_a, "tick"_a, "point"_a, "symbols"_a,
           "timeframe"_a, "Make `bar`, `tick` and `point` objects: a named tuple and two types.")
      .def("begin", &BarCalls::begin, "at"_a, "closing"_a, "numbers"_a, "table"_a,
           "Begin a part: its times, how many bars close at each, and the symbols and fields of these bars.")
      .def_prop_ro("moment", &BarCalls::moment, "The number of the current time of the part.")
      .def("enter", &BarCalls::enter, "Begin the current moment.")
      .def("leave", &BarCalls::leave, "End the current moment; the next one is current.")
      .def("closes", &BarCalls::closes, "Return the closes of the moment as ticks.")
      .def("bars", &BarCalls::bars, "Return the bars of the moment that are left.")
      .def("play", &BarCalls::play, "run"_a, "on_bar"_a, "series"_a, "ticks"_a, "clock"_a, "worth"_a, "view"_a, "points"_a,
           "until"_a,
           "Call `on_bar` with each bar that closes before `until`, with prices before and a point after each moment.\n\n"
           "A call that returns anything ends it inside its moment, and so does one that raises. None: no bars are left.");
}
