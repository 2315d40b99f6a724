// qts._native.SharedRing: records of bytes between this process and one it has started.
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

#include "qts/lane_queue.hpp"
#include "qts/shared_ring.hpp"

namespace {

constexpr std::size_t kWordsBeforeValues = 4;  // sequence, key, timestamp, type and count

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::chrono::nanoseconds span(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::clamp(seconds, 0.0, 3600.0) * 1e9));
}

class PyRing {
 public:
  explicit PyRing(Memory memory) : memory_(std::move(memory)), ring_(memory_.data(), memory_.size()) {}

  bool push(nb::bytes record, double seconds) {
    const auto size = record.size();
    if (ring_.try_push(record.c_str(), size)) return true;
    if (seconds <= 0) return false;
    {
      const nb::gil_scoped_release released;
      ring_.wait_for_room(size, span(seconds));
    }
    return ring_.try_push(record.c_str(), size);
  }

  nb::object pop(double seconds) {
    if (!wait(seconds)) return nb::none();
    return take();
  }
  nb::list pop_many(std::size_t most, double seconds) {
    nb::list found;
    if (!wait(seconds)) return found;
    while (found.size() < most && ring_.front() != SIZE_MAX) found.append(take());
    return found;
  }

  void mark(std::size_t slot, std::uint64_t what) {
    qts::SharedRing::Mark& mark = ring_.mark(slot);
    mark.began.store(qts::ticks(), std::memory_order_relaxed);
    mark.what.store(what, std::memory_order_release);
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> marks() {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    for (std::size_t slot = 0; slot < qts::SharedRing::kSlots; ++slot)
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
      ring_.wait(span(seconds));
    }
    return ring_.front() != SIZE_MAX;
  }
  nb::bytes take() {
    const std::size_t size = ring_.front();
    PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (made == nullptr) throw nb::python_error();
    ring_.pop(PyBytes_AsString(made), size);
    return nb::steal<nb::bytes>(made);
  }

  Memory memory_;
  qts::SharedRing ring_;
};

// A compiled handler for drills; of what it reads, see RECORD. state: events seen, the first value of the last
// one, how many did not follow the one before by 1.
void count_in_order(const double* record, double* state) {
  const double value = record[kWordsBeforeValues];
  state[2] += value != state[1] + 1;
  state[1] = value;
  state[0] += 1;
}

// False when the system knows no such thing; the parent may also be gone already.
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
  nb::class_<PyRing>(m, "SharedRing", "Records of bytes between two processes, in memory both have mapped, zero at first.")
      .def(nb::init<Memory>(), "memory"_a)
      .def("push", &PyRing::push, "record"_a, "seconds"_a, "False when there was no room in that time; wakes nobody.")
      .def(
          "wake", [](PyRing& self) { self.ring().wake(); }, "Wake who waits for records.")
      .def("pop", &PyRing::pop, "seconds"_a, "The oldest record; None when there was none in that time.")
      .def("pop_many", &PyRing::pop_many, "most"_a, "seconds"_a, "The oldest records, as soon as there is one.")
      .def("mark", &PyRing::mark, "slot"_a, "what"_a, "Say what a thread has in hand; 0: nothing.")
      .def("marks", &PyRing::marks, "(what, ticks since when) of every thread that has something in hand.")
      .def(
          "pause", [](PyRing& self, bool paused) { self.ring().pause(paused); }, "paused"_a, "Whether records are held back.")
      .def(
          "close", [](PyRing& self) { self.ring().close(); }, "Tell the other side that it is over.")
      .def_prop_ro(
          "closed", [](PyRing& self) { return self.ring().closed(); }, "Whether it is over.")
      .def_prop_rw(
          "flag", [](PyRing& self) { return self.ring().flag(); }, [](PyRing& self, bool on) { self.ring().set_flag(on); },
          "One bit that both sides see.")
      .def_prop_ro(
          "largest", [](PyRing& self) { return self.ring().largest(); }, "Bytes of the largest record that fits.");
  m.attr("SHARED_RING_OVERHEAD") = qts::SharedRing::kOverhead;
  m.def(
      "key_hash", [](std::uint32_t type, std::string_view key) { return qts::key_hash(type, key); }, "type"_a, "key"_a,
      "As the lanes hash the number of a type and an event's key.");
  m.attr("COUNT_IN_ORDER") = reinterpret_cast<std::uintptr_t>(&count_in_order);
  m.def("die_with_parent", &die_with_parent, "parent"_a, "Be killed when the thread that started this process ends.");
}
