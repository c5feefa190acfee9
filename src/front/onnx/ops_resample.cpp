// Operators that read images between their pixels, or put pixels back in place; boxes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "front/onnx/node_import.h"
#include "front/onnx/windows.h"

namespace fuseloom::front::onnx {
namespace {

// ---- Resize and Upsample
// ---------------------------------------------------------------------------------------------

// floor(size * scale). A scale within f32's rounding of a small fraction is that fraction: 0.7f is meant as 7/10.
Expr scaled_size(const NodeImport& n, const Expr& size, double scale) {
  for (int64_t denominator = 1; denominator <= 64; ++denominator) {
    const double numerator = std::round(scale * static_cast<double>(denominator));
    if (static_cast<float>(numerator / static_cast<double>(denominator)) == static_cast<float>(scale))
      return n.simplify(sym::floor_div(size * static_cast<int64_t>(numerator), denominator));
  }
  constexpr int kBits = 24;  // an f32 below 2^kBits is an integer over a power of two
  int exponent = 0;
  std::frexp(scale, &exponent);
  const int shift = std::clamp(kBits - exponent, 0, 40);
  return n.simplify(
      sym::floor_div(size * static_cast<int64_t>(std::round(std::ldexp(scale, shift))), int64_t{1} << shift));
}

struct ResizeSpec {
  std::string mode = "nearest", coordinate = "half_pixel", nearest = "round_prefer_floor";
  std::vector<int64_t> axes;
  ValueId scales, sizes, roi;  // at most one of scales and sizes; for the axes
  std::string aspect = "stretch";
};

// A vector with one entry for each of `axes`, as one for every dimension.
ValueId for_every_axis(NodeImport& n, ValueId v, const std::vector<int64_t>& axes, int64_t rank, double otherwise) {
  if (static_cast<int64_t>(axes.size()) == rank && std::is_sorted(axes.begin(), axes.end())) return v;
  const ValueId rest = n.scalar(n.dtype(v), otherwise);
  std::vector<ValueId> parts;
  for (int64_t a = 0; a < rank; ++a) {
    const auto it = std::find(axes.begin(), axes.end(), a);
    parts.push_back(it == axes.end() ? n.reshape(rest, {1}) : n.slice(v, 0, it - axes.begin(), 1));
  }
  return n.concat(std::move(parts), 0);
}

void resize(NodeImport& n, ValueId x, const ResizeSpec& spec) {
  const int64_t rank = n.rank(x);
  const Shape in = n.shape(x);
  Shape sizes = in;
  std::vector<double> scales(static_cast<size_t>(rank), 1.0);
  std::vector<ValueId> inputs = {x};
  ValueId run_time_scales;
  if (spec.sizes.valid()) {
    const std::vector<Expr> wanted = n.read_sizes(spec.sizes);
    if (wanted.size() != spec.axes.size())
      n.fail(fmt::format("has {} sizes for {} axes", wanted.size(), spec.axes.size()));
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto a = static_cast<size_t>(spec.axes[i]);
      sizes[a] = wanted[i];
      scales[a] = 0;  // size / in
    }
    if (spec.aspect != "stretch") {
      // One scale for all axes, the smallest (or largest) of those that the sizes ask for, as a fraction: a/b < c/d
      // when a * d < c * b. Sizes round half up.
      if (spec.aspect != "not_larger" && spec.aspect != "not_smaller")
        n.fail(fmt::format("keep_aspect_ratio_policy '{}' is not known", spec.aspect));
      Expr top = wanted[0], bottom = in[static_cast<size_t>(spec.axes[0])];
      for (size_t i = 1; i < wanted.size(); ++i) {
        const Expr& size = in[static_cast<size_t>(spec.axes[i])];
        const Expr smaller = sym::lt(wanted[i] * bottom, top * size);
        const Expr take = n.simplify(spec.aspect == "not_larger" ? smaller : 1 - smaller);
        top = n.simplify(sym::select(take, wanted[i], top));
        bottom = n.simplify(sym::select(take, size, bottom));
      }
      for (const int64_t axis : spec.axes) {
        const auto a = static_cast<size_t>(axis);
        sizes[a] = n.simplify(sym::floor_div(2 * top * in[a] + bottom, 2 * bottom));
      }
      const ValueId chosen =
          n.add("div", {n.cast(n.sym_scalar(top), DType::F32), n.cast(n.sym_scalar(bottom), DType::F32)});
      const auto count = static_cast<int64_t>(spec.axes.size());
      run_time_scales = for_every_axis(n, n.expand(n.reshape(chosen, {1}), {count}), spec.axes, rank, 1);
    }
  } else if (const std::optional<Tensor> known = n.constant_value(spec.scales); known.has_value()) {
    if (known->count() != static_cast<int64_t>(spec.axes.size()))
      n.fail(fmt::format("has {} scales for {} axes", known->count(), spec.axes.size()));
    for (size_t i = 0; i < spec.axes.size(); ++i) {
      const auto a = static_cast<size_t>(spec.axes[i]);
      scales[a] = known->at(static_cast<int64_t>(i));
      if (!(scales[a] > 0)) n.fail(fmt::format("the scale {} is not positive", scales[a]));
      sizes[a] = scaled_size(n, in[a], scales[a]);
    }
  } else {
    run_time_scales = for_every_axis(n, n.cast(spec.scales, DType::F32), spec.axes, rank, 1);
    const ValueId whole = n.cast(n.sym_values(in), DType::F32);
    const std::vector<Expr> read =
        n.read_sizes(n.cast(n.add("floor", {n.add("mul", {whole, run_time_scales})}), DType::I64));
    for (const int64_t axis : spec.axes)
      sizes[static_cast<size_t>(axis)] = sym::max(read.at(static_cast<size_t>(axis)), 0);
  }
  Attrs attrs{{"sizes", sizes},
              {"mode", spec.mode},
              {"coordinate", spec.coordinate},
              {"nearest", spec.nearest},
              {"cubic_a", n.real("cubic_coeff_a", -0.75)},
              {"extrapolation", n.real("extrapolation_value", 0)},
              {"exclude_outside", n.integer("exclude_outside", 0)},
              {"antialias", spec.mode == "nearest" ? int64_t{0} : n.integer("antialias", 0)}};
  if (!run_time_scales.valid()) attrs.set("scales", scales);
  const bool crops = spec.coordinate == "tf_crop_and_resize";
  if (crops || run_time_scales.valid()) {
    ValueId roi;
    if (crops) {
      if (!spec.roi.valid()) n.fail("tf_crop_and_resize needs the input roi");
      const auto count = static_cast<int64_t>(spec.axes.size());
      const ValueId begin = for_every_axis(n, n.slice(spec.roi, 0, 0, count), spec.axes, rank, 0);
      const ValueId end = for_every_axis(n, n.slice(spec.roi, 0, count, count), spec.axes, rank, 1);
      roi = n.concat({begin, end}, 0);
    }
    inputs.push_back(roi);
    if (run_time_scales.valid()) inputs.push_back(run_time_scales);
  }
  n.out(n.add("resize", std::move(inputs), std::move(attrs)));
}

bool is_empty(const NodeImport& n, ValueId v) { return !v.valid() || (n.rank(v) == 1 && n.size(v, 0).is_const(0)); }

void import_resize(NodeImport& n) {
  const ValueId x = n.in(0);
  ResizeSpec spec;
  spec.axes.resize(static_cast<size_t>(n.rank(x)));
  std::iota(spec.axes.begin(), spec.axes.end(), 0);
  spec.mode = n.text("mode", "nearest");
  if (n.version() < 11) {  // scales only; pixels at their corners, cut
    spec.scales = n.in(1);
    spec.coordinate = "asymmetric";
    spec.nearest = "floor";
    resize(n, x, spec);
    return;
  }
  if (n.has_attr("axes")) spec.axes = n.axes(n.integers("axes"), n.rank(x));
  spec.coordinate = n.text("coordinate_transformation_mode", "half_pixel");
  spec.nearest = n.text("nearest_mode", "round_prefer_floor");
  spec.aspect = n.text("keep_aspect_ratio_policy", "stretch");
  spec.roi = is_empty(n, n.in_or_none(1)) ? ValueId{} : n.in(1);
  if (!is_empty(n, n.in_or_none(3))) {
    spec.sizes = n.in(3);
  } else if (!is_empty(n, n.in_or_none(2))) {
    spec.scales = n.in(2);
  } else {
    n.fail("has neither scales nor sizes");
  }
  if (spec.coordinate == "tf_half_pixel_for_nn") n.unsupported("the coordinate mode tf_half_pixel_for_nn of opset 11");
  resize(n, x, spec);
}

void import_upsample(NodeImport& n) {
  const ValueId x = n.in(0);
  ResizeSpec spec;
  spec.axes.resize(static_cast<size_t>(n.rank(x)));
  std::iota(spec.axes.begin(), spec.axes.end(), 0);
  spec.mode = n.text("mode", "nearest");
  if (spec.mode == "bilinear") spec.mode = "linear";
  spec.coordinate = "asymmetric";
  spec.nearest = "floor";
  if (n.version() >= 9) {
    spec.scales = n.in(1);
  } else if (n.version() >= 7) {
    const std::vector<double> scales = n.reals("scales");
    spec.scales = n.constant(Tensor::of(DType::F32, {static_cast<int64_t>(scales.size())}, scales));
  } else {
    spec.scales = n.constant(Tensor::of(DType::F32, {4}, {1, 1, n.real("height_scale", 1), n.real("width_scale", 1)}));
  }
  resize(n, x, spec);
}

// ---- grids and regions
// -----------------------------------------------------------------------------------------------

void import_grid_sample(NodeImport& n) {
  std::string mode = n.text("mode", n.version() >= 20 ? "linear" : "bilinear");
  if (mode == "bilinear") mode = "linear";  // the names before opset 20
  if (mode == "bicubic") mode = "cubic";
  n.out(n.add("grid_sample", {n.in(0), n.in(1)},
              {{"mode", mode},
               {"padding", n.text("padding_mode", "zeros")},
               {"align_corners", n.integer("align_corners", 0)}}));
}

// The points of a regular grid over [-1, 1]^d, moved by an affine map for each batch entry: [n, sizes..., d].
void import_affine_grid(NodeImport& n) {
  const ValueId theta = n.in(0);
  std::vector<Expr> sizes = n.read_sizes(n.in(1));
  if (n.rank(theta) != 3 || sizes.size() < 3)
    n.fail(fmt::format("takes maps of rank 3 and a size of 4 or 5; found {} and {}", n.rank(theta), sizes.size()));
  sizes.erase(sizes.begin(), sizes.begin() + 2);
  const auto d = static_cast<int64_t>(sizes.size());
  const bool align = n.integer("align_corners", 0) != 0;
  const DType dtype = n.dtype(theta);
  // Column j of theta, next to [n, sizes..., d].
  const auto column = [&](int64_t j) {
    Shape shape(static_cast<size_t>(d) + 2, Expr(1));
    shape[0] = n.size(theta, 0);
    shape.back() = n.size(theta, 1);
    return n.reshape(n.slice(theta, 2, j, 1), shape);
  };
  ValueId grid = column(d);
  for (int64_t j = 0; j < d; ++j) {
    const auto dim = static_cast<size_t>(d - 1 - j);  // x runs along the last dimension
    Shape along(static_cast<size_t>(d) + 2, Expr(1));
    along[dim + 1] = sizes[dim];
    const ValueId i = n.add("iota", {}, {{"shape", along}, {"axis", static_cast<int64_t>(dim) + 1}, {"dtype", dtype}});
    const ValueId twice = n.add("mul", {i, n.like(i, 2)});
    const ValueId count = n.cast(n.sym_scalar(align ? sizes[dim] - 1 : sizes[dim]), dtype);
    const ValueId shifted = align ? twice : n.add("add", {twice, n.like(i, 1)});
    const ValueId place = n.add("sub", {n.add("div", {shifted, count}), n.like(i, 1)});
    grid = n.add("add", {grid, n.add("mul", {column(j), place})});
  }
  Shape shape = sizes;
  shape.insert(shape.begin(), n.size(theta, 0));
  shape.emplace_back(d);
  n.out(n.expand(grid, std::move(shape)));
}

void import_roi_align(NodeImport& n) {
  const std::string mode =
      n.text("coordinate_transformation_mode", n.version() >= 16 ? "half_pixel" : "output_half_pixel");
  n.out(n.add("roi_align", {n.in(0), n.in(1), n.in(2)},
              {{"sizes", Shape{n.integer("output_height", 1), n.integer("output_width", 1)}},
               {"mode", n.text("mode", "avg")},
               {"sampling_ratio", n.integer("sampling_ratio", 0)},
               {"spatial_scale", n.real("spatial_scale", 1)},
               {"half_pixel", int64_t{mode == "half_pixel"}}}));
}

void import_max_roi_pool(NodeImport& n) {
  const std::vector<int64_t> sizes = n.integers("pooled_shape");
  n.out(n.add("max_roi_pool", {n.in(0), n.in(1)},
              {{"sizes", op::shape_of(sizes)}, {"spatial_scale", n.real("spatial_scale", 1)}}));
}

void import_non_max_suppression(NodeImport& n) {
  std::vector<ValueId> inputs = {n.in(0), n.in(1)};
  for (size_t i = 2; i < 5; ++i) inputs.push_back(n.has(i) ? n.reshape(n.in(i), {}) : ValueId{});
  n.out(n.add("nms", std::move(inputs),
              {{"center", n.integer("center_point_box", 0)},
               {"defines", Shape{Expr::symbol(n.graph().fresh_symbol("boxes"))}}}));
}

// ---- windows
// ---------------------------------------------------------------------------------------------------------

// Puts each value back at its index, in a tensor of zeros; a larger output is padded behind.
void import_max_unpool(NodeImport& n) {
  const ValueId x = n.in(0), index = n.in(1);
  const auto rank = static_cast<size_t>(n.rank(x) - 2);
  const std::vector<int64_t> kernel = n.integers("kernel_shape"),
                             strides = n.integers("strides", std::vector<int64_t>(rank, 1)),
                             pads = n.integers("pads", std::vector<int64_t>(2 * rank, 0));
  if (n.rank(x) < 3 || kernel.size() != rank || strides.size() != rank || pads.size() != 2 * rank)
    n.fail(
        fmt::format("an attribute does not have one entry for each spatial dimension of {}", op::to_string(n.type(x))));
  const Shape in = n.shape(x);
  Shape sizes;
  for (size_t d = 0; d < rank; ++d)
    sizes.push_back(n.simplify((in[d + 2] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + rank]));
  ValueId y = n.add("max_unpool", {x, index}, {{"sizes", sizes}});
  if (n.has(2)) {
    const Shape wanted = n.read_sizes(n.in(2)), have = n.shape(y);
    if (wanted.size() != have.size())
      n.fail(fmt::format("output_shape has {} entries for rank {}", wanted.size(), have.size()));
    Shape high;
    for (size_t d = 0; d < have.size(); ++d) high.push_back(n.simplify(wanted[d] - have[d]));
    y = n.pad(y, Shape(have.size(), Expr(0)), std::move(high));
  }
  n.out(y);
}

void import_col2im(NodeImport& n) {
  const std::vector<Expr> image = n.read_sizes(n.in(1)), kernel = n.read_sizes(n.in(2));
  const size_t rank = image.size();
  const std::vector<int64_t> pads = n.integers("pads", std::vector<int64_t>(2 * rank, 0)), ones(rank, 1);
  if (pads.size() != 2 * rank) n.fail(fmt::format("has {} pads for {} dimensions", pads.size(), rank));
  n.out(n.add("col2im", {n.in(0)},
              {{"image", Shape(image)},
               {"kernel", Shape(kernel)},
               {"strides", n.integers("strides", ones)},
               {"dilations", n.integers("dilations", ones)},
               {"pads_low", op::shape_of(std::span(pads).first(rank))},
               {"pads_high", op::shape_of(std::span(pads).subspan(rank))}}));
}

// x, w, offset, bias?, mask?
void import_deform_conv(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  const Windows windows = read_windows(n, x, kernel_of_weights(n, w));
  std::vector<ValueId> inputs = {x, w, n.in(2), n.in_or_none(3), n.in_or_none(4)};
  while (!inputs.back().valid()) inputs.pop_back();
  n.out(n.add("deform_conv", std::move(inputs),
              {{"strides", windows.strides},
               {"dilations", windows.dilations},
               {"pads_low", windows.low},
               {"pads_high", windows.high},
               {"groups", n.integer("group", 1)},
               {"offset_groups", n.integer("offset_group", 1)}}));
}

}  // namespace

void add_resample_imports(ImportTable& t) {
  t.add("Resize", import_resize);
  t.add("Upsample", import_upsample);
  t.add("GridSample", import_grid_sample);
  t.add("AffineGrid", import_affine_grid);
  t.add("RoiAlign", import_roi_align);
  t.add("MaxRoiPool", import_max_roi_pool);
  t.add("NonMaxSuppression", import_non_max_suppression);
  t.add("MaxUnpool", import_max_unpool);
  t.add("Col2Im", import_col2im);
  t.add("DeformConv", import_deform_conv);
}

}  // namespace fuseloom::front::onnx
