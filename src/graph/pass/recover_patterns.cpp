#include <cmath>
#include <numeric>

#include "base/check.h"
#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"

namespace fuseloom::graph {
namespace {

using MaybeValue = std::optional<ValueId>;

// Exporters write their constants in f32 or f16, and round them differently.
bool near(double found, double wanted) { return std::abs(found - wanted) <= 1e-3 * std::abs(wanted); }

// A value written as a product: scale * factors[0] * factors[1] * ...
struct Product {
  double scale = 1;
  std::vector<ValueId> factors;
};

// Matches on the value graph. Every match is a tree of a few nodes, so the pass is linear.
class Patterns {
 public:
  Patterns(Graph& graph, NodeId id) : graph_(graph), node_(graph.node(id)) {}

  MaybeValue recover() {
    if (node_.outputs.size() != 1 || !is_float(out_type().dtype)) return std::nullopt;
    const std::string& op = node_.op->name;
    if (op == "mul" || op == "div") {
      for (const auto rule : {&Patterns::softmax, &Patterns::normalization, &Patterns::activation, &Patterns::norm_scale})
        if (const MaybeValue value = (this->*rule)()) return value;
    }
    if (op == "add") return norm_bias();
    if (op == "matmul") return attention();
    return std::nullopt;
  }

 private:
  const op::TensorType& out_type() const { return graph_.type(node_.outputs[0]); }
  const op::Shape& shape(ValueId id) const { return graph_.type(id).shape; }
  const Node* from(ValueId id, std::string_view op) const { return graph_.is_op(id, op) ? graph_.producer(id) : nullptr; }
  ValueId add(std::string_view op, std::vector<ValueId> inputs, op::Attrs attrs = {}) const {
    const std::string origin = node_.origin;
    return graph_.add(op, std::move(inputs), std::move(attrs), origin);
  }
  MaybeValue elementwise(std::string_view op, ValueId x, op::Attrs attrs = {}) const {
    if (!same_type(graph_, graph_.type(x), out_type())) return std::nullopt;
    return add(op, {x}, std::move(attrs));
  }

  // ---- algebra

  // `whole` is a factor even where it is a product itself.
  void factor(ValueId id, int depth, ValueId whole, Product& product) const {
    if (id == whole) {
      product.factors.push_back(id);
      return;
    }
    if (const std::optional<double> constant = splat(graph_, id)) {
      product.scale *= *constant;
      return;
    }
    const Node* node = graph_.producer(id);
    if (node != nullptr && depth > 0) {
      const std::string& op = node->op->name;
      if (op == "mul") {
        factor(node->inputs[0], depth - 1, whole, product);
        factor(node->inputs[1], depth - 1, whole, product);
        return;
      }
      if (op == "div" && splat(graph_, node->inputs[1]).has_value()) {
        product.scale /= *splat(graph_, node->inputs[1]);
        factor(node->inputs[0], depth - 1, whole, product);
        return;
      }
      int powers = op == "square" ? 2 : 0;
      if (op == "pow") {
        const std::optional<double> exponent = splat(graph_, node->inputs[1]);
        if (exponent == 2.0 || exponent == 3.0) powers = static_cast<int>(*exponent);
      }
      if (powers > 0) {
        for (int i = 0; i < powers; ++i) factor(node->inputs[0], depth - 1, whole, product);
        return;
      }
    }
    product.factors.push_back(id);
  }
  Product product_of(ValueId id, ValueId whole = {}) const {
    Product product;
    factor(id, 4, whole, product);
    return product;
  }

  // id = other + constant, in either order.
  std::optional<ValueId> plus(ValueId id, double constant) const {
    const Node* sum = from(id, "add");
    if (sum == nullptr) return std::nullopt;
    for (const size_t i : {0, 1})
      if (const std::optional<double> value = splat(graph_, sum->inputs[1 - i]); value.has_value() && near(*value, constant)) return sum->inputs[i];
    return std::nullopt;
  }

  // id = scale * x
  bool is_scaled(ValueId id, double scale, ValueId x) const {
    const Product product = product_of(id, x);
    return near(product.scale, scale) && product.factors.size() == 1 && product.factors[0] == x;
  }
  bool is_square(ValueId id, ValueId x) const {
    const Product product = product_of(id, x);
    return product.scale == 1 && product.factors == std::vector<ValueId>{x, x};
  }

  // ---- activations: x times something of x

  MaybeValue activation() const {
    if (const MaybeValue value = activation_of({})) return value;
    // x may be a product: then it must be taken as a whole.
    std::vector<ValueId> candidates = node_.inputs;
    for (const ValueId input : node_.inputs)
      if (const Node* inner = from(input, "mul")) candidates.insert(candidates.end(), inner->inputs.begin(), inner->inputs.end());
    for (const ValueId x : candidates) {
      if (!graph_.is_op(x, "mul") && !graph_.is_op(x, "div")) continue;
      if (const MaybeValue value = activation_of(x)) return value;
    }
    return std::nullopt;
  }

  MaybeValue activation_of(ValueId whole) const {
    const Product product = product_of(node_.outputs[0], whole);
    if (product.factors.size() != 2) return std::nullopt;
    for (const size_t i : {0, 1}) {
      const ValueId x = product.factors[i], gate = product.factors[1 - i];
      if (near(product.scale, 0.5)) {
        if (const std::optional<ValueId> inner = plus(gate, 1)) {
          if (const Node* erf = from(*inner, "erf"); erf != nullptr && is_scaled(erf->inputs[0], std::sqrt(0.5), x)) return elementwise("gelu", x);
          if (const Node* tanh = from(*inner, "tanh"); tanh != nullptr && is_gelu_argument(tanh->inputs[0], x)) return elementwise("gelu_tanh", x);
        }
      }
      if (near(product.scale, 1)) {
        if (const Node* sigmoid = from(gate, "sigmoid")) {
          if (sigmoid->inputs[0] == x) return elementwise("silu", x);
          const Product argument = product_of(sigmoid->inputs[0], x);
          if (argument.factors == std::vector<ValueId>{x}) return elementwise("swish", x, {{"alpha", argument.scale}});
        }
        if (const Node* hard = from(gate, "hard_sigmoid");
            hard != nullptr && hard->inputs[0] == x && near(hard->attrs.real("alpha"), 1.0 / 6) && near(hard->attrs.real("beta"), 0.5))
          return elementwise("hard_swish", x);
        if (const Node* tanh = from(gate, "tanh")) {
          const Node* softplus = from(tanh->inputs[0], "softplus");
          if (softplus != nullptr && softplus->inputs[0] == x) return elementwise("mish", x);
        }
      }
      if (near(product.scale, 1.0 / 6)) {
        const std::optional<ValueId> limited = limited_to(gate, 0, 6);
        if (limited.has_value() && plus(*limited, 3) == x) return elementwise("hard_swish", x);
      }
    }
    return std::nullopt;
  }

  // sqrt(2 / pi) * (x + 0.044715 x^3), also with x taken out of the sum.
  bool is_gelu_argument(ValueId id, ValueId x) const {
    const Product product = product_of(id, x);
    if (!near(product.scale, 0.7978845608)) return false;
    const auto is_cubic = [&](ValueId value, size_t powers) {
      const Product term = product_of(value, x);
      return near(term.scale, 0.044715) && term.factors == std::vector<ValueId>(powers, x);
    };
    if (product.factors.size() == 1) {
      const Node* sum = from(product.factors[0], "add");
      return sum != nullptr && ((sum->inputs[0] == x && is_cubic(sum->inputs[1], 3)) || (sum->inputs[1] == x && is_cubic(sum->inputs[0], 3)));
    }
    if (product.factors.size() != 2) return false;
    for (const size_t i : {0, 1}) {
      if (product.factors[i] != x) continue;
      const std::optional<ValueId> term = plus(product.factors[1 - i], 1);
      if (term.has_value() && is_cubic(*term, 2)) return true;
    }
    return false;
  }

  // id = x limited to low..high, as clamp, hard_tanh or min and max.
  std::optional<ValueId> limited_to(ValueId id, double low, double high) const {
    const auto is = [&](ValueId value, double wanted) { return splat(graph_, value) == wanted; };
    if (const Node* clamp = from(id, "clamp"))
      return is(clamp->inputs[1], low) && is(clamp->inputs[2], high) ? std::optional(clamp->inputs[0]) : std::nullopt;
    if (const Node* tanh = from(id, "hard_tanh"))
      return tanh->attrs.real("low") == low && tanh->attrs.real("high") == high ? std::optional(tanh->inputs[0]) : std::nullopt;
    const auto peel = [&](ValueId value, std::string_view op, double wanted) -> std::optional<ValueId> {
      const Node* node = from(value, op);
      if (node == nullptr) return std::nullopt;
      if (is(node->inputs[1], wanted)) return node->inputs[0];
      return is(node->inputs[0], wanted) ? std::optional(node->inputs[1]) : std::nullopt;
    };
    if (const std::optional<ValueId> inner = peel(id, "min", high)) {
      if (const Node* relu = from(*inner, "relu"); relu != nullptr && low == 0) return relu->inputs[0];
      return peel(*inner, "max", low);
    }
    if (const std::optional<ValueId> inner = peel(id, "max", low)) return peel(*inner, "min", high);
    return std::nullopt;
  }

  // ---- reductions

  // id = reduction of x with keepdims; gives the normal axes in order.
  std::optional<std::vector<int64_t>> reduced(ValueId id, std::string_view op, ValueId x) const {
    const Node* node = from(id, op);
    if (node == nullptr || node->inputs[0] != x || node->attrs.integer("keepdims") == 0) return std::nullopt;
    std::vector<int64_t> axes = node->attrs.integers("axes");
    for (int64_t& axis : axes) axis += axis < 0 ? graph_.type(x).rank() : 0;
    std::sort(axes.begin(), axes.end());
    return axes;
  }
  // The first of the axes when they are the last dimensions.
  std::optional<int64_t> trailing(const std::vector<int64_t>& axes, ValueId x) const {
    if (axes.empty()) return std::nullopt;
    for (size_t i = 0; i < axes.size(); ++i)
      if (axes[i] != graph_.type(x).rank() - static_cast<int64_t>(axes.size() - i)) return std::nullopt;
    return axes[0];
  }

  // The node as a / b: a division, or a product with a reciprocal. Every reading of it.
  std::vector<std::pair<ValueId, ValueId>> quotients() const {
    if (node_.op->name == "div") return {{node_.inputs[0], node_.inputs[1]}};
    std::vector<std::pair<ValueId, ValueId>> found;
    for (const size_t i : {0, 1})
      if (const Node* inverse = from(node_.inputs[i], "reciprocal")) found.emplace_back(node_.inputs[1 - i], inverse->inputs[0]);
    return found;
  }

  // exp(x - max(x)) / sum(exp(x - max(x)))
  MaybeValue softmax() const {
    for (const auto& [numerator, denominator] : quotients()) {
      const Node* exp = from(numerator, "exp");
      if (exp == nullptr) continue;
      const Node* shifted = from(exp->inputs[0], "sub");
      if (shifted == nullptr) continue;
      const ValueId x = shifted->inputs[0];
      const auto maximum = reduced(shifted->inputs[1], "reduce_max", x), sum = reduced(denominator, "reduce_sum", numerator);
      if (!maximum.has_value() || maximum != sum || maximum->size() != 1) continue;
      return elementwise("softmax", x, {{"axis", (*maximum)[0]}});
    }
    return std::nullopt;
  }

  // The node as a / sqrt(b + epsilon).
  struct Normalized {
    ValueId numerator, variance;
    double epsilon = 0;
  };
  std::vector<Normalized> normalizations() const {
    std::vector<Normalized> found;
    const auto try_root = [&](ValueId numerator, ValueId radicand) {
      const Node* sum = from(radicand, "add");
      if (sum == nullptr) return;
      for (const size_t i : {0, 1})
        if (const std::optional<double> epsilon = splat(graph_, sum->inputs[i])) found.push_back({numerator, sum->inputs[1 - i], *epsilon});
    };
    for (const auto& [numerator, denominator] : quotients())
      if (const Node* root = from(denominator, "sqrt")) try_root(numerator, root->inputs[0]);
    if (node_.op->name == "mul")
      for (const size_t i : {0, 1})
        if (const Node* root = from(node_.inputs[i], "rsqrt")) try_root(node_.inputs[1 - i], root->inputs[0]);
    return found;
  }

  // LayerNorm: d / sqrt(mean(d^2) + epsilon) with d = x - mean(x). RMSNorm: x / sqrt(mean(x^2) + epsilon).
  MaybeValue normalization() const {
    for (const Normalized& normal : normalizations()) {
      const Node* difference = from(normal.numerator, "sub");
      if (difference != nullptr) {
        const ValueId x = difference->inputs[0];
        const auto mean_axes = reduced(difference->inputs[1], "reduce_mean", x);
        auto variance_axes = mean_of_square(normal.variance, normal.numerator);
        if (!variance_axes.has_value() && graph_.is_op(normal.variance, "reduce_variance") &&
            graph_.producer(normal.variance)->attrs.integer("correction", 0) == 0)
          variance_axes = reduced(normal.variance, "reduce_variance", x);
        if (mean_axes.has_value() && mean_axes == variance_axes) {
          const std::optional<int64_t> axis = trailing(*mean_axes, x);
          if (axis.has_value()) return elementwise("layer_norm", x, {{"axis", *axis}, {"epsilon", normal.epsilon}});
        }
      }
      const ValueId x = normal.numerator;
      if (const auto axes = mean_of_square(normal.variance, x)) {
        const std::optional<int64_t> axis = trailing(*axes, x);
        if (axis.has_value()) return elementwise("rms_norm", x, {{"axis", *axis}, {"epsilon", normal.epsilon}});
      }
    }
    return std::nullopt;
  }

  std::optional<std::vector<int64_t>> mean_of_square(ValueId id, ValueId x) const {
    const Node* mean = from(id, "reduce_mean");
    if (mean == nullptr || !is_square(mean->inputs[0], x)) return std::nullopt;
    return reduced(id, "reduce_mean", mean->inputs[0]);
  }

  // Whether a parameter has exactly the normalized sizes of the norm.
  bool is_parameter(const Node& norm, ValueId parameter) const {
    const ValueId x = norm.inputs[0];
    if (graph_.type(parameter).dtype != graph_.type(x).dtype) return false;
    int64_t axis = norm.attrs.integer("axis");
    if (axis < 0) axis += graph_.type(x).rank();
    const op::Shape sizes(shape(x).begin() + axis, shape(x).end());
    return same_shape(graph_, shape(parameter), sizes);
  }
  // A norm that nobody else reads and that lacks this input.
  const Node* open_norm(ValueId id, std::string_view op, size_t input) const {
    const Node* norm = from(id, op);
    if (norm == nullptr || norm->outputs.size() != 1 || graph_.use_count(id) != 1) return nullptr;
    return norm->inputs.size() > input && norm->inputs[input].valid() ? nullptr : norm;
  }

  // norm(x) * scale → norm(x, scale)
  MaybeValue norm_scale() const {
    if (node_.op->name != "mul") return std::nullopt;
    for (const size_t i : {0, 1}) {
      const ValueId scale = node_.inputs[1 - i];
      for (const std::string_view op : {"layer_norm", "rms_norm"}) {
        const Node* norm = open_norm(node_.inputs[i], op, 1);
        // layer_norm(x, _, bias) * scale scales the bias too.
        if (norm == nullptr || (norm->inputs.size() > 2 && norm->inputs[2].valid()) || !is_parameter(*norm, scale)) continue;
        return add(op, {norm->inputs[0], scale}, norm->attrs);
      }
    }
    return std::nullopt;
  }

  // layer_norm(x, scale?) + bias → layer_norm(x, scale?, bias)
  MaybeValue norm_bias() const {
    for (const size_t i : {0, 1}) {
      const Node* norm = open_norm(node_.inputs[i], "layer_norm", 2);
      const ValueId bias = node_.inputs[1 - i];
      if (norm == nullptr || !is_parameter(*norm, bias)) continue;
      return add("layer_norm", {norm->inputs[0], norm->inputs.size() > 1 ? norm->inputs[1] : ValueId{}, bias}, norm->attrs);
    }
    return std::nullopt;
  }

  // ---- attention

  // softmax(q · kᵀ * scale + mask) · v over [batch, heads, length, size]; nobody else reads the scores.
  MaybeValue attention() const {
    const Node* softmax = from(node_.inputs[0], "softmax");
    const ValueId v = node_.inputs[1];
    if (softmax == nullptr || node_.attrs.integer("trans_a", 0) != 0 || node_.attrs.integer("trans_b", 0) != 0) return std::nullopt;
    const int64_t axis = softmax->attrs.integer("axis");
    if (out_type().rank() != 4 || graph_.type(v).rank() != 4 || (axis != 3 && axis != -1) || graph_.use_count(node_.inputs[0]) != 1)
      return std::nullopt;
    ValueId scores = softmax->inputs[0], mask;
    if (graph_.use_count(scores) != 1) return std::nullopt;
    std::optional<ScaledScores> scaled = scaled_scores(scores);
    if (!scaled.has_value()) {
      const Node* sum = from(scores, "add");
      if (sum == nullptr) return std::nullopt;
      for (const size_t i : {0, 1}) {
        scaled = scaled_scores(sum->inputs[i]);
        mask = sum->inputs[1 - i];
        if (scaled.has_value()) break;
      }
      if (!scaled.has_value()) return std::nullopt;
    }
    Product q = product_of_input(scaled->matmul->inputs[0]), k = product_of_input(scaled->matmul->inputs[1]);
    const ValueId query = q.factors[0];
    const bool transposed = scaled->matmul->attrs.integer("trans_b", 0) != 0;
    if (scaled->matmul->attrs.integer("trans_a", 0) != 0 || graph_.type(query).rank() != 4 || graph_.type(k.factors[0]).rank() != 4)
      return std::nullopt;
    // All or nothing: the shapes are checked before anything is added.
    const op::Shape &qs = shape(query), &ks = shape(k.factors[0]), &vs = shape(v);
    const sym::Expr length = transposed ? ks[2] : ks[3], size = transposed ? ks[3] : ks[2];
    const bool fits = same_size(graph_, qs[0], ks[0]) && same_size(graph_, qs[0], vs[0]) && same_size(graph_, qs[1], ks[1]) &&
                      same_size(graph_, qs[1], vs[1]) && same_size(graph_, qs[3], size) && same_size(graph_, length, vs[2]);
    if (!fits) return std::nullopt;
    std::vector<ValueId> inputs{query, k.factors[0], v};
    if (mask.valid()) {
      const op::Shape whole{qs[0], qs[1], qs[2], length};
      const op::Shape& ms = shape(mask);
      if (ms.size() > 4) return std::nullopt;
      for (size_t d = 0; d < ms.size(); ++d)
        if (!ms[d].is_const(1) && !same_size(graph_, ms[d], whole[4 - ms.size() + d])) return std::nullopt;
      inputs.push_back(mask);
    }
    const double scale = scaled->scale * q.scale * k.scale;
    if (!transposed) inputs[1] = add("transpose", {k.factors[0]}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
    return add("attention", inputs, {{"scale", scale}});
  }

  struct ScaledScores {
    const Node* matmul = nullptr;
    double scale = 1;
  };
  std::optional<ScaledScores> scaled_scores(ValueId id) const {
    const Product product = product_of(id);
    if (product.factors.size() != 1 || graph_.use_count(product.factors[0]) != 1) return std::nullopt;
    const Node* matmul = from(product.factors[0], "matmul");
    return matmul == nullptr ? std::nullopt : std::optional(ScaledScores{matmul, product.scale});
  }
  // A constant factor of q or k belongs to the scale; anything more complicated is the value itself.
  Product product_of_input(ValueId id) const {
    Product product = product_of(id);
    return product.factors.size() == 1 ? product : Product{1, {id}};
  }

  Graph& graph_;
  const Node& node_;
};

}  // namespace

bool recover_patterns(Graph& graph) {
  bool changed = in_subgraphs(graph, recover_patterns);
  Inserter inserter(graph);
  const std::vector<NodeId> order = graph.nodes();
  for (const NodeId id : order) {
    const Node& node = graph.node(id);
    if (node.outputs.size() != 1 || graph.use_count(node.outputs[0]) == 0) continue;
    inserter.before(id);
    const MaybeValue value = Patterns(graph, id).recover();
    if (!value.has_value()) continue;
    if (!(graph.type(*value) == graph.type(node.outputs[0]))) graph.refine_type(*value, graph.type(node.outputs[0]));
    graph.replace_uses(node.outputs[0], *value);
    changed = true;
  }
  return changed;
}

}  // namespace fuseloom::graph
