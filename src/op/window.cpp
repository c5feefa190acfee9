// Pooling: a reduction over sliding windows of [n, c, d...]. Output sizes are an attribute, because rounding up
// (ceil_mode) and automatic padding are the importer's to resolve; positions outside the input contribute nothing.
#include <cmath>
#include <limits>

#include "base/check.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/sliding_window.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

std::vector<AttrSpec> pool_attr_specs(std::vector<AttrSpec> more = {}) {
  std::vector<AttrSpec> specs = {required_attr("kernel", Kind::Integers),    required_attr("strides", Kind::Integers),
                                 required_attr("dilations", Kind::Integers), required_attr("pads_low", Kind::Sizes),
                                 required_attr("pads_high", Kind::Sizes),    required_attr("sizes", Kind::Sizes)};
  specs.insert(specs.end(), more.begin(), more.end());
  return specs;
}

TensorType pooled_type(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (x.rank() < 2) context.fail(fmt::format("x is {}, expected [n, channels, spatial...]", to_string(x)));
  const int64_t spatial = x.rank() - 2;
  for (const char* name : {"kernel", "strides", "dilations"}) {
    const std::vector<int64_t>& values = context.attrs.integers(name);
    expect_entries(context, name, values.size(), spatial);
    for (const int64_t value : values) {
      if (value < 1) context.fail(fmt::format("{} has the entry {}, expected 1 or more", name, value));
    }
  }
  for (const char* name : {"pads_low", "pads_high", "sizes"}) {
    expect_entries(context, name, context.attrs.shape(name).size(), spatial);
  }
  TensorType y{x.dtype, {x.shape[0], x.shape[1]}};
  for (const sym::Expr& size : context.attrs.shape("sizes")) y.shape.push_back(size);
  return y;
}

Dims spatial_dims(const Tensor& tensor) { return Dims(tensor.dims().begin() + 2, tensor.dims().end()); }

// Which input elements each output position reads, for one [n, c] plane: offsets[starts[p] .. starts[p + 1]).
struct PoolPlan {
  int64_t in_plane = 0, out_plane = 0;
  std::vector<int64_t> starts, offsets;
};

PoolPlan plan_pool(const ReferenceContext& context) {
  const Attrs& attrs = context.attrs;
  const std::vector<int64_t>&kernel = attrs.integers("kernel"), &strides = attrs.integers("strides"),
        &dilations = attrs.integers("dilations");
  const Dims low = concrete_dims(attrs.shape("pads_low"));
  const Dims in = spatial_dims(context.inputs[0]), out = spatial_dims(context.outputs[0]);
  std::vector<WindowAxis> axes;
  for (size_t d = 0; d < kernel.size(); ++d) {
    axes.push_back(WindowAxis::forward(in[d], out[d], kernel[d], strides[d], dilations[d], low[d]));
  }
  const Window window(std::move(axes));
  PoolPlan plan{.in_plane = window.in_count(), .out_plane = window.out_count()};
  plan.starts.push_back(0);
  std::vector<int64_t> taps(static_cast<size_t>(window.kernel_count()));
  for (int64_t p = 0; p < plan.out_plane; ++p) {
    window.offsets(p, taps);
    for (const int64_t tap : taps) {
      if (tap >= 0) plan.offsets.push_back(tap);
    }
    plan.starts.push_back(static_cast<int64_t>(plan.offsets.size()));
  }
  return plan;
}

int64_t plane_count(const Tensor& x) { return x.dim(0) * x.dim(1); }

// result(plane values, first tap, last tap) for every plane and output position.
template <class T, class Result>
std::vector<T> pool(const PoolPlan& plan, int64_t planes, const std::vector<T>& x, Result&& result) {
  std::vector<T> y(static_cast<size_t>(planes * plan.out_plane));
  for (int64_t plane = 0; plane < planes; ++plane) {
    const T* values = x.data() + plane * plan.in_plane;
    for (int64_t p = 0; p < plan.out_plane; ++p) {
      const int64_t* taps = plan.offsets.data();
      y[static_cast<size_t>(plane * plan.out_plane + p)] = result(
          values, taps + plan.starts[static_cast<size_t>(p)], taps + plan.starts[static_cast<size_t>(p) + 1], plane, p);
    }
  }
  return y;
}

// ---- max_pool
// --------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_max_pool(const InferContext& context) {
  const TensorType y = pooled_type(context);
  if (y.dtype == DType::Bool || is_complex(y.dtype)) {
    context.fail(fmt::format("x is {}, expected real numbers", dtype_name(y.dtype)));
  }
  std::vector<TensorType> types = {y};
  if (context.output_count == 2) types.push_back({DType::I64, y.shape});
  return types;
}

// Does b replace the running maximum a? The first of equals stays, a NaN wins and stays.
template <class T>
bool replaces(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return false;
    if (std::isnan(b)) return true;
    if (a == 0 && b == 0) return std::signbit(a) && !std::signbit(b);  // max(-0, +0) = +0
  }
  return b > a;
}

template <class T>
void max_pool(const ReferenceContext& context, T lowest) {
  const Tensor& x = context.inputs[0];
  const PoolPlan plan = plan_pool(context);
  const Dims spatial = spatial_dims(x);
  const bool column_major = context.attrs.integer("storage_order", 0) != 0;
  std::vector<int64_t> indices(context.outputs.size() > 1 ? static_cast<size_t>(context.outputs[1].count()) : 0);
  const auto flat_index = [&](int64_t tap) {
    if (!column_major) return tap;
    int64_t index = 0, stride = plan.in_plane;  // the last dimension has the largest stride
    for (size_t d = spatial.size(); d-- > 0;) {
      stride /= spatial[d];
      index += tap % spatial[d] * stride;
      tap /= spatial[d];
    }
    return index;
  };
  const std::vector<T> y =
      pool<T>(plan, plane_count(x), stage<T>(x),
              [&](const T* values, const int64_t* first, const int64_t* last, int64_t plane, int64_t p) {
                T best = lowest;
                int64_t where = -1;
                for (const int64_t* tap = first; tap != last; ++tap) {
                  if (where < 0 || replaces(best, values[*tap])) {
                    best = values[*tap];
                    where = *tap;
                  }
                }
                if (!indices.empty()) {
                  indices[static_cast<size_t>(plane * plan.out_plane + p)] =
                      where < 0 ? -1 : plane * plan.in_plane + flat_index(where);
                }
                return best;
              });
  unstage(y, context.outputs[0]);
  if (context.outputs.size() > 1) unstage(indices, context.outputs[1]);
}

void reference_max_pool(const ReferenceContext& context) {
  const DType dtype = context.inputs[0].dtype();
  if (is_float(dtype)) {
    max_pool<double>(context, -std::numeric_limits<double>::infinity());
  } else if (is_unsigned_int(dtype)) {
    max_pool<uint64_t>(context, 0);
  } else {
    max_pool<int64_t>(context, -(int64_t{1} << (dtype_bits(dtype) - 1)));
  }
}

// ---- average_pool, lp_pool
// -------------------------------------------------------------------------------------------

std::vector<TensorType> infer_float_pool(const InferContext& context) {
  expect_float(context, "x", context.in(0));
  return {pooled_type(context)};
}

// Divisors when padding counts: the window's positions inside the padded input. What lies beyond it (a window that
// rounding up lets stick out) never counts.
std::vector<int64_t> padded_counts(const ReferenceContext& context) {
  const Attrs& attrs = context.attrs;
  const std::vector<int64_t>&kernel = attrs.integers("kernel"), &strides = attrs.integers("strides"),
        &dilations = attrs.integers("dilations");
  const Dims low = concrete_dims(attrs.shape("pads_low"));
  const Dims high = concrete_dims(attrs.shape("pads_high"));
  const Dims in = spatial_dims(context.inputs[0]), out = spatial_dims(context.outputs[0]);
  std::vector<int64_t> counts = {1};
  for (size_t d = 0; d < kernel.size(); ++d) {
    std::vector<int64_t> outer;
    outer.swap(counts);
    for (const int64_t before : outer) {
      for (int64_t o = 0; o < out[d]; ++o) {
        int64_t inside = 0;
        for (int64_t k = 0; k < kernel[d]; ++k) {
          const int64_t i = o * strides[d] - low[d] + k * dilations[d];
          inside += i >= -low[d] && i < in[d] + high[d] ? 1 : 0;
        }
        counts.push_back(before * inside);
      }
    }
  }
  return counts;
}

void reference_average_pool(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const bool count_include_pad = context.attrs.integer("count_include_pad", 0) != 0;
  const std::vector<int64_t> counts = count_include_pad ? padded_counts(context) : std::vector<int64_t>();
  const std::vector<double> y = pool<double>(
      plan_pool(context), plane_count(x), stage<double>(x),
      [&](const double* values, const int64_t* first, const int64_t* last, int64_t, int64_t p) {
        double sum = 0;
        for (const int64_t* tap = first; tap != last; ++tap) sum += values[*tap];
        return sum / static_cast<double>(count_include_pad ? counts[static_cast<size_t>(p)] : last - first);
      });
  unstage(y, context.outputs[0]);
}

void reference_lp_pool(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const double p = context.attrs.real("p");
  const std::vector<double> y =
      pool<double>(plan_pool(context), plane_count(x), stage<double>(x),
                   [&](const double* values, const int64_t* first, const int64_t* last, int64_t, int64_t) {
                     double sum = 0;
                     for (const int64_t* tap = first; tap != last; ++tap) sum += std::pow(std::abs(values[*tap]), p);
                     return std::pow(sum, 1.0 / p);
                   });
  unstage(y, context.outputs[0]);
}

sym::Expr pool_flops(const InferContext& context, std::span<const TensorType> outputs) {
  sym::Expr flops = count_of(outputs[0].shape) * 2;
  for (const int64_t k : context.attrs.integers("kernel")) flops = flops * k;
  return flops;
}

}  // namespace

void add_window_ops(OpTable& table) {
  table.add(
      {.name = "max_pool",
       .family = Family::Window,
       .summary = "the maximum of each window, and the flat index of its first place (-1 for a window of padding)",
       .max_outputs = 2,
       .attrs = pool_attr_specs({optional_attr("storage_order", Kind::Integer)}),
       .infer = infer_max_pool,
       .reference = reference_max_pool,
       .flops = pool_flops});
  table.add(
      {.name = "average_pool",
       .family = Family::Window,
       .summary = "the mean of each window, over its places in the input or, with count_include_pad, the padded input",
       .attrs = pool_attr_specs({optional_attr("count_include_pad", Kind::Integer)}),
       .infer = infer_float_pool,
       .reference = reference_average_pool,
       .flops = pool_flops});
  table.add({.name = "lp_pool",
             .family = Family::Window,
             .summary = "(sum |x|^p)^(1/p) of each window",
             .attrs = pool_attr_specs({required_attr("p", Kind::Real)}),
             .infer = infer_float_pool,
             .reference = reference_lp_pool,
             .flops = pool_flops});
}

}  // namespace fuseloom::op
