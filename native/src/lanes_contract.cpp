#include "lanes_contract.hpp"

#include <cmath>
#include <utility>

#if !defined(Py_LIMITED_API)
#include <structmember.h>
#endif

namespace qts::events {

namespace {

constexpr Py_ssize_t kLongestText = 1 << 20;

double float_value(PyObject* value) {
#if defined(Py_LIMITED_API)
  return PyFloat_AsDouble(value);
#else
  return PyFloat_AS_DOUBLE(value);
#endif
}

Py_ssize_t text_length(PyObject* value) {
#if defined(Py_LIMITED_API)
  return PyUnicode_GetLength(value);
#else
  return PyUnicode_GET_LENGTH(value);
#endif
}

// Empty with an error set when the value is no text that UTF-8 can hold.
std::string_view text_of(PyObject* value) {
#if !defined(Py_LIMITED_API)
  if (PyUnicode_CheckExact(value) && PyUnicode_IS_COMPACT_ASCII(value)) [[likely]]
    return {static_cast<const char*>(PyUnicode_DATA(value)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(value))};
#endif
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &length);
  return text == nullptr ? std::string_view{} : std::string_view{text, static_cast<std::size_t>(length)};
}

double number(PyObject* value) {
  if (PyFloat_Check(value)) return float_value(value);
  if (!PyLong_Check(value) || PyBool_Check(value)) return NAN;
  const double real = PyLong_AsDouble(value);
  if (real != -1.0 || PyErr_Occurred() == nullptr) return real;
  PyErr_Clear();  // too large
  return NAN;
}

// Most values: a finite float, or a text that is not too long.
bool is_plain(PyObject* value, unsigned allowed) {
  if (PyFloat_CheckExact(value)) return (allowed & kFloat) != 0 && std::isfinite(float_value(value));
  return PyUnicode_CheckExact(value) && (allowed & kStr) != 0 && text_length(value) <= kLongestText;
}

unsigned kind_of(PyObject* value) {
  if (PyUnicode_Check(value)) return kStr;
  if (PyFloat_Check(value)) return kFloat;
  if (PyBool_Check(value)) return kBool;
  if (PyLong_Check(value)) return kInt;
  return value == Py_None ? kNone : 0;
}

}  // namespace

// The class keeps its fields in slots; where the full API tells where a slot is, reading one is a
// load.
Member::Member(nb::handle of_class, const char* name) : name_(nb::steal(PyUnicode_InternFromString(name))) {
#if !defined(Py_LIMITED_API)
  const nb::object found = nb::getattr(of_class, name, nb::none());
  if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) return;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member;
  if (member->type == T_OBJECT_EX) offset_ = member->offset;
#else
  static_cast<void>(of_class);
#endif
}

PyObject* Member::by_name(PyObject* object) const {
  PyObject* value = PyObject_GetAttr(object, name_.ptr());
  if (value == nullptr) throw nb::python_error();
  Py_DECREF(value);
  return value;
}

Contract::Contract(nb::object event_class, nb::dict types)
    : event_class_(std::move(event_class)), types_(std::move(types)), type_(event_class_, "event_type"),
      priority_(event_class_, "priority"), timestamp_(event_class_, "timestamp"), payload_(event_class_, "payload"),
      can_collapse_(event_class_, "can_collapse"), can_drop_(event_class_, "can_drop") {
  for (std::size_t i = 0; i < Lanes::kLanes; ++i) priorities_[i] = nb::int_(i);
}

void Contract::refused(PyObject* event, const char* why) const {
  if (refuse.is_valid()) refuse(nb::handle(event), why);
  throw nb::value_error(why);
}

inline std::uint32_t Contract::index_of(PyObject* name) {
  Known& known = known_[(reinterpret_cast<std::uintptr_t>(name) >> 4) % known_.size()];
  if (known.name.ptr() == name) [[likely]]
    return known.index;
  if (!PyUnicode_Check(name)) return UINT32_MAX;
  PyObject* found = PyDict_GetItemWithError(types_.ptr(), name);
  if (found == nullptr) {
    if (PyErr_Occurred()) throw nb::python_error();
    return UINT32_MAX;
  }
  known = {nb::borrow(name), static_cast<std::uint32_t>(PyLong_AsUnsignedLong(found))};
  return known.index;
}

const Row& Contract::row_of(PyObject* event) { return *rows[index_of(type_.of(event))]; }

void Contract::check_field(PyObject* event, PyObject* value, unsigned allowed, EventRecord* record) const {
  const unsigned found = kind_of(value);
  const bool wide = found == kInt && (allowed & kFloat) != 0;
  if ((allowed & (found | kAny)) == 0 && !wide) refused(event, "field");
  if (found == kFloat || found == kInt) {
    const double real = number(value);
    if (!std::isfinite(real)) refused(event, "field");
    if (record != nullptr && record->count < EventRecord::kValues) record->values[record->count++] = real;
  } else if (found == kStr && text_length(value) > kLongestText) {
    refused(event, "size");
  }
}

inline void Contract::check_fields(PyObject* event, PyObject* payload, const Row& row, EventRecord* record) const {
  for (const Field& field : row.fields) {
    PyObject* const value = field.member.of(payload);
    if (record != nullptr || !is_plain(value, field.allowed)) [[unlikely]]
      check_field(event, value, field.allowed, record);
  }
}

inline void Contract::describe(PyObject* event, PyObject* payload, const Row& row, Entry& entry) const {
  entry.batched = row.batched;
  if (row.may_drop) entry.can_drop = can_drop_.of(event) == Py_True;
  if (!row.by_key) return;
  entry.can_collapse = can_collapse_.of(event) == Py_True;
  if (row.has_key) {
    PyObject* const key = row.key.of(payload);
    entry.key = text_of(key);
    if (entry.key.data() == nullptr) {
      PyErr_Clear();
      refused(event, "payload");
    }
    entry.key_owner = Py_NewRef(key);
  }
  if (row.hashed) entry.hash = key_hash(entry.type, entry.key);
}

const Row& Contract::check(PyObject* event, Entry& entry, bool open) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(event)) != event_class_.ptr()) refused(event, "not an event");
  if (!open) refused(event, "stopped");
  const std::uint32_t index = index_of(type_.of(event));
  if (index == UINT32_MAX) refused(event, "type");
  const Row& row = *rows[index];
  PyObject* const priority = priority_.of(event);
  if (priority != priorities_[row.lane].ptr() && (!PyLong_Check(priority) || PyLong_AsLong(priority) != row.lane)) {
    PyErr_Clear();
    refused(event, "priority");
  }
  const double moment = number(timestamp_.of(event));
  if (!(moment > 0 && std::isfinite(moment))) refused(event, "timestamp");
  PyObject* const payload = payload_.of(event);
  if (reinterpret_cast<PyObject*>(Py_TYPE(payload)) != row.payload.ptr()) refused(event, "payload");
  EventRecord* record = row.compiled ? new EventRecord{} : nullptr;
  entry.record = record;
  check_fields(event, payload, row, record);
  if (row.deep) look(nb::handle(event));
  entry.type = index;
  describe(event, payload, row, entry);
  if (record != nullptr) {
    record->timestamp = moment;
    record->type = index;
    record->key = entry.hash;
  }
  return row;
}

void Contract::tell(const Row& row, PyObject* event, std::uint64_t began) const {
  PyObject* const payload = payload_.of(event);
  row.watch->on_published(text_of(row.key.of(payload)), number(row.price.of(payload)), began);
}

void Contract::clear() {
  refuse.reset();
  look.reset();
  for (auto& row : rows) {
    row->handlers.clear();
    row->watch = nullptr;
    row->watcher.reset();
  }
}

void Contract::end() {
  each_object([](nb::object& object) { object.reset(); });
  rows.clear();
}

void Contract::abandon() {
  each_object([](nb::object& object) { object.release(); });
  for (auto& row : rows) static_cast<void>(row.release());
}

}  // namespace qts::events
