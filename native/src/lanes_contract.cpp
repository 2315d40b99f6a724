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

// Returns an empty view and sets an error when the value cannot be encoded as UTF-8.
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

// The quick check that most values pass: a finite float, or a text that is not too long.
bool passes_quickly(PyObject* value, unsigned allowed) {
  if (PyFloat_CheckExact(value)) return (allowed & kFloat) != 0 && std::isfinite(float_value(value));
  return PyUnicode_CheckExact(value) && (allowed & kStr) != 0 && text_length(value) <= kLongestText;
}

unsigned kind_bit(PyObject* value) {
  if (PyUnicode_Check(value)) return kStr;
  if (PyFloat_Check(value)) return kFloat;
  if (PyBool_Check(value)) return kBool;
  if (PyLong_Check(value)) return kInt;
  return value == Py_None ? kNone : 0;
}

}  // namespace

// The class stores its fields in slots; the full API exposes a slot's offset, so that reading is one load.
FieldAccessor::FieldAccessor(nb::handle of_class, const char* name) : name_(nb::steal(PyUnicode_InternFromString(name))) {
#if !defined(Py_LIMITED_API)
  const nb::object found = nb::getattr(of_class, name, nb::none());
  if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) return;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member;
  if (member->type == T_OBJECT_EX) offset_ = member->offset;
#else
  static_cast<void>(of_class);
#endif
}

PyObject* FieldAccessor::get_by_name(PyObject* object) const {
  PyObject* value = PyObject_GetAttr(object, name_.ptr());
  if (value == nullptr) throw nb::python_error();
  Py_DECREF(value);
  return value;
}

Contract::Contract(nb::object event_class, nb::dict types)
    : event_class_(std::move(event_class)), type_numbers_(std::move(types)), type_(event_class_, "event_type"),
      priority_(event_class_, "priority"), timestamp_(event_class_, "timestamp"), payload_(event_class_, "payload"),
      can_collapse_(event_class_, "can_collapse"), can_drop_(event_class_, "can_drop"), event_id_(event_class_, "event_id"),
      source_(event_class_, "source"), retry_count_(event_class_, "retry_count"), max_retries_(event_class_, "max_retries") {
  for (std::size_t i = 0; i < Lanes::kLanes; ++i) priorities_[i] = nb::int_(i);
}

void Contract::refuse(PyObject* event, const char* reason) const {
  if (on_refused.is_valid()) on_refused(nb::handle(event), reason);
  throw nb::value_error(reason);
}

inline std::uint32_t Contract::index_of(PyObject* name) {
  CachedName& cached = cached_names_[(reinterpret_cast<std::uintptr_t>(name) >> 4) % cached_names_.size()];
  if (cached.name.ptr() == name) [[likely]]
    return cached.index;
  if (!PyUnicode_Check(name)) return UINT32_MAX;
  PyObject* found = PyDict_GetItemWithError(type_numbers_.ptr(), name);
  if (found == nullptr) {
    if (PyErr_Occurred()) throw nb::python_error();
    return UINT32_MAX;
  }
  cached = {nb::borrow(name), static_cast<std::uint32_t>(PyLong_AsUnsignedLong(found))};
  return cached.index;
}

const EventTypeInfo& Contract::info_of(PyObject* event) { return *types[index_of(type_.get(event))]; }

void Contract::check_field(PyObject* event, PyObject* value, unsigned allowed, EventRecord* record) const {
  const unsigned found = kind_bit(value);
  const bool wide = found == kInt && (allowed & kFloat) != 0;
  if ((allowed & (found | kAny)) == 0 && !wide) refuse(event, "field");
  if (found == kFloat || found == kInt) {
    const double real = number(value);
    if (!std::isfinite(real)) refuse(event, "field");
    if (record != nullptr && record->count < EventRecord::kValues) record->values[record->count++] = real;
  } else if (found == kStr && text_length(value) > kLongestText) {
    refuse(event, "size");
  }
}

inline void Contract::check_fields(PyObject* event, PyObject* payload, const EventTypeInfo& info, EventRecord* record) const {
  for (const FieldRule& rule : info.fields) {
    PyObject* const value = rule.accessor.get(payload);
    if (record != nullptr || !passes_quickly(value, rule.allowed)) [[unlikely]]
      check_field(event, value, rule.allowed, record);
  }
}

inline void Contract::describe(PyObject* event, PyObject* payload, const EventTypeInfo& info, LaneEntry& entry) const {
  entry.batched = info.batched;
  if (info.needs_can_drop) entry.can_drop = can_drop_.get(event) == Py_True;
  if (!info.needs_key) return;
  entry.can_collapse = can_collapse_.get(event) == Py_True;
  if (info.has_key) {
    PyObject* const key = info.key.get(payload);
    entry.key = text_of(key);
    if (entry.key.data() == nullptr) {
      PyErr_Clear();
      refuse(event, "payload");
    }
    entry.key_owner = Py_NewRef(key);
  }
  if (info.needs_hash) entry.hash = key_hash(entry.type, entry.key);
}

// The fields that retries, dead letters and acknowledgements rely on.
inline void Contract::check_common_fields(PyObject* event) {
  PyObject* const id = event_id_.get(event);
  if (!PyUnicode_CheckExact(id) && !PyUnicode_Check(id)) [[unlikely]]
    refuse(event, "event_id");
  const auto passes = [&](PyObject* value, nb::object& checked, bool (*fits)(PyObject*), const char* name) {
    if (value == checked.ptr()) [[likely]]
      return;
    if (!fits(value)) refuse(event, name);
    checked = nb::borrow(value);
  };
  const auto is_text = [](PyObject* value) { return PyUnicode_Check(value) != 0; };
  const auto is_count = [](PyObject* value) {
    if (!PyLong_Check(value) || PyBool_Check(value)) return false;
    const long count = PyLong_AsLong(value);
    if (PyErr_Occurred() != nullptr) PyErr_Clear();
    return count >= 0;
  };
  passes(source_.get(event), checked_source_, is_text, "source");
  passes(retry_count_.get(event), checked_retry_count_, is_count, "retry_count");
  passes(max_retries_.get(event), checked_max_retries_, is_count, "max_retries");
}

const EventTypeInfo& Contract::check(PyObject* event, LaneEntry& entry, bool open) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(event)) != event_class_.ptr()) refuse(event, "not an event");
  if (!open) refuse(event, "stopped");
  const std::uint32_t index = index_of(type_.get(event));
  if (index == UINT32_MAX) refuse(event, "type");
  const EventTypeInfo& info = *types[index];
  PyObject* const priority = priority_.get(event);
  if (priority != priorities_[info.lane].ptr() && (!PyLong_Check(priority) || PyLong_AsLong(priority) != info.lane)) {
    PyErr_Clear();
    refuse(event, "priority");
  }
  const double timestamp = number(timestamp_.get(event));
  if (!(timestamp > 0 && std::isfinite(timestamp))) refuse(event, "timestamp");
  check_common_fields(event);
  PyObject* const payload = payload_.get(event);
  if (reinterpret_cast<PyObject*>(Py_TYPE(payload)) != info.payload.ptr()) refuse(event, "payload");
  EventRecord* record = info.compiled ? new EventRecord{} : nullptr;
  entry.record = record;
  check_fields(event, payload, info, record);
  if (info.checked_in_python) check_payload(nb::handle(event));
  entry.type = index;
  describe(event, payload, info, entry);
  if (record != nullptr) {
    record->timestamp = timestamp;
    record->type = index;
    record->key = entry.hash;
  }
  return info;
}

void Contract::notify_watchers(const EventTypeInfo& info, PyObject* event, std::uint64_t began) const {
  PyObject* const payload = payload_.get(event);
  for (TickWatcher* const watcher : info.tick_watchers)
    watcher->on_published(text_of(info.key.get(payload)), number(info.price.get(payload)), began);
}

void Contract::clear() {
  on_refused.reset();
  check_payload.reset();
  for (auto& info : types) {
    info->handlers.clear();
    info->tick_watchers.clear();
    info->watchers.clear();
  }
}

void Contract::release_all() {
  each_object([](nb::object& object) { object.reset(); });
  types.clear();
}

void Contract::leak_all() {
  each_object([](nb::object& object) { object.release(); });
  for (auto& info : types) static_cast<void>(info.release());
}

}  // namespace qts::events
