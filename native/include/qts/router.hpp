// The router: producers, stage 1, processors, stage 2, strategies, laid out on workers.
//
// Thread contract: every method is called by one steering thread at a time, but for
// LiveSource::try_push_many, which any thread may call.
//
// Two components of one worker are joined by a direct call, two of different workers by an edge
// (a ring) for each type that flows between them. Changes while running (routes, components) are
// made while all workers rest between two rounds; what is in the rings stays there. A type whose
// way changes is first held back at stage 1 until all of it has arrived, so that order holds.
//
// Every message is accounted for: produced = delivered + waiting in edges + abandoned by a failed
// component + in the hands of a worker that does not come back.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "qts/journal.hpp"
#include "qts/processor.hpp"
#include "qts/producer.hpp"
#include "qts/stage.hpp"
#include "qts/strategy.hpp"
#include "qts/worker.hpp"

namespace qts {

struct RouterOptions {
  Stamps stamps = Stamps::all;
  std::uint64_t sample = 1000;
  std::size_t ring_capacity = 1024;
  bool digest = false;
};

struct Stage1Rule {
  Route::By by = Route::By::turn;
  std::vector<std::uint8_t> processors{};
  std::vector<std::uint8_t> otherwise{};
  std::int64_t threshold = 0;
  bool above = true;
};

struct Stage2Rule {
  std::uint8_t strategy = 0;
  bool ordered = true;
  bool urgent = false;
};

struct Place {
  std::string name;
  std::uint64_t count;
};

struct Totals {
  std::uint64_t produced = 0, processed = 0, delivered = 0, abandoned = 0;
  std::uint64_t violations = 0, gaps = 0, reordered = 0;
};

class Router {
 public:
  explicit Router(const RouterOptions& options) : options_(options) {}
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // ---- building: workers first, then components in pipeline order, then rules ----

  std::size_t add_worker(int cpu, Wait wait) {
    workers_.push_back(std::make_unique<Worker>(workers_.size(), cpu, wait));
    return workers_.size() - 1;
  }
  void set_hooks(std::size_t worker, ThreadHooks hooks) { workers_.at(worker)->set_hooks(std::move(hooks)); }

  std::uint8_t add_producer(const ProducerSpec& spec, std::size_t stage1, std::size_t worker) {
    const std::uint8_t id = next_id(sources_.size());
    producers_.push_back(put(std::make_unique<Producer>(id, spec, stop_), worker));
    add_source(*producers_.back(), stage1);
    return id;
  }
  std::uint8_t add_live_source(std::size_t stage1, bool keep_numbers = false) {
    static_cast<void>(stage1_.at(stage1));
    const std::uint8_t id = next_id(sources_.size());
    live_.push_back(put(std::make_unique<LiveSource>(id, keep_numbers), kNoWorker));
    add_source(*live_.back(), stage1);
    if (started_) change([this] { connect_all(); });
    return id;
  }
  void add_stage1(std::size_t worker) {
    stage1_.push_back(put(std::make_unique<Stage>("stage1 " + std::to_string(stage1_.size()), options_.stamps,
                                                  &Message::stage1_entry_ns, &Message::stage1_exit_ns),
                          worker));
  }
  void add_stage2(std::size_t worker) {
    stage2_ = put(std::make_unique<Stage>("stage2", options_.stamps, &Message::stage2_entry_ns,
                                          &Message::stage2_exit_ns),
                  worker);
  }
  std::uint8_t add_processor(const std::array<std::uint64_t, kTypes>& busy_ns, std::unique_ptr<Work> work,
                             std::size_t worker) {
    const std::uint8_t id = next_id(processors_.size());
    add_running(processors_, std::make_unique<Processor>(id, options_.stamps, BusyWork(busy_ns), std::move(work)),
                worker);
    return id;
  }
  std::uint8_t add_strategy(const std::array<std::uint64_t, kTypes>& busy_ns, std::unique_ptr<Work> work,
                            std::size_t worker) {
    const std::uint8_t id = next_id(strategies_.size());
    const StrategySpec spec{options_.stamps, options_.sample, options_.digest};
    add_running(strategies_, std::make_unique<Strategy>(id, spec, BusyWork(busy_ns), std::move(work)), worker);
    return id;
  }

  void route1(std::uint8_t type, Stage1Rule rule) {
    for (const auto* ids : {&rule.processors, &rule.otherwise})
      for (const std::uint8_t id : *ids) present(processors_, id, "processor");
    set_rule(type, [&] { rules1_[type] = std::move(rule); });
  }
  void route2(std::uint8_t type, Stage2Rule rule) {
    present(strategies_, rule.strategy, "strategy");
    set_rule(type, [&] {
      const auto before = rules2_.find(type);
      if (started_ && (before == rules2_.end() || before->second.strategy != rule.strategy))
        strategies_[rule.strategy]->join_streams_of(type);
      rules2_[type] = rule;
    });
  }
  // Takes a component out once nothing leads to it and nothing waits for it; false: not yet empty.
  bool remove_processor(std::uint8_t id) {
    for (const auto& [type, rule] : rules1_)
      for (const auto* ids : {&rule.processors, &rule.otherwise})
        if (std::ranges::find(*ids, id) != ids->end())
          throw std::invalid_argument("processor " + std::to_string(id) + " still serves type " + std::to_string(type));
    return take_out(processors_, id, "processor");
  }
  bool remove_strategy(std::uint8_t id) {
    for (const auto& [type, rule] : rules2_)
      if (rule.strategy == id)
        throw std::invalid_argument("strategy " + std::to_string(id) + " still serves type " + std::to_string(type));
    return take_out(strategies_, id, "strategy");
  }

  // Keeps what passes a stage 1 router; before the start.
  void set_journal(std::size_t stage1, std::unique_ptr<Journal> journal) {
    stage1_.at(stage1)->set_tap(journal.get());
    journals_.emplace_back(worker_of_.at(stage1_[stage1]), std::move(journal));
  }

  // ---- running ----

  // `self` keeps the router alive for a worker that never comes back.
  static void start(const std::shared_ptr<Router>& self) {
    self->connect_all();
    self->started_ = true;
    const std::uint64_t now = ticks();
    for (Producer* producer : self->producers_) producer->start(now);
    for (auto& worker : self->workers_)
      self->threads_.emplace_back([self, w = worker.get()] { w->run(); });
  }

  // Sources end; what they sent goes on to its strategy.
  void stop() {
    stop_.store(true, std::memory_order_relaxed);
    for (LiveSource* source : live_) source->close();
  }
  void halt() {
    stop();
    for (auto& worker : workers_) worker->halt();
  }
  bool sources_done() const {
    return std::ranges::all_of(sources_, [](const Source* source) { return source->done(); });
  }
  // Nothing more will happen: all delivered, or what is left cannot be.
  bool drained() const {
    if (!sources_done()) return false;
    const Totals now = totals();
    return now.delivered + now.abandoned == now.produced;
  }
  bool failed() const {
    return std::ranges::any_of(journals_, [](auto& j) { return j.second->failed(); }) ||
           std::ranges::any_of(processors_, [](auto* p) { return p->failed(); }) ||
           std::ranges::any_of(strategies_, [](auto* s) { return s->failed(); });
  }
  // Joins the threads; false when some did not stop in time, and they are left to themselves. What
  // the others had for a journal is on disk either way.
  bool join(std::chrono::milliseconds limit) {
    if (!started_) return true;
    const auto end = std::chrono::steady_clock::now() + limit;
    const auto all_stopped = [this] { return std::ranges::all_of(workers_, [](auto& w) { return w->stopped(); }); };
    while (!all_stopped() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      if (!threads_[i].joinable()) continue;
      if (workers_[i]->stopped()) threads_[i].join();
      else threads_[i].detach();
    }
    for (auto& [worker, journal] : journals_)
      if (workers_[worker]->stopped()) journal->close();
    return all_stopped();
  }
  // Gives back what work holds, such as Python callables; after join said that all have stopped.
  void drop_work() {
    for (Processor* processor : processors_) processor->drop_work();
    for (Strategy* strategy : strategies_) strategy->drop_work();
  }

  // ---- looking ----

  Totals totals() const {
    Totals sum;
    // Deliveries first: a message delivered after this line has been produced before the next.
    for (const Strategy* strategy : strategies_) {
      sum.delivered += strategy->delivered();
      sum.abandoned += strategy->abandoned();
      sum.violations += strategy->violations();
      sum.gaps += strategy->gaps();
      sum.reordered += strategy->reordered();
    }
    for (const Processor* processor : processors_) {
      sum.processed += processor->processed();
      sum.abandoned += processor->abandoned();
    }
    for (const Source* source : sources_) sum.produced += source->produced();
    return sum;
  }

  // Where messages wait now. Exact once the workers have stopped.
  std::vector<Place> waiting() const {
    std::vector<Place> places;
    for (const auto& [key, edge] : edges_)
      if (const std::size_t count = edge->ring.size_approx()) places.push_back({edge->place, count});
    for (const WorkingTaker* taker : takers())
      if (taker->abandoned() != 0) places.push_back({taker->name + " (failed)", taker->abandoned()});
    return places;
  }
  std::vector<Failure> failures() const {
    std::vector<Failure> found;
    for (const WorkingTaker* taker : takers())
      if (taker->failed()) found.push_back(*taker->failure());
    for (const auto& [worker, journal] : journals_)
      if (journal->failed()) found.push_back({"journal", Message{}, journal->error()});
    return found;
  }
  std::vector<std::string> stuck() const {
    std::vector<std::string> names;
    for (const auto& worker : workers_)
      if (!worker->stopped()) {
        const Component* component = at_work_on(worker->id);
        if (component == nullptr) component = worker->current();
        names.push_back("worker " + std::to_string(worker->id) + (component ? " in " + component->name : ""));
      }
    return names;
  }
  void merge_latencies(Latencies& into) const {
    for (const Strategy* strategy : strategies_) into.merge(strategy->latencies());
  }

  const std::vector<Source*>& sources() const { return sources_; }
  const std::vector<LiveSource*>& live_sources() const { return live_; }
  const std::vector<Processor*>& processors() const { return processors_; }
  const std::vector<Strategy*>& strategies() const { return strategies_; }
  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }

 private:
  static constexpr std::size_t kNoWorker = SIZE_MAX;  // fed from outside
  static constexpr std::chrono::seconds kPatience{5};
  using EdgeKey = std::tuple<const Component*, const Component*, std::uint8_t>;

  static std::uint8_t next_id(std::size_t count) {
    if (count >= kMostComponents) throw std::invalid_argument("at most 256 components of a kind");
    return static_cast<std::uint8_t>(count);
  }

  template <class T>
  T* put(std::unique_ptr<T> component, std::size_t worker) {
    T* raw = component.get();
    if (worker != kNoWorker) workers_.at(worker)->add(*raw);
    worker_of_[raw] = worker;
    components_.push_back(std::move(component));
    return raw;
  }

  void add_source(Source& source, std::size_t stage1) {
    sources_.push_back(&source);
    feeds_[&source] = stage1;
  }

  template <class T>
  void add_running(std::vector<T*>& list, std::unique_ptr<T> component, std::size_t worker) {
    const auto add = [&] { list.push_back(put(std::move(component), worker)); };
    if (started_) change(add);
    else add();
  }

  template <class T>
  void present(const std::vector<T*>& list, std::uint8_t id, const char* kind) const {
    if (id >= list.size() || retired(list[id]))
      throw std::invalid_argument(std::string("there is no ") + kind + " " + std::to_string(id));
  }
  bool retired(const Component* component) const { return std::ranges::find(retired_, component) != retired_.end(); }

  template <class Set>
  void set_rule(std::uint8_t type, Set&& set) {
    if (!started_) return set();
    const Holding holding(stage1_, type);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    bool changed = false;
    while (!changed) {
      change([&] {
        if (on_its_way(type) != 0) return;
        set();
        connect_all();
        changed = true;
      });
      if (changed) return;
      if (std::chrono::steady_clock::now() > end)
        throw std::runtime_error("messages of type " + std::to_string(type) +
                                 " did not arrive within 5 s; nothing was changed");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  // Keeps a type back at stage 1, and lets it go again whatever happens.
  class Holding {
   public:
    Holding(const std::vector<Stage*>& stages, std::uint8_t type) : stages_(stages), type_(type) { set(true); }
    ~Holding() { set(false); }
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;

   private:
    void set(bool held) {
      for (Stage* stage : stages_) stage->hold(type_, held);
    }
    const std::vector<Stage*>& stages_;
    const std::uint8_t type_;
  };
  // Messages of a type that have passed stage 1 and wait somewhere. While the workers rest.
  std::size_t on_its_way(std::uint8_t type) const {
    std::size_t count = 0;
    for (const auto& [key, edge] : edges_)
      if (edge->type == type && std::ranges::find(stage1_, std::get<1>(key)) == stage1_.end())
        count += edge->ring.size_approx();
    return count;
  }

  template <class T>
  bool take_out(std::vector<T*>& list, std::uint8_t id, const char* kind) {
    present(list, id, kind);
    T* component = list[id];
    for (const auto& [key, edge] : edges_)
      if (std::get<1>(key) == component && edge->ring.size_approx() != 0) return false;
    change([&] { workers_.at(worker_of_[component])->remove(*component); });
    retired_.push_back(component);  // its counts stay
    return true;
  }

  // Runs `make` while every worker rests between two rounds.
  template <class Make>
  void change(Make&& make) {
    const Pause pause(workers_);
    const auto end = std::chrono::steady_clock::now() + kPatience;
    const auto resting = [this] { return std::ranges::all_of(workers_, [](auto& w) { return w->resting(); }); };
    while (!resting() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (!resting()) throw std::runtime_error("a worker is busy and did not rest within 5 s; nothing was changed");
    make();
  }
  // Workers go on whatever happens.
  class Pause {
   public:
    explicit Pause(const std::vector<std::unique_ptr<Worker>>& workers) : workers_(workers) {
      for (auto& worker : workers_) worker->pause();
    }
    ~Pause() {
      for (auto& worker : workers_) worker->resume();
    }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const std::vector<std::unique_ptr<Worker>>& workers_;
  };

  // The way from one component to another: the component itself on the same worker, else an edge.
  Port& port(const Component& from, Taker& to, std::uint8_t type) {
    const std::size_t here = worker_of_.at(&from), there = worker_of_.at(&to);
    if (here == there) return to;
    const EdgeKey key{&from, &to, type};
    auto found = edges_.find(key);
    if (found == edges_.end()) {
      const auto rule = rules2_.find(type);
      auto edge = std::make_unique<Edge>(from.name + " to " + to.name + ", type " + std::to_string(type), type,
                                         rule != rules2_.end() && rule->second.urgent, options_.ring_capacity);
      edge->sleeper = workers_.at(there)->sleeper();
      to.add_inlet(*edge);
      found = edges_.emplace(key, std::move(edge)).first;
    }
    return *found->second;
  }

  void connect_all() {
    if (stage1_.empty() || stage2_ == nullptr) throw std::invalid_argument("a router needs both stages");
    for (const auto& [type, rule] : rules2_) connect_strategy(type, rule);
    for (const auto& [type, rule] : rules1_) {
      for (const auto* ids : {&rule.processors, &rule.otherwise})
        for (const std::uint8_t id : *ids) processors_[id]->connect(type, port(*processors_[id], *stage2_, type));
      for (Stage* stage : stage1_) connect_processors(*stage, type, rule);
      for (Source* source : sources_)
        source->connect(type, port(*source, *stage1_.at(feeds_.at(source)), type));
    }
  }
  void connect_strategy(std::uint8_t type, const Stage2Rule& rule) {
    Strategy& strategy = *strategies_[rule.strategy];
    const auto first = rules1_.find(type);
    const bool one_way = first != rules1_.end() && first->second.processors.size() + first->second.otherwise.size() == 1;
    strategy.set_ordered(type, rule.ordered || one_way);
    stage2_->route(type).group.targets = {&port(*stage2_, strategy, type)};
  }
  void connect_processors(Stage& stage, std::uint8_t type, const Stage1Rule& rule) {
    const auto ports = [&](const std::vector<std::uint8_t>& ids) {
      Group group;
      for (const std::uint8_t id : ids) group.targets.push_back(&port(stage, *processors_[id], type));
      return group;
    };
    stage.route(type) = Route{rule.by, ports(rule.processors), ports(rule.otherwise), rule.threshold, rule.above};
  }

  // A component inside work given from outside, which the one that is polled may have called.
  const Component* at_work_on(std::size_t worker) const {
    for (const WorkingTaker* taker : takers())
      if (worker_of_.at(taker) == worker && taker->at_work()) return taker;
    return nullptr;
  }
  std::vector<const WorkingTaker*> takers() const {
    std::vector<const WorkingTaker*> all(processors_.begin(), processors_.end());
    all.insert(all.end(), strategies_.begin(), strategies_.end());
    return all;
  }

  const RouterOptions options_;
  std::atomic<bool> stop_{false};
  bool started_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Component>> components_;
  std::map<const Component*, std::size_t> worker_of_;
  std::map<EdgeKey, std::unique_ptr<Edge>> edges_;
  std::vector<Source*> sources_;
  std::map<const Source*, std::size_t> feeds_;  // which stage 1 router
  std::vector<Producer*> producers_;
  std::vector<LiveSource*> live_;
  std::vector<Stage*> stage1_;
  std::vector<Processor*> processors_;
  Stage* stage2_ = nullptr;
  std::vector<Strategy*> strategies_;
  std::vector<const Component*> retired_;
  std::map<std::uint8_t, Stage1Rule> rules1_;
  std::map<std::uint8_t, Stage2Rule> rules2_;
  std::vector<std::pair<std::size_t, std::unique_ptr<Journal>>> journals_;  // with the worker that feeds it
  std::vector<std::thread> threads_;
};

}  // namespace qts
