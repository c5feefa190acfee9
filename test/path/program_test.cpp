// What lowering makes of random graphs is a valid host program with a faithful text.
#include "program/program.h"

#include <gtest/gtest.h>

#include "compile/pipeline.h"
#include "schedule/lower_program.h"
#include "support/random_graph.h"

namespace fuseloom::test {
namespace {

TEST(LoweredPrograms, VerifyAndRoundTrip) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    graph::Graph graph = random_graph({.seed = seed, .control = seed % 2 == 1}).graph;
    graph::run_passes(graph, compile::pipeline_passes());
    schedule::LowerOptions options;
    options.grouping.fuse = seed % 4 < 2;
    const program::Program lowered = schedule::lower_program(graph, options).program;
    ASSERT_NO_THROW(program::verify(lowered)) << program::to_string(lowered);
    const std::string text = program::to_string(lowered);
    const program::Program parsed = program::parse_program(text, op::standard_ops(), "printed", program::constant_pool(lowered));
    ASSERT_NO_THROW(program::verify(parsed)) << text;
    EXPECT_EQ(program::to_string(parsed), text);
    EXPECT_EQ(program::to_string(program::clone(lowered)), text);
  }
}

}  // namespace
}  // namespace fuseloom::test
