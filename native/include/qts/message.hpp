// Message: one market message of the router, 96 bytes of fixed layout.
//
// Thread contract: a plain value, used by one thread at a time.
// Invariant: trivially copyable, every byte a named field at a fixed offset, so that the same memory
// is a C++ struct, a numpy record and a record of a journal.
//
//   0  msg_type u8        producer_id u8     stream_number u16   symbol_id u32
//   8  sequence_number    counted by the producer over all its messages; stream_number over those
//                         of this type, modulo 65536
//  16  timestamp_ns       intended send time
//  24  processor_id u8    quantity_exponent i8    quantity_high u16    quantity_low u32
//  32  processing_ts_ns   40 stage1_entry_ns   48 stage1_exit_ns    56 processing_entry_ns
//  64  processing_exit_ns 72 stage2_entry_ns   80 stage2_exit_ns
//  88  price i64          in units of 10^-8
//
// Price: exact for KRW, and for coins with eight decimals, up to 92 billion.
// Quantity: a decimal, mantissa * 10^exponent with a 48-bit mantissa (14 digits): 0.00000001 coins
// and 40,000,000,000 coins are both exact.
// Timestamps are clock ticks inside the router; they are converted to nanoseconds where they leave it.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace qts {

inline constexpr std::int64_t kPriceScale = 100'000'000;
inline constexpr std::uint64_t kQuantityMantissaLimit = std::uint64_t{1} << 48;

struct Message {
  std::uint8_t msg_type = 0;
  std::uint8_t producer_id = 0;
  std::uint16_t stream_number = 0;
  std::uint32_t symbol_id = 0;
  std::uint64_t sequence_number = 0;
  std::uint64_t timestamp_ns = 0;
  std::uint8_t processor_id = 0;
  std::int8_t quantity_exponent = 0;
  std::uint16_t quantity_high = 0;
  std::uint32_t quantity_low = 0;
  std::uint64_t processing_ts_ns = 0;
  std::uint64_t stage1_entry_ns = 0;
  std::uint64_t stage1_exit_ns = 0;
  std::uint64_t processing_entry_ns = 0;
  std::uint64_t processing_exit_ns = 0;
  std::uint64_t stage2_entry_ns = 0;
  std::uint64_t stage2_exit_ns = 0;
  std::int64_t price = 0;

  std::uint64_t quantity_mantissa() const { return std::uint64_t{quantity_high} << 32 | quantity_low; }

  // The nearest double: for display and statistics, not for money.
  double quantity() const {
    return static_cast<double>(quantity_mantissa()) * std::pow(10.0, quantity_exponent);
  }

  // Returns false when digits were rounded off, or when the quantity does not fit (then it is unchanged).
  bool set_quantity(std::uint64_t mantissa, int exponent) {
    bool exact = true;
    while (mantissa >= kQuantityMantissaLimit) {
      const std::uint64_t digit = mantissa % 10;
      exact = exact && digit == 0;
      mantissa = mantissa / 10 + (digit >= 5 ? 1 : 0);
      ++exponent;
    }
    if (exponent < INT8_MIN || exponent > INT8_MAX) return false;
    quantity_exponent = static_cast<std::int8_t>(exponent);
    quantity_high = static_cast<std::uint16_t>(mantissa >> 32);
    quantity_low = static_cast<std::uint32_t>(mantissa);
    return exact;
  }

  friend bool operator==(const Message&, const Message&) = default;
};

// A field with its numpy format: '<u8' is eight bytes, unsigned, little endian.
struct MessageField {
  const char* name;
  const char* format;
  std::size_t offset;
};

inline constexpr std::array<MessageField, 18> kMessageFields{{
    {"msg_type", "u1", 0},
    {"producer_id", "u1", 1},
    {"stream_number", "<u2", 2},
    {"symbol_id", "<u4", 4},
    {"sequence_number", "<u8", 8},
    {"timestamp_ns", "<u8", 16},
    {"processor_id", "u1", 24},
    {"quantity_exponent", "i1", 25},
    {"quantity_high", "<u2", 26},
    {"quantity_low", "<u4", 28},
    {"processing_ts_ns", "<u8", 32},
    {"stage1_entry_ns", "<u8", 40},
    {"stage1_exit_ns", "<u8", 48},
    {"processing_entry_ns", "<u8", 56},
    {"processing_exit_ns", "<u8", 64},
    {"stage2_entry_ns", "<u8", 72},
    {"stage2_exit_ns", "<u8", 80},
    {"price", "<i8", 88},
}};

static_assert(sizeof(Message) == 96 && alignof(Message) == 8);
static_assert(std::is_trivially_copyable_v<Message> && std::is_standard_layout_v<Message>);
static_assert(std::has_unique_object_representations_v<Message>, "no hidden padding");
static_assert(offsetof(Message, msg_type) == 0 && offsetof(Message, producer_id) == 1);
static_assert(offsetof(Message, stream_number) == 2 && offsetof(Message, symbol_id) == 4);
static_assert(offsetof(Message, sequence_number) == 8 && offsetof(Message, timestamp_ns) == 16);
static_assert(offsetof(Message, processor_id) == 24 && offsetof(Message, quantity_exponent) == 25);
static_assert(offsetof(Message, quantity_high) == 26 && offsetof(Message, quantity_low) == 28);
static_assert(offsetof(Message, processing_ts_ns) == 32);
static_assert(offsetof(Message, stage1_entry_ns) == 40 && offsetof(Message, stage1_exit_ns) == 48);
static_assert(offsetof(Message, processing_entry_ns) == 56 && offsetof(Message, processing_exit_ns) == 64);
static_assert(offsetof(Message, stage2_entry_ns) == 72 && offsetof(Message, stage2_exit_ns) == 80);
static_assert(offsetof(Message, price) == 88);

}  // namespace qts
