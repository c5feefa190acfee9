#include "fuseloom/error.h"
#include "graph/pass/pass.h"
#include "graph/pass/rewrite.h"

namespace fuseloom::graph {
namespace {

// A fold must not blow up the program: a broadcast or a tile of a constant stays an instruction.
constexpr int64_t kMayGrowTo = 4096;                    // bytes
constexpr int64_t kMaxFlops = int64_t{1} << 30;         // the reference runs about that many a second
constexpr int64_t kMaxIota = 64;                        // elements of an index ramp that counts as a constant operand

bool has_symbols(const op::Attrs& attrs) {
  for (const auto& [name, attr] : attrs.all()) {
    const op::Shape* shape = std::get_if<op::Shape>(&attr);
    if (shape == nullptr || name == "defines") continue;
    if (std::any_of(shape->begin(), shape->end(), [](const sym::Expr& size) { return !size.is_const(); })) return true;
  }
  return false;
}

// The bytes of all outputs whose size does not depend on data, or nothing when a size is symbolic.
std::optional<int64_t> output_bytes(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  for (const ValueId output : node.outputs) {
    const op::TensorType& type = graph.type(output);
    const sym::Expr count = op::count_of(type.shape);
    if (!count.is_const()) {
      if (has_defines(node)) continue;
      return std::nullopt;
    }
    bytes += dtype_bytes(type.dtype, *count.as_const());
  }
  return bytes;
}

bool too_much_work(const Graph& graph, const Node& node) {
  if (!node.op->flops) return false;
  std::vector<op::TensorType> inputs, outputs;
  std::vector<char> present;
  for (const ValueId input : node.inputs) {
    inputs.push_back(input.valid() ? graph.type(input) : op::TensorType{});
    present.push_back(input.valid() ? 1 : 0);
  }
  for (const ValueId output : node.outputs) outputs.push_back(graph.type(output));
  const op::InferContext context{.record = node.op,
                                 .inputs = inputs,
                                 .present = present,
                                 .attrs = node.attrs,
                                 .output_count = static_cast<int64_t>(outputs.size())};
  const std::optional<int64_t> flops = node.op->flops(context, outputs).as_const();
  return !flops.has_value() || *flops > kMaxFlops;
}

// The operands as tensors, or nothing when one is not known now.
std::optional<std::vector<Tensor>> constant_operands(const Graph& graph, const Node& node) {
  std::vector<Tensor> operands;
  for (const ValueId input : node.inputs) {
    if (!input.valid()) {
      operands.emplace_back();
    } else if (const Tensor* tensor = graph.constant(input); tensor != nullptr) {
      operands.push_back(*tensor);
    } else if (graph.is_op(input, "iota")) {
      const std::optional<int64_t> count = op::count_of(graph.type(input).shape).as_const();
      if (!count.has_value() || *count > kMaxIota) return std::nullopt;
      const Node& iota = *graph.producer(input);
      operands.push_back(op::run_reference(*iota.op, {}, op::concrete(iota.attrs, {}))[0]);
    } else {
      return std::nullopt;
    }
  }
  return operands;
}

bool can_fold(const Graph& graph, const Node& node, const op::Attrs& attrs, int64_t max_bytes) {
  if (node.op->reference == nullptr || node.outputs.empty() || has_symbols(attrs)) return false;
  if (node.op->name == "sym_value") return true;
  if (node.op->family == op::Family::Source && node.op->name != "bind_symbols") return false;
  int64_t input_bytes = 0;
  for (const ValueId input : node.inputs) {
    if (!input.valid()) continue;
    const Tensor* tensor = graph.constant(input);
    if (tensor == nullptr && !graph.is_op(input, "iota")) return false;
    input_bytes += tensor == nullptr ? 0 : tensor->bytes();
  }
  const std::optional<int64_t> bytes = output_bytes(graph, node);
  return bytes.has_value() && *bytes <= max_bytes && *bytes <= std::max(kMayGrowTo, 2 * input_bytes) && !too_much_work(graph, node);
}

}  // namespace

bool fold_constants(Graph& graph, int64_t max_bytes) {
  bool changed = in_subgraphs(graph, [&](Graph& subgraph) { return fold_constants(subgraph, max_bytes); });
  sym::Substitution by;   // symbols whose values have become known
  std::vector<NodeId> folded;
  Inserter inserter(graph);
  const std::vector<NodeId> order = graph.nodes();
  for (const NodeId id : order) {
    const Node& node = graph.node(id);
    const op::Attrs attrs = by.empty() ? node.attrs : op::substitute(node.attrs, by);
    if (!can_fold(graph, node, attrs, max_bytes)) continue;
    const std::optional<std::vector<Tensor>> operands = constant_operands(graph, node);
    if (!operands.has_value()) continue;
    std::vector<Tensor> results;
    try {
      results = op::run_reference(*node.op, *operands, op::concrete(attrs, {}), static_cast<int64_t>(node.outputs.size()));
    } catch (const UserError&) {
      continue;   // an index out of range: an error of the run, and only if the node runs
    }
    if (has_defines(node)) {
      const op::Shape defines = node.attrs.shape("defines");
      for (size_t i = 0; i < defines.size() && node.op->name == "bind_symbols"; ++i)
        by.emplace(defines[i].name(), sym::Expr((*operands)[0].int_at(static_cast<int64_t>(i))));
      for (size_t i = 0; i < results.size(); ++i) {
        const op::Shape& shape = graph.type(node.outputs[i]).shape;
        for (size_t d = 0; d < shape.size(); ++d)
          if (std::find(defines.begin(), defines.end(), shape[d]) != defines.end())
            by.emplace(shape[d].name(), sym::Expr(results[i].dim(static_cast<int64_t>(d))));
      }
    }
    inserter.before(id);
    const std::string origin = node.origin;
    const std::vector<ValueId> outputs = node.outputs;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (graph.use_count(outputs[i]) == 0) continue;
      graph.replace_uses(outputs[i], graph.add("constant", {}, {{"value", std::move(results[i])}}, origin));
    }
    folded.push_back(id);
  }
  graph.remove_nodes(folded);
  graph.substitute_symbols(by);
  return changed || !folded.empty();
}

}  // namespace fuseloom::graph
