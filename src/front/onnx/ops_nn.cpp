// Products, convolutions, pooling, normalizations, recurrent layers, losses.
#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "front/onnx/node_import.h"
#include "front/onnx/windows.h"

namespace fuseloom::front::onnx {
namespace {

void import_matmul(NodeImport& n) { n.out(n.add("matmul", {n.in(0), n.in(1)})); }

ValueId scaled(NodeImport& n, ValueId x, double factor) {
  return factor == 1 ? x : n.add("mul", {x, n.like(x, factor)});
}

void import_gemm(NodeImport& n) {
  ValueId y =
      n.add("matmul", {n.in(0), n.in(1)}, {{"trans_a", n.integer("transA", 0)}, {"trans_b", n.integer("transB", 0)}});
  y = scaled(n, y, n.real("alpha", 1));
  if (n.has(2) && n.real("beta", 1) != 0) y = n.add("add", {y, scaled(n, n.in(2), n.real("beta", 1))});
  n.out(y);
}

// ---- Conv
// ------------------------------------------------------------------------------------------------------------

void import_conv(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  const Windows windows = read_windows(n, x, kernel_of_weights(n, w));
  std::vector<ValueId> inputs = {x, w};
  if (n.has(2)) inputs.push_back(n.in(2));
  n.out(n.add("conv", std::move(inputs),
              {{"strides", windows.strides},
               {"dilations", windows.dilations},
               {"pads_low", windows.low},
               {"pads_high", windows.high},
               {"groups", n.integer("group", 1)}}));
}

// With an output_shape, the padding is what makes the output have it; else output = (in - 1) * stride + dilated kernel
// - pads + output_padding.
void import_conv_transpose(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  const auto rank = static_cast<size_t>(n.rank(x) - 2);
  const std::vector<Expr> kernel = kernel_of_weights(n, w);
  const std::vector<int64_t> ones(rank, 1), zeros(rank, 0);
  const std::vector<int64_t> strides = n.integers("strides", ones), dilations = n.integers("dilations", ones),
                             output_padding = n.integers("output_padding", zeros),
                             pads = n.integers("pads", std::vector<int64_t>(2 * rank, 0));
  const std::string auto_pad = n.text("auto_pad", "NOTSET");
  std::vector<int64_t> output_shape = n.integers("output_shape");
  if (output_shape.size() > rank)
    output_shape.erase(output_shape.begin(), output_shape.end() - static_cast<std::ptrdiff_t>(rank));
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
  n.out(n.add("conv_transpose", std::move(inputs),
              {{"strides", strides},
               {"dilations", dilations},
               {"pads_low", low},
               {"pads_high", high},
               {"output_padding", output_padding},
               {"groups", n.integer("group", 1)}}));
}

// ---- pooling
// ---------------------------------------------------------------------------------------------------------

std::vector<Expr> kernel_attribute(const NodeImport& n) {
  const Shape kernel = op::shape_of(n.integers("kernel_shape"));
  if (kernel.empty()) n.fail("kernel_shape is missing");
  return kernel;
}

Attrs pool_attrs(NodeImport& n, ValueId x) {
  const Windows windows = read_windows(n, x, kernel_attribute(n));
  return {{"kernel", n.integers("kernel_shape")},
          {"strides", windows.strides},
          {"dilations", windows.dilations},
          {"pads_low", windows.low},
          {"pads_high", windows.high},
          {"sizes", windows.sizes}};
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

// ---- normalizations
// --------------------------------------------------------------------------------------------------

void import_batch_normalization(NodeImport& n) {
  const ValueId x = n.in(0);
  const double epsilon = n.real("epsilon", 1e-5);
  const DType dtype = n.dtype(x);
  const bool training = n.version() >= 14 && n.integer("training_mode", 0) != 0;
  if (!training) {
    n.out(n.add("batch_norm",
                {x, n.cast(n.in(1), dtype), n.cast(n.in(2), dtype), n.cast(n.in(3), dtype), n.cast(n.in(4), dtype)},
                {{"epsilon", epsilon}}));
    return;
  }
  // Training: the batch's own statistics normalize, and run into the given ones with the momentum.
  std::vector<int64_t> axes = {0};
  for (int64_t a = 2; a < n.rank(x); ++a) axes.push_back(a);
  const double momentum = n.real("momentum", 0.9);
  const ValueId mean = n.reduce("reduce_mean", x, axes, false);
  const ValueId variance =
      n.add("reduce_variance", {x}, {{"axes", axes}, {"keepdims", int64_t{0}}, {"correction", 0.0}});
  n.out(0, n.add("batch_norm", {x, n.cast(n.in(1), dtype), n.cast(n.in(2), dtype), mean, variance},
                 {{"epsilon", epsilon}}));
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
  const std::vector<ValueId> results = n.add_many(
      "layer_norm", std::move(inputs), {{"axis", axis}, {"epsilon", n.real("epsilon", 1e-5)}}, statistics ? 3 : 1);
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
  if (n.version() < 21) {  // one scale and bias per group; later, per channel
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
  n.out(n.add("lrn", {n.in(0)},
              {{"size", n.integer("size")},
               {"alpha", n.real("alpha", 1e-4)},
               {"beta", n.real("beta", 0.75)},
               {"bias", n.real("bias", 1)}}));
}

// ---- losses
// ----------------------------------------------------------------------------------------------------------

// Of log-probabilities [n, c, d...] and class labels [n, d...]: -weight[label] * x[label].
ValueId negative_log_likelihood(NodeImport& n, ValueId x, ValueId labels, ValueId weights,
                                const std::string& reduction) {
  labels = n.cast(labels, DType::I64);
  const bool ignores = n.has_attr("ignore_index");
  const ValueId ignored =
      ignores ? n.constant(Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{n.integer("ignore_index")}))
              : ValueId{};
  ValueId used;  // where the label counts
  if (ignores) {
    used = n.add("ne", {labels, ignored});
    labels = n.add("select", {used, labels, n.like(labels, 0)});
  }
  const ValueId picked =
      n.squeeze(n.add("gather_elements", {x, n.unsqueeze(labels, {1})}, {{"axis", int64_t{1}}}), {1});
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

// ---- recurrent layers
// ------------------------------------------------------------------------------------------------

// An activation of a recurrent layer with the parameters that it takes, and their defaults.
struct RecurrentActivation {
  const char* onnx;
  const char* name;
  std::optional<double> alpha, beta;
};
constexpr RecurrentActivation kRecurrentActivations[] = {
    {"Sigmoid", "sigmoid", {}, {}},
    {"Tanh", "tanh", {}, {}},
    {"Relu", "relu", {}, {}},
    {"Affine", "affine", 1.0, 0.0},
    {"LeakyRelu", "leaky_relu", 0.01, {}},
    {"ThresholdedRelu", "thresholded_relu", 1.0, {}},
    {"ScaledTanh", "scaled_tanh", 1.0, 1.0},
    {"HardSigmoid", "hard_sigmoid", 0.2, 0.5},
    {"Elu", "elu", 1.0, {}},
    {"Softsign", "softsign", {}, {}},
    {"Softplus", "softplus", {}, {}},
};

// The op takes ONNX's inputs, weights and gate orders.
ImportFn recurrent(std::string op, int64_t outputs, std::vector<std::string> default_activations) {
  return [=](NodeImport& n) {
    const std::string direction = n.text("direction", "forward");
    if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
      n.fail(fmt::format("direction '{}' is not one of forward, reverse, bidirectional", direction));
    std::vector<ValueId> inputs;
    for (size_t i = 0; i < n.input_count(); ++i) inputs.push_back(n.in_or_none(i));
    while (!inputs.empty() && !inputs.back().valid()) inputs.pop_back();
    // The parameters are listed for those activations that take one, in their order; the op wants one for each.
    std::vector<std::string> names = n.texts("activations");
    if (names.empty()) {
      names = default_activations;
      if (direction == "bidirectional")
        names.insert(names.end(), default_activations.begin(), default_activations.end());
    }
    const std::vector<double> alphas = n.reals("activation_alpha"), betas = n.reals("activation_beta");
    std::vector<double> alpha, beta;
    size_t next_alpha = 0, next_beta = 0;
    std::string activations;
    for (const std::string& name : names) {
      const auto* const known = std::find_if(std::begin(kRecurrentActivations), std::end(kRecurrentActivations),
                                             [&](const RecurrentActivation& a) { return a.onnx == name; });
      if (known == std::end(kRecurrentActivations)) n.unsupported(fmt::format("the activation '{}'", name));
      const auto take = [](const std::optional<double>& fallback, const std::vector<double>& given, size_t& next) {
        if (!fallback.has_value()) return 0.0;
        return next < given.size() ? given[next++] : *fallback;
      };
      alpha.push_back(take(known->alpha, alphas, next_alpha));
      beta.push_back(take(known->beta, betas, next_beta));
      activations += (activations.empty() ? "" : ",") + std::string(known->name);
    }
    Attrs attrs{{"direction", direction},
                {"activations", activations},
                {"alpha", alpha},
                {"beta", beta},
                {"layout", n.integer("layout", 0)}};
    if (n.has_attr("clip")) attrs.set("clip", n.real("clip", 0));
    if (op == "gru") attrs.set("linear_before_reset", n.integer("linear_before_reset", 0));
    if (op == "lstm") attrs.set("input_forget", n.integer("input_forget", 0));
    const std::vector<ValueId> results = n.add_many(op, std::move(inputs), std::move(attrs), outputs);
    for (size_t i = 0; i < results.size(); ++i) n.out(i, results[i]);
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
