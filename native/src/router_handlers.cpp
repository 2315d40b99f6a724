#include "router_handlers.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "qts/indicator_handler.hpp"
#include "qts/market_handler.hpp"

namespace {

using qts::Message;
using qts::MessageHandler;

// Reports when the GIL was held for so long that other threads must get it.
class GilSlice {
 public:
  explicit GilSlice(std::uint64_t limit_ns) : limit_(qts::tick_scale().span_ticks(limit_ns)) {}
  void start() { since_ = qts::ticks(); }
  bool is_over() {
    const std::uint64_t now = qts::ticks();
    if (now - since_ < limit_) return false;
    since_ = now;
    return true;
  }

 private:
  std::uint64_t limit_;
  std::uint64_t since_ = 0;
};

constexpr std::uint64_t kGilSliceNs = 1'000'000;

// Deletes Python objects of a handler with the GIL, or leaks them once the interpreter has ended.
struct DeleteWithGil {
  template <class T>
  void operator()(T* owned) const {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire gil;
    delete owned;
  }
};
template <class T>
using PythonOwned = std::unique_ptr<T, DeleteWithGil>;

struct ThreadState {
  PyGILState_STATE gil{};
  PyThreadState* thread = nullptr;
};
thread_local ThreadState thread_state;

// Holds the GIL on a worker while it exists.
class WorkerGil {
 public:
  WorkerGil() {
    block_at_shutdown([this] {
      ensure_thread_state();
      state_ = PyGILState_Ensure();
    });
  }
  ~WorkerGil() { PyGILState_Release(state_); }
  WorkerGil(const WorkerGil&) = delete;
  WorkerGil& operator=(const WorkerGil&) = delete;

 private:
  PyGILState_STATE state_{};
};

// Calls Python once per message, with a copy that the callable may keep. Between two calls `yield_gil`,
// an empty Python function, is called once per slice: the interpreter switches threads only inside
// Python functions, and the callable may be none. Releasing the GIL here instead would starve waiting
// threads, since one that is woken too late has to wait again.
class PerMessageHandler final : public MessageHandler {
 public:
  PerMessageHandler(nb::object callable, nb::object yield_gil)
      : python_(new Python{std::move(callable), std::move(yield_gil)}) {}

  std::size_t run(std::span<Message> batch) override {
    const WorkerGil gil;
    slice_.start();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      try {
        block_at_shutdown([&] {
          python_->callable(nb::cast(batch[i], nb::rv_policy::copy));
          if (slice_.is_over()) python_->yield_gil();
        });
      } catch (const std::exception& raised) {
        error = raised.what();
        return i;
      }
    }
    return batch.size();
  }

 private:
  struct Python {
    nb::object callable, yield_gil;
  };
  PythonOwned<Python> python_;
  GilSlice slice_{kGilSliceNs};
};

// Calls Python once per batch, with a slice of the handler's array that is valid until the call returns.
// Copying (2 ns a message) means that a view kept too long shows old messages and never freed memory.
class BatchHandler final : public MessageHandler {
 public:
  BatchHandler(nb::object callable, nb::object array, bool writes)
      : python_(new Python(std::move(callable), std::move(array))), writes_(writes) {}

  std::size_t run(std::span<Message> batch) override {
    const WorkerGil gil;
    const MessageBuffer& memory = python_->memory;
    std::size_t done = 0;
    while (done < batch.size()) {
      const auto part = batch.subspan(done, std::min(batch.size() - done, memory.count()));
      std::memcpy(memory.data(), part.data(), part.size_bytes());
      try {
        const auto size = static_cast<Py_ssize_t>(part.size());
        const nb::object view = nb::steal(PySequence_GetSlice(python_->array.ptr(), 0, size));
        if (!view.is_valid()) throw nb::python_error();
        block_at_shutdown([&] { python_->callable(view); });
      } catch (const std::exception& raised) {
        error = raised.what();
        error.erase(error.find_last_not_of('\n') + 1);  // under the stable ABI the text ends with a line break
        error += " (in a batch of " + std::to_string(part.size()) + " messages that starts here)";
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
    MessageBuffer memory;
  };
  PythonOwned<Python> python_;
  bool writes_;
};

// A handler that does not enter Python, and the Python object whose memory it uses.
class OwningHandler final : public MessageHandler {
 public:
  OwningHandler(std::unique_ptr<MessageHandler> handler, nb::object owner)
      : handler_(std::move(handler)), owner_(new nb::object(std::move(owner))) {}

  std::size_t run(std::span<Message> batch) override {
    const std::size_t handled = handler_->run(batch);
    if (handled < batch.size()) error = handler_->error;
    return handled;
  }

 private:
  std::unique_ptr<MessageHandler> handler_;
  PythonOwned<nb::object> owner_;
};

std::unique_ptr<MessageHandler> make_indicator(const std::string& kind, std::uint32_t period, nb::handle array) {
  const auto table = nb::cast<nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(array);
  const std::span<double> values(table.data(), table.shape(0));
  using Kind = qts::Indicator::Kind;
  const auto make = [&](Kind of, std::vector<double> params) {
    return std::make_unique<qts::IndicatorHandler>(qts::Indicator(of, std::move(params)), values);
  };
  if (kind == "ema") return make(Kind::ema, {static_cast<double>(period)});
  if (kind == "rsi") return make(Kind::rsi, {static_cast<double>(period)});
  if (kind == "vwap") return make(Kind::vwap, {});
  throw nb::value_error(("a handler is each, batch, compiled, market, ema, rsi or vwap, not " + kind).c_str());
}

}  // namespace

MessageBuffer::MessageBuffer(nb::handle object, bool writable) {
  if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0) throw nb::python_error();
  if (static_cast<std::size_t>(view_.len) % sizeof(Message) != 0) {
    PyBuffer_Release(&view_);
    throw nb::value_error("the memory is not a whole number of 96-byte messages");
  }
}

void ensure_thread_state() {
  if (thread_state.thread != nullptr) return;
  thread_state.gil = PyGILState_Ensure();
  thread_state.thread = PyEval_SaveThread();
}
void release_thread_state() {
  if (thread_state.thread == nullptr || !nb::is_alive()) return;
  block_at_shutdown([] { PyEval_RestoreThread(thread_state.thread); });
  PyGILState_Release(thread_state.gil);
  thread_state.thread = nullptr;
}

std::unique_ptr<MessageHandler> make_handler(const nb::object& spec, bool writes) {
  if (spec.is_none()) return nullptr;
  const auto parts = nb::cast<nb::tuple>(spec);
  const auto kind = parts.size() == 0 ? std::string() : nb::cast<std::string>(parts[0]);
  if (parts.size() != (kind == "compiled" ? 4 : 3))
    throw nb::value_error("a handler is made by each, batch, compiled or an indicator");
  if (kind == "each") return std::make_unique<PerMessageHandler>(nb::object(parts[1]), nb::object(parts[2]));
  if (kind == "batch") return std::make_unique<BatchHandler>(nb::object(parts[1]), nb::object(parts[2]), writes);
  if (kind == "compiled") {
    auto compiled = std::make_unique<qts::CompiledHandler>(
        reinterpret_cast<qts::CompiledHandler::Function>(nb::cast<std::uintptr_t>(parts[1])),
        reinterpret_cast<void*>(nb::cast<std::uintptr_t>(parts[2])));
    return std::make_unique<OwningHandler>(std::move(compiled), nb::object(parts[3]));
  }
  if (kind == "market") {
    auto market = std::make_unique<qts::MarketHandler>(nb::cast<qts::MarketPlane&>(parts[1]), nb::cast<std::size_t>(parts[2]));
    return std::make_unique<OwningHandler>(std::move(market), nb::object(parts[1]));
  }
  return std::make_unique<OwningHandler>(make_indicator(kind, nb::cast<std::uint32_t>(parts[1]), parts[2]),
                                         nb::object(parts[2]));
}
