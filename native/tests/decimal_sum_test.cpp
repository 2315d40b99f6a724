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
  for (const char* text : {"", "-", "1E+3", "NaN", "1.2.3", "1234567890123456789012345678"}) CHECK_EQ(read(text), "none");
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
