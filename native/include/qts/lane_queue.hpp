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
//
// Which event of a key is the newest, drop_oldest asks only of a full lane: it keeps that index from
// when the lane is half full, a few events at each put, until the lane is empty again.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
  std::uint64_t hash = 0;  // of type and key; 0: nobody has asked for it yet
  std::uint64_t sequence = 0;
  std::uint64_t published = 0;  // ticks
  std::uint32_t type = 0;
  bool can_collapse = false;
  bool can_drop = false;
  bool batched = false;  // its handler takes batches, so it may wait for company
};

// Of a type and a key, the same in every process.
inline std::uint64_t key_hash(std::uint32_t type, std::string_view key) {
  const auto mixed = [](std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
  };
  std::uint64_t hash = mixed(0xcbf29ce484222325u ^ key.size(), type);
  for (; key.size() >= sizeof(std::uint64_t); key.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word;
    std::memcpy(&word, key.data(), sizeof word);
    hash = mixed(hash, word);
  }
  std::uint64_t rest = 0;
  if (key.size() >= sizeof(std::uint32_t)) {  // two words that may overlap
    std::uint32_t first, last;
    std::memcpy(&first, key.data(), sizeof first);
    std::memcpy(&last, key.data() + key.size() - sizeof last, sizeof last);
    rest = (std::uint64_t{first} << 32) | last;
  } else {
    for (const char letter : key) rest = (rest << 8) | static_cast<unsigned char>(letter);
  }
  hash = mixed(mixed(hash, rest), hash >> 29);
  return hash == 0 ? 1 : hash;
}

struct LaneCounts {
  std::uint64_t published = 0, handled = 0, collapsed = 0, dropped = 0, sampled = 0, dead = 0;
  std::uint64_t retried = 0, blocked = 0, over = 0;
  std::uint64_t waiting = 0, in_hand = 0;
};

enum class Leaving : std::uint8_t { none, collapsed, dropped, left_out };

// An event that will not be taken: pushed out by another, or never let in.
struct Displaced {
  Entry entry;
  Leaving why = Leaving::none;
};

enum class Put : std::uint8_t { entered, left_out, full };

class LaneQueue {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  LaneQueue(std::uint8_t lane, std::size_t capacity, Policy policy, std::uint32_t keep_one_of, Audit* audit)
      : lane_(lane), capacity_(capacity), policy_(policy), keep_one_of_(std::max(keep_one_of, 1u)), audit_(audit),
        indexing_(policy == Policy::collapse) {
    index_.resize(16);
    slots_.reserve(std::min(capacity, kReserved));  // address space: memory comes with the first use,
    slots_.resize(std::min(capacity, kTouched));    // but a usual burst finds it there
    slots_.clear();
  }

  // `over`: past the bound when there is no other way (a handler must not wait for its own lane).
  Put put(Entry& entry, Displaced& displaced, bool over = false) {
    const std::lock_guard hold(lock_);
    const Put result = enter_lane(entry, displaced, over);
    show_size();
    return result;
  }

  // The same in order, under one lock, until one finds the lane full; how many did not.
  std::size_t put_many(Entry* entries, std::size_t count, std::vector<Displaced>& displaced, bool over = false) {
    const std::lock_guard hold(lock_);
    std::size_t done = 0;
    Displaced one;
    for (; done < count; ++done) {
      const Put result = enter_lane(entries[done], one, over);
      if (result == Put::full) break;
      if (result == Put::left_out) one = {entries[done], Leaving::left_out};
      if (one.why == Leaving::none) [[likely]]
        continue;
      displaced.push_back(one);
      one.why = Leaving::none;
    }
    show_size();
    return done;
  }

  // The oldest, at most `most`, into the caller's hands.
  std::size_t take(Entry* out, std::size_t most) {
    std::size_t taken = 0;
    {
      const std::lock_guard hold(lock_);
      taken = take_first(out, most);
      taken_ += taken;
      show_size();
    }
    if (taken != 0) room_.notify_all();
    return taken;
  }

  // What became of an event in hand. Without an audit it takes no lock.
  void settle(const Entry& entry, bool dead) {
    (dead ? dead_ : handled_).fetch_add(1, std::memory_order_relaxed);
    note_settled(entry, dead);
  }
  // The same while no other thread settles: without a locked instruction.
  void settle_alone(const Entry& entry, bool dead) {
    std::atomic<std::uint64_t>& count = dead ? dead_ : handled_;
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    note_settled(entry, dead);
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
    now.handled = handled_.load(std::memory_order_relaxed);
    now.dead = dead_.load(std::memory_order_relaxed);
    // Whatever is settled was taken before, under this lock.
    now.in_hand = taken_ - now.handled - now.dead;
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
    bool in_index = false;                         // was put there, and may stand for its key
  };

  // What is rare stands apart (noinline): the usual way through put and take stays short.
  Put enter_lane(Entry& entry, Displaced& displaced, bool over) {
    if (policy_ == Policy::collapse && indexed(entry))
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
  // To those that look without the lock; sequentially consistent, see Bell.
  void show_size() { seen_.store(size_, std::memory_order_seq_cst); }

  // Whether it stands for its key; its hash is known then.
  bool indexed(Entry& entry) const {
    if (!entry.can_collapse) return false;
    if (entry.hash == 0) entry.hash = key_hash(entry.type, entry.key);
    return true;
  }

  [[gnu::noinline]] Put replace(std::uint32_t at, Entry& entry, Displaced& displaced) {
    Slot& slot = slots_[at];
    displaced = {slot.entry, Leaving::collapsed};
    number(entry);
    alone_ += !entry.batched;
    alone_ -= !slot.entry.batched;
    slot.entry = entry;
    ++counts_.collapsed;
    note(Deed::collapsed, displaced.entry, entry.sequence);
    return Put::entered;
  }

  enum class Room : std::uint8_t { made, replaced, left_out, none };

  [[gnu::noinline]] Room make_room(Entry& entry, Displaced& displaced, bool over) {
    if (policy_ == Policy::drop_oldest) {
      if (!indexing_) begin_index();
      catch_up(size_);
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
    displaced = {slots_[at].entry, why == Deed::dropped ? Leaving::dropped : Leaving::collapsed};
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
    std::uint32_t at = free_;
    if (at != kNone) {
      free_ = slots_[at].after;
    } else {
      at = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& slot = slots_[at];
    slot.entry = entry;
    number(slot.entry);  // after the copy, which would wait for so fresh a store
    entry.sequence = slot.entry.sequence;
    slot.before = tail_;
    slot.after = slot.older = slot.younger = kNone;
    slot.superseded = slot.in_index = false;
    (tail_ == kNone ? head_ : slots_[tail_].after) = at;
    tail_ = at;
    alone_ += !entry.batched;
    ++size_;
    if (indexing_) {
      if (behind_ == kNone) behind_ = at;
      catch_up(kCatchUp);
    } else if (policy_ == Policy::drop_oldest && 2 * size_ > capacity_) {
      begin_index();
    }
  }

  // The slots of those that are taken become free as the chain they are.
  std::size_t take_first(Entry* out, std::size_t most) {
    std::size_t taken = 0;
    std::uint32_t at = head_, last = kNone;
    for (; taken < most && at != kNone; ++taken) {
      const Slot& slot = slots_[at];
      out[taken] = slot.entry;
      note(Deed::taken, out[taken], 0);
      leave_index(at);
      last = at;
      at = slot.after;
    }
    if (taken == 0) return 0;
    give_back(head_, last);
    head_ = at;
    (at == kNone ? tail_ : slots_[at].before) = kNone;
    shrink(taken);
    return taken;
  }

  // First free, first used again: slots follow each other in memory as their events do in the lane,
  // and the processor reads ahead. Publisher and taker mostly run on two of them, and whoever comes
  // second would wait for each slot otherwise.
  void give_back(std::uint32_t first, std::uint32_t last) {
    slots_[last].after = kNone;
    (free_ == kNone ? free_ : slots_[free_tail_].after) = first;
    free_tail_ = last;
  }

  void remove(std::uint32_t at) {
    leave_index(at);
    Slot& slot = slots_[at];
    (slot.before == kNone ? head_ : slots_[slot.before].after) = slot.after;
    (slot.after == kNone ? tail_ : slots_[slot.after].before) = slot.before;
    give_back(at, at);
    shrink(1);
  }

  void leave_index(std::uint32_t at) {
    const Slot& slot = slots_[at];
    if (slot.superseded) leave_superseded(at);
    else if (slot.in_index) forget(at);
    if (at == behind_) behind_ = slot.after;
    alone_ -= !slot.entry.batched;
  }
  void shrink(std::size_t by) {
    size_ -= by;
    if (size_ == 0) indexing_ = policy_ == Policy::collapse;
  }

  void join_superseded(std::uint32_t at) {
    Slot& slot = slots_[at];
    if (!slot.entry.can_drop) return;
    slot.superseded = true;
    slot.older = superseded_tail_;
    (superseded_tail_ == kNone ? superseded_head_ : slots_[superseded_tail_].younger) = at;
    superseded_tail_ = at;
  }
  [[gnu::noinline]] void leave_superseded(std::uint32_t at) {
    Slot& slot = slots_[at];
    (slot.older == kNone ? superseded_head_ : slots_[slot.older].younger) = slot.younger;
    (slot.younger == kNone ? superseded_tail_ : slots_[slot.younger].older) = slot.older;
    slot.superseded = false;
    slot.older = slot.younger = kNone;
  }

  // The index: the newest waiting event of each key, open addressing with backward-shift deletion.
  // The hash stands beside the slot's number, so that a neighbour's slot is not looked at.
  struct Place {
    std::uint32_t at = kNone;
    std::uint32_t hash = 0;
  };
  static std::uint32_t short_hash(const Entry& entry) { return static_cast<std::uint32_t>(entry.hash); }
  std::size_t home(std::uint32_t hash) const { return hash & (index_.size() - 1); }
  std::size_t next(std::size_t i) const { return (i + 1) & (index_.size() - 1); }
  bool same(const Place& place, const Entry& entry) const {
    if (place.hash != short_hash(entry)) return false;
    const Entry& there = slots_[place.at].entry;
    return there.hash == entry.hash && there.type == entry.type &&
           ((there.key.data() == entry.key.data() && there.key.size() == entry.key.size()) || there.key == entry.key);
  }

  void begin_index() {
    indexing_ = true;
    behind_ = head_;
  }
  // Puts at most so many that are not yet there into the index, the oldest first.
  [[gnu::noinline]] void catch_up(std::size_t most) {
    for (; behind_ != kNone && most != 0; --most) {
      const std::uint32_t at = behind_;
      behind_ = slots_[at].after;
      if (indexed(slots_[at].entry)) enter(at);
    }
  }

  std::uint32_t find(const Entry& entry) const {
    for (std::size_t i = home(short_hash(entry));; i = next(i))
      if (index_[i].at == kNone || same(index_[i], entry)) return index_[i].at;
  }
  void enter(std::uint32_t at) {
    if (2 * (keys_ + 1) > index_.size()) grow();
    const Entry& entry = slots_[at].entry;
    slots_[at].in_index = true;
    for (std::size_t i = home(short_hash(entry));; i = next(i)) {
      if (index_[i].at == kNone) {
        index_[i] = {at, short_hash(entry)};
        ++keys_;
        return;
      }
      if (same(index_[i], entry)) {
        join_superseded(index_[i].at);
        index_[i].at = at;
        return;
      }
    }
  }
  [[gnu::noinline]] void forget(std::uint32_t at) {
    std::size_t hole = home(short_hash(slots_[at].entry));
    for (; index_[hole].at != at; hole = next(hole))
      if (index_[hole].at == kNone) return;  // an older one that must not be dropped: another stands for its key
    --keys_;
    for (std::size_t i = next(hole); index_[i].at != kNone; i = next(i))
      if (((i - home(index_[i].hash)) & (index_.size() - 1)) >= ((i - hole) & (index_.size() - 1))) {
        index_[hole] = index_[i];
        hole = i;
      }
    index_[hole] = Place{};
  }
  void grow() {
    std::vector<Place> old(index_.size() * 2);
    old.swap(index_);
    for (const Place& place : old) {
      if (place.at == kNone) continue;
      std::size_t i = home(place.hash);
      while (index_[i].at != kNone) i = next(i);
      index_[i] = place;
    }
  }

  void note_settled(const Entry& entry, bool dead) {
    if (audit_ == nullptr) return;
    const std::lock_guard hold(lock_);
    note(dead ? Deed::dead : Deed::handled, entry, 0);
  }
  void note(Deed deed, const Entry& entry, std::uint64_t other) {
    if (audit_ != nullptr) [[unlikely]]
      write_down(deed, entry, other);
  }
  [[gnu::noinline]] void write_down(Deed deed, const Entry& entry, std::uint64_t other) {
    if (audit_->on())
      audit_->add({entry.sequence, other, entry.hash, ticks(), entry.type, lane_, deed,
                   static_cast<std::uint8_t>((entry.can_collapse ? 1 : 0) | (entry.can_drop ? 2 : 0)), 0});
  }

  static constexpr std::size_t kReserve = 1000;
  static constexpr std::size_t kReserved = 1 << 16;
  static constexpr std::size_t kTouched = 1 << 14;
  static constexpr std::size_t kCatchUp = 4;  // half a lane of puts catches up with the whole

  mutable std::mutex lock_;
  std::condition_variable room_;
  const std::uint8_t lane_;
  const std::size_t capacity_;
  const Policy policy_;
  const std::uint32_t keep_one_of_;
  Audit* const audit_;
  std::vector<Slot> slots_;
  std::vector<Place> index_;
  std::size_t keys_ = 0, size_ = 0, alone_ = 0;
  std::uint32_t head_ = kNone, tail_ = kNone, free_ = kNone, free_tail_ = kNone;
  std::uint32_t superseded_head_ = kNone, superseded_tail_ = kNone;
  bool indexing_;
  std::uint32_t behind_ = kNone;  // the oldest that is not in the index yet, while there is one
  std::uint64_t turn_ = 0;
  bool closed_ = false;
  LaneCounts counts_;  // but for those below
  std::uint64_t taken_ = 0;
  std::atomic<std::size_t> seen_{0};
  // Counted by those who handle, apart from what publishers write.
  alignas(64) std::atomic<std::uint64_t> handled_{0};
  std::atomic<std::uint64_t> dead_{0};
};

}  // namespace qts
