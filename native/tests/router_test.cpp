// The whole router: every message is accounted for, in every layout and after every failure.
#include "qts/router.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>
#include <thread>
#include <atomic>

#include "harness.hpp"
#include "router_rig.hpp"

using namespace qts;
using namespace router_rig;
using namespace std::chrono_literals;

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
