// qts._native.Lanes: the lanes as Python sees them.
#include "lanes_core.hpp"

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

using qts::Entry;
using namespace qts::events;

using SpecTuple = std::tuple<std::size_t, std::string, std::uint32_t, std::size_t, std::uint64_t, bool>;

std::array<qts::LaneSpec, 4> specs_of(const std::array<SpecTuple, 4>& given) {
  std::array<qts::LaneSpec, 4> specs{};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& [capacity, policy, keep, batch, window, by_key] = given[i];
    using qts::Policy;
    const std::pair<const char*, Policy> known[] = {{"block", Policy::block},
                                                    {"drop_oldest", Policy::drop_oldest},
                                                    {"collapse", Policy::collapse},
                                                    {"sample", Policy::sample}};
    const auto* found = std::find_if(std::begin(known), std::end(known), [&](auto& each) { return policy == each.first; });
    if (found == std::end(known)) throw nb::value_error(("no policy is called " + policy).c_str());
    if (capacity == 0 || batch == 0) throw nb::value_error("a lane and a batch hold one event or more");
    specs[i] = {capacity, found->second, keep, batch, window, by_key};
  }
  return specs;
}

class PyLanes {
 public:
  PyLanes(const std::array<SpecTuple, 4>& specs, nb::object event_class, nb::dict types, std::size_t audit,
          std::uint64_t hold_ns, std::uint64_t hold_events, std::uint64_t gil_wait_ns, std::size_t background) {
    Options options;
    options.specs = specs_of(specs);
    options.audit = audit;
    options.hold_ns = hold_ns;
    options.hold_events = hold_events;
    options.gil_wait_ns = gil_wait_ns;
    options.background = background;
    core = std::make_shared<Core>(options, std::move(event_class), std::move(types));
  }
  ~PyLanes() {
    if (!core) return;
    const nb::gil_scoped_release released;
    core->join(1.0);
  }

  void set_callbacks(nb::object refuse, nb::object check, nb::object failed, nb::object failed_batch) {
    core->contract.refuse = std::move(refuse);
    core->contract.look = std::move(check);
    core->failed = std::move(failed);
    core->failed_batch = std::move(failed_batch);
  }

  std::size_t add_type(std::uint8_t lane, nb::object payload, nb::object key,
                       const std::vector<std::pair<nb::str, unsigned>>& fields, bool deep, double limit_ms) {
    if (lane > 3) throw nb::value_error("a lane is 0, 1, 2 or 3");
    auto row = std::make_unique<Row>();
    row->lane = lane;
    row->has_key = !key.is_none();
    if (row->has_key) row->key = Member(payload, nb::cast<std::string>(key).c_str());
    for (const auto& [name, allowed] : fields) row->fields.push_back({Member(payload, name.c_str()), allowed});
    row->payload = std::move(payload);
    row->deep = deep;
    row->limit = limit_ms > 0 ? qts::tick_scale().span_ticks(static_cast<std::uint64_t>(limit_ms * 1e6)) : 0;
    core->contract.rows.push_back(std::move(row));
    ask_by_policy(*core->contract.rows.back());
    return core->contract.rows.size() - 1;
  }

  // Every event of the type is shown to `watcher` while it is published: its key, and this field.
  void watch(std::size_t type, nb::object watcher, const std::string& field) {
    Row& row = *core->contract.rows.at(type);
    if (!row.has_key) throw nb::value_error("a type without a key cannot be watched");
    row.price = qts::events::Member(row.payload, field.c_str());
    row.watch = nb::cast<TickWatch*>(watcher);
    row.watcher = std::move(watcher);
  }

  // What the lane's policy and the handlers need to know of each event.
  void ask_by_policy(Row& row) const {
    using qts::Policy;
    const Policy policy = core->lanes[row.lane].queue.policy();
    row.may_drop = policy == Policy::drop_oldest || policy == Policy::sample;
    row.by_key = policy == Policy::collapse || policy == Policy::drop_oldest || row.batched || row.compiled;
    row.hashed = row.by_key && (policy != Policy::drop_oldest || row.batched || row.compiled || core->lanes.audit().on());
  }

  // [(kind, callable or address, state address, essential)]; only while no thread runs.
  void set_handlers(std::size_t type, const std::vector<std::tuple<std::string, nb::object, std::uint64_t, bool>>& handlers) {
    Row& row = *core->contract.rows.at(type);
    row.handlers.clear();
    row.batched = row.compiled = row.needs_python = false;
    for (const auto& [kind, target, state, essential] : handlers) {
      Handler handler{};
      handler.essential = essential;
      if (kind == "compiled") {
        handler.kind = Kind::compiled;
        handler.function = reinterpret_cast<void (*)(const EventRecord*, void*)>(nb::cast<std::uintptr_t>(target));
        handler.state = reinterpret_cast<void*>(static_cast<std::uintptr_t>(state));
        row.compiled = true;
      } else {
        handler.kind = kind == "batch"     ? Kind::batch
                       : kind == "rows"    ? Kind::rows
                       : kind == "managed" ? Kind::managed
                                           : Kind::plain;
        handler.callable = target;
#if !defined(Py_LIMITED_API)
        if (vectorcallfunc own = PyVectorcall_Function(target.ptr())) handler.call = own;
#endif
        row.needs_python = true;
      }
      row.batched = row.batched || handler.kind == Kind::batch || handler.kind == Kind::rows;
      row.compiled = row.compiled || handler.kind == Kind::rows;  // it reads the record too
      row.handlers.push_back(std::move(handler));
    }
    row.needs_python = row.needs_python || row.handlers.empty();
    ask_by_policy(row);
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
    row["waiting"] = now.waiting + now.in_hand;
    row["depth"] = now.waiting;
    row["retried"] = now.retried;
    row["blocked"] = now.blocked;
    row["over"] = now.over;
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
  static nb::dict percentiles(const qts::Histogram& histogram) {
    nb::dict row;
    row["count"] = histogram.count();
    for (const auto& [name, percent] : {std::pair{"p50", 50.0}, {"p95", 95.0}, {"p99", 99.0}, {"p99_9", 99.9}})
      row[name] = histogram.percentile(percent);
    row["max"] = histogram.max();
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
        empty = empty && now.waiting + now.in_hand == 0;
      }
      const auto now = steady_clock::now();
      if (empty || now >= end) return empty;
      // So it is noticed late by a small part of what the wait took.
      std::this_thread::sleep_for(std::clamp<nanoseconds>((now - began) / 8, microseconds(5), milliseconds(1)));
    }
  }

  nb::list reports() {
    nb::list rows;
    for (const Report& each : core->take_reports()) rows.append(nb::make_tuple(each.what, shown(each.type), each.handler, each.ns));
    return rows;
  }
  nb::list running() const {
    nb::list rows;
    const std::uint64_t now = qts::ticks();
    const qts::TickScale scale = qts::tick_scale();
    for (const auto& worker : core->workers)
      if (const std::uint64_t began = worker->began.load(); began != 0 && began < now)
        rows.append(nb::make_tuple(worker->number, shown(worker->type.load()), worker->handler.load(), scale.span_ns(now - began)));
    return rows;
  }
  nb::bytes audit() {
    const std::vector<qts::AuditRecord> records = core->lanes.audit().drain();
    return nb::bytes(records.data(), records.size() * sizeof(qts::AuditRecord));
  }
  static int shown(std::uint32_t type) { return type == UINT32_MAX ? -1 : static_cast<int>(type); }

  std::shared_ptr<Core> core;
};

nb::bytes replay(const std::array<SpecTuple, 4>& specs, nb::bytes data) {
  std::vector<qts::AuditRecord> records(data.size() / sizeof(qts::AuditRecord));
  std::memcpy(records.data(), data.c_str(), records.size() * sizeof(qts::AuditRecord));
  const auto out = qts::replay(specs_of(specs), records);
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
// Publishing is called once for every event: as plain C functions of the class, which cost the
// interpreter less than a bound C++ function.
template <class Deed>
PyObject* guarded(PyObject* self, Deed&& deed) {
  try {
    return deed(*nb::inst_ptr<PyLanes>(self)->core);
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

// (what, timeout=None), by place or by name.
struct Arguments {
  PyObject* first = nullptr;
  std::optional<double> timeout;

  Arguments(PyObject* const* given, Py_ssize_t count, PyObject* names, const char* name) {
    PyObject* waits = count > 1 ? given[1] : nullptr;
    if (count > 0) first = given[0];
    if (count > 2) throw nb::type_error("at most two arguments are taken");
    for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_Size(names); ++i) {
      PyObject* const known = PyTuple_GetItem(names, i);
      PyObject*& place = PyUnicode_CompareWithASCIIString(known, name) == 0 ? first : waits;
      if ((&place == &waits && PyUnicode_CompareWithASCIIString(known, "timeout") != 0) || place != nullptr)
        throw nb::type_error((std::string("expected (") + name + ", timeout=None)").c_str());
      place = given[count + i];
    }
    if (first == nullptr) throw nb::type_error((std::string("expected (") + name + ", timeout=None)").c_str());
    if (waits == nullptr || waits == Py_None) return;
    timeout = PyFloat_AsDouble(waits);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
  }
};

PyObject* publish(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return guarded(self, [&](Core& core) {
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
  return guarded(self, [&](Core& core) {
    const Arguments arguments(given, count, names, "events");
    return PyLong_FromSize_t(core.publish_many(arguments.first, arguments.timeout));
  });
}
PyObject* try_publish(PyObject* self, PyObject* event) {
  return guarded(self, [&](Core& core) { return PyBool_FromLong(core.try_publish(event)); });
}

PyMethodDef kMethods[] = {
    {"publish", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(publish)), METH_FASTCALL | METH_KEYWORDS,
     "publish($self, event, timeout=None)\n--\n\nPut an event into its lane; wait where the lane blocks."},
    {"publish_many", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(publish_many)),
     METH_FASTCALL | METH_KEYWORDS,
     "publish_many($self, events, timeout=None)\n--\n\nPublish a list of events in order; how many."},
    {"try_publish", try_publish, METH_O,
     "try_publish($self, event, /)\n--\n\nThe same without waiting: False when there is no room."},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(clear)},
                        {Py_tp_methods, kMethods},
                        {0, nullptr}};

}  // namespace

void bind_lanes(nb::module_& m) {
  nb::class_<PyLanes>(m, "Lanes", nb::type_slots(kSlots), "The four event lanes; qts.events.Engine is their face.")
      .def(nb::init<const std::array<SpecTuple, 4>&, nb::object, nb::dict, std::size_t, std::uint64_t, std::uint64_t,
                    std::uint64_t, std::size_t>(),
           "specs"_a, "event_class"_a, "types"_a, "audit"_a, "hold_ns"_a, "hold_events"_a, "gil_wait_ns"_a, "background"_a,
           "specs: (capacity, policy, keep one of, batch, window in ns, batch by key) of each lane.")
      .def("set_callbacks", &PyLanes::set_callbacks, "refuse"_a, "check"_a, "failed"_a, "failed_batch"_a,
           "Who words a refusal, looks into a payload, and tries a failed handler again.")
      .def("add_type", &PyLanes::add_type, "lane"_a, "payload"_a, "key"_a.none(), "fields"_a, "deep"_a, "limit_ms"_a,
           "A type of event; its number.")
      .def("watch", &PyLanes::watch, "type"_a, "watcher"_a, "field"_a,
           "Show every event of a type to a TickWatch while it is published: its key, and this number.")
      .def("set_handlers", &PyLanes::set_handlers, "type"_a, "handlers"_a,
           "Who handles a type, in this order; only while nothing runs.")
      .def(
          "wait_for_room",
          [](PyLanes& self, std::size_t lane, double seconds) {
            const nb::gil_scoped_release released;
            return self.core->lanes[lane & 3].queue.wait_for_room(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
          },
          "lane"_a, "seconds"_a, "False when the lane is still full after this time.")
      .def(
          "step", [](PyLanes& self, std::size_t lane) { return self.core->step(lane); }, "lane"_a,
          "Without threads: handle the next event or batch of a lane. -1: a higher lane comes first; 0: nothing is ready.")
      .def(
          "add_worker", [](PyLanes& self, std::vector<std::uint8_t> lanes) { return self.core->add_worker(std::move(lanes)); },
          "lanes"_a, "A thread for these lanes, the first before the others; number 0 is P0's.")
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
          "open"_a, "Whether publishing is allowed.")
      .def(
          "pause",
          [](PyLanes& self, std::size_t lane, bool paused) {
            self.core->lanes[lane & 3].paused.store(paused);
            self.core->lanes.ring_all();
          },
          "lane"_a, "paused"_a, "Stop or resume a lane at its next event.")
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
      .def("counts", &PyLanes::counts, "lane"_a, "What became of the events of a lane.")
      .def("latency", &PyLanes::latency, "lane"_a, "Percentiles in ns of waiting, handling and both together.")
      .def(
          "gil_wait", [](PyLanes& self) { return PyLanes::percentiles(self.core->gil_wait); },
          "Percentiles in ns of P0's wait for the interpreter.")
      .def(
          "settle", [](PyLanes& self, std::size_t lane, std::uint64_t sequence, bool dead) { self.core->settle(lane & 3, sequence, dead); },
          "lane"_a, "sequence"_a, "dead"_a, "What became of an event whose handler said None.")
      .def(
          "take",
          [](PyLanes& self, std::size_t lane, std::size_t most, double seconds) {
            return self.core->take(lane & 3, std::min<std::size_t>(most, 100'000), seconds);
          },
          "lane"_a, "most"_a, "seconds"_a, "(event, sequence) of a lane no thread serves; settle_at says what became of each.")
      .def(
          "settle_at",
          [](PyLanes& self, std::size_t lane, std::uint64_t sequence, bool dead, std::uint64_t began, std::uint64_t ended) {
            self.core->settle_at(lane & 3, sequence, dead, began, ended);
          },
          "lane"_a, "sequence"_a, "dead"_a, "began"_a, "ended"_a, "What became of an event that was taken, and when (ticks).")
      .def(
          "publish_over", [](PyLanes& self, nb::handle event) { return self.core->publish_over(event.ptr()); }, "event"_a.none(),
          "As a handler publishes: past the bound rather than wait; False when that is full as well.")
      .def(
          "serve_apart", [](PyLanes& self) { self.core->lanes.serve_apart(); }, "P2 and P3 have no worker in common.")
      .def(
          "retried",
          [](PyLanes& self, std::size_t lane, std::uint64_t sequence, std::uint32_t type) {
            Entry entry;
            entry.sequence = sequence;
            entry.type = type;
            self.core->lanes[lane & 3].queue.retried(entry);
          },
          "lane"_a, "sequence"_a, "type"_a, "Count one more try.")
      .def(
          "faults", [](PyLanes& self) { return self.core->take_faults(); }, "(worker, error) of threads that failed since the last call.")
      .def(
          "revive", [](PyLanes& self, std::size_t worker) { self.core->revive(worker); }, "worker"_a,
          "Start a thread in the place of one that failed.")
      .def(
          "break_worker", [](PyLanes& self, std::size_t worker) { self.core->break_worker(worker); }, "worker"_a,
          "For drills: let a thread fail at its next round.")
      .def(
          "drops",
          [](PyLanes& self) {
            nb::list rows;
            for (const auto& [key, count] : self.core->drops) rows.append(nb::make_tuple(key.first, key.second, count));
            return rows;
          },
          "(type, key, count) of everything dropped for want of room.")
      .def(
          "inside", [](PyLanes&) { return Core::inside(); }, "Whether this thread is in a handler of the lanes.")
      .def("reports", &PyLanes::reports, "(what, type, handler, ns) of handlers that took too long since the last call.")
      .def("running", &PyLanes::running, "(worker, type, handler, ns) of each handler at work.")
      .def("audit", &PyLanes::audit, "The records since the last call, 40 bytes each.")
      .def(
          "audit_lost", [](PyLanes& self) { return self.core->lanes.audit().lost(); }, "Records nobody fetched in time.")
      .def(
          "turns",
          [](PyLanes& self) { return std::pair{self.core->lanes.turn.times_lent(), self.core->lanes.turn.times_overtaken()}; },
          "How often a sleeping handler's turn was lent on, and how often a higher lane overtook.")
      .def(
          "placed", [](PyLanes& self) { return std::pair{self.core->pinned.load(), self.core->is_realtime.load()}; },
          "Whether P0's thread has its CPU, and real-time priority.")
      .def(
          "clear", [](PyLanes& self) { self.core->bury(); }, "Let go of events that were handled without the interpreter.");
  m.def("replay_lanes", &replay, "specs"_a, "records"_a, "The records that the same publishing and taking makes again.");
  bind_maker(m);
}
