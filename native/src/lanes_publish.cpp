// Publishing: from an event, or a list of events, to the queue of its lane.
//
// A list is published in parts, each under one lock. Between two parts the GIL is released when P0 has
// events, when this thread has held it for a slice, or when the handlers are far behind: they then find
// the waiting events still in the processor's cache.
#include "lanes_core.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace qts::events {

namespace {

constexpr std::size_t kMaxDropKeys = 10'000;
constexpr std::size_t kPartSize = 128;
constexpr Py_ssize_t kPrefetchDistance = 4;  // events
constexpr std::size_t kBacklog = 16384;  // events, about 1.5 MB of slots

// `items` is the result of PySequence_Fast: a list or a tuple.
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

// Prefetches an event: its fields are in two cache lines.
void prefetch(PyObject* event) {
  __builtin_prefetch(event, 1);
  __builtin_prefetch(reinterpret_cast<char*>(event) + 64);
}

}  // namespace

inline const EventTypeInfo& LaneCore::accept(PyObject* event, LaneEntry& entry, WatcherCall watchers) {
  entry.event = Py_NewRef(event);  // the check may call Python, which may release it
  try {
    const EventTypeInfo& info = contract.check(event, entry, open.load(std::memory_order_relaxed));
    if (!info.tick_watchers.empty() && watchers == WatcherCall::notify) [[unlikely]]
      contract.notify_watchers(info, event, entry.published);
    return info;
  } catch (...) {
    release(entry);
    throw;
  }
}

// Returns false when the lane is full.
bool LaneCore::put(PyObject* event, bool overflow, WatcherCall watchers) {
  LaneEntry entry;
  entry.published = ticks();
  const EventTypeInfo& info = accept(event, entry, watchers);
  Lane& lane = lanes[info.lane];
  Displaced displaced;
  const PutResult result = lane.queue.put(entry, displaced, overflow);
  if (info.lane == 0) [[unlikely]]
    p0_entered = ticks();
  if (result == PutResult::accepted) [[likely]]
    lanes.wake_signal(info.lane).notify();
  else
    release(entry);
  if (displaced.reason != DisplacedReason::none) release_displaced(displaced);
  if (handled_count_.load(std::memory_order_relaxed) != 0) release_handled();
  return result != PutResult::full;
}

bool LaneCore::try_publish(PyObject* event) { return put(event, in_handler(), WatcherCall::notify); }

void LaneCore::publish(PyObject* event, std::optional<double> timeout) {
  if (!put(event, in_handler(), WatcherCall::notify)) wait_for_capacity(event, timeout);
}

void LaneCore::wait_for_capacity(PyObject* event, std::optional<double> timeout) {
  Lane& lane = lanes[contract.info_of(event).lane];
  lane.queue.count_blocked();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout.value_or(0));
  while (true) {
    bool late = false;
    {
      const nb::gil_scoped_release released;
      lane.queue.wait_for_capacity(std::chrono::milliseconds(50));
      late = timeout && std::chrono::steady_clock::now() >= end;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (put(event, false, WatcherCall::skip)) return;
    if (late) contract.refuse(event, "full");
  }
}

std::size_t LaneCore::publish_many(PyObject* events, std::optional<double> timeout) {
  const nb::object items = nb::steal(PySequence_Fast(events, "publish_many takes a list of events"));
  if (!items.is_valid()) throw nb::python_error();
  std::vector<LaneEntry> part;
  part.reserve(std::min(kPartSize, static_cast<std::size_t>(length(items.ptr()))));
  Py_ssize_t i = 0;
  std::uint64_t now = ticks(), since = now;  // all events of a part have one publish time
  bool handlers_catch_up = true;
  try {
    // A list can change while the GIL is released: its length is read each time.
    for (; i < length(items.ptr()); ++i) {
      if (i + kPrefetchDistance < length(items.ptr())) prefetch(item(items.ptr(), i + kPrefetchDistance));
      LaneEntry& entry = part.emplace_back();
      entry.published = now;
      const Lane& lane = lanes[accept(item(items.ptr(), i), entry, WatcherCall::notify).lane];
      if (part.size() < kPartSize) continue;
      put_part(part, timeout);
      now = ticks();
      if (lanes.p0_pending() || now - since > gil_slice_) {
        since = now = yield_gil();
      } else if (handlers_catch_up && is_backlogged(lane)) {
        handlers_catch_up = wait_for_handlers(lane);
        since = now = ticks();
      }
    }
  } catch (...) {  // the events before the refused one are published
    if (!part.empty()) part.pop_back();
    put_part(part, timeout);
    throw;
  }
  put_part(part, timeout);
  if (handled_count_.load(std::memory_order_relaxed) != 0) release_handled();
  return static_cast<std::size_t>(i);
}

void LaneCore::put_part(std::vector<LaneEntry>& part, std::optional<double> timeout) {
  std::size_t done = 0;
  const auto release_rest = [&] {
    for (; done < part.size(); ++done) release(part[done]);
    part.clear();
  };
  try {
    while (done < part.size()) {
      const std::size_t entered = put_same_lane(part.data() + done, part.size() - done);
      done += entered;
      if (entered != 0) continue;
      LaneEntry full = part[done++];
      const nb::object event = nb::steal(static_cast<PyObject*>(std::exchange(full.event, nullptr)));
      release(full);
      wait_for_capacity(event.ptr(), timeout);
    }
  } catch (...) {
    release_rest();
    throw;
  }
  release_rest();
}

// Puts the first entries that go to one lane, as far as it has capacity; returns how many.
std::size_t LaneCore::put_same_lane(LaneEntry* first, std::size_t count) {
  const std::uint32_t type = first->type;
  const std::uint8_t lane = contract.types[type]->lane;
  std::size_t run = 1;
  while (run < count && (first[run].type == type || contract.types[first[run].type]->lane == lane)) ++run;
  std::vector<Displaced> displaced;
  const std::size_t done = lanes[lane].queue.put_many(first, run, displaced, in_handler());
  lanes.wake_signal(lane).notify();
  for (const Displaced& each : displaced) release_displaced(each);
  return done;
}

// Releases the GIL for other threads; returns the tick at which it is held again.
std::uint64_t LaneCore::yield_gil() {
  {
    const nb::gil_scoped_release released;
    // A handler does not wait for others, and without threads there is nothing to wait for.
    const std::uint64_t end = ticks() + gil_slice_;
    while (!in_handler() && live_threads_.load() != 0 && lanes.p0_pending() && ticks() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return ticks();
}

bool LaneCore::is_backlogged(const Lane& lane) const {
  return lane.queue.size() > kBacklog && !in_handler() && live_threads_.load(std::memory_order_relaxed) != 0;
}

// Waits without the GIL until the handlers have caught up, for one slice at most. False: they did not.
bool LaneCore::wait_for_handlers(const Lane& lane) {
  const std::size_t before = lane.queue.size();
  {
    const nb::gil_scoped_release released;
    const std::uint64_t end = ticks() + gil_slice_;
    while (lane.queue.size() > kBacklog / 2 && ticks() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return lane.queue.size() + kPartSize < before;
}

void LaneCore::release_displaced(const Displaced& displaced) {
  if (displaced.reason == DisplacedReason::dropped) count_drop(displaced.entry);
  LaneEntry entry = displaced.entry;
  release(entry);
}

void LaneCore::count_drop(const LaneEntry& entry) {
  std::pair key{entry.type, std::string(entry.key)};
  if (drops.size() >= kMaxDropKeys && !drops.contains(key)) key.second = "...";
  ++drops[key];
}

}  // namespace qts::events
