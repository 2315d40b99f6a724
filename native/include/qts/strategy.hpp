// A strategy: the end of the way. Checks order, measures latency, does its work.
//
// Per (producer, type) it knows the last sequence number and how many came. A number that does
// not rise is a violation; a stream number that leaps is a gap, as long as the leap. Types that
// go through several processors may legally arrive out of order: that is only counted.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "qts/clock.hpp"
#include "qts/flow.hpp"
#include "qts/histogram.hpp"
#include "qts/processor.hpp"

namespace qts {

// Spans of a message's way, each from the end of the one before, so that no wait is left out.
struct Latencies {
  Histogram stage1;      // intended send time to leaving stage 1
  Histogram processing;  // to leaving the processor
  Histogram stage2;      // to leaving stage 2
  Histogram strategy;    // to the strategy being done
  Histogram total;       // intended send time to done

  void merge(const Latencies& other) {
    stage1.merge(other.stage1);
    processing.merge(other.processing);
    stage2.merge(other.stage2);
    strategy.merge(other.strategy);
    total.merge(other.total);
  }
};

struct StrategySpec {
  Stamps stamps = Stamps::all;
  std::uint64_t sample = 1000;  // every so many messages are measured; 1 = all
  bool digest = false;          // keep a digest of every stream, to compare with a replay
};

class Strategy final : public WorkingTaker {
 public:
  struct Stream {
    std::uint64_t delivered = 0;
    std::uint64_t last = 0;
    std::uint64_t digest = 0;
    std::uint16_t next_number = 0;
    bool joined = false;  // the stream went elsewhere before: any number may come first
  };

  Strategy(std::uint8_t number, const StrategySpec& spec, const BusyWork& busy, std::unique_ptr<Work> work)
      : WorkingTaker(number, "strategy " + std::to_string(number), busy, std::move(work)),
        spec_(spec),
        scale_(tick_scale()),
        until_sample_(1),
        streams_(kMostComponents * kTypes) {}

  std::uint64_t delivered() const { return delivered_.get(); }
  std::uint64_t violations() const { return violations_.get(); }
  std::uint64_t gaps() const { return gaps_.get(); }
  std::uint64_t reordered() const { return reordered_.get(); }
  const Latencies& latencies() const { return latencies_; }
  // While the worker rests.
  const Stream& stream(std::uint8_t producer, std::uint8_t type) const {
    return streams_[producer * kTypes + type];
  }
  // Whether order is promised for a type. While the worker rests.
  void set_ordered(std::uint8_t type, bool ordered) { ordered_[type] = ordered; }
  void join_streams_of(std::uint8_t type) {
    for (std::size_t producer = 0; producer < kMostComponents; ++producer)
      streams_[producer * kTypes + type].joined = true;
  }

  std::size_t room(std::uint8_t, std::size_t wanted) override { return closed() ? 0 : wanted; }
  bool abandons(std::uint8_t) const override { return closed(); }

  void send(std::span<Message> batch) override {
    if (has_work()) {
      batch = batch.first(work_on(batch));
      const std::uint64_t done = spec_.stamps == Stamps::off ? 0 : ticks();
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
    } else if (ordered_[message.msg_type] && !stream.joined) {
      const auto leap = static_cast<std::uint16_t>(message.stream_number - stream.next_number);
      if (leap != 0) gaps_.add(leap);
    }
    stream.joined = false;
    stream.last = message.sequence_number;
    stream.next_number = static_cast<std::uint16_t>(message.stream_number + 1);
    ++stream.delivered;
    if (spec_.digest)
      stream.digest = ordered_[message.msg_type] ? digest(stream.digest, message) : stream.digest + digest(0, message);
  }

  // Depends on what a sender can set, not on when it happened; and on the order where one is promised.
  static std::uint64_t digest(std::uint64_t so_far, const Message& message) {
    const std::uint64_t exponent = static_cast<std::uint8_t>(message.quantity_exponent);
    const std::uint64_t parts[] = {message.sequence_number, message.symbol_id, static_cast<std::uint64_t>(message.price),
                                   message.quantity_mantissa() | exponent << 48};
    for (const std::uint64_t part : parts) so_far = (so_far ^ part) * 0x9e3779b97f4a7c15 + 1;
    return so_far ^ (so_far >> 29);
  }

  // `done` of 0: the clock has not been read yet.
  void measure(const Message& message, std::uint64_t done) {
    if (--until_sample_ != 0 || spec_.stamps == Stamps::off) {
      if (until_sample_ == 0) until_sample_ = spec_.sample;
      return;
    }
    until_sample_ = spec_.sample;
    if (done == 0) done = ticks();
    record(latencies_.total, message.timestamp_ns, done);
    if (spec_.stamps == Stamps::edges) return;
    record(latencies_.stage1, message.timestamp_ns, message.stage1_exit_ns);
    record(latencies_.processing, message.stage1_exit_ns, message.processing_exit_ns);
    record(latencies_.stage2, message.processing_exit_ns, message.stage2_exit_ns);
    record(latencies_.strategy, message.stage2_exit_ns, done);
  }

  void record(Histogram& histogram, std::uint64_t from, std::uint64_t to) const {
    // Counters of two cores may disagree by a few ticks.
    histogram.record_alone(to > from ? scale_.span_ns(to - from) : 0);
  }

  const StrategySpec spec_;
  const TickScale scale_;
  std::uint64_t until_sample_;
  std::array<bool, kTypes> ordered_{};
  std::vector<Stream> streams_;
  Latencies latencies_;
  Count delivered_, violations_, gaps_, reordered_;
};

}  // namespace qts
