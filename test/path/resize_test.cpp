// Resampling through its decomposition against the reference: modes, coordinates, whole and other factors, up and down.
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

graph::Graph resize(const std::string& mode, const std::string& coordinate, const std::string& nearest, int64_t h, int64_t w,
                    const std::vector<double>& scales) {
  graph::Graph graph(op::standard_ops());
  const sym::Expr height = sym::Expr::symbol("h");
  const graph::ValueId x = graph.add_input("x", {DType::F32, {sym::Expr::symbol("n"), 2, height, 7}});
  op::Attrs attrs{{"sizes", op::Shape{sym::Expr::symbol("n"), 2, h < 0 ? height * -h : sym::Expr(h), w}},
                  {"mode", mode}, {"coordinate", coordinate}, {"nearest", nearest}};
  if (!scales.empty()) attrs.set("scales", scales);
  graph.set_outputs({graph.add("resize", {x}, attrs)});
  return graph;
}

TEST(Resize, RepeatsByWholeFactorsAsViews) {
  for (const char* coordinate : {"asymmetric", "half_pixel"}) {
    const std::string nearest = std::string(coordinate) == "asymmetric" ? "floor" : "round_prefer_floor";
    const graph::Graph graph = resize("nearest", coordinate, nearest, -3, 14, {1, 1, 3, 2});
    expect_paths_agree(graph, std::vector<Tensor>{numbers(DType::F32, {2, 2, 5, 7}, 1)});
    EXPECT_EQ(compile::compile(graph.clone()).report.program_text.find("call"), std::string::npos);
  }
}

class ResizeTest : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(ResizeTest, AgreesWithTheReference) {
  const auto [mode, coordinate] = GetParam();
  const std::vector<Tensor> inputs{numbers(DType::F32, {1, 2, 5, 7}, 1)};
  PathOptions options;
  options.fuse = {true};
  for (const char* nearest : {"floor", "ceil", "round_prefer_floor", "round_prefer_ceil"}) {
    expect_paths_agree(resize(mode, coordinate, nearest, 13, 4, {}), inputs, options);
    if (std::string(mode) != "nearest") break;
  }
  expect_paths_agree(resize(mode, coordinate, "floor", 8, 10, {1, 1, 1.6, 1.5}), inputs, options);
  expect_paths_agree(resize(mode, coordinate, "floor", 1, 1, {}), inputs, options);
}

INSTANTIATE_TEST_SUITE_P(All, ResizeTest,
                         testing::Combine(testing::Values("nearest", "linear", "cubic"),
                                          testing::Values("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")),
                         [](const auto& info) { return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace fuseloom::test
