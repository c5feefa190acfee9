// Ops that read images between their pixels (resize, grid_sample, roi_align, deform_conv) or put pixels back in place
// (max_unpool, col2im), and max_roi_pool.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "op/arithmetic.h"
#include "op/decompose.h"
#include "op/multiply.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/sliding_window.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

// The four weights of cubic convolution (Keys 1981) for the places -1, 0, 1, 2 around a point at `t` in [0, 1].
void cubic_weights(double t, double a, double* weights) {
  const auto near = [a](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [a](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  weights[0] = far(t + 1);
  weights[1] = near(t);
  weights[2] = near(1 - t);
  weights[3] = far(2 - t);
}

// ---- resize
// ----------------------------------------------------------------------------------------------------------
//
// Every dimension is resampled by itself: output o is a weighted sum of a few neighbouring inputs. Dimensions that keep
// their size at scale 1 are left alone.

std::vector<TensorType> infer_resize(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (is_complex(x.dtype)) context.fail(fmt::format("x is {}, expected real numbers", dtype_name(x.dtype)));
  const Attrs& attrs = context.attrs;
  const std::string mode = attrs.text("mode", "nearest"), coordinate = attrs.text("coordinate", "half_pixel");
  expect_entries(context, "sizes", attrs.shape("sizes").size(), x.rank());
  if (attrs.has("scales")) expect_entries(context, "scales", attrs.reals("scales").size(), x.rank());
  expect_text(context, "mode", mode, {"nearest", "linear", "cubic"});
  expect_text(context, "coordinate", coordinate,
              {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
               "tf_crop_and_resize"});
  expect_text(context, "nearest", attrs.text("nearest", "round_prefer_floor"),
              {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"});
  if (attrs.integer("antialias", 0) != 0 && mode == "nearest") context.fail("mode \"nearest\" has no antialias");
  if (context.has(1)) {
    expect_float(context, "roi", context.in(1));
    expect_rank(context, "roi", context.in(1), 1);
    expect_size(context, "the size of roi", context.in(1).shape[0], 2 * x.rank());
  } else if (coordinate == "tf_crop_and_resize") {
    context.fail("coordinate \"tf_crop_and_resize\" needs the input roi");
  }
  if (context.has(2)) {
    expect_float(context, "scales", context.in(2));
    expect_rank(context, "scales", context.in(2), 1);
    expect_size(context, "the size of scales", context.in(2).shape[0], x.rank());
  }
  return {{x.dtype, attrs.shape("sizes")}};
}

// How one dimension is resampled: output o = sum over j < taps of weights[o * taps + j] * in[indices[o * taps + j]].
struct AxisFilter {
  int64_t in = 0, out = 0, taps = 1;
  std::vector<int64_t> indices;
  std::vector<double> weights;
  std::vector<char> outside;  // outputs that take the extrapolation value
};

struct ResizeAxis {
  int64_t in = 0, out = 0;
  double scale = 1, roi_low = 0, roi_high = 1;
};

// Where output o lies in the input, in pixels.
double source_coordinate(const std::string& coordinate, const ResizeAxis& axis, int64_t o) {
  const double x = static_cast<double>(o), in = static_cast<double>(axis.in), length = axis.scale * in;
  if (coordinate == "align_corners") return length == 1 ? 0 : x * (in - 1) / (length - 1);
  if (coordinate == "asymmetric") return x / axis.scale;
  if (coordinate == "tf_crop_and_resize") {
    const double extent = (axis.roi_high - axis.roi_low) * (in - 1);
    return axis.roi_low * (in - 1) + (length == 1 ? extent / 2 : x * extent / (length - 1));
  }
  if (coordinate == "pytorch_half_pixel" && length == 1) return -0.5;
  const double half_pixel = (x + 0.5) / axis.scale - 0.5;
  if (coordinate != "half_pixel_symmetric") return half_pixel;
  // The output may be shorter than scale * in: its centre stays on the input's centre.
  return in / 2 * (1 - static_cast<double>(axis.out) / length) + half_pixel;
}

int64_t nearest_pixel(const std::string& rounding, double x) {
  if (rounding == "floor") return static_cast<int64_t>(std::floor(x));
  if (rounding == "ceil") return static_cast<int64_t>(std::ceil(x));
  if (rounding == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5));
  return static_cast<int64_t>(std::ceil(x - 0.5));
}

AxisFilter make_filter(const Attrs& attrs, const ResizeAxis& axis) {
  const std::string mode = attrs.text("mode", "nearest"), coordinate = attrs.text("coordinate", "half_pixel");
  const std::string rounding = attrs.text("nearest", "round_prefer_floor");
  const double cubic_a = attrs.real("cubic_a", -0.75);
  // Shrinking with antialias stretches the filter, so that every input pixel counts.
  const double stretch = attrs.integer("antialias", 0) != 0 ? std::min(axis.scale, 1.0) : 1.0;
  const bool antialias = stretch < 1;
  const double radius = mode == "nearest" ? 0 : (mode == "linear" ? 1 : 2) / stretch;
  const bool exclude = attrs.integer("exclude_outside", 0) != 0;
  const auto kernel = [&](double distance) {
    const double x = std::abs(distance) * stretch;
    if (mode == "linear") return std::max(0.0, 1 - x);
    double weights[4];
    if (x >= 2) return 0.0;
    cubic_weights(x < 1 ? x : x - 1, cubic_a, weights);
    return x < 1 ? weights[1] : weights[0];
  };
  AxisFilter filter{.in = axis.in, .out = axis.out};
  if (mode != "nearest")
    filter.taps = antialias ? 2 * static_cast<int64_t>(std::ceil(radius)) + 1 : mode == "linear" ? 2 : 4;
  std::vector<double> weights(static_cast<size_t>(filter.taps));
  for (int64_t o = 0; o < axis.out; ++o) {
    const double x = source_coordinate(coordinate, axis, o);
    filter.outside.push_back(coordinate == "tf_crop_and_resize" && (x < 0 || x > static_cast<double>(axis.in - 1)) ? 1
                                                                                                                   : 0);
    int64_t first;
    if (mode == "nearest") {
      first = nearest_pixel(rounding, x);
      weights[0] = 1;
    } else {
      const int64_t below = static_cast<int64_t>(std::floor(x));
      first = below - (filter.taps - 1) / 2;
      for (int64_t j = 0; j < filter.taps; ++j)
        weights[static_cast<size_t>(j)] = kernel(x - static_cast<double>(first + j));
    }
    double sum = 0;
    for (int64_t j = 0; j < filter.taps; ++j) {
      if (exclude && (first + j < 0 || first + j >= axis.in)) weights[static_cast<size_t>(j)] = 0;
      sum += weights[static_cast<size_t>(j)];
    }
    const bool normalize = (exclude || antialias) && sum != 0;
    for (int64_t j = 0; j < filter.taps; ++j) {
      filter.indices.push_back(std::clamp<int64_t>(first + j, 0, axis.in - 1));  // the edge pixel repeats
      filter.weights.push_back(normalize ? weights[static_cast<size_t>(j)] / sum : weights[static_cast<size_t>(j)]);
    }
  }
  return filter;
}

std::vector<double> resample_axis(const std::vector<double>& x, const AxisFilter& filter, int64_t outer, int64_t inner,
                                  double extrapolation) {
  std::vector<double> y(static_cast<size_t>(outer * filter.out * inner), 0.0);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t p = 0; p < filter.out; ++p) {
      double* to = y.data() + (o * filter.out + p) * inner;
      if (filter.outside[static_cast<size_t>(p)] != 0) {
        std::fill_n(to, inner, extrapolation);
        continue;
      }
      for (int64_t j = 0; j < filter.taps; ++j) {
        const size_t tap = static_cast<size_t>(p * filter.taps + j);
        const double weight = filter.weights[tap];
        if (weight == 0) continue;
        const double* from = x.data() + (o * filter.in + filter.indices[tap]) * inner;
        for (int64_t i = 0; i < inner; ++i) to[i] += weight * from[i];
      }
    }
  }
  return y;
}

// Nearest neighbours only move elements, so that every type keeps its exact values.
Tensor pick_axis(const Tensor& x, const AxisFilter& filter, int64_t outer, int64_t inner, Dims dims,
                 double extrapolation) {
  Tensor y(x.dtype(), std::move(dims));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t p = 0; p < filter.out; ++p) {
      const int64_t to = (o * filter.out + p) * inner;
      if (filter.outside[static_cast<size_t>(p)] != 0) {
        for (int64_t i = 0; i < inner; ++i) y.set(to + i, extrapolation);
      } else {
        copy_elements(x.data(), (o * filter.in + filter.indices[static_cast<size_t>(p)]) * inner, y.data(), to, inner,
                      x.dtype());
      }
    }
  }
  return y;
}

void reference_resize(const ReferenceContext& context) {
  const Attrs& attrs = context.attrs;
  Tensor x = context.inputs[0].to_contiguous();
  Tensor& y = context.outputs[0];
  const size_t rank = static_cast<size_t>(x.rank());
  const bool nearest = attrs.text("mode", "nearest") == "nearest";
  const double extrapolation = attrs.real("extrapolation", 0);
  const bool crops = attrs.text("coordinate", "half_pixel") == "tf_crop_and_resize";
  Dims dims = x.dims();
  std::vector<double> values;
  if (!nearest) values = stage<double>(x);
  for (size_t d = 0; d < rank; ++d) {
    ResizeAxis axis{.in = dims[d], .out = y.dims()[d]};
    axis.scale = static_cast<double>(axis.out) / static_cast<double>(axis.in);
    if (attrs.has("scales") && attrs.reals("scales")[d] != 0) axis.scale = attrs.reals("scales")[d];
    if (context.has(2)) axis.scale = context.inputs[2].at(static_cast<int64_t>(d));
    if (crops) {
      axis.roi_low = context.inputs[1].at(static_cast<int64_t>(d));
      axis.roi_high = context.inputs[1].at(static_cast<int64_t>(d + rank));
    }
    if (axis.in == axis.out && axis.scale == 1 && axis.roi_low == 0 && axis.roi_high == 1) continue;
    FL_REQUIRE(axis.in > 0 || axis.out == 0, "{}: dimension {} of size 0 cannot become {}", context.record->name, d,
               axis.out);
    const AxisFilter filter = make_filter(attrs, axis);
    const int64_t outer = count_between(dims, 0, static_cast<int64_t>(d));
    const int64_t inner = count_between(dims, static_cast<int64_t>(d) + 1, static_cast<int64_t>(rank));
    dims[d] = axis.out;
    if (nearest) {
      x = pick_axis(x, filter, outer, inner, dims, extrapolation);
    } else {
      values = resample_axis(values, filter, outer, inner, extrapolation);
    }
  }
  if (nearest) {
    copy_elements(x.data(), 0, y.data(), 0, x.count(), x.dtype());
  } else {
    unstage(values, y);
  }
}

// ---- grid_sample
// -----------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_grid_sample(const InferContext& context) {
  const TensorType &x = context.in(0), &grid = context.in(1);
  expect_float(context, "x", x);
  expect_float(context, "grid", grid);
  if (x.rank() < 3) context.fail(fmt::format("x is {}, expected [n, channels, spatial...]", to_string(x)));
  expect_rank(context, "grid", grid, x.rank());
  expect_size(context, "the batch of grid", grid.shape[0], x.shape[0]);
  expect_size(context, "the last dimension of grid", grid.shape.back(), x.rank() - 2);
  expect_text(context, "mode", context.attrs.text("mode"), {"nearest", "linear", "cubic"});
  expect_text(context, "padding", context.attrs.text("padding"), {"zeros", "border", "reflection"});
  TensorType y{x.dtype, {x.shape[0], x.shape[1]}};
  y.shape.insert(y.shape.end(), grid.shape.begin() + 1, grid.shape.end() - 1);
  return {y};
}

// Mirrors x at the borders until it lies between them.
double reflect(double x, double low, double high) {
  const double range = high - low;
  if (range <= 0 || !std::isfinite(x)) return low;
  double distance = std::fmod(std::abs(x - low), 2 * range);
  if (distance > range) distance = 2 * range - distance;
  return low + distance;
}

struct GridSampler {
  std::string mode, padding;
  bool align_corners = false;

  struct Taps {
    int64_t count = 1;
    int64_t indices[4] = {};  // -1: outside, reads 0
    double weights[4] = {};
  };

  // The pixel that index i of an axis of `size` pixels reads.
  int64_t pixel(int64_t i, int64_t size) const {
    if (i >= 0 && i < size) return i;
    if (padding == "zeros") return -1;
    if (padding == "border") return std::clamp<int64_t>(i, 0, size - 1);
    const double low = align_corners ? 0.0 : -0.5, high = static_cast<double>(size) - (align_corners ? 1.0 : 0.5);
    return std::clamp<int64_t>(static_cast<int64_t>(reflect(static_cast<double>(i), low, high)), 0, size - 1);
  }

  // A normalized coordinate in [-1, 1] as weighted pixels of one axis.
  Taps taps(double normalized, int64_t size) const {
    Taps result;
    if (std::isnan(normalized)) normalized = -1;
    const double n = static_cast<double>(size);
    double x = align_corners ? (normalized + 1) / 2 * (n - 1) : ((normalized + 1) * n - 1) / 2;
    if (mode == "nearest") x = std::nearbyint(x);
    const double low = align_corners ? 0.0 : -0.5, high = n - (align_corners ? 1.0 : 0.5);
    if (x < low || x > high) {
      if (padding == "border") x = std::clamp(x, 0.0, n - 1);
      if (padding == "reflection") x = reflect(x, low, high);
    }
    // Far outside (and infinite) coordinates read nothing or the border: keep the integer conversion in range.
    x = std::clamp(x, -4.0, n + 4);
    const double below = std::floor(x);
    const int64_t first = static_cast<int64_t>(below);
    if (mode == "nearest") {
      result.indices[0] = pixel(static_cast<int64_t>(x), size);
      result.weights[0] = 1;
    } else if (mode == "linear") {
      result.count = 2;
      result.weights[1] = x - below;
      result.weights[0] = 1 - result.weights[1];
      for (int64_t j = 0; j < 2; ++j) result.indices[j] = pixel(first + j, size);
    } else {
      result.count = 4;
      cubic_weights(x - below, -0.75, result.weights);
      for (int64_t j = 0; j < 4; ++j) result.indices[j] = pixel(first - 1 + j, size);
    }
    return result;
  }
};

// The product of the axes' taps as (flat offset, weight) pairs; offsets and weights are reused between calls.
void multiply_taps(std::span<const GridSampler::Taps> axes, const Dims& spatial, std::vector<int64_t>& offsets,
                   std::vector<double>& weights) {
  offsets.assign(1, 0);
  weights.assign(1, 1.0);
  for (size_t d = 0; d < axes.size(); ++d) {
    const size_t before = offsets.size();
    std::vector<int64_t> next_offsets;
    std::vector<double> next_weights;
    for (size_t i = 0; i < before; ++i) {
      for (int64_t j = 0; j < axes[d].count; ++j) {
        if (axes[d].indices[j] < 0) continue;
        next_offsets.push_back(offsets[i] * spatial[d] + axes[d].indices[j]);
        next_weights.push_back(weights[i] * axes[d].weights[j]);
      }
    }
    offsets.swap(next_offsets);
    weights.swap(next_weights);
  }
}

void reference_grid_sample(const ReferenceContext& context) {
  const Tensor &x_tensor = context.inputs[0], &grid_tensor = context.inputs[1];
  Tensor& y_tensor = context.outputs[0];
  const GridSampler sampler{context.attrs.text("mode"), context.attrs.text("padding"),
                            context.attrs.integer("align_corners") != 0};
  const Dims spatial(x_tensor.dims().begin() + 2, x_tensor.dims().end());
  const int64_t batch = x_tensor.dim(0), channels = x_tensor.dim(1);
  const int64_t in_plane = element_count(spatial), out_plane = count_between(y_tensor.dims(), 2, y_tensor.rank());
  const size_t rank = spatial.size();
  const std::vector<double> x = stage<double>(x_tensor), grid = stage<double>(grid_tensor);
  std::vector<double> y(static_cast<size_t>(y_tensor.count()), 0.0);
  if (in_plane > 0) {
    std::vector<GridSampler::Taps> taps(rank);
    std::vector<int64_t> offsets;
    std::vector<double> weights;
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t p = 0; p < out_plane; ++p) {
        // The grid names the last axis first.
        const double* point = grid.data() + (n * out_plane + p) * static_cast<int64_t>(rank);
        for (size_t d = 0; d < rank; ++d) taps[d] = sampler.taps(point[rank - 1 - d], spatial[d]);
        multiply_taps(taps, spatial, offsets, weights);
        for (int64_t c = 0; c < channels; ++c) {
          const double* plane = x.data() + (n * channels + c) * in_plane;
          double sum = 0;
          for (size_t i = 0; i < offsets.size(); ++i) sum += weights[i] * plane[offsets[i]];
          y[static_cast<size_t>((n * channels + c) * out_plane + p)] = sum;
        }
      }
    }
  }
  unstage(y, y_tensor);
}

// ---- roi_align, max_roi_pool
// -----------------------------------------------------------------------------------------

Shape checked_roi_sizes(const InferContext& context) {
  const Shape sizes = context.attrs.shape("sizes");
  expect_entries(context, "sizes", sizes.size(), 2);
  return sizes;
}

std::vector<TensorType> infer_roi_align(const InferContext& context) {
  const TensorType &x = context.in(0), &rois = context.in(1), &batch = context.in(2);
  expect_float(context, "x", x);
  expect_rank(context, "x", x, 4);
  expect_float(context, "rois", rois);
  expect_rank(context, "rois", rois, 2);
  expect_size(context, "the last dimension of rois", rois.shape[1], 4);
  expect_index(context, "batch", batch);
  expect_rank(context, "batch", batch, 1);
  expect_size(context, "the size of batch", batch.shape[0], rois.shape[0]);
  expect_text(context, "mode", context.attrs.text("mode"), {"avg", "max"});
  const Shape sizes = checked_roi_sizes(context);
  return {{x.dtype, {rois.shape[0], x.shape[1], sizes[0], sizes[1]}}};
}

// The four pixels around a point and their weights; nothing for a point more than one pixel outside.
struct Corners {
  int64_t offsets[4] = {};
  double weights[4] = {};
};
Corners bilinear_corners(double y, double x, int64_t height, int64_t width) {
  Corners corners;
  if (!(y >= -1 && y <= static_cast<double>(height) && x >= -1 && x <= static_cast<double>(width))) return corners;
  const auto axis = [](double v, int64_t size, int64_t* index, double* weight) {
    v = std::max(v, 0.0);
    index[0] = std::min(static_cast<int64_t>(v), size - 1);
    index[1] = std::min(index[0] + 1, size - 1);
    weight[1] = index[0] == size - 1 ? 0 : v - static_cast<double>(index[0]);
    weight[0] = 1 - weight[1];
  };
  int64_t rows[2], columns[2];
  double row_weights[2], column_weights[2];
  axis(y, height, rows, row_weights);
  axis(x, width, columns, column_weights);
  for (int i = 0; i < 4; ++i) {
    corners.offsets[i] = rows[i / 2] * width + columns[i % 2];
    corners.weights[i] = row_weights[i / 2] * column_weights[i % 2];
  }
  return corners;
}

int64_t checked_batch(const ReferenceContext& context, double index, int64_t batch) {
  FL_REQUIRE(index >= 0 && index < static_cast<double>(batch), "{}: a region names image {} of a batch of {}",
             context.record->name, index, batch);
  return static_cast<int64_t>(index);
}

void reference_roi_align(const ReferenceContext& context) {
  const Tensor& x_tensor = context.inputs[0];
  Tensor& result = context.outputs[0];
  const Attrs& attrs = context.attrs;
  const bool half_pixel = attrs.integer("half_pixel") != 0, average = attrs.text("mode") == "avg";
  const double spatial_scale = attrs.real("spatial_scale"), shift = half_pixel ? 0.5 : 0.0;
  const int64_t sampling_ratio = attrs.integer("sampling_ratio");
  const int64_t channels = x_tensor.dim(1), height = x_tensor.dim(2), width = x_tensor.dim(3), plane = height * width;
  const int64_t out[2] = {result.dim(2), result.dim(3)};
  const std::vector<double> x = stage<double>(x_tensor), rois = stage<double>(context.inputs[1]);
  const std::vector<int64_t> batches = stage<int64_t>(context.inputs[2]);
  std::vector<double> y(static_cast<size_t>(result.count()), 0.0);
  std::vector<Corners> samples;
  for (size_t r = 0; plane > 0 && r < batches.size(); ++r) {
    const int64_t image = checked_batch(context, static_cast<double>(batches[r]), x_tensor.dim(0));
    double start[2], bin[2];
    int64_t grid[2];
    for (size_t d = 0; d < 2; ++d) {  // 0: rows, 1: columns; a region is (x1, y1, x2, y2)
      start[d] = rois[r * 4 + 1 - d] * spatial_scale - shift;
      double extent = rois[r * 4 + 3 - d] * spatial_scale - shift - start[d];
      if (!half_pixel) extent = std::max(extent, 1.0);
      bin[d] = extent / static_cast<double>(out[d]);
      grid[d] = sampling_ratio > 0 ? sampling_ratio : std::max<int64_t>(static_cast<int64_t>(std::ceil(bin[d])), 0);
    }
    const int64_t count = grid[0] * grid[1];
    for (int64_t p = 0; p < out[0] * out[1]; ++p) {
      samples.clear();
      for (int64_t s = 0; s < count; ++s) {
        const double row = static_cast<double>(s / grid[1]) + 0.5, column = static_cast<double>(s % grid[1]) + 0.5;
        samples.push_back(bilinear_corners(
            start[0] + (static_cast<double>(p / out[1]) + row / static_cast<double>(grid[0])) * bin[0],
            start[1] + (static_cast<double>(p % out[1]) + column / static_cast<double>(grid[1])) * bin[1], height,
            width));
      }
      for (int64_t c = 0; c < channels; ++c) {
        const double* pixels = x.data() + (image * channels + c) * plane;
        double value = average || samples.empty() ? 0 : -std::numeric_limits<double>::infinity();
        for (const Corners& sample : samples) {
          for (int i = 0; i < 4; ++i) {
            const double part = sample.weights[i] * pixels[sample.offsets[i]];
            value =
                average ? value + part : float_max(value, part);  // max: of the weighted corners, as ONNX defines it
          }
        }
        if (average) value /= static_cast<double>(std::max<int64_t>(count, 1));
        y[static_cast<size_t>((static_cast<int64_t>(r) * channels + c) * out[0] * out[1] + p)] = value;
      }
    }
  }
  unstage(y, result);
}

std::vector<TensorType> infer_max_roi_pool(const InferContext& context) {
  const TensorType &x = context.in(0), &rois = context.in(1);
  expect_float(context, "x", x);
  expect_rank(context, "x", x, 4);
  expect_dtype(context, "rois", rois, x.dtype);
  expect_rank(context, "rois", rois, 2);
  expect_size(context, "the last dimension of rois", rois.shape[1], 5);
  const Shape sizes = checked_roi_sizes(context);
  return {{x.dtype, {rois.shape[0], x.shape[1], sizes[0], sizes[1]}}};
}

// Fast R-CNN's pooling: a region rounded to whole pixels, cut into bins, the maximum of each; 0 for an empty bin.
void reference_max_roi_pool(const ReferenceContext& context) {
  const Tensor& x_tensor = context.inputs[0];
  Tensor& result = context.outputs[0];
  const double spatial_scale = context.attrs.real("spatial_scale");
  const int64_t channels = x_tensor.dim(1), size[2] = {x_tensor.dim(2), x_tensor.dim(3)};
  const int64_t out[2] = {result.dim(2), result.dim(3)}, regions = result.dim(0);
  const std::vector<double> x = stage<double>(x_tensor), rois = stage<double>(context.inputs[1]);
  std::vector<double> y(static_cast<size_t>(result.count()), 0.0);
  for (int64_t r = 0; r < regions; ++r) {
    const double* roi = rois.data() + r * 5;  // (batch, x1, y1, x2, y2)
    const int64_t image = checked_batch(context, roi[0], x_tensor.dim(0));
    std::vector<int64_t> from[2], to[2];
    for (size_t d = 0; d < 2; ++d) {
      const int64_t first = static_cast<int64_t>(std::round(roi[2 - d] * spatial_scale));
      const int64_t last = static_cast<int64_t>(std::round(roi[4 - d] * spatial_scale));
      const double bin = static_cast<double>(std::max<int64_t>(last - first + 1, 1)) / static_cast<double>(out[d]);
      for (int64_t p = 0; p < out[d]; ++p) {
        const int64_t low = static_cast<int64_t>(std::floor(static_cast<double>(p) * bin)) + first;
        const int64_t high = static_cast<int64_t>(std::ceil(static_cast<double>(p + 1) * bin)) + first;
        from[d].push_back(std::clamp<int64_t>(low, 0, size[d]));
        to[d].push_back(std::clamp<int64_t>(high, 0, size[d]));
      }
    }
    for (int64_t c = 0; c < channels; ++c) {
      const double* plane = x.data() + (image * channels + c) * size[0] * size[1];
      for (size_t i = 0; i < from[0].size(); ++i) {
        for (size_t j = 0; j < from[1].size(); ++j) {
          const bool empty = from[0][i] >= to[0][i] || from[1][j] >= to[1][j];
          double best = empty ? 0 : -std::numeric_limits<double>::infinity();
          for (int64_t h = from[0][i]; h < to[0][i]; ++h) {
            for (int64_t w = from[1][j]; w < to[1][j]; ++w) best = float_max(best, plane[h * size[1] + w]);
          }
          y[static_cast<size_t>(((r * channels + c) * out[0] + static_cast<int64_t>(i)) * out[1] +
                                static_cast<int64_t>(j))] = best;
        }
      }
    }
  }
  unstage(y, result);
}

// ---- deform_conv
// -----------------------------------------------------------------------------------------------------

std::vector<AttrSpec> window_attrs(std::vector<AttrSpec> more) {
  more.insert(more.begin(), {required_attr("strides", Kind::Integers), required_attr("dilations", Kind::Integers),
                             required_attr("pads_low", Kind::Sizes), required_attr("pads_high", Kind::Sizes)});
  return more;
}

std::vector<TensorType> infer_deform_conv(const InferContext& context) {
  const TensorType &x = context.in(0), &w = context.in(1), &offset = context.in(2);
  const Attrs& attrs = context.attrs;
  expect_float(context, "x", x);
  expect_rank(context, "x", x, 4);
  const char* names[] = {"x", "w", "offset", "bias", "mask"};
  for (size_t i = 1; i < 5; ++i) {
    if (!context.has(i)) continue;
    expect_dtype(context, names[i], context.in(i), x.dtype);
    expect_rank(context, names[i], context.in(i), i == 3 ? 1 : 4);
  }
  for (const char* name : {"strides", "dilations"}) {
    expect_entries(context, name, attrs.integers(name).size(), 2);
    for (const int64_t value : attrs.integers(name)) {
      if (value < 1) context.fail(fmt::format("{} has the entry {}, expected 1 or more", name, value));
    }
  }
  for (const char* name : {"pads_low", "pads_high"}) expect_entries(context, name, attrs.shape(name).size(), 2);
  const int64_t groups = attrs.integer("groups"), offset_groups = attrs.integer("offset_groups");
  if (groups < 1 || offset_groups < 1)
    context.fail(fmt::format("groups {} and offset_groups {}, expected 1 or more", groups, offset_groups));
  expect_size(context, "the number of channels of x", x.shape[1], w.shape[1] * groups);
  const sym::Expr taps = w.shape[2] * w.shape[3] * offset_groups;
  expect_size(context, "dimension 1 of offset", offset.shape[1], taps * 2);
  if (context.has(4)) expect_size(context, "dimension 1 of mask", context.in(4).shape[1], taps);
  TensorType y{x.dtype, {x.shape[0], w.shape[0]}};
  for (size_t d = 0; d < 2; ++d) {
    y.shape.push_back(window_output_size(x.shape[d + 2], attrs.shape("pads_low")[d], attrs.shape("pads_high")[d],
                                         w.shape[d + 2], attrs.integers("strides")[d], attrs.integers("dilations")[d]));
    expect_size(context, fmt::format("dimension {} of offset", d + 2), offset.shape[d + 2], y.shape.back());
  }
  return {y};
}

// A convolution whose taps are moved by `offset` (rows, columns) and weighed by `mask`; between pixels it interpolates,
// outside the image it reads 0.
void reference_deform_conv(const ReferenceContext& context) {
  const Tensor &x_tensor = context.inputs[0], &w_tensor = context.inputs[1];
  Tensor& y_tensor = context.outputs[0];
  const Attrs& attrs = context.attrs;
  const std::vector<int64_t>&strides = attrs.integers("strides"), &dilations = attrs.integers("dilations");
  const Dims low = concrete_dims(attrs.shape("pads_low"));
  const int64_t groups = attrs.integer("groups"), offset_groups = attrs.integer("offset_groups");
  const int64_t height = x_tensor.dim(2), width = x_tensor.dim(3), in_plane = height * width;
  const int64_t channels = x_tensor.dim(1), in_channels = channels / groups, out_channels = y_tensor.dim(1) / groups;
  const int64_t kernel = w_tensor.dim(2) * w_tensor.dim(3), out_width = y_tensor.dim(3),
                out_plane = y_tensor.dim(2) * out_width;
  const std::vector<double> x = stage<double>(x_tensor), w = stage<double>(w_tensor),
                            offset = stage<double>(context.inputs[2]);
  const std::vector<double> bias = context.has(3) ? stage<double>(context.inputs[3]) : std::vector<double>();
  const std::vector<double> mask = context.has(4) ? stage<double>(context.inputs[4]) : std::vector<double>();
  std::vector<double> y(static_cast<size_t>(y_tensor.count()));
  const auto sample = [&](const double* plane, double row, double column) {
    if (!(row > -1 && row < static_cast<double>(height) && column > -1 && column < static_cast<double>(width)))
      return 0.0;
    const int64_t h = static_cast<int64_t>(std::floor(row)), v = static_cast<int64_t>(std::floor(column));
    const double dh = row - static_cast<double>(h), dv = column - static_cast<double>(v);
    const auto at = [&](int64_t i, int64_t j) {
      return i < 0 || i >= height || j < 0 || j >= width ? 0.0 : plane[i * width + j];
    };
    return (1 - dh) * ((1 - dv) * at(h, v) + dv * at(h, v + 1)) +
           dh * ((1 - dv) * at(h + 1, v) + dv * at(h + 1, v + 1));
  };
  for (int64_t n = 0; n < x_tensor.dim(0); ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const auto fill = [&](int64_t first, int64_t columns, double* panel) {
        for (int64_t c = 0; c < in_channels; ++c) {
          const int64_t channel = g * in_channels + c, group = channel / (channels / offset_groups);
          const double* plane = x.data() + (n * channels + channel) * in_plane;
          for (int64_t k = 0; k < kernel; ++k) {
            const int64_t tap = (n * offset_groups + group) * kernel + k;
            for (int64_t j = 0; j < columns; ++j) {
              const int64_t p = first + j;
              const double row =
                  static_cast<double>(p / out_width * strides[0] - low[0] + k / w_tensor.dim(3) * dilations[0]);
              const double column =
                  static_cast<double>(p % out_width * strides[1] - low[1] + k % w_tensor.dim(3) * dilations[1]);
              double value = sample(plane, row + offset[static_cast<size_t>(2 * tap * out_plane + p)],
                                    column + offset[static_cast<size_t>((2 * tap + 1) * out_plane + p)]);
              if (!mask.empty()) value *= mask[static_cast<size_t>(tap * out_plane + p)];
              panel[(c * kernel + k) * kPanelWidth + j] = value;
            }
          }
        }
      };
      multiply<double>(out_channels, out_plane, in_channels * kernel,
                       w.data() + g * out_channels * in_channels * kernel, fill,
                       bias.empty() ? nullptr : bias.data() + g * out_channels,
                       y.data() + (n * groups + g) * out_channels * out_plane);
    }
  }
  unstage(y, y_tensor);
}

// ---- col2im
// ----------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_col2im(const InferContext& context) {
  const TensorType& x = context.in(0);
  const Attrs& attrs = context.attrs;
  if (x.dtype == DType::Bool) context.fail("x is bool, expected numbers");
  expect_rank(context, "x", x, 3);
  const Shape image = attrs.shape("image"), kernel = attrs.shape("kernel");
  const int64_t spatial = static_cast<int64_t>(image.size());
  expect_entries(context, "kernel", kernel.size(), spatial);
  for (const char* name : {"strides", "dilations"}) {
    expect_entries(context, name, attrs.integers(name).size(), spatial);
    for (const int64_t value : attrs.integers(name)) {
      if (value < 1) context.fail(fmt::format("{} has the entry {}, expected 1 or more", name, value));
    }
  }
  sym::Expr positions = 1;
  for (const char* name : {"pads_low", "pads_high"}) expect_entries(context, name, attrs.shape(name).size(), spatial);
  for (size_t d = 0; d < image.size(); ++d) {
    positions = positions * window_output_size(image[d], attrs.shape("pads_low")[d], attrs.shape("pads_high")[d],
                                               kernel[d], attrs.integers("strides")[d], attrs.integers("dilations")[d]);
  }
  expect_size(context, "the number of positions in x", x.shape[2], positions);
  TensorType y{x.dtype, {x.shape[0], sym::floor_div(x.shape[1], sym::product(kernel))}};
  y.shape.insert(y.shape.end(), image.begin(), image.end());
  return {y};
}

// The adjoint of taking windows apart: overlapping values add up.
template <class T>
void col2im(const ReferenceContext& context) {
  const Tensor& x_tensor = context.inputs[0];
  Tensor& y_tensor = context.outputs[0];
  const Attrs& attrs = context.attrs;
  const Dims image = concrete_dims(attrs.shape("image")), kernel = concrete_dims(attrs.shape("kernel"));
  const Dims low = concrete_dims(attrs.shape("pads_low")), high = concrete_dims(attrs.shape("pads_high"));
  std::vector<WindowAxis> axes;
  for (size_t d = 0; d < image.size(); ++d) {
    const int64_t stride = attrs.integers("strides")[d], dilation = attrs.integers("dilations")[d];
    const int64_t out = concrete_size(window_output_size(image[d], low[d], high[d], kernel[d], stride, dilation));
    axes.push_back(WindowAxis::forward(image[d], out, kernel[d], stride, dilation, low[d]));
  }
  const Window window(std::move(axes));
  const int64_t taps = window.kernel_count(), positions = window.out_count(), plane = window.in_count();
  const std::vector<T> x = stage<T>(x_tensor);
  std::vector<T> y(static_cast<size_t>(y_tensor.count()), T());
  std::vector<int64_t> offsets(static_cast<size_t>(taps));
  for (int64_t p = 0; p < positions; ++p) {
    window.offsets(p, offsets);
    for (int64_t c = 0; c < y_tensor.dim(0) * y_tensor.dim(1); ++c) {
      for (int64_t k = 0; k < taps; ++k) {
        const int64_t offset = offsets[static_cast<size_t>(k)];
        if (offset < 0) continue;
        T& to = y[static_cast<size_t>(c * plane + offset)];
        to = combine_add(to, x[static_cast<size_t>((c * taps + k) * positions + p)]);
      }
    }
  }
  unstage(y, y_tensor);
}

// ---- max_unpool
// ------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_max_unpool(const InferContext& context) {
  const TensorType &x = context.in(0), &index = context.in(1);
  if (x.rank() < 2) context.fail(fmt::format("x is {}, expected [n, channels, spatial...]", to_string(x)));
  expect_dtype(context, "index", index, DType::I64);
  expect_rank(context, "index", index, x.rank());
  for (size_t d = 0; d < x.shape.size(); ++d)
    expect_size(context, fmt::format("dimension {} of index", d), index.shape[d], x.shape[d]);
  const Shape sizes = context.attrs.shape("sizes");
  expect_entries(context, "sizes", sizes.size(), x.rank() - 2);
  TensorType y{x.dtype, {x.shape[0], x.shape[1]}};
  y.shape.insert(y.shape.end(), sizes.begin(), sizes.end());
  return {y};
}

void reference_max_unpool(const ReferenceContext& context) {
  const Tensor x = context.inputs[0].to_contiguous();
  const std::vector<int64_t> index = stage<int64_t>(context.inputs[1]);
  Tensor& y = context.outputs[0];
  const int64_t count = y.count();
  for (size_t i = 0; i < index.size(); ++i) {
    FL_REQUIRE(index[i] >= -count && index[i] < count, "{}: index {} is outside a result of {} elements",
               context.record->name, index[i], count);
    copy_elements(x.data(), static_cast<int64_t>(i), y.data(), index[i] < 0 ? index[i] + count : index[i], 1,
                  x.dtype());
  }
}

// A scatter into zeros.
std::vector<Val> decompose_max_unpool(OpBuilder& builder, const DecomposeContext& context) {
  const Val x = context.inputs[0];
  const Shape shape = context.outputs[0].shape;
  const sym::Expr count = count_of(builder.type(x).shape);
  const Val zero = builder.reshape(builder.scalar(builder.type(x).dtype, 0), {1});
  const Val zeros = builder.apply("expand", {zero}, {{"shape", Shape{count_of(shape)}}});
  const Val scattered = builder.apply("scatter_elements",
                                      {zeros, builder.reshape(context.inputs[1], {count}), builder.reshape(x, {count})},
                                      {{"axis", int64_t{0}}, {"reduction", std::string("none")}});
  return {builder.reshape(scattered, shape)};
}

}  // namespace

void add_resample_ops(OpTable& table) {
  table.add({.name = "resize",
             .family = Family::Composite,
             .summary = "resamples every dimension to a new size: ONNX's Resize for all dimensions",
             .max_inputs = 3,
             .attrs = {required_attr("sizes", Kind::Sizes), optional_attr("scales", Kind::Reals),
                       optional_attr("mode", Kind::Text), optional_attr("coordinate", Kind::Text),
                       optional_attr("nearest", Kind::Text), optional_attr("cubic_a", Kind::Real),
                       optional_attr("extrapolation", Kind::Real), optional_attr("exclude_outside", Kind::Integer),
                       optional_attr("antialias", Kind::Integer)},
             .infer = infer_resize,
             .reference = reference_resize,
             .decompose = decompose_resize});
  table.add({.name = "grid_sample",
             .family = Family::Extern,
             .summary = "reads x at the points of a grid in [-1, 1], interpolating between pixels",
             .min_inputs = 2,
             .max_inputs = 2,
             .attrs = {required_attr("mode", Kind::Text), required_attr("padding", Kind::Text),
                       required_attr("align_corners", Kind::Integer)},
             .infer = infer_grid_sample,
             .reference = reference_grid_sample});
  table.add(
      {.name = "roi_align",
       .family = Family::Extern,
       .summary = "regions of an image resampled to one size, averaging (or taking the maximum of) sampled points",
       .min_inputs = 3,
       .max_inputs = 3,
       .attrs = {required_attr("sizes", Kind::Sizes), required_attr("mode", Kind::Text),
                 required_attr("sampling_ratio", Kind::Integer), required_attr("spatial_scale", Kind::Real),
                 required_attr("half_pixel", Kind::Integer)},
       .infer = infer_roi_align,
       .reference = reference_roi_align});
  table.add({.name = "max_roi_pool",
             .family = Family::Extern,
             .summary = "the maximum of each bin of regions (batch, x1, y1, x2, y2)",
             .min_inputs = 2,
             .max_inputs = 2,
             .attrs = {required_attr("sizes", Kind::Sizes), required_attr("spatial_scale", Kind::Real)},
             .infer = infer_max_roi_pool,
             .reference = reference_max_roi_pool});
  table.add(
      {.name = "deform_conv",
       .family = Family::Extern,
       .summary = "convolution whose taps are moved by offsets and weighed by a mask",
       .min_inputs = 3,
       .max_inputs = 5,
       .attrs = window_attrs({required_attr("groups", Kind::Integer), required_attr("offset_groups", Kind::Integer)}),
       .infer = infer_deform_conv,
       .reference = reference_deform_conv});
  table.add({.name = "col2im",
             .family = Family::Extern,
             .summary = "puts windows [n, c * kernel, positions] together to images, adding where they overlap",
             .attrs = window_attrs({required_attr("image", Kind::Sizes), required_attr("kernel", Kind::Sizes)}),
             .infer = infer_col2im,
             .reference = [](const ReferenceContext& context) {
               with_staging_type(context.outputs[0].dtype(), [&](auto element) { col2im<decltype(element)>(context); });
             }});
  table.add({.name = "max_unpool",
             .family = Family::Composite,
             .summary = "puts values at flat indices of a tensor of zeros",
             .min_inputs = 2,
             .max_inputs = 2,
             .attrs = {required_attr("sizes", Kind::Sizes)},
             .infer = infer_max_unpool,
             .reference = reference_max_unpool,
             .decompose = decompose_max_unpool});
}

}  // namespace fuseloom::op
