// How messages move between components, on one worker or between two.
//
// Thread contract: `room` and `send` are called by the one worker that owns the sending side.
//
// The rule that keeps everything: ask for room first, then send at most that much; a send is
// never refused. Only the sender's own worker fills what lies below it, so room that was there
// stays there. Nothing is ever in a state "worked on but not accepted", so nothing has to be
// undone, stored aside or done twice. A component that fails in the middle of what it promised to
// take takes the rest all the same, and counts it as abandoned.
//
// A batch holds messages of one type only, and every type travels in rings of its own. A full
// ring therefore holds back its own type and nobody else's: there is no head of the line to
// block. Order per (producer, type) holds because each hop is first in, first out.
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
#include "qts/wait.hpp"

namespace qts {

inline constexpr std::size_t kTypes = 8;
inline constexpr std::size_t kMostComponents = 256;  // of each kind: their ids are one byte
// Sources send at most kBatch at once; takers may take more, so that a queue shrinks once it grew.
inline constexpr std::size_t kBatch = 64;
inline constexpr std::size_t kTake = 4 * kBatch;

// Which time stamps a message collects on its way.
//   all        entry and exit of every hop, for every message
//   hop_batch  the same, read once for a whole batch
//   edges      intended send time and completion only
//   off        none; no latency is measured
enum class Stamps : std::uint8_t { all, hop_batch, edges, off };

// A number written by one thread and read by any.
class Count {
 public:
  void add(std::uint64_t n) {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

class Port {
 public:
  virtual ~Port() = default;
  // How many messages of a type can be sent now, at most `wanted`.
  virtual std::size_t room(std::uint8_t type, std::size_t wanted) = 0;
  // Takes a batch of one type, no larger than the room there was. May write into it.
  virtual void send(std::span<Message> batch) = 0;
  // Whether a component that is reached without a ring has failed: it abandons what it is sent.
  virtual bool abandons(std::uint8_t) const { return false; }
};

// An edge between two workers: a ring for one type, from one component to another.
class Edge final : public Port {
 public:
  Edge(std::string at, std::uint8_t of_type, bool is_urgent, std::size_t capacity)
      : place(std::move(at)), type(of_type), urgent(is_urgent), ring(capacity) {}

  std::size_t room(std::uint8_t, std::size_t wanted) override { return ring.claim(wanted).size(); }

  void send(std::span<Message> batch) override {
    [[maybe_unused]] const std::size_t pushed = ring.try_push_many(batch);
    assert(pushed == batch.size());
    if (sleeper != nullptr) sleeper->wake();
  }

  const std::string place;  // as the report names it: "stage1 0 to processor 2, type 3"
  const std::uint8_t type;
  const bool urgent;
  Park* sleeper = nullptr;  // the taker's thread, where it may sleep
  Ring<Message> ring;
};

// Sees every message that passes a stage, before it goes on.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual std::size_t room(std::size_t wanted) = 0;
  virtual void append(std::span<const Message> batch) = 0;
};

// What a worker runs. `poll` moves what it can and says how many messages that were.
class Component {
 public:
  explicit Component(std::string called) : name(std::move(called)) {}
  virtual ~Component() = default;
  Component(const Component&) = delete;
  Component& operator=(const Component&) = delete;

  virtual std::size_t poll() = 0;

  const std::string name;
};

// A component that is sent messages: directly by a component of its own worker, or through edges.
class Taker : public Component, public Port {
 public:
  using Component::Component;

  void add_inlet(Edge& edge) { (edge.urgent ? urgent_ : ordinary_).push_back(&edge); }

  std::size_t poll() override {
    std::size_t moved = take_urgent();
    for (Edge* inlet : ordinary_) moved += take(*inlet) + take_urgent();
    return moved;
  }

 private:
  std::size_t take_urgent() {
    std::size_t moved = 0;
    for (Edge* inlet : urgent_) moved += take(*inlet);
    return moved;
  }

  std::size_t take(Edge& inlet) {
    auto run = inlet.ring.peek(kTake);
    if (run.empty()) return 0;
    const std::size_t count = room(inlet.type, run.size());
    if (count == 0) return 0;
    for (std::size_t i = 0; i < count; ++i) batch_[i] = run[i];
    inlet.ring.release(count);
    send({batch_.data(), count});
    return count;
  }

  std::vector<Edge*> urgent_;
  std::vector<Edge*> ordinary_;
  std::array<Message, kTake> batch_{};
};

}  // namespace qts
