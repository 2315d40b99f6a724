// The lanes with the interpreter: publishing, calling handlers, and the threads that do it.
//
// The GIL is never asked for under a lane's lock, and no lane's lock is held while a handler runs:
// publishing can therefore never wait for a handler, except for room in a lane that blocks.
//
//   lanes_publish.cpp    an event's way in
//   lanes_dispatch.cpp   an event's way through its handlers
//   lanes_workers.cpp    the threads, the turn and the GIL
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
  Turn::Seat seat;
  std::atomic<std::uint32_t> type{0}, handler{0};
  std::atomic<std::uint64_t> began{0};
  std::atomic<bool> broken{false};  // a drill: the thread fails at its next round
  std::uint64_t ended = 0;          // ticks at which its last handler returned
  PyThreadState* thread_state = nullptr;

  void drill() {
    if (broken.exchange(false)) throw std::runtime_error("a planted fault");
  }
};

struct Options {
  std::array<LaneSpec, Lanes::kLanes> specs;
  std::size_t audit = 0;
  std::uint64_t hold_ns = 1'000'000;
  std::uint64_t hold_events = 1000;
  std::uint64_t patience_ns = 5'000'000;
  std::uint64_t gil_wait_ns = 2'000'000;  // P0 names whoever made it wait longer
  std::size_t background = 2;             // workers that may be in P3 handlers at once
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const Options& options, nb::object event_class, nb::dict types);
  ~Core();

  // --- publishing, with the GIL ---
  void publish(PyObject* event, std::optional<double> timeout);
  bool try_publish(PyObject* event);
  std::size_t publish_many(PyObject* events, std::optional<double> timeout);
  // As a handler publishes: past the bound rather than wait. False: that is full as well.
  bool publish_over(PyObject* event) { return put(event, true, Told::now); }
  // Whether this thread is in a handler.
  static bool inside();

  // --- handling, with the GIL ---
  // One event, or one batch, by hand. -1: a higher lane comes first; 0: nothing is ready.
  int step(std::size_t lane);
  // What became of an event whose handler said None.
  void settle(std::size_t lane, std::uint64_t sequence, bool dead);
  // For a lane whose handlers run elsewhere: (event, sequence) of some events into the caller's hands,
  // who settles each of them. Waits without the GIL, and lets P0 go first.
  nb::list take(std::size_t number, std::size_t most, double seconds);
  // What became of an event taken so, and when its handlers were at it, in ticks.
  void settle_at(std::size_t number, std::uint64_t sequence, bool dead, std::uint64_t began, std::uint64_t ended);
  // Lets go of events that were handled without the GIL.
  void bury();

  // --- threads ---
  std::size_t add_worker(std::vector<std::uint8_t> served);
  void start(std::optional<int> p0_cpu, bool realtime);
  // With the GIL released. False: a handler did not return in time; its thread is left behind.
  bool join(double seconds);
  // A new thread in the place of one that a fault has ended.
  void revive(std::size_t number);
  void break_worker(std::size_t number);
  std::vector<std::pair<std::size_t, std::string>> take_faults();
  std::vector<Report> take_reports();

  // --- for the interpreter's collector ---
  template <class Visit>
  int each_reference(Visit&& visit) {
    if (const int result = contract.each_reference(visit); result != 0) return result;
    for (nb::object* object : {&failed, &failed_batch})
      if (object->is_valid())
        if (const int result = visit(object->ptr()); result != 0) return result;
    for (auto& row : contract.rows) {
      if (row->watcher.is_valid())
        if (const int result = visit(row->watcher.ptr()); result != 0) return result;
      for (Handler& handler : row->handlers)
        if (handler.callable.is_valid())
          if (const int result = visit(handler.callable.ptr()); result != 0) return result;
    }
    return 0;
  }
  void clear();

  Lanes lanes;
  Contract contract;
  nb::object failed, failed_batch;  // Python tries again, or gives up
  std::atomic<bool> halt{false}, open{true}, critical_only{false};
  std::vector<std::unique_ptr<Worker>> workers;
  std::atomic<bool> pinned{false}, is_realtime{false};
  Histogram gil_wait;  // of P0, ns
  // (type, key) of what was dropped, and how often; with the GIL.
  std::map<std::pair<std::uint32_t, std::string>, std::uint64_t> drops;

 private:
  // --- publishing ---
  // Whether those who watch have seen the event before: it waited for room.
  enum class Told : std::uint8_t { now, before };
  bool put(PyObject* event, bool over, Told told);
  void wait_for_room(PyObject* event, std::optional<double> timeout);
  const Row& accept(PyObject* event, Entry& entry, Told told);
  void put_part(std::vector<Entry>& part, std::optional<double> timeout);
  std::size_t put_run(Entry* first, std::size_t count);
  std::uint64_t give_way();
  bool is_far_ahead(const Lane& lane) const;
  bool let_catch_up(const Lane& lane);
  void let_go(const Displaced& displaced);
  void note_drop(const Entry& entry);

  // --- handling ---
  // What every event passes is one piece of code in `hold`; what few need stands apart from it.
  void hold(Worker& worker, std::uint8_t lane);
  std::size_t handle(Worker& worker, std::size_t lane, std::uint64_t began);
  [[gnu::always_inline]] std::size_t handle_next(Worker& worker, Lane& lane, Cursor& cursor, std::uint64_t began);
  std::size_t handle_one(Worker& worker, Lane& lane, Entry& entry, const Row& row, std::uint64_t began);
  [[gnu::noinline]] std::size_t handle_batch(Worker& worker, Lane& lane, Cursor& cursor, const Row& row, std::uint64_t began);
  bool skipped(const Row& row, const Handler& handler) const;
  enum class Verdict : std::uint8_t { handled, dead, later };
  Verdict call_managed(const Handler& handler, const Row& row, Entry& entry, std::size_t i, std::uint64_t began);
  bool call_plain(const Handler& handler, const Entry& entry, std::size_t i);
  void call_batch(const Row& row, std::size_t i, Entry* first, std::vector<bool>& dead);
  bool ask(const Entry& entry, std::size_t handler);
  std::uint64_t span_ns(std::uint64_t span) const;
  [[gnu::always_inline]] void finish(Lane& lane, Entry& entry, std::uint64_t began, std::uint64_t end, bool dead);
  void handle_without_gil(Worker& worker, Lane& lane, Cursor& cursor);

  // --- threads ---
  void live(Worker& worker);
  void p0_loop();
  void worker_loop(Worker& worker);
  void drain_p0(Worker& worker, Lane& lane);
  void take_gil_for_p0(Worker& worker);
  const Worker* at_work() const;
  int choose(Worker& worker);
  void rest(Worker& worker);
  bool higher_waits(std::uint8_t lane) const;
  void run(Worker& worker, std::uint8_t lane);
  void report(const char* what, std::uint32_t type, std::uint32_t handler, std::uint64_t spent);
  void begin_thread_state(Worker& worker);
  void claim_cpu(std::optional<int> cpu, bool realtime);
  void discard();

  const Options options_;
  const TickScale scale_;
  const std::uint64_t hold_;  // ticks
  const double ns_per_tick_;
  Worker by_hand_;
  std::vector<std::thread> threads_;
  std::atomic<int> alive_{0};
  std::atomic<std::size_t> begun_{0};  // threads that Python knows
  std::atomic<std::size_t> background_{0};
  std::atomic<std::size_t> p1_busy_{0};
  std::size_t p1_workers_ = 0;
  std::array<std::unordered_map<std::uint64_t, std::pair<Entry, std::uint64_t>>, Lanes::kLanes> in_flight_;
  std::array<std::unordered_map<std::uint64_t, bool>, Lanes::kLanes> early_;
  std::mutex reports_lock_;
  std::vector<Report> reports_;
  std::vector<std::pair<std::size_t, std::string>> faults_;
  std::mutex dead_lock_;
  std::vector<Entry> dead_;
  std::atomic<std::size_t> dead_count_{0};
};

// While it lives, this thread is in a handler.
class InsideHandler {
 public:
  InsideHandler();
  ~InsideHandler();

 private:
  const bool outer_;
};

}  // namespace qts::events
