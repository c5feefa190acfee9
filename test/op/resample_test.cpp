#include <gtest/gtest.h>

#include "op/decomposition_testing.h"

namespace fuseloom::op {
namespace {

Attrs resize_attrs(std::vector<int64_t> sizes, std::string mode, std::string coordinate = "half_pixel") {
  return {{"sizes", std::move(sizes)}, {"mode", std::move(mode)}, {"coordinate", std::move(coordinate)}};
}

const Tensor& four_by_four() {
  static const Tensor tensor = floats({1, 1, 4, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  return tensor;
}

TEST(Resize, Nearest) {
  // ONNX test_resize_upsample_scales_nearest.
  expect_values(run("resize", {floats({1, 1, 2, 2}, {1, 2, 3, 4})}, resize_attrs({1, 1, 4, 6}, "nearest")),
                {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 3, 3, 3, 4, 4, 4});
  // Elements only move: 64-bit integers stay exact, bool works.
  const Tensor big = ints(DType::I64, {(int64_t{1} << 62) + 1, -7});
  expect_ints(run("resize", {big}, resize_attrs({4}, "nearest")),
              {(int64_t{1} << 62) + 1, (int64_t{1} << 62) + 1, -7, -7});
  // Half a pixel: round_prefer_floor goes down, round_prefer_ceil up.
  Attrs attrs = resize_attrs({2}, "nearest", "asymmetric");
  attrs.set("scales", std::vector<double>{2.0 / 3.0});  // coordinates 0 and 1.5
  expect_values(run("resize", {floats({1, 2, 3})}, attrs), {1, 2});
  attrs.set("nearest", std::string("round_prefer_ceil"));
  expect_values(run("resize", {floats({1, 2, 3})}, attrs), {1, 3});
}

TEST(Resize, LinearAndCubic) {
  // ONNX test_resize_downsample_sizes_linear_pytorch_half_pixel and _upsample_scales_linear.
  expect_close(run("resize", {four_by_four()}, resize_attrs({1, 1, 3, 1}, "linear", "pytorch_half_pixel")),
               floats({1, 1, 3, 1}, {1.6666666, 7.0, 12.333333}), 1e-6);
  expect_close(run("resize", {floats({1, 1, 2, 2}, {1, 2, 3, 4})}, resize_attrs({1, 1, 4, 4}, "linear")),
               floats({1, 1, 4, 4}, {1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4}),
               1e-6);
  // ONNX test_resize_downsample_scales_cubic.
  Attrs attrs = resize_attrs({1, 1, 3, 3}, "cubic");
  attrs.set("scales", std::vector<double>{1, 1, 0.8, 0.8});
  expect_close(run("resize", {four_by_four()}, attrs),
               floats({1, 1, 3, 3}, {1.47119141, 2.78125, 4.08251953, 6.71142578, 8.02148438, 9.32275391, 11.91650391,
                                     13.2265625, 14.52783203}),
               1e-6);
  // ONNX test_resize_downsample_scales_linear_antialias.
  attrs = resize_attrs({1, 1, 2, 2}, "linear");
  attrs.set("scales", std::vector<double>{1, 1, 0.6, 0.6});
  attrs.set("antialias", int64_t{1});
  expect_close(run("resize", {four_by_four()}, attrs), floats({1, 1, 2, 2}, {2.875, 4.5, 9.375, 11}), 1e-6);
}

TEST(Resize, CropsAndExtrapolates) {
  Attrs attrs = resize_attrs({3}, "linear", "tf_crop_and_resize");
  attrs.set("extrapolation", -1.0);
  expect_values(run("resize", {floats({0, 10, 20, 30}), floats({1.0 / 3, 5.0 / 3})}, attrs), {10, 30, -1});
  expect_user_error([&] { run("resize", {floats({0, 10})}, attrs); }, "needs the input roi");
  expect_user_error(
      [] {
        run("resize", {floats({0, 10})}, resize_attrs({3}, "bilinear"));
      },
      "\"bilinear\", expected one of");
}

TEST(Resize, EmptyAndScalesInput) {
  EXPECT_EQ(run("resize", {Tensor(DType::F32, {0, 3})}, resize_attrs({0, 6}, "linear")).dims(), (Dims{0, 6}));
  const Tensor by_input =
      run("resize", {floats({1, 2, 3}), Tensor(), floats({2.0 / 3.0})}, resize_attrs({2}, "linear", "asymmetric"));
  expect_close(by_input, floats({1, 2.5}), 1e-6);
}

TEST(GridSample, PaddingModes) {
  const Tensor x = floats({1, 1, 2, 2}, {1, 2, 3, 4});
  const Tensor grid = floats({1, 1, 3, 2}, {0, 0, -1, -1, 3, 3});  // the centre, the corner's edge, far outside
  const auto sample = [&](const char* mode, const char* padding, int64_t align) {
    return run("grid_sample", {x, grid},
               {{"mode", std::string(mode)}, {"padding", std::string(padding)}, {"align_corners", align}});
  };
  expect_values(sample("linear", "zeros", 0), {2.5, 0.25, 0});
  expect_values(sample("linear", "border", 0), {2.5, 1, 4});
  expect_values(sample("linear", "zeros", 1), {2.5, 1, 0});
  expect_values(sample("nearest", "reflection", 1), {1, 1, 1});
  const Tensor strange = floats({1, 1, 2, 2}, {kNan, 0, kInf, -kInf});
  for (const char* padding : {"zeros", "border", "reflection"}) {
    run("grid_sample", {x, strange},
        {{"mode", std::string("cubic")}, {"padding", std::string(padding)}, {"align_corners", int64_t{0}}});
  }
}

TEST(Roi, AlignAndPool) {
  const Attrs attrs = {{"sizes", std::vector<int64_t>{1, 1}},
                       {"mode", std::string("avg")},
                       {"sampling_ratio", int64_t{2}},
                       {"spatial_scale", 1.0},
                       {"half_pixel", int64_t{0}}};
  const Tensor rois = floats({2, 4}, {0, 0, 2, 2, 1, 1, 3, 3}), batch = ints(DType::I64, {0, 0});
  expect_values(run("roi_align", {four_by_four(), rois, batch}, attrs), {6, 11});
  expect_user_error(
      [&] {
        run("roi_align", {four_by_four(), rois, ints(DType::I64, {0, 1})}, attrs);
      },
      "image 1 of a batch of 1");
  const Attrs pool = {{"sizes", std::vector<int64_t>{2, 2}}, {"spatial_scale", 1.0}};
  expect_values(run("max_roi_pool", {four_by_four(), floats({1, 5}, {0, 0, 0, 3, 3})}, pool), {6, 8, 14, 16});
  expect_values(run("max_roi_pool", {four_by_four(), floats({1, 5}, {0, 9, 9, 9, 9})}, pool), {0, 0, 0, 0});
}

TEST(DeformConv, WithoutOffsetsIsConv) {
  const Tensor x = random_tensor(DType::F64, {2, 4, 6, 5}, 1), w = random_tensor(DType::F64, {6, 2, 3, 2}, 2),
               bias = random_tensor(DType::F64, {6}, 3);
  Attrs attrs = {{"strides", std::vector<int64_t>{2, 1}},
                 {"dilations", std::vector<int64_t>{1, 2}},
                 {"pads_low", std::vector<int64_t>{1, 0}},
                 {"pads_high", std::vector<int64_t>{1, 2}},
                 {"groups", int64_t{2}}};
  const Tensor y = run("conv", {x, w, bias}, attrs);
  attrs.set("offset_groups", int64_t{2});
  const Tensor offset(DType::F64, {2, 24, y.dim(2), y.dim(3)});
  expect_close(run("deform_conv", {x, w, offset, bias}, attrs), y, 1e-12);
  // ONNX test_basic_deform_conv_without_padding.
  const Attrs plain = {{"strides", std::vector<int64_t>{1, 1}},
                       {"dilations", std::vector<int64_t>{1, 1}},
                       {"pads_low", std::vector<int64_t>{0, 0}},
                       {"pads_high", std::vector<int64_t>{0, 0}},
                       {"groups", int64_t{1}},
                       {"offset_groups", int64_t{1}}};
  Tensor moved(DType::F32, {1, 8, 2, 2});
  moved.set(0, 0.5);
  moved.set(5 * 4 + 3, -0.1);
  const Tensor ones = floats({1, 1, 2, 2}, {1, 1, 1, 1}), image = floats({1, 1, 3, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8});
  expect_close(run("deform_conv", {image, ones, moved}, plain), floats({1, 1, 2, 2}, {9.5, 12, 20, 23.9}), 1e-6);
}

TEST(Col2im, AddsWhereWindowsOverlap) {
  const Attrs attrs = {{"image", std::vector<int64_t>{4}},    {"kernel", std::vector<int64_t>{2}},
                       {"strides", std::vector<int64_t>{1}},  {"dilations", std::vector<int64_t>{1}},
                       {"pads_low", std::vector<int64_t>{0}}, {"pads_high", std::vector<int64_t>{0}}};
  const Tensor x = floats({1, 2, 3}, {1, 2, 3, 10, 20, 30});
  expect_values(run("col2im", {x}, attrs), {1, 12, 23, 30});
}

TEST(MaxUnpool, DecompositionAgrees) {
  const Attrs attrs = {{"sizes", std::vector<int64_t>{4, 4}}};
  // ONNX test_maxunpool_export_without_output_shape.
  const std::vector<Tensor> inputs = {floats({1, 1, 2, 2}, {1, 2, 3, 4}), ints({1, 1, 2, 2}, {5, 7, 13, 15})};
  expect_values(run("max_unpool", inputs, attrs), {0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 3, 0, 4});
  expect_decomposition("max_unpool", inputs, attrs);
}

}  // namespace
}  // namespace fuseloom::op
