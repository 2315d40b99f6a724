// qts._native.Router: the router as Python drives it.
#include "router_handlers.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "qts/router.hpp"

namespace {

using Times = std::array<std::uint64_t, qts::kTypes>;

template <class Enum>
Enum named(const std::string& name, std::initializer_list<std::pair<const char*, Enum>> known, const char* what) {
  std::string names;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  throw nb::value_error((std::string(what) + " must be one of " + names + ", not " + name).c_str());
}

qts::StampMode stamps_named(const std::string& name) {
  return named<qts::StampMode>(name,
                            {{"all", qts::StampMode::all},
                             {"hop-batch", qts::StampMode::hop_batch},
                             {"edges", qts::StampMode::edges},
                             {"off", qts::StampMode::off}},
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
    // Enough points to draw a curve: closer together the nearer they are to 100 %.
    if (percent - last < (100.0 - percent) / 20 && seen != histogram.count()) return;
    points.emplace_back(percent, static_cast<double>(std::min(bucket.high, histogram.max())) / 1000.0);
    last = percent;
  });
  return points;
}

class PyRouter {
 public:
  PyRouter(const std::string& stamps, std::uint64_t sample, std::size_t ring_capacity, bool digest)
      : router_(std::make_shared<qts::Router>(
            qts::RouterOptions{stamps_named(stamps), sample, ring_capacity, digest})) {}
  ~PyRouter() {
    const WithoutGil released;
    router_->halt();
    router_->join(std::chrono::seconds(1));
  }

  std::size_t add_worker(std::optional<int> cpu, const std::string& wait) {
    using qts::WaitStrategy;
    const std::size_t worker = router_->add_worker(
        cpu.value_or(-1),
        named<WaitStrategy>(wait, {{"spin", WaitStrategy::spin}, {"yield", WaitStrategy::yield}, {"park", WaitStrategy::park}}, "wait"));
    router_->set_hooks(worker, {.begin = {}, .end = release_thread_state});
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
    return control([&] { return router_->add_live_source(stage1, keep_numbers); });
  }

  std::uint8_t add_processor(std::size_t worker, const Times& busy_ns, nb::object work) {
    auto handler = make_handler(work, true);
    return control([&] { return router_->add_processor(busy_ns, std::move(handler), worker); });
  }
  std::uint8_t add_strategy(std::size_t worker, const Times& busy_ns, nb::object work) {
    auto handler = make_handler(work, false);
    return control([&] { return router_->add_strategy(busy_ns, std::move(handler), worker); });
  }

  void route1(std::uint8_t type, const std::string& by, std::vector<std::uint8_t> processors,
              std::vector<std::uint8_t> otherwise, std::int64_t threshold, bool above) {
    using By = qts::Route::By;
    qts::Stage1Rule rule;
    rule.by = named<By>(by, {{"round_robin", By::round_robin}, {"symbol", By::symbol}, {"price", By::price}}, "by");
    rule.processors = std::move(processors);
    rule.otherwise = std::move(otherwise);
    rule.threshold = threshold;
    rule.above = above;
    control([&] { router_->route1(type, std::move(rule)); });
  }
  void route2(std::uint8_t type, std::uint8_t strategy, bool ordered, bool urgent) {
    control([&] { router_->route2(type, {strategy, ordered, urgent}); });
  }
  bool remove_processor(std::uint8_t id) {
    return control([&] { return router_->remove_processor(id); });
  }
  bool remove_strategy(std::uint8_t id) {
    return control([&] { return router_->remove_strategy(id); });
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
    control([&] { qts::Router::start(router_); });
  }
  void stop() {
    control([&] { router_->stop(); });
  }

  // Waits until everything is delivered or a component has failed; returns false after this time.
  bool wait(double seconds) {
    const WithoutGil released;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    const auto is_over = [this] {
      const std::lock_guard hold(control_lock_);
      return router_->drained() || router_->failed();
    };
    while (!is_over()) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    return true;
  }
  bool halt(double seconds) {
    return control([&] {
      router_->halt();
      const bool stopped = router_->join(std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)));
      if (stopped) router_->release_handlers();
      return stopped;
    });
  }

  // Pushes messages with the GIL released; returns how many were accepted.
  std::size_t push(std::size_t source, nb::handle messages, double seconds) {
    const MessageBuffer buffer(messages, false);
    const WithoutGil released;
    qts::LiveSource& live = live_source(source);
    refuse_unrouted(live, buffer);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::array<qts::Message, qts::kMaxReceive> part;
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
      // The worker that frees capacity may need this core.
      if (++refused < 100) sched_yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return done;
  }

  nb::dict totals() const {
    const qts::Totals now = control([&] { return router_->totals(); });
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
    for (const qts::QueueLocation& location : control([&] { return router_->waiting(); })) rows.append(nb::make_tuple(location.name, location.count));
    return rows;
  }
  nb::list failures() const {
    nb::list rows;
    for (const qts::Failure& failure : control([&] { return router_->failures(); }))
      rows.append(nb::make_tuple(failure.component, nb::cast(failure.message), failure.text));
    return rows;
  }
  std::vector<std::string> stuck() const {
    return control([&] { return router_->stuck(); });
  }
  nb::list strategies() const {
    nb::list rows;
    for (const qts::Strategy* s : control([&] { return router_->strategies(); }))
      rows.append(nb::make_tuple(s->id, s->delivered(), s->violations(), s->gaps()));
    return rows;
  }
  // (strategy, producer, type, delivered, digest) of every stream; while no worker runs.
  nb::list streams() const {
    nb::list rows;
    for (const qts::Strategy* s : control([&] { return router_->strategies(); }))
      for (unsigned producer = 0; producer < qts::kMaxComponents; ++producer)
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
    control([&] { router_->merge_latencies(*now); });
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
    control([&] { router_->merge_latencies(*merged); });
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

  // Called without the GIL.
  qts::LiveSource& live_source(std::size_t source) const {
    const std::lock_guard hold(control_lock_);
    for (qts::LiveSource* live : router_->live_sources())
      if (live->id == source) return *live;
    throw std::invalid_argument("there is no live source " + std::to_string(source));
  }
  // Checks every message before any is sent.
  static void refuse_unrouted(qts::LiveSource& live, const MessageBuffer& buffer) {
    std::array<bool, 256> routed{};
    for (std::uint8_t type = 0; type < qts::kTypes; ++type) routed[type] = live.routes(type);
    for (std::size_t i = 0; i < buffer.count(); ++i) {
      const auto type = std::to_integer<unsigned>(buffer.data()[i * sizeof(qts::Message)]);
      if (!routed[type]) throw std::invalid_argument("no rule routes type " + std::to_string(type));
    }
  }

  // Runs one controlling call at a time, without the GIL.
  template <class Call>
  std::decay_t<std::invoke_result_t<Call>> control(Call&& call) const {
    const WithoutGil released;
    const std::lock_guard hold(control_lock_);
    return call();
  }

  std::shared_ptr<qts::Router> router_;
  mutable std::mutex control_lock_;
  std::unique_ptr<qts::Latencies> seen_ = std::make_unique<qts::Latencies>();
};

double price_of(const qts::Message& message) {
  return static_cast<double>(message.price) / static_cast<double>(qts::kPriceScale);
}

}  // namespace

void bind_router(nb::module_& m) {
  using qts::Message;
  // A handler that never returns keeps its Python objects; the report names it.
  nb::set_leak_warnings(false);
  nb::class_<Message>(m, "Message", "A copy of one message: a tick on its way to a strategy.")
      .def_ro("msg_type", &Message::msg_type, "0 to 7.")
      .def_ro("producer_id", &Message::producer_id, "The source that sent it.")
      .def_ro("stream_number", &Message::stream_number, "Its number among the messages of its producer and type, modulo 65536.")
      .def_ro("symbol_id", &Message::symbol_id, "The number of its symbol.")
      .def_ro("sequence_number", &Message::sequence_number, "Its number among all messages of its producer.")
      .def_ro("timestamp_ticks", &Message::timestamp_ns, "Its intended send time; see ticks_to_ns.")
      .def_ro("processor_id", &Message::processor_id, "The processor that handled it.")
      .def_ro("price_e8", &Message::price, "The exact price in units of 10**-8.")
      .def_prop_ro("price", &price_of, "The price as the nearest float.")
      .def_prop_ro("quantity", &Message::quantity, "The quantity as the nearest float.")
      .def("__repr__", [](const Message& message) {
        return "Message(producer " + std::to_string(message.producer_id) + ", type " +
               std::to_string(message.msg_type) + ", sequence " + std::to_string(message.sequence_number) + ")";
      });

  nb::class_<PyRouter>(m, "Router", "The multi-stage router behind qts.router.Router.")
      .def(nb::init<const std::string&, std::uint64_t, std::size_t, bool>(), "stamps"_a, "sample"_a,
           "ring_capacity"_a, "digest"_a)
      .def("add_worker", &PyRouter::add_worker, "cpu"_a.none(), "wait"_a, "Add a worker thread and return its number.")
      .def("add_stage1", &PyRouter::add_stage1, "worker"_a, "Add a first routing stage.")
      .def("add_stage2", &PyRouter::add_stage2, "worker"_a, "Set the second routing stage.")
      .def("add_producer", &PyRouter::add_producer, "worker"_a, "stage1"_a, "rate"_a, "shares"_a, "total"_a,
           "give_up_s"_a, "burst"_a.none(), "symbols"_a, "seed"_a, "Add a source that generates messages and return its number.")
      .def("add_live_source", &PyRouter::add_live_source, "stage1"_a, "keep_numbers"_a,
           "Add a source for push and return its number. keep_numbers: for the replay of a journal.")
      .def("add_processor", &PyRouter::add_processor, "worker"_a, "busy_ns"_a, "work"_a.none(),
           "Add a processor and return its number.")
      .def("add_strategy", &PyRouter::add_strategy, "worker"_a, "busy_ns"_a, "work"_a.none(),
           "Add a strategy and return its number.")
      .def("route1", &PyRouter::route1, "msg_type"_a, "by"_a, "processors"_a, "otherwise"_a, "threshold"_a, "above"_a,
           "Set the processors of a type.")
      .def("route2", &PyRouter::route2, "msg_type"_a, "strategy"_a, "ordered"_a, "urgent"_a, "Set the strategy of a type.")
      .def("remove_processor", &PyRouter::remove_processor, "number"_a, "Remove a processor; False while messages still wait for it.")
      .def("remove_strategy", &PyRouter::remove_strategy, "number"_a, "Remove a strategy; False while messages still wait for it.")
      .def("set_journal", &PyRouter::set_journal, "stage1"_a, "path"_a, "fsync"_a, "interval_ms"_a,
           "Write what passes a first stage to a journal file.")
      .def("start", &PyRouter::start, "Start the threads.")
      .def("stop", &PyRouter::stop, "End the sources; messages already sent are still delivered.")
      .def("wait", &PyRouter::wait, "seconds"_a, "Wait until all is delivered or a component failed; False when the time ran out.")
      .def("halt", &PyRouter::halt, "seconds"_a, "Stop the workers; False when one did not stop in time.")
      .def("push", &PyRouter::push, "source"_a, "messages"_a, "seconds"_a, "Push messages and return how many were accepted in that time.")
      .def("totals", &PyRouter::totals, "Counts so far: produced, processed, delivered and so on.")
      .def("waiting", &PyRouter::waiting, "(location, count) of messages that wait or were abandoned.")
      .def("failures", &PyRouter::failures, "(component, message, text) of each component that failed.")
      .def("stuck", &PyRouter::stuck, "Workers that have not stopped, each with the component it runs.")
      .def("strategies", &PyRouter::strategies, "(id, delivered, violations, gaps) of each.")
      .def("streams", &PyRouter::streams, "(strategy, producer, type, delivered, digest) of each stream; while no worker runs.")
      .def("latencies", &PyRouter::latencies, "Percentiles of the whole run in us, by stage.")
      .def("curves", &PyRouter::curves, "(percent, us) points of the whole run, by stage.")
      .def("recent", &PyRouter::recent, "p50 and p99 of total latency since the last call, in us.")
      .def("pinned", &PyRouter::pinned, "Whether each worker is pinned to its CPU.");

  m.def(
      "crc32c",
      [](nb::bytes data) { return qts::crc32c({static_cast<const std::byte*>(data.data()), data.size()}); },
      "data"_a, "CRC-32C (Castagnoli) of the bytes.");
}
