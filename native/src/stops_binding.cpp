// The stops seen from Python: a table of what is held, asked on every tick inside publish.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "bindings.hpp"
#include "qts/clock.hpp"
#include "qts/stops.hpp"
#include "tick_watch.hpp"

namespace {

constexpr const char* kReasons[] = {"", "STOPLOSS", "MAE", "TIME", "TRAIL", "VOLATILITY"};
constexpr const char* kVerdicts[] = {"", "ADJUST", "PARTIAL", "FULL"};

nb::tuple told(const qts::StopHit& hit) {
  return nb::make_tuple(hit.symbol, kVerdicts[static_cast<int>(hit.verdict)], kReasons[static_cast<int>(hit.reason)],
                        hit.quantity, hit.price, hit.stop, hit.is_short);
}

class PyStops final : public TickWatch {
 public:
  PyStops(const qts::StopRules& rules, nb::object fire) : stops(rules), fire_(std::move(fire)) {}

  // Called by publish, with the GIL: what a tick decides is in its lane before publish returns.
  void on_tick(std::string_view symbol, double price, std::int64_t now_ns) override {
    qts::StopHit hit;
    if (!stops.on_tick(symbol, price, now_ns, hit)) return;
    if (hit.verdict == qts::Verdict::kAdjusted)
      ++adjusted;
    else
      fire_(told(hit));
  }

  int traverse(visitproc visit, void* arg) {
    Py_VISIT(fire_.ptr());
    return 0;
  }
  void clear() { fire_.reset(); }

  qts::Stops stops;
  std::uint64_t adjusted = 0;

 private:
  nb::object fire_;
};

nb::list told_all(const std::vector<qts::StopHit>& hits) {
  nb::list all;
  for (const qts::StopHit& hit : hits)
    if (hit.verdict != qts::Verdict::kAdjusted) all.append(told(hit));
  return all;
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
  nb::class_<TickWatch>(m, "TickWatch", "Something that looks at every tick while it is published.");
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
