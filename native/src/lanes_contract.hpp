// Contract: checks an event at publish: type, priority, timestamp, and the payload field by field.
//
// Thread contract: everything here runs with the GIL.
#pragma once

#include "bindings.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "qts/lanes.hpp"
#include "tick_watcher.hpp"

namespace qts::events {

// The input of a compiled handler: the numbers of a payload, in the order of its fields.
struct EventRecord {
  static constexpr std::size_t kValues = 8;
  std::uint64_t sequence;
  std::uint64_t key;  // hash of type and key
  double timestamp;
  std::uint32_t type;
  std::uint32_t count;  // how many of the values are set
  double values[kValues];
};
static_assert(sizeof(EventRecord) == 96);

enum class HandlerKind : std::uint8_t { plain, batch, rows, managed, compiled };

struct Handler {
  HandlerKind kind = HandlerKind::plain;
  nb::object callable;
  vectorcallfunc call = PyObject_Vectorcall;  // or the callable's vectorcall function
  void (*function)(const EventRecord*, void*) = nullptr;
  void* state = nullptr;
  bool essential = false;  // also runs at the CRITICAL_ONLY level
};

// Reads a field of a frozen struct. The struct keeps the value alive, so `get` returns a borrowed reference.
class FieldAccessor {
 public:
  FieldAccessor() = default;
  FieldAccessor(nb::handle of_class, const char* name);

  PyObject* get(PyObject* object) const {
    if (offset_ > 0) [[likely]]
      if (PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_)) [[likely]]
        return value;
    return get_by_name(object);
  }
  nb::object& name() { return name_; }

 private:
  PyObject* get_by_name(PyObject* object) const;

  nb::object name_;
  Py_ssize_t offset_ = 0;  // 0: unknown, read by name
};

struct FieldRule {
  FieldAccessor accessor;
  unsigned allowed;  // kStr and so on, or-ed
};
constexpr unsigned kStr = 1, kInt = 2, kFloat = 4, kBool = 8, kNone = 16, kAny = 32;

// One event type, with its handlers.
struct EventTypeInfo {
  nb::object payload;  // its class
  std::vector<FieldRule> fields;
  std::vector<Handler> handlers;
  FieldAccessor key;
  std::uint64_t time_limit = 0;  // ticks; 0: none
  std::uint8_t lane = 0;
  bool checked_in_python = false;  // the payload has a check in Python too
  bool has_key = false;
  bool needs_can_drop = false;  // by the lane's policy
  bool needs_key = false;       // by the lane's policy, or by a batch
  bool needs_hash = false;      // at publish; a full lane computes it when it needs it
  bool batched = false;
  bool has_window = false;    // its async handlers limit how many of its events are in flight
  bool compiled = false;      // some handler is
  bool needs_python = false;  // some handler is not
  std::vector<nb::object> watchers;         // own tick_watchers
  std::vector<TickWatcher*> tick_watchers;  // called with every event while it is published
  FieldAccessor price;
};

class Contract {
 public:
  Contract(nb::object event_class, nb::dict types);

  // Fills in the entry of an event and returns its type; raises through `on_refused` when a check fails.
  // The entry owns its key and its record, but not yet the event.
  const EventTypeInfo& check(PyObject* event, LaneEntry& entry, bool open);
  [[noreturn]] void refuse(PyObject* event, const char* reason) const;
  const EventTypeInfo& info_of(PyObject* event);
  // Calls the watchers of the event's type; publishing began at the tick `began`.
  void notify_watchers(const EventTypeInfo& info, PyObject* event, std::uint64_t began) const;

  template <class Visit>
  int each_reference(Visit&& visit) {
    for (nb::object* object : {&on_refused, &check_payload, &event_class_})
      if (object->is_valid())
        if (const int result = visit(object->ptr()); result != 0) return result;
    return 0;
  }
  void clear();        // releases callbacks and handlers, to break reference cycles
  void release_all();  // with the GIL: releases every Python object
  void leak_all();     // after the interpreter has ended: releases nothing

  nb::object on_refused, check_payload;
  std::vector<std::unique_ptr<EventTypeInfo>> types;

 private:
  // Caches type numbers by the identity of the name: most events of a type share one string.
  struct CachedName {
    nb::object name;
    std::uint32_t index = 0;
  };
  template <class Visit>
  void each_object(Visit&& visit) {
    for (nb::object* object : {&on_refused, &check_payload, &event_class_, static_cast<nb::object*>(&type_numbers_)}) visit(*object);
    for (CachedName& cached : cached_names_) visit(cached.name);
    for (nb::object& priority : priorities_) visit(priority);
    for (FieldAccessor* field : {&type_, &priority_, &timestamp_, &payload_, &can_collapse_, &can_drop_, &event_id_, &source_,
                                 &retry_count_, &max_retries_})
      visit(field->name());
    for (nb::object* checked : {&checked_source_, &checked_retry_count_, &checked_max_retries_}) visit(*checked);
  }
  std::uint32_t index_of(PyObject* name);
  void check_common_fields(PyObject* event);
  void check_field(PyObject* event, PyObject* value, unsigned allowed, EventRecord* record) const;
  void check_fields(PyObject* event, PyObject* payload, const EventTypeInfo& info, EventRecord* record) const;
  void describe(PyObject* event, PyObject* payload, const EventTypeInfo& info, LaneEntry& entry) const;

  nb::object event_class_;
  nb::dict type_numbers_;
  FieldAccessor type_, priority_, timestamp_, payload_, can_collapse_, can_drop_, event_id_, source_, retry_count_, max_retries_;
  nb::object checked_source_, checked_retry_count_, checked_max_retries_;  // the last value that passed: mostly the same object
  std::array<nb::object, Lanes::kLanes> priorities_;
  std::array<CachedName, 64> cached_names_;
};

// Releases an event, its key and its record; with the GIL.
inline void release(LaneEntry& entry) {
  Py_XDECREF(static_cast<PyObject*>(entry.event));
  Py_XDECREF(static_cast<PyObject*>(entry.key_owner));
  if (entry.record != nullptr) [[unlikely]]
    delete static_cast<EventRecord*>(entry.record);
}

void bind_event_factory(nb::module_& m);

}  // namespace qts::events
