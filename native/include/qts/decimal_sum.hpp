// Value of positions in exact decimals, as whole numbers of a power of ten.
//
//   shortest    the decimal that a price is written as
//   parse       a decimal from its text
//   nearest     the double that is read from its text
//   DecimalSum  the sum of prices times quantities
//
// Thread contract: one thread owns a DecimalSum; the functions are pure.
// Invariant: what is returned is what Python's decimal module computes, with the same number of decimals. Where its 28
// digits might not be enough, nothing is returned.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace qts {

__extension__ typedef __int128 Wide;

struct ExactDecimal {  // coefficient / 10^decimals
  Wide coefficient = 0;
  int decimals = 0;
};

struct PackedDecimal {  // the same in half the space
  std::int64_t coefficient = 0;
  std::int32_t decimals = 0;
};

constexpr int kMostDecimals = 22;                      // 10^22 is the largest power of ten that is a double
constexpr std::int64_t kMostDigits = 999'999'999'999'999;  // 15 digits: as many as every double keeps
constexpr int kMostPriceDecimals = 12, kMostPlaces = 27;

inline constexpr auto kTens = [] {
  std::array<Wide, kMostPlaces + 1> tens{1};
  for (std::size_t i = 1; i < tens.size(); ++i) tens[i] = tens[i - 1] * 10;
  return tens;
}();

inline double ten_to(int places) { return static_cast<double>(kTens[static_cast<std::size_t>(places)]); }

// The decimal that Python writes a positive price as: at least one decimal. Decimals of 15 digits that read as the same
// double are equal, so the first one that reads as the price is the shortest one, which Python writes.
inline std::optional<ExactDecimal> shortest(double price) {
  if (!(price > 0)) return std::nullopt;
  for (int decimals = 1; decimals <= kMostPriceDecimals; ++decimals) {
    const double power = ten_to(decimals), whole = std::nearbyint(price * power);
    if (!(whole <= static_cast<double>(kMostDigits))) return std::nullopt;
    if (whole / power == price) return ExactDecimal{static_cast<std::int64_t>(whole), decimals};
  }
  return std::nullopt;
}

// None: it has too many digits.
inline std::optional<PackedDecimal> pack(ExactDecimal number) {
  const auto low = static_cast<std::int64_t>(number.coefficient);
  if (low != number.coefficient) return std::nullopt;
  return PackedDecimal{low, number.decimals};
}

inline ExactDecimal unpacked(PackedDecimal number) { return {number.coefficient, number.decimals}; }

// The places after a text's E-; none: it is no such text.
inline std::optional<int> parse_places(std::string_view text) {
  if (text.size() < 3 || text.size() > 4 || text.substr(0, 2) != "E-") return std::nullopt;
  int places = 0;
  for (const char each : text.substr(2)) {
    if (each < '0' || each > '9') return std::nullopt;
    places = places * 10 + (each - '0');
  }
  return places;
}

// A text of digits, perhaps with a sign, a point and an E with places after the point.
inline std::optional<ExactDecimal> parse(std::string_view text) {
  ExactDecimal found;
  if (const auto end = text.find('E'); end != text.npos) {
    const auto places = parse_places(text.substr(end));
    if (!places) return std::nullopt;
    found.decimals = *places;
    text = text.substr(0, end);
  }
  const bool is_negative = !text.empty() && text[0] == '-';
  if (is_negative) text.remove_prefix(1);
  bool after_point = false;
  int digits = 0;
  for (const char each : text) {
    if (each == '.' && !after_point) {
      after_point = true;
    } else if (each >= '0' && each <= '9' && digits < kMostPlaces) {
      found.coefficient = found.coefficient * 10 + (each - '0');
      ++digits;
      found.decimals += after_point ? 1 : 0;
    } else {
      return std::nullopt;
    }
  }
  if (digits == 0 || found.decimals > kMostDecimals) return std::nullopt;
  if (is_negative) found.coefficient = -found.coefficient;
  return found;
}

// The number with more decimals; none: it has too many digits.
inline std::optional<ExactDecimal> with_decimals(ExactDecimal number, int decimals) {
  const int added = decimals - number.decimals;
  if (added > kMostPlaces) return std::nullopt;
  const auto more = static_cast<std::size_t>(added);
  const Wide most = kTens[kMostPlaces - more];
  if (number.coefficient > most || number.coefficient < -most) return std::nullopt;
  return ExactDecimal{number.coefficient * kTens[more], decimals};
}

inline std::optional<ExactDecimal> add(ExactDecimal one, ExactDecimal other) {
  const int decimals = one.decimals > other.decimals ? one.decimals : other.decimals;
  const auto first = with_decimals(one, decimals), second = with_decimals(other, decimals);
  if (!first || !second) return std::nullopt;
  return ExactDecimal{first->coefficient + second->coefficient, decimals};
}

// None: it has too many digits.
inline std::optional<ExactDecimal> multiply(ExactDecimal one, ExactDecimal other) {
  constexpr Wide small = Wide{1} << 62, most = kTens[kMostPlaces];
  const Wide first = one.coefficient < 0 ? -one.coefficient : one.coefficient;
  const Wide second = other.coefficient < 0 ? -other.coefficient : other.coefficient;
  if (first > small || second > small) {
    if (second != 0 && first > most / second) return std::nullopt;
  } else if (first * second > most) {
    return std::nullopt;
  }
  return ExactDecimal{one.coefficient * other.coefficient, one.decimals + other.decimals};
}

inline std::string to_text(ExactDecimal number) {
  constexpr Wide most = Wide{1} << 62;
  const auto places = static_cast<std::size_t>(number.decimals);
  std::string text;  // from the last digit to the first
  const auto put = [&](int digit) {
    text.push_back(static_cast<char>('0' + digit));
    if (text.size() == places) text.push_back('.');
  };
  Wide left = number.coefficient < 0 ? -number.coefficient : number.coefficient;
  for (; left > most; left /= 10) put(static_cast<int>(left % 10));
  for (auto rest = static_cast<std::uint64_t>(left); rest != 0; rest /= 10) put(static_cast<int>(rest % 10));
  while (text.size() < places) put(0);
  if (text.empty() || text.back() == '.') put(0);
  if (number.coefficient < 0) text.push_back('-');
  std::reverse(text.begin(), text.end());
  return text;
}

// The nearest double: one division of numbers that are exact as doubles. None: the coefficient is not.
inline std::optional<double> to_double(ExactDecimal number) {
  constexpr Wide most = Wide{1} << 53;
  if (number.coefficient > most || number.coefficient < -most || number.decimals > kMostDecimals) return std::nullopt;
  return static_cast<double>(number.coefficient) / ten_to(number.decimals);
}

// The nearest double of any number.
inline double nearest(ExactDecimal number) {
  if (const auto found = to_double(number)) return *found;
  if (auto small = pack(number)) {
    while (small->decimals > 0 && small->coefficient % 10 == 0) {
      small->coefficient /= 10;
      --small->decimals;
    }
    if (const auto found = to_double(unpacked(*small))) return *found;
  }
  // Without a point, which depends on the locale.
  const std::string text = to_text({number.coefficient, 0}) + "e-" + std::to_string(number.decimals);
  return std::strtod(text.c_str(), nullptr);
}

// Sum of positive products. None of the sums on the way to it has more digits than it has.
class DecimalSum {
 public:
  // A price times a quantity; none: it is not positive, or has too many digits.
  static std::optional<ExactDecimal> product(ExactDecimal price, ExactDecimal quantity) {
    const int decimals = price.decimals + quantity.decimals;
    if (price.coefficient <= 0 || quantity.coefficient <= 0 || decimals > kMostDecimals) return std::nullopt;
    if (price.coefficient > kTens[kMostPlaces] / quantity.coefficient) return std::nullopt;
    return ExactDecimal{price.coefficient * quantity.coefficient, decimals};
  }

  void clear() { *this = DecimalSum(); }

  void add(ExactDecimal part) {
    const auto place = static_cast<std::size_t>(part.decimals);
    parts_[place] += part.coefficient;
    ++counts_[place];
    if (part.decimals > highest_) highest_ = part.decimals;
  }

  void remove(ExactDecimal part) {
    const auto place = static_cast<std::size_t>(part.decimals);
    parts_[place] -= part.coefficient;
    --counts_[place];
    while (highest_ > 0 && counts_[static_cast<std::size_t>(highest_)] == 0) --highest_;
  }

  // None: it has too many digits.
  std::optional<ExactDecimal> total() const {
    ExactDecimal sum{0, highest_};
    for (int decimals = highest_; decimals >= 0; --decimals) {
      const auto place = static_cast<std::size_t>(decimals);
      if (counts_[place] == 0) continue;
      const auto part = with_decimals({parts_[place], decimals}, highest_);
      if (!part) return std::nullopt;
      sum.coefficient += part->coefficient;
      if (sum.coefficient > kTens[kMostPlaces]) return std::nullopt;
    }
    return sum;
  }

 private:
  std::array<Wide, kMostDecimals + 1> parts_{};  // by their decimals
  std::array<int, kMostDecimals + 1> counts_{};
  int highest_ = 0;  // decimals of any part
};

}  // namespace qts
