// Pools of every kind against the oracle.
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

struct Pool {
  const char* name;
  const char* op;
  Dims x;
  std::vector<int64_t> kernel, strides, dilations, low, high;
  int64_t ceil_mode = 0, count_include_pad = 0;
  DType dtype = DType::F32;
  bool epilogue = true;
};

class PoolTest : public testing::TestWithParam<Pool> {};

TEST_P(PoolTest, AgreesWithTheOracle) {
  const Pool& p = GetParam();
  graph::Graph graph(op::standard_ops());
  op::Shape shape{sym::Expr::symbol("n"), sym::Expr(p.x[1])};
  for (size_t d = 2; d < p.x.size(); ++d) shape.push_back(sym::Expr::symbol(fmt::format("s{}", d)));
  op::Shape sizes;
  for (size_t d = 0; d < p.kernel.size(); ++d) {
    const sym::Expr steps = shape[2 + d] + p.low[d] + p.high[d] - (p.kernel[d] - 1) * p.dilations[d] - 1;
    sizes.push_back((p.ceil_mode != 0 ? sym::ceil_div(steps, p.strides[d]) : sym::floor_div(steps, p.strides[d])) + 1);
  }
  op::Attrs attrs{{"kernel", p.kernel}, {"strides", p.strides}, {"dilations", p.dilations}, {"pads_low", op::Shape(p.low.begin(), p.low.end())},
                  {"pads_high", op::Shape(p.high.begin(), p.high.end())}, {"sizes", sizes}};
  if (std::string(p.op) == "average_pool") attrs.set("count_include_pad", p.count_include_pad);
  graph::ValueId y = graph.add(p.op, {graph.add_input("x", {p.dtype, shape})}, attrs);
  if (p.epilogue) y = graph.add("neg", {y});
  graph.set_outputs({y});
  Tensor x = numbers(p.dtype, p.x, 1);
  if (is_float(p.dtype) && x.count() > 20) x.set(17, std::numeric_limits<double>::quiet_NaN());
  PathOptions options;
  options.fuse = {true};
  expect_paths_agree(graph, std::vector<Tensor>{x}, options);
}

INSTANTIATE_TEST_SUITE_P(
    All, PoolTest,
    testing::Values(
        Pool{"max", "max_pool", {2, 3, 17, 35}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
        Pool{"max_not_padded", "max_pool", {1, 3, 12, 19}, {2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}},
        Pool{"max_ceil", "max_pool", {1, 2, 14, 16}, {3, 3}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, 1},
        Pool{"max_dilated", "max_pool", {1, 2, 20, 23}, {2, 3}, {1, 2}, {3, 2}, {1, 2}, {2, 1}},
        Pool{"max_one_row", "max_pool", {2, 2, 9000}, {5}, {1}, {1}, {2}, {2}},
        Pool{"max_three_axes", "max_pool", {1, 2, 5, 6, 7}, {2, 3, 2}, {1, 2, 1}, {1, 1, 1}, {1, 1, 0}, {0, 1, 1}},
        Pool{"max_bytes", "max_pool", {1, 2, 9, 40}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 0, 0, DType::I8},
        Pool{"max_half", "max_pool", {1, 2, 9, 40}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, 0, 0, DType::F16},
        Pool{"average", "average_pool", {2, 3, 17, 35}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
        Pool{"average_with_padding", "average_pool", {1, 3, 17, 35}, {3, 2}, {1, 2}, {1, 1}, {1, 1}, {0, 1}, 0, 1},
        Pool{"average_ceil", "average_pool", {1, 2, 14, 16}, {3, 3}, {2, 2}, {1, 1}, {1, 0}, {0, 1}, 1},
        Pool{"average_double", "average_pool", {1, 2, 14, 16}, {3, 3}, {2, 2}, {1, 1}, {1, 0}, {0, 1}, 0, 0, DType::F64, false},
        Pool{"average_brain", "average_pool", {1, 2, 14, 16}, {3, 3}, {2, 2}, {1, 1}, {1, 0}, {0, 1}, 0, 0, DType::BF16, false}),
    [](const testing::TestParamInfo<Pool>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fuseloom::test
