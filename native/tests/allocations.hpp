// How often this thread has asked for memory: allocations.cpp replaces operator new for the tests.
#pragma once

#include <cstdint>

std::uint64_t allocations_of_this_thread();
