// Every primitive × every dtype: the cases, inputs that matter for them, and what their results may differ by.
#pragma once
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "fuseloom/error.h"
#include "kernel/kernel.h"
#include "op/op.h"

namespace fuseloom::emit {

inline constexpr DType kAll[] = {DType::Bool, DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32,
                          DType::U64, DType::F16, DType::BF16, DType::F32, DType::F64, DType::C64, DType::C128};

struct Case {
  const op::OpRecord* op = nullptr;
  std::vector<DType> inputs;
  DType output = DType::F32;
  op::Attrs attrs;
  std::string name;
};

inline std::vector<Case> make_cases() {
  std::vector<Case> cases;
  const auto add = [&](const op::OpRecord& record, std::vector<DType> inputs, op::Attrs attrs) {
    std::vector<op::TensorType> types;
    for (const DType dtype : inputs) types.push_back({.dtype = dtype, .shape = {}});
    const std::vector<char> present(inputs.size(), 1);
    try {
      const DType output = op::infer_types(record, types, present, attrs).at(0).dtype;
      Case c{.op = &record, .inputs = inputs, .output = output, .attrs = attrs, .name = record.name};
      for (const DType dtype : inputs) c.name += "_" + std::string(dtype_name(dtype));
      c.name += "_to_" + std::string(dtype_name(output));
      if (!attrs.has("to")) for (const auto& [key, value] : attrs.all()) c.name += "_" + key;
      cases.push_back(std::move(c));
    } catch (const UserError&) {   // not defined for these types
    }
  };
  for (const op::OpRecord* record : op::standard_ops().all()) {
    if (record->family != op::Family::Elementwise || !record->rule.empty()) continue;
    for (const DType dtype : kAll) {
      if (record->name == "cast" || record->name == "bitcast") {
        for (const DType to : kAll) add(*record, {dtype}, {{"to", to}});
      } else if (record->name == "select") {
        add(*record, {DType::Bool, dtype, dtype}, {});
      } else {
        add(*record, std::vector<DType>(static_cast<size_t>(record->min_inputs), dtype), {});
        if (record->name == "is_inf") add(*record, {dtype}, {{"negative", int64_t{0}}});
        if (record->name == "pow")
          for (const DType exponent : {DType::I32, DType::U8, DType::F32, DType::I64}) if (exponent != dtype) add(*record, {dtype, exponent}, {});
      }
    }
  }
  return cases;
}

// Values that matter: specials, small integers, wide random ones.
inline Tensor make_input(DType dtype, int64_t n, std::mt19937_64& random, const op::OpRecord& record, size_t input) {
  Tensor tensor(dtype, {n});
  const bool shift = record.name.starts_with("shift") && input == 1;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t r = random();
    const auto real = [&]() -> double {
      static const double specials[] = {0.0, -0.0, 1.0, -1.0, 0.5, INFINITY, -INFINITY, NAN, 2.0, 1e-40, -3.5, 100.0, 2.5, -0.5, 1e30, 7.0};
      const uint64_t q = random();
      if (q % 4 == 0) return specials[(q >> 8) % 16];
      return (static_cast<double>(q >> 11) / 9007199254740992.0 - 0.5) * (q % 4 == 1 ? 4.0 : q % 4 == 2 ? 40.0 : 2000.0);
    };
    if (dtype == DType::Bool) {
      tensor.set_int(i, static_cast<int64_t>(r & 1));
    } else if (is_int(dtype)) {
      const int64_t small = static_cast<int64_t>(r >> 32) % 9 - 4;
      int64_t value = r % 3 == 0 ? static_cast<int64_t>(random()) : small;
      if (r % 7 == 0) value = int64_t{1} << (dtype_bits(dtype) - 1);   // the lowest signed value
      if (shift && r % 4 != 0) value = static_cast<int64_t>(r >> 40) % (dtype_bits(dtype) + 3);
      tensor.set_int(i, value);
    } else if (is_complex(dtype)) {
      tensor.set_complex(i, (static_cast<double>(random() >> 11) / 9007199254740992.0 - 0.5) * 6,
                         r % 8 == 0 ? 0.0 : (static_cast<double>(random() >> 11) / 9007199254740992.0 - 0.5) * 6);
    } else {
      tensor.set(i, real());
    }
  }
  return tensor;
}

// Units in the last place of the output type that a result may be off (docs/numerics.md); -1: compared as numbers with a
// relative bound, for complex functions.
inline double allowed_ulp(const Case& c) {
  static const std::map<std::string, double> wide = {
      {"exp", 2}, {"expm1", 3}, {"log", 2}, {"log1p", 3}, {"tanh", 3}, {"erf", 2}, {"sin", 2}, {"cos", 2}, {"tan", 1}, {"asin", 1},
      {"acos", 1}, {"atan", 1}, {"sinh", 1}, {"cosh", 1}, {"asinh", 1}, {"acosh", 1}, {"atanh", 1}, {"atan2", 1}, {"pow", 1},
      {"rsqrt", 2}};
  const DType dtype = c.output;
  if (is_complex(c.inputs[0])) return c.op->name == "select" || c.op->name == "cast" || c.op->name == "neg" || c.op->name == "conj" ||
                                              c.op->name == "real" || c.op->name == "imag" || c.op->name == "bitcast"
                                          ? 0 : -1;
  const auto found = wide.find(c.op->name);
  if (found == wide.end()) return 0;
  return dtype == DType::F16 || dtype == DType::BF16 ? 1 : dtype == DType::F64 ? 3 : dtype == DType::F32 ? found->second : 0;
}

inline double ulp_of(DType dtype, double value) {
  const int mantissa = dtype == DType::F16 ? 10 : dtype == DType::BF16 ? 7 : dtype == DType::F32 ? 23 : 52;
  const int least = dtype == DType::F16 ? -24 : dtype == DType::BF16 ? -133 : dtype == DType::F32 ? -149 : -1074;
  if (value == 0 || !std::isfinite(value)) return std::ldexp(1.0, least);
  return std::ldexp(1.0, std::max(std::ilogb(value) - mantissa, least));
}

// "" when right.
inline std::string compare(const Case& c, const Tensor& expected, const Tensor& found, int64_t i) {
  const auto describe = [&](double want, double have) { return "element " + std::to_string(i) + ": " + std::to_string(have) + " instead of " + std::to_string(want); };
  if (is_int(c.output) || c.output == DType::Bool) {
    const int64_t want = expected.int_at(i), have = found.int_at(i);
    return want == have ? "" : "element " + std::to_string(i) + ": " + std::to_string(have) + " instead of " + std::to_string(want);
  }
  const double allowed = allowed_ulp(c);
  for (const bool imaginary : {false, true}) {
    if (imaginary && !is_complex(c.output)) break;
    const double want = imaginary ? expected.imag_at(i) : expected.at(i), have = imaginary ? found.imag_at(i) : found.at(i);
    if (std::isnan(want) && std::isnan(have)) continue;
    if (allowed < 0) {
      const double size = std::max(1.0, std::abs(expected.at(i)) + (is_complex(c.output) ? std::abs(expected.imag_at(i)) : 0.0));
      if (std::abs(want - have) <= size * (c.output == DType::C64 || c.output == DType::F32 ? 2e-6 : 1e-14)) continue;
      return describe(want, have);
    }
    if (want == have && (want != 0 || std::signbit(want) == std::signbit(have))) continue;
    if (allowed == 0 || std::isinf(want) != std::isinf(have) || !(std::abs(want - have) <= allowed * ulp_of(c.output, want)))
      return describe(want, have);
  }
  return "";
}

}  // namespace fuseloom::emit
