// A whole router with counting handlers, for the tests of delivery and of changes while it runs.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "harness.hpp"
#include "qts/router.hpp"

namespace router_rig {

using namespace qts;
using namespace std::chrono_literals;

constexpr std::uint8_t kUsed = 4;  // types

// A handler written as a lambda that returns how many of the batch it handled.
class LambdaHandler final : public MessageHandler {
 public:
  explicit LambdaHandler(std::function<std::size_t(std::span<Message>)> call) : call_(std::move(call)) { error = "refused"; }
  std::size_t run(std::span<Message> batch) override { return call_(batch); }

 private:
  std::function<std::size_t(std::span<Message>)> call_;
};

inline std::unique_ptr<MessageHandler> call(std::function<std::size_t(std::span<Message>)> body) {
  return std::make_unique<LambdaHandler>(std::move(body));
}

enum class Layout { one_worker, two_workers, threads };

struct Shape {
  Layout layout = Layout::two_workers;
  std::uint64_t messages = harness::kSanitized ? 5'000 : 20'000;  // of each producer
  double rate = 1e9;                // as fast as they are accepted
  std::size_t producers = 3;
  std::size_t stage1 = 1;
  std::size_t processors = 4;
  std::size_t ring = 64;
  WaitStrategy wait = WaitStrategy::yield;
  RouterOptions options{.stamps = StampMode::all, .sample = 7, .ring_capacity = 64, .digest = true};
};

// Type t goes through processor t to strategy t % 3.
class Rig {
 public:
  using Handlers = std::array<std::unique_ptr<MessageHandler>, 3>;

  explicit Rig(const Shape& shape, Handlers handlers = {}) : shape_(shape) {
    RouterOptions options = shape.options;
    options.ring_capacity = shape.ring;
    router = std::make_shared<Router>(options);
    for (std::size_t i = 0; i < shape.stage1; ++i) router->add_stage1(worker(1));
    for (std::size_t i = 0; i < shape.producers; ++i) {
      const ProducerSpec spec{shape.rate, {.25, .25, .25, .25}, shape.messages, 60.0, {}, 16, 42};
      router->add_producer(spec, i % shape.stage1, worker(0));
    }
    for (std::size_t i = 0; i < shape.processors; ++i) router->add_processor({}, nullptr, worker(2));
    router->add_stage2(worker(3));
    for (auto& handler : handlers) router->add_strategy({}, std::move(handler), worker(4));
    for (std::uint8_t type = 0; type < kUsed; ++type) {
      router->route1(type, {.processors = {type}});
      router->route2(type, {.strategy = static_cast<std::uint8_t>(type % 3)});
    }
  }
  ~Rig() {
    router->halt();
    CHECK(router->join(60s));
  }

  void start() { Router::start(router); }
  bool run() {
    start();
    return until([this] { return router->drained(); });
  }
  template <class Condition>
  static bool until(Condition&& condition, std::chrono::seconds limit = 120s) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(200us);
    }
    return true;
  }
  void end() {
    router->halt();
    CHECK(router->join(60s));
  }
  std::uint64_t all() const { return shape_.messages * shape_.producers; }

  std::shared_ptr<Router> router;

 private:
  std::size_t worker(int step) {
    switch (shape_.layout) {
      case Layout::one_worker:
        return count_ == 0 ? add() : 0;
      case Layout::two_workers:
        while (count_ < 2) add();
        return step < 3 ? 0 : 1;
      case Layout::threads:
        return add();
    }
    return 0;
  }
  std::size_t add() {
    ++count_;
    return router->add_worker(-1, shape_.wait);
  }

  Shape shape_;
  std::size_t count_ = 0;
};

inline std::uint64_t count_of_type(const Router& router, std::uint8_t type) {
  std::uint64_t sum = 0;
  for (const Source* source : router.sources()) sum += source->produced(type);
  return sum;
}

inline std::vector<std::uint64_t> digests(const Rig& rig) {
  std::vector<std::uint64_t> all;
  for (const Strategy* strategy : rig.router->strategies())
    for (std::uint8_t producer = 0; producer < 4; ++producer)
      for (std::uint8_t type = 0; type < kUsed; ++type) all.push_back(strategy->stream(producer, type).digest);
  return all;
}

inline void check_all_delivered(const Rig& rig) {
  const Totals totals = rig.router->totals();
  CHECK_EQ(totals.produced, rig.all());
  CHECK_EQ(totals.delivered, rig.all());
  CHECK_EQ(totals.violations, 0u);
  CHECK_EQ(totals.gaps, 0u);
  CHECK(rig.router->waiting().empty());
}

}  // namespace router_rig
