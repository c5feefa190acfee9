// Ops with kernels of their own inside libraries and C++ text: the same bits as in the interpreter, every configuration with its
// own constant (R61), and what is wrong with them said by name.
#include "aot_testing.h"
#include "path/path_testing.h"
#include "support/greedy_op.h"

namespace fuseloom::test {
namespace {

const char* const kGraph = R"(graph main(%x: f32[n, m]) {
  %a: f32[n, m] = relu(%x)
  %b: f32[n, m] = scaled(%a) {add = 1}
  %y: f32[n, m] = mul(%b, %b)
  return %y
})";

// x * FACTOR + add. `max` is the user's, not one of ours; the macro must not reach our text.
op::OpRecord scaled(std::vector<op::KernelConfiguration> configurations) {
  op::SourceKernel kernel{.helpers = "#include <cmath>\n#define Run 1\nstatic inline float max(float a, float b) { return std::fmax(a, b); }",
                          .source = R"(void run(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end) {
  const X0* x = static_cast<const X0*>(buffers[0]);
  Y0* y = static_cast<Y0*>(buffers[1]);
  for (int64_t r = begin; r < end; ++r) {
    float* row = reinterpret_cast<float*>(scratch);
    for (int64_t c = 0; c < sizes[1]; ++c) row[c] = max(x[r * sizes[1] + c], -1e30f) * FACTOR;
    for (int64_t c = 0; c < sizes[1]; ++c) y[r * sizes[1] + c] = row[c] + add;
  }
})",
                          .configurations = std::move(configurations),
                          .extent = "x0_d0",
                          .scratch_bytes = "x0_d1*4",
                          .work = "x0_d0*x0_d1*1000",
                          .mutates = std::vector<size_t>()};
  return {.name = "scaled",
          .summary = "x * FACTOR + add",
          .attrs = {{"add", op::AttrSpec::Kind::Integer, true}},
          .infer = [](const op::InferContext& context) { return std::vector<op::TensorType>{context.in(0)}; },
          .kernel = std::move(kernel)};
}

TEST(CustomOpAhead, MostSpecificConfigurationFirst) {  // R61
  const op::OpTable table = table_with(scaled({{.constants = {{"FACTOR", 7}}, .condition = "eq(mod(x0_d1, 8), 0)"},
                                               {.constants = {{"FACTOR", 5}}, .condition = "eq(mod(x0_d1, 4), 0)"},
                                               {.constants = {{"FACTOR", 2}}}}));
  const graph::Graph graph = graph::parse_graph(kGraph, table);
  const CompiledModel library(compile_library(graph));
  const CompiledSource gcc(compile_source(graph), "g++"), clang(compile_source(graph), "clang++");
  ASSERT_EQ(gcc.log(), "");
  ASSERT_EQ(clang.log(), "");
  const Model from_gcc(gcc.path()), from_clang(clang.path());
  const std::pair<int64_t, double> cases[] = {{16, 7}, {12, 5}, {3, 2}, {0, 7}};
  for (const build::Isa isa : isas_here()) {
    const compile::Compiled interpreter = compile::compile(graph.clone(), {.isa = isa, .threads = 2, .cache_dir = ""});
    for (const auto& [columns, factor] : cases) {
      const Tensor x = numbers(DType::F32, {33, columns}, 5);
      const Tensor expected = interpreter.executable->run({&x, 1})[0];
      for (int64_t i = 0; i < x.count(); ++i) {
        const float b = std::max(0.0f, static_cast<float>(x.at(i))) * static_cast<float>(factor) + 1;
        ASSERT_EQ(expected.at(i), b * b);
      }
      for (const Model* model : {&library.model(), &from_gcc, &from_clang}) {
        for (const int32_t threads : {1, 3}) {
          const Instance instance = model->instance({.threads = threads, .isa = abi_isa(isa)});
          EXPECT_EQ(bit_difference(expected, tensor_of(instance.run(arguments_of({&x, 1}))[0])), "") << columns << " columns, " << build::isa_name(isa);
        }
      }
    }
  }
}

TEST(CustomOpAhead, OneConfigurationWithoutConstants) {  // R61
  op::OpRecord record = scaled({{}});
  record.kernel->source.replace(record.kernel->source.find("FACTOR"), 6, "3");
  const op::OpTable table = table_with(std::move(record));
  const CompiledModel library(compile_library(graph::parse_graph(kGraph, table)));
  const Instance instance = library.model().instance();
  const Tensor x = Tensor::of(DType::F32, {1, 3}, {-1, 2, 5});
  const Tensor y = tensor_of(instance.run(arguments_of({&x, 1}))[0]);
  EXPECT_EQ(y.at(0), 1);
  EXPECT_EQ(y.at(1), 49);
  EXPECT_EQ(y.at(2), 256);
}

// Without a declaration every pointer counts as written: the kernel gets copies.
TEST(CustomOpAhead, InputsThatMayBeWrittenAreCopies) {
  const op::OpTable table = table_with_greedy();
  const CompiledModel library(compile_library(graph::parse_graph("graph main(%x: f32[n]) {\n  %b: f32[n] = greedy(%x)\n  %y: f32[n] = add(%x, %b)\n  return %y\n}\n", table)));
  const Tensor x = numbers(DType::F32, {100}, 3), before = x.to_contiguous();
  const Tensor y = tensor_of(library.model().instance().run(arguments_of({&x, 1}))[0]);
  EXPECT_EQ(bit_difference(before, x), "");
  for (int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(y.at(i), static_cast<float>(x.at(i)) + (static_cast<float>(x.at(i)) * static_cast<float>(x.at(i)) + 1));
}

TEST(CustomOpAhead, TheCompilersWordsAboutTheUsersText) {
  op::OpRecord record = scaled({{.constants = {{"FACTOR", 2}}}});
  record.kernel->source = "void run(void* const*, const int64_t*, char*, int64_t, int64_t) {\n  nonsense;\n}";
  const op::OpTable table = table_with(std::move(record));
  try {
    compile_library(graph::parse_graph(kGraph, table));
    FAIL() << "compiled";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("op 'scaled': the compiler refuses its kernel"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("kernel of op scaled:2"), std::string::npos) << error.what();
  }
}

// An op that has a reference only is refused by name when it compiles.
TEST(CustomOpAhead, RefusesOpsWithoutAKernel) {
  const op::OpTable table = table_with({.name = "mystery",
                                        .summary = "",
                                        .infer = [](const op::InferContext& context) { return std::vector<op::TensorType>{context.in(0)}; },
                                        .reference = [](const op::ReferenceContext& context) { context.outputs[0] = context.inputs[0].to_contiguous(); }});
  const graph::Graph graph = graph::parse_graph("graph main(%x: f32[n]) {\n  %a: f32[n] = mystery(%x)\n  %y: f32[n] = neg(%a)\n  return %y\n}\n", table);
  try {
    compile_library(graph);
    FAIL() << "compiled";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("mystery"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fuseloom::test
