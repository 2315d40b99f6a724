// An event's way through its handlers: calls, failures, stamps. With the GIL, but for compiled
// handlers of P0.
#include "lanes_core.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace qts::events {

namespace {

thread_local bool inside_handler = false;

void run_compiled(const Handler& handler, const Entry& entry) {
  auto* record = static_cast<EventRecord*>(entry.record);
  if (record == nullptr) return;  // published before the handler was there
  record->sequence = entry.sequence;
  handler.function(record, handler.state);
}

// The place before the arguments is the callee's: a method puts its object there.
PyObject* call(const Handler& handler, PyObject* argument) {
  PyObject* arguments[] = {nullptr, argument};
  return handler.call(handler.callable.ptr(), arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}
PyObject* call(const Handler& handler, PyObject* first, PyObject* second) {
  PyObject* arguments[] = {nullptr, first, second};
  return handler.call(handler.callable.ptr(), arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// A batch as a list of events.
nb::object listed(const Entry* first, std::size_t count) {
  nb::object events = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!events.is_valid()) throw nb::python_error();
  for (std::size_t k = 0; k < count; ++k)
    PyList_SetItem(events.ptr(), static_cast<Py_ssize_t>(k), Py_NewRef(static_cast<PyObject*>(first[k].event)));
  return events;
}

nb::object give_list(const Handler& handler, const Entry* first, std::size_t count) {
  return nb::steal(call(handler, listed(first, count).ptr()));
}

// A batch as records one after the other, and the key of each.
nb::object give_rows(const Handler& handler, const Entry* first, std::size_t count) {
  std::vector<EventRecord> records(count);
  nb::list keys;
  for (std::size_t k = 0; k < count; ++k) {
    auto* record = static_cast<EventRecord*>(first[k].record);
    if (record == nullptr) return give_list(handler, first, count);  // published before the handler was there
    record->sequence = first[k].sequence;
    records[k] = *record;
    auto* key = static_cast<PyObject*>(first[k].key_owner);
    keys.append(key != nullptr ? nb::borrow(key) : nb::object(nb::str("")));
  }
  const nb::bytes data(records.data(), count * sizeof(EventRecord));
  return nb::steal(call(handler, data.ptr(), keys.ptr()));
}

}  // namespace

InsideHandler::InsideHandler() : outer_(std::exchange(inside_handler, true)) {}
InsideHandler::~InsideHandler() { inside_handler = outer_; }
bool Core::inside() { return inside_handler; }

// Three exact conversions would cost more than the handler's call.
std::uint64_t Core::span_ns(std::uint64_t span) const {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<double>(static_cast<std::int64_t>(span)) * ns_per_tick_));
}

inline void Core::finish(Lane& lane, Entry& entry, std::uint64_t began, std::uint64_t end, bool dead) {
  const std::uint64_t wait = began > entry.published ? span_ns(began - entry.published) : 0;
  const std::uint64_t handling = span_ns(end - began);
  if (&lane == &lanes[0]) {  // its compiled handlers run without the GIL
    lane.wait.record(wait);
    lane.handling.record(handling);
    lane.total.record(wait + handling);
    lane.queue.settle(entry, dead);
  } else {
    lane.wait.record_alone(wait);
    lane.handling.record_alone(handling);
    lane.total.record_alone(wait + handling);
    lane.queue.settle_alone(entry, dead);
  }
}

// In LEVEL_3 prices still reach those that guard the money, and nobody else.
inline bool Core::skipped(const Row& row, const Handler& handler) const {
  return critical_only.load(std::memory_order_relaxed) && row.lane != 0 && !handler.essential;
}

// True: dead.
inline bool Core::call_plain(const Handler& handler, const Entry& entry, std::size_t i) {
  PyObject* result = call(handler, static_cast<PyObject*>(entry.event));
  if (result == nullptr) [[unlikely]]
    return ask(entry, i);
  Py_DECREF(result);
  return false;
}

inline std::size_t Core::handle_one(Worker& worker, Lane& lane, Entry& entry, const Row& row, std::uint64_t began) {
  bool dead = false;
  for (std::size_t i = 0; i < row.handlers.size(); ++i) {
    const Handler& handler = row.handlers[i];
    if (skipped(row, handler)) continue;
    worker.handler.store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
    if (handler.kind == Kind::plain) [[likely]] {
      dead |= call_plain(handler, entry, i);
    } else if (handler.kind == Kind::compiled) {
      run_compiled(handler, entry);
    } else {
      const Verdict verdict = call_managed(handler, row, entry, i, began);
      if (verdict == Verdict::later) {
        worker.ended = ticks();
        return 1;
      }
      dead |= verdict == Verdict::dead;
    }
  }
  worker.ended = ticks();
  finish(lane, entry, began, worker.ended, dead);
  release(entry);
  return 1;
}

Core::Verdict Core::call_managed(const Handler& handler, const Row& row, Entry& entry, std::size_t i, std::uint64_t began) {
  const nb::object sequence = nb::int_(entry.sequence);
  const nb::object result = nb::steal(call(handler, static_cast<PyObject*>(entry.event), sequence.ptr()));
  if (!result.is_valid()) return ask(entry, i) ? Verdict::dead : Verdict::handled;
  if (!result.is_none()) return result.ptr() == Py_False ? Verdict::dead : Verdict::handled;
  const auto early = early_[row.lane].find(entry.sequence);
  if (early == early_[row.lane].end()) {
    in_flight_[row.lane].emplace(entry.sequence, std::pair{entry, began});
    return Verdict::later;
  }
  const bool dead = early->second;
  early_[row.lane].erase(early);
  return dead ? Verdict::dead : Verdict::handled;
}

// The event at the cursor's place, or the batch that begins there.
inline std::size_t Core::handle_next(Worker& worker, Lane& lane, Cursor& cursor, std::uint64_t began) {
  const std::uint32_t type = cursor.rest()->type;
  if (cursor.left() > 1) __builtin_prefetch(cursor.rest()[1].event, 1);
  const Row& row = *contract.rows[type];
  worker.type.store(type, std::memory_order_relaxed);
  worker.began.store(began, std::memory_order_relaxed);
  const std::size_t count = row.batched ? handle_batch(worker, lane, cursor, row, began)
                                        : handle_one(worker, lane, *cursor.rest(), row, began);
  worker.began.store(0, std::memory_order_relaxed);
  cursor.advance(count);
  if (row.limit != 0 && worker.ended - began > row.limit) {
    lane.overran.fetch_add(1, std::memory_order_relaxed);
    report("overran", type, worker.handler.load(std::memory_order_relaxed), worker.ended - began);
  }
  return count;
}

std::size_t Core::handle(Worker& worker, std::size_t lane, std::uint64_t began) {
  return handle_next(worker, lanes[lane], worker.cursors[lane], began);
}

// Handles events until somebody else should have the GIL or the turn. An event begins when the one
// before it has ended: the few nanoseconds between them are counted as its own.
void Core::hold(Worker& worker, std::uint8_t lane) {
  Cursor& cursor = worker.cursors[lane];
  const std::uint64_t since = ticks();
  std::uint64_t now = since;
  worker.seat.event_began.store(now, std::memory_order_relaxed);
  for (std::uint64_t events = 0; events < options_.hold_events;) {
    if (halt.load(std::memory_order_relaxed) || lanes[lane].paused.load(std::memory_order_relaxed)) return;
    if (cursor.empty() && (!lanes[lane].ready(now) || cursor.fill(lanes[lane]) == 0)) return;
    events += handle_next(worker, lanes[lane], cursor, now);
    now = worker.ended;
    if (!lanes.turn.keep(worker.seat, now) || lanes.p0_wants() || lanes.turn.wanted_above(lane)) return;
    if ((lane > 1 && higher_waits(lane)) || now - since > hold_) return;
  }
}

int Core::step(std::size_t lane) {
  if (lane >= Lanes::kLanes) throw nb::value_error("a lane is 0, 1, 2 or 3");
  for (std::size_t higher = 0; higher < lane; ++higher)
    if (!by_hand_.cursors[higher].empty() || lanes[higher].ready(ticks())) return -1;
  Cursor& cursor = by_hand_.cursors[lane];
  if (lanes[lane].paused.load(std::memory_order_relaxed)) return 0;
  if (cursor.empty() && (!lanes[lane].ready(ticks()) || cursor.fill(lanes[lane]) == 0)) return 0;
  const InsideHandler inside;
  return static_cast<int>(handle(by_hand_, lane, ticks()));
}

void Core::settle(std::size_t lane, std::uint64_t sequence, bool dead) {
  const auto found = in_flight_[lane].find(sequence);
  if (found == in_flight_[lane].end()) {
    early_[lane][sequence] = dead;  // done before its handler has said None
    return;
  }
  Entry entry = found->second.first;
  const std::uint64_t began = found->second.second;
  in_flight_[lane].erase(found);
  finish(lanes[lane], entry, began, ticks(), dead);
  release(entry);
}

nb::list Core::take(std::size_t number, std::size_t most, double seconds) {
  Lane& lane = lanes[number];
  std::vector<Entry> taken(most);
  std::size_t count = 0;
  {
    const nb::gil_scoped_release released;
    const auto may = [&] { return halt.load() || lane.ready(ticks()); };
    std::chrono::nanoseconds nap(static_cast<std::int64_t>(seconds * 1e9));
    if (const std::uint64_t due = lane.due(), now = ticks(); due > now)
      nap = std::min(nap, std::chrono::nanoseconds(scale_.span_ns(due - now) + 10'000));
    lanes.bell(number).sleep(nap, may);
    while (lanes.p0_wants() && !halt.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (may() && !halt.load()) count = lane.queue.take(taken.data(), most);
  }
  nb::list found;
  for (std::size_t i = 0; i < count; ++i) {
    in_flight_[number].emplace(taken[i].sequence, std::pair{taken[i], std::uint64_t{0}});
    found.append(nb::make_tuple(nb::handle(static_cast<PyObject*>(taken[i].event)), taken[i].sequence));
  }
  return found;
}

void Core::settle_at(std::size_t number, std::uint64_t sequence, bool dead, std::uint64_t began, std::uint64_t ended) {
  const auto found = in_flight_[number].find(sequence);
  if (found == in_flight_[number].end()) return;
  Entry entry = found->second.first;
  in_flight_[number].erase(found);
  if (const std::uint64_t limit = contract.rows[entry.type]->limit; limit != 0 && ended - began > limit) {
    lanes[number].overran.fetch_add(1, std::memory_order_relaxed);
    report("overran", entry.type, 0, ended - began);
  }
  finish(lanes[number], entry, began, ended, dead);
  release(entry);
}

std::size_t Core::handle_batch(Worker& worker, Lane& lane, Cursor& cursor, const Row& row, std::uint64_t began) {
  Entry* first = cursor.rest();
  Entry* const end = first + cursor.left();
  const Entry head = *first;
  const auto belongs = [&](const Entry& each) {
    return each.type == head.type && (!lane.spec.by_key || (each.hash == head.hash && each.key == head.key));
  };
  Entry* last = std::find_if_not(first, end, belongs);
  // The others keep their order: only this group moves up.
  if (last != end) last = std::stable_partition(last, end, belongs);
  const auto count = static_cast<std::size_t>(last - first);
  std::vector<bool> dead(count, false);
  for (std::size_t i = 0; i < row.handlers.size(); ++i) {
    const Handler& handler = row.handlers[i];
    if (skipped(row, handler)) continue;
    worker.handler.store(static_cast<std::uint32_t>(i), std::memory_order_relaxed);
    if (handler.kind == Kind::batch || handler.kind == Kind::rows) call_batch(row, i, first, dead);
    else
      for (std::size_t k = 0; k < count; ++k)
        if (handler.kind == Kind::compiled) run_compiled(handler, first[k]);
        else if (call_plain(handler, first[k], i)) dead[k] = true;
  }
  worker.ended = ticks();
  for (std::size_t k = 0; k < count; ++k) {
    finish(lane, first[k], began, worker.ended, dead[k]);
    release(first[k]);
  }
  return count;
}

void Core::call_batch(const Row& row, std::size_t i, Entry* first, std::vector<bool>& dead) {
  const auto give = row.handlers[i].kind == Kind::rows ? give_rows : give_list;
  if (give(row.handlers[i], first, dead.size()).is_valid()) return;
  nb::python_error error;
  nb::list sequences;
  for (std::size_t k = 0; k < dead.size(); ++k) sequences.append(first[k].sequence);
  try {
    // Listed anew: the handler may have changed the list it was given.
    const nb::object verdicts = failed_batch(listed(first, dead.size()), i, error.value(), sequences);
    for (std::size_t k = 0; k < dead.size(); ++k)
      if (verdicts[k].ptr() == Py_False) dead[k] = true;
  } catch (nb::python_error& second) {
    second.discard_as_unraisable("qts.events");
    std::fill(dead.begin(), dead.end(), true);
  }
}

// A handler has raised: Python tries again or gives up. True: dead.
bool Core::ask(const Entry& entry, std::size_t handler) {
  nb::python_error error;
  try {
    return failed(nb::handle(static_cast<PyObject*>(entry.event)), handler, error.value(), entry.sequence).ptr() == Py_False;
  } catch (nb::python_error& second) {
    second.discard_as_unraisable("qts.events");
    return true;
  }
}

void Core::handle_without_gil(Worker& worker, Lane& lane, Cursor& cursor) {
  Entry& entry = *cursor.rest();
  const Row& row = *contract.rows[entry.type];
  const std::uint64_t began = ticks();
  lanes.p0_began.store(began, std::memory_order_relaxed);
  worker.type.store(entry.type, std::memory_order_relaxed);
  for (const Handler& handler : row.handlers) run_compiled(handler, entry);
  finish(lane, entry, began, ticks(), false);
  {
    const std::lock_guard hold(dead_lock_);
    dead_.push_back(entry);
    dead_count_.fetch_add(1, std::memory_order_relaxed);
  }
  cursor.advance(1);
}

void Core::bury() {
  std::vector<Entry> dead;
  {
    const std::lock_guard hold(dead_lock_);
    dead.swap(dead_);
    dead_count_.store(0, std::memory_order_relaxed);
  }
  for (Entry& entry : dead) release(entry);
}

}  // namespace qts::events
