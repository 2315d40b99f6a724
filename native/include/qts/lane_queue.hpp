// One lane: a bounded queue of events with a policy for the day it is full.
//
// Thread contract: every function may be called from any thread; each takes the lane's own lock for
// some dozen instructions and calls nothing foreign under it. Events are opaque: whoever puts one in
// gets every one that leaves without being taken back through `Displaced`.
// Invariant: published = handled + collapsed + dropped + sampled + dead + waiting + in_hand, read
// under the lock; the newest event of a key is only dropped when no waiting event has a newer one.
//
//   policy        with room          full, same key waits       full, no such key
//   block         to the end         wait                       wait
//   collapse      replaces its key   replaces its key           wait
//   drop_oldest   to the end         replaces its key's newest  the first that has a newer one of its
//                                                               key goes, else the oldest
//   sample        to the end         1 of N comes in and the oldest goes; the others stay out
//
// An event that must not be dropped is never the one that goes; where all are such, wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "qts/lane_audit.hpp"

namespace qts {

enum class Policy : std::uint8_t { block, drop_oldest, collapse, sample };

struct Entry {
  void* event = nullptr;
  void* key_owner = nullptr;  // keeps `key` alive
  void* record = nullptr;     // what a compiled handler reads; may be null
  std::string_view key;
  std::uint64_t hash = 0;  // of type and key; 0: no key
  std::uint64_t sequence = 0;
  std::uint64_t published = 0;  // ticks
  std::uint32_t type = 0;
  bool can_collapse = false;
  bool can_drop = false;
  bool batched = false;  // its handler takes batches, so it may wait for company
};

inline std::uint64_t key_hash(std::uint32_t type, std::string_view key) {
  std::uint64_t hash = (0xcbf29ce484222325u ^ type) * 0x100000001b3u;
  for (const char letter : key) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  hash ^= hash >> 29;
  return hash == 0 ? 1 : hash;
}

struct LaneCounts {
  std::uint64_t published = 0, handled = 0, collapsed = 0, dropped = 0, sampled = 0, dead = 0;
  std::uint64_t retried = 0, blocked = 0, over = 0;
  std::uint64_t waiting = 0, in_hand = 0;
};

struct Displaced {
  Entry entry;
  bool any = false;
  bool dropped = false;  // else a newer event of its key has its place
};

enum class Put : std::uint8_t { entered, left_out, full };

class LaneQueue {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  LaneQueue(std::uint8_t lane, std::size_t capacity, Policy policy, std::uint32_t keep_one_of, Audit* audit)
      : lane_(lane), capacity_(capacity), policy_(policy), keep_one_of_(std::max(keep_one_of, 1u)), audit_(audit) {
    index_.assign(16, kNone);
  }

  // `over`: past the bound when there is no other way (a handler must not wait for its own lane).
  Put put(Entry& entry, Displaced& displaced, bool over = false) {
    const std::lock_guard hold(lock_);
    if (indexed(entry) && policy_ == Policy::collapse)
      if (const std::uint32_t same = find(entry); same != kNone) return replace(same, entry, displaced);
    if (size_ >= capacity_) {
      const Room room = make_room(entry, displaced, over);
      if (room == Room::none) return Put::full;
      if (room == Room::left_out) return Put::left_out;
      if (room == Room::replaced) return Put::entered;
    }
    append(entry);
    return Put::entered;
  }

  // The oldest, at most `most`, into the caller's hands.
  std::size_t take(Entry* out, std::size_t most) {
    std::size_t taken = 0;
    {
      const std::lock_guard hold(lock_);
      for (; taken < most && head_ != kNone; ++taken) {
        out[taken] = slots_[head_].entry;
        note(Deed::taken, out[taken], 0);
        remove(head_);
      }
      counts_.in_hand += taken;
    }
    if (taken != 0) room_.notify_all();
    return taken;
  }

  // What became of an event in hand.
  void settle(const Entry& entry, bool dead) {
    const std::lock_guard hold(lock_);
    ++(dead ? counts_.dead : counts_.handled);
    --counts_.in_hand;
    note(dead ? Deed::dead : Deed::handled, entry, 0);
  }
  void settle_many(const Entry* entries, std::size_t count) {
    const std::lock_guard hold(lock_);
    counts_.handled += count;
    counts_.in_hand -= count;
    if (audit_ != nullptr)
      for (std::size_t i = 0; i < count; ++i) note(Deed::handled, entries[i], 0);
  }
  void retried(const Entry& entry) {
    const std::lock_guard hold(lock_);
    ++counts_.retried;
    note(Deed::retried, entry, 0);
  }
  void blocked() {
    const std::lock_guard hold(lock_);
    ++counts_.blocked;
  }

  // False when the time is up and the lane still full.
  bool wait_for_room(std::chrono::nanoseconds most) {
    std::unique_lock hold(lock_);
    return room_.wait_for(hold, most, [&] { return size_ < capacity_ || closed_; });
  }
  void close() {
    {
      const std::lock_guard hold(lock_);
      closed_ = true;
    }
    room_.notify_all();
  }
  void reopen() {
    const std::lock_guard hold(lock_);
    closed_ = false;
  }

  LaneCounts counts() const {
    const std::lock_guard hold(lock_);
    LaneCounts now = counts_;
    now.waiting = size_;
    return now;
  }
  std::size_t capacity() const { return capacity_; }
  Policy policy() const { return policy_; }
  std::size_t size() const { return seen_.load(std::memory_order_seq_cst); }

  // Whether a taker should come: one that waits for no company, a full batch, or an old event.
  bool ready(std::size_t batch, std::uint64_t window, std::uint64_t now) const {
    if (size() == 0) return false;
    const std::lock_guard hold(lock_);
    if (size_ == 0) return false;
    return alone_ != 0 || size_ >= batch || now - slots_[head_].entry.published >= window;
  }
  // When the oldest event's window ends; 0 when nothing waits.
  std::uint64_t due(std::uint64_t window) const {
    const std::lock_guard hold(lock_);
    return size_ == 0 ? 0 : slots_[head_].entry.published + window;
  }

 private:
  struct Slot {
    Entry entry;
    std::uint32_t before = kNone, after = kNone;
    std::uint32_t older = kNone, younger = kNone;  // neighbours among the superseded
    bool superseded = false;                       // a newer event of its key waits
  };

  bool indexed(const Entry& entry) const { return entry.hash != 0 && entry.can_collapse; }

  Put replace(std::uint32_t at, Entry& entry, Displaced& displaced) {
    Slot& slot = slots_[at];
    displaced = {slot.entry, true, false};
    number(entry);
    alone_ += !entry.batched;
    alone_ -= !slot.entry.batched;
    slot.entry = entry;
    ++counts_.collapsed;
    note(Deed::collapsed, displaced.entry, entry.sequence);
    return Put::entered;
  }

  enum class Room : std::uint8_t { made, replaced, left_out, none };

  Room make_room(Entry& entry, Displaced& displaced, bool over) {
    if (policy_ == Policy::drop_oldest) {
      if (indexed(entry))
        if (const std::uint32_t same = find(entry); same != kNone) {
          replace(same, entry, displaced);
          return Room::replaced;
        }
      if (superseded_head_ != kNone) return push_out(superseded_head_, displaced, Deed::collapsed);
      if (const std::uint32_t oldest = oldest_droppable(); oldest != kNone)
        return push_out(oldest, displaced, Deed::dropped);
    } else if (policy_ == Policy::sample && entry.can_drop) {
      if (turn_++ % keep_one_of_ != 0) {
        number(entry);
        ++counts_.sampled;
        note(Deed::sampled, entry, 0);
        return Room::left_out;
      }
      if (const std::uint32_t oldest = oldest_droppable(); oldest != kNone)
        return push_out(oldest, displaced, Deed::dropped);
      --turn_;
    }
    if (!over || size_ >= 2 * capacity_ + kReserve) return Room::none;
    ++counts_.over;
    return Room::made;
  }

  Room push_out(std::uint32_t at, Displaced& displaced, Deed why) {
    displaced = {slots_[at].entry, true, why == Deed::dropped};
    ++(why == Deed::dropped ? counts_.dropped : counts_.collapsed);
    std::uint64_t into = 0;
    if (why == Deed::collapsed)
      if (const std::uint32_t newest = find(displaced.entry); newest != kNone) into = slots_[newest].entry.sequence;
    note(why, displaced.entry, into);
    remove(at);
    return Room::made;
  }

  std::uint32_t oldest_droppable() const {
    std::uint32_t at = head_;
    while (at != kNone && !slots_[at].entry.can_drop) at = slots_[at].after;
    return at;
  }

  void number(Entry& entry) {
    entry.sequence = ++counts_.published;
    note(Deed::published, entry, 0);
  }

  void append(Entry& entry) {
    number(entry);
    std::uint32_t at = free_;
    if (at != kNone) {
      free_ = slots_[at].after;
      slots_[at] = Slot{};
    } else {
      at = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& slot = slots_[at];
    slot.entry = entry;
    slot.before = tail_;
    (tail_ == kNone ? head_ : slots_[tail_].after) = at;
    tail_ = at;
    alone_ += !entry.batched;
    seen_.store(++size_, std::memory_order_seq_cst);
    if (indexed(entry) && (policy_ == Policy::collapse || policy_ == Policy::drop_oldest)) enter(at);
  }

  void remove(std::uint32_t at) {
    Slot& slot = slots_[at];
    if (slot.superseded) leave_superseded(at);
    else if (indexed(slot.entry)) forget(at);
    (slot.before == kNone ? head_ : slots_[slot.before].after) = slot.after;
    (slot.after == kNone ? tail_ : slots_[slot.after].before) = slot.before;
    alone_ -= !slot.entry.batched;
    slot.after = free_;
    free_ = at;
    seen_.store(--size_, std::memory_order_seq_cst);
  }

  void join_superseded(std::uint32_t at) {
    Slot& slot = slots_[at];
    if (!slot.entry.can_drop) return;
    slot.superseded = true;
    slot.older = superseded_tail_;
    (superseded_tail_ == kNone ? superseded_head_ : slots_[superseded_tail_].younger) = at;
    superseded_tail_ = at;
  }
  void leave_superseded(std::uint32_t at) {
    Slot& slot = slots_[at];
    (slot.older == kNone ? superseded_head_ : slots_[slot.older].younger) = slot.younger;
    (slot.younger == kNone ? superseded_tail_ : slots_[slot.younger].older) = slot.older;
    slot.superseded = false;
    slot.older = slot.younger = kNone;
  }

  // The index: the newest waiting event of each key, open addressing with backward-shift deletion.
  std::size_t home(std::uint64_t hash) const { return hash & (index_.size() - 1); }
  bool same(const Entry& a, const Entry& b) const { return a.hash == b.hash && a.type == b.type && a.key == b.key; }

  std::uint32_t find(const Entry& entry) const {
    for (std::size_t i = home(entry.hash);; i = (i + 1) & (index_.size() - 1)) {
      if (index_[i] == kNone) return kNone;
      if (same(slots_[index_[i]].entry, entry)) return index_[i];
    }
  }
  void enter(std::uint32_t at) {
    if (2 * (keys_ + 1) > index_.size()) grow();
    for (std::size_t i = home(slots_[at].entry.hash);; i = (i + 1) & (index_.size() - 1)) {
      if (index_[i] == kNone) {
        index_[i] = at;
        ++keys_;
        return;
      }
      if (same(slots_[index_[i]].entry, slots_[at].entry)) {
        join_superseded(index_[i]);
        index_[i] = at;
        return;
      }
    }
  }
  void forget(std::uint32_t at) {
    std::size_t i = home(slots_[at].entry.hash);
    for (;; i = (i + 1) & (index_.size() - 1)) {
      if (index_[i] == kNone) return;  // an older one that must not be dropped: another stands for its key
      if (index_[i] == at) break;
    }
    --keys_;
    std::size_t hole = i;
    for (std::size_t next = (hole + 1) & (index_.size() - 1); index_[next] != kNone;
         next = (next + 1) & (index_.size() - 1)) {
      const std::size_t wanted = home(slots_[index_[next]].entry.hash);
      if (((next - wanted) & (index_.size() - 1)) >= ((next - hole) & (index_.size() - 1))) {
        index_[hole] = index_[next];
        hole = next;
      }
    }
    index_[hole] = kNone;
  }
  void grow() {
    std::vector<std::uint32_t> old(index_.size() * 2, kNone);
    old.swap(index_);
    for (const std::uint32_t at : old) {
      if (at == kNone) continue;
      std::size_t i = home(slots_[at].entry.hash);
      while (index_[i] != kNone) i = (i + 1) & (index_.size() - 1);
      index_[i] = at;
    }
  }

  void note(Deed deed, const Entry& entry, std::uint64_t other) {
    if (audit_ != nullptr && audit_->on())
      audit_->add({entry.sequence, other, entry.hash, ticks(), entry.type, lane_, deed,
                   static_cast<std::uint8_t>((entry.can_collapse ? 1 : 0) | (entry.can_drop ? 2 : 0)), 0});
  }

  static constexpr std::size_t kReserve = 1000;

  mutable std::mutex lock_;
  std::condition_variable room_;
  const std::uint8_t lane_;
  const std::size_t capacity_;
  const Policy policy_;
  const std::uint32_t keep_one_of_;
  Audit* const audit_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> index_;
  std::size_t keys_ = 0, size_ = 0, alone_ = 0;
  std::uint32_t head_ = kNone, tail_ = kNone, free_ = kNone;
  std::uint32_t superseded_head_ = kNone, superseded_tail_ = kNone;
  std::uint64_t turn_ = 0;
  bool closed_ = false;
  LaneCounts counts_;
  std::atomic<std::size_t> seen_{0};
};

}  // namespace qts
