#include "graph/evaluate.h"

#include <cstring>
#include <limits>
#include <optional>

#include "base/check.h"
#include "sym/evaluator.h"

namespace fuseloom::graph {
namespace {

std::string dims_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

class Interpreter {
 public:
  Interpreter(const Graph& graph, SymbolValues symbols, const EvaluateOptions* options)
      : graph_(graph), symbols_(std::move(symbols)), options_(options), values_(static_cast<size_t>(graph.value_count())) {}

  std::vector<Tensor> run(std::span<const Tensor> inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) slot(graph_.inputs()[i]) = inputs[i].to_contiguous();
    const std::vector<std::vector<ValueId>> dying = last_uses();
    for (size_t position = 0; position < graph_.nodes().size(); ++position) {
      run_node(graph_.nodes()[position]);
      for (const ValueId id : dying[position]) slot(id) = Tensor();
    }
    std::vector<Tensor> outputs;
    for (const ValueId id : graph_.outputs()) outputs.push_back(slot(id));
    return outputs;
  }

 private:
  Tensor& slot(ValueId id) { return values_[static_cast<size_t>(id.index)]; }

  // For each position in the order: the values that nobody reads afterwards.
  std::vector<std::vector<ValueId>> last_uses() const {
    const std::vector<NodeId>& order = graph_.nodes();
    std::vector<std::vector<ValueId>> dying(order.size());
    std::vector<char> seen(values_.size(), 0);
    for (const ValueId id : graph_.outputs()) seen[static_cast<size_t>(id.index)] = 1;
    for (size_t position = order.size(); position-- > 0;) {
      const Node& node = graph_.node(order[position]);
      const auto last = [&](ValueId id) {
        if (!id.valid() || seen[static_cast<size_t>(id.index)] != 0) return;
        seen[static_cast<size_t>(id.index)] = 1;
        dying[position].push_back(id);
      };
      for (const ValueId id : node.outputs) last(id);
      for (const ValueId id : node.inputs) last(id);
    }
    return dying;
  }

  void run_node(NodeId id) {
    const Node& node = graph_.node(id);
    std::vector<Tensor> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(input.valid() ? slot(input) : Tensor());
    std::vector<Tensor> outputs;
    try {
      if (node.op->name == "if") {
        outputs = run_if(node, inputs);
      } else if (node.op->name == "while") {
        outputs = run_while(node, inputs);
      } else if (node.op->name == "constant") {
        outputs.push_back(node.attrs.tensor("value").to_contiguous());
      } else {
        outputs = op::run_reference(*node.op, inputs, op::concrete(node.attrs, symbols_), static_cast<int64_t>(node.outputs.size()));
      }
    } catch (const UserError& error) {
      // An inner node has named itself already.
      const std::string words = error.what();
      throw UserError(words.find(" [in ") == std::string::npos ? fmt::format("{} [in {}]", words, graph_.describe(id)) : words);
    }
    define_symbols(id, node, inputs, outputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      check_output(id, node, i, outputs[i]);
      slot(node.outputs[i]) = outputs[i];
    }
    if (options_ != nullptr && options_->after_node) options_->after_node(graph_, id, outputs);
  }

  void define_symbols(NodeId id, const Node& node, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
    if (!node.attrs.has("defines")) return;
    const op::Shape defines = node.attrs.shape("defines");
    if (node.op->name == "bind_symbols") {
      FL_CHECK(inputs[0].count() == static_cast<int64_t>(defines.size()), "{} defines {} symbols from {} elements", graph_.describe(id),
               defines.size(), inputs[0].count());
      for (size_t i = 0; i < defines.size(); ++i) {
        const int64_t value = inputs[0].int_at(static_cast<int64_t>(i));
        check_range(graph_, defines[i].name(), value, graph_.describe(id));
        symbols_[defines[i].name()] = value;
      }
      return;
    }
    for (const sym::Expr& defined : defines) {
      for (size_t i = 0; i < outputs.size() && !symbols_.contains(defined.name()); ++i) {
        const op::Shape& shape = graph_.type(node.outputs[i]).shape;
        for (size_t d = 0; d < shape.size(); ++d)
          if (shape[d] == defined) symbols_.emplace(defined.name(), outputs[i].dim(static_cast<int64_t>(d)));
      }
    }
  }

  void check_output(NodeId id, const Node& node, size_t index, const Tensor& output) const {
    const op::TensorType& type = graph_.type(node.outputs[index]);
    FL_CHECK(output.valid() && output.dtype() == type.dtype && output.rank() == type.rank(), "{}: output {} should be {}, is {}",
             graph_.describe(id), index, op::to_string(type), output.valid() ? output.type_string() : "missing");
    for (size_t d = 0; d < type.shape.size(); ++d) {
      const int64_t actual = output.dim(static_cast<int64_t>(d));
      if (type.shape[d].is_const(actual)) continue;
      const int64_t expected = sym::evaluate(type.shape[d], symbols_);
      if (expected == actual) continue;
      const std::string words = fmt::format("{}: output {} should be {}, is {}: {} = {}, not {}", graph_.describe(id), index,
                                            op::to_string(type), output.type_string(), sym::to_string(type.shape[d]), expected, actual);
      // Branches and bodies get their sizes from the model; everything else from our own inference.
      if (node.op->family == op::Family::Control) throw UserError(words);
      throw InternalError(words);
    }
  }

  std::vector<Tensor> run_subgraph(const Graph& subgraph, std::span<const Tensor> inputs) const {
    SymbolValues outer;
    for (const std::string& symbol : subgraph.outer_symbols()) outer.emplace(symbol, symbols_.at(symbol));
    SymbolValues symbols = bind_symbols(subgraph, inputs, outer);
    return Interpreter(subgraph, std::move(symbols), options_).run(inputs);
  }

  std::vector<Tensor> run_if(const Node& node, std::span<const Tensor> inputs) const {
    const bool condition = inputs[0].int_at(0) != 0;
    return run_subgraph(*node.subgraphs[condition ? 0 : 1], inputs.subspan(1));
  }

  std::vector<Tensor> run_while(const Node& node, std::span<const Tensor> inputs) const {
    const Graph& body = *node.subgraphs[0];
    const auto carried = static_cast<size_t>(node.attrs.integer("carried")), scans = static_cast<size_t>(node.attrs.integer("scans"));
    const int64_t trips = inputs[0].valid() ? inputs[0].int_at(0) : std::numeric_limits<int64_t>::max();
    std::vector<Tensor> state(inputs.begin(), inputs.end());
    bool condition = !inputs[1].valid() || inputs[1].int_at(0) != 0;
    std::vector<std::vector<Tensor>> elements(scans);
    for (int64_t iteration = 0; condition && iteration < trips; ++iteration) {
      state[0] = Tensor::of_ints(DType::I64, {}, std::span(&iteration, 1));
      state[1] = Tensor::scalar(DType::Bool, 1);
      std::vector<Tensor> results = run_subgraph(body, state);
      condition = results[0].int_at(0) != 0;
      for (size_t i = 0; i < carried; ++i) state[2 + i] = results[1 + i];
      for (size_t i = 0; i < scans; ++i) {
        Tensor& element = results[1 + carried + i];
        FL_REQUIRE(elements[i].empty() || elements[i][0].dims() == element.dims(),
                   "while: scan {} has elements of sizes {} and, in iteration {}, {}", i, dims_string(elements[i][0].dims()), iteration,
                   dims_string(element.dims()));
        elements[i].push_back(std::move(element));
      }
    }
    std::vector<Tensor> outputs(state.begin() + 2, state.begin() + 2 + static_cast<std::ptrdiff_t>(carried));
    for (size_t i = 0; i < scans; ++i) outputs.push_back(stack(elements[i], graph_.type(node.outputs[carried + i]), node));
    return outputs;
  }

  // The elements on a new first dimension. Without elements the other sizes are those of the type, or 0 where the node
  // itself would define them.
  Tensor stack(std::span<const Tensor> elements, const op::TensorType& type, const Node& node) const {
    Dims dims{static_cast<int64_t>(elements.size())};
    if (!elements.empty()) {
      dims.insert(dims.end(), elements[0].dims().begin(), elements[0].dims().end());
    } else {
      const op::Shape defines = node.attrs.has("defines") ? node.attrs.shape("defines") : op::Shape{};
      for (size_t d = 1; d < type.shape.size(); ++d) {
        bool known = true;
        for (const sym::Expr& defined : defines) known = known && !(type.shape[d] == defined);
        dims.push_back(known ? sym::evaluate(type.shape[d], symbols_) : 0);
      }
    }
    Tensor result(type.dtype, dims);
    std::byte* target = static_cast<std::byte*>(result.data());
    for (const Tensor& element : elements) {
      const Tensor source = element.to_contiguous();
      if (source.bytes() > 0) std::memcpy(target, source.data(), static_cast<size_t>(source.bytes()));
      target += source.bytes();
    }
    return result;
  }

  static void check_range(const Graph& graph, const std::string& symbol, int64_t value, const std::string& where);
  friend SymbolValues fuseloom::graph::bind_symbols(const Graph&, std::span<const Tensor>, const SymbolValues&);

  const Graph& graph_;
  SymbolValues symbols_;
  const EvaluateOptions* options_;
  std::vector<Tensor> values_;
};

void Interpreter::check_range(const Graph& graph, const std::string& symbol, int64_t value, const std::string& where) {
  const auto fact = graph.facts().symbols.find(symbol);
  if (fact == graph.facts().symbols.end()) return;
  const sym::Range& range = fact->second;
  FL_REQUIRE(value >= range.low && value <= range.high, "{}: {} = {}, but it must be in {} .. {}", where, symbol, value, range.low,
             range.high == sym::Range::kMax ? std::string("inf") : fmt::format("{}", range.high));
  FL_REQUIRE(range.divisor == 0 ? value == 0 : value % range.divisor == 0, "{}: {} = {}, but it must be a multiple of {}", where, symbol,
             value, range.divisor);
}

std::string input_name(const Graph& graph, size_t index) {
  const std::string& name = graph.value(graph.inputs()[index]).name;
  return name.empty() ? fmt::format("input {}", index) : fmt::format("input '{}'", name);
}

}  // namespace

SymbolValues bind_symbols(const Graph& graph, std::span<const Tensor> inputs, const SymbolValues& outer) {
  FL_REQUIRE(inputs.size() == graph.inputs().size(), "graph {} takes {} inputs, {} are given", graph.name(), graph.inputs().size(),
             inputs.size());
  SymbolValues symbols = outer;
  struct Size {
    size_t input;
    int64_t axis, actual;
    sym::Expr expr;
  };
  std::vector<Size> sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const op::TensorType& type = graph.type(graph.inputs()[i]);
    FL_REQUIRE(inputs[i].valid(), "{}: expected {}, no tensor is given", input_name(graph, i), op::to_string(type));
    FL_REQUIRE(inputs[i].dtype() == type.dtype, "{}: expected {}, got {}", input_name(graph, i), op::to_string(type), inputs[i].type_string());
    FL_REQUIRE(inputs[i].rank() == type.rank(), "{}: expected rank {} ({}), got rank {} ({})", input_name(graph, i), type.rank(),
               op::to_string(type), inputs[i].rank(), inputs[i].type_string());
    for (int64_t axis = 0; axis < type.rank(); ++axis)
      sizes.push_back({i, axis, inputs[i].dim(axis), type.shape[static_cast<size_t>(axis)]});
  }
  for (const Size& size : sizes)
    if (size.expr.is_symbol()) symbols.emplace(size.expr.name(), size.actual);
  std::vector<const Size*> compound;
  for (const Size& size : sizes)
    if (!size.expr.is_symbol() && !size.expr.is_const()) compound.push_back(&size);
  for (bool moved = true; moved;) {
    moved = false;
    std::erase_if(compound, [&](const Size* size) {
      std::vector<std::string> missing;
      for (const std::string& symbol : sym::symbols_of(size->expr))
        if (!symbols.contains(symbol)) missing.push_back(symbol);
      if (missing.size() != 1) return missing.empty();
      const std::optional<sym::Expr> solution = sym::solve_for(size->expr, missing[0], sym::Expr(size->actual), graph.facts());
      if (!solution.has_value()) return false;
      symbols[missing[0]] = sym::evaluate(*solution, symbols);
      moved = true;
      return true;
    });
  }
  FL_REQUIRE(compound.empty(), "{}, dimension {}: nothing determines the symbols of its size {}", input_name(graph, compound[0]->input),
             compound[0]->axis, sym::to_string(compound[0]->expr));
  for (const Size& size : sizes) {
    const int64_t expected = sym::evaluate(size.expr, symbols);
    FL_REQUIRE(expected == size.actual, "{}, dimension {}{}: expected {}, got {}", input_name(graph, size.input), size.axis,
               size.expr.is_const() ? std::string() : fmt::format(" ({})", sym::to_string(size.expr)), expected, size.actual);
    for (const std::string& symbol : sym::symbols_of(size.expr))
      Interpreter::check_range(graph, symbol, symbols.at(symbol), fmt::format("{}, dimension {}", input_name(graph, size.input), size.axis));
  }
  return symbols;
}

std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs, const EvaluateOptions& options) {
  std::vector<Tensor> outputs = Interpreter(graph, bind_symbols(graph, inputs, options.outer), &options).run(inputs);
  // Whoever else holds the memory (the caller's input, the graph's constant, another result) keeps it.
  for (Tensor& output : outputs)
    if (output.owner() == nullptr || output.owner().use_count() > 1) output = output.contiguous_copy();
  return outputs;
}

}  // namespace fuseloom::graph
