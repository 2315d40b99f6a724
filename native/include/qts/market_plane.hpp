// MarketPlane: the market processors, the names of their symbols, and the rows that strategies receive.
//
// Thread contract: symbols, indicators, strategies and subscriptions are added by one thread at a time;
// any thread may push, advance, drain and read meanwhile. No call waits for Python.
// Invariant: a symbol belongs to one processor, so that its bars do not depend on how many there are.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "qts/market_processor.hpp"

namespace qts {

class MarketPlane {
 public:
  MarketPlane(std::size_t bars_kept, std::uint32_t processors) {
    for (std::uint32_t i = 0; i < processors; ++i)
      processors_.push_back(std::make_unique<MarketProcessor>(bars_kept, i, processors));
  }

  // ---- building ----

  // Returns the id of the symbol, which it keeps when it is added again.
  std::uint32_t add_symbol(const std::string& name, const Session& session) {
    if (const auto found = ids_.find(name); found != ids_.end()) return found->second;
    const std::uint32_t id = symbols();
    with(of(id), [&](MarketProcessor& processor) { processor.add_symbol(name, session); });
    ids_.emplace(name, id);
    symbols_.store(id + 1, std::memory_order_release);
    return id;
  }
  std::uint32_t add_indicator(const std::string& name, const Indicator& indicator) {
    each([&](MarketProcessor& processor) { processor.add_indicator(name, indicator); });
    outputs_.push_back(indicator.outputs());
    return static_cast<std::uint32_t>(outputs_.size() - 1);
  }
  std::uint32_t add_strategy(const std::vector<std::uint32_t>& indicators) {
    each([&](MarketProcessor& processor) { processor.add_strategy(indicators); });
    std::size_t columns = 0;
    for (const std::uint32_t indicator : indicators) columns += outputs_.at(indicator);
    columns_.push_back(columns);
    return static_cast<std::uint32_t>(columns_.size() - 1);
  }
  void subscribe(std::uint32_t strategy, std::uint32_t symbol, std::uint32_t timeframe) {
    with(of(symbol), [&](MarketProcessor& processor) { processor.subscribe(strategy, symbol, timeframe); });
  }

  // ---- running ----

  static std::int64_t to_ns(double at) { return std::llround(at * 1e9); }

  static bool is_time(double at) { return at >= 0 && at < kLastTime; }
  static bool is_valid(double price, double volume, double at) {
    return price > 0 && std::isfinite(price) && volume >= 0 && std::isfinite(volume) && is_time(at);
  }

  // A valid tick of a known symbol. Closes bars of that symbol only.
  void push(std::uint32_t symbol, double price, double volume, double at) {
    with(of(symbol), [&](MarketProcessor& processor) { processor.push(symbol, price, volume, to_ns(at)); });
  }

  // Valid ticks in order of time, which are the clock: each first closes what is due in every symbol.
  void push_many(std::span<const MarketTick> ticks) {
    if (processors_.size() == 1) {
      for (; !ticks.empty(); ticks = ticks.subspan(std::min(kSlice, ticks.size())))
        with(*processors_[0], [&](MarketProcessor& processor) {
          for (const MarketTick& tick : ticks.first(std::min(kSlice, ticks.size()))) push_and_advance(processor, tick);
        });
      return;
    }
    for (const MarketTick& tick : ticks) {
      advance(tick.at);
      push(tick.symbol, tick.price, tick.volume, tick.at);
    }
  }

  void advance(double at) {
    each([ns = to_ns(at)](MarketProcessor& processor) { processor.advance(ns); });
  }

  bool push_bar(std::uint32_t symbol, std::uint32_t timeframe, const Bar& bar, bool deliver) {
    return with(of(symbol), [&](MarketProcessor& p) { return p.push_bar(symbol, timeframe, bar, deliver); });
  }

  // Takes the rows of a strategy; of several processors in order of time, timeframe and symbol.
  MarketProcessor::Delivery drain(std::uint32_t strategy) {
    MarketProcessor::Delivery all;
    each([&](MarketProcessor& processor) {
      MarketProcessor::Delivery part = processor.drain(strategy);
      if (all.rows.empty()) return std::swap(all, part);
      all.rows.insert(all.rows.end(), part.rows.begin(), part.rows.end());
      all.values.insert(all.values.end(), part.values.begin(), part.values.end());
    });
    return processors_.size() == 1 ? all : sorted(all, columns_[strategy]);
  }

  // ---- inspection ----

  std::uint32_t symbols() const { return symbols_.load(std::memory_order_acquire); }
  std::uint32_t strategies() const { return static_cast<std::uint32_t>(columns_.size()); }
  std::uint32_t indicators() const { return static_cast<std::uint32_t>(outputs_.size()); }
  std::uint32_t processors() const { return static_cast<std::uint32_t>(processors_.size()); }
  std::size_t columns(std::uint32_t strategy) const { return columns_[strategy]; }
  MarketProcessor& processor(std::size_t number) { return *processors_.at(number); }
  std::optional<std::uint32_t> find(std::string_view name) const {
    const auto found = ids_.find(name);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::size_t waiting() {
    std::size_t sum = 0;
    each([&](MarketProcessor& processor) { sum += processor.waiting(); });
    return sum;
  }
  MarketCounts counts() {
    MarketCounts sum;
    each([&](MarketProcessor& processor) {
      const MarketCounts& part = processor.counts();
      sum.ticks += part.ticks;
      sum.late += part.late;
      sum.outside += part.outside;
      sum.bars += part.bars;
      sum.produced += part.produced;
      sum.delivered += part.delivered;
    });
    return sum;
  }
  std::size_t bytes() {
    std::size_t sum = 0;
    each([&](MarketProcessor& processor) { sum += processor.bytes(); });
    return sum;
  }
  std::size_t series() {
    std::size_t sum = 0;
    each([&](MarketProcessor& processor) { sum += processor.series_count(); });
    return sum;
  }
  std::vector<BarRow> bars(std::uint32_t symbol, std::uint32_t timeframe, std::size_t most, bool forming) {
    return with(of(symbol), [&](MarketProcessor& p) { return p.bars(symbol, timeframe, most, forming); });
  }
  std::vector<double> values(std::uint32_t symbol, std::uint32_t timeframe, std::uint32_t indicator, bool forming) {
    return with(of(symbol), [&](MarketProcessor& p) { return p.values(symbol, timeframe, indicator, forming); });
  }

  // ---- snapshots: of bars and indicators, not of rows that wait ----

  std::string snapshot() {
    std::vector<SeriesImage> images;
    each([&](MarketProcessor& processor) { processor.save(images); });
    return encode_snapshot(images);
  }
  void restore(std::string_view text) {
    for (const SeriesImage& image : decode_snapshot(text))
      if (const auto id = find(image.symbol))
        with(of(*id), [&](MarketProcessor& processor) { processor.restore(*id, image); });
  }

 private:
  static constexpr std::size_t kSlice = 4096;         // ticks under one lock
  static constexpr double kLastTime = 4'294'000'000;  // a bar's close fits 32 bits

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  static void push_and_advance(MarketProcessor& processor, const MarketTick& tick) {
    const std::int64_t ns = to_ns(tick.at);
    if (ns >= processor.next_due()) processor.advance(ns);
    processor.push(tick.symbol, tick.price, tick.volume, ns);
  }

  MarketProcessor& of(std::uint32_t symbol) { return *processors_[symbol % processors_.size()]; }

  template <class Call>
  static std::invoke_result_t<Call, MarketProcessor&> with(MarketProcessor& processor, Call&& call) {
    const std::lock_guard hold(processor.lock);
    return call(processor);
  }
  template <class Call>
  void each(Call&& call) {
    for (auto& processor : processors_) with(*processor, call);
  }

  static MarketProcessor::Delivery sorted(const MarketProcessor::Delivery& given, std::size_t columns) {
    std::vector<std::size_t> order(given.rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) {
      return std::tuple(given.rows[i].at, given.rows[i].timeframe, given.rows[i].symbol, i);
    });
    MarketProcessor::Delivery made;
    made.values.reserve(given.values.size());
    for (const std::size_t i : order) {
      made.rows.push_back(given.rows[i]);
      for (std::size_t column = 0; column < columns; ++column) made.values.push_back(given.values[i * columns + column]);
    }
    return made;
  }

  std::vector<std::unique_ptr<MarketProcessor>> processors_;
  std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
  std::atomic<std::uint32_t> symbols_{0};
  std::vector<std::size_t> outputs_;  // by indicator
  std::vector<std::size_t> columns_;  // by strategy
};

}  // namespace qts
