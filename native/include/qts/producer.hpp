// Sources of messages: a Producer generates them on a schedule, a LiveSource routes them from any thread.
//
// A generated message is a pure function of (seed, producer, k). This is what limits back-pressure to
// one type in bounded memory: when the ring of a type is full the producer stores only the k at which
// it stopped, continues with the other types, and generates the skipped messages later, unchanged and
// in order, when there is capacity.
//
// Thread contract: `poll` is called by the source's worker; LiveSource::try_push_many by any thread;
// `connect` while the workers are paused.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "qts/clock.hpp"
#include "qts/component.hpp"
#include "qts/schedule.hpp"

namespace qts {

// What a producer sends, and when.
struct ProducerSpec {
  double rate_per_s = 0;
  std::array<double, kTypes> shares{};
  std::uint64_t total = 0;  // exactly this many messages, unless stopped or past the deadline
  double deadline_s = 0;    // after the start: messages that could not be sent by then are not sent
  Burst burst{};
  std::uint32_t symbols = 16;
  std::uint64_t seed = 1;
};

// A component that sends messages and counts, per type, those accepted by the first hop.
class Source : public Component {
 public:
  Source(std::uint8_t number, std::string source_name) : Component(std::move(source_name)), id(number) {}

  // Called while the workers are paused.
  virtual void connect(std::uint8_t type, OutputPort& port) { out_[type] = &port; }
  // Set by the source's thread before any other thread receives its last message.
  bool done() const { return done_.load(std::memory_order_acquire); }
  std::uint64_t produced(std::uint8_t type) const { return produced_[type].get(); }
  std::uint64_t produced() const {
    std::uint64_t sum = 0;
    for (const RelaxedCounter& count : produced_) sum += count.get();
    return sum;
  }

  const std::uint8_t id;

 protected:
  // Sends the first messages of the batch there is capacity for, and returns how many. Each gets its
  // number in the stream of its type, unless `keep_number`.
  std::size_t push(std::uint8_t type, std::span<Message> batch, bool keep_number = false) {
    const std::size_t count = out_[type]->free_capacity(type, batch.size());
    if (count == 0) return 0;
    std::uint64_t number = produced_[type].get();
    if (!keep_number)
      for (Message& message : batch.first(count)) message.stream_number = static_cast<std::uint16_t>(number++);
    // Counted before it is sent, so that delivered never exceeds produced.
    produced_[type].add(count);
    out_[type]->send(batch.first(count));
    return count;
  }
  bool connected(std::uint8_t type) const { return out_[type] != nullptr; }
  bool has_capacity(std::uint8_t type) { return out_[type]->free_capacity(type, 1) != 0; }
  void finish() { done_.store(true, std::memory_order_release); }

 private:
  std::array<OutputPort*, kTypes> out_{};
  std::array<RelaxedCounter, kTypes> produced_{};
  std::atomic<bool> done_{false};
};

class Producer final : public Source {
 public:
  Producer(std::uint8_t number, const ProducerSpec& spec, const std::atomic<bool>& stop)
      : Source(number, "producer " + std::to_string(number)),
        spec_(spec),
        schedule_(spec.rate_per_s, spec.burst),
        key_(mix(spec.seed ^ (static_cast<std::uint64_t>(number) << 56))),
        stop_(stop) {
    double sum = 0;
    for (std::uint8_t type = 0; type < kTypes; ++type) {
      if (spec.shares[type] <= 0) continue;
      sum += spec.shares[type];
      // The last type routes the whole remainder, so that rounding never selects an unused type.
      types_[type_count_] = type;
      limits_[type_count_++] = sum >= 1.0 ? UINT64_MAX : static_cast<std::uint64_t>(sum * 0x1p64);
    }
  }

  void start(std::uint64_t at) {
    const TickScale scale = tick_scale();
    start_ = due_ = at;
    deadline_ = at + scale.span_ticks(static_cast<std::uint64_t>(spec_.deadline_s * 1e9));
    ticks_per_s_ = scale.ticks_per_ns() * 1e9;
    ticks_per_message_ = ticks_per_s_ / spec_.rate_per_s;
  }

  std::size_t poll() override {
    if (done()) return 0;
    const std::uint64_t now = ticks();
    std::size_t moved = 0;
    unsigned up_to_date = 0;
    for (const std::uint8_t type : used()) {
      if (streams_[type].cursor < next_) moved += catch_up(type);
      if (streams_[type].cursor == next_) up_to_date |= 1u << type;
    }
    if (stop_.load(std::memory_order_relaxed) || now >= deadline_ ||
        (next_ == spec_.total && up_to_date == all_types())) {
      finish();
      return moved;
    }
    // With every type held back, no message can be sent.
    return up_to_date == 0 ? moved : moved + generate_due(now, up_to_date);
  }

 private:
  // The messages of one type: those with k < cursor have been sent.
  struct Stream {
    std::uint64_t cursor = 0;
    std::size_t count = 0;
    std::array<Message, kBatch> batch{};
  };

  // splitmix64, a hash of a counter: message k is generated without its predecessors.
  static std::uint64_t mix(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }
  std::uint64_t draw(std::uint64_t k) const { return mix(key_ + k); }
  std::uint8_t type_of(std::uint64_t drawn) const {
    // Without branches: the type of the next message is unpredictable.
    std::size_t i = 0;
    for (std::size_t k = 0; k + 1 < type_count_; ++k) i += drawn >= limits_[k] ? 1 : 0;
    return types_[i];
  }
  std::span<const std::uint8_t> used() const { return {types_.data(), type_count_}; }
  unsigned all_types() const {
    unsigned mask = 0;
    for (const std::uint8_t type : used()) mask |= 1u << type;
    return mask;
  }

  std::uint64_t due_at(std::uint64_t k) const {
    const double after = spec_.burst.period_s > 0 ? schedule_.due_s(k) * ticks_per_s_
                                                  : static_cast<double>(k) * ticks_per_message_;
    return start_ + static_cast<std::uint64_t>(after);
  }

  void generate(Stream& stream, std::uint8_t type, std::uint64_t k, std::uint64_t due, std::uint64_t drawn) {
    Message& message = stream.batch[stream.count++];
    message = blank_;
    message.msg_type = type;
    message.producer_id = id;
    message.sequence_number = k;
    message.timestamp_ns = due;
    const std::uint64_t content = mix(drawn);
    message.symbol_id = static_cast<std::uint32_t>((content & 0xffffffff) * spec_.symbols >> 32);
    message.price = (50'000 + static_cast<std::int64_t>((content >> 32) & 1023) * 50) * kPriceScale;
    message.quantity_low = 1 + static_cast<std::uint32_t>(content >> 48 & 127);
  }

  // Generates the messages that are due, at most one batch, except for the types that are behind.
  std::size_t generate_due(std::uint64_t now, unsigned up_to_date) {
    const std::uint64_t end = std::min(spec_.total, next_ + kBatch);
    while (next_ < end && due_ <= now) {
      const std::uint64_t k = next_++, due = due_, drawn = draw(k);
      due_ = due_at(next_);
      const std::uint8_t type = type_of(drawn);
      if ((up_to_date >> type & 1u) != 0) generate(streams_[type], type, k, due, drawn);
    }
    std::size_t moved = 0;
    for (const std::uint8_t type : used())
      if ((up_to_date >> type & 1u) != 0) moved += flush(type, next_);
    return moved;
  }

  // Generates the skipped messages of one type, as far as there is capacity.
  std::size_t catch_up(std::uint8_t type) {
    if (!has_capacity(type)) return 0;
    Stream& stream = streams_[type];
    const std::uint64_t end = std::min(next_, stream.cursor + kMaxScan);
    std::uint64_t k = stream.cursor;
    for (; k < end && stream.count < kBatch; ++k) {
      const std::uint64_t drawn = draw(k);
      if (type_of(drawn) == type) generate(stream, type, k, due_at(k), drawn);
    }
    return flush(type, k);
  }

  // Sends the generated messages: all of this type from the cursor to `end`.
  std::size_t flush(std::uint8_t type, std::uint64_t end) {
    Stream& stream = streams_[type];
    const std::size_t sent = stream.count == 0 ? 0 : push(type, {stream.batch.data(), stream.count});
    stream.cursor = sent == stream.count ? end : stream.batch[sent].sequence_number;
    stream.count = 0;
    return sent;
  }

  static constexpr std::uint64_t kMaxScan = 1024;  // per poll, so that one type that catches up does not delay the others

  const Message blank_{};  // copied: compilers zero 96 bytes with an instruction that routes 8 ns to start
  const ProducerSpec spec_;
  const Schedule schedule_;
  const std::uint64_t key_;
  const std::atomic<bool>& stop_;
  std::array<std::uint8_t, kTypes> types_{};
  std::array<std::uint64_t, kTypes> limits_{};
  std::size_t type_count_ = 0;
  std::uint64_t start_ = 0, deadline_ = 0;
  double ticks_per_s_ = 0, ticks_per_message_ = 0;
  std::uint64_t next_ = 0;  // the first k that has not been due yet
  std::uint64_t due_ = 0;   // the tick at which it is due
  std::array<Stream, kTypes> streams_{};
};

// A source into which any thread pushes messages. Its first hop is always an edge. With `keep_numbers`,
// used to replay a journal, each message keeps its producer, sequence number and stream number.
class LiveSource final : public Source {
 public:
  LiveSource(std::uint8_t number, bool keep_numbers)
      : Source(number, "live source " + std::to_string(number)), keep_numbers_(keep_numbers) {}

  std::size_t poll() override { return 0; }

  // Takes the lock, because pushing threads are not paused with the workers.
  void connect(std::uint8_t type, OutputPort& port) override {
    const std::lock_guard lock(push_lock_);
    Source::connect(type, port);
  }
  bool routes(std::uint8_t type) {
    const std::lock_guard lock(push_lock_);
    return is_routed(type);
  }

  // Sends the first messages there is capacity for and returns how many; stops at a type that no rule
  // routes. Sets the source, the sequence number and the send time.
  std::size_t try_push_many(std::span<Message> messages) {
    const std::lock_guard lock(push_lock_);
    if (done()) return 0;
    const std::uint64_t now = ticks();
    std::size_t taken = 0;
    while (taken < messages.size()) {
      const std::size_t run = run_of_one_type(messages.subspan(taken));
      const auto batch = messages.subspan(taken, run);
      if (!is_routed(batch[0].msg_type)) break;
      set_header(batch, now);
      const std::size_t sent = push(batch[0].msg_type, batch, keep_numbers_);
      sequence_ += sent;
      taken += sent;
      if (sent < run) break;
    }
    return taken;
  }

  // Refuses further messages. Those accepted before are still delivered.
  void close() {
    const std::lock_guard lock(push_lock_);
    finish();
  }

 private:
  bool is_routed(std::uint8_t type) const { return type < kTypes && connected(type); }

  static std::size_t run_of_one_type(std::span<const Message> messages) {
    std::size_t run = 1;
    while (run < messages.size() && run < kBatch && messages[run].msg_type == messages[0].msg_type) ++run;
    return run;
  }

  void set_header(std::span<Message> batch, std::uint64_t now) const {
    std::uint64_t next = sequence_;
    for (Message& message : batch) {
      message.timestamp_ns = now;
      if (keep_numbers_) continue;
      message.producer_id = id;
      message.sequence_number = next++;
    }
  }

  const bool keep_numbers_;
  std::mutex push_lock_;  // between pushing threads only: no worker routes it
  std::uint64_t sequence_ = 0;
};

}  // namespace qts
