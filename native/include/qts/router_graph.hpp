// RouterGraph: the components of a router, the workers that run them, and the ports that connect them.
//
// Thread contract: every method is called by the one thread that controls the router; those that add,
// remove or connect components before the start, or while all workers are paused.
// Invariant: two components of one worker are connected by a direct call, two of different workers by
// an edge (a ring) for each type that flows between them. Edges are never removed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "qts/processor.hpp"
#include "qts/producer.hpp"
#include "qts/stage.hpp"
#include "qts/strategy.hpp"
#include "qts/worker.hpp"

namespace qts {

// Which processors a type goes to, and how one is chosen.
struct Stage1Rule {
  Route::By by = Route::By::round_robin;
  std::vector<std::uint8_t> processors{};
  std::vector<std::uint8_t> otherwise{};
  std::int64_t threshold = 0;
  bool above = true;
};

// Which strategy a type goes to.
struct Stage2Rule {
  std::uint8_t strategy = 0;
  bool ordered = true;
  bool urgent = false;
};

// Messages waiting in one edge, or abandoned by one component.
struct QueueLocation {
  std::string name;
  std::uint64_t count;
};

class RouterGraph {
 public:
  explicit RouterGraph(std::size_t ring_capacity) : ring_capacity_(ring_capacity) {}

  // ---- adding: workers first, then components in pipeline order ----

  std::size_t add_worker(int cpu, WaitStrategy wait) {
    workers_.push_back(std::make_unique<Worker>(workers_.size(), cpu, wait));
    return workers_.size() - 1;
  }
  void add(std::unique_ptr<Producer> producer, std::size_t stage1, std::size_t worker) {
    producers_.push_back(place(std::move(producer), worker));
    add_source(*producers_.back(), stage1);
  }
  void add(std::unique_ptr<LiveSource> source, std::size_t stage1) {
    live_sources_.push_back(place(std::move(source), kNoWorker));
    add_source(*live_sources_.back(), stage1);
  }
  void add(std::unique_ptr<Processor> processor, std::size_t worker) {
    processors_.push_back(place(std::move(processor), worker));
  }
  void add(std::unique_ptr<Strategy> strategy, std::size_t worker) {
    strategies_.push_back(place(std::move(strategy), worker));
  }
  void add_stage1(std::unique_ptr<Stage> stage, std::size_t worker) { stage1_.push_back(place(std::move(stage), worker)); }
  void set_stage2(std::unique_ptr<Stage> stage, std::size_t worker) { stage2_ = place(std::move(stage), worker); }

  // ---- rules; they take effect in connect_all ----

  void set_rule(std::uint8_t type, Stage1Rule rule) { rules1_[type] = std::move(rule); }
  void set_rule(std::uint8_t type, Stage2Rule rule) { rules2_[type] = rule; }
  // The strategy that a type goes to now; null: none.
  Strategy* strategy_of(std::uint8_t type) const {
    const auto rule = rules2_.find(type);
    return rule == rules2_.end() ? nullptr : strategies_[rule->second.strategy];
  }
  void require_processor(std::uint8_t id) const { require(processors_, id, "processor"); }
  void require_strategy(std::uint8_t id) const { require(strategies_, id, "strategy"); }
  void require_processor_unused(std::uint8_t id) const {
    for (const auto& [type, rule] : rules1_)
      for (const auto* ids : {&rule.processors, &rule.otherwise})
        if (std::ranges::find(*ids, id) != ids->end()) throw_in_use("processor", id, type);
  }
  void require_strategy_unused(std::uint8_t id) const {
    for (const auto& [type, rule] : rules2_)
      if (rule.strategy == id) throw_in_use("strategy", id, type);
  }

  void connect_all() {
    if (stage1_.empty() || stage2_ == nullptr) throw std::invalid_argument("a router needs stage 1 and stage 2");
    for (const auto& [type, rule] : rules2_) connect_strategy(type, rule);
    for (const auto& [type, rule] : rules1_) {
      for (const auto* ids : {&rule.processors, &rule.otherwise})
        for (const std::uint8_t id : *ids) processors_[id]->connect(type, port(*processors_[id], *stage2_, type));
      for (Stage* stage : stage1_) connect_processors(*stage, type, rule);
      for (Source* source : sources_)
        source->connect(type, port(*source, *stage1_.at(stage1_of_.at(source)), type));
    }
  }

  // Removes a component from its worker. Its counts stay.
  void retire(Component& component) {
    workers_.at(worker_of(component))->remove(component);
    retired_.push_back(&component);
  }

  // ---- inspection ----

  // Messages of a type that have passed stage 1 and wait in an edge. Exact while the workers are paused.
  std::size_t in_flight(std::uint8_t type) const {
    std::size_t count = 0;
    for (const auto& [key, edge] : edges_)
      if (edge->type == type && std::ranges::find(stage1_, std::get<1>(key)) == stage1_.end())
        count += edge->ring.size_approx();
    return count;
  }
  bool has_input(const Component& component) const {
    return std::ranges::any_of(edges_, [&](const auto& each) {
      return std::get<1>(each.first) == &component && each.second->ring.size_approx() != 0;
    });
  }
  std::vector<QueueLocation> waiting() const {
    std::vector<QueueLocation> locations;
    for (const auto& [key, edge] : edges_)
      if (const std::size_t count = edge->ring.size_approx()) locations.push_back({edge->name, count});
    return locations;
  }
  std::size_t worker_of(const Component& component) const { return worker_of_.at(&component); }
  // Processors and strategies, removed ones included.
  std::vector<const WorkReceiver*> work_receivers() const {
    std::vector<const WorkReceiver*> all(processors_.begin(), processors_.end());
    all.insert(all.end(), strategies_.begin(), strategies_.end());
    return all;
  }

  const std::vector<std::unique_ptr<Worker>>& workers() const { return workers_; }
  const std::vector<Source*>& sources() const { return sources_; }
  const std::vector<Producer*>& producers() const { return producers_; }
  const std::vector<LiveSource*>& live_sources() const { return live_sources_; }
  const std::vector<Stage*>& stage1() const { return stage1_; }
  const std::vector<Processor*>& processors() const { return processors_; }
  const std::vector<Strategy*>& strategies() const { return strategies_; }

 private:
  static constexpr std::size_t kNoWorker = SIZE_MAX;  // of live sources
  using EdgeKey = std::tuple<const Component*, const Component*, std::uint8_t>;

  template <class T>
  T* place(std::unique_ptr<T> component, std::size_t worker) {
    T* raw = component.get();
    if (worker != kNoWorker) workers_.at(worker)->add(*raw);
    worker_of_[raw] = worker;
    components_.push_back(std::move(component));
    return raw;
  }
  void add_source(Source& source, std::size_t stage1) {
    sources_.push_back(&source);
    stage1_of_[&source] = stage1;
  }

  template <class T>
  void require(const std::vector<T*>& list, std::uint8_t id, const char* kind) const {
    if (id >= list.size() || std::ranges::find(retired_, list[id]) != retired_.end())
      throw std::invalid_argument(std::string("there is no ") + kind + " " + std::to_string(id));
  }
  [[noreturn]] static void throw_in_use(const char* kind, std::uint8_t id, std::uint8_t type) {
    throw std::invalid_argument(std::string(kind) + " " + std::to_string(id) + " still serves type " +
                                std::to_string(type));
  }

  // The port from one component to another: the component itself on the same worker, else an edge.
  OutputPort& port(const Component& from, Receiver& to, std::uint8_t type) {
    const std::size_t sender = worker_of(from), receiver = worker_of(to);
    if (sender == receiver) return to;
    const EdgeKey key{&from, &to, type};
    auto found = edges_.find(key);
    if (found == edges_.end()) {
      const auto rule = rules2_.find(type);
      auto edge = std::make_unique<Edge>(from.name + " to " + to.name + ", type " + std::to_string(type), type,
                                         rule != rules2_.end() && rule->second.urgent, ring_capacity_);
      edge->receiver_park = workers_.at(receiver)->park();
      to.add_input(*edge);
      found = edges_.emplace(key, std::move(edge)).first;
    }
    return *found->second;
  }
  void connect_strategy(std::uint8_t type, const Stage2Rule& rule) {
    Strategy& strategy = *strategies_[rule.strategy];
    const auto first = rules1_.find(type);
    const bool one_processor =
        first != rules1_.end() && first->second.processors.size() + first->second.otherwise.size() == 1;
    strategy.set_ordered(type, rule.ordered || one_processor);
    stage2_->route(type).group.targets = {&port(*stage2_, strategy, type)};
  }
  void connect_processors(Stage& stage, std::uint8_t type, const Stage1Rule& rule) {
    const auto ports = [&](const std::vector<std::uint8_t>& ids) {
      TargetGroup group;
      for (const std::uint8_t id : ids) group.targets.push_back(&port(stage, *processors_[id], type));
      return group;
    };
    stage.route(type) = Route{rule.by, ports(rule.processors), ports(rule.otherwise), rule.threshold, rule.above};
  }

  const std::size_t ring_capacity_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Component>> components_;
  std::map<const Component*, std::size_t> worker_of_;
  std::map<EdgeKey, std::unique_ptr<Edge>> edges_;
  std::vector<Source*> sources_;
  std::map<const Source*, std::size_t> stage1_of_;
  std::vector<Producer*> producers_;
  std::vector<LiveSource*> live_sources_;
  std::vector<Stage*> stage1_;
  std::vector<Processor*> processors_;
  Stage* stage2_ = nullptr;
  std::vector<Strategy*> strategies_;
  std::vector<const Component*> retired_;
  std::map<std::uint8_t, Stage1Rule> rules1_;
  std::map<std::uint8_t, Stage2Rule> rules2_;
};

}  // namespace qts
