// Journal: an append-only file of the messages that passed a stage, with checksums, for replay.
//
// Thread contract: `append` and `free_capacity` are called by the worker of the stage; the journal's
// thread writes. A ring lies between the two: a slow disk causes back-pressure, never a loss.
//
//   file   = header, block*        header = "QTSJRNL1", size of a message, zeros up to 64 bytes
//   block  = "QBLK", count, CRC-32C of the messages, CRC-32C of these 12 bytes; then count messages
//            of 96 bytes
//
// The send time is in nanoseconds of CLOCK_MONOTONIC of the machine that wrote it; the other
// timestamps are zero. A file cut off in the middle of its last block has lost that block only; damage
// anywhere else is found by a checksum. A message may reach its strategy before it reaches the disk.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "qts/clock.hpp"
#include "qts/component.hpp"

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

namespace qts {

// CRC-32C (Castagnoli), as storage systems use it.
inline std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0) {
  crc = ~crc;
#if defined(__SSE4_2__)
  while (bytes.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    crc = static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
    bytes = bytes.subspan(8);
  }
#endif
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
  }
  return ~crc;
}

// When written data is synced to the disk: never (the system decides), at this interval, or after
// every block.
struct Fsync {
  enum class When : std::uint8_t { never, interval, always };
  When when = When::interval;
  std::chrono::milliseconds interval{100};
};

class Journal final : public Tap {
 public:
  static constexpr std::size_t kBlock = 1024;  // messages, at most
  struct Header {
    char magic[8] = {'Q', 'T', 'S', 'J', 'R', 'N', 'L', '1'};
    std::uint32_t message_size = sizeof(Message);
    std::uint32_t zeros[13] = {};
  };
  struct BlockHeader {
    char magic[4] = {'Q', 'B', 'L', 'K'};
    std::uint32_t count = 0;
    std::uint32_t crc = 0;
    std::uint32_t header_crc = 0;
  };
  static_assert(sizeof(Header) == 64 && sizeof(BlockHeader) == 16);

  // Throws when the file exists: a journal is never overwritten.
  Journal(const std::string& path, Fsync fsync, std::size_t capacity = 65536)
      : path_(path), fsync_(fsync), scale_(tick_scale()), ring_(capacity), block_(sizeof(BlockHeader) + kBlock * sizeof(Message)) {
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), path);
    const Header header;
    write_all(std::as_bytes(std::span(&header, 1)));
    thread_ = std::thread([this] { run(); });
  }
  ~Journal() override { close(); }
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  std::size_t free_capacity(std::size_t wanted) override { return failed() ? 0 : ring_.claim(wanted).size(); }
  void append(std::span<const Message> batch) override { ring_.try_push_many(batch); }

  // Writes and syncs everything appended. Called once the stage's worker has stopped.
  void close() {
    closing_.store(true, std::memory_order_release);
    if (thread_.joinable()) thread_.join();
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }
  bool failed() const { return errno_.load(std::memory_order_acquire) != 0; }
  std::string error() const {
    return path_ + ": " + std::generic_category().message(errno_.load(std::memory_order_acquire));
  }
  std::uint64_t written() const { return written_.get(); }

 private:
  void run() {
    auto synced_at = std::chrono::steady_clock::now();
    bool dirty = false;
    while (!failed()) {
      const bool last = closing_.load(std::memory_order_acquire);
      const std::size_t count = write_block();
      dirty = dirty || count != 0;
      const auto now = std::chrono::steady_clock::now();
      const bool due = fsync_.when == Fsync::When::always ||
                       (fsync_.when == Fsync::When::interval && now - synced_at >= fsync_.interval);
      if (dirty && (due || (last && count == 0))) {
        sync();
        dirty = false;
        synced_at = now;
      }
      if (last && count == 0) return;
      if (count == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  std::size_t write_block() {
    auto* const messages = block_.data() + sizeof(BlockHeader);
    std::size_t count = 0;
    while (count < kBlock) {
      const auto waiting = ring_.peek(kBlock - count);
      if (waiting.empty()) break;
      for (Message message : waiting) {
        message.timestamp_ns = scale_.to_ns(message.timestamp_ns);
        std::memcpy(messages + count++ * sizeof(Message), &message, sizeof message);
      }
      ring_.release(waiting.size());
    }
    if (count == 0) return 0;
    BlockHeader header;
    header.count = static_cast<std::uint32_t>(count);
    header.crc = crc32c({messages, count * sizeof(Message)});
    header.header_crc = crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(BlockHeader, header_crc)));
    std::memcpy(block_.data(), &header, sizeof header);
    write_all({block_.data(), sizeof(BlockHeader) + count * sizeof(Message)});
    if (!failed()) written_.add(count);
    return count;
  }

  void write_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(file_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return errno_.store(errno, std::memory_order_release);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }

  void sync() {
    if (fsync_.when != Fsync::When::never && ::fsync(file_) != 0) errno_.store(errno, std::memory_order_release);
  }

  const std::string path_;
  const Fsync fsync_;
  const TickScale scale_;
  Ring<Message> ring_;
  std::vector<std::byte> block_;
  int file_ = -1;
  std::atomic<int> errno_{0};
  std::atomic<bool> closing_{false};
  RelaxedCounter written_;
  std::thread thread_;
};

}  // namespace qts
