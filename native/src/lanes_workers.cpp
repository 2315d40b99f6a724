// Worker threads of the lanes: when each takes the lane lock and the GIL, and for how long.
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

// How many handlers of P2 and P3 may overrun at once, and how many of one type.
constexpr std::size_t kSpareWorkers = 32, kOverrunsPerType = 4;

void release_remaining(Cursor& cursor) {
  for (; !cursor.empty(); cursor.advance(1)) release(*cursor.current());
}

}  // namespace

LaneCore::LaneCore(const Options& options, nb::object event_class, nb::dict types)
    : lanes(options.specs, options.audit, options.overtake_after_ns), contract(std::move(event_class), std::move(types)),
      options_(options), scale_(tick_scale()), gil_slice_(scale_.span_ticks(options.gil_slice_ns)),
      ns_per_tick_(1.0 / scale_.ticks_per_ns()) {}

LaneCore::~LaneCore() { release_all(); }

// --- start and end --------------------------------------------------------------------------------

std::size_t LaneCore::add_worker(std::vector<std::uint8_t> served) {
  workers.push_back(std::make_unique<Worker>());
  workers.back()->number = workers.size() - 1;
  if (served.front() == 1) ++p1_workers_;
  workers.back()->lanes = std::move(served);
  return workers.size() - 1;
}

// Returns when every thread has its Python thread state: a later lack of memory must not end a thread.
void LaneCore::start(std::optional<int> p0_cpu, bool realtime) {
  halt.store(false);
  started_threads_.store(0);
  p0_cpu_ = p0_cpu;
  p0_realtime_ = realtime;
  const std::size_t count = workers.size();
  if (const std::vector<std::uint8_t> pool = workers.back()->lanes; pool.front() >= 2)
    for (std::size_t spare = 0; spare < kSpareWorkers; ++spare) workers[add_worker(pool)]->spare = spare;
  for (std::size_t i = 0; i < count; ++i) start_thread(*workers[i]);
  const nb::gil_scoped_release released;
  for (std::size_t now = started_threads_.load(); now < count; now = started_threads_.load()) started_threads_.wait(now);
}

void LaneCore::create_thread_state(Worker& worker) {
  PyGILState_Ensure();  // once per thread: a new state per event would cost 7 us
  worker.thread_state = PyEval_SaveThread();
  started_threads_.fetch_add(1);
  started_threads_.notify_all();
}

void LaneCore::start_thread(Worker& worker) {
  live_threads_.fetch_add(1);
  try {
    threads_.emplace_back([self = shared_from_this(), &worker] {
      if (worker.number == 0) self->configure_p0_thread();
      self->run_thread(worker);
      self->live_threads_.fetch_sub(1);
    });
  } catch (...) {
    live_threads_.fetch_sub(1);
    throw;
  }
}

// Errors of handlers are handled elsewhere; an error of the lane ends the thread and is reported as a fault.
void LaneCore::run_thread(Worker& worker) {
  try {
    if (worker.number == 0) p0_loop();
    else worker_loop(worker);
  } catch (const std::exception& error) {
    lanes.p0_began.store(0);
    lanes.lock.release(worker.waiter);
    end_thread_state(worker);
    const std::lock_guard hold(reports_lock_);
    faults_.emplace_back(worker.number, error.what());
  }
}

void LaneCore::restart_worker(std::size_t number) { start_thread(*workers.at(number)); }

void LaneCore::inject_fault(std::size_t number) {
  workers.at(number)->fault_injected.store(true);
  lanes.wake_all();
}

bool LaneCore::join(double seconds) {
  halt.store(true);
  lanes.wake_all();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (live_threads_.load() != 0 && std::chrono::steady_clock::now() < end) {
    lanes.wake_all();
    spare_signal_.notify_all();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  const bool all = live_threads_.load() == 0;
  for (std::thread& thread : threads_)
    if (all) thread.join();
    else thread.detach();
  threads_.clear();
  return all;
}

void LaneCore::configure_p0_thread() {
#if defined(__linux__)
  if (p0_cpu_) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(*p0_cpu_), &set);
    pinned.store(pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0);
  }
  if (p0_realtime_) {
    sched_param priority{};
    priority.sched_priority = 1;
    is_realtime.store(pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority) == 0);
  }
#endif
}

// --- P0 -------------------------------------------------------------------------------------------

void LaneCore::p0_loop() {
  Worker& worker = *workers[0];
  create_thread_state(worker);
  const HandlerScope scope;
  Lane& lane = lanes[0];
  while (!halt.load(std::memory_order_relaxed)) {
    worker.check_fault();
    if (lane.queue.size() == 0 || lane.paused.load(std::memory_order_relaxed)) {
      lanes.wake_signal(0).wait(std::chrono::milliseconds(50), [&] {
        return halt.load() || (lane.queue.size() != 0 && !lane.paused.load());
      });
      continue;
    }
    lanes.p0_began.store(Lanes::kP0WaitsForGil, std::memory_order_relaxed);
    drain_p0(worker, lane);
    lanes.p0_began.store(0, std::memory_order_relaxed);
  }
  end_thread_state(worker);
}

void LaneCore::drain_p0(Worker& worker, Lane& lane) {
  Cursor& cursor = worker.cursors[0];
  bool holds_gil = false;
  while (!halt.load(std::memory_order_relaxed)) {
    if (cursor.empty() && (lane.paused.load(std::memory_order_relaxed) || cursor.fill(lane) == 0)) break;
    if (!holds_gil && !contract.types[cursor.current()->type]->needs_python) {
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

void LaneCore::take_gil_for_p0(Worker& worker) {
  const std::uint64_t began = ticks();
  std::uint32_t type = UINT32_MAX, handler = 0;
  const auto name = [&](const Worker* holder) {
    if (holder == nullptr) return;
    type = holder->type.load(std::memory_order_relaxed);
    handler = holder->handler.load(std::memory_order_relaxed);
  };
  name(running_worker());
  PyEval_RestoreThread(worker.thread_state);
  if (type == UINT32_MAX) name(running_worker());  // its handler had not begun yet
  const std::uint64_t waited = scale_.span_ns(ticks() - began);
  gil_wait.record(waited);
  if (waited > options_.gil_stall_ns) report("gil_stall", type, handler, ticks() - began);
}

// The worker that is in a handler and owns the lane lock, or was overtaken; null: none.
const Worker* LaneCore::running_worker() const {
  const LaneLock::Waiter* waiter = lanes.lock.in_event();
  for (const auto& worker : workers)
    if (&worker->waiter == waiter) return worker.get();
  return nullptr;
}

// --- P1 to P3 -------------------------------------------------------------------------------------

void LaneCore::worker_loop(Worker& worker) {
  create_thread_state(worker);
  const HandlerScope scope;
  worker.waiter.use_this_thread();
  while (!halt.load(std::memory_order_relaxed)) {
    worker.check_fault();
    const int lane = next_lane(worker);
    if (lane >= 0) run_lane(worker, static_cast<std::uint8_t>(lane));
    else wait_for_work(worker);
  }
  end_thread_state(worker);
}

// Returns the highest lane of the worker that has events to handle; -1: none.
int LaneCore::next_lane(Worker& worker) {
  const std::uint64_t now = ticks();
  for (const std::uint8_t lane : worker.lanes) {
    if (lanes[lane].paused.load(std::memory_order_relaxed)) continue;
    const bool has_events = !worker.cursors[lane].empty();
    if (!has_events && (!may_fill(worker) || !lanes[lane].ready(now))) continue;
    if (lane == 3 && background_running_.load(std::memory_order_relaxed) >= options_.background_workers) continue;
    return lane;
  }
  return -1;
}

void LaneCore::wait_for_work(Worker& worker) {
  if (!may_fill(worker)) {
    spare_signal_.wait(std::chrono::seconds(1), [&] { return halt.load() || may_fill(worker) || next_lane(worker) >= 0; });
    return;
  }
  std::chrono::nanoseconds timeout = std::chrono::milliseconds(20);
  const std::uint64_t now = ticks();
  for (const std::uint8_t lane : worker.lanes)
    if (const std::uint64_t due = lanes[lane].due(); due > now)
      timeout = std::min(timeout, std::chrono::nanoseconds(scale_.span_ns(due - now) + 10'000));
  lanes.wake_signal(worker.lanes.front()).wait(timeout, [&] { return halt.load() || next_lane(worker) >= 0; });
}

// Whether a higher lane has events and a worker for them: P1 a free worker, P2 this one.
bool LaneCore::higher_lane_ready(std::uint8_t lane) const {
  if (lane < 2) return false;
  const std::uint64_t now = ticks();
  if (lane == 3 && !lanes.has_separate_workers() && lanes[2].ready(now)) return true;
  return lanes[1].ready(now) && p1_busy_.load(std::memory_order_relaxed) < p1_workers_;
}

void LaneCore::run_lane(Worker& worker, std::uint8_t lane) {
  while ((lanes.p0_pending() || higher_lane_ready(lane)) && !halt.load(std::memory_order_relaxed)) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (lane == 3 && !lanes.has_separate_workers() && lanes[2].ready(ticks())) return;
  }
  if (lane == 3 && background_running_.fetch_add(1) >= options_.background_workers) {
    background_running_.fetch_sub(1);
    return;
  }
  worker.counts_as_background = lane == 3;
  worker.waiter.lane = lane;
  if (lane == 1) p1_busy_.fetch_add(1);
  if (lanes.lock.acquire(worker.waiter, halt)) {
    PyEval_RestoreThread(worker.thread_state);
    run_slice(worker, lane);
    worker.thread_state = PyEval_SaveThread();
  }
  lanes.lock.release(worker.waiter);
  if (lane == 1) p1_busy_.fetch_sub(1);
  if (std::exchange(worker.counts_as_background, false)) background_running_.fetch_sub(1);
}

// --- handlers that overrun --------------------------------------------------------------------------

// The GIL is held: a worker with an event is in its handler, and does not use its cursors before it has the GIL.
void LaneCore::relieve_overrun() {
  const std::uint64_t now = ticks(), limit = scale_.span_ticks(LaneLock::kOverrunNs);
  for (const auto& worker : workers) {
    const std::uint64_t began = worker->began.load(std::memory_order_relaxed);
    if (worker->lanes.front() < 2 || began == 0 || now < began || now - began < limit) continue;
    if (!worker->overruns) begin_overrun(*worker);
    for (const std::uint8_t lane : worker->lanes)
      worker->cursors[lane].put_back(lanes[lane], lane == contract.types[worker->type.load()]->lane);
  }
  if (overrunning_.load() == 0) return;
  start_spare();
  spare_signal_.notify_all();
  lanes.wake_all();
}

void LaneCore::begin_overrun(Worker& worker) {
  const std::uint32_t type = worker.type.load(std::memory_order_relaxed);
  worker.overruns = true;
  if (std::exchange(worker.counts_as_background, false)) background_running_.fetch_sub(1);
  const std::size_t count = ++overrunning_types_[type];
  if (overrunning_.fetch_add(1) + 1 >= kSpareWorkers || count >= kOverrunsPerType)
    lanes[contract.types[type]->lane].queue.change_limits([&](TypeLimits& limits) { limits.hold(type, true); });
}

void LaneCore::end_overrun(Worker& worker, std::uint32_t type) {
  worker.overruns = false;
  overrunning_.fetch_sub(1);
  --overrunning_types_[type];
  lanes[contract.types[type]->lane].queue.change_limits([&](TypeLimits& limits) { limits.hold(type, false); });
  lanes.wake_all();
}

// Starts the threads of the spare workers that are due; each then stays, and waits while it is not.
void LaneCore::start_spare() {
  for (const auto& worker : workers)
    if (worker->spare != SIZE_MAX && may_fill(*worker) && !worker->started) {
      start_thread(*worker);
      worker->started = true;
    }
}

// --- reports --------------------------------------------------------------------------------------

std::vector<std::pair<std::size_t, std::string>> LaneCore::take_faults() {
  std::vector<std::pair<std::size_t, std::string>> out;
  const std::lock_guard hold(reports_lock_);
  out.swap(faults_);
  return out;
}

std::vector<Report> LaneCore::take_reports() {
  std::vector<Report> out;
  const std::lock_guard hold(reports_lock_);
  out.swap(reports_);
  return out;
}

void LaneCore::report(const char* what, std::uint32_t type, std::uint32_t handler, std::uint64_t spent) {
  const std::lock_guard hold(reports_lock_);
  if (reports_.size() < 1024) reports_.push_back({what, type, handler, scale_.span_ns(spent)});
}

// --- release --------------------------------------------------------------------------------------

void LaneCore::clear() {
  contract.clear();
  failed.reset();
  failed_batch.reset();
}

// Releases the events that were not handled, and every Python object.
void LaneCore::release_all() {
  if (!nb::is_alive()) {
    contract.leak_all();
    failed.release();
    failed_batch.release();
    return;
  }
  const nb::gil_scoped_acquire gil;
  release_handled();
  LaneEntry entry;
  for (std::size_t lane = 0; lane < Lanes::kLanes; ++lane) {
    lanes[lane].queue.change_limits([](TypeLimits& limits) { limits.clear(); });
    while (lanes[lane].queue.take(&entry, 1) != 0) release(entry);
    for (auto& [sequence, entry_and_start] : in_flight_[lane]) release(entry_and_start.first);
    release_remaining(step_worker_.cursors[lane]);
    for (auto& worker : workers) release_remaining(worker->cursors[lane]);
  }
  clear();
  contract.release_all();
}

}  // namespace qts::events
