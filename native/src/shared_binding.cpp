// qts._native.SharedRing: byte records between this process and a child process.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <csignal>
#include <string_view>
#include <vector>

#if defined(__linux__)
#include <sys/prctl.h>
#include <unistd.h>
#endif

#include "qts/lane_entry.hpp"
#include "qts/shared_ring.hpp"

namespace {

constexpr std::size_t kWordsBeforeValues = 4;  // sequence, key, timestamp, type and count

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::chrono::nanoseconds to_timeout(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e9));
}

class PySharedRing {
 public:
  explicit PySharedRing(Memory memory) : memory_(std::move(memory)), ring_(memory_.data(), memory_.size()) {}

  bool push(nb::bytes record, double seconds) {
    const auto size = record.size();
    if (ring_.try_push(record.c_str(), size)) return true;
    if (seconds <= 0) return false;
    {
      const nb::gil_scoped_release released;
      ring_.wait_for_capacity(size, to_timeout(seconds));
    }
    return ring_.try_push(record.c_str(), size);
  }

  nb::object pop(double seconds) {
    if (!wait(seconds)) return nb::none();
    return pop_now();
  }
  nb::list pop_many(std::size_t max, double seconds) {
    nb::list found;
    if (!wait(seconds)) return found;
    while (found.size() < max && ring_.front() != SIZE_MAX) found.append(pop_now());
    return found;
  }

  void mark_in_flight(std::size_t slot, std::uint64_t what) {
    qts::SharedRing::InFlightMark& mark = ring_.mark(slot);
    mark.began.store(qts::ticks(), std::memory_order_relaxed);
    mark.what.store(what, std::memory_order_release);
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> in_flight() {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    for (std::size_t slot = 0; slot < qts::SharedRing::kMarks; ++slot)
      if (const std::uint64_t what = ring_.mark(slot).what.load(std::memory_order_acquire); what != 0)
        found.emplace_back(what, ring_.mark(slot).began.load(std::memory_order_relaxed));
    return found;
  }

  qts::SharedRing& ring() { return ring_; }

 private:
  bool wait(double seconds) {
    if (ring_.front() != SIZE_MAX) return true;
    if (seconds > 0) {
      const nb::gil_scoped_release released;
      ring_.wait(to_timeout(seconds));
    }
    return ring_.front() != SIZE_MAX;
  }
  nb::bytes pop_now() {
    const std::size_t size = ring_.front();
    PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (made == nullptr) throw nb::python_error();
    ring_.pop(PyBytes_AsString(made), size);
    return nb::steal<nb::bytes>(made);
  }

  Memory memory_;
  qts::SharedRing ring_;
};

// A compiled handler for tests; it reads an EventRecord. state: number of events, first value of the last
// one, number of values that were not the last one plus 1.
void count_in_order(const double* record, double* state) {
  const double value = record[kWordsBeforeValues];
  state[2] += value != state[1] + 1;
  state[1] = value;
  state[0] += 1;
}

// Returns false when the system does not support it, or when the parent has already ended.
bool die_with_parent(std::int64_t parent) {
#if defined(__linux__)
  return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == static_cast<pid_t>(parent);
#else
  static_cast<void>(parent);
  return false;
#endif
}

}  // namespace

void bind_shared(nb::module_& m) {
  nb::class_<PySharedRing>(m, "SharedRing", "Byte records between two processes, in memory that both have mapped; it must be zero at first.")
      .def(nb::init<Memory>(), "memory"_a)
      .def("push", &PySharedRing::push, "record"_a, "seconds"_a, "Push a record; False when it did not fit in that time. Does not wake the other side.")
      .def(
          "wake", [](PySharedRing& self) { self.ring().wake(); }, "Wake threads that wait for records.")
      .def("pop", &PySharedRing::pop, "seconds"_a, "Pop the oldest record; None when there was none in that time.")
      .def("pop_many", &PySharedRing::pop_many, "max"_a, "seconds"_a, "Pop the oldest records, as soon as there is one.")
      .def("mark_in_flight", &PySharedRing::mark_in_flight, "slot"_a, "what"_a, "Set what a thread has in flight; 0: nothing.")
      .def("in_flight", &PySharedRing::in_flight, "(what, tick of its start) of every thread that has something in flight.")
      .def(
          "pause", [](PySharedRing& self, bool paused) { self.ring().pause(paused); }, "paused"_a, "Pause or resume popping.")
      .def(
          "close", [](PySharedRing& self) { self.ring().close(); }, "Close the ring for both sides.")
      .def_prop_ro(
          "closed", [](PySharedRing& self) { return self.ring().closed(); }, "Whether the ring is closed.")
      .def_prop_rw(
          "flag", [](PySharedRing& self) { return self.ring().flag(); }, [](PySharedRing& self, bool on) { self.ring().set_flag(on); },
          "One bit shared by both sides.")
      .def_prop_ro(
          "max_record_size", [](PySharedRing& self) { return self.ring().max_record_size(); }, "Bytes of the largest record that fits.");
  m.attr("SHARED_RING_OVERHEAD") = qts::SharedRing::kOverhead;
  m.def(
      "key_hash", [](std::uint32_t type, std::string_view key) { return qts::key_hash(type, key); }, "type"_a, "key"_a,
      "Hash of a type's number and an event's key, as the lanes compute it.");
  m.attr("COUNT_IN_ORDER") = reinterpret_cast<std::uintptr_t>(&count_in_order);
  m.def("die_with_parent", &die_with_parent, "parent"_a, "Kill this process when the thread that started it ends.");
}
