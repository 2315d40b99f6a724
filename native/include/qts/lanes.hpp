// Four lanes, P0 to P3, and the order in which their events are handled.
//
// Thread contract: publishing, pausing and reading from any thread; each Cursor belongs to one.
// Invariant: a lane's events are handed out in the order of the lane; a cursor that stops in the
// middle of what it took goes on at that place, so nothing is handled twice or skipped.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "qts/clock.hpp"
#include "qts/histogram.hpp"
#include "qts/lane_queue.hpp"
#include "qts/lane_turn.hpp"

namespace qts {

struct LaneSpec {
  std::size_t capacity;
  Policy policy;
  std::uint32_t keep_one_of;
  std::size_t batch;         // events handed to a batch handler at once, and taken at once
  std::uint64_t window_ns;   // a batch waits no longer for company
  bool by_key;               // a batch holds one key, else one type
};

// Where sleepers wait for work. A ring after the publisher's store is seen by a sleeper that has
// counted itself in before it looked a last time: both sides are sequentially consistent.
class Bell {
 public:
  void ring() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    { const std::lock_guard hold(lock_); }
    rung_.notify_one();
  }
  void ring_all() {
    { const std::lock_guard hold(lock_); }
    rung_.notify_all();
  }
  template <class Work>
  void sleep(std::chrono::nanoseconds most, Work&& work) {
    std::unique_lock hold(lock_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (!work()) rung_.wait_for(hold, most);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::mutex lock_;
  std::condition_variable rung_;
  std::atomic<int> sleepers_{0};
};

class Lane {
 public:
  Lane(std::uint8_t number, const LaneSpec& of, Audit* audit)
      : spec(of), queue(number, of.capacity, of.policy, of.keep_one_of, audit), batch(of.batch),
        window_(tick_scale().span_ticks(of.window_ns)) {}

  bool ready(std::uint64_t now) const {
    return !paused.load(std::memory_order_relaxed) && queue.ready(batch.load(std::memory_order_relaxed), window_, now);
  }
  std::uint64_t due() const { return queue.due(window_); }

  const LaneSpec spec;
  LaneQueue queue;
  Histogram wait, handling, total;  // ns
  std::atomic<bool> paused{false};
  std::atomic<std::size_t> batch;
  std::atomic<std::uint64_t> overran{0};

 private:
  const std::uint64_t window_;
};

// What one worker has taken and not yet handled.
class Cursor {
 public:
  bool empty() const { return place_ == taken_; }
  std::size_t left() const { return taken_ - place_; }
  Entry* rest() { return entries_.data() + place_; }
  void advance(std::size_t by) { place_ += by; }
  std::size_t fill(Lane& lane) {
    const std::size_t most = lane.batch.load(std::memory_order_relaxed);
    if (entries_.size() < most) entries_.resize(most);
    place_ = 0;
    taken_ = lane.queue.take(entries_.data(), most);
    return taken_;
  }

 private:
  std::vector<Entry> entries_;
  std::size_t place_ = 0, taken_ = 0;
};

class Lanes {
 public:
  static constexpr std::size_t kLanes = 4;
  static constexpr std::uint64_t kP0HoldNs = 20'000'000;

  Lanes(const std::array<LaneSpec, kLanes>& specs, std::size_t audit, std::uint64_t patience_ns)
      : audit_(audit), turn(patience_ns, kP0HoldNs), hold_(tick_scale().span_ticks(kP0HoldNs)) {
    for (std::size_t i = 0; i < kLanes; ++i)
      lanes_[i] = std::make_unique<Lane>(static_cast<std::uint8_t>(i), specs[i], audit != 0 ? &audit_ : nullptr);
  }

  Lane& operator[](std::size_t lane) { return *lanes_[lane]; }
  const Lane& operator[](std::size_t lane) const { return *lanes_[lane]; }
  Audit& audit() { return audit_; }

  // The bell of a lane: P2 and P3 share theirs while they share their workers.
  Bell& bell(std::size_t lane) { return bells_[lane == 3 && !apart_ ? 2 : lane]; }
  // Before any thread runs: one of P2 and P3, or both, are served elsewhere.
  void serve_apart() { apart_ = true; }
  bool apart() const { return apart_; }
  void ring_all() {
    for (Bell& each : bells_) each.ring_all();
  }

  // P0 comes first: it has something waiting, or is at work (a handler that takes very long no
  // longer holds the others up).
  bool p0_wants() const {
    if (lanes_[0]->queue.size() != 0 && !lanes_[0]->paused.load(std::memory_order_relaxed)) return true;
    const std::uint64_t began = p0_began.load(std::memory_order_relaxed);
    return began == kP0Waits || (began != 0 && ticks() - began < hold_);
  }
  bool wanted_above(std::size_t lane) const {
    for (std::size_t higher = 0; higher < lane; ++higher)
      if (lanes_[higher]->ready(ticks())) return true;
    return false;
  }

  // When P0 began its event, in ticks; 0: it rests. It may hold events and still wait for the GIL.
  static constexpr std::uint64_t kP0Waits = UINT64_MAX;
  std::atomic<std::uint64_t> p0_began{0};

 private:
  Audit audit_;
  std::array<std::unique_ptr<Lane>, kLanes> lanes_;
  std::array<Bell, 4> bells_;
  bool apart_ = false;

 public:
  Turn turn;

 private:
  const std::uint64_t hold_;
};

// Runs recorded publishing and taking through fresh lanes: what is dropped and collapsed comes out
// again, event by event.
inline std::vector<AuditRecord> replay(const std::array<LaneSpec, Lanes::kLanes>& specs,
                                       const std::vector<AuditRecord>& records) {
  Audit audit(SIZE_MAX);
  std::array<std::unique_ptr<LaneQueue>, Lanes::kLanes> lanes;
  for (std::size_t i = 0; i < Lanes::kLanes; ++i)
    lanes[i] = std::make_unique<LaneQueue>(static_cast<std::uint8_t>(i), specs[i].capacity, specs[i].policy,
                                           specs[i].keep_one_of, &audit);
  Entry taken;
  for (const AuditRecord& record : records) {
    LaneQueue& lane = *lanes[record.lane % Lanes::kLanes];
    if (record.deed == Deed::published) {
      Entry entry;
      entry.hash = record.key;
      entry.type = record.type;
      entry.can_collapse = (record.flags & 1) != 0;
      entry.can_drop = (record.flags & 2) != 0;
      Displaced displaced;
      lane.put(entry, displaced, true);
    } else if (record.deed == Deed::taken) {
      lane.take(&taken, 1);
    }
  }
  return audit.drain();
}

}  // namespace qts
