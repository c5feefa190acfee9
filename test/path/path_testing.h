// Runs a graph through every path that exists and compares with the oracle.
#pragma once
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "compile/pipeline.h"
#include "graph/evaluate.h"
#include "graph/text.h"

namespace fuseloom::test {

// How far two executors of one graph may differ: rounding of the type, with room for `length` accumulated terms.
inline double tolerance_of(DType dtype, double scale, double length = 64) {
  switch (dtype) {
    case DType::F16: return 2e-3 * scale + 1e-6;
    case DType::BF16: return 1.6e-2 * scale + 1e-6;
    case DType::F32:
    case DType::C64: return 2e-6 * std::sqrt(length) * scale + 1e-7;
    case DType::F64:
    case DType::C128: return 1e-12 * scale + 1e-300;
    default: return 0;
  }
}

// "" when equal enough, else the first difference. Both values are judged against the largest magnitude of the tensor.
inline std::string difference(const Tensor& expected, const Tensor& got) {
  if (expected.dtype() != got.dtype() || expected.dims() != got.dims()) return expected.type_string() + " expected, got " + got.type_string();
  double scale = 0;
  for (int64_t i = 0; i < expected.count(); ++i) {
    if (std::isfinite(expected.at(i))) scale = std::max(scale, std::abs(expected.at(i)));
  }
  const double tolerance = tolerance_of(expected.dtype(), scale);
  for (int64_t i = 0; i < expected.count(); ++i) {
    if (is_int(expected.dtype()) || expected.dtype() == DType::Bool) {
      if (expected.int_at(i) != got.int_at(i)) return fmt::format("element {}: {} expected, got {}", i, expected.int_at(i), got.int_at(i));
      continue;
    }
    const double e = expected.at(i), g = got.at(i);
    if (std::isnan(e) && std::isnan(g)) continue;
    if (e == g) continue;
    if (!(std::abs(e - g) <= tolerance)) return fmt::format("element {}: {} expected, got {} (tolerance {})", i, e, g, tolerance);
  }
  return "";
}

struct PathOptions {
  bool poison = true;
  bool also_unfused = true;
  std::vector<int32_t> threads = {1, 3};
};

// The graph must survive: fused and unfused, one and several threads, poisoned memory, twice in a row (the entry is warm).
inline void expect_paths_agree(const graph::Graph& source, std::span<const Tensor> inputs, const PathOptions& options = {}) {
  const std::vector<Tensor> expected = graph::evaluate(source, inputs);
  std::vector<std::vector<Tensor>> fused_results;
  for (const bool fuse : {true, false}) {
    if (!fuse && !options.also_unfused) continue;
    for (const int32_t threads : options.threads) {
      if (!fuse && threads != options.threads[0]) continue;
      compile::Options compile_options{.fuse = fuse, .threads = threads};
      compile_options.run.poison = options.poison;
      const compile::Compiled compiled = compile::compile(source.clone(), compile_options);
      for (int repeat = 0; repeat < 2; ++repeat) {
        const std::vector<Tensor> got = compiled.executable->run(inputs);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t o = 0; o < got.size(); ++o) {
          EXPECT_EQ(difference(expected[o], got[o]), "") << "output " << o << ", fuse " << fuse << ", threads " << threads << ", run " << repeat << "\n"
                                                         << graph::to_string(source) << compiled.report.explanation << compiled.report.kernels_text;
          if (::testing::Test::HasFailure()) return;
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

// A tensor of numbers between -2 and 2 that depends on the seed only.
inline Tensor numbers(DType dtype, Dims dims, uint64_t seed) {
  Tensor tensor(dtype, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    const double unit = static_cast<double>(seed >> 40) / static_cast<double>(1 << 24);
    tensor.set(i, dtype == DType::Bool ? static_cast<double>(unit > 0.5) : is_float(dtype) ? unit * 4 - 2 : std::floor(unit * 9) - (is_unsigned_int(dtype) ? 0 : 4));
  }
  return tensor;
}

}  // namespace fuseloom::test
