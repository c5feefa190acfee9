// Ops that choose elements: by order (top_k, sort), by value (non_zero, unique, compress, nms), by position
// (reverse_sequence). Where the number of chosen elements depends on data, the node defines a symbol for it and the
// reference allocates its outputs.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "op/decompose.h"
#include "op/element.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

// The total order of sorting: NaN is above everything, all NaNs are equal, -0 equals +0.
template <class T>
bool before(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(a)) return false;
    if (std::isnan(b)) return true;
  }
  return a < b;
}

// Calls f.operator()<Storage>() for every dtype that has an order.
template <class F>
void with_ordered_storage(DType dtype, F&& f) {
  with_storage(dtype, [&]<class Storage>() {
    if constexpr (!std::is_same_v<Computed<Storage>, std::complex<double>>) {
      f.template operator()<Storage>();
    } else {
      FL_CHECK(false, "complex numbers have no order");
    }
  });
}

void expect_ordered(const InferContext& context, const TensorType& type) {
  if (is_complex(type.dtype)) context.fail(fmt::format("x is {}, which has no order", dtype_name(type.dtype)));
}

sym::Expr defined_symbol(const InferContext& context) {
  const Shape defines = context.attrs.shape("defines");
  if (defines.size() != 1 || !defines[0].is_symbol()) {
    context.fail(fmt::format("defines is {}, expected one symbol", to_string(defines)));
  }
  return defines[0];
}

// ---- top_k, sort
// -----------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_top_k(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_ordered(context, x);
  const int64_t axis = axis_in_rank(context, context.attrs.integer("axis"), x.rank());
  expect_entries(context, "k", context.attrs.shape("k").size(), 1);
  const sym::Expr k = context.attrs.shape("k")[0],
                  n = x.rank() == 0 ? sym::Expr(1) : x.shape[static_cast<size_t>(axis)];
  if (k.is_const() && (*k.as_const() < 0 || (n.is_const() && *k.as_const() > *n.as_const()))) {
    context.fail(fmt::format("k is {}, expected 0 to {}", sym::to_string(k), sym::to_string(n)));
  }
  TensorType values = x;
  if (x.rank() == 0) {
    expect_size(context, "k", k, 1);
  } else {
    values.shape[static_cast<size_t>(axis)] = k;
  }
  return {values, {DType::I64, values.shape}};
}

std::vector<TensorType> infer_sort(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_ordered(context, x);
  axis_in_rank(context, context.attrs.integer("axis"), x.rank());
  return {x, {DType::I64, x.shape}};
}

// The first k of each line along the axis in ascending or descending order; of equals the lower index comes first.
void select_first(const ReferenceContext& context, int64_t k, bool descending) {
  const Tensor x = context.inputs[0].to_contiguous();
  const int64_t axis = wrap_axis(context.attrs.integer("axis"), x.rank());
  const int64_t outer = x.rank() == 0 ? 1 : count_between(x.dims(), 0, axis);
  const int64_t n = x.rank() == 0 ? 1 : x.dim(axis);
  const int64_t inner = x.rank() == 0 ? 1 : count_between(x.dims(), axis + 1, x.rank());
  FL_REQUIRE(k <= n, "{}: k is {}, but the axis has {} elements", context.record->name, k, n);
  int64_t* indices = context.outputs[1].as<int64_t>();
  with_ordered_storage(x.dtype(), [&]<class Storage>() {
    const Storage* from = x.as<Storage>();
    Storage* to = context.outputs[0].as<Storage>();
    // std::vector<bool> would give no plain elements to compare.
    using Key = std::conditional_t<std::is_same_v<Storage, Bool8>, int64_t, Computed<Storage>>;
    std::vector<Key> line(static_cast<size_t>(n));
    std::vector<int64_t> order(static_cast<size_t>(n));
    const auto comes_first = [&](int64_t a, int64_t b) {
      const Key &left = line[static_cast<size_t>(a)], &right = line[static_cast<size_t>(b)];
      if (before(left, right)) return !descending;
      if (before(right, left)) return descending;
      return a < b;
    };
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        const Storage* first = from + o * n * inner + i;
        for (int64_t j = 0; j < n; ++j) line[static_cast<size_t>(j)] = load(first[j * inner]);
        std::iota(order.begin(), order.end(), int64_t{0});
        if (k < n) std::nth_element(order.begin(), order.begin() + k, order.end(), comes_first);
        std::sort(order.begin(), order.begin() + k, comes_first);
        for (int64_t j = 0; j < k; ++j) {
          const int64_t at = (o * k + j) * inner + i;
          to[at] = first[order[static_cast<size_t>(j)] * inner];
          indices[at] = order[static_cast<size_t>(j)];
        }
      }
    }
  });
}

// ---- non_zero, compress
// ----------------------------------------------------------------------------------------------

std::vector<TensorType> infer_non_zero(const InferContext& context) {
  return {{DType::I64, {context.in(0).rank(), defined_symbol(context)}}};
}

void reference_non_zero(const ReferenceContext& context) {
  const Tensor x = context.inputs[0].to_contiguous();
  std::vector<int64_t> chosen;
  with_storage(x.dtype(), [&]<class Storage>() {
    const Storage* values = x.as<Storage>();
    for (int64_t i = 0; i < x.count(); ++i) {
      if (load(values[i]) != Computed<Storage>(0)) chosen.push_back(i);
    }
  });
  const int64_t n = static_cast<int64_t>(chosen.size());
  context.outputs[0] = Tensor(DType::I64, {x.rank(), n});
  int64_t* coordinates = context.outputs[0].as<int64_t>();
  for (int64_t j = 0; j < n; ++j) {
    int64_t rest = chosen[static_cast<size_t>(j)];
    for (int64_t d = x.rank(); d-- > 0;) {
      coordinates[d * n + j] = rest % x.dim(d);
      rest /= x.dim(d);
    }
  }
}

std::vector<TensorType> infer_compress(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_dtype(context, "the condition", context.in(1), DType::Bool);
  expect_rank(context, "the condition", context.in(1), 1);
  const sym::Expr count = defined_symbol(context);
  if (!context.attrs.has("axis")) return {{x.dtype, {count}}};
  TensorType y = x;
  const int64_t axis = axis_in_rank(context, context.attrs.integer("axis"), x.rank());
  if (x.rank() == 0) context.fail("x is a scalar, which has no axis to compress");
  y.shape[static_cast<size_t>(axis)] = count;
  return {y};
}

// The condition may be shorter than the axis: what it does not reach is dropped.
void reference_compress(const ReferenceContext& context) {
  Tensor x = context.inputs[0].to_contiguous();
  const bool flat = !context.attrs.has("axis");
  if (flat) x = x.reshaped({x.count()});
  const int64_t axis = flat ? 0 : wrap_axis(context.attrs.integer("axis"), x.rank());
  const int64_t outer = count_between(x.dims(), 0, axis), n = x.dim(axis),
                inner = count_between(x.dims(), axis + 1, x.rank());
  const std::vector<int64_t> condition = stage<int64_t>(context.inputs[1]);
  std::vector<int64_t> chosen;
  for (size_t i = 0; i < condition.size(); ++i) {
    if (condition[i] != 0) chosen.push_back(static_cast<int64_t>(i));
  }
  FL_REQUIRE(chosen.empty() || chosen.back() < n, "{}: the condition chooses index {} of an axis of size {}",
             context.record->name, chosen.back(), n);
  Dims dims = x.dims();
  dims[static_cast<size_t>(axis)] = static_cast<int64_t>(chosen.size());
  Tensor y(x.dtype(), std::move(dims));
  int64_t to = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (const int64_t index : chosen) {
      copy_elements(x.data(), (o * n + index) * inner, y.data(), to, inner, x.dtype());
      to += inner;
    }
  }
  context.outputs[0] = std::move(y);
}

// ---- unique
// ----------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_unique(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_ordered(context, x);
  const sym::Expr count = defined_symbol(context);
  TensorType y{x.dtype, {count}};
  sym::Expr items = count_of(x.shape);
  if (context.attrs.has("axis")) {
    const size_t axis = static_cast<size_t>(axis_in_rank(context, context.attrs.integer("axis"), x.rank()));
    if (x.rank() == 0) context.fail("x is a scalar, which has no axis");
    items = x.shape[axis];
    y.shape = x.shape;
    y.shape[axis] = count;
  }
  const std::vector<TensorType> types = {y, {DType::I64, {count}}, {DType::I64, {items}}, {DType::I64, {count}}};
  return {types.begin(), types.begin() + context.output_count};
}

// 1. Sort the items (elements, or slices along the axis, compared element by element) with a stable sort.
// 2. Runs of equal items are the groups; the first item of a run is the one with the lowest index.
// 3. Unless sorted, the groups come in the order of their first items.
void reference_unique(const ReferenceContext& context) {
  Tensor x = context.inputs[0].to_contiguous();
  if (!context.attrs.has("axis")) x = x.reshaped({x.count()});
  const int64_t axis = wrap_axis(context.attrs.integer("axis", 0), x.rank());
  const int64_t outer = count_between(x.dims(), 0, axis), n = x.dim(axis),
                inner = count_between(x.dims(), axis + 1, x.rank());
  const int64_t width = outer * inner;
  std::vector<int64_t> order(static_cast<size_t>(n)), group_of(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  struct Group {
    int64_t first = 0, count = 0;
  };
  std::vector<Group> groups;
  with_ordered_storage(x.dtype(), [&]<class Storage>() {
    using Key = std::conditional_t<std::is_same_v<Storage, Bool8>, int64_t, Computed<Storage>>;
    std::vector<Key> keys(static_cast<size_t>(n * width));
    const Storage* from = x.as<Storage>();
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t item = 0; item < n; ++item) {
        for (int64_t i = 0; i < inner; ++i) {
          keys[static_cast<size_t>(item * width + o * inner + i)] = load(from[(o * n + item) * inner + i]);
        }
      }
    }
    const auto less = [&](int64_t a, int64_t b) {
      return std::lexicographical_compare(keys.begin() + a * width, keys.begin() + (a + 1) * width,
                                          keys.begin() + b * width, keys.begin() + (b + 1) * width, before<Key>);
    };
    std::stable_sort(order.begin(), order.end(), less);
    for (size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || less(order[i - 1], order[i])) groups.push_back({.first = order[i]});
      groups.back().count += 1;
      group_of[static_cast<size_t>(order[i])] = static_cast<int64_t>(groups.size()) - 1;
    }
  });
  if (context.attrs.integer("sorted", 1) == 0) {
    std::vector<int64_t> rank(groups.size()), position(groups.size());
    std::iota(rank.begin(), rank.end(), int64_t{0});
    std::sort(rank.begin(), rank.end(), [&](int64_t a, int64_t b) {
      return groups[static_cast<size_t>(a)].first < groups[static_cast<size_t>(b)].first;
    });
    std::vector<Group> reordered;
    for (size_t i = 0; i < rank.size(); ++i) {
      reordered.push_back(groups[static_cast<size_t>(rank[i])]);
      position[static_cast<size_t>(rank[i])] = static_cast<int64_t>(i);
    }
    groups = std::move(reordered);
    for (int64_t& group : group_of) group = position[static_cast<size_t>(group)];
  }
  const int64_t count = static_cast<int64_t>(groups.size());
  Dims dims = x.dims();
  dims[static_cast<size_t>(axis)] = count;
  Tensor y(x.dtype(), std::move(dims));
  std::vector<int64_t> firsts, counts;
  for (int64_t g = 0; g < count; ++g) {
    const Group& group = groups[static_cast<size_t>(g)];
    firsts.push_back(group.first);
    counts.push_back(group.count);
    for (int64_t o = 0; o < outer; ++o) {
      copy_elements(x.data(), (o * n + group.first) * inner, y.data(), (o * count + g) * inner, inner, x.dtype());
    }
  }
  context.outputs[0] = std::move(y);
  const std::vector<int64_t>* lists[] = {&firsts, &group_of, &counts};
  for (size_t i = 1; i < context.outputs.size(); ++i) {
    const std::vector<int64_t>& list = *lists[i - 1];
    context.outputs[i] = Tensor::of_ints(DType::I64, {static_cast<int64_t>(list.size())}, list);
  }
}

// ---- nms
// -------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_nms(const InferContext& context) {
  const TensorType &boxes = context.in(0), &scores = context.in(1);
  expect_float(context, "boxes", boxes);
  expect_float(context, "scores", scores);
  expect_rank(context, "boxes", boxes, 3);
  expect_rank(context, "scores", scores, 3);
  expect_size(context, "the last dimension of boxes", boxes.shape[2], 4);
  expect_size(context, "the batch of scores", scores.shape[0], boxes.shape[0]);
  expect_size(context, "the number of boxes in scores", scores.shape[2], boxes.shape[1]);
  if (context.has(2)) expect_index(context, "max", context.in(2));
  if (context.has(3)) expect_float(context, "iou", context.in(3));
  if (context.has(4)) expect_float(context, "score", context.in(4));
  return {{DType::I64, {defined_symbol(context), 3}}};
}

struct Box {
  double low[2], high[2];
  double area() const { return (high[0] - low[0]) * (high[1] - low[1]); }
};

// Corners in any order, or with `center` (x, y, width, height).
Box make_box(const double* v, bool center) {
  if (center) {
    return {{v[0] - v[2] / 2, v[1] - v[3] / 2}, {v[0] + v[2] / 2, v[1] + v[3] / 2}};
  }
  return {{std::min(v[0], v[2]), std::min(v[1], v[3])}, {std::max(v[0], v[2]), std::max(v[1], v[3])}};
}

// Intersection over union; 0 for boxes without area.
double overlap(const Box& a, const Box& b) {
  double intersection = 1;
  for (size_t d = 0; d < 2; ++d) {
    const double side = std::min(a.high[d], b.high[d]) - std::max(a.low[d], b.low[d]);
    if (!(side > 0)) return 0;
    intersection *= side;
  }
  if (!(a.area() > 0) || !(b.area() > 0)) return 0;
  return intersection / (a.area() + b.area() - intersection);
}

double scalar_input(const ReferenceContext& context, size_t input, double fallback) {
  if (!context.has(input) || context.inputs[input].count() == 0) return fallback;
  return context.inputs[input].at(0);
}

// Greedy, per batch and class: the best remaining box is kept unless it overlaps a kept one by more than `iou`.
void reference_nms(const ReferenceContext& context) {
  const Tensor &boxes_tensor = context.inputs[0], &scores_tensor = context.inputs[1];
  const bool center = context.attrs.integer("center", 0) != 0;
  const double limit = scalar_input(context, 2, 0), iou = scalar_input(context, 3, 0);
  const bool has_threshold = context.has(4) && context.inputs[4].count() > 0;
  const double threshold = scalar_input(context, 4, 0);
  const std::vector<double> coordinates = stage<double>(boxes_tensor), scores = stage<double>(scores_tensor);
  const int64_t batches = boxes_tensor.dim(0), count = boxes_tensor.dim(1), classes = scores_tensor.dim(1);
  std::vector<Box> boxes;
  for (int64_t i = 0; i < batches * count; ++i) boxes.push_back(make_box(coordinates.data() + i * 4, center));
  std::vector<int64_t> selected, candidates;
  std::vector<Box> kept;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t c = 0; c < classes; ++c) {
      const double* score = scores.data() + (b * classes + c) * count;
      candidates.clear();
      for (int64_t i = 0; i < count; ++i) {
        if (!std::isnan(score[i]) && (!has_threshold || score[i] > threshold)) candidates.push_back(i);
      }
      std::stable_sort(candidates.begin(), candidates.end(), [&](int64_t i, int64_t j) { return score[i] > score[j]; });
      kept.clear();
      for (const int64_t i : candidates) {
        if (static_cast<double>(kept.size()) >= limit) break;
        const Box& box = boxes[static_cast<size_t>(b * count + i)];
        if (std::any_of(kept.begin(), kept.end(), [&](const Box& other) { return overlap(box, other) > iou; }))
          continue;
        kept.push_back(box);
        selected.insert(selected.end(), {b, c, i});
      }
    }
  }
  context.outputs[0] = Tensor::of_ints(DType::I64, {static_cast<int64_t>(selected.size()) / 3, 3}, selected);
}

// ---- reverse_sequence
// ------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_reverse_sequence(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (x.rank() < 2) context.fail(fmt::format("x is {}, expected rank 2 or more", to_string(x)));
  const int64_t batch = axis_in_rank(context, context.attrs.integer("batch_axis"), x.rank());
  const int64_t time = axis_in_rank(context, context.attrs.integer("time_axis"), x.rank());
  if (batch == time) context.fail(fmt::format("batch_axis and time_axis are both {}", batch));
  expect_index(context, "lengths", context.in(1));
  expect_rank(context, "lengths", context.in(1), 1);
  expect_size(context, "the size of lengths", context.in(1).shape[0], x.shape[static_cast<size_t>(batch)]);
  return {x};
}

void reference_reverse_sequence(const ReferenceContext& context) {
  const Tensor x = context.inputs[0].to_contiguous();
  const int64_t batch_axis = wrap_axis(context.attrs.integer("batch_axis"), x.rank());
  const int64_t time_axis = wrap_axis(context.attrs.integer("time_axis"), x.rank());
  const std::vector<int64_t> lengths = stage<int64_t>(context.inputs[1]);
  const int64_t last = std::max(batch_axis, time_axis);
  const int64_t inner = count_between(x.dims(), last + 1, x.rank());
  const int64_t batch_stride = count_between(x.dims(), batch_axis + 1, last + 1), batch = x.dim(batch_axis);
  const int64_t time_stride = count_between(x.dims(), time_axis + 1, last + 1), time = x.dim(time_axis);
  for (const int64_t length : lengths) {
    FL_REQUIRE(length >= 0 && length <= time, "{}: length {} is outside [0, {}]", context.record->name, length, time);
  }
  const int64_t pieces = inner == 0 ? 0 : x.count() / inner;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t length = lengths[static_cast<size_t>(piece / batch_stride % batch)], t = piece / time_stride % time;
    const int64_t from = t < length ? piece + (length - 1 - 2 * t) * time_stride : piece;
    copy_elements(x.data(), from * inner, context.outputs[0].data(), piece * inner, inner, x.dtype());
  }
}

// A gather along time by t < length ? length - 1 - t : t.
std::vector<Val> decompose_reverse_sequence(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const Shape shape = builder.type(context.inputs[0]).shape;
  const int64_t rank = static_cast<int64_t>(shape.size());
  const size_t batch = static_cast<size_t>(wrap_axis(context.attrs.integer("batch_axis"), rank));
  const int64_t time = wrap_axis(context.attrs.integer("time_axis"), rank);
  Shape along_time(shape.size(), sym::Expr(1)), along_batch = along_time;
  along_time[static_cast<size_t>(time)] = shape[static_cast<size_t>(time)];
  along_batch[batch] = shape[batch];
  const Val t = builder.apply("iota", {}, {{"shape", along_time}, {"axis", time}, {"dtype", DType::I64}});
  const Val length = builder.reshape(builder.cast(context.inputs[1], DType::I64), along_batch);
  const Val reversed = a.sub(a.sub(length, a.number(length, 1)), t);
  const Val index = a.where(builder.apply("lt", {t, length}), reversed, t);
  const Val everywhere = builder.apply("expand", {index}, {{"shape", shape}});
  return {builder.apply("gather_elements", {context.inputs[0], everywhere}, {{"axis", time}})};
}

}  // namespace

void add_select_ops(OpTable& table) {
  table.add(
      {.name = "top_k",
       .family = Family::Extern,
       .summary =
           "the k largest (or smallest) elements along an axis in order; NaN is largest, of equals the first wins",
       .min_outputs = 2,
       .max_outputs = 2,
       .attrs = {required_attr("k", Kind::Sizes), required_attr("axis", Kind::Integer),
                 required_attr("largest", Kind::Integer), optional_attr("sorted", Kind::Integer)},
       .infer = infer_top_k,
       .reference = [](const ReferenceContext& context) {
         select_first(context, concrete_size(context.attrs.shape("k")[0]), context.attrs.integer("largest") != 0);
       }});
  table.add({.name = "sort",
             .family = Family::Extern,
             .summary = "a stable sort along an axis; NaN is largest",
             .min_outputs = 2,
             .max_outputs = 2,
             .attrs = {required_attr("axis", Kind::Integer), required_attr("descending", Kind::Integer)},
             .infer = infer_sort,
             .reference = [](const ReferenceContext& context) {
               const Tensor& x = context.inputs[0];
               const int64_t n = x.rank() == 0 ? 1 : x.dim(wrap_axis(context.attrs.integer("axis"), x.rank()));
               select_first(context, n, context.attrs.integer("descending") != 0);
             }});
  table.add({.name = "non_zero",
             .family = Family::Extern,
             .summary = "the coordinates of the elements that are not zero, in row-major order",
             .attrs = {required_attr("defines", Kind::Sizes)},
             .infer = infer_non_zero,
             .reference = reference_non_zero,
             .has_side_results = true});
  table.add({.name = "compress",
             .family = Family::Extern,
             .summary = "the slices along an axis (or the elements) where the condition holds",
             .min_inputs = 2,
             .max_inputs = 2,
             .attrs = {required_attr("defines", Kind::Sizes), optional_attr("axis", Kind::Integer)},
             .infer = infer_compress,
             .reference = reference_compress,
             .has_side_results = true});
  table.add(
      {.name = "unique",
       .family = Family::Extern,
       .summary = "the distinct elements (or slices along an axis), where each is first, the inverse map, and counts",
       .max_outputs = 4,
       .attrs = {required_attr("defines", Kind::Sizes), optional_attr("axis", Kind::Integer),
                 optional_attr("sorted", Kind::Integer)},
       .infer = infer_unique,
       .reference = reference_unique,
       .has_side_results = true});
  table.add({.name = "nms",
             .family = Family::Extern,
             .summary = "greedy non-maximum suppression: rows (batch, class, box) of the boxes kept",
             .min_inputs = 2,
             .max_inputs = 5,
             .attrs = {required_attr("defines", Kind::Sizes), optional_attr("center", Kind::Integer)},
             .infer = infer_nms,
             .reference = reference_nms,
             .has_side_results = true});
  table.add({.name = "reverse_sequence",
             .family = Family::Composite,
             .summary = "reverses the first lengths[b] steps along the time axis of each batch entry",
             .min_inputs = 2,
             .max_inputs = 2,
             .attrs = {required_attr("batch_axis", Kind::Integer), required_attr("time_axis", Kind::Integer)},
             .infer = infer_reverse_sequence,
             .reference = reference_reverse_sequence,
             .decompose = decompose_reverse_sequence});
}

}  // namespace fuseloom::op
