// The threads of the lanes: when each may have the turn and the GIL, and for how long.
#include "lanes_core.hpp"

#include <chrono>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace qts::events {

namespace {

void end_thread_state(Worker& worker) {
  if (!nb::is_alive()) return;
  PyEval_RestoreThread(worker.thread_state);
  PyGILState_Release(PyGILState_UNLOCKED);
}

void drop_rest(Cursor& cursor) {
  for (; !cursor.empty(); cursor.advance(1)) release(*cursor.rest());
}

}  // namespace

Core::Core(const Options& options, nb::object event_class, nb::dict types)
    : lanes(options.specs, options.audit, options.patience_ns), contract(std::move(event_class), std::move(types)),
      options_(options), scale_(tick_scale()), hold_(scale_.span_ticks(options.hold_ns)),
      ns_per_tick_(1.0 / scale_.ticks_per_ns()) {}

Core::~Core() { discard(); }

// --- a thread's life ------------------------------------------------------------------------------

std::size_t Core::add_worker(std::vector<std::uint8_t> served) {
  workers.push_back(std::make_unique<Worker>());
  workers.back()->number = workers.size() - 1;
  if (served.front() == 1) ++p1_workers_;
  workers.back()->lanes = std::move(served);
  return workers.size() - 1;
}

// Returns when every thread is known to Python: memory that ends later must not end one of them.
void Core::start(std::optional<int> p0_cpu, bool realtime) {
  halt.store(false);
  begun_.store(0);
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
  const nb::gil_scoped_release released;
  for (std::size_t now = begun_.load(); now < workers.size(); now = begun_.load()) begun_.wait(now);
}

void Core::begin_thread_state(Worker& worker) {
  PyGILState_Ensure();  // once for the thread's life: one per event would cost some 7 us
  worker.thread_state = PyEval_SaveThread();
  begun_.fetch_add(1);
  begun_.notify_all();
}

// What a handler raises is its own affair; an error of the lane itself ends the thread, and is there
// to be seen.
void Core::live(Worker& worker) {
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

void Core::revive(std::size_t number) {
  Worker* mine = workers.at(number).get();
  alive_.fetch_add(1);
  try {
    threads_.emplace_back([self = shared_from_this(), mine] {
      self->live(*mine);
      self->alive_.fetch_sub(1);
    });
  } catch (...) {
    alive_.fetch_sub(1);
    throw;
  }
}

void Core::break_worker(std::size_t number) {
  workers.at(number)->broken.store(true);
  lanes.ring_all();
}

bool Core::join(double seconds) {
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

void Core::claim_cpu(std::optional<int> cpu, bool realtime) {
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

// --- P0 -------------------------------------------------------------------------------------------

void Core::p0_loop() {
  Worker& worker = *workers[0];
  begin_thread_state(worker);
  const InsideHandler inside;
  Lane& lane = lanes[0];
  while (!halt.load(std::memory_order_relaxed)) {
    worker.drill();
    if (lane.queue.size() == 0 || lane.paused.load(std::memory_order_relaxed)) {
      lanes.bell(0).sleep(std::chrono::milliseconds(50), [&] {
        return halt.load() || (lane.queue.size() != 0 && !lane.paused.load());
      });
      continue;
    }
    lanes.p0_began.store(Lanes::kP0Waits, std::memory_order_relaxed);
    drain_p0(worker, lane);
    lanes.p0_began.store(0, std::memory_order_relaxed);
  }
  end_thread_state(worker);
}

void Core::drain_p0(Worker& worker, Lane& lane) {
  Cursor& cursor = worker.cursors[0];
  bool holds_gil = false;
  while (!halt.load(std::memory_order_relaxed)) {
    if (cursor.empty() && (lane.paused.load(std::memory_order_relaxed) || cursor.fill(lane) == 0)) break;
    if (!holds_gil && !contract.rows[cursor.rest()->type]->needs_python) {
      handle_without_gil(worker, lane, cursor);
      continue;
    }
    if (!holds_gil) take_gil_for_p0(worker);
    holds_gil = true;
    const std::uint64_t now = ticks();
    lanes.p0_began.store(now, std::memory_order_relaxed);
    handle(worker, 0, now);
  }
  if (holds_gil) worker.thread_state = PyEval_SaveThread();
}

void Core::take_gil_for_p0(Worker& worker) {
  const std::uint64_t asked = ticks();
  std::uint32_t type = UINT32_MAX, handler = 0;
  const auto name = [&](const Worker* holder) {
    if (holder == nullptr) return;
    type = holder->type.load(std::memory_order_relaxed);
    handler = holder->handler.load(std::memory_order_relaxed);
  };
  name(at_work());
  PyEval_RestoreThread(worker.thread_state);
  if (type == UINT32_MAX) name(at_work());  // it was about to begin, and came first
  const std::uint64_t waited = scale_.span_ns(ticks() - asked);
  gil_wait.record(waited);
  if (waited > options_.gil_wait_ns) report("held", type, handler, ticks() - asked);
}

// The worker whose turn it is, when it is in a handler: sleepers have lent theirs on.
const Worker* Core::at_work() const {
  const Turn::Seat* seat = lanes.turn.at_work();
  for (const auto& worker : workers)
    if (&worker->seat == seat) return worker.get();
  return nullptr;
}

// --- P1 to P3 -------------------------------------------------------------------------------------

void Core::worker_loop(Worker& worker) {
  begin_thread_state(worker);
  const InsideHandler inside;
  worker.seat.sit();
  while (!halt.load(std::memory_order_relaxed)) {
    worker.drill();
    const int lane = choose(worker);
    if (lane >= 0) run(worker, static_cast<std::uint8_t>(lane));
    else rest(worker);
  }
  end_thread_state(worker);
}

// The highest lane of the worker that has something to do; -1: none.
int Core::choose(Worker& worker) {
  const std::uint64_t now = ticks();
  for (const std::uint8_t lane : worker.lanes) {
    if (lanes[lane].paused.load(std::memory_order_relaxed)) continue;
    const bool mine = !worker.cursors[lane].empty();
    if (!mine && !lanes[lane].ready(now)) continue;
    if (lane == 3 && background_.load(std::memory_order_relaxed) >= options_.background) continue;
    return lane;
  }
  return -1;
}

void Core::rest(Worker& worker) {
  std::chrono::nanoseconds nap = std::chrono::milliseconds(20);
  const std::uint64_t now = ticks();
  for (const std::uint8_t lane : worker.lanes)
    if (const std::uint64_t due = lanes[lane].due(); due > now)
      nap = std::min(nap, std::chrono::nanoseconds(scale_.span_ns(due - now) + 10'000));
  lanes.bell(worker.lanes.front()).sleep(nap, [&] { return halt.load() || choose(worker) >= 0; });
}

// Something above can be handled and has somebody to do it: P1 a free worker, P2 this very one.
bool Core::higher_waits(std::uint8_t lane) const {
  if (lane < 2) return false;
  const std::uint64_t now = ticks();
  if (lane == 3 && !lanes.apart() && lanes[2].ready(now)) return true;
  return lanes[1].ready(now) && p1_busy_.load(std::memory_order_relaxed) < p1_workers_;
}

void Core::run(Worker& worker, std::uint8_t lane) {
  while ((lanes.p0_wants() || higher_waits(lane)) && !halt.load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (lane == 3 && !lanes.apart() && lanes[2].ready(ticks())) return;
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

// --- what there is to tell ------------------------------------------------------------------------

std::vector<std::pair<std::size_t, std::string>> Core::take_faults() {
  std::vector<std::pair<std::size_t, std::string>> out;
  const std::lock_guard hold(reports_lock_);
  out.swap(faults_);
  return out;
}

std::vector<Report> Core::take_reports() {
  std::vector<Report> out;
  const std::lock_guard hold(reports_lock_);
  out.swap(reports_);
  return out;
}

void Core::report(const char* what, std::uint32_t type, std::uint32_t handler, std::uint64_t spent) {
  const std::lock_guard hold(reports_lock_);
  if (reports_.size() < 1024) reports_.push_back({what, type, handler, scale_.span_ns(spent)});
}

// --- the end --------------------------------------------------------------------------------------

void Core::clear() {
  contract.clear();
  failed.reset();
  failed_batch.reset();
}

// With the GIL: events that nobody will handle any more.
void Core::discard() {
  if (!nb::is_alive()) {
    contract.abandon();
    failed.release();
    failed_batch.release();
    return;
  }
  const nb::gil_scoped_acquire gil;
  bury();
  Entry entry;
  for (std::size_t lane = 0; lane < Lanes::kLanes; ++lane) {
    while (lanes[lane].queue.take(&entry, 1) != 0) release(entry);
    for (auto& [sequence, flying] : in_flight_[lane]) release(flying.first);
    drop_rest(by_hand_.cursors[lane]);
    for (auto& worker : workers) drop_rest(worker->cursors[lane]);
  }
  clear();
  contract.end();
}

}  // namespace qts::events
