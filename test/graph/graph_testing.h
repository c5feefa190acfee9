// Short words for tests of graphs.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "fuseloom/error.h"
#include "graph/evaluate.h"
#include "graph/graph.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "support/random_graph.h"

namespace fuseloom::graph {

inline Graph parse(std::string_view text) { return parse_graph(text, op::standard_ops()); }

inline Tensor floats(Dims dims, std::initializer_list<double> values) { return Tensor::of(DType::F32, std::move(dims), values); }
inline Tensor ints(Dims dims, std::initializer_list<double> values) { return Tensor::of(DType::I64, std::move(dims), values); }
inline Tensor truth(bool value) { return Tensor::scalar(DType::Bool, value ? 1 : 0); }

inline void expect_equal(const Tensor& found, const Tensor& expected) { EXPECT_EQ(test::difference(found, expected, 0), ""); }

// The call throws Error with `words` in its message.
template <class Error, class Call>
void expect_error(Call&& call, std::string_view words) {
  try {
    call();
    ADD_FAILURE() << "no error; expected \"" << words << "\"";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
  }
}

}  // namespace fuseloom::graph
