// The whole router: every message is accounted for, in every layout and after every failure.
#include "qts/router.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "harness.hpp"

using namespace qts;
using namespace std::chrono_literals;

namespace {

constexpr std::uint8_t kUsed = 4;  // types

// A handler written as a lambda that returns how many of the batch it handled.
class LambdaHandler final : public MessageHandler {
 public:
  explicit LambdaHandler(std::function<std::size_t(std::span<Message>)> call) : call_(std::move(call)) { error = "refused"; }
  std::size_t run(std::span<Message> batch) override { return call_(batch); }

 private:
  std::function<std::size_t(std::span<Message>)> call_;
};

std::unique_ptr<MessageHandler> call(std::function<std::size_t(std::span<Message>)> body) {
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

std::uint64_t count_of_type(const Router& router, std::uint8_t type) {
  std::uint64_t sum = 0;
  for (const Source* source : router.sources()) sum += source->produced(type);
  return sum;
}

std::vector<std::uint64_t> digests(const Rig& rig) {
  std::vector<std::uint64_t> all;
  for (const Strategy* strategy : rig.router->strategies())
    for (std::uint8_t producer = 0; producer < 4; ++producer)
      for (std::uint8_t type = 0; type < kUsed; ++type) all.push_back(strategy->stream(producer, type).digest);
  return all;
}

void check_all_delivered(const Rig& rig) {
  const Totals totals = rig.router->totals();
  CHECK_EQ(totals.produced, rig.all());
  CHECK_EQ(totals.delivered, rig.all());
  CHECK_EQ(totals.violations, 0u);
  CHECK_EQ(totals.gaps, 0u);
  CHECK(rig.router->waiting().empty());
}

}  // namespace

TEST(every_message_is_delivered_in_order_in_every_layout) {
  for (const Layout layout : {Layout::one_worker, Layout::two_workers, Layout::threads}) {
    Rig rig({.layout = layout});
    CHECK(rig.run());
    rig.end();
    check_all_delivered(rig);
  }
}

TEST(the_same_seed_gives_the_same_messages_whatever_the_layout_and_the_back_pressure) {
  const std::uint64_t messages = harness::kSanitized ? 100 : 500;
  Rig first({.layout = Layout::one_worker, .messages = messages});
  Rig second({.layout = Layout::threads, .messages = messages, .ring = 2});
  CHECK(first.run());
  first.end();
  CHECK(second.run());
  second.end();
  CHECK(digests(first) == digests(second));
}

TEST(every_wait_strategy_and_stamp_policy_delivers) {
  for (const WaitStrategy wait : {WaitStrategy::spin, WaitStrategy::yield, WaitStrategy::park})
    for (const StampMode stamps : {StampMode::all, StampMode::hop_batch, StampMode::edges, StampMode::off}) {
      Rig rig({.messages = 500, .wait = wait, .options = {.stamps = stamps, .sample = 1}});
      CHECK(rig.run());
      rig.end();
      check_all_delivered(rig);
      Latencies latencies;
      rig.router->merge_latencies(latencies);
      const bool hops = stamps == StampMode::all || stamps == StampMode::hop_batch;
      CHECK_EQ(latencies.total.count(), stamps == StampMode::off ? 0 : rig.all());
      CHECK_EQ(latencies.stage1.count(), hops ? rig.all() : 0);
    }
}

TEST(paced_messages_are_sent_on_schedule) {
  Rig rig({.messages = 5'000, .rate = 50'000});
  const auto start = std::chrono::steady_clock::now();
  CHECK(rig.run());
  const auto took = std::chrono::steady_clock::now() - start;
  rig.end();
  check_all_delivered(rig);
  CHECK_GE(took.count(), std::chrono::nanoseconds(95ms).count());
}

TEST(burst_schedule_keeps_its_counts) {
  const Schedule schedule(1000, {.period_s = 2, .on_s = 0.2, .factor = 5, .base_factor = 0.5});
  CHECK_EQ(schedule.due_s(0), 0.0);
  CHECK_LE(std::abs(schedule.due_s(999) - 0.1998), 1e-9);   // 1,000 in the first 200 ms
  CHECK_LE(std::abs(schedule.due_s(1000) - 0.2), 1e-9);
  CHECK_LE(std::abs(schedule.due_s(1900) - 2.0), 1e-9);     // 900 in the 1,800 ms after
  CHECK_LE(std::abs(schedule.due_s(19'000) - 20.0), 1e-9);  // no drift over periods
}

TEST(stuck_strategy_holds_back_its_own_types_only) {
  std::atomic<bool> open{false};
  Rig::Handlers handlers;
  handlers[1] = call([&](std::span<Message> batch) {  // type 1
    while (!open.load()) std::this_thread::sleep_for(100us);
    return batch.size();
  });
  Rig rig({.layout = Layout::threads}, std::move(handlers));
  rig.start();
  const auto others = [&] {
    const auto& strategies = rig.router->strategies();
    return strategies[0]->delivered() + strategies[2]->delivered();
  };
  CHECK(Rig::until([&] {
    std::uint64_t sent = 0;
    for (const int type : {0, 2, 3}) sent += count_of_type(*rig.router, static_cast<std::uint8_t>(type));
    return sent > rig.all() * 7 / 10 && others() == sent;
  }));
  CHECK_LE(count_of_type(*rig.router, 1), rig.all() / 10);  // back-pressure reached the producers
  open.store(true);
  CHECK(Rig::until([&] { return rig.router->drained(); }));
  rig.end();
  check_all_delivered(rig);
}

TEST(stop_delivers_what_was_sent) {
  Rig rig({.layout = Layout::threads, .messages = 1'000'000'000});
  rig.start();
  CHECK(Rig::until([&] { return rig.router->totals().delivered > 10'000; }));
  rig.router->stop();
  CHECK(Rig::until([&] { return rig.router->drained(); }));
  rig.end();
  const Totals totals = rig.router->totals();
  CHECK_EQ(totals.delivered, totals.produced);
  CHECK_EQ(totals.gaps + totals.violations, 0u);
}

TEST(halt_names_the_location_of_every_message) {
  Rig rig({.layout = Layout::threads, .messages = 1'000'000'000});
  rig.start();
  CHECK(Rig::until([&] { return rig.router->totals().delivered > 10'000; }));
  rig.end();
  const Totals totals = rig.router->totals();
  std::uint64_t waiting = 0;
  for (const QueueLocation& location : rig.router->waiting()) waiting += location.count;
  CHECK_EQ(totals.produced, totals.delivered + waiting);
}

TEST(failing_strategy_is_reported_with_its_message_and_the_rest_accounted_for) {
  std::uint64_t seen = 0;
  Rig::Handlers handlers;
  handlers[2] = call([&](std::span<Message> batch) {
    for (std::size_t i = 0; i < batch.size(); ++i)
      if (++seen == 1003) return i;
    return batch.size();
  });
  Rig rig({}, std::move(handlers));
  rig.start();
  CHECK(Rig::until([&] { return rig.router->failed(); }));
  rig.router->stop();
  const auto settled = [&] {  // all that can still move has moved
    const auto before = rig.router->totals().delivered;
    std::this_thread::sleep_for(20ms);
    return before == rig.router->totals().delivered;
  };
  CHECK(Rig::until(settled));
  rig.end();
  const auto failures = rig.router->failures();
  CHECK_EQ(failures.size(), 1u);
  CHECK_EQ(failures[0].component, "strategy 2");
  CHECK_EQ(failures[0].message.msg_type, 2);
  CHECK_EQ(rig.router->strategies()[2]->delivered(), 1002u);
  const Totals totals = rig.router->totals();
  std::uint64_t waiting = 0;
  for (const QueueLocation& location : rig.router->waiting()) waiting += location.count;
  CHECK_EQ(totals.produced, totals.delivered + waiting);
}

// The type selects routes and indexes tables: one out of range would be read beyond their end.
TEST(handler_that_changes_msg_type_fails_at_that_message) {
  for (const std::uint8_t written : {std::uint8_t{1}, std::uint8_t{8}, std::uint8_t{255}})
    for (const bool in_strategy : {false, true}) {
      std::uint64_t seen = 0;
      const auto changes_type = [&] {
        return call([&seen, written](std::span<Message> batch) {
          for (Message& message : batch)
            if (++seen == 103) message.msg_type = written;
          return batch.size();
        });
      };
      Rig::Handlers handlers;
      if (in_strategy) handlers[2] = changes_type();  // type 2 only
      Rig rig({.messages = 2'000}, std::move(handlers));
      const std::uint8_t added = rig.router->add_processor({}, in_strategy ? nullptr : changes_type(), 0);
      if (!in_strategy) rig.router->route1(2, {.processors = {added}});
      rig.start();
      CHECK(Rig::until([&] { return rig.router->failed(); }));
      rig.end();
      const auto failures = rig.router->failures();
      CHECK_EQ(failures.size(), 1u);
      CHECK_EQ(failures[0].component, in_strategy ? "strategy 2" : "processor 4");
      CHECK_EQ(failures[0].message.msg_type, 2);
      CHECK_EQ(failures[0].text, "the handler changed msg_type from 2 to " + std::to_string(written));
      CHECK_EQ(in_strategy ? rig.router->strategies()[2]->delivered() : rig.router->processors()[added]->processed(), 102u);
      const Totals totals = rig.router->totals();
      std::uint64_t waiting = 0;
      for (const QueueLocation& location : rig.router->waiting()) waiting += location.count;
      CHECK_EQ(totals.produced, totals.delivered + waiting);
    }
}

TEST(worker_that_does_not_stop_is_reported_and_detached) {
  auto open = std::make_shared<std::atomic<bool>>(false), entered = std::make_shared<std::atomic<bool>>(false);
  Rig::Handlers handlers;
  handlers[0] = call([open, entered](std::span<Message> batch) {
    entered->store(true);
    while (!open->load()) std::this_thread::sleep_for(1ms);
    return batch.size();
  });
  Rig rig({.layout = Layout::two_workers}, std::move(handlers));
  rig.start();
  CHECK(Rig::until([&] { return entered->load(); }));
  rig.router->halt();
  CHECK(!rig.router->join(100ms));
  CHECK(rig.router->stuck() == std::vector<std::string>{"worker 1 in strategy 0"});  // called by stage2
  open->store(true);
  CHECK(Rig::until([&] { return rig.router->stuck().empty(); }));
}

TEST(disorder_and_gaps_are_counted) {
  const StrategySpec spec{StampMode::off, 1000, false};
  Strategy strategy(0, spec, BusyWork({}), nullptr);
  strategy.set_ordered(1, true);
  const auto deliver = [&](std::uint64_t sequence, std::uint16_t number) {
    Message message;
    message.msg_type = 1;
    message.sequence_number = sequence;
    message.stream_number = number;
    strategy.send({&message, 1});
  };
  deliver(10, 0);
  deliver(12, 1);
  CHECK_EQ(strategy.violations() + strategy.gaps(), 0u);
  deliver(20, 4);  // two are missing
  CHECK_EQ(strategy.gaps(), 2u);
  deliver(15, 3);  // late
  CHECK_EQ(strategy.violations(), 1u);
  deliver(15, 3);  // twice
  CHECK_EQ(strategy.violations(), 2u);
}

TEST(lost_first_message_is_a_gap) {
  Strategy strategy(0, {StampMode::off, 1000, false}, BusyWork({}), nullptr);
  strategy.set_ordered(0, true);
  Message message;
  message.sequence_number = 3;
  message.stream_number = 1;
  strategy.send({&message, 1});
  CHECK_EQ(strategy.gaps(), 1u);
}

TEST(several_stage1_routers_share_the_producers) {
  Rig rig({.layout = Layout::threads, .producers = 4, .stage1 = 2});
  CHECK(rig.run());
  rig.end();
  check_all_delivered(rig);
}

TEST(round_robin_skips_a_full_processor) {
  Rig rig({.layout = Layout::threads});
  rig.router->route1(0, {.processors = {0, 1, 2, 3}});
  rig.router->route2(0, {.strategy = 0, .ordered = false});
  CHECK(rig.run());
  rig.end();
  check_all_delivered(rig);
  for (const Processor* processor : rig.router->processors()) CHECK_GE(processor->processed(), rig.all() / 40);
}

TEST(routes_by_symbol_and_by_price) {
  std::vector<std::set<std::uint32_t>> symbols(4);
  std::vector<std::int64_t> lowest(4, INT64_MAX), highest(4, INT64_MIN);
  Rig::Handlers handlers;
  handlers[0] = call([&](std::span<Message> batch) {
    for (const Message& message : batch) {
      if (message.msg_type != 0) continue;
      symbols[message.processor_id].insert(message.symbol_id);
    }
    return batch.size();
  });
  handlers[1] = call([&](std::span<Message> batch) {
    for (const Message& message : batch) {
      lowest[message.processor_id] = std::min(lowest[message.processor_id], message.price);
      highest[message.processor_id] = std::max(highest[message.processor_id], message.price);
    }
    return batch.size();
  });
  Rig rig({.layout = Layout::threads}, std::move(handlers));
  const std::int64_t limit = 70'000 * kPriceScale;
  rig.router->route1(0, {.by = Route::By::symbol, .processors = {0, 1, 2}});
  rig.router->route2(0, {.strategy = 0, .ordered = false});
  rig.router->route1(1, {.by = Route::By::price, .processors = {2}, .otherwise = {3}, .threshold = limit});
  rig.router->route2(1, {.strategy = 1, .ordered = false});
  CHECK(rig.run());
  rig.end();
  check_all_delivered(rig);
  for (int a = 0; a < 3; ++a) {
    CHECK(!symbols[static_cast<std::size_t>(a)].empty());
    for (const std::uint32_t symbol : symbols[static_cast<std::size_t>(a)]) CHECK_EQ(symbol % 3, static_cast<unsigned>(a));
  }
  CHECK_GE(lowest[2], limit + 1);
  CHECK_LE(highest[3], limit);
}

TEST(an_urgent_type_overtakes_what_waits) {
  std::atomic<bool> open{false};
  std::vector<std::uint8_t> order;
  Rig::Handlers handlers;
  handlers[0] = call([&](std::span<Message> batch) {  // types 0 and 3
    while (!open.load()) std::this_thread::sleep_for(100us);
    for (const Message& message : batch) order.push_back(message.msg_type);
    return batch.size();
  });
  Rig rig({.layout = Layout::threads, .messages = 4'000, .ring = 512}, std::move(handlers));
  rig.router->route2(3, {.strategy = 0, .ordered = true, .urgent = true});
  rig.start();
  // Both rings of the strategy are full, its worker is in the first batch.
  CHECK(Rig::until([&] {
    std::uint64_t waiting = 0;
    for (const QueueLocation& location : rig.router->waiting())
      if (location.name.find("stage2 to strategy 0") == 0) waiting += location.count;
    return waiting >= 900;
  }));
  open.store(true);
  CHECK(Rig::until([&] { return rig.router->drained(); }));
  rig.end();
  check_all_delivered(rig);
  // After the turn in flight, which may hold a few of both types, all waiting urgent messages come
  // before any other.
  const auto run_from = [&](std::size_t from, bool of_urgent) {
    std::size_t end = from;
    while (end < order.size() && (order[end] == 3) == of_urgent) ++end;
    return end - from;
  };
  const std::size_t leading = run_from(0, true);
  const std::size_t others = run_from(leading, false);
  CHECK_GE(std::max(leading, run_from(leading + others, true)), 256u);
}

TEST(type_moves_to_a_new_strategy_while_running) {
  Rig rig({.layout = Layout::threads, .messages = 1'000'000'000});
  rig.start();
  CHECK(Rig::until([&] { return rig.router->strategies()[1]->delivered() > 1'000; }));
  const std::uint8_t added = rig.router->add_strategy({}, nullptr, rig.router->workers().size() - 1);
  CHECK_THROWS(std::invalid_argument, rig.router->remove_strategy(1));  // type 1 is still routed there
  rig.router->route2(1, {.strategy = added});
  CHECK(Rig::until([&] { return rig.router->strategies()[added]->delivered() > 1'000; }));
  CHECK(Rig::until([&] { return rig.router->remove_strategy(1); }));
  const std::uint8_t processor = rig.router->add_processor({}, nullptr, 0);
  rig.router->route1(2, {.processors = {processor}});
  CHECK(Rig::until([&] { return rig.router->processors()[processor]->processed() > 1'000; }));
  CHECK(Rig::until([&] { return rig.router->remove_processor(2); }));
  rig.router->stop();
  CHECK(Rig::until([&] { return rig.router->drained(); }));
  rig.end();
  const Totals totals = rig.router->totals();
  CHECK_EQ(totals.delivered, totals.produced);
  CHECK_EQ(totals.gaps + totals.violations, 0u);
}

TEST(processors_that_all_fail_within_a_batch_abandon_the_rest) {
  for (const Layout layout : {Layout::one_worker, Layout::two_workers, Layout::threads})
    for (const Route::By by : {Route::By::round_robin, Route::By::symbol}) {
      Rig rig({.layout = layout});
      const auto fails = [] { return call([](std::span<Message>) { return std::size_t{0}; }); };
      const std::size_t worker = rig.router->workers().size() - 1;
      const std::uint8_t a = rig.router->add_processor({}, fails(), layout == Layout::threads ? worker : 0);
      const std::uint8_t b = rig.router->add_processor({}, fails(), layout == Layout::threads ? worker : 0);
      rig.router->route1(0, {.by = by, .processors = {a, b}});
      rig.router->route2(0, {.strategy = 0, .ordered = false});
      rig.start();
      CHECK(Rig::until([&] { return rig.router->processors()[a]->failed() && rig.router->processors()[b]->failed(); }));
      rig.end();
      CHECK_EQ(rig.router->failures().size(), 2u);
      const Totals totals = rig.router->totals();
      std::uint64_t waiting = 0;
      for (const QueueLocation& location : rig.router->waiting()) waiting += location.count;
      CHECK_EQ(totals.produced, totals.delivered + waiting);
    }
}

TEST(strategy_behind_several_processors_fails_once_at_its_first_message) {
  for (const Layout layout : {Layout::one_worker, Layout::threads}) {
    std::atomic<int> calls{0};
    Rig::Handlers handlers;
    handlers[0] = call([&](std::span<Message>) {
      ++calls;
      return std::size_t{0};
    });
    Rig rig({.layout = layout}, std::move(handlers));
    rig.router->route1(0, {.processors = {0, 1, 2, 3}});
    rig.router->route2(0, {.strategy = 0, .ordered = false});
    rig.start();
    CHECK(Rig::until([&] { return rig.router->failed(); }));
    rig.end();
    CHECK_EQ(calls.load(), 1);
    CHECK_EQ(rig.router->failures().size(), 1u);
    const Totals totals = rig.router->totals();
    std::uint64_t waiting = 0;
    for (const QueueLocation& location : rig.router->waiting()) waiting += location.count;
    CHECK_EQ(totals.produced, totals.delivered + waiting);
  }
}

TEST(load_of_one_type_does_not_starve_another) {
  Rig rig({.layout = Layout::two_workers, .messages = 1'000'000'000, .producers = 2});
  const std::uint8_t trickle = rig.router->add_live_source(0);
  rig.router->route1(5, {.processors = {0}});
  rig.router->route2(5, {.strategy = 2});
  rig.start();
  CHECK(Rig::until([&] { return rig.router->totals().delivered > 10'000; }));
  std::vector<Message> one(1);
  one[0].msg_type = 5;
  for (std::uint64_t sent = 1; sent <= 20; ++sent) {
    CHECK(Rig::until([&] { return rig.router->live_sources()[0]->try_push_many(one) == 1; }));
    CHECK(Rig::until([&] {  // it arrives under continuous load
      const auto& edges = rig.router->waiting();
      return std::ranges::none_of(edges, [](const QueueLocation& location) { return location.name.find("type 5") != std::string::npos; });
    }));
  }
  rig.router->stop();
  CHECK(Rig::until([&] { return rig.router->drained(); }));
  rig.end();
  CHECK_EQ(rig.router->strategies()[2]->stream(trickle, 5).delivered, 20u);
  CHECK_EQ(rig.router->totals().delivered, rig.router->totals().produced);
}

TEST(latency_is_measured_from_the_intended_send_time) {
  Strategy strategy(0, {StampMode::all, 1, false}, BusyWork({2'000'000}), nullptr);
  Message message;  // due 5 ms ago, with timestamps 3, 2 and 1 ms ago
  const std::uint64_t ms = tick_scale().span_ticks(1'000'000), now = ticks();
  message.timestamp_ns = now - 5 * ms;
  message.stage1_exit_ns = now - 3 * ms;
  message.processing_exit_ns = now - 2 * ms;
  message.stage2_exit_ns = now - ms;
  strategy.send({&message, 1});  // takes 2 ms
  const Latencies& latencies = strategy.latencies();
  CHECK_GE(latencies.total.max(), 6'990'000u);
  CHECK_GE(latencies.strategy.max(), 2'990'000u);
  CHECK_GE(latencies.stage1.max(), 1'990'000u);
  CHECK_LE(latencies.stage1.max(), 2'010'000u);
  CHECK_LE(latencies.stage2.max(), 1'010'000u);
}

TEST(route_to_a_removed_component_is_refused) {
  Rig rig({.layout = Layout::threads, .messages = 0});
  rig.start();
  const std::uint8_t added = rig.router->add_strategy({}, nullptr, 0);
  CHECK(rig.router->remove_strategy(added));
  CHECK_THROWS(std::invalid_argument, rig.router->route2(0, {.strategy = added}));
  CHECK_THROWS(std::invalid_argument, rig.router->remove_strategy(added));
}

TEST(failed_change_leaves_the_workers_running) {
  Rig rig({.layout = Layout::two_workers, .messages = 1'000'000'000});
  rig.start();
  CHECK_THROWS(std::out_of_range, rig.router->add_strategy({}, nullptr, 99));
  CHECK_THROWS(std::out_of_range, rig.router->add_live_source(7));
  const std::uint64_t before = rig.router->totals().delivered;
  CHECK(Rig::until([&] { return rig.router->totals().delivered > before + 1'000; }));
}

TEST(live_source_accepts_messages_while_routes_change) {
  Rig rig({.layout = Layout::two_workers, .messages = 0, .producers = 1});
  rig.router->add_live_source(0);
  rig.start();
  LiveSource& live = *rig.router->live_sources()[0];
  std::atomic<bool> ended{false};
  std::uint64_t sent = 0;
  std::thread pusher([&] {
    std::vector<Message> batch(10);
    while (!ended.load()) {
      for (Message& message : batch) message.msg_type = 1;
      sent += live.try_push_many(batch);
    }
  });
  for (int round = 0; round < 5; ++round) {
    rig.router->add_live_source(0);
    rig.router->route2(1, {.strategy = static_cast<std::uint8_t>(round % 3)});
  }
  ended.store(true);
  pusher.join();
  rig.router->stop();
  CHECK(Rig::until([&] { return rig.router->drained(); }));
  rig.end();
  CHECK_EQ(rig.router->totals().delivered, sent);
  CHECK_EQ(rig.router->totals().gaps + rig.router->totals().violations, 0u);
}

TEST(live_source_stops_at_an_unrouted_type) {
  Rig rig({.messages = 0, .producers = 1});
  rig.router->add_live_source(0);
  rig.start();
  std::vector<Message> ticks(3);
  ticks[1].msg_type = 7;
  CHECK_EQ(rig.router->live_sources()[0]->try_push_many(ticks), 1u);
  ticks[0].msg_type = 255;
  CHECK_EQ(rig.router->live_sources()[0]->try_push_many(ticks), 0u);
}

TEST(live_source_numbers_messages_and_refuses_after_close) {
  Rig rig({.messages = 0, .producers = 1});
  rig.router->add_live_source(0);
  rig.start();
  LiveSource& live = *rig.router->live_sources()[0];
  std::vector<Message> ticks(1'000);
  for (std::size_t i = 0; i < ticks.size(); ++i) ticks[i].msg_type = static_cast<std::uint8_t>(i / 10 % kUsed);
  std::size_t sent = 0;
  CHECK(Rig::until([&] {
    sent += live.try_push_many(std::span(ticks).subspan(sent));
    return sent == ticks.size();
  }));
  rig.router->stop();
  CHECK_EQ(live.try_push_many(ticks), 0u);
  CHECK(Rig::until([&] { return rig.router->drained(); }));
  rig.end();
  CHECK_EQ(rig.router->totals().delivered, ticks.size());
  CHECK_EQ(rig.router->totals().gaps + rig.router->totals().violations, 0u);
}

TEST(running_router_allocates_nothing) {
  std::atomic<std::uint64_t> first{0}, last{0};
  Rig::Handlers handlers;
  handlers[0] = call([&](std::span<Message> batch) {
    const std::uint64_t now = allocations_of_this_thread();
    if (first.load() == 0) first.store(now + 1);
    last.store(now + 1);
    return batch.size();
  });
  Rig rig({.layout = Layout::one_worker}, std::move(handlers));
  CHECK(rig.run());
  rig.end();
  CHECK_GE(first.load(), 1u);
  CHECK_EQ(first.load(), last.load());
}
