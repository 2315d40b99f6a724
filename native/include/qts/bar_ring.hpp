// BarRing: the last bars of a series, packed to about a third of their size.
//
// Bars are appended to chunks of 64; the oldest chunk is dropped once the others hold enough. Inside a chunk
// a bar is the difference to the one before it: prices and volume as whole numbers of 10^-digits, the value
// as the difference to close * volume, all as variable-length integers (7 bits a byte). A chunk has the
// digits that its first bar needs; a bar that needs more begins a new chunk, and one that is no decimal of
// at most 8 digits a chunk of plain bars.
//
// Thread contract: one caller at a time.
// Invariant: what is read is bit for bit what was pushed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "qts/bars.hpp"

namespace qts {

// A double as a whole number of 10^-digits, where that is exact.
namespace decimal {

inline constexpr std::array<double, 9> kPowers{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8};
inline constexpr std::uint8_t kNone = 9;     // more digits than a chunk packs
inline constexpr double kLimit = 4.5e15;     // sums and differences of such numbers are exact

inline double value(std::int64_t units, std::uint8_t digits) { return static_cast<double>(units) / kPowers[digits]; }

inline bool fits(double x, std::uint8_t digits) {
  const double scaled = x * kPowers[digits];
  return std::abs(scaled) < kLimit && value(std::llround(scaled), digits) == x && !std::signbit(x);
}

inline std::int64_t units(double x, std::uint8_t digits) { return std::llround(x * kPowers[digits]); }

// The least digits, from `from` on, that fit.
inline std::uint8_t digits(double x, std::uint8_t from) {
  while (from < kNone && !fits(x, from)) ++from;
  return from;
}

}  // namespace decimal

class BarRing {
 public:
  explicit BarRing(std::size_t capacity) : capacity_(capacity) {}

  void push(const Bar& bar) {
    // A new chunk begins with the digits that are needed now.
    Chunk* chunk = chunks_.empty() || chunks_.back().count == kChunk ? nullptr : &chunks_.back();
    std::uint8_t price = chunk == nullptr ? 0 : chunk->price_digits, volume = chunk == nullptr ? 0 : chunk->volume_digits;
    for (const double each : {bar.open, bar.high, bar.low, bar.close}) price = decimal::digits(each, price);
    volume = decimal::digits(bar.volume, volume);
    if (chunk == nullptr || chunk->price_digits != price || chunk->volume_digits != volume)
      chunk = &begin_chunk(price, volume);
    if (chunk->is_plain()) append(chunk->bytes, &bar, sizeof bar);
    else pack(*chunk, bar);
    last_ = bar;
    ++chunk->count;
    ++total_;
  }

  std::size_t size() const { return std::min(total_, capacity_); }
  std::size_t bytes() const {
    std::size_t sum = chunks_.capacity() * sizeof(Chunk);
    for (const Chunk& chunk : chunks_) sum += chunk.bytes.capacity();
    return sum;
  }

  // Calls with the last bars, at most `most`, oldest first.
  template <class Call>
  void each(std::size_t most, Call&& call) const {
    std::size_t skipped = total_ - std::min(most, size());
    for (const Chunk& chunk : chunks_) {
      if (skipped >= chunk.count) {
        skipped -= chunk.count;
        continue;
      }
      const std::uint8_t* from = chunk.bytes.data();
      Bar bar;
      for (std::size_t i = 0; i < chunk.count; ++i) {
        bar = unpack(chunk, from, bar);
        if (skipped == 0) call(bar);
        else --skipped;
      }
    }
  }

  void clear() {
    chunks_.clear();
    total_ = 0;
  }

 private:
  static constexpr std::size_t kChunk = 64;
  using Bytes = std::vector<std::uint8_t>;

  struct Chunk {
    Bytes bytes;
    std::uint8_t price_digits, volume_digits;
    std::uint8_t count = 0;

    bool is_plain() const { return price_digits == decimal::kNone || volume_digits == decimal::kNone; }
    bool is_whole() const { return price_digits == 0 && volume_digits == 0; }
  };

  Chunk& begin_chunk(std::uint8_t price, std::uint8_t volume) {
    if (!chunks_.empty()) chunks_.back().bytes.shrink_to_fit();
    while (!chunks_.empty() && total_ - chunks_.front().count >= capacity_) {
      total_ -= chunks_.front().count;
      chunks_.erase(chunks_.begin());
    }
    last_ = Bar{};
    chunks_.push_back({{}, price, volume});
    return chunks_.back();
  }

  // The first bar of a chunk is the difference to an empty one.
  void pack(Chunk& chunk, const Bar& bar) const {
    const auto units = [&](double price) { return decimal::units(price, chunk.price_digits); };
    const std::int64_t open = units(bar.open), close = units(bar.close), volume = decimal::units(bar.volume, chunk.volume_digits);
    put(chunk.bytes, bar.at - last_.at);
    put_signed(chunk.bytes, open - units(last_.close));
    put_signed(chunk.bytes, close - open);
    put_signed(chunk.bytes, units(bar.high) - std::max(open, close));
    put_signed(chunk.bytes, std::min(open, close) - units(bar.low));
    put_signed(chunk.bytes, volume);
    const double expected = bar.close * bar.volume;
    const bool is_near = chunk.is_whole() && decimal::fits(bar.value, 0) && std::abs(expected) < decimal::kLimit;
    put(chunk.bytes, std::uint64_t{bar.ticks} << 1 | (is_near ? 1 : 0));
    if (is_near) put_signed(chunk.bytes, decimal::units(bar.value, 0) - static_cast<std::int64_t>(expected));
    else append(chunk.bytes, &bar.value, sizeof bar.value);
  }

  static Bar unpack(const Chunk& chunk, const std::uint8_t*& from, const Bar& last) {
    Bar bar;
    if (chunk.is_plain()) {
      std::memcpy(&bar, from, sizeof bar);
      from += sizeof bar;
      return bar;
    }
    const auto price = [&](std::int64_t units) { return decimal::value(units, chunk.price_digits); };
    bar.at = last.at + static_cast<std::uint32_t>(get(from));
    const std::int64_t open = decimal::units(last.close, chunk.price_digits) + get_signed(from), close = open + get_signed(from);
    const std::int64_t high = std::max(open, close) + get_signed(from), low = std::min(open, close) - get_signed(from);
    bar.open = price(open), bar.high = price(high), bar.low = price(low), bar.close = price(close);
    bar.volume = decimal::value(get_signed(from), chunk.volume_digits);
    const std::uint64_t ticks = get(from);
    bar.ticks = static_cast<std::uint32_t>(ticks >> 1);
    if ((ticks & 1) != 0) {
      bar.value = static_cast<double>(static_cast<std::int64_t>(bar.close * bar.volume) + get_signed(from));
    } else {
      std::memcpy(&bar.value, from, sizeof bar.value);
      from += sizeof bar.value;
    }
    return bar;
  }

  static void append(Bytes& bytes, const void* memory, std::size_t size) {
    const auto* from = static_cast<const std::uint8_t*>(memory);
    bytes.insert(bytes.end(), from, from + size);
  }
  static void put(Bytes& bytes, std::uint64_t number) {
    for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<std::uint8_t>(number | 0x80));
    bytes.push_back(static_cast<std::uint8_t>(number));
  }
  static void put_signed(Bytes& bytes, std::int64_t number) {
    put(bytes, static_cast<std::uint64_t>(number) << 1 ^ static_cast<std::uint64_t>(number >> 63));
  }
  static std::uint64_t get(const std::uint8_t*& from) {
    std::uint64_t number = 0;
    for (unsigned shift = 0;; shift += 7) {
      const std::uint8_t byte = *from++;
      number |= std::uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return number;
    }
  }
  static std::int64_t get_signed(const std::uint8_t*& from) {
    const std::uint64_t number = get(from);
    return static_cast<std::int64_t>(number >> 1 ^ (~(number & 1) + 1));
  }

  std::size_t capacity_;
  std::size_t total_ = 0;  // bars in the chunks
  Bar last_{};             // of the last chunk; empty when it has none
  std::vector<Chunk> chunks_;
};

}  // namespace qts
