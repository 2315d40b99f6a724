// qts._native.Stops: the stops for Python, evaluated on every tick inside publish.
//
// Attached to an engine, a tick that reaches a stop publishes its P0 event from here: no Python code runs
// in between, so no other thread can take the GIL before the event is in its lane.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "bindings.hpp"
#include "qts/clock.hpp"
#include "qts/histogram.hpp"
#include "qts/stops.hpp"
#include "tick_watcher.hpp"

namespace {

constexpr const char* kReasons[] = {"", "STOPLOSS", "MAE", "TIME", "TRAIL", "VOLATILITY", "TARGET"};
constexpr const char* kActions[] = {"", "ADJUST", "PARTIAL", "FULL"};

using State = std::tuple<double, double, double, bool, bool>;  // best, worst, trailing, armed, half sent
// trail_arm, trail, trail_min_distance, mae_half, mae_full, profit_extension_s
using Rules = std::tuple<double, double, double, double, double, double>;

nb::tuple to_tuple(const qts::StopHit& hit) {
  return nb::make_tuple(hit.symbol, kActions[static_cast<int>(hit.action)], kReasons[static_cast<int>(hit.reason)],
                        hit.quantity, hit.price, hit.stop, hit.is_short);
}

nb::object call(const nb::object& callable, PyObject* const* arguments, std::size_t count, PyObject* names = nullptr) {
  PyObject* result = PyObject_Vectorcall(callable.ptr(), arguments, count, names);
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

// Makes the event of an exit and publishes it.
class ExitPublisher {
 public:
  using Kind = std::pair<nb::object, nb::object>;  // a type's name, and the class of its payload

  // `reasons`: the reason in a payload for each of kReasons; `sides`: of the exit of a long and of a short.
  ExitPublisher(Kind order, Kind trail, nb::dict reasons, std::pair<nb::object, nb::object> sides, nb::str source)
      : order_(std::move(order)), trail_(std::move(trail)), sides_(std::move(sides)), source_(std::move(source)),
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
    const nb::object event = call(make_, parts, 3);
    PyObject* const published[] = {event.ptr()};
    call(publish_, published, 1);
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
    if (!reason.is_valid()) throw nb::value_error((std::string("no payload reason for ") + kReasons[static_cast<int>(hit.reason)]).c_str());
    PyObject* const values[] = {symbol.ptr(), side.ptr(), quantity.ptr(), reason.ptr(), price.ptr(), stop.ptr()};
    return call(order_.second, values, 0, order_fields_.ptr());
  }
  nb::object trail(const qts::StopHit& hit) const {
    const nb::object symbol = nb::str(hit.symbol.data(), hit.symbol.size()), quantity = nb::float_(hit.quantity),
                     price = nb::float_(hit.price), stop = nb::float_(hit.stop);
    PyObject* const values[] = {symbol.ptr(), stop.ptr(), price.ptr(), quantity.ptr()};
    return call(trail_.second, values, 0, trail_fields_.ptr());
  }
  std::array<nb::object*, 8> references() {
    return {&order_.first, &order_.second, &trail_.first, &trail_.second, &sides_.first, &sides_.second, &make_, &publish_};
  }

  Kind order_, trail_;
  std::pair<nb::object, nb::object> sides_;
  nb::object source_, order_fields_, trail_fields_, make_, publish_;
  std::array<nb::object, 7> reasons_;
};

class PyStops final : public TickWatcher {
 public:
  PyStops(const qts::StopRules& rules, nb::object fire) : stops(rules), fire_(std::move(fire)) {}

  void on_published(std::string_view symbol, double price, std::uint64_t began) override {
    if (stops.size() == 0) return;
    qts::StopHit hit;
    if (!stops.on_tick(symbol, price, static_cast<std::int64_t>(qts::to_ns(began)), hit)) return;
    if (exits && exits->attached() && hit.action != qts::StopAction::kAdjusted) publish_exit(hit, began);
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
  std::unique_ptr<ExitPublisher> exits;
  std::unique_ptr<qts::Histogram> spans = std::make_unique<qts::Histogram>();  // ns, from the publish of a tick to its exit in the lane
  std::vector<qts::StopHit> published;    // hits whose exits are in their lane, not yet fetched

 private:
  void fire(const qts::StopHit& hit) {
    if (hit.action == qts::StopAction::kAdjusted) ++adjusted;
    else fire_(to_tuple(hit));
  }
  void publish_exit(qts::StopHit& hit, std::uint64_t began) {
    try {
      exits->publish(hit);
    } catch (...) {
      stops.rearm(hit.symbol);  // not in its lane: the next tick reports it again
      throw;
    }
    // Recorded after publish: the thread that publish wakes may run at once, on this CPU.
    spans->record_exclusive(qts::tick_scale().span_ns(p0_entered - began));
    published.push_back(std::move(hit));
  }

  nb::object fire_;
};

nb::list to_list(const std::vector<qts::StopHit>& hits) {
  nb::list all;
  for (const qts::StopHit& hit : hits)
    if (hit.action != qts::StopAction::kAdjusted) all.append(to_tuple(hit));
  return all;
}

nb::list take_published(PyStops& self) { return to_list(std::exchange(self.published, {})); }

nb::dict take_spans(PyStops& self) {
  const auto spans = std::exchange(self.spans, std::make_unique<qts::Histogram>());
  nb::dict row;
  row["count"] = spans->count();
  for (const auto& [name, percent] : {std::pair{"p50", 50.0}, {"p99", 99.0}}) row[name] = spans->percentile(percent);
  row["max"] = spans->max();
  return row;
}

nb::object position(const PyStops& self, std::string_view symbol) {
  const qts::PositionShadow* found = self.stops.find(symbol);
  if (!found) return nb::none();
  nb::dict row;
  row["quantity"] = found->quantity;
  row["average"] = found->average;
  row["best"] = found->best;
  row["worst"] = found->worst;
  row["last"] = found->last;
  row["last_ns"] = found->last_ns;
  row["stop"] = found->levels.stop;
  row["target"] = found->levels.target;
  row["mae_half"] = found->rules.mae_half;
  row["mae_full"] = found->rules.mae_full;
  row["trailing"] = found->armed ? nb::cast(found->trailing) : nb::none();
  row["half_sent"] = found->half_sent;
  row["exit_sent"] = found->exit_sent;
  row["entered_ns"] = found->entered_ns;
  return row;
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
  nb::class_<TickWatcher>(m, "TickWatcher", "Is called with every tick while it is published.")
      .def("attach", &TickWatcher::attach, "make"_a, "publish"_a,
           "Set how to make an event, from (type, payload, source), and how to publish it.");
  nb::class_<PyStops, TickWatcher>(m, "Stops", nb::type_slots(kSlots), "Stop rules over the positions; for one thread at a time, the one with the GIL.")
      .def(
          "__init__",
          [](PyStops* self, nb::object fire, double trail_arm, double trail, double trail_min_distance, double mae_half,
             double mae_full, double profit_extension_s, double jump, double confirm_s) {
            new (self) PyStops({trail_arm, trail, trail_min_distance, mae_half, mae_full, profit_extension_s, jump,
                                confirm_s},
                               std::move(fire));
          },
          "fire"_a, nb::kw_only(), "trail_arm"_a, "trail"_a, "trail_min_distance"_a, "mae_half"_a, "mae_full"_a,
          "profit_extension_s"_a, "jump"_a, "confirm_s"_a)
      .def(
          "set_exits",
          [](PyStops& self, ExitPublisher::Kind order, ExitPublisher::Kind trail, nb::dict reasons,
             std::pair<nb::object, nb::object> sides, nb::str source) {
            self.exits = std::make_unique<ExitPublisher>(std::move(order), std::move(trail), std::move(reasons),
                                                         std::move(sides), std::move(source));
          },
          "order"_a, "trail"_a, "reasons"_a, "sides"_a, "source"_a,
          "Set (type, payload class) of an exit and of a trailing stop: once attached, ticks publish them and fire is not called.")
      .def("take_published", &take_published, "Return the hits whose exits were published since the last call.")
      .def("take_spans", &take_spans, "Percentiles in ns from the publish of a tick to its exit in the lane, since the last call.")
      .def(
          "set_position",
          [](PyStops& self, std::string_view symbol, double quantity, double average, double lot, double stop,
             double time_limit_s, std::int64_t entered_ns, const std::optional<State>& restored, double target, double trail,
             const std::optional<Rules>& rules) {
            std::optional<qts::StopState> state;
            if (restored) {
              const auto& [best, worst, trailing, armed, half_sent] = *restored;
              state = qts::StopState{best, worst, trailing, armed, half_sent};
            }
            std::optional<qts::StopRules> own;
            if (rules) {
              const auto& [arm, distance, min_distance, half, full, extension_s] = *rules;
              own = qts::StopRules{arm, distance, min_distance, half, full, extension_s};
            }
            self.stops.set_position(symbol, quantity, average, lot, {stop, target, trail}, time_limit_s, entered_ns,
                                    state ? &*state : nullptr, own ? &*own : nullptr);
          },
          "symbol"_a, "quantity"_a, "average"_a, "lot"_a, "stop"_a, "time_limit_s"_a, "entered_ns"_a, "restored"_a = nb::none(),
          "target"_a = 0.0, "trail"_a = 0.0, "rules"_a = nb::none(),
          "Set a position as the ledger has it; quantity 0 removes it. A new one begins with the restored state.")
      .def(
          "state",
          [](const PyStops& self, std::string_view symbol) -> std::optional<State> {
            const qts::PositionShadow* found = self.stops.find(symbol);
            if (!found) return std::nullopt;
            return State{found->best, found->worst, found->trailing, found->armed, found->half_sent};
          },
          "symbol"_a, "Return (best, worst, trailing, armed, half sent) of a position, for a later restore.")
      .def("rearm", [](PyStops& self, std::string_view symbol) { self.stops.rearm(symbol); }, "symbol"_a,
           "Report the last exit again: it was not carried out.")
      .def("on_tick", &PyStops::on_tick, "symbol"_a, "price"_a, "now_ns"_a, "Evaluate a tick; call fire when a stop is hit.")
      .def(
          "on_time",
          [](PyStops& self, std::int64_t now_ns) {
            std::vector<qts::StopHit> hits;
            self.stops.on_time(now_ns, hits);
            return to_list(hits);
          },
          "now_ns"_a, "Return hits between ticks: time limits, and jumps that no tick contradicted.")
      .def(
          "exit_all",
          [](PyStops& self, double part) {
            std::vector<qts::StopHit> hits;
            self.stops.exit_all(part, hits);
            return to_list(hits);
          },
          "part"_a, "Exit every position, or half of each; once.")
      .def("position", &position, "symbol"_a, "Return the shadow of a position; None when there is none.")
      .def_ro("adjusted", &PyStops::adjusted, "How often a trailing stop moved.")
      .def_prop_ro("jumps", [](const PyStops& self) { return self.stops.jumps(); }, "Ticks that jumped and had to be confirmed.")
      .def("__len__", [](const PyStops& self) { return self.stops.size(); });
}
