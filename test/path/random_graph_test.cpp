// Random graphs through the compiled path. A seed is a graph, sizes and inputs; a failure names its seed.
#include "support/random_graph.h"

#include <gtest/gtest.h>

#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

class RandomGraphs : public testing::TestWithParam<uint64_t> {};

// Odd seeds have branches and loops; half of the graphs run fused, half with a kernel per node.
TEST_P(RandomGraphs, AgreeWithTheOracle) {
  const uint64_t seed = GetParam();
  const RandomGraph random = random_graph({.seed = seed, .control = seed % 2 == 1});
  const std::vector<Tensor> inputs = random_inputs(random.graph, random_symbols(random.graph, seed), seed);
  expect_paths_agree(random.graph, inputs, {.fuse = {seed % 4 < 2}, .threads = {2}, .rounding = coarsest_rounding(random.graph)});
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphs, testing::Range<uint64_t>(0, 60), testing::PrintToStringParamName());
// Seeds that once failed: scans of one element, pieces of a view behind other guards, one axis where two were meant.
INSTANTIATE_TEST_SUITE_P(OnceFailing, RandomGraphs, testing::Values<uint64_t>(62, 64, 82, 148, 161, 190, 216, 279),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace fuseloom::test
