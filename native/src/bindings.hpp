// Shared by the binding files of qts._native.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

namespace nb = nanobind;
using namespace nb::literals;

namespace qts {
class Work;
}

// A strategy's work as the router makes it; a thread state kept for it, and given up at a thread's end.
std::unique_ptr<qts::Work> make_router_work(const nb::object& work);
void keep_python_thread();
void leave_python_thread();

void bind_bench(nb::module_& m);
void bind_lanes(nb::module_& m);
void bind_router(nb::module_& m);
void bind_shared(nb::module_& m);
void bind_stops(nb::module_& m);
