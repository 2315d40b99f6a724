// A processor: works on each message and passes it on to stage 2.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "qts/clock.hpp"
#include "qts/flow.hpp"
#include "qts/work.hpp"

namespace qts {

// A taker whose work may fail. It then works no more, and what it had in hand is counted.
class WorkingTaker : public Taker {
 public:
  WorkingTaker(std::uint8_t number, std::string called, const BusyWork& busy, std::unique_ptr<Work> work)
      : Taker(std::move(called)), id(number), busy_(busy), work_(std::move(work)) {}

  // Messages that were taken and will never come out: the failed one and those behind it.
  std::uint64_t abandoned() const { return abandoned_.get(); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // After failed() said so.
  const std::optional<Failure>& failure() const { return failure_; }
  // Inside work given from outside, at this moment.
  bool at_work() const { return at_work_.load(std::memory_order_relaxed); }
  // Once its worker has stopped.
  void drop_work() { work_.reset(); }

  const std::uint8_t id;

 protected:
  std::size_t work_on(std::span<Message> batch) {
    if (closed()) {  // it failed at an earlier message of what it had promised to take
      abandoned_.add(batch.size());
      return 0;
    }
    at_work_.store(true, std::memory_order_relaxed);
    const std::size_t handled = work_->run(batch);
    at_work_.store(false, std::memory_order_relaxed);
    if (handled < batch.size()) {
      failure_ = Failure{name, batch[handled], work_->failure};
      abandoned_.add(batch.size() - handled);
      failed_.store(true, std::memory_order_release);
    }
    return handled;
  }
  bool has_work() const { return work_ != nullptr; }
  bool closed() const { return failed_.load(std::memory_order_relaxed); }

  const BusyWork busy_;

 private:
  std::unique_ptr<Work> work_;
  Count abandoned_;
  std::atomic<bool> failed_{false}, at_work_{false};
  std::optional<Failure> failure_;
};

class Processor final : public WorkingTaker {
 public:
  Processor(std::uint8_t number, Stamps stamps, const BusyWork& busy, std::unique_ptr<Work> work)
      : WorkingTaker(number, "processor " + std::to_string(number), busy, std::move(work)), stamps_(stamps) {}

  void connect(std::uint8_t type, Port& port) { out_[type] = &port; }
  std::uint64_t processed() const { return processed_.get(); }

  std::size_t room(std::uint8_t type, std::size_t wanted) override {
    return closed() ? 0 : out_[type]->room(type, wanted);
  }
  bool abandons(std::uint8_t type) const override { return closed() || out_[type]->abandons(type); }

  void send(std::span<Message> batch) override {
    if (has_work()) {
      batch = batch.first(worked(batch));
      if (batch.empty()) return;
    } else {
      spin(batch);
    }
    processed_.add(batch.size());
    out_[batch[0].msg_type]->send(batch);
  }

 private:
  // The whole batch at once: its messages share their stamps.
  std::size_t worked(std::span<Message> batch) {
    const bool stamped = stamps_ == Stamps::all || stamps_ == Stamps::hop_batch;
    const std::uint64_t entry = stamped ? ticks() : 0;
    const std::size_t handled = work_on(batch);
    const std::uint64_t exit = stamped ? ticks() : 0;
    for (Message& message : batch.first(handled)) mark(message, entry, exit);
    return handled;
  }

  void spin(std::span<Message> batch) {
    const std::uint8_t type = batch[0].msg_type;
    if (stamps_ == Stamps::all) {
      for (Message& message : batch) {
        const std::uint64_t entry = ticks();
        mark(message, entry, busy_.none(type) ? ticks() : busy_.spin(type, entry));
      }
      return;
    }
    const std::uint64_t entry = stamps_ == Stamps::hop_batch || !busy_.none(type) ? ticks() : 0;
    std::uint64_t now = entry;
    if (!busy_.none(type))
      for (std::size_t i = 0; i < batch.size(); ++i) now = busy_.spin(type, now);
    const bool stamped = stamps_ == Stamps::hop_batch;
    for (Message& message : batch) mark(message, stamped ? entry : 0, stamped ? now : 0);
  }

  void mark(Message& message, std::uint64_t entry, std::uint64_t exit) const {
    message.processor_id = id;
    message.processing_entry_ns = entry;
    message.processing_ts_ns = message.processing_exit_ns = exit;
  }

  const Stamps stamps_;
  std::array<Port*, kTypes> out_{};
  Count processed_;
};

}  // namespace qts
