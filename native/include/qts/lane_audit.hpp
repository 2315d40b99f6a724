// LaneAudit: a record of every action on an event, in the order of each lane.
//
// Thread contract: add and drain may be called from any thread. Neither waits: when the buffer is full,
// the newest records are left out and counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "qts/clock.hpp"

namespace qts {

enum class AuditAction : std::uint8_t { published, taken, handled, retried, dead, collapsed, dropped, sampled, returned };

struct AuditRecord {
  std::uint64_t sequence;  // counts the events of its lane, from 1
  std::uint64_t other;     // collapsed: the sequence of the event that replaced it
  std::uint64_t key;       // hash of type and key; 0: no key
  std::uint64_t at;        // ticks
  std::uint32_t type;
  std::uint8_t lane;
  AuditAction action;
  std::uint8_t flags;  // 1: may be collapsed, 2: may be dropped
  std::uint8_t unused;
};
static_assert(sizeof(AuditRecord) == 40);

class LaneAudit {
 public:
  explicit LaneAudit(std::size_t max_records) : max_records_(max_records), on_(max_records != 0) {}

  bool on() const { return on_; }
  void add(const AuditRecord& record) {
    const std::lock_guard hold(lock_);
    if (records_.size() < max_records_) records_.push_back(record);
    else ++lost_;
  }
  std::vector<AuditRecord> drain() {
    std::vector<AuditRecord> out;
    const std::lock_guard hold(lock_);
    out.swap(records_);
    return out;
  }
  std::uint64_t lost() const {
    const std::lock_guard hold(lock_);
    return lost_;
  }

 private:
  mutable std::mutex lock_;
  const std::size_t max_records_;
  const bool on_;
  std::vector<AuditRecord> records_;
  std::uint64_t lost_ = 0;
};

}  // namespace qts
