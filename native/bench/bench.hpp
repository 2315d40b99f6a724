// Measuring loops for the benchmarks: rings between two threads, and work on one.
//
// Thread contract: every function starts the threads it needs, and returns once they have ended.
// Invariant: a trial says whether it can be trusted: whether every message came through in order,
// and whether a measuring thread had its CPU to itself.
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
#include "qts/work.hpp"
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
  std::array<int, 2> cpus{-1, -1};  // -1: anywhere
};

inline constexpr std::size_t kMostBatch = 256;
inline constexpr double kTolerated = 0.03;  // a kernel thread's turn; more, and others took part

inline void sit_on(int cpu) {
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

// The share of its time, since it was made, that the calling thread had no CPU: others ran in its place.
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

inline bool happened(bool done) { return done; }
inline bool happened(std::size_t count) { return count != 0; }
bool happened(const auto& run) { return !run.empty(); }

// Tries again until it works. Yields at last: on one CPU a pure spin would burn the other side's time.
template <class Try>
auto insist(Try&& attempt) {
  for (std::uint32_t spins = 0;; ++spins) {
    if (const auto result = attempt(); happened(result)) return result;
    if (spins < 10'000) spin_pause();
    else sched_yield();
  }
}

// Both sides start together; the trial ends when both have ended. `second` answers whether all was right.
template <class First, class Second>
Trial race(const RingTrial& trial, First&& first, Second&& second) {
  std::atomic<int> ready{0};
  std::atomic<bool> disturbed{false};
  Trial result{.messages = trial.messages};
  std::uint64_t start = 0, end = 0;
  const auto seated = [&](int cpu, auto&& side) {
    sit_on(cpu);
    ready.fetch_add(1, std::memory_order_acq_rel);
    insist([&] { return ready.load(std::memory_order_acquire) == 2; });
    const CpuShare share;
    side();
    if (share.lost() > kTolerated) disturbed.store(true, std::memory_order_relaxed);
  };
  std::thread one([&] {
    seated(trial.cpus[0], [&] {
      start = ticks();
      first();
    });
  });
  std::thread two([&] {
    seated(trial.cpus[1], [&] {
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

// Reads all of a message, so that none of its lines stays behind in the other core.
inline std::uint64_t read_whole(const Message& message) {
  std::array<std::uint64_t, sizeof(Message) / sizeof(std::uint64_t)> words;
  std::memcpy(words.data(), &message, sizeof message);
  std::uint64_t sum = 0;
  for (const std::uint64_t word : words) sum += word;
  return sum;
}

// Makes the compiler believe that the memory is used: a copy nobody reads would be left out.
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
          insist([&] { return ring.try_push(message); });
        }
      },
      [&] {
        bool right = true;
        Message message;
        for (std::uint64_t i = 0; i < trial.messages; ++i) {
          insist([&] { return ring.try_pop(message); });
          keep(&message);
          right &= message.sequence_number == i;
        }
        return right;
      });
}

// There and back: `messages` round trips of one message.
template <class AnyRing>
Trial round_trip(const RingTrial& trial) {
  AnyRing there(trial.capacity), back(trial.capacity);
  return race(
      trial,
      [&] {
        Message message;
        for (std::uint64_t i = 0; i < trial.messages; ++i) {
          insist([&] { return there.try_pop(message); });
          keep(&message);
          insist([&] { return back.try_push(message); });
        }
      },
      [&] {
        bool right = true;
        Message message;
        for (std::uint64_t i = 0; i < trial.messages; ++i) {
          message.sequence_number = i;
          insist([&] { return there.try_push(message); });
          insist([&] { return back.try_pop(message); });
          keep(&message);
          right &= message.sequence_number == i;
        }
        return right;
      });
}

// ---- batches ----

template <class AnyRing>
Trial batched_copy(const RingTrial& trial) {
  AnyRing ring(trial.capacity);
  return race(
      trial,
      [&] {
        std::array<Message, kMostBatch> batch{};
        for (std::uint64_t sent = 0; sent < trial.messages;) {
          const std::size_t wanted = std::min<std::uint64_t>(trial.batch, trial.messages - sent);
          for (std::size_t i = 0; i < wanted; ++i) batch[i].sequence_number = sent + i;
          sent += insist([&] { return ring.try_push_many(std::span<const Message>(batch.data(), wanted)); });
        }
      },
      [&] {
        bool right = true;
        std::array<Message, kMostBatch> batch{};
        for (std::uint64_t got = 0; got < trial.messages;) {
          const std::size_t count = insist([&] { return ring.try_pop_many(std::span(batch.data(), trial.batch)); });
          keep(batch.data());
          for (std::size_t i = 0; i < count; ++i) right &= batch[i].sequence_number == got + i;
          got += count;
        }
        return right;
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
          const auto run = insist([&] { return ring.claim(wanted); });
          for (Message& slot : run) {
            message.sequence_number = sent++;
            slot = message;
          }
          ring.commit(run.size());
        }
      },
      [&] {
        bool right = true;
        for (std::uint64_t got = 0; got < trial.messages;) {
          const auto run = insist([&] { return ring.peek(trial.batch); });
          // Every other field is 0: the sum of the whole message is its number.
          for (const Message& message : run) right &= read_whole(message) == got++;
          ring.release(run.size());
        }
        return right;
      });
}

// ---- work alone ----

struct WorkTrial {
  std::size_t batch = 256;
  std::uint64_t batches = 1'000;
  int cpu = -1;
};

// Runs work over the same batch again and again on a thread of its own, as a worker would; `leave` is
// called at the end of that thread.
inline Trial work_alone(Work& work, const WorkTrial& trial, void (*leave)()) {
  Trial result{.messages = trial.batch * trial.batches};
  std::vector<Message> batch(trial.batch);
  for (std::size_t i = 0; i < batch.size(); ++i) batch[i].sequence_number = i;
  std::thread([&] {
    sit_on(trial.cpu);
    const auto handled = [&] { return work.run(batch) == batch.size(); };
    result.correct = handled();  // the first costs more: memory, a thread state, compiled code
    const CpuShare share;
    const std::uint64_t start = ticks();
    for (std::uint64_t i = 0; i < trial.batches && result.correct; ++i) result.correct = handled();
    result.ns = static_cast<double>(tick_scale().span_ns(ticks() - start));
    result.disturbed = share.lost() > kTolerated;
    leave();
  }).join();
  return result;
}

}  // namespace qts
