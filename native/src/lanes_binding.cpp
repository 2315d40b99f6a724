// qts._native.Lanes: the lanes as Python drives them. Threads, the GIL and calls of handlers are
// here, since they alone need the interpreter.
//
// The GIL is never asked for under a lane's lock, and no lane's lock is held while a handler runs:
// publishing can therefore never wait for a handler, except for room in a lane that blocks.
#include "bindings.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "qts/lanes.hpp"

namespace {

using qts::Entry;

constexpr std::size_t kValues = 8;

// What a compiled handler gets: the numbers of a payload, in the order of its fields.
struct EventRecord {
  std::uint64_t sequence;
  std::uint64_t key;  // hash of type and key
  double timestamp;
  std::uint32_t type;
  std::uint32_t count;  // of values
  double values[kValues];
};
static_assert(sizeof(EventRecord) == 96);

enum class Kind : std::uint8_t { plain, batch, managed, compiled };

struct Handler {
  Kind kind;
  nb::object callable;
  void (*function)(const EventRecord*, void*) = nullptr;
  void* state = nullptr;
  bool essential = false;  // goes on when only the critical is handled
};

struct Field {
  nb::object name;
  unsigned allowed;  // see kStr and its neighbours
};
constexpr unsigned kStr = 1, kInt = 2, kFloat = 4, kBool = 8, kNone = 16, kAny = 32;
constexpr Py_ssize_t kLongestText = 1 << 20;
constexpr std::size_t kMostDropKeys = 10'000;

struct Row {
  nb::object payload;  // its class
  nb::object key;      // name of the payload's field; None: no key
  std::vector<Field> fields;
  std::vector<Handler> handlers;
  std::uint64_t limit = 0;  // ticks; 0: none
  std::uint8_t lane = 0;
  bool deep = false;  // Python looks at the payload too
  bool batched = false;
  bool compiled = false;      // some handler is
  bool needs_python = false;  // some handler is not
};

struct Report {
  const char* what;
  std::uint32_t type;
  std::uint32_t handler;
  std::uint64_t ns;
};

struct Worker {
  std::size_t number = 0;
  std::vector<std::uint8_t> lanes;
  std::array<qts::Cursor, qts::Lanes::kLanes> cursors;
  qts::Turn::Seat seat;
  std::atomic<std::uint32_t> type{0}, handler{0};
  std::atomic<std::uint64_t> began{0};
  std::atomic<bool> broken{false};  // a drill: the thread fails at its next round
  PyThreadState* thread_state = nullptr;

  void drill() {
    if (broken.exchange(false)) throw std::runtime_error("a planted fault");
  }
};

thread_local bool inside_handler = false;

// Attribute names, interned once; the module lives as long as the process.
struct Names {
  PyObject* event_type = PyUnicode_InternFromString("event_type");
  PyObject* priority = PyUnicode_InternFromString("priority");
  PyObject* timestamp = PyUnicode_InternFromString("timestamp");
  PyObject* payload = PyUnicode_InternFromString("payload");
  PyObject* can_collapse = PyUnicode_InternFromString("can_collapse");
  PyObject* can_drop = PyUnicode_InternFromString("can_drop");
};
const Names& names() {
  static const Names all;
  return all;
}

nb::object attribute(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

struct Options {
  std::array<qts::LaneSpec, qts::Lanes::kLanes> specs;
  std::size_t audit = 0;
  std::uint64_t hold_ns = 1'000'000;
  std::uint64_t hold_events = 1000;
  std::uint64_t patience_ns = 5'000'000;
  std::uint64_t gil_wait_ns = 2'000'000;  // P0 names whoever made it wait longer
  std::size_t background = 2;             // workers that may be in P3 handlers at once
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const Options& options, nb::object event_class, nb::dict types)
      : lanes(options.specs, options.audit, options.patience_ns), options_(options),
        event_class_(std::move(event_class)), types_(std::move(types)) {
    const qts::TickScale scale = qts::tick_scale();
    hold_ = scale.span_ticks(options.hold_ns);
    scale_ = scale;
    ns_per_tick_ = 1.0 / scale.ticks_per_ns();
  }
  ~Core() { discard(); }

  qts::Lanes lanes;
  std::vector<std::unique_ptr<Row>> rows;
  nb::object refuse, check, failed, failed_batch;
  std::atomic<bool> halt{false}, open{true}, critical_only{false};

  // With the GIL. False: full.
  bool put(PyObject* event, bool over) {
    Entry entry;
    const Row* accepted = nullptr;
    try {
      accepted = &accept(event, entry);
    } catch (...) {
      entry.event = nullptr;
      release(entry);
      throw;
    }
    const Row& row = *accepted;
    qts::Lane& lane = lanes[row.lane];
    Py_INCREF(event);
    qts::Displaced displaced;
    const qts::Put result = lane.queue.put(entry, displaced, over);
    if (result != qts::Put::entered) release(entry);
    if (displaced.dropped) note_drop(displaced.entry);
    if (displaced.any) release(displaced.entry);
    if (result == qts::Put::entered) lanes.bell(row.lane).ring();
    if (dead_count_.load(std::memory_order_relaxed) != 0) bury();
    return result != qts::Put::full;
  }

  void publish(PyObject* event, std::optional<double> timeout) {
    if (put(event, inside_handler)) [[likely]]
      return;
    const nb::object type = attribute(event, names().event_type);
    qts::Lane& lane = lanes[rows[index_of(type.ptr())]->lane];
    lane.queue.blocked();
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout.value_or(0));
    while (true) {
      bool late = false;
      {
        const nb::gil_scoped_release released;
        lane.queue.wait_for_room(std::chrono::milliseconds(50));
        late = timeout && std::chrono::steady_clock::now() >= end;
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (put(event, false)) return;
      if (late) refused(event, "full");
    }
  }

  // (type, key) of what was dropped, and how often; with the GIL.
  std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> drops;

  bool try_publish(PyObject* event) { return put(event, inside_handler); }

  std::size_t publish_many(nb::handle events, std::optional<double> timeout) {
    const nb::object items = nb::steal(PySequence_Fast(events.ptr(), "publish_many takes a list of events"));
    if (!items.is_valid()) throw nb::python_error();
    const Py_ssize_t count = PySequence_Size(items.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
      const nb::object event = nb::steal(PySequence_GetItem(items.ptr(), i));
      publish(event.ptr(), timeout);
    }
    return static_cast<std::size_t>(count);
  }

  // One event, or one batch, by hand. -1: a higher lane comes first; 0: nothing is ready.
  int step(std::size_t lane) {
    if (lane >= qts::Lanes::kLanes) throw nb::value_error("a lane is 0, 1, 2 or 3");
    for (std::size_t higher = 0; higher < lane; ++higher)
      if (!by_hand_.cursors[higher].empty() || lanes[higher].ready(qts::ticks())) return -1;
    qts::Cursor& cursor = by_hand_.cursors[lane];
    if (lanes[lane].paused.load(std::memory_order_relaxed)) return 0;
    if (cursor.empty() && (!lanes[lane].ready(qts::ticks()) || cursor.fill(lanes[lane]) == 0)) return 0;
    return static_cast<int>(handle(by_hand_, lane));
  }

  void p0_loop() {
    Worker& worker = *workers[0];
    worker.thread_state = new_thread_state();
    qts::Lane& lane = lanes[0];
    while (!halt.load(std::memory_order_relaxed)) {
      worker.drill();
      if (lane.queue.size() == 0 || lane.paused.load(std::memory_order_relaxed)) {
        lanes.bell(0).sleep(std::chrono::milliseconds(50), [&] {
          return halt.load() || (lane.queue.size() != 0 && !lane.paused.load());
        });
        continue;
      }
      lanes.p0_began.store(qts::Lanes::kP0Waits, std::memory_order_relaxed);
      drain_p0(worker, lane);
      lanes.p0_began.store(0, std::memory_order_relaxed);
    }
    end_thread_state(worker);
  }

  void worker_loop(Worker& worker) {
    worker.thread_state = new_thread_state();
    worker.seat.sit();
    while (!halt.load(std::memory_order_relaxed)) {
      worker.drill();
      const int lane = choose(worker);
      if (lane >= 0) run(worker, static_cast<std::uint8_t>(lane));
      else rest(worker);
    }
    end_thread_state(worker);
  }

  std::size_t add_worker(std::vector<std::uint8_t> served) {
    workers.push_back(std::make_unique<Worker>());
    workers.back()->number = workers.size() - 1;
    if (served.front() == 1) ++p1_workers_;
    workers.back()->lanes = std::move(served);
    return workers.size() - 1;
  }

  void start(std::optional<int> p0_cpu, bool realtime) {
    halt.store(false);
    const auto self = shared_from_this();
    for (auto& worker : workers) {
      Worker* mine = worker.get();
      alive_.fetch_add(1);
      threads_.emplace_back([self, mine, p0_cpu, realtime] {
        if (mine->number == 0) self->claim_cpu(p0_cpu, realtime);
        self->live(*mine);
        self->alive_.fetch_sub(1);
      });
    }
    started_ = true;
  }

  // A thread's life. What a handler raises is its own affair; an error of the lane itself ends the
  // thread, and is there to be seen.
  void live(Worker& worker) {
    try {
      if (worker.number == 0) p0_loop();
      else worker_loop(worker);
    } catch (const std::exception& error) {
      lanes.p0_began.store(0);
      lanes.turn.leave(worker.seat);
      end_thread_state(worker);
      const std::lock_guard hold(reports_lock_);
      faults_.emplace_back(worker.number, error.what());
    }
  }
  std::vector<std::pair<std::size_t, std::string>> take_faults() {
    std::vector<std::pair<std::size_t, std::string>> out;
    const std::lock_guard hold(reports_lock_);
    out.swap(faults_);
    return out;
  }
  // A new thread in the place of one that a fault has ended.
  void revive(std::size_t number) {
    Worker* mine = workers.at(number).get();
    alive_.fetch_add(1);
    threads_.emplace_back([self = shared_from_this(), mine] {
      self->live(*mine);
      self->alive_.fetch_sub(1);
    });
  }
  void break_worker(std::size_t number) {
    workers.at(number)->broken.store(true);
    lanes.ring_all();
  }

  // With the GIL released. False: a handler did not return in time; its thread is left behind.
  bool join(double seconds) {
    halt.store(true);
    lanes.ring_all();
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (alive_.load() != 0 && std::chrono::steady_clock::now() < end) {
      lanes.ring_all();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    const bool all = alive_.load() == 0;
    for (std::thread& thread : threads_)
      if (all) thread.join();
      else thread.detach();
    threads_.clear();
    return all;
  }

  void settle(std::size_t lane, std::uint64_t sequence, bool dead) {
    const auto found = in_flight_[lane].find(sequence);
    if (found == in_flight_[lane].end()) {
      early_[lane][sequence] = dead;  // done before its handler has said None
      return;
    }
    Entry entry = found->second.first;
    const std::uint64_t began = found->second.second;
    in_flight_[lane].erase(found);
    finish(lanes[lane], entry, began, dead);
  }

  std::vector<Report> take_reports() {
    std::vector<Report> out;
    const std::lock_guard hold(reports_lock_);
    out.swap(reports_);
    return out;
  }
  void bury() {
    std::vector<Entry> dead;
    {
      const std::lock_guard hold(dead_lock_);
      dead.swap(dead_);
      dead_count_.store(0, std::memory_order_relaxed);
    }
    for (Entry& entry : dead) release(entry);
  }

  std::uint32_t index_of(PyObject* type) {
    PyObject* found = PyDict_GetItemWithError(types_.ptr(), type);
    if (found == nullptr) {
      if (PyErr_Occurred()) throw nb::python_error();
      return UINT32_MAX;
    }
    return static_cast<std::uint32_t>(PyLong_AsUnsignedLong(found));
  }

  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<bool> pinned{false}, is_realtime{false};

  template <class Visit>
  int each_reference(Visit&& visit) {
    for (nb::object* object : {&refuse, &check, &failed, &failed_batch, &event_class_})
      if (object->is_valid())
        if (const int result = visit(object->ptr()); result != 0) return result;
    for (auto& row : rows)
      for (Handler& handler : row->handlers)
        if (handler.callable.is_valid())
          if (const int result = visit(handler.callable.ptr()); result != 0) return result;
    return 0;
  }
  void clear() {
    for (nb::object* object : {&refuse, &check, &failed, &failed_batch}) object->reset();
    for (auto& row : rows) row->handlers.clear();
  }

 private:
  // --- publishing -------------------------------------------------------------------------------

  [[noreturn]] void refused(PyObject* event, const char* why) {
    if (refuse.is_valid()) refuse(nb::handle(event), why);
    throw nb::value_error(why);
  }

  void note_drop(const Entry& entry) {
    std::pair key{entry.type, std::string(entry.key)};
    if (drops.size() >= kMostDropKeys && !drops.contains(key)) key.second = "...";
    ++drops[key];
  }

  const Row& accept(PyObject* event, Entry& entry) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(event)) != event_class_.ptr()) refused(event, "not an event");
    if (!open.load(std::memory_order_relaxed)) refused(event, "stopped");
    const nb::object type = attribute(event, names().event_type);
    const std::uint32_t index = PyUnicode_Check(type.ptr()) ? index_of(type.ptr()) : UINT32_MAX;
    if (index == UINT32_MAX) refused(event, "type");
    const Row& row = *rows[index];
    const nb::object priority = attribute(event, names().priority);
    if (!PyLong_Check(priority.ptr()) || PyLong_AsLong(priority.ptr()) != row.lane) {
      PyErr_Clear();
      refused(event, "priority");
    }
    const nb::object timestamp = attribute(event, names().timestamp);
    const double moment = number(timestamp.ptr());
    if (!(moment > 0 && std::isfinite(moment))) refused(event, "timestamp");
    const nb::object payload = attribute(event, names().payload);
    if (reinterpret_cast<PyObject*>(Py_TYPE(payload.ptr())) != row.payload.ptr()) refused(event, "payload");
    EventRecord* record = row.compiled ? new EventRecord{} : nullptr;
    entry.record = record;
    check_fields(event, payload.ptr(), row, record);
    if (row.deep) check(nb::handle(event));
    describe(event, payload.ptr(), row, index, entry);
    if (record != nullptr) {
      record->timestamp = moment;
      record->type = index;
      record->key = entry.hash;
    }
    entry.event = event;
    entry.published = qts::ticks();
    return row;
  }

  void describe(PyObject* event, PyObject* payload, const Row& row, std::uint32_t index, Entry& entry) {
    entry.type = index;
    entry.batched = row.batched;
    const qts::Policy policy = lanes[row.lane].queue.policy();
    using qts::Policy;
    if (policy == Policy::drop_oldest || policy == Policy::sample)
      entry.can_drop = attribute(event, names().can_drop).ptr() == Py_True;
    const bool keyed = policy == Policy::collapse || policy == Policy::drop_oldest || row.batched || row.compiled;
    if (!keyed) return;
    entry.can_collapse = attribute(event, names().can_collapse).ptr() == Py_True;
    if (row.key.is_none()) {
      entry.hash = qts::key_hash(index, {});
      return;
    }
    nb::object key = attribute(payload, row.key.ptr());
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key.ptr(), &length);
    if (text == nullptr) {
      PyErr_Clear();
      refused(event, "payload");
    }
    entry.key = {text, static_cast<std::size_t>(length)};
    entry.hash = qts::key_hash(index, entry.key);
    entry.key_owner = key.release().ptr();
  }

  static double number(PyObject* value) {
    if (PyFloat_Check(value)) return PyFloat_AsDouble(value);
    if (!PyLong_Check(value) || PyBool_Check(value)) return NAN;
    const double real = PyLong_AsDouble(value);
    if (real != -1.0 || PyErr_Occurred() == nullptr) return real;
    PyErr_Clear();  // too large
    return NAN;
  }

  void check_fields(PyObject* event, PyObject* payload, const Row& row, EventRecord* record) {
    for (const Field& field : row.fields) {
      const nb::object value = attribute(payload, field.name.ptr());
      const unsigned found = kind_of(value.ptr());
      const bool wide = found == kInt && (field.allowed & kFloat) != 0;
      if ((field.allowed & (found | kAny)) == 0 && !wide) refused(event, "field");
      if (found == kFloat || found == kInt) {
        const double real = number(value.ptr());
        if (!std::isfinite(real)) refused(event, "field");
        if (record != nullptr && record->count < kValues) record->values[record->count++] = real;
      } else if (found == kStr && PyUnicode_GetLength(value.ptr()) > kLongestText) {
        refused(event, "size");
      }
    }
  }

  static unsigned kind_of(PyObject* value) {
    if (PyUnicode_Check(value)) return kStr;
    if (PyFloat_Check(value)) return kFloat;
    if (PyBool_Check(value)) return kBool;
    if (PyLong_Check(value)) return kInt;
    return value == Py_None ? kNone : 0;
  }

  // --- handling ---------------------------------------------------------------------------------

  // The event at the cursor's place, or the batch that begins there. With the GIL.
  std::size_t handle(Worker& worker, std::size_t lane_number) {
    qts::Lane& lane = lanes[lane_number];
    qts::Cursor& cursor = worker.cursors[lane_number];
    const Row& row = *rows[cursor.rest()->type];
    const std::uint64_t began = qts::ticks();
    worker.type.store(cursor.rest()->type, std::memory_order_relaxed);
    worker.began.store(began, std::memory_order_relaxed);
    const bool outer = std::exchange(inside_handler, true);
    const std::size_t count = row.batched ? handle_batch(worker, lane, cursor, row, began)
                                          : handle_one(worker, lane, *cursor.rest(), row, began);
    inside_handler = outer;
    worker.began.store(0, std::memory_order_relaxed);
    cursor.advance(count);
    if (row.limit != 0 && qts::ticks() - began > row.limit) {
      lane.overran.fetch_add(1, std::memory_order_relaxed);
      report("overran", worker.type.load(), worker.handler.load(), qts::ticks() - began);
    }
    return count;
  }

  std::size_t handle_one(Worker& worker, qts::Lane& lane, Entry& entry, const Row& row, std::uint64_t began) {
    bool dead = false;
    for (std::size_t i = 0; i < row.handlers.size(); ++i) {
      const Handler& handler = row.handlers[i];
      if (skipped(row, handler)) continue;
      worker.handler.store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
      if (handler.kind == Kind::compiled) {
        run_compiled(handler, entry);
      } else if (handler.kind == Kind::managed) {
        const nb::object sequence = nb::int_(entry.sequence);
        PyObject* arguments[] = {static_cast<PyObject*>(entry.event), sequence.ptr()};
        const nb::object result = nb::steal(PyObject_Vectorcall(handler.callable.ptr(), arguments, 2, nullptr));
        if (!result.is_valid()) {
          dead |= ask(row, entry, i);
        } else if (result.is_none()) {
          const auto early = early_[row.lane].find(entry.sequence);
          if (early == early_[row.lane].end()) {
            in_flight_[row.lane].emplace(entry.sequence, std::pair{entry, began});
            return 1;
          }
          dead |= early->second;
          early_[row.lane].erase(early);
        } else {
          dead |= result.ptr() == Py_False;
        }
      } else {
        PyObject* arguments[] = {static_cast<PyObject*>(entry.event)};
        PyObject* result = PyObject_Vectorcall(handler.callable.ptr(), arguments, 1, nullptr);
        if (result != nullptr) [[likely]]
          Py_DECREF(result);
        else
          dead |= ask(row, entry, i);
      }
    }
    finish(lane, entry, began, dead);
    return 1;
  }

  std::size_t handle_batch(Worker& worker, qts::Lane& lane, qts::Cursor& cursor, const Row& row, std::uint64_t began) {
    Entry* first = cursor.rest();
    const Entry head = *first;
    // The others keep their order: only this group moves up.
    Entry* last = std::stable_partition(first, first + cursor.left(), [&](const Entry& each) {
      return each.type == head.type && (!lane.spec.by_key || (each.hash == head.hash && each.key == head.key));
    });
    const auto count = static_cast<std::size_t>(last - first);
    std::vector<bool> dead(count, false);
    for (std::size_t i = 0; i < row.handlers.size(); ++i) {
      if (skipped(row, row.handlers[i])) continue;
      worker.handler.store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
      if (row.handlers[i].kind == Kind::batch) call_batch(row, i, first, dead);
      else
        for (std::size_t k = 0; k < count; ++k) call_in_batch(row, i, first[k], dead, k);
    }
    for (std::size_t k = 0; k < count; ++k) finish(lane, first[k], began, dead[k]);
    return count;
  }

  // In LEVEL_3 prices still reach those that guard the money, and nobody else.
  bool skipped(const Row& row, const Handler& handler) const {
    return row.lane != 0 && !handler.essential && critical_only.load(std::memory_order_relaxed);
  }

  void call_in_batch(const Row& row, std::size_t i, Entry& entry, std::vector<bool>& dead, std::size_t k) {
    if (row.handlers[i].kind == Kind::compiled) return run_compiled(row.handlers[i], entry);
    PyObject* arguments[] = {static_cast<PyObject*>(entry.event)};
    const nb::object result = nb::steal(PyObject_Vectorcall(row.handlers[i].callable.ptr(), arguments, 1, nullptr));
    if (!result.is_valid() && ask(row, entry, i)) dead[k] = true;
  }

  void call_batch(const Row& row, std::size_t i, Entry* first, std::vector<bool>& dead) {
    nb::list events;
    for (std::size_t k = 0; k < dead.size(); ++k) events.append(nb::handle(static_cast<PyObject*>(first[k].event)));
    PyObject* arguments[] = {events.ptr()};
    const nb::object result = nb::steal(PyObject_Vectorcall(row.handlers[i].callable.ptr(), arguments, 1, nullptr));
    if (result.is_valid()) return;
    nb::python_error error;
    nb::list sequences;
    for (std::size_t k = 0; k < dead.size(); ++k) sequences.append(first[k].sequence);
    try {
      // Made anew: the handler may have changed the list it was given.
      nb::list again;
      for (std::size_t k = 0; k < dead.size(); ++k) again.append(nb::handle(static_cast<PyObject*>(first[k].event)));
      const nb::object verdicts = failed_batch(again, i, error.value(), sequences);
      for (std::size_t k = 0; k < dead.size(); ++k)
        if (verdicts[k].ptr() == Py_False) dead[k] = true;
    } catch (nb::python_error& second) {
      second.discard_as_unraisable("qts.events");
      std::fill(dead.begin(), dead.end(), true);
    }
  }

  // A handler has raised: Python tries again or gives up. True: dead.
  bool ask(const Row&, const Entry& entry, std::size_t handler) {
    nb::python_error error;
    try {
      return failed(nb::handle(static_cast<PyObject*>(entry.event)), handler, error.value(), entry.sequence).ptr() == Py_False;
    } catch (nb::python_error& second) {
      second.discard_as_unraisable("qts.events");
      return true;
    }
  }

  static void run_compiled(const Handler& handler, const Entry& entry) {
    auto* record = static_cast<EventRecord*>(entry.record);
    if (record == nullptr) return;  // published before the handler was there
    record->sequence = entry.sequence;
    handler.function(record, handler.state);
  }

  void measure(qts::Lane& lane, const Entry& entry, std::uint64_t began) {
    const std::uint64_t end = qts::ticks();
    const std::uint64_t wait = began > entry.published ? began - entry.published : 0;
    const double ns = ns_per_tick_;  // three exact conversions would cost more than the handler's call
    lane.wait.record(static_cast<std::uint64_t>(static_cast<double>(wait) * ns));
    lane.handling.record(static_cast<std::uint64_t>(static_cast<double>(end - began) * ns));
    lane.total.record(static_cast<std::uint64_t>(static_cast<double>(wait + (end - began)) * ns));
  }

  void finish(qts::Lane& lane, Entry& entry, std::uint64_t began, bool dead) {
    measure(lane, entry, began);
    lane.queue.settle(entry, dead);
    release(entry);
  }

  // With the GIL.
  static void release(Entry& entry) {
    Py_XDECREF(static_cast<PyObject*>(entry.event));
    Py_XDECREF(static_cast<PyObject*>(entry.key_owner));
    delete static_cast<EventRecord*>(entry.record);
    entry = Entry{};
  }

  // --- threads ----------------------------------------------------------------------------------

  static PyThreadState* new_thread_state() {
    PyGILState_Ensure();  // once for the thread's life: one per event would cost some 7 us
    return PyEval_SaveThread();
  }
  static void end_thread_state(Worker& worker) {
    if (!nb::is_alive()) return;
    PyEval_RestoreThread(worker.thread_state);
    PyGILState_Release(PyGILState_UNLOCKED);
  }

  void claim_cpu(std::optional<int> cpu, bool realtime) {
#if defined(__linux__)
    if (cpu) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<std::size_t>(*cpu), &set);
      pinned.store(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0);
    }
    if (realtime) {
      sched_param priority{};
      priority.sched_priority = 1;
      is_realtime.store(pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0);
    }
#else
    static_cast<void>(cpu);
    static_cast<void>(realtime);
#endif
  }

  void drain_p0(Worker& worker, qts::Lane& lane) {
    qts::Cursor& cursor = worker.cursors[0];
    bool holds_gil = false;
    while (!halt.load(std::memory_order_relaxed)) {
      if (cursor.empty() && (lane.paused.load(std::memory_order_relaxed) || cursor.fill(lane) == 0)) break;
      if (!holds_gil && !rows[cursor.rest()->type]->needs_python) {
        handle_without_gil(worker, lane, cursor);
        continue;
      }
      if (!holds_gil) take_gil_for_p0(worker);
      holds_gil = true;
      lanes.p0_began.store(qts::ticks(), std::memory_order_relaxed);
      handle(worker, 0);
    }
    if (holds_gil) worker.thread_state = PyEval_SaveThread();
  }

  void handle_without_gil(Worker& worker, qts::Lane& lane, qts::Cursor& cursor) {
    Entry& entry = *cursor.rest();
    const Row& row = *rows[entry.type];
    const std::uint64_t began = qts::ticks();
    lanes.p0_began.store(began, std::memory_order_relaxed);
    worker.type.store(entry.type, std::memory_order_relaxed);
    for (const Handler& handler : row.handlers) run_compiled(handler, entry);
    measure(lane, entry, began);
    lane.queue.settle(entry, false);
    {
      const std::lock_guard hold(dead_lock_);
      dead_.push_back(entry);
      dead_count_.fetch_add(1, std::memory_order_relaxed);
    }
    cursor.advance(1);
  }

  void take_gil_for_p0(Worker& worker) {
    const std::uint64_t asked = qts::ticks();
    const Worker* holder = at_work();
    const std::uint32_t type = holder != nullptr ? holder->type.load(std::memory_order_relaxed) : UINT32_MAX;
    const std::uint32_t handler = holder != nullptr ? holder->handler.load(std::memory_order_relaxed) : 0;
    PyEval_RestoreThread(worker.thread_state);
    const std::uint64_t waited = scale_->span_ns(qts::ticks() - asked);
    gil_wait.record(waited);
    if (waited > options_.gil_wait_ns) report("held", type, handler, qts::ticks() - asked);
  }

  // The worker whose turn it is, when it is in a handler: sleepers have lent theirs on.
  const Worker* at_work() const {
    const qts::Turn::Seat* owner = lanes.turn.owner();
    for (const auto& worker : workers)
      if (&worker->seat == owner && owner->event_began.load(std::memory_order_relaxed) != 0) return worker.get();
    return nullptr;
  }

  // The highest lane of the worker that has something to do; -1: none.
  int choose(Worker& worker) {
    const std::uint64_t now = qts::ticks();
    for (const std::uint8_t lane : worker.lanes) {
      if (lanes[lane].paused.load(std::memory_order_relaxed)) continue;
      const bool mine = !worker.cursors[lane].empty();
      if (!mine && !lanes[lane].ready(now)) continue;
      if (lane == 3 && background_.load(std::memory_order_relaxed) >= options_.background) continue;
      return lane;
    }
    return -1;
  }

  void rest(Worker& worker) {
    std::chrono::nanoseconds nap = std::chrono::milliseconds(20);
    const std::uint64_t now = qts::ticks();
    for (const std::uint8_t lane : worker.lanes)
      if (const std::uint64_t due = lanes[lane].due(); due > now)
        nap = std::min(nap, std::chrono::nanoseconds(scale_->span_ns(due - now) + 10'000));
    lanes.bell(worker.lanes.front()).sleep(nap, [&] { return halt.load() || choose(worker) >= 0; });
    // Nothing of ours although something waits (P3 is at its limit): do not spin.
    if (choose(worker) < 0) return;
  }

  // Something above can be handled and has somebody to do it: P1 a free worker, P2 this very one.
  bool higher_waits(std::uint8_t lane) const {
    if (lane < 2) return false;
    const std::uint64_t now = qts::ticks();
    if (lane == 3 && lanes[2].ready(now)) return true;
    return lanes[1].ready(now) && p1_busy_.load(std::memory_order_relaxed) < p1_workers_;
  }

  void run(Worker& worker, std::uint8_t lane) {
    while ((lanes.p0_wants() || higher_waits(lane)) && !halt.load(std::memory_order_relaxed)) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (lane == 3 && lanes[2].ready(qts::ticks())) return;
    }
    if (lane == 3 && background_.fetch_add(1) >= options_.background) {
      background_.fetch_sub(1);
      return;
    }
    worker.seat.lane = lane;
    if (lane == 1) p1_busy_.fetch_add(1);
    if (lanes.turn.take(worker.seat, halt)) {
      PyEval_RestoreThread(worker.thread_state);
      hold(worker, lane);
      worker.thread_state = PyEval_SaveThread();
    }
    lanes.turn.leave(worker.seat);
    if (lane == 1) p1_busy_.fetch_sub(1);
    if (lane == 3) background_.fetch_sub(1);
  }

  // Handles events until somebody else should have the GIL or the turn.
  void hold(Worker& worker, std::uint8_t lane) {
    qts::Cursor& cursor = worker.cursors[lane];
    const std::uint64_t since = qts::ticks();
    for (std::uint64_t events = 0; events < options_.hold_events;) {
      if (halt.load(std::memory_order_relaxed) || lanes[lane].paused.load(std::memory_order_relaxed)) return;
      if (cursor.empty() && (!lanes[lane].ready(qts::ticks()) || cursor.fill(lanes[lane]) == 0)) return;
      worker.seat.event_began.store(qts::ticks(), std::memory_order_relaxed);
      events += handle(worker, lane);
      if (!lanes.turn.keep(worker.seat) || lanes.p0_wants() || lanes.turn.wanted_above(lane)) return;
      if (higher_waits(lane)) return;
      if (qts::ticks() - since > hold_) return;
    }
  }

  void report(const char* what, std::uint32_t type, std::uint32_t handler, std::uint64_t spent) {
    const std::lock_guard hold(reports_lock_);
    if (reports_.size() < 1024) reports_.push_back({what, type, handler, scale_->span_ns(spent)});
  }

  // With the GIL: events that nobody will handle any more.
  void discard() {
    if (!nb::is_alive()) {
      for (nb::object* object : {&refuse, &check, &failed, &failed_batch, &event_class_}) object->release();
      types_.release();
      for (auto& row : rows) row.release();
      return;
    }
    const nb::gil_scoped_acquire gil;
    bury();
    Entry entry;
    for (std::size_t lane = 0; lane < qts::Lanes::kLanes; ++lane) {
      while (lanes[lane].queue.take(&entry, 1) != 0) release(entry);
      for (auto& [sequence, flying] : in_flight_[lane]) release(flying.first);
      drop_rest(by_hand_.cursors[lane]);
      for (auto& worker : workers) drop_rest(worker->cursors[lane]);
    }
    rows.clear();
    for (nb::object* object : {&refuse, &check, &failed, &failed_batch, &event_class_}) object->reset();
    types_.reset();
  }
  static void drop_rest(qts::Cursor& cursor) {
    for (; !cursor.empty(); cursor.advance(1)) release(*cursor.rest());
  }

  const Options options_;
  nb::object event_class_;
  nb::dict types_;
  std::optional<qts::TickScale> scale_;
  std::uint64_t hold_ = 0;
  double ns_per_tick_ = 1.0;
  Worker by_hand_;
  std::vector<std::thread> threads_;
  std::atomic<int> alive_{0};
  std::atomic<std::size_t> background_{0};
  std::atomic<std::size_t> p1_busy_{0};
  std::size_t p1_workers_ = 0;
  bool started_ = false;
  std::array<std::unordered_map<std::uint64_t, std::pair<Entry, std::uint64_t>>, qts::Lanes::kLanes> in_flight_;
  std::array<std::unordered_map<std::uint64_t, bool>, qts::Lanes::kLanes> early_;
  std::mutex reports_lock_;
  std::vector<Report> reports_;
  std::vector<std::pair<std::size_t, std::string>> faults_;
  std::mutex dead_lock_;
  std::vector<Entry> dead_;
  std::atomic<std::size_t> dead_count_{0};

 public:
  qts::Histogram gil_wait;  // of P0, ns
};

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
    core->refuse = std::move(refuse);
    core->check = std::move(check);
    core->failed = std::move(failed);
    core->failed_batch = std::move(failed_batch);
  }

  std::size_t add_type(std::uint8_t lane, nb::object payload, nb::object key,
                       const std::vector<std::pair<nb::str, unsigned>>& fields, bool deep, double limit_ms) {
    if (lane > 3) throw nb::value_error("a lane is 0, 1, 2 or 3");
    auto row = std::make_unique<Row>();
    row->lane = lane;
    row->payload = std::move(payload);
    row->key = std::move(key);
    for (const auto& [name, allowed] : fields) {
      PyObject* interned = PyUnicode_InternFromString(name.c_str());
      row->fields.push_back({nb::steal(interned), allowed});
    }
    row->deep = deep;
    row->limit = limit_ms > 0 ? qts::tick_scale().span_ticks(static_cast<std::uint64_t>(limit_ms * 1e6)) : 0;
    core->rows.push_back(std::move(row));
    return core->rows.size() - 1;
  }

  // [(kind, callable or address, state address, essential)]; only while no thread runs.
  void set_handlers(std::size_t type, const std::vector<std::tuple<std::string, nb::object, std::uint64_t, bool>>& handlers) {
    Row& row = *core->rows.at(type);
    row.handlers.clear();
    row.batched = row.compiled = row.needs_python = false;
    for (const auto& [kind, target, state, essential] : handlers) {
      Handler handler{Kind::plain, {}, nullptr, nullptr, essential};
      if (kind == "compiled") {
        handler.kind = Kind::compiled;
        handler.function = reinterpret_cast<void (*)(const EventRecord*, void*)>(nb::cast<std::uintptr_t>(target));
        handler.state = reinterpret_cast<void*>(static_cast<std::uintptr_t>(state));
        row.compiled = true;
      } else {
        handler.kind = kind == "batch" ? Kind::batch : kind == "managed" ? Kind::managed : Kind::plain;
        handler.callable = target;
        row.needs_python = true;
      }
      row.batched = row.batched || handler.kind == Kind::batch;
      row.handlers.push_back(std::move(handler));
    }
    row.needs_python = row.needs_python || row.handlers.empty();
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
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (true) {
      bool empty = true;
      for (const std::size_t lane : lanes) {
        const qts::LaneCounts now = core->lanes[lane].queue.counts();
        empty = empty && now.waiting + now.in_hand == 0;
      }
      if (empty || std::chrono::steady_clock::now() >= end) return empty;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
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

// A UUID (version 7): the time in ms, then a count that begins at a random place in each process.
std::string event_id() {
  static const std::uint64_t seed = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  static std::atomic<std::uint64_t> count{seed};
  static const std::uint16_t mark = static_cast<std::uint16_t>(std::random_device{}() & 0x0fff);
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const std::uint64_t ms = static_cast<std::uint64_t>(now.tv_sec) * 1000u + static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000u;
  const std::uint64_t high = (ms << 16) | 0x7000u | mark;
  const std::uint64_t low = (count.fetch_add(1, std::memory_order_relaxed) & 0x3fffffffffffffffu) | 0x8000000000000000u;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text(36, '-');
  std::size_t at = 0;
  for (const std::uint64_t half : {high, low})
    for (int shift = 60; shift >= 0; shift -= 4) {
      if (at == 8 || at == 13 || at == 18 || at == 23) ++at;
      text[at++] = kHex[(half >> shift) & 15];
    }
  return text;
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
PyType_Slot kSlots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(clear)},
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
      .def("set_handlers", &PyLanes::set_handlers, "type"_a, "handlers"_a,
           "Who handles a type, in this order; only while nothing runs.")
      .def(
          "publish", [](PyLanes& self, nb::handle event, std::optional<double> timeout) { self.core->publish(event.ptr(), timeout); },
          "event"_a.none(), "timeout"_a = nb::none(), "Put an event into its lane; wait where the lane blocks.")
      .def(
          "try_publish", [](PyLanes& self, nb::handle event) { return self.core->try_publish(event.ptr()); }, "event"_a.none(),
          "The same without waiting: False when there is no room.")
      .def(
          "publish_many",
          [](PyLanes& self, nb::handle events, std::optional<double> timeout) { return self.core->publish_many(events, timeout); },
          "events"_a, "timeout"_a = nb::none(), "Publish a list of events in order; how many.")
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
          "inside", [](PyLanes&) { return inside_handler; }, "Whether this thread is in a handler of the lanes.")
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
  m.def("event_id", &event_id, "A new UUID (version 7) as text.");
}
