// Strategy: the last component of the pipeline; it checks order, measures latency and runs its handler.
//
// Per (producer, type) it stores the last sequence number and the number of messages. A sequence number
// that does not rise is a violation; a stream number that skips some is a gap of that many messages.
// Types that go through several processors may arrive out of order: that is only counted (reordered).
//
// Thread contract: as in component.hpp; counts and latencies may be read from any thread.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "qts/clock.hpp"
#include "qts/component.hpp"
#include "qts/histogram.hpp"
#include "qts/processor.hpp"

namespace qts {

// Latencies of a message by stage, each measured from the end of the stage before, so that no wait is left out.
struct Latencies {
  Histogram stage1;      // intended send time to the exit of stage 1
  Histogram processing;  // to the exit of the processor
  Histogram stage2;      // to the exit of stage 2
  Histogram strategy;    // to the end of the strategy's handler
  Histogram total;       // intended send time to the end of the strategy's handler

  void merge(const Latencies& other) {
    stage1.merge(other.stage1);
    processing.merge(other.processing);
    stage2.merge(other.stage2);
    strategy.merge(other.strategy);
    total.merge(other.total);
  }
};

struct StrategySpec {
  StampMode stamps = StampMode::all;
  std::uint64_t sample = 1000;  // one of this many messages is measured; 1: all
  bool digest = false;          // compute a digest of every stream, to compare with a replay
};

class Strategy final : public WorkReceiver {
 public:
  struct Stream {
    std::uint64_t delivered = 0;
    std::uint64_t last = 0;
    std::uint64_t digest = 0;
    std::uint16_t next_number = 0;
    bool any_start = false;  // the stream had another strategy before: any number may come first
  };

  Strategy(std::uint8_t number, const StrategySpec& spec, const BusyWork& busy, std::unique_ptr<MessageHandler> handler)
      : WorkReceiver(number, "strategy " + std::to_string(number), busy, std::move(handler)),
        spec_(spec),
        scale_(tick_scale()),
        until_sample_(1),
        streams_(kMaxComponents * kTypes) {}

  std::uint64_t delivered() const { return delivered_.get(); }
  std::uint64_t violations() const { return violations_.get(); }
  std::uint64_t gaps() const { return gaps_.get(); }
  std::uint64_t reordered() const { return reordered_.get(); }
  const Latencies& latencies() const { return latencies_; }
  // Called while the worker is paused or stopped.
  const Stream& stream(std::uint8_t producer, std::uint8_t type) const {
    return streams_[producer * kTypes + type];
  }
  // Whether order is guaranteed for a type. Called while the worker is paused.
  void set_ordered(std::uint8_t type, bool ordered) { ordered_[type] = ordered; }
  // The streams of a type are routed here from now on, and may start at any number.
  void accept_any_start(std::uint8_t type) {
    for (std::size_t producer = 0; producer < kMaxComponents; ++producer)
      streams_[producer * kTypes + type].any_start = true;
  }

  std::size_t free_capacity(std::uint8_t, std::size_t wanted) override { return closed() ? 0 : wanted; }
  bool abandons(std::uint8_t) const override { return closed(); }

  void send(std::span<Message> batch) override {
    if (has_handler()) {
      batch = batch.first(run_handler(batch));
      const std::uint64_t done = spec_.stamps == StampMode::off ? 0 : ticks();
      for (const Message& message : batch) {
        check(message);
        measure(message, done);
      }
    } else {
      spin(batch);
    }
    delivered_.add(batch.size());
  }

 private:
  void spin(std::span<const Message> batch) {
    const std::uint8_t type = batch[0].msg_type;
    const bool idle = busy_.none(type);
    std::uint64_t now = idle ? 0 : ticks();
    for (const Message& message : batch) {
      check(message);
      if (!idle) now = busy_.spin(type, now);
      measure(message, now);
    }
  }

  void check(const Message& message) {
    Stream& stream = streams_[message.producer_id * kTypes + message.msg_type];
    if (stream.delivered != 0 && message.sequence_number <= stream.last) {
      (ordered_[message.msg_type] ? violations_ : reordered_).add(1);
    } else if (ordered_[message.msg_type] && !stream.any_start) {
      const auto missing = static_cast<std::uint16_t>(message.stream_number - stream.next_number);
      if (missing != 0) gaps_.add(missing);
    }
    stream.any_start = false;
    stream.last = message.sequence_number;
    stream.next_number = static_cast<std::uint16_t>(message.stream_number + 1);
    ++stream.delivered;
    if (spec_.digest)
      stream.digest = ordered_[message.msg_type] ? digest(stream.digest, message) : stream.digest + digest(0, message);
  }

  // Covers the fields that a sender sets, not the timestamps; and the order, where it is guaranteed.
  static std::uint64_t digest(std::uint64_t so_far, const Message& message) {
    const std::uint64_t exponent = static_cast<std::uint8_t>(message.quantity_exponent);
    const std::uint64_t parts[] = {message.sequence_number, message.symbol_id, static_cast<std::uint64_t>(message.price),
                                   message.quantity_mantissa() | exponent << 48};
    for (const std::uint64_t part : parts) so_far = (so_far ^ part) * 0x9e3779b97f4a7c15 + 1;
    return so_far ^ (so_far >> 29);
  }

  // `done` = 0: the clock has not been read yet.
  void measure(const Message& message, std::uint64_t done) {
    if (--until_sample_ != 0 || spec_.stamps == StampMode::off) {
      if (until_sample_ == 0) until_sample_ = spec_.sample;
      return;
    }
    until_sample_ = spec_.sample;
    if (done == 0) done = ticks();
    record(latencies_.total, message.timestamp_ns, done);
    if (spec_.stamps == StampMode::edges) return;
    record(latencies_.stage1, message.timestamp_ns, message.stage1_exit_ns);
    record(latencies_.processing, message.stage1_exit_ns, message.processing_exit_ns);
    record(latencies_.stage2, message.processing_exit_ns, message.stage2_exit_ns);
    record(latencies_.strategy, message.stage2_exit_ns, done);
  }

  void record(Histogram& histogram, std::uint64_t from, std::uint64_t to) const {
    // The counters of two cores may differ by a few ticks.
    histogram.record_exclusive(to > from ? scale_.span_ns(to - from) : 0);
  }

  const StrategySpec spec_;
  const TickScale scale_;
  std::uint64_t until_sample_;
  std::array<bool, kTypes> ordered_{};
  std::vector<Stream> streams_;
  Latencies latencies_;
  RelaxedCounter delivered_, violations_, gaps_, reordered_;
};

}  // namespace qts
