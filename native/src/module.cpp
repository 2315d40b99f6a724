// qts._native: the module, with the bindings of the histogram, the ring and the clock.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "qts/clock.hpp"
#include "qts/histogram.hpp"
#include "qts/stall_floor.hpp"
#include "qts/message.hpp"
#include "qts/ring.hpp"

namespace {

using Numbers = qts::Ring<std::uint64_t>;
template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void record_unsigned(qts::Histogram& histogram, Array<std::uint64_t> values) {
  for (std::size_t i = 0; i < values.size(); ++i) histogram.record(values.data()[i]);
}

void record_signed(qts::Histogram& histogram, Array<std::int64_t> values) {
  const std::int64_t* first = values.data();
  if (std::any_of(first, first + values.size(), [](std::int64_t value) { return value < 0; }))
    throw nb::value_error("a histogram takes no negative values");
  for (std::size_t i = 0; i < values.size(); ++i) histogram.record(static_cast<std::uint64_t>(first[i]));
}

std::uint64_t percentile(const qts::Histogram& histogram, double percent) {
  if (!(percent >= 0 && percent <= 100)) throw nb::value_error("percent must be between 0 and 100");
  return histogram.percentile(percent);
}

std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> buckets(const qts::Histogram& histogram) {
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> rows;
  histogram.each([&](qts::Histogram::Bucket bucket) { rows.emplace_back(bucket.low, bucket.high, bucket.count); });
  return rows;
}

nb::object try_pop(Numbers& ring) {
  std::uint64_t item = 0;
  return ring.try_pop(item) ? nb::object(nb::int_(item)) : nb::none();
}

std::vector<std::uint64_t> pop_many(Numbers& ring, std::size_t max) {
  std::vector<std::uint64_t> items(std::min(max, ring.capacity()));
  items.resize(ring.try_pop_many(std::span(items)));
  return items;
}

std::size_t claim_and_commit(Numbers& ring, const std::vector<std::uint64_t>& items) {
  const auto run = ring.claim(items.size());
  std::copy_n(items.begin(), run.size(), run.begin());
  ring.commit(run.size());
  return run.size();
}

std::vector<std::uint64_t> peek(Numbers& ring, std::size_t max) {
  const auto run = ring.peek(max);
  std::vector<std::uint64_t> items;
  for (const std::uint64_t item : run) items.push_back(item);
  return items;
}

void release(Numbers& ring, std::size_t count) {
  if (count > ring.peek(count).size()) throw nb::value_error("count must not be more than peek returned");
  ring.release(count);
}

nb::dict stall_floor(double seconds) {
  if (!(seconds > 0 && seconds <= 3600)) throw nb::value_error("seconds must be more than 0 and at most 3600");
  qts::StallFloor floor;
  {
    const nb::gil_scoped_release released;
    floor = qts::stall_floor(static_cast<std::uint64_t>(seconds * 1e9));
  }
  nb::dict report;
  report["duration_ns"] = floor.duration_ns;
  report["over_1us"] = floor.over_1us;
  report["over_20us"] = floor.over_20us;
  report["longest_ns"] = floor.longest_ns;
  report["share_lost"] = floor.share_lost;
  return report;
}

nb::list message_fields() {
  nb::list fields;
  for (const auto& field : qts::kMessageFields) fields.append(nb::make_tuple(field.name, field.format, field.offset));
  return fields;
}

void bind_histogram(nb::module_& m) {
  nb::class_<qts::Histogram>(m, "Histogram",
                             "Counts of whole numbers from 0 to 2**42, percentiles within 0.1 %. Any thread may record.")
      .def(nb::init<>())
      .def("record", &qts::Histogram::record, "value"_a, "Count one value.")
      .def("record_many", &record_unsigned, "values"_a.noconvert(), "Count an array of uint64 or int64.")
      .def("record_many", &record_signed, "values"_a.noconvert())
      .def("merge", &qts::Histogram::merge, "other"_a, "Add the counts of another histogram.")
      .def("percentile", &percentile, "percent"_a, "Return the value of nearest rank; 0 when empty.")
      .def("buckets", &buckets, "(low, high, count) of each bucket in use, high inclusive, in rising order.")
      .def_prop_ro("count", &qts::Histogram::count, "How many values were recorded.")
      .def_prop_ro("sum", &qts::Histogram::sum, "Their exact sum, modulo 2**64.")
      .def_prop_ro("min", &qts::Histogram::min, "The exact least value; 0 when empty.")
      .def_prop_ro("max", &qts::Histogram::max, "The exact greatest value; 0 when empty.")
      .def_prop_ro("mean", &qts::Histogram::mean, "sum / count; 0.0 when empty.");
}

void bind_ring(nb::module_& m) {
  nb::class_<Numbers>(m, "Ring", "Single-producer, single-consumer ring of uint64.")
      .def(nb::init<std::size_t, std::uint64_t>(), "capacity"_a, "start"_a = 0,
           "capacity: a power of two, 2 or more. start: the first position, which wraps at 2**64.")
      .def("try_push", &Numbers::try_push, "item"_a, "Push an item; False when the ring is full.")
      .def("try_pop", &try_pop, "Pop the oldest item; None when the ring is empty.")
      .def(
          "push_many",
          [](Numbers& ring, const std::vector<std::uint64_t>& items) {
            return ring.try_push_many(std::span<const std::uint64_t>(items));
          },
          "items"_a, "Push the first items that fit; return how many.")
      .def("pop_many", &pop_many, "max"_a, "Pop the oldest items, at most that many.")
      .def("claim_and_commit", &claim_and_commit, "items"_a,
           "Write the first items in place, up to the end of the ring; return how many.")
      .def("peek", &peek, "max"_a, "Return the oldest items up to the end of the ring without popping them.")
      .def("release", &release, "count"_a, "Pop the first items that peek returned.")
      .def("__len__", &Numbers::size_approx)
      .def_prop_ro("capacity", &Numbers::capacity, "How many items fit.")
      .def_prop_ro("lag", &Numbers::lag, "A push may be refused while fewer than this many slots are free.");
}

void bind_clock(nb::module_& m) {
  m.def("ticks", &qts::ticks, "Return the tick counter, the fastest steady clock of this machine.");
  m.def("ticks_to_ns", &qts::to_ns, "ticks"_a, "Convert a tick to nanoseconds of CLOCK_MONOTONIC (time.monotonic_ns).");
  m.def("ns_to_ticks", &qts::ns_to_ticks, "ns"_a, "Convert nanoseconds of CLOCK_MONOTONIC to a tick.");
  m.def("refine_clock", &qts::refine_scale, "Measure the length of a tick again, over all the time since the first use.");
  m.def("clock_source", &qts::clock_source, "'tsc' or 'clock_monotonic'.");
  m.def("stall_floor", &stall_floor, "seconds"_a, "Spin that long and report the time lost to stalls of the machine.");
  m.def(
      "ping_pong",
      [](std::uint64_t round_trips) {
        if (round_trips == 0) throw nb::value_error("round_trips must be 1 or more");
        const nb::gil_scoped_release released;
        return qts::ping_pong(round_trips);
      },
      "round_trips"_a, "Measure the round trip of one cache line between two threads, in ns.");
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The C++ core of QTS.";
  bind_histogram(m);
  bind_ring(m);
  bind_clock(m);
  bind_stops(m);
  bind_bar_calls(m);
  bind_tick_calls(m);
  bind_lanes(m);
  bind_market(m);
  bind_order_log(m);
  bind_router(m);
  bind_shared(m);
#if defined(QTS_BENCH)
  bind_bench(m);
#endif
  m.def("message_fields", &message_fields,
        "(name, format, offset) of each field of a message, as numpy.dtype takes them; 96 bytes in all.");
  m.attr("MESSAGE_SIZE") = sizeof(qts::Message);
  m.attr("PRICE_SCALE") = qts::kPriceScale;
}
