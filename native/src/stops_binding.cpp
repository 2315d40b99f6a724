// The stops seen from Python: a table of what is held, asked on every tick inside publish.
//
// Attached to an engine, what a tick decides is made into its P0 event and put into its lane right
// here: no line of Python runs in between, so no thread that wants the GIL can come in between.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <memory>
#include <utility>

#include "bindings.hpp"
#include "qts/clock.hpp"
#include "qts/histogram.hpp"
#include "qts/stops.hpp"
#include "tick_watch.hpp"

namespace {

constexpr const char* kReasons[] = {"", "STOPLOSS", "MAE", "TIME", "TRAIL", "VOLATILITY"};
constexpr const char* kVerdicts[] = {"", "ADJUST", "PARTIAL", "FULL"};

nb::tuple told(const qts::StopHit& hit) {
  return nb::make_tuple(hit.symbol, kVerdicts[static_cast<int>(hit.verdict)], kReasons[static_cast<int>(hit.reason)],
                        hit.quantity, hit.price, hit.stop, hit.is_short);
}

nb::object called(const nb::object& callable, PyObject* const* arguments, std::size_t count, PyObject* names = nullptr) {
  PyObject* result = PyObject_Vectorcall(callable.ptr(), arguments, count, names);
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

// Makes the event of an exit, and publishes it.
class Exits {
 public:
  using Kind = std::pair<nb::object, nb::object>;  // a type's name, and the class of its payload

  // `reasons`: what a payload says for each of kReasons; `sides`: how a long is left, and a short.
  Exits(Kind order, Kind trail, nb::dict reasons, std::pair<nb::object, nb::object> sides)
      : order_(std::move(order)), trail_(std::move(trail)), sides_(std::move(sides)), source_(nb::str("risk")),
        order_fields_(nb::make_tuple("symbol", "side", "qty", "reason", "price", "stop_price")),
        trail_fields_(nb::make_tuple("symbol", "stop_price", "price", "qty")) {
    for (const auto& [name, reason] : reasons)
      for (std::size_t i = 1; i < reasons_.size(); ++i)
        if (nb::cast<std::string>(name) == kReasons[i]) reasons_[i] = nb::borrow(reason);
  }

  void attach(nb::object make, nb::object publish) {
    make_ = std::move(make);
    publish_ = std::move(publish);
  }
  bool attached() const { return publish_.is_valid(); }

  void publish(const qts::StopHit& hit) const {
    const bool trails = hit.reason == qts::StopReason::kTrailing;
    const Kind& kind = trails ? trail_ : order_;
    const nb::object payload = trails ? trail(hit) : order(hit);
    PyObject* const parts[] = {kind.first.ptr(), payload.ptr(), source_.ptr()};
    const nb::object event = called(make_, parts, 3);
    PyObject* const published[] = {event.ptr()};
    called(publish_, published, 1);
  }

  template <class Visit>
  int each_reference(Visit&& visit) {
    for (nb::object* object : references())
      if (object->is_valid())
        if (const int result = visit(object->ptr()); result != 0) return result;
    return 0;
  }
  void clear() {
    make_.reset();
    publish_.reset();
  }

 private:
  nb::object order(const qts::StopHit& hit) const {
    const nb::object symbol = nb::str(hit.symbol.data(), hit.symbol.size()), quantity = nb::float_(hit.quantity),
                     price = nb::float_(hit.price), stop = nb::float_(hit.stop);
    const nb::object& side = hit.is_short ? sides_.second : sides_.first;
    const nb::object& reason = reasons_[static_cast<std::size_t>(hit.reason)];
    if (!reason.is_valid()) throw nb::value_error("an exit without its reason");
    PyObject* const values[] = {symbol.ptr(), side.ptr(), quantity.ptr(), reason.ptr(), price.ptr(), stop.ptr()};
    return called(order_.second, values, 0, order_fields_.ptr());
  }
  nb::object trail(const qts::StopHit& hit) const {
    const nb::object symbol = nb::str(hit.symbol.data(), hit.symbol.size()), quantity = nb::float_(hit.quantity),
                     price = nb::float_(hit.price), stop = nb::float_(hit.stop);
    PyObject* const values[] = {symbol.ptr(), stop.ptr(), price.ptr(), quantity.ptr()};
    return called(trail_.second, values, 0, trail_fields_.ptr());
  }
  std::array<nb::object*, 8> references() {
    return {&order_.first, &order_.second, &trail_.first, &trail_.second, &sides_.first, &sides_.second, &make_, &publish_};
  }

  Kind order_, trail_;
  std::pair<nb::object, nb::object> sides_;
  nb::object source_, order_fields_, trail_fields_, make_, publish_;
  std::array<nb::object, 6> reasons_;
};

class PyStops final : public TickWatch {
 public:
  PyStops(const qts::StopRules& rules, nb::object fire) : stops(rules), fire_(std::move(fire)) {}

  void on_published(std::string_view symbol, double price, std::uint64_t began) override {
    if (stops.size() == 0) return;
    qts::StopHit hit;
    if (!stops.on_tick(symbol, price, static_cast<std::int64_t>(qts::to_ns(began)), hit)) return;
    if (exits && exits->attached() && hit.verdict != qts::Verdict::kAdjusted) leave(hit, began);
    else fire(hit);
  }
  void attach(nb::object make, nb::object publish) override {
    if (exits) exits->attach(std::move(make), std::move(publish));
  }

  void on_tick(std::string_view symbol, double price, std::int64_t now_ns) {
    qts::StopHit hit;
    if (stops.on_tick(symbol, price, now_ns, hit)) fire(hit);
  }

  int traverse(visitproc visit, void* arg) {
    Py_VISIT(fire_.ptr());
    return exits ? exits->each_reference([&](PyObject* object) { return visit(object, arg); }) : 0;
  }
  void clear() {
    fire_.reset();
    if (exits) exits->clear();
  }

  qts::Stops stops;
  std::uint64_t adjusted = 0;
  std::unique_ptr<Exits> exits;
  std::unique_ptr<qts::Histogram> spans = std::make_unique<qts::Histogram>();  // ns, from the tick's publish to its exit in the lane
  std::vector<qts::StopHit> published;    // hits whose exits are in their lane, not yet told

 private:
  void fire(const qts::StopHit& hit) {
    if (hit.verdict == qts::Verdict::kAdjusted) ++adjusted;
    else fire_(told(hit));
  }
  void leave(qts::StopHit& hit, std::uint64_t began) {
    try {
      exits->publish(hit);
    } catch (...) {
      stops.rearm(hit.symbol);  // it did not get into its lane: the next tick asks again
      throw;
    }
    // Not until publish has returned: whom it wakes may run at once, on this very CPU.
    spans->record_alone(qts::tick_scale().span_ns(p0_entered - began));
    published.push_back(std::move(hit));
  }

  nb::object fire_;
};

nb::list told_all(const std::vector<qts::StopHit>& hits) {
  nb::list all;
  for (const qts::StopHit& hit : hits)
    if (hit.verdict != qts::Verdict::kAdjusted) all.append(told(hit));
  return all;
}

nb::list take_published(PyStops& self) { return told_all(std::exchange(self.published, {})); }

nb::dict take_spans(PyStops& self) {
  const auto spans = std::exchange(self.spans, std::make_unique<qts::Histogram>());
  nb::dict row;
  row["count"] = spans->count();
  for (const auto& [name, percent] : {std::pair{"p50", 50.0}, {"p99", 99.0}}) row[name] = spans->percentile(percent);
  row["max"] = spans->max();
  return row;
}

nb::object held(const PyStops& self, std::string_view symbol) {
  const qts::Held* found = self.stops.find(symbol);
  if (!found) return nb::none();
  nb::dict told;
  told["quantity"] = found->quantity;
  told["average"] = found->average;
  told["best"] = found->best;
  told["worst"] = found->worst;
  told["last"] = found->last;
  told["last_ns"] = found->last_ns;
  told["stop"] = found->stop;
  told["trailing"] = found->armed ? nb::cast(found->trailing) : nb::none();
  told["half_sold"] = found->half_sold;
  told["leaving"] = found->leaving;
  told["entered_ns"] = found->entered_ns;
  return told;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<PyStops>(self)->traverse(visit, arg) : 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<PyStops>(self)->clear();
  return 0;
}

PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                        {0, nullptr}};

}  // namespace

void bind_stops(nb::module_& m) {
  nb::class_<TickWatch>(m, "TickWatch", "Something that looks at every tick while it is published.")
      .def("attach", &TickWatch::attach, "make"_a, "publish"_a,
           "How it makes events, from (type, payload, source), and publishes them.");
  nb::class_<PyStops, TickWatch>(m, "Stops", nb::type_slots(kSlots), "What is held, and when it has to leave; for whoever holds the GIL.")
      .def(
          "__init__",
          [](PyStops* self, nb::object fire, double trail_arm, double trail, double trail_least, double excursion_half,
             double excursion_all, double earning_extra_s, double jump, double confirm_s) {
            new (self) PyStops({trail_arm, trail, trail_least, excursion_half, excursion_all, earning_extra_s, jump,
                                confirm_s},
                               std::move(fire));
          },
          "fire"_a, nb::kw_only(), "trail_arm"_a, "trail"_a, "trail_least"_a, "excursion_half"_a, "excursion_all"_a,
          "earning_extra_s"_a, "jump"_a, "confirm_s"_a)
      .def(
          "set_exits",
          [](PyStops& self, Exits::Kind order, Exits::Kind trail, nb::dict reasons, std::pair<nb::object, nb::object> sides) {
            self.exits = std::make_unique<Exits>(std::move(order), std::move(trail), std::move(reasons), std::move(sides));
          },
          "order"_a, "trail"_a, "reasons"_a, "sides"_a,
          "(type, payload's class) of an exit and of a trailing stop: once attached, ticks publish them and fire is not called.")
      .def("take_published", &take_published, "Hits whose exits were published since the last call.")
      .def("take_spans", &take_spans, "Percentiles in ns from a tick's publish to its exit in the lane, since the last call.")
      .def(
          "hold",
          [](PyStops& self, std::string_view symbol, double quantity, double average, double lot, double stop,
             double limit_s, std::int64_t now_ns) { self.stops.hold(symbol, quantity, average, lot, stop, limit_s, now_ns); },
          "symbol"_a, "quantity"_a, "average"_a, "lot"_a, "stop"_a, "limit_s"_a, "now_ns"_a,
          "A position as the books have it; quantity 0: it is gone.")
      .def("rearm", [](PyStops& self, std::string_view symbol) { self.stops.rearm(symbol); }, "symbol"_a,
           "The exit was not carried out: ask again.")
      .def("on_tick", &PyStops::on_tick, "symbol"_a, "price"_a, "now_ns"_a, "Calls fire when a stop is hit.")
      .def(
          "on_time",
          [](PyStops& self, std::int64_t now_ns) {
            std::vector<qts::StopHit> hits;
            self.stops.on_time(now_ns, hits);
            return told_all(hits);
          },
          "now_ns"_a, "Hits that no tick tells: held too long, jumps that nobody contradicted.")
      .def(
          "leave",
          [](PyStops& self, double part) {
            std::vector<qts::StopHit> hits;
            self.stops.leave(part, hits);
            return told_all(hits);
          },
          "part"_a, "Leave everything, or half of it; once.")
      .def("held", &held, "symbol"_a, "What is known of a position; None when it is not held.")
      .def_ro("adjusted", &PyStops::adjusted, "How often a trailing stop followed its price.")
      .def_prop_ro("jumps", [](const PyStops& self) { return self.stops.jumps(); }, "Ticks that jumped and waited for another.")
      .def("__len__", [](const PyStops& self) { return self.stops.size(); });
}
