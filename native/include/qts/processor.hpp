// Processor: runs its handler for each message and sends the message on to stage 2.
//
// Thread contract: as in component.hpp; counts and failures may be read from any thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "qts/clock.hpp"
#include "qts/component.hpp"
#include "qts/message_handler.hpp"

namespace qts {

// A receiver whose handler may fail. It then runs no more, and counts the messages it had taken.
class WorkReceiver : public Receiver {
 public:
  WorkReceiver(std::uint8_t number, std::string receiver_name, const BusyWork& busy,
               std::unique_ptr<MessageHandler> handler)
      : Receiver(std::move(receiver_name)), id(number), busy_(busy), handler_(std::move(handler)) {}

  // Messages that were received and will not be sent on: the failed one and those behind it.
  std::uint64_t abandoned() const { return abandoned_.get(); }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Set once failed() returns true.
  const std::optional<Failure>& failure() const { return failure_; }
  // Whether its handler is running now.
  bool in_handler() const { return in_handler_.load(std::memory_order_relaxed); }
  // Called once its worker has stopped.
  void release_handler() { handler_.reset(); }

  const std::uint8_t id;

 protected:
  // Runs the handler and returns how many messages it handled.
  std::size_t run_handler(std::span<Message> batch) {
    if (closed()) {  // it failed at an earlier message of the batches it had capacity for
      abandoned_.add(batch.size());
      return 0;
    }
    const std::uint8_t type = batch[0].msg_type;
    in_handler_.store(true, std::memory_order_relaxed);
    const std::size_t handled = unchanged_types(batch.first(handler_->run(batch)), type);
    in_handler_.store(false, std::memory_order_relaxed);
    if (handled < batch.size()) {
      failure_ = Failure{name, batch[handled], handler_->error};
      abandoned_.add(batch.size() - handled);
      failed_.store(true, std::memory_order_release);
    }
    return handled;
  }
  // Returns how many messages come before the first whose type the handler has changed, which fails: the
  // type selects the route and indexes tables.
  std::size_t unchanged_types(std::span<Message> batch, std::uint8_t type) {
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (batch[i].msg_type != type) [[unlikely]] {
        handler_->error = "the handler changed msg_type from " + std::to_string(type) + " to " +
                          std::to_string(batch[i].msg_type);
        batch[i].msg_type = type;  // the failure is reported with the message as it was received
        return i;
      }
    return batch.size();
  }
  bool has_handler() const { return handler_ != nullptr; }
  bool closed() const { return failed_.load(std::memory_order_relaxed); }

  const BusyWork busy_;

 private:
  std::unique_ptr<MessageHandler> handler_;
  RelaxedCounter abandoned_;
  std::atomic<bool> failed_{false}, in_handler_{false};
  std::optional<Failure> failure_;
};

class Processor final : public WorkReceiver {
 public:
  Processor(std::uint8_t number, StampMode stamps, const BusyWork& busy, std::unique_ptr<MessageHandler> handler)
      : WorkReceiver(number, "processor " + std::to_string(number), busy, std::move(handler)), stamps_(stamps) {}

  void connect(std::uint8_t type, OutputPort& port) { out_[type] = &port; }
  std::uint64_t processed() const { return processed_.get(); }

  std::size_t free_capacity(std::uint8_t type, std::size_t wanted) override {
    return closed() ? 0 : out_[type]->free_capacity(type, wanted);
  }
  bool abandons(std::uint8_t type) const override { return closed() || out_[type]->abandons(type); }

  void send(std::span<Message> batch) override {
    if (has_handler()) {
      batch = batch.first(handle(batch));
      if (batch.empty()) return;
    } else {
      spin(batch);
    }
    processed_.add(batch.size());
    out_[batch[0].msg_type]->send(batch);
  }

 private:
  // The messages of a batch share their timestamps.
  std::size_t handle(std::span<Message> batch) {
    const bool stamped = stamps_ == StampMode::all || stamps_ == StampMode::hop_batch;
    const std::uint64_t entry = stamped ? ticks() : 0;
    const std::size_t handled = run_handler(batch);
    const std::uint64_t exit = stamped ? ticks() : 0;
    for (Message& message : batch.first(handled)) mark(message, entry, exit);
    return handled;
  }

  void spin(std::span<Message> batch) {
    const std::uint8_t type = batch[0].msg_type;
    if (stamps_ == StampMode::all) {
      for (Message& message : batch) {
        const std::uint64_t entry = ticks();
        mark(message, entry, busy_.none(type) ? ticks() : busy_.spin(type, entry));
      }
      return;
    }
    const std::uint64_t entry = stamps_ == StampMode::hop_batch || !busy_.none(type) ? ticks() : 0;
    std::uint64_t now = entry;
    if (!busy_.none(type))
      for (std::size_t i = 0; i < batch.size(); ++i) now = busy_.spin(type, now);
    const bool stamped = stamps_ == StampMode::hop_batch;
    for (Message& message : batch) mark(message, stamped ? entry : 0, stamped ? now : 0);
  }

  void mark(Message& message, std::uint64_t entry, std::uint64_t exit) const {
    message.processor_id = id;
    message.processing_entry_ns = entry;
    message.processing_ts_ns = message.processing_exit_ns = exit;
  }

  const StampMode stamps_;
  std::array<OutputPort*, kTypes> out_{};
  RelaxedCounter processed_;
};

}  // namespace qts
