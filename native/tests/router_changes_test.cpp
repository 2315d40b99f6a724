// The router while it runs: urgent types, routes and components that change, live sources, no allocation.
#include "qts/router.hpp"

#include <algorithm>
#include <utility>
#include <vector>
#include <thread>
#include <atomic>

#include "allocations.hpp"
#include "harness.hpp"
#include "router_rig.hpp"

using namespace qts;
using namespace router_rig;
using namespace std::chrono_literals;

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
