// Calls of the Python C API that raise as C++ exceptions.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "bindings.hpp"

namespace qts {

inline nb::object checked(PyObject* result) {
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

inline nb::object number(double value) { return checked(PyFloat_FromDouble(value)); }

inline nb::object name(const char* text) { return checked(PyUnicode_InternFromString(text)); }

inline nb::object get(nb::handle object, nb::handle attribute) {
  return checked(PyObject_GetAttr(object.ptr(), attribute.ptr()));
}

inline void set(nb::handle object, nb::handle attribute, nb::handle value) {
  if (PyObject_SetAttr(object.ptr(), attribute.ptr(), value.ptr()) != 0) throw nb::python_error();
}

inline std::vector<nb::object> list_items(const nb::list& list) {
  std::vector<nb::object> found;
  for (nb::handle each : list) found.push_back(nb::borrow(each));
  return found;
}

template <std::size_t N>
nb::object call(nb::handle callable, PyObject* const (&arguments)[N]) {
  return checked(PyObject_Vectorcall(callable.ptr(), arguments, N, nullptr));
}

// With two arguments; the place before them is for the object of a bound method.
inline nb::object call_method(nb::handle method, nb::handle first, nb::handle second) {
  PyObject* arguments[] = {nullptr, first.ptr(), second.ptr()};
  return checked(PyObject_Vectorcall(method.ptr(), arguments + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}

inline bool is_true(nb::handle object) {
  if (object.is_none()) return false;
  const int found = PyObject_IsTrue(object.ptr());
  if (found < 0) throw nb::python_error();
  return found != 0;
}

// Whether they are the same also where zero has a sign.
inline bool same_bits(double one, double other) { return std::memcmp(&one, &other, sizeof one) == 0; }

// Value of a float that nothing else refers to. The stable API has no way to set it: it is the last part of the object, which
// is checked once. Where it is elsewhere, nothing is set.
class FloatValue {
 public:
  FloatValue() {
    const auto size = nb::cast<std::size_t>(nb::handle(reinterpret_cast<PyObject*>(&PyFloat_Type)).attr("__basicsize__"));
    if (size < sizeof(PyObject*) + sizeof(double)) return;
    offset_ = size - sizeof(double);
    if (!is_at_offset(-1.25e-300) || !is_at_offset(3.5e200)) offset_ = 0;
  }

  bool set(nb::handle object, double value) const {
    if (offset_ == 0) return false;
    std::memcpy(reinterpret_cast<char*>(object.ptr()) + offset_, &value, sizeof value);
    return true;
  }

 private:
  bool is_at_offset(double value) const {
    const nb::object made = number(value);
    return std::memcmp(reinterpret_cast<const char*>(made.ptr()) + offset_, &value, sizeof value) == 0;
  }

  std::size_t offset_ = 0;
};

// Field of an immutable struct that nothing else refers to.
class StructField {
 public:
  StructField() = default;
  StructField(nb::handle type, const char* field) : member_(nb::getattr(type, field)) {
    set_ = reinterpret_cast<descrsetfunc>(PyType_GetSlot(Py_TYPE(member_.ptr()), Py_tp_descr_set));
    if (set_ == nullptr) throw nb::type_error("no field of a struct");
  }
  void set(nb::handle object, nb::handle value) const {
    if (set_(member_.ptr(), object.ptr(), value.ptr()) != 0) throw nb::python_error();
  }

 private:
  nb::object member_;
  descrsetfunc set_ = nullptr;
};

}  // namespace qts
