// The number of allocations of this thread; allocations.cpp replaces operator new for the tests.
#pragma once

#include <cstdint>

std::uint64_t allocations_of_this_thread();
