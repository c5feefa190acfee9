// Products, convolutions, pooling, normalizations, recurrent layers, losses.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "front/onnx/node_import.h"
#include "front/onnx/windows.h"

namespace fuseloom::front::onnx {
namespace {

void import_matmul(NodeImport& n) { n.out(n.add("matmul", {n.in(0), n.in(1)})); }

ValueId scaled(NodeImport& n, ValueId x, double factor) { return factor == 1 ? x : n.add("mul", {x, n.like(x, factor)}); }

void import_gemm(NodeImport& n) {
  ValueId y = n.add("matmul", {n.in(0), n.in(1)}, {{"trans_a", n.integer("transA", 0)}, {"trans_b", n.integer("transB", 0)}});
  y = scaled(n, y, n.real("alpha", 1));
  if (n.has(2) && n.real("beta", 1) != 0) y = n.add("add", {y, scaled(n, n.in(2), n.real("beta", 1))});
  n.out(y);
}

// ---- Conv ------------------------------------------------------------------------------------------------------------

void import_conv(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  const Windows windows = read_windows(n, x, kernel_of_weights(n, w));
  std::vector<ValueId> inputs = {x, w};
  if (n.has(2)) inputs.push_back(n.in(2));
  n.out(n.add("conv", std::move(inputs), {{"strides", windows.strides},
                                          {"dilations", windows.dilations},
                                          {"pads_low", windows.low},
                                          {"pads_high", windows.high},
                                          {"groups", n.integer("group", 1)}}));
}

// With an output_shape, the padding is what makes the output have it; else output = (in - 1) * stride + dilated kernel -
// pads + output_padding.
void import_conv_transpose(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  const auto rank = static_cast<size_t>(n.rank(x) - 2);
  const std::vector<Expr> kernel = kernel_of_weights(n, w);
  const std::vector<int64_t> ones(rank, 1), zeros(rank, 0);
  const std::vector<int64_t> strides = n.integers("strides", ones), dilations = n.integers("dilations", ones),
                             output_padding = n.integers("output_padding", zeros), pads = n.integers("pads", std::vector<int64_t>(2 * rank, 0));
  const std::string auto_pad = n.text("auto_pad", "NOTSET");
  std::vector<int64_t> output_shape = n.integers("output_shape");
  if (output_shape.size() > rank) output_shape.erase(output_shape.begin(), output_shape.end() - static_cast<std::ptrdiff_t>(rank));
  if (strides.size() != rank || dilations.size() != rank || output_padding.size() != rank || pads.size() != 2 * rank ||
      (!output_shape.empty() && output_shape.size() != rank))
    n.fail(fmt::format("an attribute does not have one entry for each of the {} spatial dimensions", rank));
  Shape low, high;
  for (size_t d = 0; d < rank; ++d) {
    const Expr full = (n.shape(x)[d + 2] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 + output_padding[d];
    const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
    if (output_shape.empty() && !same) {
      low.emplace_back(auto_pad == "VALID" ? 0 : pads[d]);
      high.emplace_back(auto_pad == "VALID" ? 0 : pads[d + rank]);
      continue;
    }
    const Expr wanted = output_shape.empty() ? n.shape(x)[d + 2] * strides[d] : Expr(output_shape[d]);
    const Expr total = n.simplify(full - wanted);
    const Expr half = n.simplify(sym::floor_div(total, 2)), rest = n.simplify(total - half);
    low.push_back(auto_pad == "SAME_UPPER" ? half : rest);
    high.push_back(auto_pad == "SAME_UPPER" ? rest : half);
  }
  std::vector<ValueId> inputs = {x, w};
  if (n.has(2)) inputs.push_back(n.in(2));
  n.out(n.add("conv_transpose", std::move(inputs), {{"strides", strides},
                                                    {"dilations", dilations},
                                                    {"pads_low", low},
                                                    {"pads_high", high},
                                                    {"output_padding", output_padding},
                                                    {"groups", n.integer("group", 1)}}));
}

// ---- pooling ---------------------------------------------------------------------------------------------------------

std::vector<Expr> kernel_attribute(const NodeImport& n) {
  const Shape kernel = op::shape_of(n.integers("kernel_shape"));
  if (kernel.empty()) n.fail("kernel_shape is missing");
  return kernel;
}

Attrs pool_attrs(NodeImport& n, ValueId x) {
  const Windows windows = read_windows(n, x, kernel_attribute(n));
  return {{"kernel", n.integers("kernel_shape")}, {"strides", windows.strides}, {"dilations", windows.dilations},
          {"pads_low", windows.low},              {"pads_high", windows.high},  {"sizes", windows.sizes}};
}

void import_max_pool(NodeImport& n) {
  const ValueId x = n.in(0);
  Attrs attrs = pool_attrs(n, x);
  attrs.set("storage_order", n.integer("storage_order", 0));
  const std::vector<ValueId> results = n.add_many("max_pool", {x}, std::move(attrs), n.wants(1) ? 2 : 1);
  for (size_t i = 0; i < results.size(); ++i) n.out(i, results[i]);
}

void import_average_pool(NodeImport& n) {
  const ValueId x = n.in(0);
  Attrs attrs = pool_attrs(n, x);
  attrs.set("count_include_pad", n.integer("count_include_pad", 0));
  n.out(n.add("average_pool", {x}, std::move(attrs)));
}

void import_lp_pool(NodeImport& n) {
  const ValueId x = n.in(0);
  Attrs attrs = pool_attrs(n, x);
  attrs.set("p", n.version() >= 2 ? static_cast<double>(n.integer("p", 2)) : n.real("p", 2));
  n.out(n.add("lp_pool", {x}, std::move(attrs)));
}

ImportFn global_pool(std::string reduction) {
  return [reduction = std::move(reduction)](NodeImport& n) {
    const ValueId x = n.in(0);
    std::vector<int64_t> axes;
    for (int64_t a = 2; a < n.rank(x); ++a) axes.push_back(a);
    if (reduction == "lp") {
      const double p = static_cast<double>(n.integer("p", 2));
      const ValueId powers = n.add("pow", {n.add("abs", {x}), n.like(x, p)});
      const ValueId sum = n.reduce("reduce_sum", powers, axes, true);
      n.out(n.add("pow", {sum, n.like(sum, 1 / p)}));
    } else {
      n.out(n.reduce(reduction, x, axes, true));
    }
  };
}

// Puts each value back at its index, in a plane of zeros.
void import_max_unpool(NodeImport& n) {
  const ValueId x = n.in(0), index = n.in(1);
  const auto rank = static_cast<size_t>(n.rank(x) - 2);
  const std::vector<int64_t> kernel = n.integers("kernel_shape"), strides = n.integers("strides", std::vector<int64_t>(rank, 1)),
                             pads = n.integers("pads", std::vector<int64_t>(2 * rank, 0));
  if (kernel.size() != rank || strides.size() != rank || pads.size() != 2 * rank)
    n.fail(fmt::format("an attribute does not have one entry for each of the {} spatial dimensions", rank));
  Shape shape = n.shape(x);
  for (size_t d = 0; d < rank; ++d)
    shape[d + 2] = n.simplify((shape[d + 2] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + rank]);
  // The indices are into this flat shape, batch and channels included; a larger output is padded behind.
  const Expr count = n.simplify(op::count_of(n.shape(x))), total = n.simplify(op::count_of(shape));
  const ValueId flat = n.add("scatter_elements", {n.full(n.dtype(x), 0, {total}), n.reshape(index, {count}), n.reshape(x, {count})},
                             {{"axis", int64_t{0}}, {"reduction", std::string("none")}});
  ValueId y = n.reshape(flat, shape);
  if (n.has(2)) {
    const Shape wanted = n.read_sizes(n.in(2));
    Shape high;
    for (size_t d = 0; d < shape.size(); ++d) high.push_back(n.simplify(wanted.at(d) - shape[d]));
    y = n.pad(y, Shape(shape.size(), Expr(0)), std::move(high));
  }
  n.out(y);
}

// ---- normalizations --------------------------------------------------------------------------------------------------


void import_batch_normalization(NodeImport& n) {
  const ValueId x = n.in(0);
  const double epsilon = n.real("epsilon", 1e-5);
  const DType dtype = n.dtype(x);
  const bool training = n.version() >= 14 && n.integer("training_mode", 0) != 0;
  if (!training) {
    n.out(n.add("batch_norm", {x, n.cast(n.in(1), dtype), n.cast(n.in(2), dtype), n.cast(n.in(3), dtype), n.cast(n.in(4), dtype)},
                {{"epsilon", epsilon}}));
    return;
  }
  // Training: the batch's own statistics normalize, and run into the given ones with the momentum.
  std::vector<int64_t> axes = {0};
  for (int64_t a = 2; a < n.rank(x); ++a) axes.push_back(a);
  const double momentum = n.real("momentum", 0.9);
  const ValueId mean = n.reduce("reduce_mean", x, axes, false);
  const ValueId variance = n.add("reduce_variance", {x}, {{"axes", axes}, {"keepdims", int64_t{0}}, {"correction", 0.0}});
  n.out(0, n.add("batch_norm", {x, n.cast(n.in(1), dtype), n.cast(n.in(2), dtype), mean, variance}, {{"epsilon", epsilon}}));
  const auto running = [&](ValueId before, ValueId now) {
    now = n.cast(now, n.dtype(before));
    return n.add("add", {scaled(n, before, momentum), scaled(n, now, 1 - momentum)});
  };
  if (n.wants(1)) n.out(1, running(n.in(3), mean));
  if (n.wants(2)) n.out(2, running(n.in(4), variance));
}

void import_layer_normalization(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t axis = n.axis(n.integer("axis", -1), n.rank(x));
  const DType dtype = n.dtype(x);
  std::vector<ValueId> inputs = {x, n.in(1)};
  if (n.has(2)) inputs.push_back(n.in(2));
  const bool statistics = n.wants(1) || n.wants(2);
  const std::vector<ValueId> results =
      n.add_many("layer_norm", std::move(inputs), {{"axis", axis}, {"epsilon", n.real("epsilon", 1e-5)}}, statistics ? 3 : 1);
  n.out(0, results[0]);
  const DType stash = n.integer("stash_type", 1) == 1 ? DType::F32 : dtype;
  for (size_t i = 1; i < results.size(); ++i) n.out(i, n.cast(results[i], stash));
}

void import_rms_normalization(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t axis = n.axis(n.integer("axis", -1), n.rank(x));
  n.out(n.add("rms_norm", {x, n.cast(n.in(1), n.dtype(x))}, {{"axis", axis}, {"epsilon", n.real("epsilon", 1e-5)}}));
}

void import_instance_normalization(NodeImport& n) {
  n.out(n.add("instance_norm", {n.in(0), n.in(1), n.in(2)}, {{"epsilon", n.real("epsilon", 1e-5)}}));
}

void import_group_normalization(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t groups = n.integer("num_groups");
  ValueId scale = n.in(1), bias = n.in(2);
  if (n.version() < 21) {   // one scale and bias per group; later, per channel
    if (groups < 1) n.fail(fmt::format("num_groups is {}", groups));
    const Expr each = n.simplify(sym::floor_div(n.size(x, 1), groups));
    const auto spread = [&](ValueId v) {
      return n.reshape(n.expand(n.reshape(v, {groups, 1}), {groups, each}), {n.size(x, 1)});
    };
    scale = spread(scale);
    bias = spread(bias);
  }
  n.out(n.add("group_norm", {x, scale, bias}, {{"groups", groups}, {"epsilon", n.real("epsilon", 1e-5)}}));
}

void import_lrn(NodeImport& n) {
  n.out(n.add("lrn", {n.in(0)}, {{"size", n.integer("size")}, {"alpha", n.real("alpha", 1e-4)}, {"beta", n.real("beta", 0.75)},
                                 {"bias", n.real("bias", 1)}}));
}

// ---- losses ----------------------------------------------------------------------------------------------------------

// Of log-probabilities [n, c, d...] and class labels [n, d...]: -weight[label] * x[label].
ValueId negative_log_likelihood(NodeImport& n, ValueId x, ValueId labels, ValueId weights, const std::string& reduction) {
  labels = n.cast(labels, DType::I64);
  const bool ignores = n.has_attr("ignore_index");
  const ValueId ignored = ignores ? n.constant(Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{n.integer("ignore_index")})) : ValueId{};
  ValueId used;                                  // where the label counts
  if (ignores) {
    used = n.add("ne", {labels, ignored});
    labels = n.add("select", {used, labels, n.like(labels, 0)});
  }
  const ValueId picked = n.squeeze(n.add("gather_elements", {x, n.unsqueeze(labels, {1})}, {{"axis", int64_t{1}}}), {1});
  ValueId loss = n.add("neg", {picked});
  ValueId weight = weights.valid() ? n.add("gather", {weights, labels}, {{"axis", int64_t{0}}}) : ValueId{};
  if (ignores) {
    if (!weight.valid()) weight = n.full(n.dtype(x), 1, n.shape(loss));
    weight = n.add("select", {used, weight, n.like(weight, 0)});
    loss = n.add("select", {used, loss, n.like(loss, 0)});
  }
  if (weight.valid()) loss = n.add("mul", {loss, weight});
  std::vector<int64_t> every(static_cast<size_t>(n.rank(loss)));
  std::iota(every.begin(), every.end(), 0);
  if (reduction == "none") return loss;
  if (reduction == "sum") return n.reduce("reduce_sum", loss, every, false);
  if (reduction != "mean") n.fail(fmt::format("reduction '{}' is not one of none, sum, mean", reduction));
  if (!weight.valid()) return n.reduce("reduce_mean", loss, every, false);
  return n.add("div", {n.reduce("reduce_sum", loss, every, false), n.reduce("reduce_sum", weight, every, false)});
}

void import_negative_log_likelihood(NodeImport& n) {
  n.out(negative_log_likelihood(n, n.in(0), n.in(1), n.in_or_none(2), n.text("reduction", "mean")));
}

void import_softmax_cross_entropy(NodeImport& n) {
  const ValueId log_probabilities = n.add("log_softmax", {n.in(0)}, {{"axis", int64_t{1}}});
  n.out(0, negative_log_likelihood(n, log_probabilities, n.in(1), n.in_or_none(2), n.text("reduction", "mean")));
  n.out(1, log_probabilities);
}

// ---- recurrent layers ------------------------------------------------------------------------------------------------

// The op takes ONNX's inputs, weights and gate orders with the time first; layout 1 has the batch first.
ImportFn recurrent(std::string op, int64_t outputs, std::vector<std::string> default_activations) {
  return [=](NodeImport& n) {
    const bool batch_first = n.integer("layout", 0) != 0;
    const std::string direction = n.text("direction", "forward");
    if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
      n.fail(fmt::format("direction '{}' is not one of forward, reverse, bidirectional", direction));
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < n.input_count(); ++i) {
      ValueId v = n.in_or_none(i);
      // X, and the initial states, which come as [batch, direction, hidden].
      if (batch_first && v.valid() && (i == 0 || i == 5 || i == 6)) v = n.transpose(v, {1, 0, 2});
      inputs.push_back(v);
    }
    while (!inputs.empty() && !inputs.back().valid()) inputs.pop_back();
    std::vector<std::string> activations = n.texts("activations");
    if (activations.empty()) {
      activations = default_activations;
      if (direction == "bidirectional") activations.insert(activations.end(), default_activations.begin(), default_activations.end());
    }
    Attrs attrs{{"hidden_size", n.integer("hidden_size")},
                {"direction", direction},
                {"activations", fmt::format("{}", fmt::join(activations, " "))},
                {"activation_alpha", n.reals("activation_alpha")},
                {"activation_beta", n.reals("activation_beta")}};
    if (n.has_attr("clip")) attrs.set("clip", n.real("clip", 0));
    if (op == "gru") attrs.set("linear_before_reset", n.integer("linear_before_reset", 0));
    if (op == "lstm") attrs.set("input_forget", n.integer("input_forget", 0));
    const std::vector<ValueId> results = n.add_many(op, std::move(inputs), std::move(attrs), outputs);
    for (size_t i = 0; i < results.size(); ++i) {
      if (!n.wants(i)) continue;
      // Y is [time, direction, batch, hidden], the states [direction, batch, hidden].
      n.out(i, batch_first ? n.transpose(results[i], i == 0 ? std::vector<int64_t>{2, 0, 1, 3} : std::vector<int64_t>{1, 0, 2}) : results[i]);
    }
  };
}

}  // namespace

void add_nn_imports(ImportTable& t) {
  t.add("MatMul", import_matmul);
  t.add("Gemm", import_gemm);
  t.add("Conv", import_conv);
  t.add("ConvTranspose", import_conv_transpose);
  t.add("MaxPool", import_max_pool);
  t.add("AveragePool", import_average_pool);
  t.add("LpPool", import_lp_pool);
  t.add("GlobalMaxPool", global_pool("reduce_max"));
  t.add("GlobalAveragePool", global_pool("reduce_mean"));
  t.add("GlobalLpPool", global_pool("lp"));
  t.add("MaxUnpool", import_max_unpool);
  t.add("BatchNormalization", import_batch_normalization);
  t.add("LayerNormalization", import_layer_normalization);
  t.add("RMSNormalization", import_rms_normalization);
  t.add("InstanceNormalization", import_instance_normalization);
  t.add("GroupNormalization", import_group_normalization);
  t.add("LRN", import_lrn);
  t.add("NegativeLogLikelihoodLoss", import_negative_log_likelihood);
  t.add("SoftmaxCrossEntropyLoss", import_softmax_cross_entropy);
  t.add("LSTM", recurrent("lstm", 3, {"Sigmoid", "Tanh", "Tanh"}));
  t.add("GRU", recurrent("gru", 2, {"Sigmoid", "Tanh"}));
  t.add("RNN", recurrent("rnn", 2, {"Tanh"}));
}

}  // namespace fuseloom::front::onnx
