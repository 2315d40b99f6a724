// Router: runs producers, stage 1, processors, stage 2 and strategies on workers, and changes them live.
//
// Thread contract: every method is called by one controlling thread at a time, except
// LiveSource::try_push_many, which any thread may call.
// Invariant: every message is accounted for: produced = delivered + waiting in edges + abandoned by a
// failed component + held by a worker that has not stopped.
//
// Routes and components are changed while all workers are paused between two rounds; messages in the
// rings stay there. A type whose route changes is first held back at stage 1 until all of its messages
// in flight have arrived, so that order holds.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "qts/journal.hpp"
#include "qts/router_graph.hpp"

namespace qts {

struct RouterOptions {
  StampMode stamps = StampMode::all;
  std::uint64_t sample = 1000;
  std::size_t ring_capacity = 1024;
  bool digest = false;
};

struct Totals {
  std::uint64_t produced = 0, processed = 0, delivered = 0, abandoned = 0;
  std::uint64_t violations = 0, gaps = 0, reordered = 0;
};

// Holds a type back at stage 1 while it exists.
class TypeHold {
 public:
  TypeHold(const std::vector<Stage*>& stages, std::uint8_t type) : stages_(stages), type_(type) { set(true); }
  ~TypeHold() { set(false); }
  TypeHold(const TypeHold&) = delete;
  TypeHold& operator=(const TypeHold&) = delete;

 private:
  void set(bool held) {
    for (Stage* stage : stages_) stage->hold(type_, held);
  }
  const std::vector<Stage*>& stages_;
  const std::uint8_t type_;
};

// Pauses the workers while it exists.
class WorkerPause {
 public:
  explicit WorkerPause(const std::vector<std::unique_ptr<Worker>>& workers) : workers_(workers) {
    for (auto& worker : workers_) worker->pause();
  }
  ~WorkerPause() {
    for (auto& worker : workers_) worker->resume();
  }
  WorkerPause(const WorkerPause&) = delete;
  WorkerPause& operator=(const WorkerPause&) = delete;

  // Returns whether every worker is paused between two rounds before `timeout` has passed.
  bool wait(std::chrono::seconds timeout) const {
    const auto end = std::chrono::steady_clock::now() + timeout;
    const auto paused = [this] { return std::ranges::all_of(workers_, [](auto& worker) { return worker->paused(); }); };
    while (!paused() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(20));
    return paused();
  }

 private:
  const std::vector<std::unique_ptr<Worker>>& workers_;
};

class Router {
 public:
  explicit Router(const RouterOptions& options) : options_(options), graph_(options.ring_capacity) {}
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // ---- building: workers first, then components in pipeline order, then rules ----

  std::size_t add_worker(int cpu, WaitStrategy wait) { return graph_.add_worker(cpu, wait); }
  void set_hooks(std::size_t worker, ThreadHooks hooks) { workers().at(worker)->set_hooks(std::move(hooks)); }

  std::uint8_t add_producer(const ProducerSpec& spec, std::size_t stage1, std::size_t worker) {
    const std::uint8_t id = next_id(sources().size());
    graph_.add(std::make_unique<Producer>(id, spec, stop_), stage1, worker);
    return id;
  }
  std::uint8_t add_live_source(std::size_t stage1, bool keep_numbers = false) {
    static_cast<void>(graph_.stage1().at(stage1));
    const std::uint8_t id = next_id(sources().size());
    graph_.add(std::make_unique<LiveSource>(id, keep_numbers), stage1);
    if (started_) while_paused([this] { graph_.connect_all(); });
    return id;
  }
  void add_stage1(std::size_t worker) {
    graph_.add_stage1(std::make_unique<Stage>("stage1 " + std::to_string(graph_.stage1().size()), options_.stamps,
                                              &Message::stage1_entry_ns, &Message::stage1_exit_ns),
                      worker);
  }
  void add_stage2(std::size_t worker) {
    graph_.set_stage2(std::make_unique<Stage>("stage2", options_.stamps, &Message::stage2_entry_ns,
                                              &Message::stage2_exit_ns),
                      worker);
  }
  std::uint8_t add_processor(const std::array<std::uint64_t, kTypes>& busy_ns, std::unique_ptr<MessageHandler> handler,
                             std::size_t worker) {
    const std::uint8_t id = next_id(processors().size());
    add(std::make_unique<Processor>(id, options_.stamps, BusyWork(busy_ns), std::move(handler)), worker);
    return id;
  }
  std::uint8_t add_strategy(const std::array<std::uint64_t, kTypes>& busy_ns, std::unique_ptr<MessageHandler> handler,
                            std::size_t worker) {
    const std::uint8_t id = next_id(strategies().size());
    const StrategySpec spec{options_.stamps, options_.sample, options_.digest};
    add(std::make_unique<Strategy>(id, spec, BusyWork(busy_ns), std::move(handler)), worker);
    return id;
  }

  void route1(std::uint8_t type, Stage1Rule rule) {
    for (const auto* ids : {&rule.processors, &rule.otherwise})
      for (const std::uint8_t id : *ids) graph_.require_processor(id);
    change_route(type, [&] { graph_.set_rule(type, std::move(rule)); });
  }
  void route2(std::uint8_t type, Stage2Rule rule) {
    graph_.require_strategy(rule.strategy);
    change_route(type, [&] {
      Strategy* const strategy = strategies()[rule.strategy];
      if (started_ && graph_.strategy_of(type) != strategy) strategy->accept_any_start(type);
      graph_.set_rule(type, rule);
    });
  }
  // Removes a component that no rule names; returns false while messages still wait for it.
  bool remove_processor(std::uint8_t id) {
    graph_.require_processor_unused(id);
    graph_.require_processor(id);
    return remove(*processors()[id]);
  }
  bool remove_strategy(std::uint8_t id) {
    graph_.require_strategy_unused(id);
    graph_.require_strategy(id);
    return remove(*strategies()[id]);
  }

  // Journals what passes one stage 1; before the start.
  void set_journal(std::size_t stage1, std::unique_ptr<Journal> journal) {
    Stage& stage = *graph_.stage1().at(stage1);
    stage.set_tap(journal.get());
    journals_.emplace_back(graph_.worker_of(stage), std::move(journal));
  }

  // ---- running ----

  // `self` keeps the router alive for a worker that does not stop.
  static void start(const std::shared_ptr<Router>& self) {
    self->graph_.connect_all();
    self->started_ = true;
    const std::uint64_t now = ticks();
    for (Producer* producer : self->graph_.producers()) producer->start(now);
    for (auto& worker : self->workers())
      self->threads_.emplace_back([self, w = worker.get()] { w->run(); });
  }

  // Ends the sources; messages already sent are still delivered.
  void stop() {
    stop_.store(true, std::memory_order_relaxed);
    for (LiveSource* source : live_sources()) source->close();
  }
  void halt() {
    stop();
    for (auto& worker : workers()) worker->halt();
  }
  bool sources_done() const {
    return std::ranges::all_of(sources(), [](const Source* source) { return source->done(); });
  }
  // Whether the sources have ended and every message is delivered or abandoned.
  bool drained() const {
    if (!sources_done()) return false;
    const Totals now = totals();
    return now.delivered + now.abandoned == now.produced;
  }
  bool failed() const {
    return std::ranges::any_of(journals_, [](auto& j) { return j.second->failed(); }) ||
           std::ranges::any_of(processors(), [](auto* p) { return p->failed(); }) ||
           std::ranges::any_of(strategies(), [](auto* s) { return s->failed(); });
  }
  // Joins the threads; returns false when some did not stop in time, and detaches those. Journals of
  // the workers that stopped are closed either way.
  bool join(std::chrono::milliseconds timeout) {
    if (!started_) return true;
    const auto end = std::chrono::steady_clock::now() + timeout;
    const auto all_stopped = [this] { return std::ranges::all_of(workers(), [](auto& w) { return w->stopped(); }); };
    while (!all_stopped() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      if (!threads_[i].joinable()) continue;
      if (workers()[i]->stopped()) threads_[i].join();
      else threads_[i].detach();
    }
    for (auto& [worker, journal] : journals_)
      if (workers()[worker]->stopped()) journal->close();
    return all_stopped();
  }
  // Frees the handlers, and with them Python callables; after join has returned true.
  void release_handlers() {
    for (Processor* processor : processors()) processor->release_handler();
    for (Strategy* strategy : strategies()) strategy->release_handler();
  }

  // ---- inspection ----

  Totals totals() const {
    Totals sum;
    // Deliveries first: a message that is delivered now is in the sum of produced below.
    for (const Strategy* strategy : strategies()) {
      sum.delivered += strategy->delivered();
      sum.abandoned += strategy->abandoned();
      sum.violations += strategy->violations();
      sum.gaps += strategy->gaps();
      sum.reordered += strategy->reordered();
    }
    for (const Processor* processor : processors()) {
      sum.processed += processor->processed();
      sum.abandoned += processor->abandoned();
    }
    for (const Source* source : sources()) sum.produced += source->produced();
    return sum;
  }

  // Where messages wait or were abandoned. Exact once the workers have stopped.
  std::vector<QueueLocation> waiting() const {
    std::vector<QueueLocation> locations = graph_.waiting();
    for (const WorkReceiver* receiver : graph_.work_receivers())
      if (receiver->abandoned() != 0) locations.push_back({receiver->name + " (failed)", receiver->abandoned()});
    return locations;
  }
  std::vector<Failure> failures() const {
    std::vector<Failure> found;
    for (const WorkReceiver* receiver : graph_.work_receivers())
      if (receiver->failed()) found.push_back(*receiver->failure());
    for (const auto& [worker, journal] : journals_)
      if (journal->failed()) found.push_back({"journal", Message{}, journal->error()});
    return found;
  }
  // Workers that have not stopped, each with the component it runs.
  std::vector<std::string> stuck() const {
    std::vector<std::string> names;
    for (const auto& worker : workers())
      if (!worker->stopped()) {
        const Component* component = component_in_handler(worker->id);
        if (component == nullptr) component = worker->current();
        names.push_back("worker " + std::to_string(worker->id) + (component ? " in " + component->name : ""));
      }
    return names;
  }
  void merge_latencies(Latencies& into) const {
    for (const Strategy* strategy : strategies()) into.merge(strategy->latencies());
  }

  const std::vector<Source*>& sources() const { return graph_.sources(); }
  const std::vector<LiveSource*>& live_sources() const { return graph_.live_sources(); }
  const std::vector<Processor*>& processors() const { return graph_.processors(); }
  const std::vector<Strategy*>& strategies() const { return graph_.strategies(); }
  const std::vector<std::unique_ptr<Worker>>& workers() const { return graph_.workers(); }

 private:
  static constexpr std::chrono::seconds kChangeTimeout{5};

  static std::uint8_t next_id(std::size_t count) {
    if (count >= kMaxComponents) throw std::invalid_argument("at most 256 components of a kind");
    return static_cast<std::uint8_t>(count);
  }

  template <class T>
  void add(std::unique_ptr<T> component, std::size_t worker) {
    const auto add_now = [&] { graph_.add(std::move(component), worker); };
    if (started_) while_paused(add_now);
    else add_now();
  }

  bool remove(Component& component) {
    if (graph_.has_input(component)) return false;
    while_paused([&] { graph_.retire(component); });
    return true;
  }

  template <class Change>
  void change_route(std::uint8_t type, Change&& change) {
    if (!started_) return change();
    const TypeHold hold(graph_.stage1(), type);
    const auto end = std::chrono::steady_clock::now() + kChangeTimeout;
    bool changed = false;
    while (!changed) {
      while_paused([&] {
        if (graph_.in_flight(type) != 0) return;
        change();
        graph_.connect_all();
        changed = true;
      });
      if (changed) return;
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error("messages of type " + std::to_string(type) +
                                 " are still in flight after 5 s; nothing was changed");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  template <class Change>
  void while_paused(Change&& change) {
    const WorkerPause pause(workers());
    if (!pause.wait(kChangeTimeout)) throw std::runtime_error("a worker did not pause within 5 s; nothing was changed");
    change();
  }

  // The component of a worker whose handler is running; the polled component may have called it.
  const Component* component_in_handler(std::size_t worker) const {
    for (const WorkReceiver* receiver : graph_.work_receivers())
      if (graph_.worker_of(*receiver) == worker && receiver->in_handler()) return receiver;
    return nullptr;
  }

  const RouterOptions options_;
  std::atomic<bool> stop_{false};
  bool started_ = false;
  RouterGraph graph_;
  std::vector<std::pair<std::size_t, std::unique_ptr<Journal>>> journals_;  // with the worker of its stage
  std::vector<std::thread> threads_;
};

}  // namespace qts
