// The functions with which the binding files of qts._native register their classes.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;
using namespace nb::literals;

void bind_bar_calls(nb::module_& m);
void bind_bench(nb::module_& m);
void bind_lanes(nb::module_& m);
void bind_market(nb::module_& m);
void bind_order_log(nb::module_& m);
void bind_router(nb::module_& m);
void bind_shared(nb::module_& m);
void bind_stops(nb::module_& m);
void bind_tick_calls(nb::module_& m);
