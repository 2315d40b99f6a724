// Equity of an account while only prices change: the decimal and the doubles that Python computes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "decimals.hpp"

namespace qts {

struct Worth {
  nb::object equity;          // a Decimal
  double value = 0, invested = 0;  // the equity, and the value of the positions in it
};

// One thread uses it, with the GIL. Positions of symbols that have a number may change their price.
class PositionWorth {
 public:
  // Numbers the symbols; there may be more than before.
  void number_symbols(const std::vector<nb::object>& symbols) {
    for (std::size_t i = held_.size(); i < symbols.size(); ++i) numbers_[symbols[i]] = nb::int_(i);
    held_.resize(symbols.size());
  }

  bool has_any() const { return has_any_; }

  // Takes positions, cash and last prices: `last` has that of a numbered symbol, or none where it is in `ticks`. Not exact:
  // Python has to compute.
  template <class Last>
  void load(nb::handle positions, nb::handle cash, nb::handle ticks, Last last) {
    sum_.clear();
    for (const std::size_t each : loaded_) held_[each].is_held = false;
    loaded_.clear();
    has_any_ = nb::len(positions) > 0;
    is_exact_ = has_any_ && nb::isinstance<nb::dict>(positions);
    if (!is_exact_) return;
    take_cash(cash);
    for (auto [symbol, position] : nb::borrow<nb::dict>(positions)) {
      if (!is_exact_) return;
      is_exact_ = take(symbol, position, ticks, last);
    }
  }

  void load(nb::handle positions, nb::handle cash, nb::handle ticks) {
    load(positions, cash, ticks, [](std::size_t) { return std::optional<double>(); });
  }

  void set_price(std::size_t number, double price) {
    Held& held = held_[number];
    if (!held.is_held || held.price == price || !is_exact_) return;
    sum_.remove(held.part);
    is_exact_ = put(held, price);
  }

  // The equity at these prices. Where it is not exact, `reprice` computes it after `write_ticks`.
  template <class Write>
  Worth value(nb::handle reprice, Write write_ticks) {
    if (auto found = exact()) return std::move(*found);
    write_ticks();
    const nb::object found = checked(PyObject_CallNoArgs(reprice.ptr()));
    return {found[0], nb::cast<double>(found[1]), nb::cast<double>(found[2])};
  }

 private:
  std::optional<Worth> exact() {
    if (!is_exact_) return std::nullopt;
    const auto invested = sum_.total();
    const auto equity = invested ? add(cash_, *invested) : std::nullopt;
    if (!equity) return std::nullopt;
    return Worth{decimals_.make(*equity), nearest(*equity), nearest(*invested)};
  }

  struct Held {
    nb::object position;  // whose quantity this is
    std::optional<ExactDecimal> quantity;
    ExactDecimal part;
    nb::object priced;  // the position whose value at the price is the part
    double price = 0;
    bool is_held = false;
  };

  void take_cash(nb::handle cash) {
    if (!cash.is(cash_object_)) {
      const auto found = read_decimal(cash);
      cash_object_ = nb::borrow(cash);
      cash_is_exact_ = found.has_value();
      cash_ = found.value_or(ExactDecimal());
    }
    is_exact_ = cash_is_exact_;
  }

  template <class Last>
  bool take(nb::handle symbol, nb::handle position, nb::handle ticks, Last known) {
    PyObject* const number = PyDict_GetItemWithError(numbers_.ptr(), symbol.ptr());
    if (number == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      const auto price = price_in(ticks, symbol);
      Held other;
      other.quantity = read_decimal(get(position, quantity_name_));
      return price && put(other, *price);
    }
    const auto index = nb::cast<std::size_t>(nb::handle(number));
    auto last = known(index);
    if (!last) last = price_in(ticks, symbol);
    if (!last) return false;
    Held& held = held_[index];
    if (!held.position.is(position)) {
      held.quantity = read_decimal(get(position, quantity_name_));
      held.position = nb::borrow(position);
    }
    held.is_held = true;
    loaded_.push_back(index);
    if (held.priced.is(position) && held.price == *last && *last > 0) {
      sum_.add(held.part);
      return true;
    }
    held.priced.reset();
    if (!put(held, *last)) return false;
    held.priced = held.position;
    return true;
  }

  // The price of the last tick of a symbol; none: it has no tick, or a price of another type.
  std::optional<double> price_in(nb::handle ticks, nb::handle symbol) const {
    PyObject* const tick = PyDict_GetItemWithError(ticks.ptr(), symbol.ptr());
    if (tick == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      return std::nullopt;
    }
    const nb::object price = get(tick, price_name_);
    if (!PyFloat_CheckExact(price.ptr())) return std::nullopt;
    return PyFloat_AsDouble(price.ptr());
  }

  bool put(Held& held, double price) {
    const auto exact = shortest(price);
    if (!exact || !held.quantity) return false;
    const auto part = DecimalSum::product(*exact, *held.quantity);
    if (!part) return false;
    held.price = price;
    held.part = *part;
    sum_.add(*part);
    return true;
  }

  nb::dict numbers_;
  std::vector<Held> held_;
  std::vector<std::size_t> loaded_;  // numbers of the symbols that are held
  DecimalSum sum_;
  ExactDecimal cash_;
  nb::object cash_object_;
  DecimalMaker decimals_;
  bool has_any_ = false, is_exact_ = false, cash_is_exact_ = false;
  const nb::object price_name_ = name("price"), quantity_name_ = name("quantity");
};

}  // namespace qts
