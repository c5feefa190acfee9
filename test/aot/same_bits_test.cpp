// The interpreter, the library, the generated text and the archive give the same bits, for every instruction set, shape and number of
// threads.
#include "aot_testing.h"
#include "compile/archive.h"
#include "path/path_testing.h"
#include "run/archive.h"
#include "support/random_graph.h"

namespace fuseloom::test {
namespace {

void expect_same_bits(const graph::Graph& graph, const std::vector<std::vector<Tensor>>& calls, const std::vector<int32_t>& threads = {1, 2, 5}) {
  const compile::AotLibrary library = compile_library(graph);
  const CompiledModel compiled(library);
  const CompiledSource source(compile_source(graph), "g++");
  ASSERT_EQ(source.log(), "");
  const Model from_source(source.path());
  const build::TemporaryDirectory folder;
  const std::string path = folder.path() + "/model.floom";
  compile::write_archive(graph.clone(), path, {.cache_dir = ""}, {.isas = compile::parse_isas("portable")});
  const run::Archive archive = run::Archive::open(path);
  for (const build::Isa isa : isas_here()) {
    compile::Options options{.isa = isa, .threads = 1};
    const compile::Compiled interpreter = compile::compile(graph.clone(), options);
    for (const int32_t count : threads) {
      const Instance instance = compiled.model().instance({.threads = count, .isa = abi_isa(isa)});
      ASSERT_EQ(instance.isa(), abi_isa(isa));
      const Instance text = from_source.instance({.threads = count, .isa = abi_isa(isa)});
      const std::shared_ptr<run::Executable> loaded = archive.load({.threads = count, .isa = std::string(build::isa_name(isa))});
      for (size_t c = 0; c < calls.size(); ++c) {
        std::vector<Tensor> expected;
        std::string refused;
        try {
          expected = interpreter.executable->run(calls[c]);
        } catch (const UserError& error) {
          refused = error.what();
        }
        if (!refused.empty()) {
          EXPECT_THROW(instance.run(arguments_of(calls[c])), ModelError) << refused;
          EXPECT_THROW(text.run(arguments_of(calls[c])), ModelError) << refused;
          EXPECT_THROW(loaded->run(calls[c]), UserError) << refused;
          continue;
        }
        for (int repeat = 0; repeat < 2; ++repeat) {
          const std::vector<Result> results = instance.run(arguments_of(calls[c])), from_text = text.run(arguments_of(calls[c]));
          const std::vector<Tensor> from_archive = loaded->run(calls[c]);
          ASSERT_EQ(results.size(), expected.size());
          for (size_t o = 0; o < results.size(); ++o) {
            EXPECT_EQ(bit_difference(expected[o], tensor_of(results[o])), "")
                << "output " << o << ", " << build::isa_name(isa) << ", " << count << " threads, call " << c << "\n" << graph::to_string(graph) << interpreter.report.program_text;
            EXPECT_EQ(bit_difference(expected[o], tensor_of(from_text[o])), "") << "generated text, output " << o;
            EXPECT_EQ(bit_difference(expected[o], from_archive[o]), "") << "archive, output " << o;
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(SameBits, Pointwise) {
  const graph::Graph graph = parse(R"(graph add(%x: f32[n, 64], %y: f32[n, 64]) symbols {n in 0 .. inf} {
    %z = add(%x, %y)
    %w = exp(%z)
    return %w
  })");
  std::vector<std::vector<Tensor>> calls;
  for (const int64_t n : {0, 1, 7, 2000}) calls.push_back({numbers(DType::F32, {n, 64}, 1), numbers(DType::F32, {n, 64}, 2)});
  expect_same_bits(graph, calls);
}

TEST(SameBits, RandomGraphs) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomGraph random = random_graph({.seed = seed, .control = seed % 2 == 0});
    std::vector<std::vector<Tensor>> calls;
    for (uint64_t call = 0; call < 3; ++call) calls.push_back(random_inputs(random.graph, random_symbols(random.graph, seed * 10 + call), seed + call));
    try {
      expect_same_bits(random.graph, calls, {1, 3});
    } catch (const Unsupported& refusal) {
      fmt::print("seed {}: {}\n", seed, refusal.what());   // a native op
      continue;
    }
    if (::testing::Test::HasFailure()) return;
    ++compared;
  }
  EXPECT_GE(compared, 2);
}

}  // namespace
}  // namespace fuseloom::test
