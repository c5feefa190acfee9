#include "schedule/source_kernel.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "sym/evaluator.h"

namespace fuseloom::schedule {

namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using op::KernelConfiguration;
using op::SourceKernel;
using op::SourceKernelInstance;
using sym::Expr;

// The node with the words of its kernel's expressions.
class SourceNode {
 public:
  SourceNode(const Graph& graph, NodeId id) : graph_(graph), node_(graph.node(id)), kernel_(*node_.op->kernel) {
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      FL_SUPPORTED(node_.inputs[i].valid(), "{}: input {} is absent; an op with a kernel of its own needs all of them", graph.describe(id), i);
      inputs_.push_back(graph.type(node_.inputs[i]));
      add_sizes('x', i, inputs_.back());
    }
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      outputs_.push_back(graph.type(node_.outputs[i]));
      add_sizes('y', i, outputs_.back());
    }
    for (const auto& [name, value] : node_.attrs.all()) {
      if (const int64_t* integer = std::get_if<int64_t>(&value)) words_[name] = *integer;
    }
  }

  const SourceKernel& kernel() const { return kernel_; }
  const std::vector<op::TensorType>& inputs() const { return inputs_; }
  const std::vector<op::TensorType>& outputs() const { return outputs_; }
  const op::Shape& sizes() const { return sizes_; }

  Expr expr(const std::string& text, const KernelConfiguration& configuration) const {
    sym::Substitution words = words_;
    for (const auto& [name, value] : configuration.constants) words[name] = value;
    const Expr written = sym::parse_expr(text);
    for (const std::string& symbol : sym::symbols_of(written))
      FL_REQUIRE(words.count(symbol) != 0, "op '{}': '{}' names {}, which this node does not have", node_.op->name, text, symbol);
    return sym::substitute(written, words);
  }

  SourceKernelInstance instance(size_t configuration) const {
    SourceKernelInstance made{.record = node_.op, .configuration = configuration};
    for (const op::TensorType& type : inputs_) made.inputs.push_back(type.dtype);
    for (const op::TensorType& type : outputs_) made.outputs.push_back(type.dtype);
    for (const auto& [name, value] : node_.attrs.all()) {
      if (std::holds_alternative<int64_t>(value) || std::holds_alternative<double>(value)) made.attrs.set(name, value);
    }
    const KernelConfiguration& chosen = kernel_.configurations[configuration];
    std::string content = fmt::format("{}\0{}\0{}", kernel_.helpers, kernel_.source, op::to_string(made.attrs));
    for (const DType dtype : made.inputs) content += fmt::format(" {}", dtype_name(dtype));
    for (const DType dtype : made.outputs) content += fmt::format(" {}", dtype_name(dtype));
    for (const auto& [name, value] : chosen.constants) content += fmt::format(" {}={}", name, value);
    made.name = fmt::format("k_user_{}_{}", node_.op->name, base::hash_text(content).hex().substr(0, 12));
    return made;
  }

  // The end of the neighbours that have the condition of configuration `first`.
  size_t group_end(size_t first) const {
    size_t end = first + 1;
    while (end < kernel_.configurations.size() && kernel_.configurations[end].condition == kernel_.configurations[first].condition) ++end;
    return end;
  }

  // What the best of a group of configurations is looked up by; nothing when a size is not known.
  std::optional<std::string> tuning_key(size_t first, const SizeHint& hint) const {
    std::string key = "tuned";
    for (size_t c = first; c < group_end(first); ++c) key += " " + instance(c).name;
    std::vector<Expr> exprs;
    for (const std::string& text : kernel_.key) exprs.push_back(expr(text, kernel_.configurations[first]));
    if (exprs.empty()) {
      for (const op::TensorType& type : inputs_) exprs.insert(exprs.end(), type.shape.begin(), type.shape.end());
    }
    for (const Expr& each : exprs) {
      const std::optional<int64_t> value = at(each, hint);
      if (!value) return std::nullopt;
      key += fmt::format(" {}", *value);
    }
    return key;
  }

  static std::optional<int64_t> at(const Expr& expr, const SizeHint& hint) {
    for (const std::string& symbol : sym::symbols_of(expr)) {
      if (hint.count(symbol) == 0) return std::nullopt;
    }
    return sym::evaluate(expr, hint);
  }

 private:
  void add_sizes(char side, size_t number, const op::TensorType& type) {
    for (size_t d = 0; d < type.shape.size(); ++d) words_[fmt::format("{}{}_d{}", side, number, d)] = type.shape[d];
    sizes_.insert(sizes_.end(), type.shape.begin(), type.shape.end());
  }

  const Graph& graph_;
  const Node& node_;
  const SourceKernel& kernel_;
  std::vector<op::TensorType> inputs_, outputs_;
  op::Shape sizes_;
  sym::Substitution words_;
};

}  // namespace

SourceLaunch lower_source_kernel(const Graph& graph, NodeId id, const SizeHint& hint, const TunedConfigurations& tuned) {
  const SourceNode node(graph, id);
  const SourceKernel& kernel = node.kernel();
  SourceLaunch launch{.sizes = node.sizes()};
  for (size_t first = 0; first < kernel.configurations.size(); first = node.group_end(first)) {
    size_t chosen = first;
    if (const std::optional<std::string> key = node.tuning_key(first, hint)) {
      if (const auto known = tuned.find(*key); known != tuned.end()) chosen = known->second;
    }
    const KernelConfiguration& configuration = kernel.configurations[chosen];
    program::Variant variant{.condition = sym::simplify(node.expr(configuration.condition, configuration), graph.facts()),
                             .extent = node.expr(kernel.extent, configuration),
                             .scratch_bytes = node.expr(kernel.scratch_bytes, configuration)};
    if (variant.condition.is_const(0)) continue;
    const bool always = variant.condition.is_const();
    if (always) variant.condition = 1;
    launch.kernels.push_back(node.instance(chosen));
    launch.variants.push_back(std::move(variant));
    if (always) break;
  }
  Expr elements = 0;
  for (const op::TensorType& type : node.outputs()) elements = elements + op::count_of(type.shape);
  launch.work = kernel.work.empty() ? elements : node.expr(kernel.work, kernel.configurations.back());
  for (const std::vector<op::TensorType>* types : {&node.inputs(), &node.outputs()}) {
    for (const op::TensorType& type : *types) launch.bytes = launch.bytes + op::count_of(type.shape) * dtype_bytes(type.dtype);
  }
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    if (!kernel.mutates || std::find(kernel.mutates->begin(), kernel.mutates->end(), i) != kernel.mutates->end()) launch.mutated.push_back(i);
  }
  return launch;
}

std::optional<TuningRequest> tuning_request(const Graph& graph, NodeId id, const SizeHint& hint) {
  const SourceNode node(graph, id);
  const SourceKernel& kernel = node.kernel();
  for (size_t first = 0; first < kernel.configurations.size(); first = node.group_end(first)) {
    const std::optional<int64_t> fits = SourceNode::at(node.expr(kernel.configurations[first].condition, kernel.configurations[first]), hint);
    if (!fits) return std::nullopt;
    if (*fits == 0) continue;
    const std::optional<std::string> key = node.tuning_key(first, hint);
    if (!key || node.group_end(first) == first + 1) return std::nullopt;
    TuningRequest request{.key = *key};
    for (const Expr& size : node.sizes()) {
      const std::optional<int64_t> value = SourceNode::at(size, hint);
      if (!value) return std::nullopt;
      request.sizes.push_back(*value);
    }
    size_t next = 0;
    const auto dims_of = [&](const op::TensorType& type) {
      const auto begin = request.sizes.begin() + static_cast<std::ptrdiff_t>(next);
      next += type.shape.size();
      return std::pair(type.dtype, Dims(begin, begin + static_cast<std::ptrdiff_t>(type.shape.size())));
    };
    for (const op::TensorType& type : node.inputs()) request.inputs.push_back(dims_of(type));
    for (const op::TensorType& type : node.outputs()) request.outputs.push_back(dims_of(type));
    for (size_t c = first; c < node.group_end(first); ++c) {
      const KernelConfiguration& configuration = kernel.configurations[c];
      request.candidates.push_back(node.instance(c));
      request.configurations.push_back(c);
      request.extents.push_back(sym::evaluate(node.expr(kernel.extent, configuration), hint));
      request.scratch_bytes.push_back(sym::evaluate(node.expr(kernel.scratch_bytes, configuration), hint));
    }
    return request;
  }
  return std::nullopt;
}

}  // namespace fuseloom::schedule
