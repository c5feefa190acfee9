// Every primitive × every dtype, as a vector loop, against the op's reference: all lengths around the vector width, from a
// misaligned offset, inside guard pages; and the same bits from the vector body, the tail and a loop without vectors.
#include <gtest/gtest.h>

#include <random>

#include "compiled.h"
#include "primitive_cases.h"

namespace fuseloom::emit {
namespace {

using kernel::Kernel;

// y[offset_y + i] = op(a[offset + i], ...) for i < n; binding and width of the loop are given.
Kernel make_kernel(const Case& c, kernel::Binding binding, int width, int unroll, const std::string& name) {
  Kernel k;
  k.name = name;
  k.symbols = {"n", "offset"};
  k.facts.symbols["n"] = sym::Facts::size();
  k.facts.symbols["offset"] = sym::Facts::size();
  const sym::Expr n = sym::Expr::symbol("n"), offset = sym::Expr::symbol("offset"), i = sym::Expr::symbol("i");
  kernel::Loop loop{.axis = "i", .begin = 0, .end = n, .binding = binding, .width = width, .unroll = unroll};
  kernel::Apply apply{.op = c.op, .args = {}, .attrs = c.attrs};
  apply.attrs.erase("to");
  for (size_t input = 0; input < c.inputs.size(); ++input) {
    const kernel::BufferId buffer = k.add_buffer({.name = "x" + std::to_string(input), .dtype = c.inputs[input],
                                                  .space = kernel::Space::Global, .access = kernel::Access::Read, .size = n + offset});
    kernel::ScalarId value = k.add_scalar(c.inputs[input]);
    loop.body.push_back({kernel::Let{value, kernel::Load{.buffer = buffer, .index = i + offset}}});
    if (compute_dtype(c.inputs[input]) != c.inputs[input] && c.op->name != "cast" && c.op->name != "bitcast") {
      const kernel::ScalarId wide = k.add_scalar(DType::F32);
      loop.body.push_back({kernel::Let{wide, kernel::Apply{.op = &op::standard_ops().at("cast"), .args = {value}}}});
      value = wide;
    }
    apply.args.push_back(value);
  }
  const bool conversion = c.op->name == "cast" || c.op->name == "bitcast";
  kernel::ScalarId result = k.add_scalar(conversion ? c.output : compute_dtype(c.output));
  loop.body.push_back({kernel::Let{result, apply}});
  if (!conversion && compute_dtype(c.output) != c.output) {
    const kernel::ScalarId narrow = k.add_scalar(c.output);
    loop.body.push_back({kernel::Let{narrow, kernel::Apply{.op = &op::standard_ops().at("cast"), .args = {result}}}});
    result = narrow;
  }
  const kernel::BufferId y = k.add_buffer({.name = "y", .dtype = c.output, .space = kernel::Space::Global,
                                           .access = kernel::Access::Write, .size = n + offset});
  loop.body.push_back({kernel::Store{.buffer = y, .index = i + offset, .value = result}});
  k.body.push_back({loop});
  return k;
}

class Primitives : public ::testing::TestWithParam<size_t> {};

TEST_P(Primitives, MatchTheirReferences) {
  const std::vector<Toolchain> chains = toolchains();
  if (GetParam() >= chains.size()) GTEST_SKIP() << "no such compiler or instruction set here";
  const Toolchain& toolchain = chains[GetParam()];
  std::vector<Case> cases = make_cases();
  ASSERT_GT(cases.size(), 500u);
  // The first combination sees every case, the others a share each.
  if (GetParam() != 0) {
    std::vector<Case> share;
    for (size_t i = GetParam() % 4; i < cases.size(); i += 4) share.push_back(cases[i]);
    cases = std::move(share);
  }
  std::vector<Kernel> kernels;
  for (const Case& c : cases) {
    DType widest = DType::I8;
    for (DType dtype : c.inputs) {
      dtype = compute_dtype(dtype);
      if (dtype_bits(dtype) > dtype_bits(widest)) widest = dtype;
    }
    if (dtype_bits(compute_dtype(c.output)) > dtype_bits(widest)) widest = compute_dtype(c.output);
    const int bytes = static_cast<int>(dtype_bits(widest)) / (is_complex(widest) ? 16 : 8);
    // Natural width; for every third case the width of f32, so that wide types are handled in halves and narrow ones partly.
    const int width = kernels.size() % 3 == 0 ? toolchain.target.vector_bytes / 4 : toolchain.target.vector_bytes / bytes;
    kernels.push_back(make_kernel(c, kernel::Binding::Vector, width, kernels.size() % 4 == 1 ? 2 : 1, "k_" + c.name));
    ASSERT_NO_THROW(verify(kernels.back())) << kernel::to_string(kernels.back());
  }
  std::string source;
  ASSERT_NO_THROW(source = to_cpp(kernels, toolchain.target));
  const Library library(source, toolchain, "-O1");
  ASSERT_TRUE(library.loaded());

  const uint64_t seed = 20240607;
  for (size_t index = 0; index < cases.size(); ++index) {
    const Case& c = cases[index];
    SCOPED_TRACE(c.name + " " + toolchain.name() + " seed " + std::to_string(seed));
    std::mt19937_64 random(seed + index);
    constexpr int64_t kLongest = 127;
    std::vector<Tensor> inputs;
    for (size_t input = 0; input < c.inputs.size(); ++input) inputs.push_back(make_input(c.inputs[input], kLongest, random, *c.op, input));
    const Tensor expected = op::run_reference(*c.op, inputs, c.attrs).at(0);
    int errors = 0;
    for (const int64_t n : {0, 1, 3, 15, 16, 17, 33, 127}) {
      for (const int64_t offset : {0, 1}) {
        // The last element touches the guard page. Elements in front of the offset must not change.
        std::vector<std::unique_ptr<GuardedBuffer>> memory;
        std::vector<void*> pointers;
        for (size_t input = 0; input < inputs.size(); ++input) {
          const size_t element = static_cast<size_t>(dtype_bytes(c.inputs[input]));
          memory.push_back(std::make_unique<GuardedBuffer>(static_cast<size_t>(n + offset) * element));
          std::memcpy(static_cast<char*>(memory.back()->data()) + static_cast<size_t>(offset) * element, inputs[input].data(),
                      static_cast<size_t>(n) * element);
          pointers.push_back(memory.back()->data());
        }
        const size_t element = static_cast<size_t>(dtype_bytes(c.output));
        const GuardedBuffer output(static_cast<size_t>(n + offset) * element);
        std::memset(output.data(), 0x5a, static_cast<size_t>(n + offset) * element);
        pointers.push_back(output.data());
        const int64_t sizes[] = {n, offset};
        library.function("k_" + c.name)(pointers.data(), sizes, nullptr, 0, 1);
        for (size_t byte = 0; byte < static_cast<size_t>(offset) * element; ++byte)
          ASSERT_EQ(static_cast<unsigned char*>(output.data())[byte], 0x5a) << "a store in front of the first element";
        const Tensor found = Tensor::borrow(c.output, {n}, static_cast<char*>(output.data()) + static_cast<size_t>(offset) * element);
        for (int64_t i = 0; i < n && errors < 3; ++i) {
          const std::string difference = compare(c, expected, found, i);
          if (difference.empty()) continue;
          ++errors;
          std::string args;
          for (const Tensor& input : inputs) args += " " + std::to_string(is_int(input.dtype()) ? static_cast<double>(input.int_at(i)) : input.at(i));
          ADD_FAILURE() << "n " << n << " offset " << offset << " " << difference << " for" << args;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Toolchains, Primitives, ::testing::Range(size_t{0}, size_t{6}));

}  // namespace
}  // namespace fuseloom::emit
