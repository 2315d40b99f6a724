// Calls of a strategy while nothing waits: times, views and counts.
//
// One thread uses each, with the GIL.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "objects.hpp"

namespace qts {

// Times as datetimes: the one before and a step, if it is a whole number of seconds.
class Times {
 public:
  void begin(double at, nb::object now) {
    at_ = at;
    now_ = std::move(now);
  }

  const nb::object& now(double at) {
    const double step_s = at - at_;
    at_ = at;
    if (step_s == step_s_) return now_ = checked(PyNumber_Add(now_.ptr(), step_.ptr()));
    now_ = make_(at, utc_);
    if (step_s == std::trunc(step_s)) {
      step_ = delta_(0, step_s);
      step_s_ = step_s;
    }
    return now_;
  }

  // Lets a clock know the last time.
  void write(nb::handle clock) const {
    set(clock, known_at_name_, number(at_));
    set(clock, known_name_, now_);
  }

 private:
  double at_ = 0, step_s_ = 0;
  nb::object now_;
  const nb::module_ module_ = nb::module_::import_("datetime");
  const nb::object make_ = module_.attr("datetime").attr("fromtimestamp"), delta_ = module_.attr("timedelta");
  const nb::object utc_ = module_.attr("timezone").attr("utc");
  nb::object step_ = delta_();
  const nb::object known_at_name_ = name("known_at"), known_name_ = name("known");
};

// The type of views and its fields that change in a play.
struct ViewType {
  nb::object type;
  StructField now, equity;
  // Its other fields.
  const std::array<nb::object, 7> rest = {name("ticks"), name("positions"), name("account"), name("version"),
                                          name("books"), name("series"), name("orders")};

  void use(nb::handle found) {
    if (type.is(found)) return;
    now = StructField(found, "now");
    equity = StructField(found, "equity");
    type = nb::borrow(found);
  }
};

// Views of one play, which differ in their time and their equity. The last one is filled again while nothing refers to it.
class Views {
 public:
  Views(ViewType& type, nb::handle first) : type_(type), equity_(first.attr("equity")) {
    type_.use(first.type());
    for (std::size_t i = 0; i < rest_.size(); ++i) rest_[i] = get(first, type.rest[i]);
  }

  nb::handle at(const nb::object& now) {
    if (last_.is_valid() && Py_REFCNT(last_.ptr()) == 1) {
      type_.now.set(last_, now);
      if (!seen_.is(equity_)) type_.equity.set(last_, seen_ = equity_);
    } else {
      const auto& [ticks, held, account, version, books, series, orders] = rest_;
      seen_ = equity_;
      last_ = call(type_.type, {now.ptr(), ticks.ptr(), held.ptr(), account.ptr(), equity_.ptr(), version.ptr(), books.ptr(),
                                series.ptr(), orders.ptr()});
    }
    return last_;
  }

  void set_equity(const nb::object& equity) { equity_ = equity; }
  const nb::object& equity() const { return equity_; }
  const nb::object& positions() const { return rest_[1]; }
  nb::object cash() const { return rest_[2].attr("cash"); }

 private:
  ViewType& type_;
  nb::object equity_, seen_;  // of the next view and of the last one
  std::array<nb::object, 7> rest_;
  nb::object last_;
};

// Calls of a strategy: how many there were and which of them have returned nothing.
class CallCount {
 public:
  void begin() {
    before_ = calls_;
    returned_ = 0;
    at_ = NAN;
  }

  std::int64_t calls() const { return calls_; }
  void set_time(double at) { at_ = at; }

  // Returns what the call returned, if it is anything; else no object.
  nb::object call(nb::handle method, nb::handle first, nb::handle second) {
    const nb::object kept_first = nb::borrow(first), kept_second = nb::borrow(second);  // whatever the call does
    ++calls_;
    nb::object returned = call_method(method, first, second);
    if (is_true(returned)) return returned;
    ++returned_;
    return nb::object();
  }

  // Adds the calls since `begin` to those of `run`, and sets the clock, if there is one, to the last time.
  void write(nb::handle run, nb::handle clock) const {
    if (clock.is_valid() && !std::isnan(at_)) qts::set(clock, at_name_, number(at_));
    const auto before = nb::cast<std::int64_t>(get(run, calls_name_));
    qts::set(run, calls_name_, nb::int_(before + calls_ - before_));
    if (returned_ == 0) return;
    qts::set(run, returned_name_, nb::int_(before + returned_));
    qts::set(run, errors_name_, zero_);
  }

 private:
  std::int64_t calls_ = 0, before_ = 0, returned_ = 0;  // since the start, at `begin`, and since then
  double at_ = NAN;
  const nb::object calls_name_ = name("calls"), returned_name_ = name("returned"), errors_name_ = name("errors_in_a_row");
  const nb::object at_name_ = name("at"), zero_ = nb::int_(0);
};

// Runs `work`, then `end`, also where `work` raises.
template <class Work, class End>
nb::object and_then(Work work, End end) {
  try {
    nb::object found = work();
    end();
    return found;
  } catch (...) {
    end();
    throw;
  }
}

}  // namespace qts
