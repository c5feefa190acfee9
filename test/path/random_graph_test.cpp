// Random graphs through the compiled path. A seed is a graph, sizes and inputs; a failure names its seed.
#include "support/random_graph.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

// How many seeds: more than usual with FUSELOOM_FUZZ_SEEDS=N, to search.
uint64_t seeds(uint64_t usual) {
  const char* const asked = std::getenv("FUSELOOM_FUZZ_SEEDS");
  return asked == nullptr ? usual : std::stoull(asked);
}

class RandomGraphs : public testing::TestWithParam<uint64_t> {};

// Odd seeds have branches and loops; half of the graphs run fused, half with a kernel per node.
TEST_P(RandomGraphs, AgreeWithTheOracle) {
  const uint64_t seed = GetParam();
  const RandomGraph random = random_graph({.seed = seed, .control = seed % 2 == 1});
  const std::vector<Tensor> inputs = random_inputs(random.graph, random_symbols(random.graph, seed), seed);
  expect_paths_agree(random.graph, inputs, {.fuse = {seed % 4 < 2}, .threads = {2}, .rounding = coarsest_rounding(random.graph)});
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphs, testing::Range<uint64_t>(0, seeds(60)),
                         testing::PrintToStringParamName());
// Seeds that once failed: scans of one element, pieces of a view behind other guards, one axis where two were meant.
INSTANTIATE_TEST_SUITE_P(OnceFailing, RandomGraphs, testing::Values<uint64_t>(62, 64, 82, 148, 161, 190, 216, 279),
                         testing::PrintToStringParamName());

// Inputs as callers have them: NaN and infinities, strided, misaligned, overlapping; sizes that are all 0 or all 1; any
// number of threads, which changes no bit. With siblings and random numbers.
class HostileInputs : public testing::TestWithParam<uint64_t> {};

TEST_P(HostileInputs, AgreeWithTheOracle) {
  const uint64_t seed = GetParam();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const RandomGraph random =
      random_graph({.seed = seed + 1000, .control = seed % 3 == 1, .siblings = true, .random_numbers = true});
  std::vector<compile::Compiled> compiled;
  for (const int32_t threads : {1, 2, 5}) {
    compile::Options options{.fuse = seed % 4 != 3, .threads = threads};
    options.run.poison = true;
    compiled.push_back(compile::compile(random.graph.clone(), options));
  }
  for (int round = 0; round < 4; ++round) {
    graph::SymbolValues symbols = random_symbols(random.graph, seed * 4 + static_cast<uint64_t>(round));
    for (auto& [symbol, value] : symbols) value = round < 2 ? round : value;
    std::vector<Tensor> inputs = random_inputs(random.graph, symbols, seed * 4 + static_cast<uint64_t>(round));
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (seed % 2 == 0) add_special_values(inputs[i], seed + i);
      inputs[i] = round == 3 ? overlapping(inputs[i], seed + i) : scattered(inputs[i], seed * 8 + i);
    }
    const std::vector<Tensor> expected = graph::evaluate(random.graph, inputs);
    std::vector<Tensor> first;
    for (const compile::Compiled& each : compiled) {
      const std::vector<Tensor> got = each.executable->run(inputs);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t o = 0; o < got.size(); ++o) {
        const Tensor result = got[o].to_contiguous();
        ASSERT_EQ(first_difference(expected[o], result, coarsest_rounding(random.graph)), "")
            << "round " << round << ", output " << o << "\n"
            << graph::to_string(random.graph) << each.report.explanation;
        if (first.size() == o) first.push_back(result);
        ASSERT_EQ(difference(result, first[o], 0), "")
            << "round " << round << ", output " << o << ": the number of threads shows";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostileInputs, testing::Range<uint64_t>(0, seeds(24)),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace fuseloom::test
