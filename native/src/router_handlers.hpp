// Handlers of the router that call Python, or use the memory of a Python object.
//
// Thread contract: make_handler with the GIL; the handlers' `run` on a worker, without it.
#pragma once

#include "router_gil.hpp"

#include <cstddef>
#include <memory>

#include "qts/message_handler.hpp"

// A view of a Python object's memory, such as a numpy array of messages.
class MessageBuffer {
 public:
  MessageBuffer(nb::handle object, bool writable);
  ~MessageBuffer() { PyBuffer_Release(&view_); }
  MessageBuffer(const MessageBuffer&) = delete;
  MessageBuffer& operator=(const MessageBuffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(view_.buf); }
  std::size_t count() const { return static_cast<std::size_t>(view_.len) / sizeof(qts::Message); }

 private:
  Py_buffer view_{};
};

// Makes a handler from None, ("each", callable, yield_gil), ("batch", callable, array), ("compiled",
// address, state address, owner of the state), ("market", plane, number of its processor) or (indicator,
// period, array of values). `writes`: what a batch handler writes into its array is copied back to the
// messages.
std::unique_ptr<qts::MessageHandler> make_handler(const nb::object& spec, bool writes);

// A worker keeps one Python thread state from its first Python handler to its end: making one costs 7 us.
void ensure_thread_state();
void release_thread_state();
