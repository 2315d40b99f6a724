// Measuring loops for the benchmarks: rings between two threads, and a handler on one.
//
// Thread contract: every function starts the threads it needs, and returns once they have ended.
// Invariant: a trial records whether every message arrived in order, and whether a measuring thread had
// its CPU to itself.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <span>
#include <thread>
#include <vector>

#include "qts/clock.hpp"
#include "qts/message.hpp"
#include "qts/ring.hpp"
#include "qts/message_handler.hpp"
#include "qts/worker.hpp"

namespace qts {

struct Trial {
  std::uint64_t messages = 0;
  double ns = 0;
  bool disturbed = false;
  bool correct = true;
};

struct RingTrial {
  std::size_t capacity = 1024;
  std::size_t batch = 64;
  std::uint64_t messages = 1 << 20;
  std::array<int, 2> cpus{-1, -1};  // -1: any
};

inline constexpr std::size_t kMaxBatch = 256;
inline constexpr double kMaxLostShare = 0.03;  // a kernel thread may run; above it, other threads took part

inline void pin_to(int cpu) {
#if defined(__linux__)
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
#else
  (void)cpu;
#endif
}

// The share of time since construction in which the calling thread had no CPU.
class CpuShare {
 public:
  double lost() const {
    const double wall = static_cast<double>(monotonic_ns() - wall_);
    return wall <= 0 ? 0.0 : 1.0 - static_cast<double>(cpu_ns() - cpu_) / wall;
  }

 private:
  static std::uint64_t cpu_ns() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
  }
  std::uint64_t wall_ = monotonic_ns();
  std::uint64_t cpu_ = cpu_ns();
};

inline bool succeeded(bool done) { return done; }
inline bool succeeded(std::size_t count) { return count != 0; }
bool succeeded(const auto& run) { return !run.empty(); }

// Repeats an attempt until it succeeds. Yields in the end: on one CPU a pure spin would use up the other
// side's time slices.
template <class Try>
auto retry(Try&& attempt) {
  for (std::uint32_t spins = 0;; ++spins) {
    if (const auto result = attempt(); succeeded(result)) return result;
    if (spins < 10'000) spin_pause();
    else sched_yield();
  }
}

// Starts both sides together and waits for both. `second` returns whether all messages were correct.
template <class First, class Second>
Trial race(const RingTrial& trial, First&& first, Second&& second) {
  std::atomic<int> ready{0};
  std::atomic<bool> disturbed{false};
  Trial result{.messages = trial.messages};
  std::uint64_t start = 0, end = 0;
  const auto on_cpu = [&](int cpu, auto&& side) {
    pin_to(cpu);
    ready.fetch_add(1, std::memory_order_acq_rel);
    retry([&] { return ready.load(std::memory_order_acquire) == 2; });
    const CpuShare share;
    side();
    if (share.lost() > kMaxLostShare) disturbed.store(true, std::memory_order_relaxed);
  };
  std::thread one([&] {
    on_cpu(trial.cpus[0], [&] {
      start = ticks();
      first();
    });
  });
  std::thread two([&] {
    on_cpu(trial.cpus[1], [&] {
      result.correct = second();
      end = ticks();
    });
  });
  one.join();
  two.join();
  result.ns = static_cast<double>(tick_scale().span_ns(end - start));
  result.disturbed = disturbed.load();
  return result;
}

// Reads all of a message, so that all of its cache lines are transferred.
inline std::uint64_t read_whole(const Message& message) {
  std::array<std::uint64_t, sizeof(Message) / sizeof(std::uint64_t)> words;
  std::memcpy(words.data(), &message, sizeof message);
  std::uint64_t sum = 0;
  for (const std::uint64_t word : words) sum += word;
  return sum;
}

// Marks the memory as used: the compiler would leave out a copy that is never read.
inline void keep(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

// ---- one at a time ----

template <class AnyRing>
Trial one_at_a_time(const RingTrial& trial) {
  AnyRing ring(trial.capacity);
  return race(
      trial,
      [&] {
        Message message;
        for (std::uint64_t i = 0; i < trial.messages; ++i) {
          message.sequence_number = i;
          retry([&] { return ring.try_push(message); });
        }
      },
      [&] {
        bool correct = true;
        Message message;
        for (std::uint64_t i = 0; i < trial.messages; ++i) {
          retry([&] { return ring.try_pop(message); });
          keep(&message);
          correct &= message.sequence_number == i;
        }
        return correct;
      });
}

// `messages` round trips of one message through two rings.
template <class AnyRing>
Trial round_trip(const RingTrial& trial) {
  AnyRing request(trial.capacity), reply(trial.capacity);
  return race(
      trial,
      [&] {
        Message message;
        for (std::uint64_t i = 0; i < trial.messages; ++i) {
          retry([&] { return request.try_pop(message); });
          keep(&message);
          retry([&] { return reply.try_push(message); });
        }
      },
      [&] {
        bool correct = true;
        Message message;
        for (std::uint64_t i = 0; i < trial.messages; ++i) {
          message.sequence_number = i;
          retry([&] { return request.try_push(message); });
          retry([&] { return reply.try_pop(message); });
          keep(&message);
          correct &= message.sequence_number == i;
        }
        return correct;
      });
}

// ---- batches ----

template <class AnyRing>
Trial batched_copy(const RingTrial& trial) {
  AnyRing ring(trial.capacity);
  return race(
      trial,
      [&] {
        std::array<Message, kMaxBatch> batch{};
        for (std::uint64_t sent = 0; sent < trial.messages;) {
          const std::size_t wanted = std::min<std::uint64_t>(trial.batch, trial.messages - sent);
          for (std::size_t i = 0; i < wanted; ++i) batch[i].sequence_number = sent + i;
          sent += retry([&] { return ring.try_push_many(std::span<const Message>(batch.data(), wanted)); });
        }
      },
      [&] {
        bool correct = true;
        std::array<Message, kMaxBatch> batch{};
        for (std::uint64_t got = 0; got < trial.messages;) {
          const std::size_t count = retry([&] { return ring.try_pop_many(std::span(batch.data(), trial.batch)); });
          keep(batch.data());
          for (std::size_t i = 0; i < count; ++i) correct &= batch[i].sequence_number == got + i;
          got += count;
        }
        return correct;
      });
}

template <class AnyRing>
Trial batched_in_place(const RingTrial& trial) {
  AnyRing ring(trial.capacity);
  return race(
      trial,
      [&] {
        Message message;
        for (std::uint64_t sent = 0; sent < trial.messages;) {
          const std::size_t wanted = std::min<std::uint64_t>(trial.batch, trial.messages - sent);
          const auto run = retry([&] { return ring.claim(wanted); });
          for (Message& slot : run) {
            message.sequence_number = sent++;
            slot = message;
          }
          ring.commit(run.size());
        }
      },
      [&] {
        bool correct = true;
        for (std::uint64_t got = 0; got < trial.messages;) {
          const auto run = retry([&] { return ring.peek(trial.batch); });
          // Every other field is 0, so the sum of all words is the sequence number.
          for (const Message& message : run) correct &= read_whole(message) == got++;
          ring.release(run.size());
        }
        return correct;
      });
}

// ---- a handler alone ----

struct HandlerTrial {
  std::size_t batch = 256;
  std::uint64_t batches = 1'000;
  int cpu = -1;
};

// Runs a handler repeatedly over one batch on a new thread, as a worker would; `at_end` is called at the
// end of that thread.
inline Trial run_handler_alone(MessageHandler& handler, const HandlerTrial& trial, void (*at_end)()) {
  Trial result{.messages = trial.batch * trial.batches};
  std::vector<Message> batch(trial.batch);
  for (std::size_t i = 0; i < batch.size(); ++i) batch[i].sequence_number = i;
  std::thread([&] {
    pin_to(trial.cpu);
    const auto handled = [&] { return handler.run(batch) == batch.size(); };
    result.correct = handled();  // the first run costs more: memory, a thread state, compiled code
    const CpuShare share;
    const std::uint64_t start = ticks();
    for (std::uint64_t i = 0; i < trial.batches && result.correct; ++i) result.correct = handled();
    result.ns = static_cast<double>(tick_scale().span_ns(ticks() - start));
    result.disturbed = share.lost() > kMaxLostShare;
    at_end();
  }).join();
  return result;
}

}  // namespace qts
