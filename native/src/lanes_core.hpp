// LaneCore: the lanes together with the interpreter: publishing, calling handlers, and the worker threads.
//
// Thread contract: a method's comment says when it needs the GIL. No thread waits for the GIL while it holds a
// lane's lock, and no lane's lock is held while a handler runs: publishing therefore never waits for a
// handler, except for capacity in a lane that blocks.
//
//   lanes_publish.cpp    from publish to the lane's queue
//   lanes_dispatch.cpp   from the queue through the handlers
//   lanes_workers.cpp    the threads, the lane lock and the GIL
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lanes_contract.hpp"

namespace qts::events {

// A handler that exceeded its time limit, or delayed P0.
struct Report {
  const char* what;
  std::uint32_t type;
  std::uint32_t handler;
  std::uint64_t ns;
};

struct Worker {
  std::size_t number = 0;
  std::vector<std::uint8_t> lanes;
  std::array<Cursor, Lanes::kLanes> cursors;
  LaneLock::Waiter waiter;
  std::atomic<std::uint32_t> type{0}, handler{0};
  std::atomic<std::uint64_t> began{0};
  std::atomic<bool> fault_injected{false};  // for tests: the thread fails at its next round
  std::uint64_t ended = 0;                  // ticks at which its last handler returned
  // With the GIL:
  bool overruns = false;           // its handler has run for longer than LaneLock::kOverrunNs
  bool counts_as_background = false;  // in background_running_
  std::size_t spare = SIZE_MAX;    // it runs while more workers than this overrun; SIZE_MAX: always
  bool started = false;            // of a spare worker
  PyThreadState* thread_state = nullptr;

  void check_fault() {
    if (fault_injected.exchange(false)) throw std::runtime_error("injected fault");
  }
};

struct Options {
  std::array<LaneSpec, Lanes::kLanes> specs;
  std::size_t audit = 0;
  std::uint64_t gil_slice_ns = 1'000'000;
  std::uint64_t slice_events = 1000;
  std::uint64_t overtake_after_ns = 5'000'000;
  std::uint64_t gil_stall_ns = 2'000'000;  // a longer wait of P0 for the GIL is reported
  std::size_t background_workers = 2;      // workers that may be in P3 handlers at once
};

class LaneCore : public std::enable_shared_from_this<LaneCore> {
 public:
  LaneCore(const Options& options, nb::object event_class, nb::dict types);
  ~LaneCore();

  // --- publishing, with the GIL ---
  void publish(PyObject* event, std::optional<double> timeout);
  bool try_publish(PyObject* event);
  std::size_t publish_many(PyObject* events, std::optional<double> timeout);
  // As a handler publishes: exceeds the capacity rather than wait. False: the overflow reserve is full.
  bool publish_overflow(PyObject* event) { return put(event, true, WatcherCall::notify); }
  // Whether this thread is in a handler.
  static bool in_handler();

  // --- handling, with the GIL ---
  // Handles one event, or one batch, without threads. -1: a higher lane comes first; 0: none is ready.
  int step(std::size_t lane);
  // Sets the result of an event whose handler returned None.
  void settle(std::size_t lane, std::uint64_t sequence, bool dead);
  // For a lane whose handlers run elsewhere: takes (event, sequence) of some events, each of which the
  // caller settles with settle_at. Waits without the GIL, and after P0.
  nb::list take(std::size_t number, std::size_t max, double seconds);
  // Sets the result of an event taken so, and the ticks at which its handlers began and ended.
  void settle_at(std::size_t number, std::uint64_t sequence, bool dead, std::uint64_t began, std::uint64_t ended);
  // Counts an event taken so as dropped: no handler was called with it.
  void drop_taken(std::size_t number, std::uint64_t sequence);
  // Releases events that were handled without the GIL.
  void release_handled();

  // --- threads ---
  std::size_t add_worker(std::vector<std::uint8_t> served);
  void start(std::optional<int> p0_cpu, bool realtime);
  // With the GIL released. False: a handler did not return in time; its thread is detached.
  bool join(double seconds);
  // Starts a new thread for a worker whose thread has failed.
  void restart_worker(std::size_t number);
  void inject_fault(std::size_t number);
  // Frees what handlers of P2 and P3 that overrun would hold up: the events their workers have taken, and
  // the workers themselves, which spare ones replace. With the GIL, which the worker's cursors need too.
  void relieve_overrun();
  std::vector<std::pair<std::size_t, std::string>> take_faults();
  std::vector<Report> take_reports();

  // --- for the garbage collector of Python ---
  template <class Visit>
  int each_reference(Visit&& visit) {
    if (const int result = contract.each_reference(visit); result != 0) return result;
    for (nb::object* object : {&failed, &failed_batch})
      if (object->is_valid())
        if (const int result = visit(object->ptr()); result != 0) return result;
    for (auto& info : contract.types) {
      for (nb::object& watcher : info->watchers)
        if (const int result = visit(watcher.ptr()); result != 0) return result;
      for (Handler& handler : info->handlers)
        if (handler.callable.is_valid())
          if (const int result = visit(handler.callable.ptr()); result != 0) return result;
    }
    return 0;
  }
  void clear();

  Lanes lanes;
  Contract contract;
  nb::object failed, failed_batch;  // called when a handler has raised; retry in Python, return False when dead
  std::atomic<bool> halt{false}, open{true}, critical_only{false};
  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<bool> pinned{false}, is_realtime{false};
  Histogram gil_wait;  // of P0, ns
  // How often each (type, key) was dropped; with the GIL.
  std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> drops;

 private:
  // --- publishing ---
  // Whether to notify the watchers of the event; not when it is put again after waiting for capacity.
  enum class WatcherCall : std::uint8_t { notify, skip };
  bool put(PyObject* event, bool overflow, WatcherCall watchers);
  void wait_for_capacity(PyObject* event, std::optional<double> timeout);
  const EventTypeInfo& accept(PyObject* event, LaneEntry& entry, WatcherCall watchers);
  void put_part(std::vector<LaneEntry>& part, std::optional<double> timeout);
  std::size_t put_same_lane(LaneEntry* first, std::size_t count);
  std::uint64_t yield_gil();
  bool is_backlogged(const Lane& lane) const;
  bool wait_for_handlers(const Lane& lane);
  void release_displaced(const Displaced& displaced);
  void count_drop(const LaneEntry& entry);

  // --- handling ---
  // The path of every event is inlined into `run_slice`; rare paths are separate functions.
  void run_slice(Worker& worker, std::uint8_t lane);
  std::size_t handle(Worker& worker, std::size_t lane, std::uint64_t began);
  [[gnu::always_inline]] std::size_t handle_next(Worker& worker, Lane& lane, Cursor& cursor, std::uint64_t began);
  std::size_t handle_one(Worker& worker, Lane& lane, LaneEntry& entry, const EventTypeInfo& info, std::uint64_t began);
  [[gnu::noinline]] std::size_t handle_batch(Worker& worker, Lane& lane, Cursor& cursor, const EventTypeInfo& info,
                                             std::uint64_t began);
  bool skipped(const EventTypeInfo& info, const Handler& handler) const;
  bool discarded(const EventTypeInfo& info) const;
  void discard(Lane& lane, LaneEntry& entry);
  enum class HandleResult : std::uint8_t { handled, dead, pending, dropped };
  HandleResult call_managed(const Handler& handler, const EventTypeInfo& info, LaneEntry& entry, std::size_t i,
                            std::uint64_t began);
  bool call_plain(const Handler& handler, const LaneEntry& entry, std::size_t i);
  void call_batch(const EventTypeInfo& info, std::size_t i, LaneEntry* first, std::vector<bool>& dead);
  bool on_failure(const LaneEntry& entry, std::size_t handler);
  std::uint64_t span_ns(std::uint64_t span) const;
  [[gnu::always_inline]] void finish(Lane& lane, LaneEntry& entry, std::uint64_t began, std::uint64_t end, bool dead);
  void handle_without_gil(Worker& worker, Lane& lane, Cursor& cursor);
  void release_permit(const EventTypeInfo& info, std::uint32_t type);

  // --- threads ---
  void run_thread(Worker& worker);
  void p0_loop();
  void worker_loop(Worker& worker);
  void drain_p0(Worker& worker, Lane& lane);
  void take_gil_for_p0(Worker& worker);
  const Worker* running_worker() const;
  int next_lane(Worker& worker);
  void wait_for_work(Worker& worker);
  bool higher_lane_ready(std::uint8_t lane) const;
  void run_lane(Worker& worker, std::uint8_t lane);
  void begin_overrun(Worker& worker);
  [[gnu::noinline]] void end_overrun(Worker& worker, std::uint32_t type);
  void start_spare();
  bool may_fill(const Worker& worker) const {
    return worker.spare == SIZE_MAX || worker.spare < overrunning_.load(std::memory_order_relaxed);
  }
  void report(const char* what, std::uint32_t type, std::uint32_t handler, std::uint64_t spent);
  void create_thread_state(Worker& worker);
  void start_thread(Worker& worker);
  void configure_p0_thread();
  void release_all();

  const Options options_;
  const TickScale scale_;
  const std::uint64_t gil_slice_;  // ticks
  const double ns_per_tick_;
  Worker step_worker_;
  std::optional<int> p0_cpu_;
  bool p0_realtime_ = false;
  std::vector<std::thread> threads_;
  std::atomic<int> live_threads_{0};
  std::atomic<std::size_t> started_threads_{0};  // threads with a Python thread state
  std::atomic<std::size_t> background_running_{0};
  // Workers whose handler overruns, in all and by type.
  std::atomic<std::size_t> overrunning_{0};
  std::unordered_map<std::uint32_t, std::size_t> overrunning_types_;
  WakeSignal spare_signal_;
  std::atomic<std::size_t> p1_busy_{0};
  std::size_t p1_workers_ = 0;
  std::array<std::unordered_map<std::uint64_t, std::pair<LaneEntry, std::uint64_t>>, Lanes::kLanes> in_flight_;
  std::array<std::unordered_map<std::uint64_t, bool>, Lanes::kLanes> settled_early_;
  std::mutex reports_lock_;
  std::vector<Report> reports_;
  std::vector<std::pair<std::size_t, std::string>> faults_;
  std::mutex handled_lock_;
  std::vector<LaneEntry> handled_;  // without the GIL, not yet released
  std::atomic<std::size_t> handled_count_{0};
};

// While it exists, its thread is in a handler.
class HandlerScope {
 public:
  HandlerScope();
  ~HandlerScope();

 private:
  const bool outer_;
};

}  // namespace qts::events
