// Bars of one symbol and timeframe, built from ticks.
//
// A bar covers [start, close) of an interval that is aligned to the session's open. Rules:
//   no ticks       no bar: an interval without a tick produces nothing
//   late           a tick older than the open bar, or than the end of the last closed one, is dropped
//   order          within the open bar ticks count in order of arrival: the last to arrive is the close
//   day            covers the session only, and stays open for the closing auction: it is closed at
//                  close + auction. Shorter timeframes take every tick.
//
// Thread contract: one caller at a time.
// Invariant: a bar is closed once, and bars close in rising order; of the ticks given, each is in one
// bar, late, or outside the session.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace qts {

inline constexpr std::int64_t kSecondNs = 1'000'000'000;
inline constexpr std::int64_t kDaySeconds = 86'400;

// 1s, 1m, 3m, 5m, 15m, 1h, 1d: each divides the day, so that no bar spans two days.
inline constexpr std::array<std::uint32_t, 7> kTimeframes{1, 60, 180, 300, 900, 3600, 86'400};
inline constexpr std::uint32_t kDayTimeframe = 86'400;

// When a market trades, in seconds; `open_s` after midnight UTC.
struct Session {
  std::int64_t open_s = 0;
  std::int64_t length_s = kDaySeconds;
  std::int64_t auction_s = 0;  // how long after the close its auction may still print

  bool operator==(const Session&) const = default;

  // The day that a moment belongs to, counted from the open of 1970-01-01.
  std::int64_t day_of(std::int64_t ns) const {
    const std::int64_t since = ns - open_s * kSecondNs, day = kDaySeconds * kSecondNs;
    return since / day - (since % day < 0 ? 1 : 0);
  }
  std::int64_t day_of_bar(std::uint32_t at) const { return day_of(at * kSecondNs - 1); }
};

// The interval of a bar in nanoseconds since the epoch: from `start` on, until it is `due` to be closed.
struct Interval {
  std::int64_t start = 0, close = 0, due = 0;
};

inline Interval interval_at(const Session& session, std::uint32_t timeframe, std::int64_t ns) {
  const std::int64_t open = (session.open_s + session.day_of(ns) * kDaySeconds) * kSecondNs;
  if (timeframe == kDayTimeframe) {
    const std::int64_t close = open + session.length_s * kSecondNs;
    return {open, close, close + session.auction_s * kSecondNs};
  }
  const std::int64_t length = timeframe * kSecondNs, start = ns - (ns - open) % length;
  return {start, start + length, start + length};
}

// A closed bar as the rings keep it.
struct Bar {
  std::uint32_t at = 0;  // its close, in seconds since the epoch
  std::uint32_t ticks = 0;
  double open = 0, high = 0, low = 0, close = 0, volume = 0, value = 0;
};
static_assert(sizeof(Bar) == 56);

enum class TickFate : std::uint8_t { taken, late, outside };

// The bar that is open now. Times are in nanoseconds since the epoch.
class BarBuilder {
 public:
  BarBuilder(const Session& session, std::uint32_t timeframe) : session_(session), timeframe_(timeframe) {}

  bool is_open() const { return bar_.ticks != 0; }
  std::int64_t due() const { return due_; }
  const Bar& bar() const { return bar_; }
  std::uint32_t timeframe() const { return timeframe_; }
  const Session& session() const { return session_; }

  // Whether the open bar must be closed before a tick of this time is given.
  bool closes_before(std::int64_t ns) const { return is_open() && ns >= due_; }

  // Takes a tick once no bar closes before it.
  TickFate push(double price, double volume, std::int64_t ns) {
    if (!is_open()) {
      if (ns < closed_until_) return TickFate::late;
      const Interval next = interval_at(session_, timeframe_, ns);
      if (ns >= next.due) return TickFate::outside;
      start_ = next.start;
      due_ = next.due;
      bar_ = {static_cast<std::uint32_t>(next.close / kSecondNs), 1, price, price, price, price, volume, price * volume};
      return TickFate::taken;
    }
    if (ns < start_) return TickFate::late;
    ++bar_.ticks;
    bar_.high = std::max(bar_.high, price);
    bar_.low = std::min(bar_.low, price);
    bar_.close = price;
    bar_.volume += volume;
    bar_.value += price * volume;
    return TickFate::taken;
  }

  // Ends the open bar and returns it.
  Bar close() {
    closed_until_ = due_;
    const Bar closed = bar_;
    bar_ = Bar{};
    return closed;
  }

  // Takes the end of a bar that was built elsewhere; returns false when it does not end an interval, or is not
  // after the last one. A day may end at another time than usual.
  bool skip_to(const Bar& closed) {
    const std::int64_t at = closed.at * kSecondNs;
    const Interval own = interval_at(session_, timeframe_, at - 1);
    if (is_open() || (own.close != at && timeframe_ != kDayTimeframe) || own.start < closed_until_) return false;
    start_ = own.start;
    closed_until_ = std::max(own.due, at);
    return true;
  }

  struct State {
    std::int64_t start, due, closed_until;
    Bar bar;
  };
  State state() const { return {start_, due_, closed_until_, bar_}; }
  void restore(const State& state) {
    start_ = state.start;
    due_ = state.due;
    closed_until_ = state.closed_until;
    bar_ = state.bar;
  }

 private:
  std::int64_t start_ = 0, due_ = 0;  // of the open bar
  std::int64_t closed_until_ = 0;
  Bar bar_{};
  Session session_;
  std::uint32_t timeframe_;
};

}  // namespace qts
