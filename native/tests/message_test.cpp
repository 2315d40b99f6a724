#include "qts/message.hpp"

#include <cstring>
#include <string>

#include "harness.hpp"

using qts::Message;

namespace {
std::size_t bytes_of(const std::string& format) { return static_cast<std::size_t>(format.back() - '0'); }
}  // namespace

TEST(message_fields_cover_every_byte_once) {
  std::size_t next = 0;
  for (const auto& field : qts::kMessageFields) {
    CHECK_EQ(field.offset, next);
    next = field.offset + bytes_of(field.format);
  }
  CHECK_EQ(next, sizeof(Message));
}

TEST(message_fields_are_at_the_listed_offsets) {
  unsigned char raw[sizeof(Message)] = {};
  raw[0] = 7;
  raw[4] = 9;
  raw[24] = 3;
  raw[88] = 5;
  Message message;
  std::memcpy(&message, raw, sizeof raw);
  CHECK_EQ(int{message.msg_type}, 7);
  CHECK_EQ(message.symbol_id, 9u);
  CHECK_EQ(int{message.processor_id}, 3);
  CHECK_EQ(message.price, 5);
}

TEST(message_holds_the_smallest_and_the_largest_quantities_exactly) {
  Message message;
  CHECK(message.set_quantity(1, -8));
  CHECK_EQ(message.quantity_mantissa(), 1u);
  CHECK_EQ(int{message.quantity_exponent}, -8);
  // 40,000,000,000 coins counted in 10^-8.
  CHECK(message.set_quantity(4'000'000'000'000'000'000u, -8));
  CHECK_OP(message.quantity_mantissa(), <, qts::kQuantityMantissaLimit);
  CHECK_EQ(message.quantity(), 4e10);
  CHECK(message.set_quantity(qts::kQuantityMantissaLimit - 1, 0));
  CHECK_EQ(message.quantity_mantissa(), qts::kQuantityMantissaLimit - 1);
}

TEST(set_quantity_reports_rounding) {
  Message message;
  CHECK(!message.set_quantity(qts::kQuantityMantissaLimit + 1, 0));
  const double limit = static_cast<double>(qts::kQuantityMantissaLimit);
  CHECK_LE(std::abs(message.quantity() - limit) / limit, 1e-13);
  const Message before = message;
  CHECK(!message.set_quantity(5, 200));
  CHECK(message == before);
}
