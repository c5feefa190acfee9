#include "schedule/cuda_testing.h"
#include "support/random_graph.h"

namespace fuseloom::test {
namespace {

TEST(CudaRandomGraph, AgreesWithTheOracle) {
  const char* first = std::getenv("FUSELOOM_FIRST_SEED");
  const char* count = std::getenv("FUSELOOM_SEEDS");
  const uint64_t begin = first == nullptr ? 1 : std::strtoull(first, nullptr, 10), seeds = count == nullptr ? 12 : std::strtoull(count, nullptr, 10);
  for (uint64_t seed = begin; seed < begin + seeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraph random = random_graph({.seed = seed, .nodes = 10});
    const graph::SymbolValues symbols = random_symbols(random.graph, seed);
    const std::vector<Tensor> inputs = random_inputs(random.graph, symbols, seed);
    try {
      expect_cuda_agrees(random.graph, inputs, {}, 2e-3);   // there is f16 behind results of other types
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << graph::to_string(random.graph);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace fuseloom::test
