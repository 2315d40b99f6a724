// The image of a series, and a file of images: what a market processor needs to continue after a restart.
//
//   QTSBARS1, CRC-32C of the rest (u32), count of series (u32), then each series:
//   symbol, timeframe (u32), open bar, bars, indicators (name, state, values); a text or a list begins
//   with its length (u32). Numbers are little endian, as in memory.
//
// Thread contract: plain values and pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "qts/bars.hpp"
#include "qts/journal.hpp"

namespace qts {

static_assert(std::endian::native == std::endian::little);

struct SeriesImage {
  struct IndicatorState {
    std::string name;
    std::vector<double> state, values;
  };
  std::string symbol;
  std::uint32_t timeframe = 0;
  BarBuilder::State open{};
  std::vector<Bar> bars;
  std::vector<IndicatorState> indicators;
};

namespace snapshot {

inline constexpr std::string_view kMagic = "QTSBARS1";

class Writer {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <class T>
  void put_list(const T& list) {
    put(static_cast<std::uint32_t>(list.size()));
    text_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(*list.data()));
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  template <class List>
  List get_list() {
    const auto count = get<std::uint32_t>();
    const char* from = take(count * sizeof(typename List::value_type));
    List list(count, typename List::value_type{});
    if (count != 0) std::memcpy(static_cast<void*>(list.data()), from, count * sizeof(typename List::value_type));
    return list;
  }
  bool done() const { return text_.empty(); }

 private:
  const char* take(std::size_t size) {
    if (size > text_.size()) throw std::invalid_argument("the snapshot is cut off");
    const char* from = text_.data();
    text_.remove_prefix(size);
    return from;
  }
  std::string_view text_;
};

inline std::uint32_t checksum(std::string_view text) { return crc32c(std::as_bytes(std::span(text.data(), text.size()))); }

}  // namespace snapshot

inline std::string encode_snapshot(std::span<const SeriesImage> images) {
  snapshot::Writer body;
  body.put(static_cast<std::uint32_t>(images.size()));
  for (const SeriesImage& image : images) {
    body.put_list(image.symbol);
    body.put(image.timeframe);
    body.put(image.open);
    body.put_list(image.bars);
    body.put(static_cast<std::uint32_t>(image.indicators.size()));
    for (const auto& each : image.indicators) {
      body.put_list(each.name);
      body.put_list(each.state);
      body.put_list(each.values);
    }
  }
  snapshot::Writer head;
  head.put(snapshot::checksum(body.text()));
  return std::string(snapshot::kMagic) + head.text() + body.text();
}

// Throws std::invalid_argument when the text is no snapshot, or damaged.
inline std::vector<SeriesImage> decode_snapshot(std::string_view text) {
  if (!text.starts_with(snapshot::kMagic)) throw std::invalid_argument("this is no snapshot of bars");
  snapshot::Reader in(text.substr(snapshot::kMagic.size()));
  const auto expected = in.get<std::uint32_t>();
  if (snapshot::checksum(text.substr(snapshot::kMagic.size() + sizeof expected)) != expected)
    throw std::invalid_argument("the snapshot is damaged: its checksum differs");
  std::vector<SeriesImage> images;
  for (auto count = in.get<std::uint32_t>(); count != 0; --count) {
    SeriesImage& image = images.emplace_back();
    image.symbol = in.get_list<std::string>();
    image.timeframe = in.get<std::uint32_t>();
    image.open = in.get<BarBuilder::State>();
    image.bars = in.get_list<std::vector<Bar>>();
    for (auto left = in.get<std::uint32_t>(); left != 0; --left) {
      auto& each = image.indicators.emplace_back();
      each.name = in.get_list<std::string>();
      each.state = in.get_list<std::vector<double>>();
      each.values = in.get_list<std::vector<double>>();
    }
  }
  if (!in.done()) throw std::invalid_argument("the snapshot has more bytes than it should");
  return images;
}

}  // namespace qts
