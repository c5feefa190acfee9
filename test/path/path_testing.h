// Runs a graph through every path that exists and compares with the oracle.
#pragma once
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "compile/pipeline.h"
#include "graph/evaluate.h"
#include "graph/text.h"
#include "run/host_driver.h"

namespace fuseloom::test {

// How far two executors of one graph may differ in a value of this type, relative to the largest magnitude of its tensor:
// rounding of the type, with room for some hundred accumulated terms. Other types are exact.
inline double rounding_of(DType dtype) {
  switch (dtype) {
    case DType::F16: return 2e-3;
    case DType::BF16: return 1.6e-2;
    case DType::F32:
    case DType::C64: return 1.6e-5;
    case DType::F64:
    case DType::C128: return 1e-12;
    default: return 0;
  }
}

// The rounding of the coarsest float type of any value: what a wider result may inherit.
inline double coarsest_rounding(const graph::Graph& graph) {
  double rounding = 0;
  for (int32_t v = 0; v < graph.value_count(); ++v) {
    rounding = std::max(rounding, rounding_of(graph.type(graph::ValueId{v}).dtype));
  }
  return rounding;
}

// "" when equal enough, else the first difference. `rounding` is used where it is larger than the type's own.
inline std::string first_difference(const Tensor& expected, const Tensor& got, double rounding = 0) {
  if (expected.dtype() != got.dtype() || expected.dims() != got.dims()) return expected.type_string() + " expected, got " + got.type_string();
  if (is_int(expected.dtype()) || expected.dtype() == DType::Bool) {
    for (int64_t i = 0; i < expected.count(); ++i) {
      if (expected.int_at(i) != got.int_at(i)) return fmt::format("element {}: {} expected, got {}", i, expected.int_at(i), got.int_at(i));
    }
    return "";
  }
  const auto magnitude = [](double x) { return std::isfinite(x) ? std::abs(x) : 0.0; };
  const bool complex = is_complex(expected.dtype());
  double scale = 1e-2;
  for (int64_t i = 0; i < expected.count(); ++i) {
    scale = std::max({scale, magnitude(expected.at(i)), complex ? magnitude(expected.imag_at(i)) : 0.0});
  }
  const double tolerance = std::max(rounding, rounding_of(expected.dtype())) * scale;
  const auto differ = [&](double e, double g) { return !(std::isnan(e) && std::isnan(g)) && e != g && !(std::abs(e - g) <= tolerance); };
  for (int64_t i = 0; i < expected.count(); ++i) {
    if (differ(expected.at(i), got.at(i)))
      return fmt::format("element {}: {} expected, got {} (tolerance {})", i, expected.at(i), got.at(i), tolerance);
    if (complex && differ(expected.imag_at(i), got.imag_at(i)))
      return fmt::format("element {}, imaginary part: {} expected, got {} (tolerance {})", i, expected.imag_at(i), got.imag_at(i), tolerance);
  }
  return "";
}

struct PathOptions {
  std::vector<bool> fuse = {true, false};
  std::vector<int32_t> threads = {1, 3};   // unfused runs take the first only
  bool poison = true;
  double rounding = 0;                     // see first_difference()
};

// The graph must survive: fused and unfused, one and several threads, poisoned memory, twice in a row (the entry is warm).
inline void expect_paths_agree(const graph::Graph& source, std::span<const Tensor> inputs, const PathOptions& options = {}) {
  const std::vector<Tensor> expected = graph::evaluate(source, inputs);
  std::vector<std::vector<Tensor>> fused_results;
  for (const bool fuse : options.fuse) {
    for (const int32_t threads : options.threads) {
      if (!fuse && threads != options.threads[0]) continue;
      compile::Options compile_options{.fuse = fuse, .threads = threads};
      compile_options.run.poison = options.poison;
      const compile::Compiled compiled = compile::compile(source.clone(), compile_options);
      for (int repeat = 0; repeat < 2; ++repeat) {
        const std::vector<Tensor> got = compiled.executable->run(inputs);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t o = 0; o < got.size(); ++o) {
          const std::string words = first_difference(expected[o], got[o], options.rounding);
          ASSERT_EQ(words, "") << "output " << o << ", fuse " << fuse << ", threads " << threads << ", run " << repeat << "\n"
                               << graph::to_string(source) << compiled.report.explanation << compiled.report.kernels_text;
        }
        if (fuse) fused_results.push_back(got);
      }
    }
  }
  // C6: the same bits for any run and any thread count.
  for (size_t r = 1; r < fused_results.size(); ++r) {
    for (size_t o = 0; o < expected.size(); ++o) {
      const Tensor a = fused_results[0][o].to_contiguous(), b = fused_results[r][o].to_contiguous();
      EXPECT_EQ(std::string_view(a.as<char>(), static_cast<size_t>(a.bytes())), std::string_view(b.as<char>(), static_cast<size_t>(b.bytes()))) << "bits of output " << o << " differ between runs";
    }
  }
}

inline void expect_paths_agree(std::string_view text, std::span<const Tensor> inputs, const PathOptions& options = {}) {
  expect_paths_agree(graph::parse_graph(text, op::standard_ops()), inputs, options);
}

// Compiled for CUDA: the text that NVRTC would get, compiled as C++, its threads as fibers, run by the host driver.
inline compile::Compiled compile_for_cuda_host(const graph::Graph& source) {
  compile::Options options{.device = program::Device::Cuda};
  options.cuda_device = run::CudaDevice::open(run::host_driver());
  options.run.poison = true;
  return compile::compile(source.clone(), options);
}

inline void expect_cuda_host_agrees(const graph::Graph& source, std::span<const Tensor> inputs, double rounding = 0) {
  const std::vector<Tensor> expected = graph::evaluate(source, inputs);
  const compile::Compiled compiled = compile_for_cuda_host(source);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const std::vector<Tensor> got = compiled.executable->run(inputs, {}, {.results = run::CallOptions::Results::Host});
    ASSERT_EQ(got.size(), expected.size());
    for (size_t o = 0; o < got.size(); ++o) {
      ASSERT_EQ(first_difference(expected[o], got[o], rounding), "") << "CUDA on the host, output " << o << ", run " << repeat << "\n"
                                                                      << graph::to_string(source) << compiled.report.explanation << compiled.report.kernels_text;
    }
  }
}

// A tensor of numbers between -2 and 2 (integers: -4 to 4, unsigned 0 to 8) that depends on the seed only.
inline Tensor numbers(DType dtype, Dims dims, uint64_t seed) {
  Tensor tensor(dtype, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const double unit = static_cast<double>(seed >> 40) / static_cast<double>(1 << 24);
    tensor.set(i, dtype == DType::Bool                            ? static_cast<double>(unit > 0.5)
                  : is_float(dtype) || is_complex(dtype) ? unit * 4 - 2
                                                         : std::floor(unit * 9) - (is_unsigned_int(dtype) ? 0 : 4));
  }
  return tensor;
}

}  // namespace fuseloom::test
