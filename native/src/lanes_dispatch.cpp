// Dispatch: from the queue of a lane through the handlers of an event; with the GIL, except for compiled
// handlers of P0.
#include "lanes_core.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace qts::events {

namespace {

thread_local bool handler_running = false;

void run_compiled(const Handler& handler, const LaneEntry& entry) {
  auto* record = static_cast<EventRecord*>(entry.record);
  if (record == nullptr) return;  // published before the handler was set
  record->sequence = entry.sequence;
  handler.function(record, handler.state);
}

// The element before the arguments is for the callee: a bound method puts its object there.
PyObject* call(const Handler& handler, PyObject* argument) {
  PyObject* arguments[] = {nullptr, argument};
  return handler.call(handler.callable.ptr(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}
PyObject* call(const Handler& handler, PyObject* first, PyObject* second) {
  PyObject* arguments[] = {nullptr, first, second};
  return handler.call(handler.callable.ptr(), arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// Returns a batch as a list of events.
nb::object event_list(const LaneEntry* first, std::size_t count) {
  nb::object events = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!events.is_valid()) throw nb::python_error();
  for (std::size_t k = 0; k < count; ++k)
    PyList_SetItem(events.ptr(), static_cast<Py_ssize_t>(k), Py_NewRef(static_cast<PyObject*>(first[k].event)));
  return events;
}

nb::object call_with_list(const Handler& handler, const LaneEntry* first, std::size_t count) {
  return nb::steal(call(handler, event_list(first, count).ptr()));
}

// Calls a handler with the records of a batch as bytes, and a list of their keys.
nb::object call_with_rows(const Handler& handler, const LaneEntry* first, std::size_t count) {
  std::vector<EventRecord> records(count);
  nb::list keys;
  for (std::size_t k = 0; k < count; ++k) {
    auto* record = static_cast<EventRecord*>(first[k].record);
    if (record == nullptr) return call_with_list(handler, first, count);  // published before the handler was set
    record->sequence = first[k].sequence;
    records[k] = *record;
    auto* key = static_cast<PyObject*>(first[k].key_owner);
    keys.append(key != nullptr ? nb::borrow(key) : nb::object(nb::str("")));
  }
  const nb::bytes data(records.data(), count * sizeof(EventRecord));
  return nb::steal(call(handler, data.ptr(), keys.ptr()));
}

}  // namespace

HandlerScope::HandlerScope() : outer_(std::exchange(handler_running, true)) {}
HandlerScope::~HandlerScope() { handler_running = outer_; }
bool LaneCore::in_handler() { return handler_running; }

// Approximate: three exact conversions would cost more than the call of the handler.
std::uint64_t LaneCore::span_ns(std::uint64_t span) const {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<double>(static_cast<std::int64_t>(span)) * ns_per_tick_));
}

inline void LaneCore::finish(Lane& lane, LaneEntry& entry, std::uint64_t began, std::uint64_t end, bool dead) {
  const std::uint64_t wait = began > entry.published ? span_ns(began - entry.published) : 0;
  const std::uint64_t handling = span_ns(end - began);
  if (&lane == &lanes[0]) {  // compiled handlers of P0 run without the GIL
    lane.wait.record(wait);
    lane.handling.record(handling);
    lane.total.record(wait + handling);
    lane.queue.settle(entry, dead);
  } else {
    lane.wait.record_exclusive(wait);
    lane.handling.record_exclusive(handling);
    lane.total.record_exclusive(wait + handling);
    lane.queue.settle_exclusive(entry, dead);
  }
}

// At the CRITICAL_ONLY level, only essential handlers run below P0.
inline bool LaneCore::skipped(const EventTypeInfo& info, const Handler& handler) const {
  return critical_only.load(std::memory_order_relaxed) && info.lane != 0 && !handler.essential;
}

// Whether the CRITICAL_ONLY level leaves no handler of the type.
inline bool LaneCore::discarded(const EventTypeInfo& info) const {
  return critical_only.load(std::memory_order_relaxed) && info.lane != 0 && !info.handlers.empty() &&
         std::none_of(info.handlers.begin(), info.handlers.end(), [](const Handler& each) { return each.essential; });
}

[[gnu::noinline]] void LaneCore::discard(Lane& lane, LaneEntry& entry) {
  lane.queue.settle_dropped(entry);
  count_drop(entry);
  release(entry);
}

// Returns whether the event is dead.
inline bool LaneCore::call_plain(const Handler& handler, const LaneEntry& entry, std::size_t i) {
  PyObject* result = call(handler, static_cast<PyObject*>(entry.event));
  if (result == nullptr) [[unlikely]]
    return on_failure(entry, i);
  Py_DECREF(result);
  return false;
}

inline std::size_t LaneCore::handle_one(Worker& worker, Lane& lane, LaneEntry& entry, const EventTypeInfo& info, std::uint64_t began) {
  if (discarded(info)) [[unlikely]] {
    if (info.has_window) release_permit(info, entry.type);
    discard(lane, entry);
    worker.ended = ticks();
    return 1;
  }
  bool dead = false;
  for (std::size_t i = 0; i < info.handlers.size(); ++i) {
    const Handler& handler = info.handlers[i];
    if (skipped(info, handler)) continue;
    worker.handler.store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
    if (handler.kind == HandlerKind::plain) [[likely]] {
      dead |= call_plain(handler, entry, i);
    } else if (handler.kind == HandlerKind::compiled) {
      run_compiled(handler, entry);
    } else {
      const HandleResult result = call_managed(handler, info, entry, i, began);
      if (result == HandleResult::pending) {
        worker.ended = ticks();
        return 1;
      }
      if (info.has_window) release_permit(info, entry.type);
      if (result == HandleResult::dropped) {  // the only handler that is not skipped
        discard(lane, entry);
        worker.ended = ticks();
        return 1;
      }
      dead |= result == HandleResult::dead;
    }
  }
  worker.ended = ticks();
  finish(lane, entry, began, worker.ended, dead);
  release(entry);
  return 1;
}

LaneCore::HandleResult LaneCore::call_managed(const Handler& handler, const EventTypeInfo& info, LaneEntry& entry, std::size_t i, std::uint64_t began) {
  const nb::object sequence = nb::int_(entry.sequence);
  const nb::object result = nb::steal(call(handler, static_cast<PyObject*>(entry.event), sequence.ptr()));
  if (!result.is_valid()) return on_failure(entry, i) ? HandleResult::dead : HandleResult::handled;
  if (PyUnicode_Check(result.ptr())) return HandleResult::dropped;
  if (!result.is_none()) return result.ptr() == Py_False ? HandleResult::dead : HandleResult::handled;
  const auto early = settled_early_[info.lane].find(entry.sequence);
  if (early == settled_early_[info.lane].end()) {
    in_flight_[info.lane].emplace(entry.sequence, std::pair{entry, began});
    return HandleResult::pending;
  }
  const bool dead = early->second;
  settled_early_[info.lane].erase(early);
  return dead ? HandleResult::dead : HandleResult::handled;
}

// Handles the event at the cursor, or the batch that begins there.
inline std::size_t LaneCore::handle_next(Worker& worker, Lane& lane, Cursor& cursor, std::uint64_t began) {
  const std::uint32_t type = cursor.current()->type;
  if (cursor.remaining() > 1) __builtin_prefetch(cursor.current()[1].event, 1);
  const EventTypeInfo& info = *contract.types[type];
  worker.type.store(type, std::memory_order_relaxed);
  worker.began.store(began, std::memory_order_relaxed);
  const std::size_t count = info.batched ? handle_batch(worker, lane, cursor, info, began)
                                        : handle_one(worker, lane, *cursor.current(), info, began);
  worker.began.store(0, std::memory_order_relaxed);
  if (worker.overruns) [[unlikely]]
    end_overrun(worker, type);
  cursor.advance(count);
  if (info.time_limit != 0 && worker.ended - began > info.time_limit) {
    lane.overran.fetch_add(1, std::memory_order_relaxed);
    report("overran", type, worker.handler.load(std::memory_order_relaxed), worker.ended - began);
  }
  return count;
}

std::size_t LaneCore::handle(Worker& worker, std::size_t lane, std::uint64_t began) {
  return handle_next(worker, lanes[lane], worker.cursors[lane], began);
}

// Handles events until the GIL or the lane lock is due to another thread. An event begins when
// the one before it ended: the few nanoseconds between them count as handling.
void LaneCore::run_slice(Worker& worker, std::uint8_t lane) {
  Cursor& cursor = worker.cursors[lane];
  const std::uint64_t since = ticks();
  std::uint64_t now = since;
  worker.waiter.event_began.store(now, std::memory_order_relaxed);
  for (std::uint64_t events = 0; events < options_.slice_events;) {
    if (halt.load(std::memory_order_relaxed) || lanes[lane].paused.load(std::memory_order_relaxed)) return;
    if (cursor.empty() && (!may_fill(worker) || !lanes[lane].ready(now) || cursor.fill(lanes[lane]) == 0)) return;
    events += handle_next(worker, lanes[lane], cursor, now);
    now = worker.ended;
    if (!lanes.lock.renew(worker.waiter, now) || lanes.p0_pending() || lanes.lock.higher_lane_waits(lane)) return;
    if ((lane > 1 && higher_lane_ready(lane)) || now - since > gil_slice_) return;
  }
}

int LaneCore::step(std::size_t lane) {
  if (lane >= Lanes::kLanes) throw nb::value_error("lane must be 0, 1, 2 or 3");
  for (std::size_t higher = 0; higher < lane; ++higher)
    if (!step_worker_.cursors[higher].empty() || lanes[higher].ready(ticks())) return -1;
  Cursor& cursor = step_worker_.cursors[lane];
  if (lanes[lane].paused.load(std::memory_order_relaxed)) return 0;
  if (cursor.empty() && (!lanes[lane].ready(ticks()) || cursor.fill(lanes[lane]) == 0)) return 0;
  const HandlerScope scope;
  return static_cast<int>(handle(step_worker_, lane, ticks()));
}

void LaneCore::settle(std::size_t lane, std::uint64_t sequence, bool dead) {
  const auto found = in_flight_[lane].find(sequence);
  if (found == in_flight_[lane].end()) {
    settled_early_[lane][sequence] = dead;  // settled before its handler returned None
    return;
  }
  LaneEntry entry = found->second.first;
  const std::uint64_t began = found->second.second;
  in_flight_[lane].erase(found);
  finish(lanes[lane], entry, began, ticks(), dead);
  if (const EventTypeInfo& info = *contract.types[entry.type]; info.has_window) release_permit(info, entry.type);
  release(entry);
}

void LaneCore::release_permit(const EventTypeInfo& info, std::uint32_t type) {
  lanes[info.lane].queue.change_limits([&](TypeLimits& limits) { limits.release_permit(type); });
  lanes.wake_signal(info.lane).notify();
}

nb::list LaneCore::take(std::size_t number, std::size_t max, double seconds) {
  Lane& lane = lanes[number];
  std::vector<LaneEntry> taken(max);
  std::size_t count = 0;
  {
    const nb::gil_scoped_release released;
    const auto is_ready = [&] { return halt.load() || lane.ready(ticks()); };
    std::chrono::nanoseconds timeout(static_cast<std::int64_t>(seconds * 1e9));
    if (const std::uint64_t due = lane.due(), now = ticks(); due > now)
      timeout = std::min(timeout, std::chrono::nanoseconds(scale_.span_ns(due - now) + 10'000));
    lanes.wake_signal(number).wait(timeout, is_ready);
    while (lanes.p0_pending() && !halt.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (is_ready() && !halt.load()) count = lane.queue.take(taken.data(), max);
  }
  nb::list found;
  for (std::size_t i = 0; i < count; ++i) {
    in_flight_[number].emplace(taken[i].sequence, std::pair{taken[i], std::uint64_t{0}});
    found.append(nb::make_tuple(nb::handle(static_cast<PyObject*>(taken[i].event)), taken[i].sequence));
  }
  return found;
}

void LaneCore::settle_at(std::size_t number, std::uint64_t sequence, bool dead, std::uint64_t began, std::uint64_t ended) {
  const auto found = in_flight_[number].find(sequence);
  if (found == in_flight_[number].end()) return;
  LaneEntry entry = found->second.first;
  in_flight_[number].erase(found);
  if (const std::uint64_t limit = contract.types[entry.type]->time_limit; limit != 0 && ended - began > limit) {
    lanes[number].overran.fetch_add(1, std::memory_order_relaxed);
    report("overran", entry.type, 0, ended - began);
  }
  finish(lanes[number], entry, began, ended, dead);
  release(entry);
}

void LaneCore::drop_taken(std::size_t number, std::uint64_t sequence) {
  const auto found = in_flight_[number].find(sequence);
  if (found == in_flight_[number].end()) return;
  LaneEntry entry = found->second.first;
  in_flight_[number].erase(found);
  discard(lanes[number], entry);
}

std::size_t LaneCore::handle_batch(Worker& worker, Lane& lane, Cursor& cursor, const EventTypeInfo& info, std::uint64_t began) {
  LaneEntry* first = cursor.current();
  LaneEntry* const end = first + cursor.remaining();
  const LaneEntry head = *first;
  const auto belongs = [&](const LaneEntry& each) {
    return each.type == head.type && (!lane.spec.by_key || (each.hash == head.hash && each.key == head.key));
  };
  LaneEntry* last = std::find_if_not(first, end, belongs);
  // The other events keep their order.
  if (last != end) last = std::stable_partition(last, end, belongs);
  const auto count = static_cast<std::size_t>(last - first);
  if (discarded(info)) [[unlikely]] {
    std::for_each(first, last, [&](LaneEntry& each) { discard(lane, each); });
    worker.ended = ticks();
    return count;
  }
  cursor.set_in_handler(count);
  std::vector<bool> dead(count, false);
  for (std::size_t i = 0; i < info.handlers.size(); ++i) {
    const Handler& handler = info.handlers[i];
    if (skipped(info, handler)) continue;
    worker.handler.store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
    if (handler.kind == HandlerKind::batch || handler.kind == HandlerKind::rows) call_batch(info, i, first, dead);
    else
      for (std::size_t k = 0; k < count; ++k)
        if (handler.kind == HandlerKind::compiled) run_compiled(handler, first[k]);
        else if (call_plain(handler, first[k], i)) dead[k] = true;
  }
  worker.ended = ticks();
  for (std::size_t k = 0; k < count; ++k) {
    finish(lane, first[k], began, worker.ended, dead[k]);
    release(first[k]);
  }
  return count;
}

void LaneCore::call_batch(const EventTypeInfo& info, std::size_t i, LaneEntry* first, std::vector<bool>& dead) {
  const auto call_handler = info.handlers[i].kind == HandlerKind::rows ? call_with_rows : call_with_list;
  if (call_handler(info.handlers[i], first, dead.size()).is_valid()) return;
  nb::python_error error;
  nb::list sequences;
  for (std::size_t k = 0; k < dead.size(); ++k) sequences.append(first[k].sequence);
  try {
    // A new list: the handler may have changed the first one.
    const nb::object results = failed_batch(event_list(first, dead.size()), i, error.value(), sequences);
    for (std::size_t k = 0; k < dead.size(); ++k)
      if (results[k].ptr() == Py_False) dead[k] = true;
  } catch (nb::python_error& second) {
    second.discard_as_unraisable("qts.events");
    std::fill(dead.begin(), dead.end(), true);
  }
}

// After a handler has raised: the Python callback retries it. Returns whether the event is dead.
bool LaneCore::on_failure(const LaneEntry& entry, std::size_t handler) {
  nb::python_error error;
  try {
    return failed(nb::handle(static_cast<PyObject*>(entry.event)), handler, error.value(), entry.sequence).ptr() == Py_False;
  } catch (nb::python_error& second) {
    second.discard_as_unraisable("qts.events");
    return true;
  }
}

void LaneCore::handle_without_gil(Worker& worker, Lane& lane, Cursor& cursor) {
  LaneEntry& entry = *cursor.current();
  const EventTypeInfo& info = *contract.types[entry.type];
  const std::uint64_t began = ticks();
  lanes.p0_began.store(began, std::memory_order_relaxed);
  worker.type.store(entry.type, std::memory_order_relaxed);
  for (const Handler& handler : info.handlers) run_compiled(handler, entry);
  finish(lane, entry, began, ticks(), false);
  {
    const std::lock_guard hold(handled_lock_);
    handled_.push_back(entry);
    handled_count_.fetch_add(1, std::memory_order_relaxed);
  }
  cursor.advance(1);
}

void LaneCore::release_handled() {
  std::vector<LaneEntry> handled;
  {
    const std::lock_guard hold(handled_lock_);
    handled.swap(handled_);
    handled_count_.store(0, std::memory_order_relaxed);
  }
  for (LaneEntry& entry : handled) release(entry);
}

}  // namespace qts::events
