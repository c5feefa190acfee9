// Scaled dot-product attention and rotary position embedding.
#include <cmath>
#include <limits>

#include "base/check.h"
#include "op/decompose.h"
#include "op/multiply.h"
#include "op/op.h"
#include "op/schema.h"
#include "op/staging.h"

namespace fuseloom::op {
namespace {

using Kind = AttrSpec::Kind;

// ---- attention
// -------------------------------------------------------------------------------------------------------
//
//   scores = softcap(q · kᵀ * scale) + mask       [b, heads, s, t]
//   y = softmax(scores) · v                       [b, heads, s, v_size]
//
// Several query heads may share a key head: query head i reads key head i / (heads / key_heads).

// Which stage the second output shows.
enum class ScoreStage : uint8_t { Product, Capped, Masked, Softmax };

std::vector<TensorType> infer_attention(const InferContext& context) {
  const TensorType &q = context.in(0), &k = context.in(1), &v = context.in(2);
  expect_float(context, "q", q);
  const char* names[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    expect_rank(context, names[i], context.in(i), 4);
    expect_dtype(context, names[i], context.in(i), q.dtype);
    expect_size(context, fmt::format("the batch of {}", names[i]), context.in(i).shape[0], q.shape[0]);
  }
  expect_size(context, "the head size of k", k.shape[3], q.shape[3]);
  expect_size(context, "the number of heads of v", v.shape[1], k.shape[1]);
  expect_size(context, "the length of v", v.shape[2], k.shape[2]);
  if (!(q.shape[1] == k.shape[1])) {
    const auto heads = q.shape[1].as_const(), key_heads = k.shape[1].as_const();
    if (!heads || !key_heads || *key_heads == 0 || *heads % *key_heads != 0) {
      context.fail(fmt::format("{} query heads do not divide into {} key heads", sym::to_string(q.shape[1]),
                               sym::to_string(k.shape[1])));
    }
  }
  if (!context.attrs.has("scale") && !q.shape[3].is_const())
    context.fail("scale is needed when the head size is symbolic");
  if (context.attrs.has("past")) expect_entries(context, "past", context.attrs.shape("past").size(), 1);
  const Shape scores = {q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
  if (context.has(3)) {
    const TensorType& mask = context.in(3);
    if (mask.dtype != DType::Bool) expect_float(context, "mask", mask);
    if (mask.rank() > 4) expect_rank(context, "mask", mask, 4);
    for (size_t d = 0; d < mask.shape.size(); ++d) {
      if (mask.shape[d].is_const(1)) continue;
      expect_size(context, fmt::format("dimension {} of mask", d), mask.shape[d], scores[4 - mask.shape.size() + d]);
    }
  }
  const int64_t stage = context.attrs.integer("scores", 0);
  if (stage < 0 || stage > 3) context.fail(fmt::format("scores is {}, expected 0 to 3", stage));
  std::vector<TensorType> types = {{q.dtype, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]}}};
  if (context.output_count > 1) types.push_back({q.dtype, scores});
  return types;
}

double attention_scale(const Attrs& attrs, int64_t head_size) {
  return attrs.has("scale") ? attrs.real("scale") : 1.0 / std::sqrt(static_cast<double>(head_size));
}

void reference_attention(const ReferenceContext& context) {
  const Tensor &q = context.inputs[0], &k = context.inputs[1], &v = context.inputs[2];
  const Attrs& attrs = context.attrs;
  const int64_t batch = q.dim(0), heads = q.dim(1), s = q.dim(2), d = q.dim(3);
  const int64_t key_heads = k.dim(1), t = k.dim(2), v_size = v.dim(3);
  const double scale = attention_scale(attrs, d), softcap = attrs.real("softcap", 0);
  const bool causal = attrs.integer("causal", 0) != 0;
  const int64_t past = attrs.has("past") ? concrete_size(attrs.shape("past")[0]) : 0;
  const auto shown = static_cast<ScoreStage>(attrs.integer("scores", 0));
  const double minus_infinity = -std::numeric_limits<double>::infinity();
  const std::vector<double> qs = stage<double>(q), ks = stage<double>(k), vs = stage<double>(v);
  const std::vector<double> mask = context.has(3) ? stage<double>(context.inputs[3]) : std::vector<double>();
  const bool mask_is_bool = context.has(3) && context.inputs[3].dtype() == DType::Bool;
  const std::vector<int64_t> mask_index =
      context.has(3) ? broadcast_map(context.inputs[3].dims(), {batch, heads, s, t}) : std::vector<int64_t>();
  std::vector<double> y(static_cast<size_t>(batch * heads * s * v_size));
  std::vector<double> shown_scores(context.outputs.size() > 1 ? static_cast<size_t>(batch * heads * s * t) : 0);
  std::vector<double> scores(static_cast<size_t>(s * t));
  for (int64_t plane = 0; plane < batch * heads; ++plane) {
    const int64_t key_plane = plane / heads * key_heads + plane % heads / (heads / key_heads);
    const double *key = ks.data() + key_plane * t * d, *value = vs.data() + key_plane * t * v_size;
    const auto show = [&](ScoreStage stage) {
      if (!shown_scores.empty() && shown == stage)
        std::copy(scores.begin(), scores.end(), shown_scores.begin() + plane * s * t);
    };
    const auto keys = [&](int64_t column, int64_t width, double* panel) {
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < d; ++i) panel[i * kPanelWidth + j] = key[(column + j) * d + i];
      }
    };
    multiply<double>(s, t, d, qs.data() + plane * s * d, keys, nullptr, scores.data());
    for (double& score : scores) score *= scale;
    show(ScoreStage::Product);
    if (softcap > 0) {
      for (double& score : scores) score = softcap * std::tanh(score / softcap);
    }
    show(ScoreStage::Capped);
    for (int64_t i = 0; i < s; ++i) {
      for (int64_t j = 0; j < t; ++j) {
        double& score = scores[static_cast<size_t>(i * t + j)];
        if (!mask.empty()) {
          const double m = mask[static_cast<size_t>(mask_index[static_cast<size_t>((plane * s + i) * t + j)])];
          score = !mask_is_bool ? score + m : m != 0 ? score : minus_infinity;
        }
        if (causal && j > i + past) score = minus_infinity;
      }
    }
    show(ScoreStage::Masked);
    for (int64_t i = 0; i < s; ++i) {
      double* row = scores.data() + i * t;
      double maximum = minus_infinity, sum = 0;
      for (int64_t j = 0; j < t; ++j) {
        if (std::isnan(maximum)) break;
        if (std::isnan(row[j]) || row[j] > maximum) maximum = row[j];
      }
      for (int64_t j = 0; j < t; ++j) sum += row[j] = std::exp(row[j] - maximum);
      for (int64_t j = 0; j < t; ++j) row[j] = row[j] == 0 ? 0 : row[j] / sum;
    }
    show(ScoreStage::Softmax);
    const auto values = [&](int64_t column, int64_t width, double* panel) {
      for (int64_t j = 0; j < t; ++j) std::copy_n(value + j * v_size + column, width, panel + j * kPanelWidth);
    };
    multiply<double>(s, v_size, t, scores.data(), values, nullptr, y.data() + plane * s * v_size);
  }
  unstage(y, context.outputs[0]);
  if (context.outputs.size() > 1) unstage(shown_scores, context.outputs[1]);
}

std::vector<Val> decompose_attention(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const Attrs& attrs = context.attrs;
  const TensorType q_type = builder.type(context.inputs[0]), k_type = builder.type(context.inputs[1]);
  const sym::Expr batch = q_type.shape[0], heads = q_type.shape[1], s = q_type.shape[2], d = q_type.shape[3];
  const sym::Expr key_heads = k_type.shape[1], t = k_type.shape[2], v_size = builder.type(context.inputs[2]).shape[3];
  const Val q = a.wide(context.inputs[0]), k = a.wide(context.inputs[1]), v = a.wide(context.inputs[2]);
  // Query heads that share a key head are stacked along the rows: keys and values are never repeated.
  const bool grouped = !(heads == key_heads);
  const sym::Expr rows = grouped ? sym::floor_div(heads, key_heads) * s : s;
  const Shape stacked_scores = {batch, key_heads, rows, t}, scores_shape = {batch, heads, s, t};

  Val queries = a.mul(q, a.number(q, attention_scale(attrs, d.as_const().value_or(1))));
  if (grouped) queries = builder.reshape(queries, {batch, key_heads, rows, d});
  Val scores = builder.apply("matmul", {queries, k}, {{"trans_b", int64_t{1}}});
  if (grouped) scores = builder.reshape(scores, scores_shape);

  const auto shown = static_cast<ScoreStage>(attrs.integer("scores", 0));
  Val shown_scores = scores;
  if (attrs.real("softcap", 0) > 0) {
    const Val cap = a.number(scores, attrs.real("softcap"));
    scores = a.mul(a.unary("tanh", a.div(scores, cap)), cap);
  }
  if (shown == ScoreStage::Capped) shown_scores = scores;
  const Val minus_infinity = a.number(scores, -std::numeric_limits<double>::infinity());
  if (context.has(3)) {
    const Val mask = context.inputs[3];
    const bool boolean = builder.type(mask).dtype == DType::Bool;
    scores =
        boolean ? a.where(mask, scores, minus_infinity) : a.add(scores, builder.cast(mask, builder.type(scores).dtype));
  }
  if (attrs.integer("causal", 0) != 0) {
    Val row = builder.apply("iota", {}, {{"shape", Shape{s, 1}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
    const Val column = builder.apply("iota", {}, {{"shape", Shape{1, t}}, {"axis", int64_t{1}}, {"dtype", DType::I64}});
    if (attrs.has("past") && !attrs.shape("past")[0].is_const(0)) {
      row = a.add(row, builder.apply("sym_value", {},
                                     {{"values", attrs.shape("past")}, {"dtype", DType::I64}, {"scalar", int64_t{1}}}));
    }
    scores = a.where(builder.apply("le", {column, row}), scores, minus_infinity);
  }
  if (shown == ScoreStage::Masked) shown_scores = scores;
  Val weights = builder.apply("softmax", {scores}, {{"axis", int64_t{3}}});
  if (shown == ScoreStage::Softmax) shown_scores = weights;
  if (grouped) weights = builder.reshape(weights, stacked_scores);
  Val y = builder.apply("matmul", {weights, v});
  if (grouped) y = builder.reshape(y, {batch, heads, s, v_size});
  std::vector<Val> results = {builder.cast(y, q_type.dtype)};
  if (context.output_count > 1) results.push_back(builder.cast(shown_scores, q_type.dtype));
  return results;
}

// ---- rotary_embedding
// ------------------------------------------------------------------------------------------------
//
// The first `rotary` elements of each head are pairs (x1, x2), at distance rotary / 2 or, interleaved, next to each
// other:
//   x1' = x1 cos - x2 sin,  x2' = x1 sin + x2 cos

sym::Expr rotary_size(const Attrs& attrs, const sym::Expr& head_size) {
  const int64_t size = attrs.integer("rotary_dim", 0);
  return size == 0 ? head_size : sym::Expr(size);
}

std::vector<TensorType> infer_rotary(const InferContext& context) {
  const TensorType& x = context.in(0);
  expect_float(context, "x", x);
  expect_rank(context, "x", x, 4);
  const sym::Expr rotary = rotary_size(context.attrs, x.shape[3]);
  if (const auto size = rotary.as_const(); size && (*size < 0 || *size % 2 != 0)) {
    context.fail(fmt::format("the rotated part of a head has {} elements, expected an even number", *size));
  }
  if (const auto size = rotary.as_const(), head = x.shape[3].as_const(); size && head && *size > *head) {
    context.fail(fmt::format("rotary_dim {} is larger than the head size {}", *size, *head));
  }
  const char* names[] = {"x", "cos", "sin"};
  for (size_t i = 1; i < 3; ++i) {
    const TensorType& table = context.in(i);
    expect_dtype(context, names[i], table, x.dtype);
    expect_rank(context, names[i], table, context.has(3) ? 2 : 3);
    expect_size(context, fmt::format("the last dimension of {}", names[i]), table.shape.back(),
                sym::floor_div(rotary, 2));
    if (!context.has(3)) expect_size(context, fmt::format("the length of {}", names[i]), table.shape[1], x.shape[2]);
  }
  if (context.has(3)) {
    expect_index(context, "positions", context.in(3));
    expect_rank(context, "positions", context.in(3), 2);
    expect_size(context, "the length of positions", context.in(3).shape[1], x.shape[2]);
  }
  return {x};
}

void reference_rotary(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const int64_t batch = x.dim(0), heads = x.dim(1), s = x.dim(2), d = x.dim(3);
  const int64_t rotary = concrete_size(rotary_size(context.attrs, d)), half = rotary / 2;
  const bool interleaved = context.attrs.integer("interleaved", 0) != 0;
  const std::vector<double> cosines = stage<double>(context.inputs[1]), sines = stage<double>(context.inputs[2]);
  const std::vector<int64_t> positions = context.has(3) ? stage<int64_t>(context.inputs[3]) : std::vector<int64_t>();
  const Tensor& batched = context.has(3) ? context.inputs[3] : context.inputs[1];
  std::vector<double> y = stage<double>(x);
  for (int64_t n = 0; n < batch; ++n) {
    for (int64_t i = 0; i < s; ++i) {
      int64_t row = (batched.dim(0) == 1 ? 0 : n) * s + i;
      if (context.has(3)) {
        const int64_t position = positions[static_cast<size_t>(row)], table = context.inputs[1].dim(0);
        FL_REQUIRE(position >= -table && position < table, "{}: position {} is outside the table of {} rows",
                   context.record->name, position, table);
        row = position < 0 ? position + table : position;
      }
      for (int64_t h = 0; h < heads; ++h) {
        double* head = y.data() + ((n * heads + h) * s + i) * d;
        for (int64_t p = 0; p < half; ++p) {
          double &x1 = head[interleaved ? 2 * p : p], &x2 = head[interleaved ? 2 * p + 1 : half + p];
          const double c = cosines[static_cast<size_t>(row * half + p)],
                       sine = sines[static_cast<size_t>(row * half + p)];
          const double turned = x1 * c - x2 * sine;
          x2 = x1 * sine + x2 * c;
          x1 = turned;
        }
      }
    }
  }
  unstage(y, context.outputs[0]);
}

std::vector<Val> decompose_rotary(OpBuilder& builder, const DecomposeContext& context) {
  Algebra a(builder);
  const TensorType type = builder.type(context.inputs[0]);
  const Shape& shape = type.shape;
  const sym::Expr rotary = rotary_size(context.attrs, shape[3]), half = sym::floor_div(rotary, 2);
  const bool interleaved = context.attrs.integer("interleaved", 0) != 0;
  const Val x = a.wide(context.inputs[0]);
  const auto part = [&](const sym::Expr& start, const sym::Expr& size, int64_t step) {
    return builder.apply("slice", {x},
                         {{"starts", Shape{0, 0, 0, start}},
                          {"sizes", Shape{shape[0], shape[1], shape[2], size}},
                          {"steps", std::vector<int64_t>{1, 1, 1, step}}});
  };
  const auto table = [&](size_t input) {  // [b, s, half], with a dimension of 1 for the heads
    Val rows = context.inputs[input];
    if (context.has(3)) rows = builder.apply("gather", {rows, context.inputs[3]}, {{"axis", int64_t{0}}});
    const Shape rows_shape = builder.type(rows).shape;
    return builder.reshape(a.wide(rows), {rows_shape[0], 1, rows_shape[1], rows_shape[2]});
  };
  const Val cosine = table(1), sine = table(2);
  const Val x1 = part(0, half, interleaved ? 2 : 1);
  const Val x2 = interleaved ? part(1, half, 2) : part(half, half, 1);
  const Val y1 = a.sub(a.mul(x1, cosine), a.mul(x2, sine));
  const Val y2 = a.add(a.mul(x1, sine), a.mul(x2, cosine));
  std::vector<Val> parts = {y1, y2};
  if (interleaved) {
    const Shape column = {shape[0], shape[1], shape[2], half, 1};
    const Val pairs =
        builder.apply("concat", {builder.reshape(y1, column), builder.reshape(y2, column)}, {{"axis", int64_t{4}}});
    parts = {builder.reshape(pairs, {shape[0], shape[1], shape[2], rotary})};
  }
  if (!(rotary == shape[3])) parts.push_back(part(rotary, shape[3] - rotary, 1));
  const Val y = parts.size() == 1 ? parts[0] : builder.apply("concat", parts, {{"axis", int64_t{3}}});
  return {builder.cast(y, type.dtype)};
}

}  // namespace

void add_attention_ops(OpTable& table) {
  table.add({.name = "attention",
             .family = Family::Composite,
             .summary = "softmax(softcap(q · kᵀ * scale) + mask) · v on [batch, heads, length, size]",
             .min_inputs = 3,
             .max_inputs = 4,
             .max_outputs = 2,
             .attrs = {optional_attr("scale", Kind::Real), optional_attr("causal", Kind::Integer),
                       optional_attr("past", Kind::Sizes), optional_attr("softcap", Kind::Real),
                       optional_attr("scores", Kind::Integer)},
             .infer = infer_attention,
             .reference = reference_attention,
             .decompose = decompose_attention,
             .flops = [](const InferContext& context, std::span<const TensorType> outputs) {
               const TensorType &q = context.in(0), &k = context.in(1);
               return (count_of(q.shape) + count_of(outputs[0].shape)) * k.shape[2] * 2;
             }});
  table.add({.name = "rotary_embedding",
             .family = Family::Composite,
             .summary = "rotates pairs of each head's elements by angles given as cosines and sines per position",
             .min_inputs = 3,
             .max_inputs = 4,
             .attrs = {optional_attr("interleaved", Kind::Integer), optional_attr("rotary_dim", Kind::Integer)},
             .infer = infer_rotary,
             .reference = reference_rotary,
             .decompose = decompose_rotary,
             .cost = 4});
}

}  // namespace fuseloom::op
