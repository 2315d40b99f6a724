// The contract of an event, checked at publish: type, priority, timestamp, and the payload field by
// field. Everything here runs with the GIL.
#pragma once

#include "bindings.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "qts/lanes.hpp"
#include "tick_watch.hpp"

namespace qts::events {

// What a compiled handler gets: the numbers of a payload, in the order of its fields.
struct EventRecord {
  static constexpr std::size_t kValues = 8;
  std::uint64_t sequence;
  std::uint64_t key;  // hash of type and key
  double timestamp;
  std::uint32_t type;
  std::uint32_t count;  // of values
  double values[kValues];
};
static_assert(sizeof(EventRecord) == 96);

enum class Kind : std::uint8_t { plain, batch, rows, managed, compiled };

struct Handler {
  Kind kind = Kind::plain;
  nb::object callable;
  vectorcallfunc call = PyObject_Vectorcall;  // the callable's own, where it has one
  void (*function)(const EventRecord*, void*) = nullptr;
  void* state = nullptr;
  bool essential = false;  // goes on when only the critical is handled
};

// A field of a frozen struct. The struct keeps the value alive, so what `of` gives is borrowed.
class Member {
 public:
  Member() = default;
  Member(nb::handle of_class, const char* name);

  PyObject* of(PyObject* object) const {
    if (offset_ > 0) [[likely]]
      if (PyObject* value = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_)) [[likely]]
        return value;
    return by_name(object);
  }
  nb::object& name() { return name_; }

 private:
  PyObject* by_name(PyObject* object) const;

  nb::object name_;
  Py_ssize_t offset_ = 0;  // 0: not known, ask by name
};

struct Field {
  Member member;
  unsigned allowed;  // see kStr and its neighbours
};
constexpr unsigned kStr = 1, kInt = 2, kFloat = 4, kBool = 8, kNone = 16, kAny = 32;

// One type of event.
struct Row {
  nb::object payload;  // its class
  std::vector<Field> fields;
  std::vector<Handler> handlers;
  Member key;
  std::uint64_t limit = 0;  // ticks; 0: none
  std::uint8_t lane = 0;
  bool deep = false;       // Python looks at the payload too
  bool has_key = false;
  bool may_drop = false;   // the lane's policy asks whether the event may go
  bool by_key = false;     // the lane's policy, or a batch, asks for the key
  bool hashed = false;     // and not only the policy of a full lane, which finds out by itself
  bool batched = false;
  bool compiled = false;      // some handler is
  bool needs_python = false;  // some handler is not
  nb::object watcher;         // looks at every event while it is published; owns `watch`
  TickWatch* watch = nullptr;
  Member price;
};

class Contract {
 public:
  Contract(nb::object event_class, nb::dict types);

  // What a queue keeps of the event, and its type; raises through `refuse` what does not fit. The
  // entry owns its key and its record, and not yet the event.
  const Row& check(PyObject* event, Entry& entry, bool open);
  [[noreturn]] void refused(PyObject* event, const char* why) const;
  const Row& row_of(PyObject* event);
  // Tells whoever watches the type of the event that it is being published, since `began`.
  void tell(const Row& row, PyObject* event, std::uint64_t began) const;

  template <class Visit>
  int each_reference(Visit&& visit) {
    for (nb::object* object : {&refuse, &look, &event_class_})
      if (object->is_valid())
        if (const int result = visit(object->ptr()); result != 0) return result;
    return 0;
  }
  void clear();    // breaks cycles: callbacks and handlers
  void end();      // with the GIL: nothing of the interpreter is left here
  void abandon();  // the interpreter is gone: nothing can be let go of any more

  nb::object refuse, look;
  std::vector<std::unique_ptr<Row>> rows;

 private:
  // Types by the identity of their names: most events of a type share one string.
  struct Known {
    nb::object name;
    std::uint32_t index = 0;
  };
  template <class Visit>
  void each_object(Visit&& visit) {
    for (nb::object* object : {&refuse, &look, &event_class_, static_cast<nb::object*>(&types_)}) visit(*object);
    for (Known& known : known_) visit(known.name);
    for (nb::object& priority : priorities_) visit(priority);
    for (Member* member : {&type_, &priority_, &timestamp_, &payload_, &can_collapse_, &can_drop_}) visit(member->name());
  }
  std::uint32_t index_of(PyObject* name);
  void check_field(PyObject* event, PyObject* value, unsigned allowed, EventRecord* record) const;
  void check_fields(PyObject* event, PyObject* payload, const Row& row, EventRecord* record) const;
  void describe(PyObject* event, PyObject* payload, const Row& row, Entry& entry) const;

  nb::object event_class_;
  nb::dict types_;
  Member type_, priority_, timestamp_, payload_, can_collapse_, can_drop_;
  std::array<nb::object, Lanes::kLanes> priorities_;
  std::array<Known, 64> known_;
};

// With the GIL: lets go of an event, its key and its record.
inline void release(Entry& entry) {
  Py_XDECREF(static_cast<PyObject*>(entry.event));
  Py_XDECREF(static_cast<PyObject*>(entry.key_owner));
  if (entry.record != nullptr) [[unlikely]]
    delete static_cast<EventRecord*>(entry.record);
}

void bind_maker(nb::module_& m);

}  // namespace qts::events
