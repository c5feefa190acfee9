// A program that comes back out of an archive gives the same bits as the one that was compiled here.
#include "compile/archive.h"

#include <gtest/gtest.h>

#include <malloc.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "build/file.h"
#include "graph/evaluate.h"
#include "graph/text.h"
#include "run/archive.h"
#include "support/random_graph.h"

namespace fuseloom::test {
namespace {

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.dims() != b.dims()) return false;
  const Tensor left = a.to_contiguous(), right = b.to_contiguous();
  return left.bytes() == 0 || std::memcmp(left.data(), right.data(), static_cast<size_t>(left.bytes())) == 0;
}

graph::Graph parse(const std::string& text) { return graph::parse_graph(text, op::standard_ops()); }

// A matrix product with weights that are packed, a branch with constants of its own, and a size that the data decides.
graph::Graph model() {
  graph::Graph graph(op::standard_ops(), "model");
  const graph::ValueId x = graph.add_input("x", {DType::F32, {sym::Expr::symbol("n"), 48}});
  Tensor weight(DType::F32, {48, 40});
  for (int64_t i = 0; i < weight.count(); ++i) weight.set(i, static_cast<double>((i * 37) % 101) / 50 - 1);
  const graph::ValueId w = graph.add_constant(std::move(weight), "weight");
  const graph::ValueId product = graph.add("matmul", {x, w});
  const graph::ValueId activated = graph.add("silu", {product});
  const graph::ValueId soft = graph.add("softmax", {activated}, {{"axis", int64_t{1}}});
  graph.set_value_name(soft, "y");
  graph.set_outputs({soft});
  return graph;
}

struct Files {
  build::TemporaryDirectory folder;
  std::string path = folder.path() + "/model.floom";
};

void expect_same_bits(const graph::Graph& graph, std::span<const std::vector<Tensor>> calls, const compile::ArchiveOptions& options) {
  const Files files;
  compile::write_archive(graph.clone(), files.path, {}, options);
  const run::Archive archive = run::Archive::open(files.path);
  archive.reader().check_everything();
  for (const build::Isa isa : options.isas) {
    if (!build::runs_here(isa)) continue;
    const build::Isa level = isa == build::Isa::Native ? build::detect_isa() : isa;
    const compile::Compiled compiled = compile::compile(graph.clone(), {.isa = level, .threads = 1});
    for (const int32_t threads : {1, 3}) {
      const std::shared_ptr<run::Executable> loaded = archive.load({.threads = threads, .isa = std::string(build::isa_name(level))});
      for (const std::vector<Tensor>& inputs : calls) {
        const std::vector<Tensor> expected = compiled.executable->run(inputs), got = loaded->run(inputs);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(same_bits(expected[i], got[i])) << "output " << i << ", " << build::isa_name(level) << ", threads " << threads;
      }
    }
  }
}

TEST(ArchivedProgram, GivesTheSameBits) {
  const graph::Graph graph = model();
  std::vector<std::vector<Tensor>> calls;
  for (const int64_t n : {0, 1, 3, 64}) calls.push_back(random_inputs(graph, {{"n", n}}, static_cast<uint64_t>(n) + 1));
  expect_same_bits(graph, calls, {});
  expect_same_bits(graph, calls, {.isas = compile::parse_isas("portable")});
  expect_same_bits(graph, calls, {.prepare = false, .documents = false});
}

TEST(ArchivedProgram, GivesTheSameBitsForRandomGraphs) {
  for (uint64_t seed = 300; seed < 306; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const RandomGraph random = random_graph({.seed = seed, .nodes = 10, .control = seed % 2 == 1});
    std::vector<std::vector<Tensor>> calls;
    for (const uint64_t shape : {seed, seed + 1}) calls.push_back(random_inputs(random.graph, random_symbols(random.graph, shape), shape));
    expect_same_bits(random.graph, calls, {});
  }
}

TEST(ArchivedProgram, StoresPackedWeights) {
  compile::Report report;
  const program::ArchiveContents packed = compile::make_archive(model(), {}, {.documents = false}, report);
  EXPECT_TRUE(packed.targets[0].program.init.empty());
  const program::ArchiveContents raw = compile::make_archive(model(), {}, {.prepare = false, .documents = false}, report);
  EXPECT_FALSE(raw.targets[0].program.init.empty());
  EXPECT_EQ(packed.targets[0].program.constants.size(), raw.targets[0].program.constants.size());   // the raw weight is gone
}

TEST(ArchivedProgram, MakesTypicalCallsReady) {
  const Files files;
  compile::write_archive(model(), files.path, {.hint = {{"n", 7}}});
  const std::shared_ptr<run::Executable> loaded = run::Archive::open(files.path).load({.threads = 1});
  EXPECT_EQ(loaded->entry_count(), 1u);
  loaded->run(random_inputs(model(), {{"n", 7}}, 1));
  EXPECT_EQ(loaded->entry_count(), 1u);
}

TEST(ArchivedProgram, HoldsTheGraph) {
  const Files files;
  compile::write_archive(model(), files.path);
  const run::Archive archive = run::Archive::open(files.path);
  const program::ArchiveReader& reader = archive.reader();
  const op::ConstantPool pool = reader.pool();
  for (const std::string_view name : {compile::kImportedGraphDocument, compile::kGraphDocument}) {
    const graph::Graph graph = graph::parse_graph(*reader.document(name), op::standard_ops(), std::string(name), pool);
    const std::vector<Tensor> inputs = random_inputs(graph, {{"n", 5}}, 1);
    EXPECT_EQ(graph::evaluate(graph, inputs)[0].dims(), (Dims{5, 40}));
  }
}

TEST(ArchivedProgram, RefusesOtherMachines) {
  compile::Report report;
  program::ArchiveContents contents = compile::make_archive(model(), {}, {.documents = false}, report);
  const auto message = [&](const std::string& architecture, const std::string& isa) {
    contents.targets[0].modules[0].architecture = architecture;
    contents.targets[0].modules[0].isa = isa;
    std::vector<std::byte> bytes;
    program::write_archive(contents, [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
    try {
      run::Archive::from_bytes(bytes).load();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message("mips", "baseline").find("has no code for this machine"), std::string::npos);
  EXPECT_NE(message("mips", "baseline").find("it has code for: mips baseline"), std::string::npos);
  EXPECT_NE(message(std::string(build::architecture_name()), "avx1024").find("it has code for: x86-64 avx1024"), std::string::npos);
  contents.targets[0].modules[0].bytes.assign(4096, std::byte{7});
  EXPECT_NE(message(std::string(build::architecture_name()), "baseline").find("its machine code cannot be loaded here"), std::string::npos);
}

// The name of an archive is its old file or its new one: readers of the old one keep it, a writer that fails leaves it.
TEST(ArchivedProgram, IsPublishedInOneStep) {
  const Files files;
  compile::write_archive(model(), files.path);
  const std::shared_ptr<run::Executable> old = run::Archive::open(files.path).load({.threads = 1});
  const std::vector<Tensor> inputs = random_inputs(model(), {{"n", 3}}, 1);
  const Tensor before = old->run(inputs)[0];
  compile::write_archive(parse("graph main(%x: f32[n, 48]) {\n  %y: f32[n, 48] = relu(%x)\n  return %y\n}\n"), files.path);
  EXPECT_TRUE(same_bits(before, old->run(inputs)[0]));
  EXPECT_EQ(run::Archive::open(files.path).load({.threads = 1})->run(inputs)[0].dims(), (Dims{3, 48}));
  EXPECT_THROW(build::replace_file(files.path, [](const build::AppendBytes& append) {
    append(build::as_bytes("half"));
    throw UserError("stop");
  }), UserError);
  EXPECT_NO_THROW(run::Archive::open(files.path).reader().check_everything());
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(files.folder.path())) count += entry.path().string() == files.path ? 1 : 100;
  EXPECT_EQ(count, 1u);

  // A reader at any time of many replacements.
  std::atomic<bool> done = false;
  std::thread writer([&] {
    const std::optional<build::Bytes> bytes = build::read_file(files.path);
    for (int i = 0; i < 50; ++i) build::replace_file(files.path, [&](const build::AppendBytes& append) { append(*bytes); });
    done = true;
  });
  while (!done) EXPECT_NO_THROW(run::Archive::open(files.path).reader().check_everything());
  writer.join();
}

TEST(ArchivedProgram, LoadsAndUnloadsInFlatMemory) {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  if (tunables == nullptr || std::string_view(tunables).find("glibc.malloc.tcache_count=0") == std::string_view::npos)
    GTEST_SKIP() << "needs GLIBC_TUNABLES=glibc.malloc.tcache_count=0, which ctest sets";
  const char* const cycles_variable = std::getenv("FUSELOOM_LOAD_CYCLES");
  const int cycles = cycles_variable != nullptr ? std::atoi(cycles_variable) : 200;
  const Files files;
  compile::write_archive(model(), files.path);
  const std::vector<Tensor> inputs = random_inputs(model(), {{"n", 3}}, 1);
  const auto cycle = [&] { run::Archive::open(files.path).load({.threads = 2})->run(inputs); };
  const auto descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()); };
  for (int i = 0; i < 20; ++i) cycle();
  const size_t before = mallinfo2().uordblks;
  const auto open_before = descriptors();
  for (int i = 0; i < cycles; ++i) cycle();
  EXPECT_LE(mallinfo2().uordblks, before + 4096);
  EXPECT_EQ(descriptors(), open_before);
}

}  // namespace
}  // namespace fuseloom::test
