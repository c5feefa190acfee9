#include "kernel/kernel.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "fuseloom/error.h"

namespace fuseloom::kernel {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Every golden kernel verifies and prints to a fixed point; what parses again is the same kernel.
TEST(KernelText, GoldenFilesRoundTrip) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FUSELOOM_GOLDEN_DIR)) {
    if (entry.path().extension() != ".fl") continue;
    SCOPED_TRACE(entry.path().string());
    const Kernel kernel = parse_kernel(read_file(entry.path()), op::standard_ops(), entry.path().filename().string());
    EXPECT_NO_THROW(verify(kernel));
    const std::string once = to_string(kernel);
    const Kernel again = parse_kernel(once, op::standard_ops(), "printed");
    EXPECT_EQ(once, to_string(again));
    EXPECT_EQ(kernel.scalars.size(), again.scalars.size());
    EXPECT_EQ(kernel.buffers.size(), again.buffers.size());
    ++count;
  }
  EXPECT_GE(count, 5u);
}

TEST(KernelText, PrintsCanonicalTextUnchanged) {
  const std::string text =
      "kernel k(read @x: f32[n], write @y: f32[n]) sizes (n) facts (n in 0 to inf multiple 8) {\n"
      "  for i = 0 to n vector 16 x 2 {\n"
      "    %a: f32 = load @x[i] if (le(i, 4)) else -0.0\n"
      "    %b: f32 = constant 0.1\n"
      "    %c: f32 = mul(%a, %b)\n"
      "    store @y[i] = %c if (le(i, 4))\n"
      "  }\n"
      "}\n";
  EXPECT_EQ(to_string(parse_kernel(text, op::standard_ops())), text);
}

TEST(KernelText, ErrorsNameThePlace) {
  const auto message = [](std::string_view text) {
    try {
      parse_kernel(text, op::standard_ops(), "f.fl");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("kernel k() {\n  %a: f32 = ad(%b)\n}"), "f.fl:2:15: unknown op 'ad'");
  EXPECT_EQ(message("kernel k() {\n  %a: f32 = neg(%b)\n}"), "f.fl:2:19: %b is not defined");
  EXPECT_EQ(message("kernel k(read @x: f31[1]) {}"), "f.fl:1:22: unknown element type 'f31'");
  EXPECT_EQ(message("kernel k() { store @x[0] = %a }"), "f.fl:1:22: buffer @x is not declared");
}

TEST(KernelName, DependsOnContentOnly) {
  const std::string text = "kernel first(write @y: f32[n]) sizes (n) {\n  %c: f32 = constant 1.0\n  store @y[0] = %c\n}\n";
  Kernel a = parse_kernel(text, op::standard_ops());
  Kernel b = a;
  b.name = "second";
  name_kernel(a, "pointwise");
  name_kernel(b, "pointwise");
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.name.substr(0, 12), "k_pointwise_");
  EXPECT_EQ(a.name.size(), 24u);
  Kernel c = a;
  c.buffers[0].size = 4;
  name_kernel(c, "pointwise");
  EXPECT_NE(a.name, c.name);
}

// A wrong kernel and the words it is refused with.
struct BadKernel {
  const char* body;
  const char* words;
};
TEST(KernelVerify, NamesTheBrokenInvariant) {
  const BadKernel cases[] = {
      {"%a: f32 = load @x[i]", "let %a: i reads i, which is no integer in scope"},
      {"for i = 0 to n { for i = 0 to n { } }", "for i > for i: the name i is already taken"},
      {"for i = 0 to n { for j = 0 to n core { } }", "the core loop is not outermost"},
      {"for i = 0 to n core { } for j = 0 to n core { }", "2 core loops; one at most is allowed"},
      {"for i = 0 to n core { } %a: f32 = load @x[0] store @y[0] = %a", "beside the core loop there may only be definitions"},
      {"for i = 0 to n vector 4 x 1 { for j = 0 to n vector 4 x 1 { } }", "vector loops do not nest"},
      {"for i = 0 to n vector 3 x 1 { }", "the vector width 3 is not a power of two"},
      {"for i = 0 to n unroll { }", "an unrolled loop needs a constant range"},
      {"%a: f32 = load @x[0] store @x[0] = %a", "@x is not writable"},
      {"%a: f32 = load @y[0]", "@y is not readable"},
      {"%a: i32 = load @x[0]", "loads i32 from @x of f32"},
      {"%a: i32 = constant 1 store @y[0] = %a", "stores %a of i32 to @y of f32"},
      {"for i = 0 to n { %a: f32 = load @x[i] } store @y[0] = %a", "%a is not in scope"},
      {"%a: f16 = load @h[0] %b: f16 = neg(%a)", "neg computes in f16; convert to f32 first"},
      {"%a: f32 = load @x[0] %b: i32 = neg(%a)", "neg gives f32, not i32"},
      {"%a: f32 = load @x[0] %b: f32 = relu(%a)", "relu is no elementwise primitive"},
      {"barrier", "a barrier in a kernel without threads"},
      {"for t = 0 to n thread_x { }", "the thread loop t runs from 0 to n; 0 to a constant of at most 1024 is what a block has"},
      {"for y = 0 to 64 thread_y { for t = 0 to 32 thread_x { } }", "a block of 32 x 64 x 1 threads; 1024 is the most"},
      {"for t = 0 to 32 thread_x { for y = 0 to 4 thread_y { } }", "thread loops nest z, y, x"},
      {"for t = 0 to 32 thread_x { for b = 0 to n grid_x { } }", "the grid loop is not outermost"},
      {"for b = 0 to n grid_x { } for c = 0 to n grid_y { }", "the grid loop is not outermost"},
      {"for b = 0 to n grid_x { %a: f32 = constant 1.0 store @y[b] = %a }", "every thread of the block stores to @y"},
      {"for t = 0 to 32 thread_x { barrier }", "a barrier inside a loop over threads that meet in it"},
      {"for t = 0 to 32 thread_x { } if lt(n, 3) { barrier } for t = 0 to 32 thread_x { for i = 0 to t { barrier } }",
       "a barrier under a condition, or in a loop, that differs between threads"},
      {"for y = 0 to 4 thread_y { if lt(y, n) { reduce %s: f32 = add { for t = 0 to 32 thread_x { } } } }",
       "a reduction over threads under a condition"},
      {"for y = 0 to 4 thread_y { } for y = 0 to 2 thread_y { reduce %s: f32 = add { for t = 0 to 32 thread_x { } } }",
       "a reduction over threads in a loop over 2 of 4 threads"},
      {"for t = 0 to 32 thread_x { reduce %s: f32 = add { for y = 0 to 4 thread_y { } } }",
       "a reduction over threads inside a loop over threads that meet in it"},
      {"reduce %s: f32 = add { for i = 0 to n vector 4 x 1 { %c: f32 = current %s } }",
       "the running value of %s exists only in a serial loop"},
      {"reduce %s: f32 = add { %a: f32 = constant 1.0 accumulate %s with %a store @y[0] = %s }", "%s is not in scope"},
      {"reduce %s: f16 = add { }", "%s accumulates in f16"},
      {"%a: f32 = constant 1.0 accumulate %a with %a", "%a is no accumulator of an enclosing reduce"},
      {"reduce %s: i32 = argmax(%v: f32) { }", "%s is an index and must be i64"},
      {"contract f32 i = 0 to n, j = 0 to n, k = 0 to n tile 6 x 16 block 8, 8, 16 { lhs packed @x[0] rhs packed @x[0] "
       "epilogue %s: f32 { } }",
       "block_m 8 is no multiple of tile_m 6"},
  };
  for (const BadKernel& bad : cases) {
    SCOPED_TRACE(bad.body);
    const std::string text =
        std::string("kernel k(read @x: f32[n], write @y: f32[n], read @h: f16[n]) sizes (n) { ") + bad.body + " }";
    const Kernel kernel = parse_kernel(text, op::standard_ops());
    try {
      verify(kernel);
      ADD_FAILURE() << "verified";
    } catch (const InternalError& error) {
      EXPECT_NE(std::string(error.what()).find(bad.words), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).substr(0, 8), "kernel k");
    }
  }
}

}  // namespace
}  // namespace fuseloom::kernel
