// Generated text under the thread sanitizer: many threads on one instance, and kernels of different callers at the same time.
#include "aot_testing.h"

namespace fuseloom::test {
namespace {

// Row-wise and columns-wise kernels, a product with weights, a branch, and a kernel of the test's own that meets the others.
graph::Graph meeting_graph(op::OpTable& table) {
  op::SourceKernel kernel{.helpers = "extern \"C\" void in_kernel();",
                          .source = R"(void run(void* const* buffers, const int64_t* sizes, char*, int64_t begin, int64_t end) {
  in_kernel();
  for (int64_t i = begin * sizes[1]; i < end * sizes[1]; ++i) static_cast<float*>(buffers[1])[i] = static_cast<const float*>(buffers[0])[i] + 1;
})",
                          .extent = "x0_d0",
                          .work = "x0_d0*x0_d1*1000",   // worth several threads
                          .mutates = std::vector<size_t>()};
  table.add({.name = "meet", .summary = "x + 1", .infer = [](const op::InferContext& context) { return std::vector<op::TensorType>{context.in(0)}; }, .kernel = std::move(kernel)});
  std::string values;
  for (int i = 0; i < 64; ++i) values += fmt::format("{}{}", i == 0 ? "" : ", ", 0.25 * (i % 7) - 0.75);
  return graph::parse_graph(fmt::format(R"(graph threads(%x: f32[n, 16]) symbols {{n in 0 .. 512}} {{
    %w: f32[16, 4] = constant() {{value = f32[16, 4] {{{}}}}}
    %e = exp(%x)
    %b: f32[n, 16] = meet(%e)
    %m = matmul(%b, %w)
    %s = softmax(%m) {{axis = 1}}
    %t = transpose(%s) {{perm = [1, 0]}}
    %r = reduce_sum(%b) {{axes = [0], keepdims = 0}}
    return %t, %r
  }})", values), table);
}

TEST(Threads, ManyOnOneInstanceUnderTheThreadSanitizer) {
  op::OpTable table = op::make_standard_ops();
  const compile::AotSource source = compile_source(meeting_graph(table));
  for (const char* compiler : {"g++", "clang++"}) {
    const CompiledSource program(source, compiler,
                                 fmt::format("-g1 -fsanitize=thread -pthread -I {0}/include {0}/test/aot/threads/many_threads.cpp", FUSELOOM_SOURCE_DIR));
    ASSERT_EQ(program.log(), "");
    EXPECT_EQ(program.run("TSAN_OPTIONS=halt_on_error=1 ./model"), 0) << program.output();
    EXPECT_EQ(program.output(), "8 callers met\n") << compiler;
  }
}

}  // namespace
}  // namespace fuseloom::test
