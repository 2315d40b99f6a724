// An event's way in.
//
// A list goes in parts, each put under one lock. Between two parts the GIL is given away when P0 has
// work, when this thread has had it for long, or when the handlers have fallen far behind and catch up:
// what waits is then still in the processor's cache.
#include "lanes_core.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace qts::events {

namespace {

constexpr std::size_t kMostDropKeys = 10'000;
constexpr std::size_t kPart = 128;
constexpr Py_ssize_t kSoon = 4;  // events from now, when one is fetched
constexpr std::size_t kFarAhead = 16384;  // events, some 1.5 MB of slots

// What PySequence_Fast has made: a list, or a tuple.
Py_ssize_t length(PyObject* items) {
#if defined(Py_LIMITED_API)
  return PySequence_Size(items);
#else
  return PySequence_Fast_GET_SIZE(items);
#endif
}
PyObject* item(PyObject* items, Py_ssize_t i) {
#if defined(Py_LIMITED_API)
  return PyList_Check(items) ? PyList_GetItem(items, i) : PyTuple_GetItem(items, i);
#else
  return PySequence_Fast_GET_ITEM(items, i);
#endif
}

// An event that will be checked soon: its fields lie in two cache lines.
void fetch(PyObject* event) {
  __builtin_prefetch(event, 1);
  __builtin_prefetch(reinterpret_cast<char*>(event) + 64);
}

}  // namespace


inline const Row& Core::accept(PyObject* event, Entry& entry, Told told) {
  entry.event = Py_NewRef(event);  // the check may call Python, which may forget it
  try {
    const Row& row = contract.check(event, entry, open.load(std::memory_order_relaxed));
    if (row.watch != nullptr && told == Told::now) [[unlikely]]
      contract.tell(row, event, entry.published);
    return row;
  } catch (...) {
    release(entry);
    throw;
  }
}

// False: full.
bool Core::put(PyObject* event, bool over, Told told) {
  Entry entry;
  entry.published = ticks();
  const Row& row = accept(event, entry, told);
  Lane& lane = lanes[row.lane];
  Displaced displaced;
  const Put result = lane.queue.put(entry, displaced, over);
  if (row.lane == 0) [[unlikely]]
    p0_entered = ticks();
  if (result == Put::entered) [[likely]]
    lanes.bell(row.lane).ring();
  else
    release(entry);
  if (displaced.why != Leaving::none) let_go(displaced);
  if (dead_count_.load(std::memory_order_relaxed) != 0) bury();
  return result != Put::full;
}

bool Core::try_publish(PyObject* event) { return put(event, inside(), Told::now); }

void Core::publish(PyObject* event, std::optional<double> timeout) {
  if (!put(event, inside(), Told::now)) wait_for_room(event, timeout);
}

void Core::wait_for_room(PyObject* event, std::optional<double> timeout) {
  Lane& lane = lanes[contract.row_of(event).lane];
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
    if (put(event, false, Told::before)) return;
    if (late) contract.refused(event, "full");
  }
}

std::size_t Core::publish_many(PyObject* events, std::optional<double> timeout) {
  const nb::object items = nb::steal(PySequence_Fast(events, "publish_many takes a list of events"));
  if (!items.is_valid()) throw nb::python_error();
  std::vector<Entry> part;
  part.reserve(std::min(kPart, static_cast<std::size_t>(length(items.ptr()))));
  Py_ssize_t i = 0;
  std::uint64_t now = ticks(), since = now;  // the moment of publishing is one for all of a part
  bool they_keep_up = true;
  try {
    // A list can change while the GIL is away: its length is read each time.
    for (; i < length(items.ptr()); ++i) {
      if (i + kSoon < length(items.ptr())) fetch(item(items.ptr(), i + kSoon));
      Entry& entry = part.emplace_back();
      entry.published = now;
      const Lane& lane = lanes[accept(item(items.ptr(), i), entry, Told::now).lane];
      if (part.size() < kPart) continue;
      put_part(part, timeout);
      now = ticks();
      if (lanes.p0_wants() || now - since > hold_) {
        since = now = give_way();
      } else if (they_keep_up && is_far_ahead(lane)) {
        they_keep_up = let_catch_up(lane);
        since = now = ticks();
      }
    }
  } catch (...) {  // what came before the refused one is published
    if (!part.empty()) part.pop_back();
    put_part(part, timeout);
    throw;
  }
  put_part(part, timeout);
  if (dead_count_.load(std::memory_order_relaxed) != 0) bury();
  return static_cast<std::size_t>(i);
}

void Core::put_part(std::vector<Entry>& part, std::optional<double> timeout) {
  std::size_t done = 0;
  const auto forget = [&] {
    for (; done < part.size(); ++done) release(part[done]);
    part.clear();
  };
  try {
    while (done < part.size()) {
      const std::size_t entered = put_run(part.data() + done, part.size() - done);
      done += entered;
      if (entered != 0) continue;
      Entry full = part[done++];
      const nb::object event = nb::steal(static_cast<PyObject*>(std::exchange(full.event, nullptr)));
      release(full);
      wait_for_room(event.ptr(), timeout);
    }
  } catch (...) {
    forget();
    throw;
  }
  forget();
}

// Those at the beginning that go to one lane, as far as there is room; how many.
std::size_t Core::put_run(Entry* first, std::size_t count) {
  const std::uint32_t type = first->type;
  const std::uint8_t lane = contract.rows[type]->lane;
  std::size_t run = 1;
  while (run < count && (first[run].type == type || contract.rows[first[run].type]->lane == lane)) ++run;
  std::vector<Displaced> displaced;
  const std::size_t done = lanes[lane].queue.put_many(first, run, displaced, inside());
  lanes.bell(lane).ring();
  for (const Displaced& each : displaced) let_go(each);
  return done;
}

// Lets others have the GIL; the moment it is back.
std::uint64_t Core::give_way() {
  {
    const nb::gil_scoped_release released;
    // A handler does not wait for others, and without threads there is nobody to wait for.
    const std::uint64_t end = ticks() + hold_;
    while (!inside() && alive_.load() != 0 && lanes.p0_wants() && ticks() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return ticks();
}

bool Core::is_far_ahead(const Lane& lane) const {
  return lane.queue.size() > kFarAhead && !inside() && alive_.load(std::memory_order_relaxed) != 0;
}

// Without the GIL until the handlers have come close, for a while at most. False: they do not.
bool Core::let_catch_up(const Lane& lane) {
  const std::size_t before = lane.queue.size();
  {
    const nb::gil_scoped_release released;
    const std::uint64_t end = ticks() + hold_;
    while (lane.queue.size() > kFarAhead / 2 && ticks() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return lane.queue.size() + kPart < before;
}

void Core::let_go(const Displaced& displaced) {
  if (displaced.why == Leaving::dropped) note_drop(displaced.entry);
  Entry entry = displaced.entry;
  release(entry);
}

void Core::note_drop(const Entry& entry) {
  std::pair key{entry.type, std::string(entry.key)};
  if (drops.size() >= kMostDropKeys && !drops.contains(key)) key.second = "...";
  ++drops[key];
}

}  // namespace qts::events
