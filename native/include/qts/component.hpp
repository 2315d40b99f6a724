// Components and the ports and edges over which messages move between them, within a worker or across.
//
// Thread contract: `free_capacity` and `send` are called by the one worker that runs the sending side.
// Invariant: a sender reads the free capacity first and sends at most that much, so no send is ever
// refused. Only the sender's worker fills what is downstream of it, so capacity that was there stays
// there, and no message is in a state "processed but not accepted" that would have to be undone, stored
// or repeated. A component that fails in the middle of a batch it had capacity for still takes the rest,
// and counts it as abandoned.
//
// A batch holds messages of one type, and every type has separate rings. A full ring therefore holds
// back one type only: there is no head-of-line blocking between types. Order per (producer, type)
// holds because each hop is first in, first out.
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qts/message.hpp"
#include "qts/ring.hpp"
#include "qts/wait_strategy.hpp"

namespace qts {

inline constexpr std::size_t kTypes = 8;
inline constexpr std::size_t kMaxComponents = 256;  // of each kind: their ids are one byte
// Sources send at most kBatch at once; receivers may take more, so that a queue that has grown shrinks.
inline constexpr std::size_t kBatch = 64;
inline constexpr std::size_t kMaxReceive = 4 * kBatch;

// Which timestamps a message collects.
//   all        entry and exit of every hop, for every message
//   hop_batch  the same, read once for a whole batch
//   edges      intended send time and completion only
//   off        none; no latency is measured
enum class StampMode : std::uint8_t { all, hop_batch, edges, off };

// A counter written by one thread and read by any.
class RelaxedCounter {
 public:
  void add(std::uint64_t n) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class OutputPort {
 public:
  virtual ~OutputPort() = default;
  // How many messages of a type can be sent now, at most `wanted`.
  virtual std::size_t free_capacity(std::uint8_t type, std::size_t wanted) = 0;
  // Sends a batch of one type, no larger than the free capacity. May write into it.
  virtual void send(std::span<Message> batch) = 0;
  // Whether a component that is reached without a ring has failed: it abandons what it is sent.
  virtual bool abandons(std::uint8_t) const { return false; }
};

// An edge between two workers: a ring for one type, from one component to another.
class Edge final : public OutputPort {
 public:
  Edge(std::string edge_name, std::uint8_t of_type, bool is_urgent, std::size_t capacity)
      : name(std::move(edge_name)), type(of_type), urgent(is_urgent), ring(capacity) {}

  std::size_t free_capacity(std::uint8_t, std::size_t wanted) override { return ring.claim(wanted).size(); }

  void send(std::span<Message> batch) override {
    [[maybe_unused]] const std::size_t pushed = ring.try_push_many(batch);
    assert(pushed == batch.size());
    if (receiver_park != nullptr) receiver_park->wake();
  }

  const std::string name;  // as the report shows it: "stage1 0 to processor 2, type 3"
  const std::uint8_t type;
  const bool urgent;
  Park* receiver_park = nullptr;  // of the receiving worker, when it may sleep
  Ring<Message> ring;
};

// Receives a copy of every message that passes a stage, before the message is sent on.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual std::size_t free_capacity(std::size_t wanted) = 0;
  virtual void append(std::span<const Message> batch) = 0;
};

// What a worker runs. `poll` moves as many messages as it can and returns how many.
class Component {
 public:
  explicit Component(std::string component_name) : name(std::move(component_name)) {}
  virtual ~Component() = default;
  Component(const Component&) = delete;
  Component& operator=(const Component&) = delete;

  virtual std::size_t poll() = 0;

  const std::string name;
};

// A component that receives messages: directly from a component of the same worker, or through edges.
class Receiver : public Component, public OutputPort {
 public:
  using Component::Component;

  void add_input(Edge& edge) { (edge.urgent ? urgent_ : ordinary_).push_back(&edge); }

  std::size_t poll() override {
    std::size_t moved = receive_urgent();
    for (Edge* input : ordinary_) moved += receive(*input) + receive_urgent();
    return moved;
  }

 private:
  std::size_t receive_urgent() {
    std::size_t moved = 0;
    for (Edge* input : urgent_) moved += receive(*input);
    return moved;
  }

  std::size_t receive(Edge& input) {
    auto run = input.ring.peek(kMaxReceive);
    if (run.empty()) return 0;
    const std::size_t count = free_capacity(input.type, run.size());
    if (count == 0) return 0;
    for (std::size_t i = 0; i < count; ++i) batch_[i] = run[i];
    input.ring.release(count);
    send({batch_.data(), count});
    return count;
  }

  std::vector<Edge*> urgent_;
  std::vector<Edge*> ordinary_;
  std::array<Message, kMaxReceive> batch_{};
};

}  // namespace qts
