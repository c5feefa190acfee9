// The accuracy of the f32 functions (docs/numerics.md), over all special values and a million random bit patterns; and the
// same bits from a vector body, a tail and a scalar (R35).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "compiled.h"

namespace fuseloom::emit {
namespace {

struct Function {
  const char* name;
  double ulp;                       // the bound that docs/numerics.md gives
  double (*reference)(double);
};
constexpr Function kFunctions[] = {
    {"exp", 1.0, [](double x) { return std::exp(x); }},       {"expm1", 2.0, [](double x) { return std::expm1(x); }},
    {"log", 1.0, [](double x) { return std::log(x); }},       {"log1p", 1.5, [](double x) { return std::log1p(x); }},
    {"tanh", 2.5, [](double x) { return std::tanh(x); }},     {"erf", 1.5, [](double x) { return std::erf(x); }},
    {"sin", 1.6, [](double x) { return std::sin(x); }},       {"cos", 1.6, [](double x) { return std::cos(x); }},
    {"tan", 0.51, [](double x) { return std::tan(x); }},      {"asin", 0.51, [](double x) { return std::asin(x); }},
    {"atan", 0.51, [](double x) { return std::atan(x); }},    {"sinh", 0.51, [](double x) { return std::sinh(x); }},
    {"asinh", 0.51, [](double x) { return std::asinh(x); }},  {"sqrt", 0.5, [](double x) { return std::sqrt(x); }},
};

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

// The error in units in the last place of f32; infinite when one is NaN or infinite and the other is not.
double ulp_error(double want, float have) {
  const float rounded = static_cast<float>(want);
  if (std::isnan(rounded) || std::isnan(have)) return std::isnan(rounded) && std::isnan(have) ? 0 : INFINITY;
  if (std::isinf(have) && std::isinf(rounded)) return have == rounded ? 0 : INFINITY;
  if (rounded == 0 && have == 0 && std::signbit(want) != std::signbit(have)) return INFINITY;
  if (std::isinf(have)) return std::abs(want) > 3.4028233e38 ? 0 : INFINITY;
  const int exponent = want == 0 ? -149 : std::max(std::ilogb(want) - 23, -149);
  return std::abs(static_cast<double>(have) - want) / std::ldexp(1.0, exponent);
}

std::vector<float> patterns(size_t count, uint64_t seed) {
  std::vector<float> values;
  for (const double special : {0.0, 1.0, 0.5, 2.0, 0.25, 88.0, 88.72284, 88.73, 89.0, 87.3, 103.0, 103.98, 104.1, 9.0, 10.0, 0.92, 0.625, 1e6, 1e7,
                               3.14159265, 1.57079637, 0.785398, 16777216.0, 1e30, 3.4028235e38, 1.1754944e-38, 1e-45, 1e-40, 4.0, 3.9, 17.3, 25.0,
                               0.9999999, 1.0000001, 0.70710677, 1.4142135})
    for (const double sign : {1.0, -1.0}) values.push_back(static_cast<float>(special * sign));
  for (const float special : {INFINITY, -INFINITY, NAN, from_bits(0xffc12345u)}) values.push_back(special);
  std::mt19937_64 random(seed);
  while (values.size() < count) {
    const uint64_t r = random();
    values.push_back(from_bits(static_cast<uint32_t>(r)));
    // As many in the range where the functions are not trivial.
    values.push_back((static_cast<float>((r >> 32) & 0xffffff) / 16777216.0f - 0.5f) * (r % 3 == 0 ? 2.0f : r % 3 == 1 ? 20.0f : 220.0f));
  }
  values.resize(count);
  return values;
}

std::string unary_kernel(const std::string& op, const std::string& binding) {
  return fmt::format("kernel k_{0}_{1}(read @x: f32[n], write @y: f32[n]) sizes (n) facts (n in 0 to inf) {{\n  for i = 0 to n {2} {{\n"
                     "    %a: f32 = load @x[i]\n    %b: f32 = {0}(%a)\n    store @y[i] = %b\n  }}\n}}\n",
                     op, binding.empty() ? "scalar" : "vector", binding);
}

class Math : public ::testing::TestWithParam<size_t> {};

TEST_P(Math, IsAccurateAndTheSameEverywhere) {
  const std::vector<Toolchain> chains = toolchains();
  if (GetParam() >= chains.size()) GTEST_SKIP() << "no such compiler or instruction set here";
  const Toolchain& toolchain = chains[GetParam()];
  const std::string binding = fmt::format("vector {} x 1", toolchain.target.vector_bytes / 4);
  std::vector<kernel::Kernel> kernels;
  for (const Function& function : kFunctions) {
    kernels.push_back(kernel::parse_kernel(unary_kernel(function.name, binding), op::standard_ops()));
    kernels.push_back(kernel::parse_kernel(unary_kernel(function.name, ""), op::standard_ops()));
  }
  kernels.push_back(kernel::parse_kernel(
      fmt::format("kernel k_pow(read @x: f32[n], read @z: f32[n], write @y: f32[n]) sizes (n) facts (n in 0 to inf) {{ for i = 0 to n {} {{\n"
                  "%a: f32 = load @x[i] %c: f32 = load @z[i] %b: f32 = pow(%a, %c) store @y[i] = %b }} }}", binding), op::standard_ops()));
  const Library library(to_cpp(kernels, toolchain.target), toolchain, "-O2");
  ASSERT_TRUE(library.loaded());

  // A million patterns where the instruction set is new, fewer for the second compiler.
  const uint64_t seed = 4711 + GetParam();
  const std::vector<float> x = patterns(toolchain.compiler == "g++" && GetParam() == 0 ? 1000000 : 100000, seed);
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size()), scalar(x.size());
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(fmt::format("{} {} seed {}", function.name, toolchain.name(), seed));
    void* buffers[] = {const_cast<float*>(x.data()), y.data()};
    library.function(fmt::format("k_{}_vector", function.name))(buffers, &n, nullptr, 0, 1);
    double worst = 0;
    float worst_at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = ulp_error(function.reference(static_cast<double>(x[i])), y[i]);
      if (error > worst) {
        worst = error;
        worst_at = x[i];
      }
    }
    EXPECT_LE(worst, function.ulp) << function.name << "(" << worst_at << ") = " << function.reference(worst_at);
    RecordProperty(function.name, fmt::format("{:.2f}", worst));

    // Every element alone in a tail, and by the scalar loop.
    const int64_t few = 2000;
    void* scalar_buffers[] = {const_cast<float*>(x.data()), scalar.data()};
    library.function(fmt::format("k_{}_scalar", function.name))(scalar_buffers, &few, nullptr, 0, 1);
    for (int64_t i = 0; i < few; ++i) {
      float input = x[static_cast<size_t>(i)], alone = 0;
      void* one[] = {&input, &alone};
      const int64_t single = 1;
      library.function(fmt::format("k_{}_vector", function.name))(one, &single, nullptr, 0, 1);
      const uint32_t bits = std::bit_cast<uint32_t>(y[static_cast<size_t>(i)]);
      if (std::isnan(y[static_cast<size_t>(i)]) && std::isnan(alone) && std::isnan(scalar[static_cast<size_t>(i)])) continue;
      ASSERT_EQ(bits, std::bit_cast<uint32_t>(alone)) << "the tail differs for " << input;
      ASSERT_EQ(bits, std::bit_cast<uint32_t>(scalar[static_cast<size_t>(i)])) << "the scalar differs for " << input;
    }
  }

  std::vector<float> bases = x, exponents = patterns(x.size(), seed + 1);
  std::shuffle(exponents.begin(), exponents.end(), std::mt19937_64(seed));
  for (size_t i = 0; i < exponents.size(); i += 3) exponents[i] = static_cast<float>(static_cast<int>(i / 3 % 41) - 20);
  for (size_t i = 1; i < bases.size(); i += 3) bases[i] = std::abs(bases[i]);
  void* buffers[] = {bases.data(), exponents.data(), y.data()};
  library.function("k_pow")(buffers, &n, nullptr, 0, 1);
  double worst = 0;
  size_t worst_at = 0;
  for (size_t i = 0; i < bases.size(); ++i) {
    const double error = ulp_error(std::pow(static_cast<double>(bases[i]), static_cast<double>(exponents[i])), y[i]);
    if (error > worst) {
      worst = error;
      worst_at = i;
    }
  }
  EXPECT_LE(worst, 0.51) << "pow(" << bases[worst_at] << ", " << exponents[worst_at] << ") = " << y[worst_at];
}
INSTANTIATE_TEST_SUITE_P(Toolchains, Math, ::testing::Range(size_t{0}, size_t{6}));

}  // namespace
}  // namespace fuseloom::emit
