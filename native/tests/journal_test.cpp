// The journal: the file holds what passed the stage, block by block, and a disk error is reported.
#include "qts/journal.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "harness.hpp"

using namespace qts;
using namespace std::chrono_literals;

namespace {

// A temporary file name; the file is removed with it.
class TemporaryName {
 public:
  TemporaryName() {
    const int file = ::mkstemp(path_);
    ::close(file);
    ::unlink(path_);
  }
  ~TemporaryName() { ::unlink(path_); }
  std::string text() const { return path_; }

 private:
  char path_[32] = "/tmp/qts_journal_XXXXXX";
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The messages of all blocks, each block checked as a reader would.
std::vector<Message> messages(const std::string& bytes) {
  std::vector<Message> all;
  std::size_t at = sizeof(Journal::Header);
  while (at + sizeof(Journal::BlockHeader) <= bytes.size()) {
    Journal::BlockHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    const auto checked = std::as_bytes(std::span(bytes)).subspan(at, 12);
    CHECK_EQ(header.header_crc, crc32c(checked));
    at += sizeof header;
    if (at + header.count * sizeof(Message) > bytes.size()) break;
    CHECK_EQ(header.crc, crc32c(std::as_bytes(std::span(bytes)).subspan(at, header.count * sizeof(Message))));
    for (std::uint32_t i = 0; i < header.count; ++i, at += sizeof(Message))
      std::memcpy(&all.emplace_back(), bytes.data() + at, sizeof(Message));
  }
  return all;
}

void append(Journal& journal, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t k = first; k < first + count && !journal.failed();) {
    Message message;
    message.sequence_number = k;
    message.timestamp_ns = ticks();
    if (journal.free_capacity(1) == 0) continue;
    journal.append({&message, 1});
    ++k;
  }
}

class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    const rlimit lower{bytes, limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &lower);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  rlimit limit_{};
  void (*before_)(int);
};

}  // namespace

TEST(crc32c_is_the_standard_one) {
  const std::string text = "123456789";
  CHECK_EQ(crc32c(std::as_bytes(std::span(text))), 0xe3069283u);
  const std::string longer = "The quick brown fox jumps over the lazy dog";
  CHECK_EQ(crc32c(std::as_bytes(std::span(longer))), 0x22620404u);
}

TEST(journal_holds_what_was_appended_under_every_fsync_policy) {
  for (const Fsync::When when : {Fsync::When::never, Fsync::When::interval, Fsync::When::always}) {
    const TemporaryName name;
    const std::uint64_t before = to_ns(ticks());
    {
      Journal journal(name.text(), {when, 1ms}, 64);  // a small ring: the writer has to keep up
      append(journal, 0, 5'000);
      journal.close();
      CHECK(!journal.failed());
      CHECK_EQ(journal.written(), 5'000u);
    }
    const std::string bytes = content(name.text());
    CHECK_EQ(bytes.substr(0, 8), "QTSJRNL1");
    const std::vector<Message> kept = messages(bytes);
    CHECK_EQ(kept.size(), 5'000u);
    for (std::size_t k = 0; k < kept.size(); ++k) CHECK_EQ(kept[k].sequence_number, k);
    CHECK_GE(kept[0].timestamp_ns, before);  // nanoseconds, not ticks
    CHECK_LE(kept[0].timestamp_ns, to_ns(ticks()));
  }
}

TEST(journal_is_private_and_never_overwritten) {
  const TemporaryName name;
  { const Journal journal(name.text(), {}); }
  struct stat found {};
  CHECK_EQ(::stat(name.text().c_str(), &found), 0);
  CHECK_EQ(found.st_mode & 0777u, 0600u);
  CHECK_THROWS(std::system_error, Journal(name.text(), {}));
  CHECK_EQ(content(name.text()).size(), sizeof(Journal::Header));
}

TEST(full_disk_is_reported_and_the_written_blocks_are_whole) {
  const TemporaryName name;
  const FileLimit limit(10'000);
  Journal journal(name.text(), {Fsync::When::never, 0ms}, 64);
  append(journal, 0, 1'000'000);  // ends when the journal has failed
  CHECK(journal.failed());
  CHECK_EQ(journal.free_capacity(1), 0u);
  CHECK_EQ(journal.error(), name.text() + ": File too large");
  journal.close();
  const std::vector<Message> kept = messages(content(name.text()));
  CHECK_EQ(kept.size(), journal.written());
  for (std::size_t k = 0; k < kept.size(); ++k) CHECK_EQ(kept[k].sequence_number, k);
}

TEST(disk_too_small_for_the_header_is_reported_at_once) {
  const TemporaryName name;
  const FileLimit limit(10);
  Journal journal(name.text(), {});
  CHECK(journal.failed());
  CHECK_EQ(journal.free_capacity(1), 0u);
}
