// A test harness in one header: TEST registers a test, CHECK counts failures, main runs the tests whose
// names contain argv[1].
#pragma once

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace harness {

// A sanitizer makes a test 5 to 20 times slower; it needs the interleavings, not the volume.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline bool add(const char* name, void (*body)()) {
  tests().push_back({name, body});
  return true;
}

inline int failures = 0;  // of the running test; only its thread counts

template <class Op, class A, class B>
void compare(Op op, const char* text, const A& a, const B& b, const char* file, int line) {
  if (op(a, b)) return;
  ++failures;
  std::ostringstream values;
  values << a << " and " << b;
  std::printf("  %s:%d: %s with %s\n", file, line, text, values.str().c_str());
}

inline int run(const std::string& part) {
  int passed = 0;
  std::vector<const char*> failed;
  for (const Test& test : tests()) {
    if (std::string(test.name).find(part) == std::string::npos) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    failures = 0;
    try {
      test.body();
    } catch (const std::exception& error) {
      ++failures;
      std::printf("  thrown: %s\n", error.what());
    }
    if (failures == 0)
      ++passed;
    else
      failed.push_back(test.name);
  }
  std::printf("%d passed, %zu failed\n", passed, failed.size());
  for (const char* name : failed) std::printf("failed: %s\n", name);
  return !failed.empty() || passed == 0 ? 1 : 0;
}

}  // namespace harness

#define TEST(name)                                                    \
  static void name();                                                 \
  static const bool name##_registered = ::harness::add(#name, &name); \
  static void name()

#define CHECK_OP(a, op, b)                                                                            \
  ::harness::compare([](const auto& x, const auto& y) { return x op y; }, #a " " #op " " #b, (a), (b), \
                     __FILE__, __LINE__)
#define CHECK_EQ(a, b) CHECK_OP(a, ==, b)
#define CHECK_LE(a, b) CHECK_OP(a, <=, b)
#define CHECK_GE(a, b) CHECK_OP(a, >=, b)
#define CHECK(condition) CHECK_EQ(static_cast<bool>(condition), true)
#define CHECK_THROWS(type, expression) \
  do {                                 \
    bool threw = false;                \
    try {                              \
      static_cast<void>(expression);   \
    } catch (const type&) {            \
      threw = true;                    \
    }                                  \
    CHECK(threw);                      \
  } while (false)
