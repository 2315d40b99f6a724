// Shared by the binding files of qts._native.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;
using namespace nb::literals;

void bind_router(nb::module_& m);
