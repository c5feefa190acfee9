// Every primitive × every dtype, as a vector loop, against the op's reference: all lengths around the vector width, from a
// misaligned offset, inside guard pages; and the same bits from the vector body, the tail and a loop without vectors.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "compiled.h"
#include "fuseloom/error.h"
#include "op/op.h"

namespace fuseloom::emit {
namespace {

using kernel::Kernel;

constexpr DType kAll[] = {DType::Bool, DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32,
                          DType::U64, DType::F16, DType::BF16, DType::F32, DType::F64, DType::C64, DType::C128};

struct Case {
  const op::OpRecord* op = nullptr;
  std::vector<DType> inputs;
  DType output = DType::F32;
  op::Attrs attrs;
  std::string name;
};

// y[offset_y + i] = op(a[offset + i], ...) for i < n; binding and width of the loop are given.
Kernel make_kernel(const Case& c, kernel::Binding binding, int width, int unroll, const std::string& name) {
  Kernel k;
  k.name = name;
  k.symbols = {"n", "offset"};
  k.facts.symbols["n"] = sym::Facts::size();
  k.facts.symbols["offset"] = sym::Facts::size();
  const sym::Expr n = sym::Expr::symbol("n"), offset = sym::Expr::symbol("offset"), i = sym::Expr::symbol("i");
  kernel::Loop loop{.axis = "i", .begin = 0, .end = n, .binding = binding, .width = width, .unroll = unroll};
  kernel::Apply apply{.op = c.op, .args = {}, .attrs = c.attrs};
  apply.attrs.erase("to");
  for (size_t input = 0; input < c.inputs.size(); ++input) {
    const kernel::BufferId buffer = k.add_buffer({.name = "x" + std::to_string(input), .dtype = c.inputs[input],
                                                  .space = kernel::Space::Global, .access = kernel::Access::Read, .size = n + offset});
    kernel::ScalarId value = k.add_scalar(c.inputs[input]);
    loop.body.push_back({kernel::Let{value, kernel::Load{.buffer = buffer, .index = i + offset}}});
    if (compute_dtype(c.inputs[input]) != c.inputs[input] && c.op->name != "cast" && c.op->name != "bitcast") {
      const kernel::ScalarId wide = k.add_scalar(DType::F32);
      loop.body.push_back({kernel::Let{wide, kernel::Apply{.op = &op::standard_ops().at("cast"), .args = {value}}}});
      value = wide;
    }
    apply.args.push_back(value);
  }
  const bool conversion = c.op->name == "cast" || c.op->name == "bitcast";
  kernel::ScalarId result = k.add_scalar(conversion ? c.output : compute_dtype(c.output));
  loop.body.push_back({kernel::Let{result, apply}});
  if (!conversion && compute_dtype(c.output) != c.output) {
    const kernel::ScalarId narrow = k.add_scalar(c.output);
    loop.body.push_back({kernel::Let{narrow, kernel::Apply{.op = &op::standard_ops().at("cast"), .args = {result}}}});
    result = narrow;
  }
  const kernel::BufferId y = k.add_buffer({.name = "y", .dtype = c.output, .space = kernel::Space::Global,
                                           .access = kernel::Access::Write, .size = n + offset});
  loop.body.push_back({kernel::Store{.buffer = y, .index = i + offset, .value = result}});
  k.body.push_back({loop});
  return k;
}

std::vector<Case> make_cases() {
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
Tensor make_input(DType dtype, int64_t n, std::mt19937_64& random, const op::OpRecord& record, size_t input) {
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
double allowed_ulp(const Case& c) {
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

double ulp_of(DType dtype, double value) {
  const int mantissa = dtype == DType::F16 ? 10 : dtype == DType::BF16 ? 7 : dtype == DType::F32 ? 23 : 52;
  const int least = dtype == DType::F16 ? -24 : dtype == DType::BF16 ? -133 : dtype == DType::F32 ? -149 : -1074;
  if (value == 0 || !std::isfinite(value)) return std::ldexp(1.0, least);
  return std::ldexp(1.0, std::max(std::ilogb(value) - mantissa, least));
}

// "" when right.
std::string compare(const Case& c, const Tensor& expected, const Tensor& found, int64_t i) {
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

class Primitives : public ::testing::TestWithParam<size_t> {};

TEST_P(Primitives, MatchTheirReferences) {
  const std::vector<Toolchain> chains = toolchains();
  if (GetParam() >= chains.size()) GTEST_SKIP() << "no such compiler or instruction set here";
  const Toolchain& toolchain = chains[GetParam()];
  std::vector<Case> cases = make_cases();
  ASSERT_GT(cases.size(), 500u);
  // The first combination sees every case, the others a share each.
  if (GetParam() != 0) {
    std::vector<Case> share;
    for (size_t i = GetParam() % 4; i < cases.size(); i += 4) share.push_back(cases[i]);
    cases = std::move(share);
  }
  std::vector<Kernel> kernels;
  for (const Case& c : cases) {
    DType widest = DType::I8;
    for (DType dtype : c.inputs) {
      dtype = compute_dtype(dtype);
      if (dtype_bits(dtype) > dtype_bits(widest)) widest = dtype;
    }
    if (dtype_bits(compute_dtype(c.output)) > dtype_bits(widest)) widest = compute_dtype(c.output);
    const int bytes = static_cast<int>(dtype_bits(widest)) / (is_complex(widest) ? 16 : 8);
    // Natural width; for every third case the width of f32, so that wide types are handled in halves and narrow ones partly.
    const int width = kernels.size() % 3 == 0 ? toolchain.target.vector_bytes / 4 : toolchain.target.vector_bytes / bytes;
    kernels.push_back(make_kernel(c, kernel::Binding::Vector, width, kernels.size() % 4 == 1 ? 2 : 1, "k_" + c.name));
    ASSERT_NO_THROW(verify(kernels.back())) << kernel::to_string(kernels.back());
  }
  std::string source;
  ASSERT_NO_THROW(source = to_cpp(kernels, toolchain.target));
  const Library library(source, toolchain, "-O1");
  ASSERT_TRUE(library.loaded());

  const uint64_t seed = 20240607;
  for (size_t index = 0; index < cases.size(); ++index) {
    const Case& c = cases[index];
    SCOPED_TRACE(c.name + " " + toolchain.name() + " seed " + std::to_string(seed));
    std::mt19937_64 random(seed + index);
    constexpr int64_t kLongest = 127;
    std::vector<Tensor> inputs;
    for (size_t input = 0; input < c.inputs.size(); ++input) inputs.push_back(make_input(c.inputs[input], kLongest, random, *c.op, input));
    const Tensor expected = op::run_reference(*c.op, inputs, c.attrs).at(0);
    int errors = 0;
    for (const int64_t n : {0, 1, 3, 15, 16, 17, 33, 127}) {
      for (const int64_t offset : {0, 1}) {
        // The last element touches the guard page. Elements in front of the offset must not change.
        std::vector<std::unique_ptr<GuardedBuffer>> memory;
        std::vector<void*> pointers;
        for (size_t input = 0; input < inputs.size(); ++input) {
          const size_t element = static_cast<size_t>(dtype_bytes(c.inputs[input]));
          memory.push_back(std::make_unique<GuardedBuffer>(static_cast<size_t>(n + offset) * element));
          std::memcpy(static_cast<char*>(memory.back()->data()) + static_cast<size_t>(offset) * element, inputs[input].data(),
                      static_cast<size_t>(n) * element);
          pointers.push_back(memory.back()->data());
        }
        const size_t element = static_cast<size_t>(dtype_bytes(c.output));
        const GuardedBuffer output(static_cast<size_t>(n + offset) * element);
        std::memset(output.data(), 0x5a, static_cast<size_t>(n + offset) * element);
        pointers.push_back(output.data());
        const int64_t sizes[] = {n, offset};
        library.function("k_" + c.name)(pointers.data(), sizes, nullptr, 0, 1);
        for (size_t byte = 0; byte < static_cast<size_t>(offset) * element; ++byte)
          ASSERT_EQ(static_cast<unsigned char*>(output.data())[byte], 0x5a) << "a store in front of the first element";
        const Tensor found = Tensor::borrow(c.output, {n}, static_cast<char*>(output.data()) + static_cast<size_t>(offset) * element);
        for (int64_t i = 0; i < n && errors < 3; ++i) {
          const std::string difference = compare(c, expected, found, i);
          if (difference.empty()) continue;
          ++errors;
          std::string args;
          for (const Tensor& input : inputs) args += " " + std::to_string(is_int(input.dtype()) ? static_cast<double>(input.int_at(i)) : input.at(i));
          ADD_FAILURE() << "n " << n << " offset " << offset << " " << difference << " for" << args;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Toolchains, Primitives, ::testing::Range(size_t{0}, size_t{6}));

}  // namespace
}  // namespace fuseloom::emit
