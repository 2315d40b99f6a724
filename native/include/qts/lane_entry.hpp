// LaneEntry: an event as a lane's queue stores it, with the results of putting it there.
//
// Thread contract: plain values, used by one thread at a time.
// Invariant: the event, its key and its record are opaque here; the code that put them in frees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace qts {

// What a full lane does with the next event; the table is in lane_queue.hpp.
enum class OverflowPolicy : std::uint8_t { block, drop_oldest, collapse, sample };

struct LaneEntry {
  void* event = nullptr;
  void* key_owner = nullptr;  // keeps `key` alive
  void* record = nullptr;     // the input of a compiled handler; may be null
  std::string_view key;
  std::uint64_t hash = 0;  // of type and key; 0: not computed yet
  std::uint64_t sequence = 0;
  std::uint64_t published = 0;  // ticks
  std::uint32_t type = 0;
  bool can_collapse = false;
  bool can_drop = false;
  bool batched = false;  // its handler takes batches, so it may wait until a batch is full
};

// Hash of a type and a key; the same in every process, and never 0.
inline std::uint64_t key_hash(std::uint32_t type, std::string_view key) {
  const auto mixed = [](std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
  };
  std::uint64_t hash = mixed(0xcbf29ce484222325u ^ key.size(), type);
  for (; key.size() >= sizeof(std::uint64_t); key.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word;
    std::memcpy(&word, key.data(), sizeof word);
    hash = mixed(hash, word);
  }
  std::uint64_t rest = 0;
  if (key.size() >= sizeof(std::uint32_t)) {  // two words that may overlap
    std::uint32_t first, last;
    std::memcpy(&first, key.data(), sizeof first);
    std::memcpy(&last, key.data() + key.size() - sizeof last, sizeof last);
    rest = (std::uint64_t{first} << 32) | last;
  } else {
    for (const char letter : key) rest = (rest << 8) | static_cast<unsigned char>(letter);
  }
  hash = mixed(mixed(hash, rest), hash >> 29);
  return hash == 0 ? 1 : hash;
}

struct LaneCounts {
  std::uint64_t published = 0, handled = 0, collapsed = 0, dropped = 0, sampled = 0, dead = 0;
  std::uint64_t retried = 0, blocked = 0, overflowed = 0;
  std::uint64_t waiting = 0, in_flight = 0;
};

enum class DisplacedReason : std::uint8_t { none, collapsed, dropped, sampled_out };

// An event that will not be taken: displaced by another one, or not accepted by sampling.
struct Displaced {
  LaneEntry entry;
  DisplacedReason reason = DisplacedReason::none;
};

enum class PutResult : std::uint8_t { accepted, sampled_out, full };

}  // namespace qts
