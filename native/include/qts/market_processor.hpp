// MarketProcessor: builds the bars and indicators of its symbols, and keeps what its strategies subscribed to.
//
// The symbols of a market plane are divided among its processors by `symbol % processors`. A series is a
// symbol and a timeframe that some strategy subscribed to; strategies share its bars and its indicators.
//
// Thread contract: one caller at a time; where there are several, they hold `lock`.
// Invariant: every closed bar is appended once to the rows of each strategy that subscribed to its series:
// produced = delivered + waiting. Rows of one strategy and symbol are in order of their close.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "qts/bar_ring.hpp"
#include "qts/bars.hpp"
#include "qts/indicators.hpp"
#include "qts/market_snapshot.hpp"

namespace qts {

// One trade or price of a symbol, as push_many takes it.
struct MarketTick {
  std::uint32_t symbol = 0, reserved = 0;
  double price = 0, volume = 0, at = 0;  // in seconds since the epoch
};
static_assert(sizeof(MarketTick) == 32);

// A closed bar as a strategy receives it.
struct BarRow {
  std::uint32_t symbol = 0, timeframe = 0;  // timeframe in seconds
  double at = 0, open = 0, high = 0, low = 0, close = 0, volume = 0, value = 0;
  std::uint32_t ticks = 0, reserved = 0;
};
static_assert(sizeof(BarRow) == 72);

struct MarketCounts {
  std::uint64_t ticks = 0, late = 0, outside = 0;  // late and outside: per series
  std::uint64_t bars = 0, produced = 0, delivered = 0;
};

class MarketProcessor {
 public:
  // Rows of a strategy with its indicator values, `columns` for each row.
  struct Delivery {
    std::vector<BarRow> rows;
    std::vector<double> values;
  };

  MarketProcessor(std::size_t bars_kept, std::uint32_t number, std::uint32_t processors)
      : bars_kept_(bars_kept), number_(number), processors_(processors) {}
  MarketProcessor(const MarketProcessor&) = delete;
  MarketProcessor& operator=(const MarketProcessor&) = delete;

  std::mutex lock;

  // ---- building ----

  // Ids are given in rising order: number, number + processors, ...
  void add_symbol(std::string name, const Session& session) { symbols_.push_back({std::move(name), session, {}, 0}); }
  void add_indicator(std::string name, Indicator indicator) { indicators_.emplace_back(std::move(name), std::move(indicator)); }
  void add_strategy(std::vector<std::uint32_t> indicators) { strategies_.push_back({std::move(indicators), {}}); }

  // Adds a series to a strategy; once.
  void subscribe(std::uint32_t strategy, std::uint32_t symbol, std::uint32_t timeframe) {
    const std::uint32_t number = series_of(symbol, timeframe);
    Series& series = series_[number];
    const auto same = [strategy](const Target& target) { return target.strategy == strategy; };
    if (std::ranges::any_of(series.targets, same)) return;
    Target target{strategy, {}};
    for (const std::uint32_t indicator : strategies_[strategy].indicators) {
      const Slot& slot = slot_of(series, number, indicator);
      for (std::size_t i = 0; i < indicators_[indicator].second.outputs(); ++i)
        target.values.push_back(static_cast<std::uint32_t>(slot.value + i));
    }
    series.targets.push_back(std::move(target));
  }

  // ---- running; times in nanoseconds since the epoch ----

  void push(std::uint32_t id, double price, double volume, std::int64_t ns) {
    const Symbol& symbol = symbols_[id / processors_];
    ++counts_.ticks;
    for (std::size_t i = 0; i < symbol.count; ++i) {
      const std::uint32_t number = symbol.series[i];
      BarBuilder& builder = builders_[number];
      if (builder.closes_before(ns)) close(number);
      const bool opens = !builder.is_open();
      const TickFate fate = builder.push(price, volume, ns);
      if (fate == TickFate::taken) {
        if (opens) list(number);
      } else {
        ++(fate == TickFate::late ? counts_.late : counts_.outside);
      }
    }
  }

  // The least time at which a bar is due.
  std::int64_t next_due() const { return next_due_; }

  // Closes every bar that is due, in order of time, timeframe and symbol.
  void advance(std::int64_t now) {
    if (now < next_due_) return;
    due_.clear();
    next_due_ = kNever;
    for (Group& group : groups_) {
      if (now >= group.due) collect(group, now);
      next_due_ = std::min(next_due_, group.due);
    }
    std::ranges::sort(due_, {}, [this](std::uint32_t number) {
      return std::tuple(builders_[number].due(), builders_[number].timeframe(), series_[number].symbol);
    });
    for (const std::uint32_t number : due_) close(number);
  }

  // Takes a bar that was built elsewhere. Returns false when the series is not subscribed to, has an open bar,
  // or when the bar does not fit its timeframe or is not after the last one.
  bool push_bar(std::uint32_t id, std::uint32_t timeframe, const Bar& bar, bool deliver) {
    const std::optional<std::uint32_t> number = find(id, timeframe);
    if (!number || !builders_[*number].skip_to(bar)) return false;
    record(*number, bar, deliver);
    return true;
  }

  Delivery drain(std::uint32_t strategy) {
    Delivery taken = std::exchange(strategies_[strategy].waiting, {});
    counts_.delivered += taken.rows.size();
    return taken;
  }

  // ---- inspection ----

  std::size_t waiting(std::uint32_t strategy) const { return strategies_[strategy].waiting.rows.size(); }
  std::size_t waiting() const { return counts_.produced - counts_.delivered; }
  const MarketCounts& counts() const { return counts_; }
  std::size_t series_count() const { return series_.size(); }
  std::size_t bytes() const {
    std::size_t sum = builders_.capacity() * sizeof(BarBuilder) + series_.capacity() * sizeof(Series);
    for (const Series& series : series_)
      sum += series.ring.bytes() + (series.state.capacity() + series.values.capacity()) * sizeof(double);
    return sum;
  }

  // The last bars of a series, oldest first, then the open one if `forming`.
  std::vector<BarRow> bars(std::uint32_t id, std::uint32_t timeframe, std::size_t most, bool forming) const {
    std::vector<BarRow> rows;
    const std::optional<std::uint32_t> number = find(id, timeframe);
    if (!number) return rows;
    const Series& series = series_[*number];
    series.ring.each(most, [&](const Bar& bar) { rows.push_back(row_of(series, bar)); });
    if (forming && builders_[*number].is_open()) rows.push_back(row_of(series, builders_[*number].bar()));
    return rows;
  }

  // Values of an indicator at the last closed bar; with `forming`, as they would be if the open bar closed now.
  std::vector<double> values(std::uint32_t id, std::uint32_t timeframe, std::uint32_t indicator, bool forming) const {
    const std::size_t outputs = indicators_[indicator].second.outputs();
    const std::optional<std::uint32_t> number = find(id, timeframe);
    const Slot* slot = number ? find_slot(series_[*number], indicator) : nullptr;
    if (slot == nullptr) return std::vector<double>(outputs, kNoValue);
    const Series& series = series_[*number];
    const auto first = series.values.begin() + static_cast<std::ptrdiff_t>(slot->value);
    std::vector<double> now(first, first + static_cast<std::ptrdiff_t>(outputs));
    if (!forming || !builders_[*number].is_open()) return now;
    now.resize(kMaxOutputs);
    const auto from = series.state.begin() + static_cast<std::ptrdiff_t>(slot->state);
    const Indicator& formula = indicators_[indicator].second;
    std::vector<double> state(from, from + static_cast<std::ptrdiff_t>(formula.state_size()));
    const Bar& bar = builders_[*number].bar();
    formula.push(state.data(), bar, builders_[*number].session().day_of_bar(bar.at), now.data());
    now.resize(outputs);
    return now;
  }

  // ---- snapshots ----

  void save(std::vector<SeriesImage>& images) const {
    for (std::uint32_t number = 0; number < series_.size(); ++number) {
      const Series& series = series_[number];
      SeriesImage& image = images.emplace_back();
      image.symbol = symbols_[series.symbol / processors_].name;
      image.timeframe = builders_[number].timeframe();
      image.open = builders_[number].state();
      series.ring.each(bars_kept_, [&](const Bar& bar) { image.bars.push_back(bar); });
      for (const Slot& slot : series.slots) {
        const auto& [name, formula] = indicators_[slot.indicator];
        const double* state = series.state.data() + slot.state;
        const double* values = series.values.data() + slot.value;
        image.indicators.push_back({name, {state, state + formula.state_size()}, {values, values + formula.outputs()}});
      }
    }
  }

  // Sets a series to its image; one that nobody subscribed to is left out. An indicator that is not in the
  // image begins with the bars of the image.
  void restore(std::uint32_t id, const SeriesImage& image) {
    const std::optional<std::uint32_t> number = find(id, image.timeframe);
    if (!number) return;
    Series& series = series_[*number];
    series.ring.clear();
    for (const Bar& bar : image.bars) series.ring.push(bar);
    builders_[*number].restore(image.open);
    if (builders_[*number].is_open()) list(*number);
    for (const Slot& slot : series.slots) {
      const auto& [name, formula] = indicators_[slot.indicator];
      const auto saved = std::ranges::find(image.indicators, name, &SeriesImage::IndicatorState::name);
      if (saved != image.indicators.end() && saved->state.size() == formula.state_size() &&
          saved->values.size() == formula.outputs()) {
        std::ranges::copy(saved->state, series.state.data() + slot.state);
        std::ranges::copy(saved->values, series.values.data() + slot.value);
      } else {
        warm(series, *number, slot);
      }
    }
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  struct Symbol {
    std::string name;
    Session session;
    std::array<std::uint32_t, kTimeframes.size()> series;
    std::size_t count = 0;
  };
  // An indicator of a series: where its state and its values begin.
  struct Slot {
    std::uint32_t indicator;
    std::size_t state, value;
  };
  // A strategy that subscribed to a series, and which of the series' values it receives.
  struct Target {
    std::uint32_t strategy;
    std::vector<std::uint32_t> values;
  };
  struct Series {
    std::uint32_t symbol;
    std::uint32_t group;
    bool listed;  // in its group
    BarRing ring;
    std::vector<Slot> slots;
    std::vector<double> state, values;
    std::vector<Target> targets;
  };
  // Series of one timeframe and session that have an open bar, or had one; none is due before `due`.
  struct Group {
    Session session;
    std::uint32_t timeframe;
    std::vector<std::uint32_t> series;
    std::int64_t due = kNever;
  };
  struct Strategy {
    std::vector<std::uint32_t> indicators;
    Delivery waiting;
  };

  std::optional<std::uint32_t> find(std::uint32_t id, std::uint32_t timeframe) const {
    const Symbol& symbol = symbols_[id / processors_];
    for (std::size_t i = 0; i < symbol.count; ++i)
      if (builders_[symbol.series[i]].timeframe() == timeframe) return symbol.series[i];
    return std::nullopt;
  }

  std::uint32_t series_of(std::uint32_t id, std::uint32_t timeframe) {
    if (const auto found = find(id, timeframe)) return *found;
    Symbol& symbol = symbols_[id / processors_];
    const auto number = static_cast<std::uint32_t>(series_.size());
    series_.push_back({id, group_of(symbol.session, timeframe), false, BarRing(bars_kept_), {}, {}, {}, {}});
    builders_.emplace_back(symbol.session, timeframe);
    // Short timeframes first: a tick closes bars in the order in which advance would.
    std::size_t at = symbol.count++;
    for (; at > 0 && builders_[symbol.series[at - 1]].timeframe() > timeframe; --at) symbol.series[at] = symbol.series[at - 1];
    symbol.series[at] = number;
    return number;
  }

  std::uint32_t group_of(const Session& session, std::uint32_t timeframe) {
    const auto same = [&](const Group& group) { return group.session == session && group.timeframe == timeframe; };
    const auto found = std::ranges::find_if(groups_, same);
    if (found == groups_.end()) {
      groups_.push_back({session, timeframe, {}});
      return static_cast<std::uint32_t>(groups_.size() - 1);
    }
    return static_cast<std::uint32_t>(found - groups_.begin());
  }

  static const Slot* find_slot(const Series& series, std::uint32_t indicator) {
    const auto found = std::ranges::find(series.slots, indicator, &Slot::indicator);
    return found == series.slots.end() ? nullptr : &*found;
  }

  const Slot& slot_of(Series& series, std::uint32_t number, std::uint32_t indicator) {
    if (const Slot* found = find_slot(series, indicator)) return *found;
    const Indicator& formula = indicators_[indicator].second;
    series.slots.push_back({indicator, series.state.size(), series.values.size()});
    series.state.resize(series.state.size() + formula.state_size());
    series.values.resize(series.values.size() + formula.outputs(), kNoValue);
    warm(series, number, series.slots.back());
    return series.slots.back();
  }

  // Begins an indicator with the bars that the ring has.
  void warm(Series& series, std::uint32_t number, const Slot& slot) {
    const Indicator& formula = indicators_[slot.indicator].second;
    std::fill_n(series.state.data() + slot.state, formula.state_size(), 0.0);
    std::fill_n(series.values.data() + slot.value, formula.outputs(), kNoValue);
    series.ring.each(bars_kept_, [&](const Bar& bar) { apply(series, builders_[number].session(), slot, bar); });
  }

  void apply(Series& series, const Session& session, const Slot& slot, const Bar& bar) {
    indicators_[slot.indicator].second.push(series.state.data() + slot.state, bar, session.day_of_bar(bar.at),
                                            series.values.data() + slot.value);
  }

  void list(std::uint32_t number) {
    Series& series = series_[number];
    Group& group = groups_[series.group];
    group.due = std::min(group.due, builders_[number].due());
    next_due_ = std::min(next_due_, group.due);
    if (!std::exchange(series.listed, true)) group.series.push_back(number);
  }

  // Moves the series that are due to `due_`, and those without an open bar out of the group.
  void collect(Group& group, std::int64_t now) {
    group.due = kNever;
    std::size_t kept = 0;
    for (const std::uint32_t number : group.series) {
      const BarBuilder& builder = builders_[number];
      if (builder.is_open() && builder.due() > now) {
        group.due = std::min(group.due, builder.due());
        group.series[kept++] = number;
        continue;
      }
      series_[number].listed = false;
      if (builder.is_open()) due_.push_back(number);
    }
    group.series.resize(kept);
  }

  void close(std::uint32_t number) { record(number, builders_[number].close(), true); }

  void record(std::uint32_t number, const Bar& bar, bool deliver) {
    Series& series = series_[number];
    series.ring.push(bar);
    for (const Slot& slot : series.slots) apply(series, builders_[number].session(), slot, bar);
    ++counts_.bars;
    if (!deliver) return;
    for (const Target& target : series.targets) {
      Delivery& waiting = strategies_[target.strategy].waiting;
      waiting.rows.push_back(row_of(series, bar));
      for (const std::uint32_t value : target.values) waiting.values.push_back(series.values[value]);
      ++counts_.produced;
    }
  }

  BarRow row_of(const Series& series, const Bar& bar) const {
    return {series.symbol, groups_[series.group].timeframe, static_cast<double>(bar.at), bar.open, bar.high, bar.low,
            bar.close, bar.volume, bar.value, bar.ticks, 0};
  }

  const std::size_t bars_kept_;
  const std::uint32_t number_, processors_;
  std::vector<Symbol> symbols_;
  std::vector<std::pair<std::string, Indicator>> indicators_;
  std::vector<Strategy> strategies_;
  std::vector<BarBuilder> builders_;  // by series, apart from what only a close needs
  std::vector<Series> series_;
  std::vector<Group> groups_;
  std::vector<std::uint32_t> due_;
  std::int64_t next_due_ = kNever;
  MarketCounts counts_;
};

}  // namespace qts
