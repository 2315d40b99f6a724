// qts._native.bench_*: the measuring loops for the benchmarks, and other ways to call Python, to compare
// the router's handlers with.
#include "router_handlers.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "bench.hpp"
#include "reference_rings.hpp"

namespace {

using qts::Message;
using qts::Trial;

// Returns ns of a whole trial and whether other threads used the CPUs; throws when it was not correct.
std::pair<double, bool> checked(const Trial& trial, const std::string& wrong) {
  if (!trial.correct) throw std::runtime_error(wrong);
  return {trial.ns, trial.disturbed};
}

template <class AnyRing>
Trial one_by_one(const std::string& way, const qts::RingTrial& trial) {
  if (way == "one") return qts::one_at_a_time<AnyRing>(trial);
  if (way == "round_trip") return qts::round_trip<AnyRing>(trial);
  throw nb::value_error(("way must be one or round_trip for this ring, not " + way).c_str());
}

Trial ring_trial(const std::string& ring, const std::string& way, const qts::RingTrial& trial) {
  if (ring == "textbook") return one_by_one<qts::TextbookRing<Message>>(way, trial);
  if (ring == "cached") return one_by_one<qts::CachedRing<Message>>(way, trial);
  if (ring != "ours") throw nb::value_error(("ring must be ours, textbook or cached, not " + ring).c_str());
  if (way == "copy") return qts::batched_copy<qts::Ring<Message>>(trial);
  if (way == "in_place") return qts::batched_in_place<qts::Ring<Message>>(trial);
  return one_by_one<qts::Ring<Message>>(way, trial);
}

std::pair<double, bool> bench_ring(const std::string& ring, const std::string& way, std::size_t capacity,
                                   std::size_t batch, std::uint64_t messages, std::array<int, 2> cpus) {
  if (batch == 0 || batch > qts::kMaxBatch) throw nb::value_error(("batch must be 1 to 256 messages, not " + std::to_string(batch)).c_str());
  const nb::gil_scoped_release released;
  return checked(ring_trial(ring, way, {capacity, batch, messages, cpus}), "messages were lost or reordered");
}

// The common way: takes the GIL with a new thread state for every message.
class GilPerMessageHandler final : public qts::MessageHandler {
 public:
  explicit GilPerMessageHandler(nb::object callable) : callable_(std::move(callable)) {}
  std::size_t run(std::span<Message> batch) override {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const nb::gil_scoped_acquire gil;
      try {
        callable_(nb::cast(batch[i], nb::rv_policy::copy));
      } catch (const std::exception& raised) {
        error = raised.what();
        return i;
      }
    }
    return batch.size();
  }

 private:
  nb::object callable_;
};

// Calls Python once per batch with a list of messages, on a thread that keeps its state.
class ListHandler final : public qts::MessageHandler {
 public:
  explicit ListHandler(nb::object callable) : callable_(std::move(callable)) {}
  std::size_t run(std::span<Message> batch) override {
    ensure_thread_state();
    const nb::gil_scoped_acquire gil;
    try {
      nb::list messages;
      for (const Message& message : batch) messages.append(nb::cast(message, nb::rv_policy::copy));
      callable_(messages);
    } catch (const std::exception& raised) {
      error = raised.what();
      return 0;
    }
    return batch.size();
  }

 private:
  nb::object callable_;
};

std::unique_ptr<qts::MessageHandler> handler_named(const nb::tuple& work) {
  const auto kind = work.size() == 2 ? nb::cast<std::string>(work[0]) : std::string();
  if (kind == "ensure") return std::make_unique<GilPerMessageHandler>(nb::object(work[1]));
  if (kind == "list") return std::make_unique<ListHandler>(nb::object(work[1]));
  return make_handler(work, false);
}

std::pair<double, bool> bench_work(const nb::tuple& work, std::size_t batch, std::uint64_t batches, int cpu) {
  const std::unique_ptr<qts::MessageHandler> handler = handler_named(work);
  Trial trial;
  {
    const nb::gil_scoped_release released;
    trial = qts::run_handler_alone(*handler, {batch, batches, cpu}, release_thread_state);
  }
  return checked(trial, "the handler failed: " + handler->error);
}

std::string bench_build() {
  std::string arch =
#if defined(__AVX512F__)
      "AVX-512";
#elif defined(__AVX2__)
      "AVX2";
#elif defined(__SSE4_2__)
      "x86-64-v2";
#elif defined(__aarch64__)
      "aarch64";
#else
      "baseline";
#endif
#if defined(__OPTIMIZE__)
  arch += ", optimised";
#else
  arch += ", not optimised";
#endif
  return std::string("compiler ") + __VERSION__ + ", " + arch;
}

}  // namespace

void bind_bench(nb::module_& m) {
  m.def("bench_ring", &bench_ring, "ring"_a, "way"_a, "capacity"_a, "batch"_a, "messages"_a, "cpus"_a,
        "Move messages between two threads; ns in total, and whether other threads used the CPUs.");
  m.def("bench_work", &bench_work, "work"_a, "batch"_a, "batches"_a, "cpu"_a,
        "Run a strategy's handler alone on a thread; ns in total, and whether other threads used the CPU.");
  m.def("bench_build", &bench_build, "The compiler of this module and the architecture it was built for.");
}
