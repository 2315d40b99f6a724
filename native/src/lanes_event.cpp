// EventFactory: makes events from the thirteen fields of a type, a new id and the current time.
#include "lanes_contract.hpp"

#include <ctime>
#include <random>
#include <utility>

namespace qts::events {

namespace {

// The number of fields of an event, and the positions of those that differ between events.
constexpr std::size_t kFields = 13, kId = 0, kTimestamp = 3, kSource = 4, kPayload = 5;

// Returns a UUID (version 7): the time in ms, then a counter that starts at a random value in each process.
nb::object event_id() {
  static const std::uint64_t seed = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  static std::atomic<std::uint64_t> count{seed};
  static const std::uint16_t mark = static_cast<std::uint16_t>(std::random_device{}() & 0x0fff);
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::uint64_t ms = static_cast<std::uint64_t>(now.tv_sec) * 1000u + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000u;
  const std::uint64_t high = (ms << 16) | 0x7000u | mark;
  const std::uint64_t low = (count.fetch_add(1, std::memory_order_relaxed) & 0x3fffffffffffffffu) | 0x8000000000000000u;
  static constexpr char kHex[] = "0123456789abcdef";
  char text[36];
  std::size_t at = 0;
  for (const std::uint64_t half : {high, low})
    for (int shift = 60; shift >= 0; shift -= 4) {
      if (at == 8 || at == 13 || at == 18 || at == 23) text[at++] = '-';
      text[at++] = kHex[(half >> shift) & 15];
    }
#if defined(Py_LIMITED_API)
  PyObject* made = PyUnicode_FromStringAndSize(text, sizeof text);
#else
  PyObject* made = PyUnicode_New(sizeof text, 127);
  if (made != nullptr) std::memcpy(PyUnicode_DATA(made), text, sizeof text);
#endif
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

double seconds_since_1970() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class EventFactory {
 public:
  // `fields`: per type name all thirteen fields; those that differ between events are ignored. `now`:
  // None for the system clock. `missing` raises for an unknown name, `wrong_source` for a source that is no text.
  EventFactory(nb::object event_class, nb::dict fields, nb::object now, nb::object missing, nb::object wrong_source)
      : event_class_(std::move(event_class)), fields_(std::move(fields)), now_(std::move(now)), missing_(std::move(missing)),
        wrong_source_(std::move(wrong_source)) {}

  nb::object new_event(nb::handle name, nb::handle payload, nb::handle source) const {
    PyObject* fields = PyDict_GetItemWithError(fields_.ptr(), name.ptr());
    if (fields == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      missing_(name);
      throw nb::key_error("missing");
    }
    if (!PyUnicode_Check(source.ptr())) {
      wrong_source_(name, source);
      throw nb::type_error("source");
    }
    if (!PyTuple_Check(fields) || PyTuple_Size(fields) != static_cast<Py_ssize_t>(kFields))
      throw nb::value_error("fields must be a tuple of the thirteen fields of an event");
    const nb::object id = event_id();
    const nb::object timestamp = now_.is_none() ? nb::object(nb::float_(seconds_since_1970())) : now_();
    PyObject* arguments[kFields];
    for (std::size_t i = 0; i < kFields; ++i) arguments[i] = PyTuple_GetItem(fields, static_cast<Py_ssize_t>(i));
    arguments[kId] = id.ptr();
    arguments[kTimestamp] = timestamp.ptr();
    arguments[kSource] = source.ptr();
    arguments[kPayload] = payload.ptr();
    PyObject* event = PyObject_Vectorcall(event_class_.ptr(), arguments, kFields, nullptr);
    if (event == nullptr) throw nb::python_error();
    return nb::steal(event);
  }

  template <class Visit>
  int each_reference(Visit&& visit) const {
    for (const nb::object* object : {&event_class_, static_cast<const nb::object*>(&fields_), &now_, &missing_, &wrong_source_})
      if (object->is_valid())
        if (const int result = visit(object->ptr()); result != 0) return result;
    return 0;
  }
  void clear() {
    now_.reset();
    missing_.reset();
    wrong_source_.reset();
  }

 private:
  nb::object event_class_;
  nb::dict fields_;
  nb::object now_, missing_, wrong_source_;
};

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<EventFactory>(self)->each_reference([&](PyObject* object) { return visit(object, arg); });
}
int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<EventFactory>(self)->clear();
  return 0;
}
PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(clear)},
                        {0, nullptr}};

}  // namespace

void bind_event_factory(nb::module_& m) {
  nb::class_<EventFactory>(m, "EventFactory", nb::type_slots(kSlots), "Makes the events of an event engine.")
      .def(nb::init<nb::object, nb::dict, nb::object, nb::object, nb::object>(), "event_class"_a, "fields"_a, "now"_a.none(), "missing"_a,
           "wrong_source"_a,
           "fields: type name -> its thirteen fields. now: returns seconds since 1970; None: the system clock.")
      .def("new_event", &EventFactory::new_event, "name"_a, "payload"_a.none(), "source"_a.none(), "Make an event of this type, now.");
  m.def("event_id", &event_id, "Return a new UUID (version 7) as text.");
}

}  // namespace qts::events
