#include "front/onnx/size_contents.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace fuseloom::front::onnx {
namespace {

using graph::Graph;
using graph::Node;
using graph::ValueId;
using sym::Expr;
using Contents = std::optional<std::vector<Expr>>;

constexpr int64_t kMaxElements = 256;

class Reader {
 public:
  explicit Reader(const Graph& graph) : graph_(graph) {}

  Contents read(ValueId value) {
    const auto known = seen_.find(value);
    if (known != seen_.end()) return known->second;
    Contents contents = compute(value);
    if (contents.has_value())
      for (Expr& e : *contents) e = sym::simplify(e, graph_.facts());
    return seen_[value] = std::move(contents);
  }

 private:
  static bool is_integral(DType dtype) { return is_int(dtype) || dtype == DType::Bool; }

  std::optional<Dims> static_dims(ValueId value) const {
    Dims dims;
    for (const Expr& size : graph_.type(value).shape) {
      const std::optional<int64_t> dim = size.as_const();
      if (!dim.has_value()) return std::nullopt;
      dims.push_back(*dim);
    }
    if (element_count(dims) > kMaxElements) return std::nullopt;
    return dims;
  }

  Contents compute(ValueId value) {
    const Node* const node = graph_.producer(value);
    if (node == nullptr || !is_integral(graph_.type(value).dtype) || !static_dims(value).has_value()) return std::nullopt;
    const std::string& op = node->op->name;
    if (op == "constant") return of_constant(node->attrs.tensor("value"));
    if (op == "sym_value") return node->attrs.shape("values");
    if (op == "bind_symbols") {
      const Contents known = read(node->inputs[0]);
      return known.has_value() ? known : Contents(node->attrs.shape("defines"));
    }
    if (op == "cast") return of_cast(*node);
    switch (node->op->family) {
      case op::Family::Elementwise: return of_elementwise(*node, value);
      case op::Family::View:
      case op::Family::Gather:
      case op::Family::Scatter: return of_movement(*node, value);
      case op::Family::Reduction: return of_reduction(*node);
      case op::Family::Source:
      case op::Family::Scan:
      case op::Family::Contraction:
      case op::Family::Window:
      case op::Family::Composite:
      case op::Family::Extern:
      case op::Family::Control: return std::nullopt;
    }
    return std::nullopt;
  }

  static Contents of_constant(const Tensor& tensor) {
    std::vector<Expr> contents;
    for (int64_t i = 0; i < tensor.count(); ++i) contents.emplace_back(tensor.int_at(i));
    return contents;
  }

  // Sizes fit every integer type that exporters use for them; an 8-bit or 16-bit type could wrap.
  Contents of_cast(const Node& node) {
    const DType from = graph_.type(node.inputs[0]).dtype, to = node.attrs.dtype("to");
    Contents contents = is_integral(from) ? read(node.inputs[0]) : std::nullopt;
    if (!contents.has_value()) return std::nullopt;
    if (to == DType::Bool) {
      for (Expr& e : *contents) e = sym::ne(e, 0);
      return contents;
    }
    const bool narrow = dtype_bits(to) < 32;
    if (narrow && !std::all_of(contents->begin(), contents->end(), [](const Expr& e) {
          return e.is_const() && *e.as_const() >= 0 && *e.as_const() < 128;
        }))
      return std::nullopt;
    return contents;
  }

  // Where each element of the result comes from, found by running the op on tensors of running numbers.
  Contents of_movement(const Node& node, ValueId value) {
    std::vector<Expr> pool;
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid()) {
        inputs.emplace_back();
        continue;
      }
      const Contents contents = read(node.inputs[i]);
      const std::optional<Dims> dims = static_dims(node.inputs[i]);
      if (!contents.has_value() || !dims.has_value()) return std::nullopt;
      const bool is_index = i == 1 && (node.op->family == op::Family::Gather || node.op->family == op::Family::Scatter);
      std::vector<int64_t> numbers;
      for (const Expr& e : *contents) {
        if (is_index) {
          if (!e.is_const()) return std::nullopt;
          numbers.push_back(*e.as_const());
        } else {
          numbers.push_back(static_cast<int64_t>(pool.size()));
          pool.push_back(e);
        }
      }
      inputs.push_back(Tensor::of_ints(DType::I64, *dims, numbers));
    }
    if (node.attrs.has("reduction") && node.attrs.text("reduction") != "none") return std::nullopt;
    // pad without a fill brings zeros, which are no running number.
    if (node.op->name == "pad" && inputs.size() < 2) {
      inputs.push_back(Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{static_cast<int64_t>(pool.size())}));
      pool.emplace_back(0);
    }
    op::Attrs attrs;
    for (const auto& [name, attr] : node.attrs.all()) {
      const auto* shape = std::get_if<op::Shape>(&attr);
      if (shape == nullptr) {
        attrs.set(name, attr);
        continue;
      }
      std::vector<int64_t> sizes;
      for (const Expr& e : *shape) {
        const std::optional<int64_t> size = sym::simplify(e, graph_.facts()).as_const();
        if (!size.has_value()) return std::nullopt;
        sizes.push_back(*size);
      }
      attrs.set(name, std::move(sizes));
    }
    std::vector<Tensor> results;
    try {
      results = op::run_reference(*node.op, inputs, attrs, static_cast<int64_t>(node.outputs.size()));
    } catch (const UserError&) {   // an index out of range: an error of the run, not of this analysis
      return std::nullopt;
    }
    const Tensor& result = results[static_cast<size_t>(graph_.value(value).output_index)];
    std::vector<Expr> contents;
    for (int64_t i = 0; i < result.count(); ++i) contents.push_back(pool[static_cast<size_t>(result.int_at(i))]);
    return contents;
  }

  std::optional<Expr> scalar(const std::string& op, const std::vector<Expr>& x) const {
    const auto is_size = [&](const Expr& e) { return sym::bounds(e, graph_.facts()).low >= 0; };
    if (op == "add") return x[0] + x[1];
    if (op == "sub") return x[0] - x[1];
    if (op == "mul") return x[0] * x[1];
    if (op == "neg") return -x[0];
    if (op == "abs") return sym::max(x[0], -x[0]);
    if (op == "floor_div" || (op == "div" && is_size(x[0]) && is_size(x[1]))) return sym::floor_div(x[0], x[1]);
    if (op == "div" && x[0].is_const() && x[1].is_const() && !x[1].is_const(0)) return Expr(*x[0].as_const() / *x[1].as_const());
    if (op == "floor_mod" || (op == "fmod" && is_size(x[0]) && is_size(x[1]))) return sym::mod(x[0], x[1]);
    if (op == "max") return sym::max(x[0], x[1]);
    if (op == "min") return sym::min(x[0], x[1]);
    if (op == "eq") return sym::eq(x[0], x[1]);
    if (op == "ne") return sym::ne(x[0], x[1]);
    if (op == "lt") return sym::lt(x[0], x[1]);
    if (op == "le") return sym::le(x[0], x[1]);
    if (op == "gt") return sym::lt(x[1], x[0]);
    if (op == "ge") return sym::le(x[1], x[0]);
    if (op == "not") return sym::eq(x[0], 0);
    if (op == "and") return x[0] * x[1];
    if (op == "or") return sym::max(x[0], x[1]);
    if (op == "xor") return sym::ne(x[0], x[1]);
    if (op == "select") return sym::select(x[0], x[1], x[2]);
    if (op == "floor" || op == "ceil" || op == "round" || op == "trunc") return x[0];
    return std::nullopt;
  }

  Contents of_elementwise(const Node& node, ValueId value) {
    const Dims result = *static_dims(value);
    std::vector<std::vector<Expr>> inputs;
    std::vector<Dims> dims;
    for (const ValueId input : node.inputs) {
      const std::optional<Dims> in_dims = static_dims(input);
      const Contents contents = in_dims.has_value() ? read(input) : std::nullopt;
      if (!contents.has_value()) return std::nullopt;
      inputs.push_back(*contents);
      dims.push_back(*in_dims);
    }
    std::vector<Expr> contents;
    for (int64_t i = 0; i < element_count(result); ++i) {
      std::vector<Expr> operands;
      for (size_t k = 0; k < inputs.size(); ++k) operands.push_back(inputs[k][static_cast<size_t>(broadcast_index(i, result, dims[k]))]);
      const std::optional<Expr> e = scalar(node.op->name, operands);
      if (!e.has_value()) return std::nullopt;
      contents.push_back(*e);
    }
    return contents;
  }

  // The linear index in a tensor of dims `from` that the linear index of `to` reads.
  static int64_t broadcast_index(int64_t linear, const Dims& to, const Dims& from) {
    int64_t index = 0, stride = 1;
    for (size_t d = to.size(); d-- > 0;) {
      const int64_t coordinate = linear % to[d];
      linear /= to[d];
      const size_t missing = to.size() - from.size();
      if (d < missing) continue;
      const int64_t size = from[d - missing];
      index += (size == 1 ? 0 : coordinate) * stride;
      stride *= size;
    }
    return index;
  }

  // Of a whole tensor.
  Contents of_reduction(const Node& node) {
    const std::string& op = node.op->name;
    const std::optional<Dims> dims = static_dims(node.inputs[0]);
    if (!dims.has_value() || !node.attrs.has("axes") || node.attrs.integers("axes").size() != dims->size()) return std::nullopt;
    const Contents contents = read(node.inputs[0]);
    if (!contents.has_value() || contents->empty()) return std::nullopt;
    Expr result = (*contents)[0];
    for (size_t i = 1; i < contents->size(); ++i) {
      const Expr& e = (*contents)[i];
      if (op == "reduce_sum") {
        result = result + e;
      } else if (op == "reduce_prod") {
        result = result * e;
      } else if (op == "reduce_max" || op == "reduce_any") {
        result = sym::max(result, e);
      } else if (op == "reduce_min" || op == "reduce_all") {
        result = sym::min(result, e);
      } else {
        return std::nullopt;
      }
    }
    return std::vector<Expr>{result};
  }

  const Graph& graph_;
  std::map<ValueId, Contents> seen_;
};

}  // namespace

std::optional<std::vector<sym::Expr>> known_contents(const graph::Graph& graph, graph::ValueId value) { return Reader(graph).read(value); }

}  // namespace fuseloom::front::onnx
