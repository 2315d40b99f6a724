// Indicators: incremental functions over a row of doubles, which is all the state they have.
//
// The row is zero at first. A push takes a bar and writes the outputs, NaN until there is a value. A copy
// of the row is a snapshot: restored, the indicator continues bit for bit; pushed and thrown away, it is
// a look at the forming bar. Conventions are those of TA-Lib; `first` is the number of the first bar with
// a value, counted from 1:
//
//   sma n        mean of the last n closes (n)
//   ema n        seed: mean of the first n (n); then value += 2 / (n + 1) * (x - value)
//   rma n        Wilder's average: as ema, with weight 1 / n (n)
//   rsi n        Wilder's averages of gains and losses (n + 1); 100 g / (g + l), 0 where nothing moved
//   macd f s g   the fast average is seeded over the last f of the first s closes; signal: ema of the line;
//                line, signal, histogram (s + g - 1)
//   bollinger n k  upper, middle, lower: mean and k population deviations, in two passes (n)
//   atr n        Wilder's average of true ranges, which begin with the second bar (n + 1)
//   vwap         of (high + low + close) / 3 since the day's open (1); NaN while the volume is 0
//   donchian n   upper, middle, lower of the last n bars, this one included (n)
//   step         a function of the user, compiled outside
//
// Thread contract: none of its own; one caller at a time uses a row.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "qts/bars.hpp"

namespace qts {

inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();
inline constexpr std::size_t kMaxOutputs = 3;

// Called without the GIL; returns the value.
using IndicatorStep = double (*)(double* state, const double* params, double open, double high, double low,
                                 double close, double volume, double at);

namespace formula {

// Seeded with the mean of the first n values. State: count, value.
struct Smoothed {
  static constexpr std::size_t kSize = 2;
  static double push(double* s, double n, double weight, double x) {
    if (s[0] >= n) return s[1] += weight * (x - s[1]);
    s[1] += x;
    if (++s[0] < n) return kNoValue;
    return s[1] /= n;
  }
};

// The last n values. State: count, index of the oldest, values.
struct Window {
  static constexpr std::size_t kHeader = 2;
  static std::size_t size(std::size_t n) { return kHeader + n; }
  static bool full(const double* s, std::size_t n) { return static_cast<std::size_t>(s[0]) == n; }
  // Returns the value that left the window, 0 when none did.
  static double push(double* s, std::size_t n, double x) {
    const auto at = static_cast<std::size_t>(s[1]);
    const double left = std::exchange(s[kHeader + at], x);
    s[1] = static_cast<double>(at + 1 == n ? 0 : at + 1);
    if (!full(s, n)) s[0] += 1;
    return left;
  }
  // Calls with each value of a full window, from the oldest on.
  template <class Call>
  static void each(const double* s, std::size_t n, Call&& call) {
    const auto oldest = static_cast<std::size_t>(s[1]);
    for (std::size_t i = oldest; i < n; ++i) call(s[kHeader + i]);
    for (std::size_t i = 0; i < oldest; ++i) call(s[kHeader + i]);
  }
};

}  // namespace formula

class Indicator {
 public:
  enum class Kind : std::uint8_t { sma, ema, rma, rsi, macd, bollinger, atr, vwap, donchian, step };

  // Throws std::invalid_argument with what is allowed.
  Indicator(Kind kind, std::vector<double> params) : kind_(kind), params_(std::move(params)) {
    check();
    n_ = kind == Kind::vwap ? 0 : static_cast<std::size_t>(params_[0]);
  }
  Indicator(IndicatorStep step, std::vector<double> params, std::size_t state_size)
      : kind_(Kind::step), params_(std::move(params)), n_(state_size), step_(step) {}

  bool operator==(const Indicator&) const = default;

  std::size_t outputs() const {
    return kind_ == Kind::macd || kind_ == Kind::bollinger || kind_ == Kind::donchian ? 3 : 1;
  }
  std::size_t state_size() const {
    using namespace formula;
    switch (kind_) {
      case Kind::sma: return 1 + Window::size(n_);
      case Kind::ema:
      case Kind::rma: return Smoothed::kSize;
      case Kind::rsi: return 2 + 2 * Smoothed::kSize;
      case Kind::macd: return 1 + 3 * Smoothed::kSize;
      case Kind::bollinger: return Window::size(n_);
      case Kind::atr: return 2 + Smoothed::kSize;
      case Kind::vwap: return 4;
      case Kind::donchian: return 2 * Window::size(n_);
      case Kind::step: return n_;
    }
    return 0;
  }

  // `day` restarts the VWAP when it changes.
  void push(double* state, const Bar& bar, std::int64_t day, double* out) const {
    switch (kind_) {
      case Kind::sma: out[0] = sma(state, bar.close); return;
      case Kind::ema: out[0] = formula::Smoothed::push(state, params_[0], 2.0 / (params_[0] + 1), bar.close); return;
      case Kind::rma: out[0] = formula::Smoothed::push(state, params_[0], 1.0 / params_[0], bar.close); return;
      case Kind::rsi: out[0] = rsi(state, bar.close); return;
      case Kind::macd: return macd(state, bar.close, out);
      case Kind::bollinger: return bollinger(state, bar.close, out);
      case Kind::atr: out[0] = atr(state, bar); return;
      case Kind::vwap: out[0] = vwap(state, bar, day); return;
      case Kind::donchian: return donchian(state, bar, out);
      case Kind::step:
        out[0] = step_(state, params_.data(), bar.open, bar.high, bar.low, bar.close, bar.volume, bar.at);
        return;
    }
  }

 private:
  // A window is kept for each series; the other averages keep two numbers.
  double max_period() const {
    return kind_ == Kind::sma || kind_ == Kind::bollinger || kind_ == Kind::donchian ? 5000 : 1'000'000;
  }

  void check() const {
    static constexpr std::array<std::size_t, 10> kParams{1, 1, 1, 1, 3, 2, 1, 0, 1, 0};
    const std::size_t expected = kParams[static_cast<std::size_t>(kind_)];
    if (params_.size() != expected)
      throw std::invalid_argument("takes " + std::to_string(expected) + " numbers, not " + std::to_string(params_.size()));
    const std::size_t periods = kind_ == Kind::bollinger ? 1 : params_.size();
    for (std::size_t i = 0; i < periods; ++i)
      if (!(params_[i] >= 1 && params_[i] <= max_period() && std::floor(params_[i]) == params_[i]))
        throw std::invalid_argument("a period is a whole number from 1 to " + std::to_string(std::lround(max_period())));
    if (kind_ == Kind::bollinger && !(params_[1] > 0 && std::isfinite(params_[1])))
      throw std::invalid_argument("the width is more than 0");
    if (kind_ == Kind::macd && !(params_[0] < params_[1]))
      throw std::invalid_argument("the fast period is less than the slow one");
  }

  // State: sum, window.
  double sma(double* s, double x) const {
    const double left = formula::Window::push(s + 1, n_, x);
    s[0] += x;
    s[0] -= left;
    return formula::Window::full(s + 1, n_) ? s[0] / params_[0] : kNoValue;
  }

  // State: started, last, mean gain, mean loss.
  double rsi(double* s, double x) const {
    const double change = x - std::exchange(s[1], x);
    if (std::exchange(s[0], 1.0) == 0) return kNoValue;
    const double weight = 1.0 / params_[0];
    const double gain = formula::Smoothed::push(s + 2, params_[0], weight, std::max(change, 0.0));
    const double loss = formula::Smoothed::push(s + 4, params_[0], weight, std::max(-change, 0.0));
    if (std::isnan(gain)) return kNoValue;
    return gain + loss > 0 ? 100.0 * gain / (gain + loss) : 0.0;
  }

  // State: count, fast, slow, signal.
  void macd(double* s, double x, double* out) const {
    using formula::Smoothed;
    const double skipped = params_[1] - params_[0];
    double fast = kNoValue;
    if (s[0] < skipped) s[0] += 1;
    else fast = Smoothed::push(s + 1, params_[0], 2.0 / (params_[0] + 1), x);
    const double slow = Smoothed::push(s + 3, params_[1], 2.0 / (params_[1] + 1), x);
    const double line = fast - slow;
    const double signal = std::isnan(slow) ? kNoValue : Smoothed::push(s + 5, params_[2], 2.0 / (params_[2] + 1), line);
    const bool shown = !std::isnan(signal);
    out[0] = shown ? line : kNoValue;
    out[1] = signal;
    out[2] = line - signal;
  }

  void bollinger(double* s, double x, double* out) const {
    using formula::Window;
    Window::push(s, n_, x);
    if (!Window::full(s, n_)) return fill(out);
    double sum = 0, squares = 0;
    Window::each(s, n_, [&](double y) { sum += y; });
    const double middle = sum / params_[0];
    Window::each(s, n_, [&](double y) { squares += (y - middle) * (y - middle); });
    const double spread = params_[1] * std::sqrt(squares / params_[0]);
    out[0] = middle + spread;
    out[1] = middle;
    out[2] = middle - spread;
  }

  // State: started, last close, mean range.
  double atr(double* s, const Bar& bar) const {
    const double last = std::exchange(s[1], bar.close);
    if (std::exchange(s[0], 1.0) == 0) return kNoValue;
    const double range = std::max({bar.high - bar.low, std::abs(bar.high - last), std::abs(bar.low - last)});
    return formula::Smoothed::push(s + 2, params_[0], 1.0 / params_[0], range);
  }

  // State: started, day, value, volume.
  static double vwap(double* s, const Bar& bar, std::int64_t day) {
    const auto now = static_cast<double>(day);
    if (s[0] == 0 || s[1] != now) s[2] = s[3] = 0;
    s[0] = 1;
    s[1] = now;
    s[2] += (bar.high + bar.low + bar.close) / 3.0 * bar.volume;
    s[3] += bar.volume;
    return s[3] > 0 ? s[2] / s[3] : kNoValue;
  }

  void donchian(double* s, const Bar& bar, double* out) const {
    using formula::Window;
    double* const lows = s + Window::size(n_);
    Window::push(s, n_, bar.high);
    Window::push(lows, n_, bar.low);
    if (!Window::full(s, n_)) return fill(out);
    double high = bar.high, low = bar.low;
    Window::each(s, n_, [&](double x) { high = std::max(high, x); });
    Window::each(lows, n_, [&](double x) { low = std::min(low, x); });
    out[0] = high;
    out[1] = (high + low) / 2.0;
    out[2] = low;
  }

  static void fill(double* out) { std::fill_n(out, kMaxOutputs, kNoValue); }

  Kind kind_;
  std::vector<double> params_;
  std::size_t n_ = 0;  // the window; of a step, the size of its state
  IndicatorStep step_ = nullptr;
};

}  // namespace qts
