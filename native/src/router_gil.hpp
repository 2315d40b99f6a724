// The GIL around the router: released by the threads that control it, and safe while Python shuts down.
#pragma once

#include "bindings.hpp"

#include <cxxabi.h>
#include <unistd.h>

// Runs a call that may wait for the GIL. While the interpreter shuts down, such a call ends its thread:
// before 3.14 by unwinding its stack, through destructors that would wait for the GIL again, which aborts
// the process. Here the thread blocks for ever instead, as it does in 3.14.
template <class Call>
auto block_at_shutdown(Call&& call) {
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

// Releases the GIL while it exists.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    block_at_shutdown([this] { PyEval_RestoreThread(thread_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};
