#include "qts/decimal_sum.hpp"

#include <string>

#include "harness.hpp"

namespace {

std::string written(double price) {
  const auto found = qts::shortest(price);
  return found ? qts::to_text(*found) : "none";
}

std::string read(const char* text) {
  const auto found = qts::parse(text);
  return found ? qts::to_text(*found) : "none";
}

}  // namespace

TEST(decimal_of_a_price_is_the_one_that_python_writes) {
  CHECK_EQ(written(9990.0), "9990.0");
  CHECK_EQ(written(0.1), "0.1");
  CHECK_EQ(written(0.00005), "0.00005");
  CHECK_EQ(written(143250500.5), "143250500.5");
  CHECK_EQ(written(0.1 + 0.2), "none");  // 0.30000000000000004 has 17 digits
  CHECK_EQ(written(1e16), "none");
  CHECK_EQ(written(0.0), "none");
  CHECK_EQ(written(-1.0), "none");
}

TEST(decimal_is_read_with_all_its_places) {
  CHECK_EQ(read("10"), "10");
  CHECK_EQ(read("-0.50"), "-0.50");
  CHECK_EQ(read("0.00012345"), "0.00012345");
  CHECK_EQ(read("1E-8"), "0.00000001");
  CHECK_EQ(read("-1.20E-7"), "-0.000000120");
  for (const char* text : {"", "-", "1E+3", "1E-", "1E-123", "1E-99", "1E-a", "E-8", "NaN", "1.2.3", "1234567890123456789012345678"}) CHECK_EQ(read(text), "none");
}

TEST(decimal_sum_has_the_most_places_of_its_parts) {
  qts::DecimalSum sum;
  const auto part = [](double price, const char* quantity) {
    return *qts::DecimalSum::product(*qts::shortest(price), *qts::parse(quantity));
  };
  sum.add(part(9990.0, "10"));
  CHECK_EQ(qts::to_text(*sum.total()), "99900.0");
  sum.add(part(0.25, "1.50"));
  CHECK_EQ(qts::to_text(*sum.total()), "99900.3750");
  CHECK_EQ(qts::to_text(*qts::add(*sum.total(), *qts::parse("-100000"))), "-99.6250");
  sum.remove(part(0.25, "1.50"));
  CHECK_EQ(qts::to_text(*sum.total()), "99900.0");
  CHECK_EQ(*qts::to_double(*sum.total()), 99900.0);
}

TEST(decimal_with_too_many_digits_is_left_to_python) {
  const auto most = qts::parse("999999999999999999999999999");
  CHECK(most.has_value());
  CHECK(!qts::to_double(*most).has_value());
  CHECK(!qts::DecimalSum::product(*qts::shortest(9990.0), *most).has_value());
  CHECK(!qts::add(*most, *qts::parse("0.5")).has_value());
  CHECK(!qts::DecimalSum::product(*qts::shortest(1.5), *qts::parse("-2")).has_value());
}

TEST(decimal_product_has_the_places_of_both) {
  const auto product = [](const char* one, const char* other) {
    const auto found = qts::multiply(*qts::parse(one), *qts::parse(other));
    return found ? qts::to_text(*found) : "none";
  };
  CHECK_EQ(product("0.25", "-1.50"), "-0.3750");
  CHECK_EQ(product("0", "-999999999999999999999999999"), "0");
  CHECK_EQ(product("999999999999999999999999999", "1.0"), "none");
  CHECK_EQ(product("100000000000000000000", "10000000"), "1000000000000000000000000000");
  CHECK_EQ(product("100000000000000000000", "100000000"), "none");
  CHECK_EQ(product("99999999999999", "99999999999999"), "none");
}

TEST(nearest_double_is_that_of_the_text) {
  const auto nearest = [](const char* text) { return qts::nearest(*qts::parse(text)); };
  CHECK_EQ(nearest("1000000000.000000000"), 1e9);
  CHECK_EQ(nearest("-0.000000000000000000"), 0.0);
  CHECK_EQ(nearest("123456789012345.678901234"), 123456789012345.678901234);
  CHECK_EQ(nearest("-999999999999999999999999999"), -999999999999999999999999999.0);
  CHECK_EQ(nearest("9007199254740993"), 9007199254740992.0);
}

TEST(packed_decimal_is_the_same_or_none) {
  CHECK_EQ(qts::to_text(qts::unpacked(*qts::pack(*qts::parse("-12.50")))), "-12.50");
  CHECK(!qts::pack(*qts::parse("9223372036854775808")).has_value());
}
