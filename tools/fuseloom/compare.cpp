#include "compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace fuseloom::tool {

namespace {

// "[1, 0, 7]" of a linear row-major index.
std::string position(const Dims& dims, int64_t linear) {
  std::string text;
  for (size_t d = dims.size(); d-- > 0;) {
    text = fmt::format("{}{}{}", linear % dims[d], text.empty() ? "" : ", ", text);
    linear /= dims[d];
  }
  return "[" + text + "]";
}

}  // namespace

Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::F16: return {.absolute = 4e-3, .relative = 1e-2};
    case DType::BF16: return {.absolute = 3e-2, .relative = 5e-2};
    case DType::F32:
    case DType::C64: return {.absolute = 1e-4, .relative = 1e-3};
    case DType::F64:
    case DType::C128: return {.absolute = 1e-12, .relative = 1e-11};
    case DType::Bool:
    case DType::I8:
    case DType::I16:
    case DType::I32:
    case DType::I64:
    case DType::U8:
    case DType::U16:
    case DType::U32:
    case DType::U64: return {};
  }
  return {};
}

Difference compare(const Tensor& got, const Tensor& expected, const Tolerance& tolerance) {
  Difference difference;
  if (got.dtype() != expected.dtype() || got.dims() != expected.dims()) {
    difference.ok = false;
    difference.max_abs = difference.max_rel = std::numeric_limits<double>::infinity();
    difference.words = fmt::format("is {}, expected {}", got.type_string(), expected.type_string());
    return difference;
  }
  if (!is_float(got.dtype()) && !is_complex(got.dtype())) {
    for (int64_t i = 0; i < got.count(); ++i) {
      const int64_t a = got.int_at(i), b = expected.int_at(i);
      if (a == b) continue;
      if (difference.ok) difference.words = fmt::format("at {}: {}, expected {}", position(got.dims(), i), a, b);
      difference.ok = false;
      const double distance = std::abs(static_cast<double>(a) - static_cast<double>(b));
      difference.max_abs = std::max(difference.max_abs, distance);
      difference.max_rel = std::max(difference.max_rel, distance / std::max(1.0, std::abs(static_cast<double>(b))));
    }
    return difference;
  }
  const bool complex = is_complex(got.dtype());
  double largest = 0;
  for (int64_t i = 0; i < expected.count(); ++i) {
    for (const double value : {expected.at(i), complex ? expected.imag_at(i) : 0.0})
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  const double floor = std::max(tolerance.absolute * largest, std::numeric_limits<double>::min());
  const auto look = [&](int64_t i, double a, double b) {
    if ((std::isnan(a) && std::isnan(b)) || a == b) return;
    const double distance = std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : std::numeric_limits<double>::infinity();
    difference.max_abs = std::max(difference.max_abs, distance);
    difference.max_rel = std::max(difference.max_rel, distance / std::max(std::abs(b), floor));
    if (distance <= floor + tolerance.relative * std::abs(b)) return;
    if (difference.ok) difference.words = fmt::format("at {}: {:.9g}, expected {:.9g}", position(got.dims(), i), a, b);
    difference.ok = false;
  };
  for (int64_t i = 0; i < got.count(); ++i) {
    look(i, got.at(i), expected.at(i));
    if (complex) look(i, got.imag_at(i), expected.imag_at(i));
  }
  return difference;
}

}  // namespace fuseloom::tool
