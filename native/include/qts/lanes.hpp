// Lanes: the four event lanes P0 to P3, and the order in which their events are handled.
//
// Thread contract: publishing, pausing and reading from any thread; each Cursor belongs to one thread.
// Invariant: the events of a lane are taken in the order of its queue; a cursor that stops in the
// middle of its batch continues at that position, so no event is handled twice or skipped.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "qts/clock.hpp"
#include "qts/histogram.hpp"
#include "qts/lane_lock.hpp"
#include "qts/lane_queue.hpp"
#include "qts/recent_histogram.hpp"

namespace qts {

struct LaneSpec {
  std::size_t capacity;
  OverflowPolicy policy;
  std::uint64_t share;      // accepted by sampling, of LaneQueue::kAll
  std::size_t batch;        // events passed to a batch handler at once, and taken at once
  std::uint64_t window_ns;  // how long an event waits for a full batch
  bool by_key;              // a batch holds events of one key, else of one type
};

// Where worker threads wait for events. A waiter registers before its last check for work, and a
// publisher stores its event before notify(): since both are sequentially consistent, either the check
// finds the event or notify() finds the waiter.
class WakeSignal {
 public:
  void notify() {
    if (waiters_.load(std::memory_order_seq_cst) == 0) return;
    { const std::lock_guard hold(lock_); }
    notified_.notify_one();
  }
  void notify_all() {
    { const std::lock_guard hold(lock_); }
    notified_.notify_all();
  }
  template <class HasWork>
  void wait(std::chrono::nanoseconds timeout, HasWork&& has_work) {
    std::unique_lock hold(lock_);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    if (!has_work()) notified_.wait_for(hold, timeout);
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::mutex lock_;
  std::condition_variable notified_;
  std::atomic<int> waiters_{0};
};

class Lane {
 public:
  Lane(std::uint8_t number, const LaneSpec& of, LaneAudit* audit)
      : spec(of), queue(number, of.capacity, of.policy, of.share, audit), batch(of.batch),
        window_(tick_scale().span_ticks(of.window_ns)) {}

  bool ready(std::uint64_t now) const {
    return !paused.load(std::memory_order_relaxed) && queue.ready(batch.load(std::memory_order_relaxed), window_, now);
  }
  std::uint64_t due() const { return queue.due(window_); }

  const LaneSpec spec;
  LaneQueue queue;
  Histogram wait, handling, total;  // ns
  RecentHistogram recent_total{total};
  std::atomic<bool> paused{false};
  std::atomic<std::size_t> batch;
  std::atomic<std::uint64_t> overran{0};

 private:
  const std::uint64_t window_;
};

// The events that one worker has taken and not yet handled.
class Cursor {
 public:
  bool empty() const { return next_ == taken_; }
  std::size_t remaining() const { return taken_ - next_; }
  LaneEntry* current() { return entries_.data() + next_; }
  void advance(std::size_t by) {
    next_ += by;
    in_handler_ = 1;
  }
  // How many entries from the current one on a handler is called with; 1 unless set.
  void set_in_handler(std::size_t count) { in_handler_ = count; }
  // Puts the entries that no handler is called with back into the lane; `running`: a handler runs.
  void put_back(Lane& lane, bool running) {
    const std::size_t end = std::min(taken_, next_ + (running ? in_handler_ : 0));
    lane.queue.put_back(entries_.data() + end, taken_ - end);
    taken_ = end;
  }
  std::size_t fill(Lane& lane) {
    const std::size_t max = lane.batch.load(std::memory_order_relaxed);
    if (entries_.size() < max) entries_.resize(max);
    next_ = 0;
    taken_ = lane.queue.take(entries_.data(), max);
    return taken_;
  }

 private:
  std::vector<LaneEntry> entries_;
  std::size_t next_ = 0, taken_ = 0, in_handler_ = 1;
};

class Lanes {
 public:
  static constexpr std::size_t kLanes = 4;
  // How long a P0 handler delays the other lanes, and an owner of the lane lock may sleep.
  static constexpr std::uint64_t kMaxDelayNs = 20'000'000;

  Lanes(const std::array<LaneSpec, kLanes>& specs, std::size_t audit, std::uint64_t overtake_after_ns)
      : audit_(audit), lock(overtake_after_ns, kMaxDelayNs), max_delay_(tick_scale().span_ticks(kMaxDelayNs)) {
    for (std::size_t i = 0; i < kLanes; ++i)
      lanes_[i] = std::make_unique<Lane>(static_cast<std::uint8_t>(i), specs[i], audit != 0 ? &audit_ : nullptr);
  }

  Lane& operator[](std::size_t lane) { return *lanes_[lane]; }
  const Lane& operator[](std::size_t lane) const { return *lanes_[lane]; }
  LaneAudit& audit() { return audit_; }

  // The wake signal of a lane: P2 and P3 share one while they share their workers.
  WakeSignal& wake_signal(std::size_t lane) { return wake_signals_[lane == 3 && !separate_ ? 2 : lane]; }
  // Called before any thread runs: P2 and P3 have no worker in common.
  void separate_workers() { separate_ = true; }
  bool has_separate_workers() const { return separate_; }
  void wake_all() {
    for (WakeSignal& each : wake_signals_) each.notify_all();
  }

  // Whether the other lanes must wait for P0: it has events waiting, or its handler runs (but no longer
  // than kMaxDelayNs).
  bool p0_pending() const {
    if (lanes_[0]->queue.size() != 0 && !lanes_[0]->paused.load(std::memory_order_relaxed)) return true;
    const std::uint64_t began = p0_began.load(std::memory_order_relaxed);
    return began == kP0WaitsForGil || (began != 0 && ticks() - began < max_delay_);
  }

  // The tick at which P0 began its event; 0: it is idle; kP0WaitsForGil: it has taken events and waits.
  static constexpr std::uint64_t kP0WaitsForGil = UINT64_MAX;
  std::atomic<std::uint64_t> p0_began{0};

 private:
  LaneAudit audit_;
  std::array<std::unique_ptr<Lane>, kLanes> lanes_;
  std::array<WakeSignal, 4> wake_signals_;
  bool separate_ = false;

 public:
  LaneLock lock;

 private:
  const std::uint64_t max_delay_;
};

// Repeats recorded publishing and taking on empty lanes and returns the records that this makes: every
// drop and collapse occurs again, event by event.
inline std::vector<AuditRecord> replay(const std::array<LaneSpec, Lanes::kLanes>& specs,
                                       const std::vector<AuditRecord>& records) {
  LaneAudit audit(SIZE_MAX);
  std::array<std::unique_ptr<LaneQueue>, Lanes::kLanes> lanes;
  for (std::size_t i = 0; i < Lanes::kLanes; ++i)
    lanes[i] = std::make_unique<LaneQueue>(static_cast<std::uint8_t>(i), specs[i].capacity, specs[i].policy,
                                           specs[i].share, &audit);
  std::array<std::unordered_map<std::uint64_t, LaneEntry>, Lanes::kLanes> in_flight;  // by sequence
  for (const AuditRecord& record : records) {
    LaneQueue& lane = *lanes[record.lane % Lanes::kLanes];
    auto& taken = in_flight[record.lane % Lanes::kLanes];
    if (record.action == AuditAction::published) {
      LaneEntry entry;
      entry.hash = record.key;
      entry.type = record.type;
      entry.can_collapse = (record.flags & 1) != 0;
      entry.can_drop = (record.flags & 2) != 0;
      Displaced displaced;
      lane.put(entry, displaced, true);
    } else if (record.action == AuditAction::taken) {
      if (LaneEntry entry; lane.take_sequence(record.sequence, entry)) taken.emplace(record.sequence, entry);
    } else if (const auto found = taken.find(record.sequence); found != taken.end()) {
      if (record.action == AuditAction::returned) lane.put_back(&found->second, 1);
      if (record.action == AuditAction::dropped) lane.settle_dropped(found->second);
      if (record.action != AuditAction::retried) taken.erase(found);
    }
  }
  return audit.drain();
}

}  // namespace qts
