// qts._native.Lanes: the Python interface of the lanes.
#include "lanes_setup.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace {

using qts::LaneEntry;
using namespace qts::events;

class PyLanes {
 public:
  PyLanes(const std::array<LaneSpecTuple, 4>& specs, nb::object event_class, nb::dict types, std::size_t audit,
          std::uint64_t gil_slice_ns, std::uint64_t slice_events, std::uint64_t gil_stall_ns,
          std::size_t background) {
    Options options;
    options.specs = make_specs(specs);
    options.audit = audit;
    options.gil_slice_ns = gil_slice_ns;
    options.slice_events = slice_events;
    options.gil_stall_ns = gil_stall_ns;
    options.background_workers = background;
    core = std::make_shared<LaneCore>(options, std::move(event_class), std::move(types));
  }
  ~PyLanes() {
    if (!core) return;
    const nb::gil_scoped_release released;
    core->join(1.0);
  }

  void set_callbacks(nb::object refuse, nb::object check, nb::object failed, nb::object failed_batch) {
    core->contract.on_refused = std::move(refuse);
    core->contract.check_payload = std::move(check);
    core->failed = std::move(failed);
    core->failed_batch = std::move(failed_batch);
  }

  nb::dict counts(std::size_t lane) const {
    const qts::LaneCounts now = core->lanes[lane].queue.counts();
    nb::dict row;
    row["published"] = now.published;
    row["handled"] = now.handled;
    row["collapsed"] = now.collapsed;
    row["dropped"] = now.dropped;
    row["sampled"] = now.sampled;
    row["dead"] = now.dead;
    row["waiting"] = now.waiting + now.in_flight;
    row["depth"] = now.waiting;
    row["retried"] = now.retried;
    row["blocked"] = now.blocked;
    row["over"] = now.overflowed;
    row["overran"] = core->lanes[lane].overran.load();
    return row;
  }

  nb::dict latency(std::size_t lane) const {
    const qts::Lane& of = core->lanes[lane];
    nb::dict all;
    for (const auto& [name, histogram] :
         {std::pair{"wait", &of.wait}, std::pair{"handling", &of.handling}, std::pair{"total", &of.total}})
      all[name] = percentiles(*histogram);
    return all;
  }
  nb::dict recent_latency(std::size_t lane, bool ten) const {
    const qts::RecentHistogram& recent = core->lanes[lane].recent_total;
    static constexpr std::array<double, 4> kPercents{50, 95, 99, 99.9};
    const auto found = ten ? recent.last_ten_minutes(kPercents) : recent.last_minute(kPercents);
    nb::dict row;
    row["count"] = found.count;
    std::size_t i = 0;
    for (const char* name : {"p50", "p95", "p99", "p99_9"}) row[name] = found.percentiles[i++];
    row["max"] = found.max;
    return row;
  }
  void roll_latency() {
    for (std::size_t lane = 0; lane < 4; ++lane) core->lanes[lane].recent_total.roll();
  }
  static nb::dict percentiles(const qts::Histogram& histogram) {
    nb::dict row;
    row["count"] = histogram.count();
    for (const auto& [name, percent] : {std::pair{"p50", 50.0}, {"p95", 95.0}, {"p99", 99.0}, {"p99_9", 99.9}})
      row[name] = histogram.percentile(percent);
    row["max"] = histogram.max();
    row["sum"] = histogram.sum();
    return row;
  }

  bool drained(const std::vector<std::size_t>& lanes, double seconds) {
    const nb::gil_scoped_release released;
    using namespace std::chrono;
    const auto began = steady_clock::now(), end = began + duration_cast<steady_clock::duration>(duration<double>(seconds));
    while (true) {
      bool empty = true;
      for (const std::size_t lane : lanes) {
        const qts::LaneCounts now = core->lanes[lane].queue.counts();
        empty = empty && now.waiting + now.in_flight == 0;
      }
      const auto now = steady_clock::now();
      if (empty || now >= end) return empty;
      // Polls at an eighth of the time waited so far, so that the end is noticed with a small delay.
      std::this_thread::sleep_for(std::clamp<nanoseconds>((now - began) / 8, microseconds(5), milliseconds(1)));
    }
  }

  nb::list reports() {
    nb::list rows;
    for (const Report& each : core->take_reports())
      rows.append(nb::make_tuple(each.what, type_number(each.type), each.handler, each.ns));
    return rows;
  }
  nb::list running() const {
    nb::list rows;
    const std::uint64_t now = qts::ticks();
    const qts::TickScale scale = qts::tick_scale();
    for (const auto& worker : core->workers)
      if (const std::uint64_t began = worker->began.load(); began != 0 && began < now)
        rows.append(nb::make_tuple(worker->number, type_number(worker->type.load()), worker->handler.load(),
                                   scale.span_ns(now - began)));
    return rows;
  }
  nb::bytes audit() {
    const std::vector<qts::AuditRecord> records = core->lanes.audit().drain();
    return nb::bytes(records.data(), records.size() * sizeof(qts::AuditRecord));
  }
  // -1: unknown.
  static int type_number(std::uint32_t type) { return type == UINT32_MAX ? -1 : static_cast<int>(type); }

  std::shared_ptr<LaneCore> core;
};

nb::bytes replay(const std::array<LaneSpecTuple, 4>& specs, nb::bytes data) {
  std::vector<qts::AuditRecord> records(data.size() / sizeof(qts::AuditRecord));
  std::memcpy(records.data(), data.c_str(), records.size() * sizeof(qts::AuditRecord));
  const auto out = qts::replay(make_specs(specs), records);
  return nb::bytes(out.data(), out.size() * sizeof(qts::AuditRecord));
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const auto* lanes = nb::inst_ptr<PyLanes>(self);
  if (!lanes->core) return 0;
  return lanes->core->each_reference([&](PyObject* object) { return visit(object, arg); });
}
int clear(PyObject* self) {
  if (nb::inst_ready(self))
    if (const auto* lanes = nb::inst_ptr<PyLanes>(self); lanes->core) lanes->core->clear();
  return 0;
}
// Publishing is called for every event, so its methods are plain C functions, which the interpreter calls
// faster than a bound C++ function.
template <class Call>
PyObject* translate_errors(PyObject* self, Call&& call) {
  try {
    return call(*nb::inst_ptr<PyLanes>(self)->core);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const nb::builtin_exception& error) {
    const bool type = error.type() == nb::exception_type::type_error;
    PyErr_SetString(type ? PyExc_TypeError : PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// The arguments (name, timeout=None), by position or by name.
struct Arguments {
  PyObject* first = nullptr;
  std::optional<double> timeout;

  Arguments(PyObject* const* given, Py_ssize_t count, PyObject* names, const char* name) {
    PyObject* seconds = count > 1 ? given[1] : nullptr;
    if (count > 0) first = given[0];
    if (count > 2) throw nb::type_error((std::string("expected (") + name + ", timeout=None)").c_str());
    for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_Size(names); ++i) {
      PyObject* const given_name = PyTuple_GetItem(names, i);
      PyObject*& argument = PyUnicode_CompareWithASCIIString(given_name, name) == 0 ? first : seconds;
      const bool is_timeout = PyUnicode_CompareWithASCIIString(given_name, "timeout") == 0;
      if ((&argument == &seconds && !is_timeout) || argument != nullptr)
        throw nb::type_error((std::string("expected (") + name + ", timeout=None)").c_str());
      argument = given[count + i];
    }
    if (first == nullptr) throw nb::type_error((std::string("expected (") + name + ", timeout=None)").c_str());
    if (seconds == nullptr || seconds == Py_None) return;
    timeout = PyFloat_AsDouble(seconds);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
  }
};

PyObject* publish(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return translate_errors(self, [&](LaneCore& core) {
    if (count == 1 && names == nullptr) [[likely]] {
      core.publish(given[0], std::nullopt);
    } else {
      const Arguments arguments(given, count, names, "event");
      core.publish(arguments.first, arguments.timeout);
    }
    return Py_NewRef(Py_None);
  });
}
PyObject* publish_many(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return translate_errors(self, [&](LaneCore& core) {
    const Arguments arguments(given, count, names, "events");
    return PyLong_FromSize_t(core.publish_many(arguments.first, arguments.timeout));
  });
}
PyObject* try_publish(PyObject* self, PyObject* event) {
  return translate_errors(self, [&](LaneCore& core) { return PyBool_FromLong(core.try_publish(event)); });
}

PyMethodDef kMethods[] = {
    {"publish", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(publish)), METH_FASTCALL | METH_KEYWORDS,
     "publish($self, event, timeout=None)\n--\n\nPut an event into its lane; wait for capacity where the lane blocks."},
    {"publish_many", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(publish_many)),
     METH_FASTCALL | METH_KEYWORDS,
     "publish_many($self, events, timeout=None)\n--\n\nPublish a list of events in order; return how many."},
    {"try_publish", try_publish, METH_O,
     "try_publish($self, event, /)\n--\n\nPublish without waiting; False when the lane is full."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(clear)},
                        {Py_tp_methods, kMethods},
                        {0, nullptr}};

}  // namespace

void bind_lanes(nb::module_& m) {
  nb::class_<PyLanes>(m, "Lanes", nb::type_slots(kSlots), "The four event lanes behind the event engine.")
      .def(nb::init<const std::array<LaneSpecTuple, 4>&, nb::object, nb::dict, std::size_t, std::uint64_t, std::uint64_t,
                    std::uint64_t, std::size_t>(),
           "specs"_a, "event_class"_a, "types"_a, "audit"_a, "gil_slice_ns"_a, "slice_events"_a, "gil_stall_ns"_a, "background_workers"_a,
           "specs: (capacity, policy, share of 10^9 that sampling accepts, batch, window in ns, batch by key) of each lane.")
      .def("set_callbacks", &PyLanes::set_callbacks, "refuse"_a, "check"_a, "failed"_a, "failed_batch"_a,
           "Set the callbacks that raise a refusal, check a payload, and retry a failed handler.")
      .def(
          "add_type",
          [](PyLanes& self, std::uint8_t lane, nb::object payload, nb::object key,
             const std::vector<std::pair<nb::str, unsigned>>& fields, bool checked_in_python, double time_limit_ms) {
            return add_type(*self.core, lane, std::move(payload), std::move(key), fields, checked_in_python, time_limit_ms);
          },
          "lane"_a, "payload"_a, "key"_a.none(), "fields"_a, "checked_in_python"_a, "time_limit_ms"_a,
          "Add an event type and return its number.")
      .def(
          "attach_watcher",
          [](PyLanes& self, std::size_t type, nb::object watcher, const std::string& field) {
            add_watcher(*self.core, type, std::move(watcher), field);
          },
          "type"_a, "watcher"_a, "field"_a,
          "Call a watcher with every event of a type while it is published: its key, and this number.")
      .def(
          "set_handlers",
          [](PyLanes& self, std::size_t type, const std::vector<HandlerTuple>& handlers) {
            set_handlers(*self.core, type, handlers);
          },
          "type"_a, "handlers"_a, "Set the handlers of a type, in this order; only while no thread runs.")
      .def(
          "wait_for_capacity",
          [](PyLanes& self, std::size_t lane, double seconds) {
            const nb::gil_scoped_release released;
            return self.core->lanes[lane & 3].queue.wait_for_capacity(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
          },
          "lane"_a, "seconds"_a, "Wait for capacity; False when the lane is still full after this time.")
      .def(
          "step", [](PyLanes& self, std::size_t lane) { return self.core->step(lane); }, "lane"_a,
          "Without threads: handle the next event or batch of a lane. -1: a higher lane comes first; 0: none is ready.")
      .def(
          "add_worker", [](PyLanes& self, std::vector<std::uint8_t> lanes) { return self.core->add_worker(std::move(lanes)); },
          "lanes"_a, "Add a thread for these lanes, the first before the others, and return its number; 0 serves P0.")
      .def(
          "start", [](PyLanes& self, std::optional<int> cpu, bool realtime) { self.core->start(cpu, realtime); },
          "p0_cpu"_a.none(), "realtime"_a, "Start the threads.")
      .def(
          "halt",
          [](PyLanes& self, double seconds) {
            const nb::gil_scoped_release released;
            return self.core->join(seconds);
          },
          "seconds"_a, "End the threads after their current event; False when one did not end.")
      .def(
          "open",
          [](PyLanes& self, bool open) {
            self.core->open.store(open);
            for (std::size_t i = 0; i < 4; ++i)
              if (open) self.core->lanes[i].queue.reopen();
              else self.core->lanes[i].queue.close();
          },
          "open"_a, "Allow or refuse publishing.")
      .def(
          "pause",
          [](PyLanes& self, std::size_t lane, bool paused) {
            self.core->lanes[lane & 3].paused.store(paused);
            self.core->lanes.wake_all();
          },
          "lane"_a, "paused"_a, "Pause or resume a lane at its next event.")
      .def(
          "paused", [](PyLanes& self, std::size_t lane) { return self.core->lanes[lane & 3].paused.load(); }, "lane"_a,
          "Whether a lane is paused.")
      .def(
          "set_batch",
          [](PyLanes& self, std::size_t lane, std::size_t size) { self.core->lanes[lane & 3].batch.store(std::max<std::size_t>(size, 1)); },
          "lane"_a, "size"_a, "How many events are taken at once.")
      .def(
          "set_critical_only", [](PyLanes& self, bool only) { self.core->critical_only.store(only); }, "only"_a,
          "Below P0, call only handlers marked essential.")
      .def("drained", &PyLanes::drained, "lanes"_a, "seconds"_a, "Wait until these lanes are empty; False when time ran out.")
      .def("counts", &PyLanes::counts, "lane"_a, "Counts of the events of a lane, by result.")
      .def("latency", &PyLanes::latency, "lane"_a, "Percentiles in ns of waiting, handling and both together.")
      .def("recent_latency", &PyLanes::recent_latency, "lane"_a, "ten"_a,
           "Percentiles in ns of waiting and handling together, in the last minute or the last ten.")
      .def("roll_latency", &PyLanes::roll_latency, "End a period of ten seconds of the recent latencies.")
      .def(
          "gil_wait", [](PyLanes& self) { return PyLanes::percentiles(self.core->gil_wait); },
          "Percentiles in ns of P0's wait for the interpreter.")
      .def(
          "settle", [](PyLanes& self, std::size_t lane, std::uint64_t sequence, bool dead) { self.core->settle(lane & 3, sequence, dead); },
          "lane"_a, "sequence"_a, "dead"_a, "Set the result of an event whose handler returned None.")
      .def(
          "take",
          [](PyLanes& self, std::size_t lane, std::size_t max, double seconds) {
            return self.core->take(lane & 3, std::min<std::size_t>(max, 100'000), seconds);
          },
          "lane"_a, "max"_a, "seconds"_a, "Take (event, sequence) pairs of a lane that no thread serves; settle_at sets the result of each.")
      .def(
          "settle_at",
          [](PyLanes& self, std::size_t lane, std::uint64_t sequence, bool dead, std::uint64_t began, std::uint64_t ended) {
            self.core->settle_at(lane & 3, sequence, dead, began, ended);
          },
          "lane"_a, "sequence"_a, "dead"_a, "began"_a, "ended"_a, "Set the result of an event that was taken, with the ticks of its handling.")
      .def(
          "drop_taken", [](PyLanes& self, std::size_t lane, std::uint64_t sequence) { self.core->drop_taken(lane & 3, sequence); },
          "lane"_a, "sequence"_a, "Count an event that was taken as dropped: no handler was called with it.")
      .def(
          "publish_overflow", [](PyLanes& self, nb::handle event) { return self.core->publish_overflow(event.ptr()); }, "event"_a.none(),
          "Publish as a handler does: exceed the capacity rather than wait; False when the reserve is full too.")
      .def(
          "separate_workers", [](PyLanes& self) { self.core->lanes.separate_workers(); }, "Declare that P2 and P3 have no worker in common; before start.")
      .def(
          "count_retry",
          [](PyLanes& self, std::size_t lane, std::uint64_t sequence, std::uint32_t type) {
            LaneEntry entry;
            entry.sequence = sequence;
            entry.type = type;
            self.core->lanes[lane & 3].queue.count_retry(entry);
          },
          "lane"_a, "sequence"_a, "type"_a, "Count one retry.")
      .def(
          "faults", [](PyLanes& self) { return self.core->take_faults(); }, "(worker, error) of threads that failed since the last call.")
      .def(
          "restart_worker", [](PyLanes& self, std::size_t worker) { self.core->restart_worker(worker); }, "worker"_a,
          "Start a new thread for a worker whose thread failed.")
      .def(
          "relieve_overrun", [](PyLanes& self) { self.core->relieve_overrun(); },
          "Free what handlers of P2 and P3 that overrun hold up: the events taken with theirs, and their threads.")
      .def(
          "inject_fault", [](PyLanes& self, std::size_t worker) { self.core->inject_fault(worker); }, "worker"_a,
          "For tests: let a thread fail at its next round.")
      .def(
          "drops",
          [](PyLanes& self) {
            nb::list rows;
            for (const auto& [key, count] : self.core->drops) rows.append(nb::make_tuple(key.first, key.second, count));
            return rows;
          },
          "(type, key, count) of the events dropped by full lanes.")
      .def(
          "in_handler", [](PyLanes&) { return LaneCore::in_handler(); }, "Whether this thread is in a handler of the lanes.")
      .def("reports", &PyLanes::reports, "(what, type, handler, ns) of handlers that took too long since the last call.")
      .def("running", &PyLanes::running, "(worker, type, handler, ns) of each running handler.")
      .def("audit", &PyLanes::audit, "The records since the last call, 40 bytes each.")
      .def(
          "audit_lost", [](PyLanes& self) { return self.core->lanes.audit().lost(); }, "How many records did not fit the buffer.")
      .def(
          "lock_counts",
          [](PyLanes& self) { return std::pair{self.core->lanes.lock.handed_over(), self.core->lanes.lock.overtaken()}; },
          "How often the lane lock of a sleeping handler was handed over, and how often a higher lane overtook.")
      .def(
          "p0_placement", [](PyLanes& self) { return std::pair{self.core->pinned.load(), self.core->is_realtime.load()}; },
          "Whether P0's thread is pinned to its CPU, and has real-time priority.")
      .def(
          "release_handled", [](PyLanes& self) { self.core->release_handled(); }, "Release events that were handled without the interpreter.");
  m.def("replay_lanes", &replay, "specs"_a, "records"_a, "Repeat recorded publishing and taking; return the records that this makes.");
  bind_event_factory(m);
}
