// An op whose kernel writes to its input: x * x + 1, with x * x left in x.
#pragma once
#include <optional>
#include <vector>

#include "op/op.h"

namespace fuseloom::test {

inline op::OpTable table_with(op::OpRecord record) {
  op::OpTable table = op::make_standard_ops();
  table.add(std::move(record));
  return table;
}

// `mutates`: the inputs that the kernel is declared to write; none given: nothing is said about them.
inline op::OpTable table_with_greedy(std::optional<std::vector<size_t>> mutates = {}) {
  op::SourceKernel kernel{.source = R"(void run(void* const* buffers, const int64_t*, char*, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    float& x = static_cast<float*>(buffers[0])[i];
    x = x * x;
    static_cast<float*>(buffers[1])[i] = x + 1;
  }
})",
                          .extent = "x0_d0",
                          .mutates = std::move(mutates)};
  return table_with({.name = "greedy",
                     .summary = "x * x + 1",
                     .infer = [](const op::InferContext& context) { return std::vector<op::TensorType>{context.in(0)}; },
                     .kernel = std::move(kernel)});
}

}  // namespace fuseloom::test
