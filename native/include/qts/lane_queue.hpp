// LaneQueue: the bounded event queue of one lane, with a policy for what happens when it is full.
//
// Thread contract: every function may be called from any thread; each takes the lane's lock for some
// dozen instructions and calls no outside code under it. Every entry that is removed without being
// taken is returned to the caller of put through `Displaced`.
// Invariant: published = handled + collapsed + dropped + sampled + dead + waiting + in_flight, read
// under the lock; the newest event of a key is only dropped when every waiting event is its key's newest.
//
//   policy        not full           full, same key waiting     full, no such key
//   block         append             wait                       wait
//   collapse      replace same key   replace same key           wait
//   drop_oldest   append             replace the key's newest   drop the first entry that has a newer one
//                                                               of its key, else the oldest
//   sample        append             accept a share and drop the oldest; refuse the others
//
// An event that must not be dropped is never dropped; where all waiting events are such, put waits.
//
// Entries of a limited type (type_limits.hpp) stay in the lane, where the policy applies to them, and entries
// of other types are taken past them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "qts/gradual_index.hpp"
#include "qts/lane_audit.hpp"
#include "qts/lane_entry.hpp"
#include "qts/lane_slots.hpp"
#include "qts/type_limits.hpp"

namespace qts {

class LaneQueue {
 public:
  static constexpr std::uint64_t kAll = 1'000'000'000;

  // `share`: of the events that a full lane samples, how many in kAll are accepted.
  LaneQueue(std::uint8_t lane, std::size_t capacity, OverflowPolicy policy, std::uint64_t share, LaneAudit* audit)
      : lane_(lane), capacity_(capacity), policy_(policy), share_(std::clamp<std::uint64_t>(share, 1, kAll)), audit_(audit),
        slots_(capacity), index_(policy == OverflowPolicy::collapse) {}

  // `overflow`: exceed the capacity rather than report full (a handler must not wait for its own lane).
  PutResult put(LaneEntry& entry, Displaced& displaced, bool overflow = false) {
    const std::lock_guard hold(lock_);
    const PutResult result = put_locked(entry, displaced, overflow);
    publish_size();
    return result;
  }

  // Puts entries in order, under one lock, until the lane is full; returns how many were put.
  std::size_t put_many(LaneEntry* entries, std::size_t count, std::vector<Displaced>& displaced, bool overflow = false) {
    const std::lock_guard hold(lock_);
    std::size_t done = 0;
    Displaced one;
    for (; done < count; ++done) {
      const PutResult result = put_locked(entries[done], one, overflow);
      if (result == PutResult::full) break;
      if (result == PutResult::sampled_out) one = {entries[done], DisplacedReason::sampled_out};
      if (one.reason == DisplacedReason::none) [[likely]]
        continue;
      displaced.push_back(one);
      one.reason = DisplacedReason::none;
    }
    publish_size();
    return done;
  }

  // Takes the oldest entries, at most `max`; each is in flight until it is settled.
  std::size_t take(LaneEntry* out, std::size_t max) {
    std::size_t taken = 0;
    {
      const std::lock_guard hold(lock_);
      taken = take_front(out, max);
      taken_ += taken;
      publish_size();
    }
    if (taken != 0) not_full_.notify_all();
    return taken;
  }

  // Takes one entry by its sequence; for a replay.
  bool take_sequence(std::uint64_t sequence, LaneEntry& out) {
    const std::lock_guard hold(lock_);
    const std::uint32_t at = first_where(slots_.head(), [&](const LaneEntry& each) { return each.sequence == sequence; });
    if (at == kNone) return false;
    take_slot(at, out);
    index_.stop_if_empty(slots_);
    ++taken_;
    publish_size();
    return true;
  }

  // Puts entries that were taken, and that no handler was called with, back in front of the others.
  void put_back(const LaneEntry* entries, std::size_t count) {
    const std::lock_guard hold(lock_);
    for (std::size_t i = count; i-- != 0;) {
      const std::uint32_t type = entries[i].type;
      limits_.release_permit(type);
      const bool held = !limits_.may_take(type) || slots_.held(type).size != 0;
      const std::uint32_t at = slots_.prepend(entries[i], held);
      if (held) limits_.add_list(type);
      else unbatched_ += !entries[i].batched;
      index_.on_put_back(slots_, at);
      audit(AuditAction::returned, entries[i], 0);
    }
    taken_ -= count;
    publish_size();
  }

  // Calls `change` with the limits of the types, under the lock.
  template <class Change>
  void change_limits(Change&& change) {
    const std::lock_guard hold(lock_);
    change(limits_);
    publish_size();
  }

  // Counts the result of an entry in flight. Takes no lock without an audit.
  void settle(const LaneEntry& entry, bool dead) {
    (dead ? dead_ : handled_).fetch_add(1, std::memory_order_relaxed);
    audit_settled(entry, dead);
  }
  // The same without a locked instruction, while no other thread settles.
  void settle_exclusive(const LaneEntry& entry, bool dead) {
    std::atomic<std::uint64_t>& count = dead ? dead_ : handled_;
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    audit_settled(entry, dead);
  }
  // Counts an entry in flight as dropped: no handler was called with it.
  void settle_dropped(const LaneEntry& entry) {
    const std::lock_guard hold(lock_);
    ++counts_.dropped;
    ++dropped_in_flight_;
    audit(AuditAction::dropped, entry, 0);
  }
  void count_retry(const LaneEntry& entry) {
    const std::lock_guard hold(lock_);
    ++counts_.retried;
    audit(AuditAction::retried, entry, 0);
  }
  void count_blocked() {
    const std::lock_guard hold(lock_);
    ++counts_.blocked;
  }

  // Returns false when the lane is still full after `timeout`.
  bool wait_for_capacity(std::chrono::nanoseconds timeout) {
    std::unique_lock hold(lock_);
    return not_full_.wait_for(hold, timeout, [&] { return slots_.size() < capacity_ || closed_; });
  }
  void close() {
    {
      const std::lock_guard hold(lock_);
      closed_ = true;
    }
    not_full_.notify_all();
  }
  void reopen() {
    const std::lock_guard hold(lock_);
    closed_ = false;
  }

  LaneCounts counts() const {
    const std::lock_guard hold(lock_);
    LaneCounts now = counts_;
    now.waiting = slots_.size();
    now.handled = handled_.load(std::memory_order_relaxed);
    now.dead = dead_.load(std::memory_order_relaxed);
    // A settled entry was taken before, under this lock, so the difference is never negative.
    now.in_flight = taken_ - now.handled - now.dead - dropped_in_flight_;
    return now;
  }
  std::size_t capacity() const { return capacity_; }
  OverflowPolicy policy() const { return policy_; }
  std::size_t size() const { return visible_size_.load(std::memory_order_seq_cst); }

  // Whether entries should be taken now: one is not batched, a batch is full, or the oldest is `window` old.
  bool ready(std::size_t batch, std::uint64_t window, std::uint64_t now) const {
    if (size() == 0) return false;
    const std::lock_guard hold(lock_);
    if (limits_.takeable(slots_) != 0) return true;
    if (slots_.main_size() == 0) return false;
    return unbatched_ != 0 || slots_.main_size() >= batch || now - slots_[slots_.head()].entry.published >= window;
  }
  // The tick at which the window of the oldest entry ends; 0 when none is waiting.
  std::uint64_t due(std::uint64_t window) const {
    const std::lock_guard hold(lock_);
    return slots_.main_size() == 0 ? 0 : slots_[slots_.head()].entry.published + window;
  }

 private:
  static constexpr std::uint32_t kNone = LaneSlots::kNone;

  // Rare paths are separate functions (noinline), so that the usual path through put and take stays short.
  PutResult put_locked(LaneEntry& entry, Displaced& displaced, bool overflow) {
    if (policy_ == OverflowPolicy::collapse && GradualIndex::hash_key(entry))
      if (const std::uint32_t same = index_.find(slots_, entry); same != kNone) return replace(same, entry, displaced);
    if (slots_.size() >= capacity_) {
      const Space space = make_space(entry, displaced, overflow);
      if (space == Space::none) return PutResult::full;
      if (space == Space::sampled_out) return PutResult::sampled_out;
      if (space == Space::replaced) return PutResult::accepted;
    }
    append(entry);
    return PutResult::accepted;
  }
  // The entries that may be taken, for readers without the lock; sequentially consistent, as WakeSignal requires.
  void publish_size() { visible_size_.store(slots_.main_size() + limits_.takeable(slots_), std::memory_order_seq_cst); }

  [[gnu::noinline]] PutResult replace(std::uint32_t at, LaneEntry& entry, Displaced& displaced) {
    LaneSlot& slot = slots_[at];
    displaced = {slot.entry, DisplacedReason::collapsed};
    assign_sequence(entry);
    if (!slot.held) {
      unbatched_ += !entry.batched;
      unbatched_ -= !slot.entry.batched;
    }
    slot.entry = entry;
    ++counts_.collapsed;
    audit(AuditAction::collapsed, displaced.entry, entry.sequence);
    return PutResult::accepted;
  }

  enum class Space : std::uint8_t { made, replaced, sampled_out, none };

  [[gnu::noinline]] Space make_space(LaneEntry& entry, Displaced& displaced, bool overflow) {
    if (policy_ == OverflowPolicy::drop_oldest) {
      if (!index_.on()) index_.start(slots_, limits_);
      index_.extend(slots_, slots_.size());
      if (GradualIndex::hash_key(entry))
        if (const std::uint32_t same = index_.find(slots_, entry); same != kNone) {
          replace(same, entry, displaced);
          return Space::replaced;
        }
      if (index_.first_superseded() != kNone) return displace(index_.first_superseded(), displaced, AuditAction::collapsed);
      if (const std::uint32_t oldest = oldest_droppable(); oldest != kNone)
        return displace(oldest, displaced, AuditAction::dropped);
    } else if (policy_ == OverflowPolicy::sample && entry.can_drop) {
      share_sum_ += share_;
      if (share_sum_ < kAll) {
        assign_sequence(entry);
        ++counts_.sampled;
        audit(AuditAction::sampled, entry, 0);
        return Space::sampled_out;
      }
      if (const std::uint32_t oldest = oldest_droppable(); oldest != kNone) {
        share_sum_ -= kAll;
        return displace(oldest, displaced, AuditAction::dropped);
      }
      share_sum_ -= share_;
    }
    if (!overflow || slots_.size() >= 2 * capacity_ + kOverflowReserve) return Space::none;
    ++counts_.overflowed;
    return Space::made;
  }

  Space displace(std::uint32_t at, Displaced& displaced, AuditAction action) {
    const bool dropped = action == AuditAction::dropped;
    displaced = {slots_[at].entry, dropped ? DisplacedReason::dropped : DisplacedReason::collapsed};
    ++(dropped ? counts_.dropped : counts_.collapsed);
    std::uint64_t into = 0;
    if (!dropped)
      if (const std::uint32_t newest = index_.find(slots_, displaced.entry); newest != kNone)
        into = slots_[newest].entry.sequence;
    audit(action, displaced.entry, into);
    remove_from_index(at);
    slots_.remove(at);
    index_.stop_if_empty(slots_);
    return Space::made;
  }

  std::uint32_t oldest_droppable() const {
    const auto can_drop = [](const LaneEntry& each) { return each.can_drop; };
    std::uint32_t oldest = first_where(slots_.head(), can_drop);
    for (const std::uint32_t type : limits_.held_types())
      if (const std::uint32_t at = first_where(slots_.held(type).head, can_drop); at != kNone)
        if (oldest == kNone || slots_.is_older(at, oldest)) oldest = at;
    return oldest;
  }
  template <class Is>
  std::uint32_t first_where(std::uint32_t at, Is&& is) const {
    while (at != kNone && !is(slots_[at].entry)) at = slots_[at].after;
    return at;
  }

  void assign_sequence(LaneEntry& entry) {
    entry.sequence = ++counts_.published;
    audit(AuditAction::published, entry, 0);
  }

  void append(LaneEntry& entry) {
    const std::uint32_t at = slots_.append(entry);
    assign_sequence(slots_[at].entry);  // after the copy, which would stall on a store this recent
    entry.sequence = slots_[at].entry.sequence;
    unbatched_ += !entry.batched;
    if (index_.on()) index_.on_append(slots_, at);
    else if (policy_ == OverflowPolicy::drop_oldest && 2 * slots_.size() > capacity_) index_.start(slots_, limits_);
  }

  std::size_t take_front(LaneEntry* out, std::size_t max) {
    if (limits_.any()) [[unlikely]]
      return take_limited(out, max);
    std::size_t taken = 0;
    std::uint32_t at = slots_.head(), last = kNone;
    for (; taken < max && at != kNone; ++taken) {
      const LaneSlot& slot = slots_[at];
      out[taken] = slot.entry;
      audit(AuditAction::taken, out[taken], 0);
      remove_from_index(at);
      last = at;
      at = slot.after;
    }
    if (taken == 0) return 0;
    slots_.remove_front(last, at, taken);
    index_.stop_if_empty(slots_);
    return taken;
  }

  void take_slot(std::uint32_t at, LaneEntry& out) {
    out = slots_[at].entry;
    audit(AuditAction::taken, out, 0);
    remove_from_index(at);
    slots_.remove(at);
  }

  [[gnu::noinline]] std::size_t take_limited(LaneEntry* out, std::size_t max) {
    std::size_t taken = 0, moved = 0;
    while (taken < max && moved < kMovedPerTake) {
      const std::uint32_t at = limits_.next(slots_);
      if (at == kNone) break;
      const std::uint32_t type = slots_[at].entry.type;
      if (!limits_.may_take(type)) {
        move_to_type_list(at);
        ++moved;
        continue;
      }
      limits_.use_permit(type);
      take_slot(at, out[taken++]);
    }
    limits_.remove_empty_lists(slots_);
    index_.stop_if_empty(slots_);
    return taken;
  }

  void move_to_type_list(std::uint32_t at) {
    index_.on_hold(slots_, at);
    unbatched_ -= !slots_[at].entry.batched;
    limits_.add_list(slots_[at].entry.type);
    slots_.hold(at);
  }

  void remove_from_index(std::uint32_t at) {
    index_.remove(slots_, at);
    if (!slots_[at].held) unbatched_ -= !slots_[at].entry.batched;
  }

  void audit_settled(const LaneEntry& entry, bool dead) {
    if (audit_ == nullptr) return;
    const std::lock_guard hold(lock_);
    audit(dead ? AuditAction::dead : AuditAction::handled, entry, 0);
  }
  void audit(AuditAction action, const LaneEntry& entry, std::uint64_t other) {
    if (audit_ != nullptr) [[unlikely]] add_audit_record(action, entry, other);
  }
  [[gnu::noinline]] void add_audit_record(AuditAction action, const LaneEntry& entry, std::uint64_t other) {
    if (audit_->on())
      audit_->add({entry.sequence, other, entry.hash, ticks(), entry.type, lane_, action,
                   static_cast<std::uint8_t>((entry.can_collapse ? 1 : 0) | (entry.can_drop ? 2 : 0)), 0});
  }

  static constexpr std::size_t kOverflowReserve = 1000, kMovedPerTake = 1024;

  mutable std::mutex lock_;
  std::condition_variable not_full_;
  const std::uint8_t lane_;
  const std::size_t capacity_;
  const OverflowPolicy policy_;
  const std::uint64_t share_;
  LaneAudit* const audit_;
  LaneSlots slots_;
  GradualIndex index_;
  std::size_t unbatched_ = 0;  // entries of the main list that do not wait for a batch
  TypeLimits limits_;
  std::uint64_t share_sum_ = kAll - 1;  // the first event is accepted, and then each whose share completes a whole
  bool closed_ = false;
  LaneCounts counts_;  // except handled and dead
  std::uint64_t taken_ = 0, dropped_in_flight_ = 0;
  std::atomic<std::size_t> visible_size_{0};
  // Written by the threads that run handlers, on a cache line that publishers do not write.
  alignas(64) std::atomic<std::uint64_t> handled_{0};
  std::atomic<std::uint64_t> dead_{0};
};

}  // namespace qts
