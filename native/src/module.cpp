// qts._native: the one binding file.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) { m.doc() = "The C++ core of QTS."; }
