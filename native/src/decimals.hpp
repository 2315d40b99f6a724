// Python's decimals as exact ones, and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "objects.hpp"
#include "qts/decimal_sum.hpp"

namespace qts {

// None: it has too many digits, or a place before the point is its last.
inline std::optional<ExactDecimal> read_decimal(nb::handle decimal) {
  const nb::object text = checked(PyObject_Str(decimal.ptr()));
  Py_ssize_t size = 0;
  const char* const found = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (found == nullptr) throw nb::python_error();
  return parse({found, static_cast<std::size_t>(size)});
}

// Makes decimals. Amounts repeat as prices do, so the last ones are kept.
class DecimalMaker {
 public:
  nb::object make(ExactDecimal number) {
    const auto low = static_cast<std::uint64_t>(number.coefficient) + static_cast<std::uint64_t>(number.decimals);
    Known& known = known_[(low * 0x9E3779B97F4A7C15ULL) >> 54];
    if (!known.decimal.is_valid() || known.number.coefficient != number.coefficient ||
        known.number.decimals != number.decimals) {
      const std::string text = to_text(number);
      known = {number, decimal_type_(nb::str(text.data(), text.size()))};
    }
    return known.decimal;
  }

 private:
  struct Known {
    ExactDecimal number;
    nb::object decimal;
  };
  std::vector<Known> known_{1024};
  const nb::object decimal_type_ = nb::module_::import_("decimal").attr("Decimal");
};

}  // namespace qts
