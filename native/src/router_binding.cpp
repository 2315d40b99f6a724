// qts._native.Router: the router as Python drives it. Work in Python is here too, since it alone
// needs the interpreter.
#include "bindings.hpp"

#include <cxxabi.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "qts/indicators.hpp"
#include "qts/router.hpp"

namespace {

using Times = std::array<std::uint64_t, qts::kTypes>;

// An interpreter that ends takes every thread with it that asks for the GIL: before 3.14 by unwinding
// its stack, through destructors that would ask again, which ends the process with an abort. Such a
// thread rests here for good instead, as it does in 3.14.
template <class Call>
auto survive_the_end(Call&& call) {
#if defined(__GLIBCXX__)
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
#else
  return call();
#endif
}

class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    survive_the_end([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

// A view of a Python object's memory, such as a numpy array of messages.
class Buffer {
 public:
  Buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0)
      throw nb::python_error();
    if (static_cast<std::size_t>(view_.len) % sizeof(qts::Message) != 0) {
      PyBuffer_Release(&view_);
      throw nb::value_error("the memory is not a whole number of 96-byte messages");
    }
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::size_t count() const { return static_cast<std::size_t>(view_.len) / sizeof(qts::Message); }

 private:
  Py_buffer view_{};
};

// Says when the GIL was held for so long that others must get a turn.
class HoldLimit {
 public:
  explicit HoldLimit(std::uint64_t limit_ns) : limit_(qts::tick_scale().span_ticks(limit_ns)) {}
  void taken() { since_ = qts::ticks(); }
  bool over() {
    const std::uint64_t now = qts::ticks();
    if (now - since_ < limit_) return false;
    since_ = now;
    return true;
  }

 private:
  std::uint64_t limit_;
  std::uint64_t since_ = 0;
};

constexpr std::uint64_t kLongestHoldNs = 1'000'000;

// What work holds of Python: given back with the GIL, or not at all once the interpreter has gone.
struct GiveBack {
  template <class T>
  void operator()(T* held) const {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire gil;
    delete held;
  }
};
template <class T>
using Held = std::unique_ptr<T, GiveBack>;

// A worker keeps one thread state from its first Python work to its end: making one costs some 7 us.
struct KeptThread {
  PyGILState_STATE gil{};
  PyThreadState* thread = nullptr;
};
thread_local KeptThread kept;

void keep_thread() {
  if (kept.thread != nullptr) return;
  kept.gil = PyGILState_Ensure();
  kept.thread = PyEval_SaveThread();
}
void let_thread_go() {
  if (kept.thread == nullptr || !nb::is_alive()) return;
  survive_the_end([] { PyEval_RestoreThread(kept.thread); });
  PyGILState_Release(kept.gil);
  kept.thread = nullptr;
}

// The GIL, on a worker.
class WorkerGil {
 public:
  WorkerGil() {
    survive_the_end([this] {
      keep_thread();
      state_ = PyGILState_Ensure();
    });
  }
  ~WorkerGil() { PyGILState_Release(state_); }
  WorkerGil(const WorkerGil&) = delete;
  WorkerGil& operator=(const WorkerGil&) = delete;

 private:
  PyGILState_STATE state_{};
};

// One call a message: the callable gets a Message of its own, which it may keep. Between two calls,
// `give_way` is called now and then, a Python function of no content: the interpreter hands the GIL
// over inside Python functions only, and a callable may be none. Releasing it here instead would
// starve whoever waits, since a waiter that is woken and comes too late starts to wait anew.
class EachWork final : public qts::Work {
 public:
  EachWork(nb::object callable, nb::object give_way) : python_(new Python{std::move(callable), std::move(give_way)}) {}

  std::size_t run(std::span<qts::Message> batch) override {
    const WorkerGil gil;
    hold_.taken();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      try {
        survive_the_end([&] {
          python_->callable(nb::cast(batch[i], nb::rv_policy::copy));
          if (hold_.over()) python_->give_way();
        });
      } catch (const std::exception& error) {
        failure = error.what();
        return i;
      }
    }
    return batch.size();
  }

 private:
  struct Python {
    nb::object callable, give_way;
  };
  Held<Python> python_;
  HoldLimit hold_{kLongestHoldNs};
};

// One call a batch: the callable gets an array over memory of its own, good until it returns.
// Copied in (2 ns a message), so that a view kept too long shows old ticks and never freed memory.
class BatchWork final : public qts::Work {
 public:
  BatchWork(nb::object callable, nb::object array, bool writes)
      : python_(new Python(std::move(callable), std::move(array))), writes_(writes) {}

  std::size_t run(std::span<qts::Message> batch) override {
    const WorkerGil gil;
    const Buffer& memory = python_->memory;
    std::size_t done = 0;
    while (done < batch.size()) {
      const auto part = batch.subspan(done, std::min(batch.size() - done, memory.count()));
      std::memcpy(memory.data(), part.data(), part.size_bytes());
      try {
        const auto size = static_cast<Py_ssize_t>(part.size());
        const nb::object view = nb::steal(PySequence_GetSlice(python_->array.ptr(), 0, size));
        if (!view.is_valid()) throw nb::python_error();
        survive_the_end([&] { python_->callable(view); });
      } catch (const std::exception& error) {
        failure = error.what() + (" (somewhere in the " + std::to_string(part.size()) + " messages from there on)");
        return done;
      }
      if (writes_) std::memcpy(part.data(), memory.data(), part.size_bytes());
      done += part.size();
    }
    return done;
  }

 private:
  struct Python {
    Python(nb::object c, nb::object a) : callable(std::move(c)), array(std::move(a)), memory(array, true) {}
    nb::object callable;
    nb::object array;
    Buffer memory;
  };
  Held<Python> python_;
  bool writes_;
};

// Work that never enters Python, and the Python object whose memory it uses.
class KeepingWork final : public qts::Work {
 public:
  KeepingWork(std::unique_ptr<qts::Work> work, nb::object keeps)
      : work_(std::move(work)), keeps_(new nb::object(std::move(keeps))) {}

  std::size_t run(std::span<qts::Message> batch) override {
    const std::size_t handled = work_->run(batch);
    if (handled < batch.size()) failure = work_->failure;
    return handled;
  }

 private:
  std::unique_ptr<qts::Work> work_;
  Held<nb::object> keeps_;
};

template <class Enum>
Enum named(const std::string& name, std::initializer_list<std::pair<const char*, Enum>> known, const char* what) {
  std::string names;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  throw nb::value_error((std::string(what) + " is one of " + names + ", not " + name).c_str());
}

qts::Stamps stamps_named(const std::string& name) {
  return named<qts::Stamps>(name,
                            {{"all", qts::Stamps::all},
                             {"hop-batch", qts::Stamps::hop_batch},
                             {"edges", qts::Stamps::edges},
                             {"off", qts::Stamps::off}},
                            "stamps");
}

nb::dict percentiles(const qts::Histogram& histogram) {
  nb::dict row;
  for (const auto& [name, percent] : {std::pair{"p50", 50.0}, {"p90", 90.0}, {"p95", 95.0}, {"p99", 99.0}, {"p99_9", 99.9}})
    row[name] = static_cast<double>(histogram.percentile(percent)) / 1000.0;
  row["max"] = static_cast<double>(histogram.max()) / 1000.0;
  return row;
}

std::vector<std::pair<double, double>> curve(const qts::Histogram& histogram) {
  std::vector<std::pair<double, double>> points;
  const double total = static_cast<double>(histogram.count());
  std::uint64_t seen = 0;
  double last = -1;
  histogram.each([&](qts::Histogram::Bucket bucket) {
    seen += bucket.count;
    const double percent = 100.0 * static_cast<double>(seen) / total;
    // Points an eye can tell apart: closer together the nearer they come to 100 %.
    if (percent - last < (100.0 - percent) / 20 && seen != histogram.count()) return;
    points.emplace_back(percent, static_cast<double>(std::min(bucket.high, histogram.max())) / 1000.0);
    last = percent;
  });
  return points;
}

class PyRouter {
 public:
  static std::unique_ptr<qts::Work> strategy_work(const nb::object& work) { return make_work(work, false); }

  PyRouter(const std::string& stamps, std::uint64_t sample, std::size_t ring_capacity, bool digest)
      : router_(std::make_shared<qts::Router>(
            qts::RouterOptions{stamps_named(stamps), sample, ring_capacity, digest})) {}
  ~PyRouter() {
    const WithoutGil released;
    router_->halt();
    router_->join(std::chrono::seconds(1));
  }

  std::size_t add_worker(std::optional<int> cpu, const std::string& wait) {
    using qts::Wait;
    const std::size_t worker = router_->add_worker(
        cpu.value_or(-1),
        named<Wait>(wait, {{"spin", Wait::spin}, {"yield", Wait::yield}, {"park", Wait::park}}, "wait"));
    router_->set_hooks(worker, {.begin = {}, .end = let_thread_go});
    return worker;
  }
  void add_stage1(std::size_t worker) { router_->add_stage1(worker); }
  void add_stage2(std::size_t worker) { router_->add_stage2(worker); }

  std::uint8_t add_producer(std::size_t worker, std::size_t stage1, double rate,
                            const std::array<double, qts::kTypes>& shares, std::uint64_t total,
                            double give_up_s, const std::optional<std::array<double, 4>>& burst,
                            std::uint32_t symbols, std::uint64_t seed) {
    qts::ProducerSpec spec{rate, shares, total, give_up_s, {}, symbols, seed};
    if (burst) spec.burst = {(*burst)[0], (*burst)[1], (*burst)[2], (*burst)[3]};
    return router_->add_producer(spec, stage1, worker);
  }
  std::uint8_t add_live_source(std::size_t stage1, bool keep_numbers) {
    return steer([&] { return router_->add_live_source(stage1, keep_numbers); });
  }

  std::uint8_t add_processor(std::size_t worker, const Times& busy_ns, nb::object work) {
    auto made = make_work(work, true);
    return steer([&] { return router_->add_processor(busy_ns, std::move(made), worker); });
  }
  std::uint8_t add_strategy(std::size_t worker, const Times& busy_ns, nb::object work) {
    auto made = make_work(work, false);
    return steer([&] { return router_->add_strategy(busy_ns, std::move(made), worker); });
  }

  void route1(std::uint8_t type, const std::string& by, std::vector<std::uint8_t> processors,
              std::vector<std::uint8_t> otherwise, std::int64_t threshold, bool above) {
    using By = qts::Route::By;
    qts::Stage1Rule rule;
    rule.by = named<By>(by, {{"round_robin", By::turn}, {"symbol", By::symbol}, {"price", By::price}}, "by");
    rule.processors = std::move(processors);
    rule.otherwise = std::move(otherwise);
    rule.threshold = threshold;
    rule.above = above;
    steer([&] { router_->route1(type, std::move(rule)); });
  }
  void route2(std::uint8_t type, std::uint8_t strategy, bool ordered, bool urgent) {
    steer([&] { router_->route2(type, {strategy, ordered, urgent}); });
  }
  bool remove_processor(std::uint8_t id) {
    return steer([&] { return router_->remove_processor(id); });
  }
  bool remove_strategy(std::uint8_t id) {
    return steer([&] { return router_->remove_strategy(id); });
  }
  void set_journal(std::size_t stage1, const std::string& path, const std::string& fsync, unsigned interval_ms) {
    using When = qts::Fsync::When;
    const qts::Fsync policy{
        named<When>(fsync, {{"never", When::never}, {"interval", When::interval}, {"always", When::always}}, "fsync"),
        std::chrono::milliseconds(interval_ms)};
    try {
      router_->set_journal(stage1, std::make_unique<qts::Journal>(path, policy));
    } catch (const std::system_error& error) {
      PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code().value(), error.code().message(), path).ptr());
      throw nb::python_error();
    }
  }

  void start() {
    steer([&] { qts::Router::start(router_); });
  }
  void stop() {
    steer([&] { router_->stop(); });
  }

  // Waits at most so long for everything to be delivered, or for a component to fail.
  bool wait(double seconds) {
    const WithoutGil released;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    const auto over = [this] {
      const std::lock_guard turn(steering_);
      return router_->drained() || router_->failed();
    };
    while (!over()) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    return true;
  }
  bool halt(double seconds) {
    return steer([&] {
      router_->halt();
      const bool stopped = router_->join(std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
      if (stopped) router_->drop_work();
      return stopped;
    });
  }

  // Pushes messages from outside; the GIL is released meanwhile. How many were taken.
  std::size_t push(std::size_t source, nb::handle messages, double seconds) {
    const Buffer buffer(messages, false);
    const WithoutGil released;
    qts::LiveSource& live = live_source(source);
    refuse_unrouted(live, buffer);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::array<qts::Message, qts::kTake> part;
    std::size_t done = 0;
    unsigned refused = 0;  // in a row
    while (done < buffer.count()) {
      const std::size_t size = std::min(part.size(), buffer.count() - done);
      std::memcpy(part.data(), buffer.data() + done * sizeof(qts::Message), size * sizeof(qts::Message));
      const std::size_t taken = live.try_push_many({part.data(), size});
      done += taken;
      if (taken == size) {
        refused = 0;
        continue;
      }
      if (live.done() || std::chrono::steady_clock::now() >= end) break;
      // Whoever makes room may need this core.
      if (++refused < 100) sched_yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return done;
  }

  nb::dict totals() const {
    const qts::Totals now = steer([&] { return router_->totals(); });
    nb::dict row;
    row["produced"] = now.produced;
    row["processed"] = now.processed;
    row["delivered"] = now.delivered;
    row["abandoned"] = now.abandoned;
    row["violations"] = now.violations;
    row["gaps"] = now.gaps;
    row["reordered"] = now.reordered;
    return row;
  }
  nb::list waiting() const {
    nb::list rows;
    for (const qts::Place& place : steer([&] { return router_->waiting(); })) rows.append(nb::make_tuple(place.name, place.count));
    return rows;
  }
  nb::list failures() const {
    nb::list rows;
    for (const qts::Failure& failure : steer([&] { return router_->failures(); }))
      rows.append(nb::make_tuple(failure.component, nb::cast(failure.message), failure.text));
    return rows;
  }
  std::vector<std::string> stuck() const {
    return steer([&] { return router_->stuck(); });
  }
  nb::list strategies() const {
    nb::list rows;
    for (const qts::Strategy* s : steer([&] { return router_->strategies(); }))
      rows.append(nb::make_tuple(s->id, s->delivered(), s->violations(), s->gaps()));
    return rows;
  }
  // While nothing runs: (strategy, producer, type, delivered, digest) of every stream.
  nb::list streams() const {
    nb::list rows;
    for (const qts::Strategy* s : steer([&] { return router_->strategies(); }))
      for (unsigned producer = 0; producer < qts::kMostComponents; ++producer)
        for (unsigned type = 0; type < qts::kTypes; ++type) {
          const auto& stream = s->stream(static_cast<std::uint8_t>(producer), static_cast<std::uint8_t>(type));
          if (stream.delivered != 0)
            rows.append(nb::make_tuple(s->id, producer, type, stream.delivered, stream.digest));
        }
    return rows;
  }
  nb::dict latencies() const {
    return by_stage([](const qts::Histogram& histogram) { return nb::object(percentiles(histogram)); });
  }
  nb::dict curves() const {
    return by_stage([](const qts::Histogram& histogram) { return nb::cast(curve(histogram)); });
  }
  nb::dict recent() {
    auto now = std::make_unique<qts::Latencies>();
    steer([&] { router_->merge_latencies(*now); });
    qts::Histogram fresh;
    fresh.set_difference(now->total, seen_->total);
    nb::dict row;
    if (fresh.count() != 0) {
      row["p50"] = static_cast<double>(fresh.percentile(50)) / 1000.0;
      row["p99"] = static_cast<double>(fresh.percentile(99)) / 1000.0;
    }
    seen_ = std::move(now);
    return row;
  }
  std::vector<bool> pinned() const {
    std::vector<bool> rows;
    for (const auto& worker : router_->workers()) rows.push_back(worker->pinned());
    return rows;
  }

 private:
  template <class Show>
  nb::dict by_stage(Show&& show) const {
    const auto merged = std::make_unique<qts::Latencies>();
    steer([&] { router_->merge_latencies(*merged); });
    const qts::Latencies& all = *merged;
    nb::dict rows;
    const std::pair<const char*, const qts::Histogram&> stages[] = {{"stage1", all.stage1},
                                                                    {"processing", all.processing},
                                                                    {"stage2", all.stage2},
                                                                    {"strategy", all.strategy},
                                                                    {"total", all.total}};
    for (const auto& [name, histogram] : stages)
      if (histogram.count() != 0) rows[name] = show(histogram);
    return rows;
  }

  // Without the GIL.
  qts::LiveSource& live_source(std::size_t source) const {
    const std::lock_guard turn(steering_);
    for (qts::LiveSource* live : router_->live_sources())
      if (live->id == source) return *live;
    throw std::invalid_argument("there is no live source " + std::to_string(source));
  }
  // Before anything is sent.
  static void refuse_unrouted(qts::LiveSource& live, const Buffer& buffer) {
    std::array<bool, 256> routed{};
    for (std::uint8_t type = 0; type < qts::kTypes; ++type) routed[type] = live.takes(type);
    for (std::size_t i = 0; i < buffer.count(); ++i) {
      const auto type = std::to_integer<unsigned>(buffer.data()[i * sizeof(qts::Message)]);
      if (!routed[type]) throw std::invalid_argument("no rule routes type " + std::to_string(type));
    }
  }

  // None, ("each", callable, give_way), ("batch", callable, array), ("compiled", address, state address,
  // what it keeps) or (indicator, period, array of values).
  static std::unique_ptr<qts::Work> make_work(const nb::object& work, bool writes) {
    if (work.is_none()) return nullptr;
    const auto parts = nb::cast<nb::tuple>(work);
    const auto kind = parts.size() == 0 ? std::string() : nb::cast<std::string>(parts[0]);
    if (parts.size() != (kind == "compiled" ? 4 : 3))
      throw nb::value_error("work is made by each, batch, compiled or an indicator, and this is not");
    if (kind == "each") return std::make_unique<EachWork>(nb::object(parts[1]), nb::object(parts[2]));
    if (kind == "batch") return std::make_unique<BatchWork>(nb::object(parts[1]), nb::object(parts[2]), writes);
    if (kind == "compiled") {
      auto compiled = std::make_unique<qts::CompiledWork>(
          reinterpret_cast<qts::CompiledWork::Function>(nb::cast<std::uintptr_t>(parts[1])),
          reinterpret_cast<void*>(nb::cast<std::uintptr_t>(parts[2])));
      return std::make_unique<KeepingWork>(std::move(compiled), nb::object(parts[3]));
    }
    return std::make_unique<KeepingWork>(make_indicator(kind, nb::cast<std::uint32_t>(parts[1]), parts[2]),
                                         nb::object(parts[2]));
  }
  static std::unique_ptr<qts::Work> make_indicator(const std::string& kind, std::uint32_t period, nb::handle array) {
    const auto table = nb::cast<nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(array);
    const std::span<double> values(table.data(), table.shape(0));
    if (kind == "ema") return std::make_unique<qts::IndicatorWork<qts::Ema>>(qts::Ema(period), values);
    if (kind == "rsi") return std::make_unique<qts::IndicatorWork<qts::Rsi>>(qts::Rsi(period), values);
    if (kind == "vwap") return std::make_unique<qts::IndicatorWork<qts::Vwap>>(qts::Vwap(), values);
    throw nb::value_error("work is each, batch, compiled, ema, rsi or vwap");
  }

  // Steering calls take turns, and wait for their turn without the GIL.
  template <class Call>
  std::decay_t<std::invoke_result_t<Call>> steer(Call&& call) const {
    const WithoutGil released;
    const std::lock_guard turn(steering_);
    return call();
  }

  std::shared_ptr<qts::Router> router_;
  mutable std::mutex steering_;
  std::unique_ptr<qts::Latencies> seen_ = std::make_unique<qts::Latencies>();
};

double price_of(const qts::Message& message) {
  return static_cast<double>(message.price) / static_cast<double>(qts::kPriceScale);
}

}  // namespace

std::unique_ptr<qts::Work> make_router_work(const nb::object& work) { return PyRouter::strategy_work(work); }
void keep_python_thread() { keep_thread(); }
void leave_python_thread() { let_thread_go(); }

void bind_router(nb::module_& m) {
  using qts::Message;
  // A handler that never returns keeps what it holds; the report has told of it already.
  nb::set_leak_warnings(false);
  nb::class_<Message>(m, "Message", "One message, a copy of its own: a tick on its way to a strategy.")
      .def_ro("msg_type", &Message::msg_type, "0 to 7.")
      .def_ro("producer_id", &Message::producer_id, "Who sent it.")
      .def_ro("stream_number", &Message::stream_number, "Its number among its producer's of this type, modulo 65536.")
      .def_ro("symbol_id", &Message::symbol_id, "What it is about.")
      .def_ro("sequence_number", &Message::sequence_number, "Its number among all of its producer's.")
      .def_ro("timestamp_ticks", &Message::timestamp_ns, "When it was meant to be sent; see ticks_to_ns.")
      .def_ro("processor_id", &Message::processor_id, "Who worked on it.")
      .def_ro("price_e8", &Message::price, "The exact price in units of 10**-8.")
      .def_prop_ro("price", &price_of, "The price, as near as a float comes.")
      .def_prop_ro("quantity", &Message::quantity, "The quantity, as near as a float comes.")
      .def("__repr__", [](const Message& message) {
        return "Message(producer " + std::to_string(message.producer_id) + ", type " +
               std::to_string(message.msg_type) + ", sequence " + std::to_string(message.sequence_number) + ")";
      });

  nb::class_<PyRouter>(m, "Router", "The multi-stage router; qts.router.Router is its face.")
      .def(nb::init<const std::string&, std::uint64_t, std::size_t, bool>(), "stamps"_a, "sample"_a,
           "ring_capacity"_a, "digest"_a)
      .def("add_worker", &PyRouter::add_worker, "cpu"_a.none(), "wait"_a, "A thread; its number.")
      .def("add_stage1", &PyRouter::add_stage1, "worker"_a, "A first routing stage.")
      .def("add_stage2", &PyRouter::add_stage2, "worker"_a, "The second routing stage.")
      .def("add_producer", &PyRouter::add_producer, "worker"_a, "stage1"_a, "rate"_a, "shares"_a, "total"_a,
           "give_up_s"_a, "burst"_a.none(), "symbols"_a, "seed"_a, "A source that makes messages up; its number.")
      .def("add_live_source", &PyRouter::add_live_source, "stage1"_a, "keep_numbers"_a,
           "A source for push; its number. One that keeps numbers repeats a journal.")
      .def("add_processor", &PyRouter::add_processor, "worker"_a, "busy_ns"_a, "work"_a.none(), "Its number.")
      .def("add_strategy", &PyRouter::add_strategy, "worker"_a, "busy_ns"_a, "work"_a.none(), "Its number.")
      .def("route1", &PyRouter::route1, "msg_type"_a, "by"_a, "processors"_a, "otherwise"_a, "threshold"_a, "above"_a,
           "Where stage 1 sends a type.")
      .def("route2", &PyRouter::route2, "msg_type"_a, "strategy"_a, "ordered"_a, "urgent"_a, "Where stage 2 sends a type.")
      .def("remove_processor", &PyRouter::remove_processor, "number"_a, "False: something still waits for it.")
      .def("remove_strategy", &PyRouter::remove_strategy, "number"_a, "False: something still waits for it.")
      .def("set_journal", &PyRouter::set_journal, "stage1"_a, "path"_a, "fsync"_a, "interval_ms"_a,
           "Keep what passes a first stage in a file.")
      .def("start", &PyRouter::start, "Start the threads.")
      .def("stop", &PyRouter::stop, "Sources end; what they sent is still delivered.")
      .def("wait", &PyRouter::wait, "seconds"_a, "True once all is delivered or something failed.")
      .def("halt", &PyRouter::halt, "seconds"_a, "Stop the workers; False when one did not come back in time.")
      .def("push", &PyRouter::push, "source"_a, "messages"_a, "seconds"_a, "How many were taken in that time.")
      .def("totals", &PyRouter::totals, "Counts so far.")
      .def("waiting", &PyRouter::waiting, "(place, count) of messages on their way or stranded.")
      .def("failures", &PyRouter::failures, "(component, message, text) of each component that failed.")
      .def("stuck", &PyRouter::stuck, "Workers that have not stopped, and where.")
      .def("strategies", &PyRouter::strategies, "(id, delivered, violations, gaps) of each.")
      .def("streams", &PyRouter::streams, "(strategy, producer, type, delivered, digest); while nothing runs.")
      .def("latencies", &PyRouter::latencies, "Of the whole run, by stage: percentiles in us.")
      .def("curves", &PyRouter::curves, "Of the whole run, by stage: (percent, us) points.")
      .def("recent", &PyRouter::recent, "p50 and p99 of total latency since the last call, in us.")
      .def("pinned", &PyRouter::pinned, "Whether each worker runs on the CPU it was given.");

  m.def(
      "crc32c",
      [](nb::bytes data) { return qts::crc32c({static_cast<const std::byte*>(data.data()), data.size()}); },
      "data"_a, "CRC-32C (Castagnoli) of some bytes.");
}
