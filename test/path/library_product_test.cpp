// Matrix products through a library: what it is asked for, what it gives, and what happens without it. The library is a fake
// one that computes on the host (test/support/fake_cublaslt.h), behind the loader of the real one.
#include <dlfcn.h>

#include "path/path_testing.h"
#include "run/host_driver.h"
#include "run/product_library.h"
#include "support/fake_cublaslt.h"

namespace fuseloom::test {
namespace {

class LibraryProduct : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(FUSELOOM_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    reset(false, 0);
    device_ = run::CudaDevice::open(run::host_driver());
    device_->set_products(run::ProductLibrary::load({FUSELOOM_FAKE_CUBLASLT}));
  }
  void reset(bool refuse, size_t workspace_bytes) const { reinterpret_cast<FakeReset>(dlsym(library_, "fake_reset"))(refuse ? 1 : 0, workspace_bytes); }
  int calls() const { return reinterpret_cast<FakeCount>(dlsym(library_, "fake_count"))(); }
  FakeProduct call(int index) const { return *reinterpret_cast<FakeCall>(dlsym(library_, "fake_call"))(index); }

  compile::Compiled compiled(const std::string& text, const run::RunOptions& run = {}) const {
    compile::Options options{.device = program::Device::Cuda, .cuda_device = device_, .run = run};
    return compile::compile(graph::parse_graph(text, op::standard_ops()), options);
  }
  // Compiles, runs, compares with the oracle.
  compile::Compiled expect_agrees(const std::string& text, std::span<const Tensor> inputs, double rounding = 0, const run::RunOptions& run = {}) const {
    const graph::Graph graph = graph::parse_graph(text, op::standard_ops());
    const std::vector<Tensor> expected = graph::evaluate(graph, inputs);
    compile::Compiled made = compiled(text, run);
    const std::vector<Tensor> got = made.executable->run(inputs, {}, {.results = run::CallOptions::Results::Host});
    for (size_t o = 0; o < expected.size(); ++o) EXPECT_EQ(first_difference(expected[o], got[o], rounding), "") << made.report.explanation << made.report.program_text;
    // What prints can be read again.
    const program::Program& program = made.executable->program();
    EXPECT_EQ(program::to_string(program::parse_program(program::to_string(program), op::standard_ops(), "<text>", program::constant_pool(program))), program::to_string(program));
    return made;
  }

  void* library_ = nullptr;
  std::shared_ptr<run::CudaDevice> device_;
};

TEST_F(LibraryProduct, PlainMatrices) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7, 11}, 2)};
  const compile::Compiled made = expect_agrees("graph main(%a: f32[m, k], %b: f32[k, n]) { %y = matmul(%a, %b) return %y }", inputs, 1e-5);
  EXPECT_EQ(made.report.products, 1u);
  ASSERT_EQ(calls(), 1);
  // Row by row here is column by column there, of the transposes: 11 x 7 times 7 x 5.
  const FakeProduct product = call(0);
  EXPECT_EQ(product.compute_type, 68);
  EXPECT_EQ(product.scale_type, 0);
  EXPECT_EQ(product.transpose_a, 0);
  EXPECT_EQ(product.transpose_b, 0);
  EXPECT_EQ(product.epilogue, 1u);
  EXPECT_EQ(product.a.rows, 11u);
  EXPECT_EQ(product.a.columns, 7u);
  EXPECT_EQ(product.a.leading_dimension, 11);
  EXPECT_EQ(product.b.rows, 7u);
  EXPECT_EQ(product.b.columns, 5u);
  EXPECT_EQ(product.b.leading_dimension, 7);
  EXPECT_EQ(product.d.rows, 11u);
  EXPECT_EQ(product.d.columns, 5u);
  EXPECT_EQ(product.d.leading_dimension, 11);
  EXPECT_EQ(product.d.batch, 1);
}

TEST_F(LibraryProduct, TransposesAreNoCopies) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {7, 5}, 1), numbers(DType::F32, {11, 7}, 2)};
  const compile::Compiled made = expect_agrees(R"(graph main(%a: f32[k, m], %b: f32[n, k]) {
    %l = transpose(%a) {perm = [1, 0]}
    %r = transpose(%b) {perm = [1, 0]}
    %y = matmul(%l, %r)
    return %y })", inputs, 1e-5);
  EXPECT_EQ(made.report.kernels, 1u);
  ASSERT_EQ(calls(), 1);
  EXPECT_EQ(call(0).transpose_a, 1);
  EXPECT_EQ(call(0).transpose_b, 1);
  EXPECT_EQ(call(0).a.leading_dimension, 7);
  EXPECT_EQ(call(0).b.leading_dimension, 5);
}

TEST_F(LibraryProduct, BiasAndActivationsInEveryType) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (const char* activation : {"relu", "gelu_tanh"}) {
      reset(false, 4096);
      const std::string type(dtype_name(dtype));
      const std::vector<Tensor> inputs{numbers(dtype, {2, 3, 8}, 1), numbers(dtype, {8, 16}, 2), numbers(dtype, {16}, 3)};
      // The library rounds once, the oracle after each op.
      const double rounding = dtype == DType::F32 ? 1e-5 : dtype == DType::F16 ? 4e-3 : 3e-2;
      const compile::Compiled made = expect_agrees("graph main(%a: " + type + "[b, s, 8], %w: " + type + "[8, 16], %c: " + type + "[16]) {\n  %p = matmul(%a, %w)\n  %q = add(%p, %c)\n  %y = " +
                                                       activation + "(%q)\n  return %y }", inputs, rounding);
      EXPECT_EQ(made.report.kernels, 1u) << made.report.explanation;
      ASSERT_EQ(calls(), 1);
      const FakeProduct product = call(0);
      EXPECT_EQ(product.epilogue, std::string(activation) == "relu" ? 6u : 36u);
      EXPECT_EQ(product.a.type, dtype == DType::F32 ? 0 : dtype == DType::F16 ? 2 : 14);
      EXPECT_EQ(product.d.columns, 6u) << "batch and sequence are one row axis";
      EXPECT_EQ(product.d.batch, 1);
      EXPECT_EQ(product.workspace_bytes, 4096u);
      EXPECT_NE(product.workspace, nullptr);
    }
  }
}

TEST_F(LibraryProduct, BatchesOfAttention) {
  // Heads: batch and head are one stride where they lie so (after a copy), and a further axis of the kernel where they do not.
  const std::vector<Tensor> inputs{numbers(DType::F32, {2, 3, 4, 8}, 1), numbers(DType::F32, {2, 3, 4, 8}, 2)};
  expect_agrees(R"(graph main(%q: f32[b, h, s, 8], %k: f32[b, h, s, 8]) {
    %t = transpose(%k) {perm = [0, 1, 3, 2]}
    %y = matmul(%q, %t)
    return %y })", inputs, 1e-5);
  ASSERT_EQ(calls(), 1);
  EXPECT_EQ(call(0).d.batch, 6);
  EXPECT_EQ(call(0).a.batch_stride, 32);
  EXPECT_EQ(call(0).d.batch_stride, 16);
  EXPECT_EQ(call(0).transpose_a, 1);
  // [b, s, h, d] seen as [b, h, s, d] has no one stride for b and h: it is copied, then multiplied.
  reset(false, 0);
  const std::vector<Tensor> apart{numbers(DType::F32, {2, 4, 3, 8}, 1), numbers(DType::F32, {2, 3, 8, 4}, 2)};
  const compile::Compiled made = expect_agrees(R"(graph main(%q: f32[b, s, h, 8], %k: f32[b, h, 8, s]) {
    %t = transpose(%q) {perm = [0, 2, 1, 3]}
    %y = matmul(%t, %k)
    return %y })", apart, 1e-5);
  EXPECT_EQ(calls(), 1);
  EXPECT_EQ(made.report.kernels, 2u) << made.report.explanation;
}

TEST_F(LibraryProduct, VectorsAndBroadcastBatches) {
  expect_agrees("graph main(%a: f32[m, k], %b: f32[k]) { %y = matmul(%a, %b) return %y }", std::vector<Tensor>{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7}, 2)}, 1e-5);
  expect_agrees("graph main(%a: f32[k], %b: f32[k, n]) { %y = matmul(%a, %b) return %y }", std::vector<Tensor>{numbers(DType::F32, {7}, 1), numbers(DType::F32, {7, 9}, 2)}, 1e-5);
  expect_agrees("graph main(%a: f32[m, k], %b: f32[3, k, n]) { %y = matmul(%a, %b) return %y }",
                std::vector<Tensor>{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {3, 7, 9}, 2)}, 1e-5);
  ASSERT_EQ(calls(), 3);
  EXPECT_EQ(call(2).b.batch_stride, 0);
  EXPECT_EQ(call(2).a.batch_stride, 63);
}

TEST_F(LibraryProduct, ConvolutionOfOneElement) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {2, 6, 3, 5}, 1), numbers(DType::F32, {4, 6, 1, 1}, 2)};
  expect_agrees("graph main(%x: f32[n, 6, h, w], %w: f32[4, 6, 1, 1]) {\n  %y = conv(%x, %w) {strides = [1, 1], dilations = [1, 1], pads_low = <0, 0>, pads_high = <0, 0>, groups = 1}\n  return %y }", inputs, 1e-5);
  ASSERT_EQ(calls(), 1);
  EXPECT_EQ(call(0).d.batch, 2);
  EXPECT_EQ(call(0).d.rows, 15u);
  EXPECT_EQ(call(0).d.columns, 4u);
  EXPECT_EQ(call(0).b.batch_stride, 0) << "the weights are the same for all";
}

TEST_F(LibraryProduct, WhatTheLibraryCannotDoStaysApart) {
  // exp is no epilogue, erf-gelu is not the tanh one, a scaled operand is not in memory.
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7, 8}, 2), numbers(DType::F32, {8}, 3)};
  const compile::Compiled made = expect_agrees(R"(graph main(%a: f32[m, 7], %b: f32[7, 8], %c: f32[8]) {
    %l = tanh(%a)
    %p = matmul(%l, %b)
    %q = add(%p, %c)
    %y = gelu(%q)
    return %y })", inputs, 1e-5);
  EXPECT_EQ(made.report.kernels, 3u) << made.report.explanation;
  EXPECT_EQ(calls(), 1);
  EXPECT_NE(made.report.explanation.find("a library computes the product, and this is nothing it can do with it"), std::string::npos);
  EXPECT_NE(made.report.explanation.find("library of matrix products: cuBLASLt 13.1.0"), std::string::npos) << made.report.explanation;
}

TEST_F(LibraryProduct, ValueThatOthersReadTooIsStored) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7, 8}, 2)};
  expect_agrees("graph main(%a: f32[m, 7], %b: f32[7, 8]) {\n  %p = matmul(%a, %b)\n  %q = relu(%p)\n  return %p, %q }", inputs, 1e-5);
  EXPECT_EQ(calls(), 1);
}

TEST_F(LibraryProduct, AlgorithmsAreChosenOncePerClass) {
  const compile::Compiled made = compiled("graph main(%a: f32[m, 16], %b: f32[16, 8]) { %y = matmul(%a, %b) return %y }");
  const Tensor b = numbers(DType::F32, {16, 8}, 2);
  for (const int64_t rows : {1000, 1001, 1000, 1020}) (void)made.executable->run(std::vector<Tensor>{numbers(DType::F32, {rows, 16}, 1), b});
  ASSERT_EQ(calls(), 4);
  EXPECT_EQ(call(3).heuristics, 1);
  EXPECT_EQ(call(3).checks, 2);
}

TEST_F(LibraryProduct, Tf32OnlyWhenAskedFor) {
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7, 11}, 2)};
  expect_agrees("graph main(%a: f32[m, k], %b: f32[k, n]) { %y = matmul(%a, %b) return %y }", inputs, 1e-5, {.tf32 = true});
  ASSERT_EQ(calls(), 1);
  EXPECT_EQ(call(0).compute_type, 77);
}

TEST_F(LibraryProduct, RefusingLibraryLeavesItToTheKernel) {
  reset(true, 0);
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7, 11}, 2), numbers(DType::F32, {11}, 3)};
  const compile::Compiled made = expect_agrees("graph main(%a: f32[m, k], %b: f32[k, n], %c: f32[n]) {\n  %p = matmul(%a, %b)\n  %y = add(%p, %c)\n  return %y }", inputs, 1e-5);
  EXPECT_EQ(calls(), 0);
  EXPECT_EQ(made.report.products, 1u);
  made.executable->set_profiling(true);
  (void)made.executable->run(inputs);
  const run::Profile profile = made.executable->profile();
  ASSERT_EQ(profile.kernels.size(), 1u);
  EXPECT_FALSE(profile.kernels[0].library);
  EXPECT_NE(profile.kernels[0].note.find("it has no algorithm"), std::string::npos) << profile.kernels[0].note;
}

TEST_F(LibraryProduct, WorkspaceTooLargeIsARefusal) {
  reset(false, size_t{1} << 40);
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7, 11}, 2)};
  expect_agrees("graph main(%a: f32[m, k], %b: f32[k, n]) { %y = matmul(%a, %b) return %y }", inputs, 1e-5);
  EXPECT_EQ(calls(), 0);
}

TEST_F(LibraryProduct, WithoutTheLibraryKernelsDoIt) {
  EXPECT_THROW((void)run::ProductLibrary::load({"/nowhere/libcublasLt.so"}), Unsupported);
  device_->set_products(nullptr, "not installed here");
  const std::vector<Tensor> inputs{numbers(DType::F32, {5, 7}, 1), numbers(DType::F32, {7, 11}, 2)};
  const compile::Compiled made = expect_agrees("graph main(%a: f32[m, k], %b: f32[k, n]) {\n  %p = matmul(%a, %b)\n  %y = exp(%p)\n  return %y }", inputs, 1e-4);
  EXPECT_EQ(calls(), 0);
  EXPECT_EQ(made.report.kernels, 1u) << "kernels take every epilogue";
  EXPECT_NE(made.report.explanation.find("no library of matrix products, kernels do them: not installed here"), std::string::npos);
}

TEST_F(LibraryProduct, EmptyOperands) {
  expect_agrees("graph main(%a: f32[m, 7], %b: f32[7, 8]) { %y = matmul(%a, %b) return %y }", std::vector<Tensor>{numbers(DType::F32, {0, 7}, 1), numbers(DType::F32, {7, 8}, 2)});
  EXPECT_EQ(calls(), 0);
}

}  // namespace
}  // namespace fuseloom::test
