// What became of every event, in the order in which each lane decided it.
//
// Thread contract: add and drain may be called from any thread. Nothing waits: when nobody drains,
// the newest records are left out and counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "qts/clock.hpp"

namespace qts {

enum class Deed : std::uint8_t { published, taken, handled, retried, dead, collapsed, dropped, sampled };

struct AuditRecord {
  std::uint64_t sequence;  // counts the events of its lane, from 1
  std::uint64_t other;     // collapsed: into this one
  std::uint64_t key;       // hash of type and key; 0: no key
  std::uint64_t at;        // ticks
  std::uint32_t type;
  std::uint8_t lane;
  Deed deed;
  std::uint8_t flags;  // 1: may be collapsed, 2: may be dropped
  std::uint8_t unused;
};
static_assert(sizeof(AuditRecord) == 40);

class Audit {
 public:
  explicit Audit(std::size_t most) : most_(most), on_(most != 0) {}

  bool on() const { return on_; }
  void add(const AuditRecord& record) {
    const std::lock_guard hold(lock_);
    if (records_.size() < most_) records_.push_back(record);
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
  const std::size_t most_;
  const bool on_;
  std::vector<AuditRecord> records_;
  std::uint64_t lost_ = 0;
};

}  // namespace qts
