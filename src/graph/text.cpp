#include "graph/text.h"

#include <map>
#include <unordered_map>

#include "base/check.h"
#include "base/lexer.h"

namespace fuseloom::graph {
namespace {

// ---- printing --------------------------------------------------------------------------------------------------------

bool same_range(const sym::Range& a, const sym::Range& b) {
  return a.low == b.low && a.high == b.high && a.divisor == b.divisor;
}

// The facts that building the graph gives by itself; only others are printed.
std::map<std::string, sym::Range> implied_facts(const Graph& graph, const Graph* parent) {
  std::map<std::string, sym::Range> facts;
  for (const std::string& symbol : graph.outer_symbols()) {
    if (parent == nullptr) {
      facts[symbol] = sym::Facts::size();
      continue;
    }
    const auto known = parent->facts().symbols.find(symbol);
    facts[symbol] = known == parent->facts().symbols.end() ? sym::Range{} : known->second;
  }
  for (const ValueId input : graph.inputs())
    for (const sym::Expr& size : graph.type(input).shape)
      for (const std::string& symbol : sym::symbols_of(size)) facts.emplace(symbol, sym::Facts::size());
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    if (!node.attrs.has("defines") || node.op->name == "bind_symbols") continue;
    for (const sym::Expr& defined : node.attrs.shape("defines")) facts.emplace(defined.name(), sym::Facts::size());
  }
  return facts;
}

class Printer {
 public:
  std::string print(const Graph& graph) {
    out_ += "graph ";
    out_ += graph.name().empty() ? base::quote("") : plain_name(graph.name()) ? graph.name() : base::quote(graph.name());
    print_scope(graph, nullptr, 0);
    out_ += "\n";
    return std::move(out_);
  }

 private:
  using Labels = std::vector<std::string>;

  static bool plain_name(const std::string& name) {
    base::Lexer lexer(name);
    if (lexer.peek().kind != base::Token::Kind::Name) return false;
    return lexer.next().text == name;
  }

  static std::string label(const Graph& graph, Labels& labels, int64_t& next, ValueId id) {
    std::string& text = labels[static_cast<size_t>(id.index)];
    if (text.empty()) text = graph.value(id).name.empty() ? fmt::format("%{}", next++) : "%" + graph.value(id).name;
    return text;
  }

  // From the parameters to the closing brace.
  void print_scope(const Graph& graph, const Graph* parent, int depth) {
    Labels labels(static_cast<size_t>(graph.value_count()));
    int64_t next = 0;
    const auto name_of = [&](ValueId id) { return label(graph, labels, next, id); };
    const auto typed = [&](ValueId id) { return name_of(id) + ": " + op::to_string(graph.type(id)); };
    out_ += "(";
    for (size_t i = 0; i < graph.inputs().size(); ++i) out_ += (i == 0 ? "" : ", ") + typed(graph.inputs()[i]);
    out_ += ")";
    print_symbols(graph, parent);
    out_ += " {\n";
    const std::string indent(static_cast<size_t>(2 * depth + 2), ' ');
    for (const NodeId id : graph.nodes()) {
      const Node& node = graph.node(id);
      out_ += indent;
      for (size_t i = 0; i < node.outputs.size(); ++i) out_ += (i == 0 ? "" : ", ") + typed(node.outputs[i]);
      if (!node.outputs.empty()) out_ += " = ";
      out_ += node.op->name + "(";
      for (size_t i = 0; i < node.inputs.size(); ++i)
        out_ += (i == 0 ? "" : ", ") + (node.inputs[i].valid() ? name_of(node.inputs[i]) : std::string("_"));
      out_ += ")";
      const std::string attrs = op::to_string(node.attrs);
      if (!attrs.empty()) out_ += " " + attrs;
      for (size_t i = 0; i < node.subgraphs.size(); ++i) {
        out_ += node.op->name == "while" ? " body" : i == 0 ? " then" : " else";
        print_scope(*node.subgraphs[i], &graph, depth + 1);
      }
      if (!node.origin.empty()) out_ += " from " + base::quote(node.origin);
      out_ += "\n";
    }
    out_ += indent + "return";
    for (size_t i = 0; i < graph.outputs().size(); ++i) out_ += (i == 0 ? " " : ", ") + name_of(graph.outputs()[i]);
    out_ += "\n" + std::string(static_cast<size_t>(2 * depth), ' ') + "}";
  }

  void print_symbols(const Graph& graph, const Graph* parent) {
    if (!graph.outer_symbols().empty()) out_ += fmt::format(" outer {{{}}}", fmt::join(graph.outer_symbols(), ", "));
    std::map<std::string, sym::Range> implied = implied_facts(graph, parent);
    std::vector<std::string> clauses;
    const auto bound = [](int64_t value) {
      return value == sym::Range::kMin ? std::string("-inf") : value == sym::Range::kMax ? std::string("inf") : fmt::format("{}", value);
    };
    const auto clause = [&](const std::string& symbol, const sym::Range& range) {
      clauses.push_back(fmt::format("{} in {} .. {}", symbol, bound(range.low), bound(range.high)) +
                        (range.divisor == 1 ? "" : fmt::format(" multiple {}", range.divisor)));
    };
    std::map<std::string, sym::Range> facts = graph.facts().symbols;
    for (const auto& [symbol, range] : implied) facts.emplace(symbol, sym::Range{});
    for (const auto& [symbol, range] : facts) {
      const auto expected = implied.find(symbol);
      if (!same_range(range, expected == implied.end() ? sym::Range{} : expected->second)) clause(symbol, range);
    }
    if (!clauses.empty()) out_ += fmt::format(" symbols {{{}}}", fmt::join(clauses, ", "));
    if (graph.facts().nonzero.empty()) return;
    std::vector<std::string> nonzero;
    for (const sym::Expr& expr : graph.facts().nonzero) nonzero.push_back(sym::to_string(expr));
    out_ += fmt::format(" nonzero {{{}}}", fmt::join(nonzero, ", "));
  }

  std::string out_;
};

}  // namespace

std::string to_string(const Graph& graph) { return Printer().print(graph); }

op::ConstantPool constant_pool(const Graph& graph) {
  constexpr int64_t kPrintedWhole = 64;   // op/attrs.h: larger literals print as a hash
  op::ConstantPool pool;
  for (const NodeId id : graph.nodes()) {
    for (const auto& [name, attr] : graph.node(id).attrs.all())
      if (const Tensor* tensor = std::get_if<Tensor>(&attr); tensor != nullptr && tensor->count() > kPrintedWhole)
        pool.emplace(op::tensor_hash(*tensor), *tensor);
    for (const std::unique_ptr<Graph>& subgraph : graph.node(id).subgraphs) pool.merge(constant_pool(*subgraph));
  }
  return pool;
}

// ---- parsing ---------------------------------------------------------------------------------------------------------

namespace {

class Parser {
 public:
  Parser(std::string_view text, const op::OpTable& table, std::string where, const op::ConstantPool& pool)
      : where_(where), lexer_(text, std::move(where)), table_(table), pool_(pool) {}

  Graph parse() {
    lexer_.expect("graph");
    Graph graph(table_, lexer_.peek().kind == base::Token::Kind::String ? lexer_.expect_string() : lexer_.expect_name());
    parse_scope(graph, nullptr);
    if (!lexer_.at_end()) lexer_.fail("expected the end of the text after the graph");
    return graph;
  }

 private:
  struct Result {
    std::string name;
    std::optional<op::TensorType> type;
  };
  using Scope = std::unordered_map<std::string, ValueId>;

  static bool is_number(const std::string& name) { return name.find_first_not_of("0123456789") == std::string::npos; }

  void define(Graph& graph, Scope& scope, const std::string& name, ValueId id) {
    if (!scope.emplace(name, id).second) lexer_.fail(fmt::format("%{} is defined twice", name));
    if (!is_number(name)) graph.set_value_name(id, name);
  }

  ValueId use(const Scope& scope) {
    const base::Token token = lexer_.peek();
    const std::string name = lexer_.expect_value();
    const auto found = scope.find(name);
    if (found == scope.end()) fail_at(token, fmt::format("%{} is not defined", name));
    return found->second;
  }

  [[noreturn]] void fail_at(const base::Token& token, std::string_view words) const {
    throw UserError(fmt::format("{}:{}:{}: {}", where_, token.line, token.column, words));
  }

  std::vector<Result> parse_params() {
    std::vector<Result> params;
    lexer_.expect("(");
    while (!lexer_.accept(")")) {
      if (!params.empty()) lexer_.expect(",");
      std::string name = lexer_.expect_value();
      lexer_.expect(":");
      params.push_back({std::move(name), op::parse_type(lexer_)});
    }
    return params;
  }

  int64_t parse_bound() {
    if (lexer_.accept("inf")) return sym::Range::kMax;
    const bool negative = lexer_.accept("-");
    if (negative && lexer_.accept("inf")) return sym::Range::kMin;
    const int64_t value = lexer_.expect_integer();
    return negative ? -value : value;
  }

  void parse_scope(Graph& graph, const Graph* parent) {
    const std::vector<Result> params = parse_params();
    if (lexer_.accept("outer")) {
      std::vector<std::string> outer;
      lexer_.expect("{");
      while (!lexer_.accept("}")) {
        if (!outer.empty()) lexer_.expect(",");
        outer.push_back(lexer_.expect_name());
      }
      graph.set_outer_symbols(outer);
      if (parent != nullptr) {
        for (const std::string& symbol : outer) {
          const auto known = parent->facts().symbols.find(symbol);
          if (known == parent->facts().symbols.end()) {
            graph.facts().symbols.erase(symbol);
          } else {
            graph.facts().symbols[symbol] = known->second;
          }
        }
      }
    }
    Scope scope;
    for (const Result& param : params) define(graph, scope, param.name, graph.add_input("", *param.type));
    if (lexer_.accept("symbols")) {
      lexer_.expect("{");
      for (bool first = true; !lexer_.accept("}"); first = false) {
        if (!first) lexer_.expect(",");
        const std::string symbol = lexer_.expect_name();
        lexer_.expect("in");
        sym::Range range;
        range.low = parse_bound();
        lexer_.expect(".");
        lexer_.expect(".");
        range.high = parse_bound();
        if (lexer_.accept("multiple")) range.divisor = lexer_.expect_integer();
        graph.facts().symbols[symbol] = range;
      }
    }
    if (lexer_.accept("nonzero")) {
      lexer_.expect("{");
      for (bool first = true; !lexer_.accept("}"); first = false) {
        if (!first) lexer_.expect(",");
        graph.facts().nonzero.push_back(sym::parse_expr(lexer_));
      }
    }
    lexer_.expect("{");
    while (!lexer_.accept("return")) parse_node(graph, scope);
    std::vector<ValueId> outputs;
    while (!lexer_.accept("}")) {
      if (!outputs.empty()) lexer_.expect(",");
      outputs.push_back(use(scope));
    }
    graph.set_outputs(std::move(outputs));
  }

  void parse_node(Graph& graph, Scope& scope) {
    const base::Token start = lexer_.peek();
    std::vector<Result> results;
    while (lexer_.peek().kind == base::Token::Kind::Value) {
      Result result{lexer_.expect_value(), std::nullopt};
      if (lexer_.accept(":")) result.type = op::parse_type(lexer_);
      results.push_back(std::move(result));
      if (!lexer_.accept(",")) break;
    }
    if (!results.empty()) lexer_.expect("=");
    const std::string op = lexer_.expect_name();
    std::vector<ValueId> inputs;
    lexer_.expect("(");
    for (bool first = true; !lexer_.accept(")"); first = false) {
      if (!first) lexer_.expect(",");
      inputs.push_back(lexer_.accept("_") ? ValueId{} : use(scope));
    }
    op::Attrs attrs;
    if (lexer_.peek().is("{")) attrs = op::parse_attrs(lexer_, pool_);
    std::vector<std::unique_ptr<Graph>> subgraphs;
    while (lexer_.peek().is("then") || lexer_.peek().is("else") || lexer_.peek().is("body")) {
      subgraphs.push_back(std::make_unique<Graph>(table_, lexer_.expect_name()));
      parse_scope(*subgraphs.back(), &graph);
    }
    std::string origin;
    if (lexer_.accept("from")) origin = lexer_.expect_string();
    const NodeId id = add(graph, start, op, std::move(inputs), std::move(attrs), std::move(subgraphs), results, std::move(origin));
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId output = graph.node(id).outputs[i];
      define(graph, scope, results[i].name, output);
      if (!results[i].type.has_value()) continue;
      // The text may know more (or otherwise) than inference, as long as the two do not contradict each other.
      const op::TensorType& inferred = graph.type(output);
      const op::TensorType& written = *results[i].type;
      bool agree = inferred.dtype == written.dtype && inferred.rank() == written.rank();
      for (size_t d = 0; agree && d < inferred.shape.size(); ++d)
        agree = sym::prove_equal(inferred.shape[d], written.shape[d], graph.facts()) != sym::Proof::No;
      if (!agree)
        fail_at(start, fmt::format("{} gives {}, but %{} is declared as {}", op, op::to_string(inferred), results[i].name,
                                   op::to_string(written)));
      if (!(inferred == written)) graph.refine_type(output, written);
    }
  }

  NodeId add(Graph& graph, const base::Token& start, const std::string& op, std::vector<ValueId> inputs, op::Attrs attrs,
             std::vector<std::unique_ptr<Graph>> subgraphs, const std::vector<Result>& results, std::string origin) {
    try {
      if (subgraphs.empty())
        return graph.add_node(op, std::move(inputs), std::move(attrs), static_cast<int64_t>(results.size()), std::move(origin));
      std::vector<op::TensorType> types;
      for (const Result& result : results) {
        if (!result.type.has_value()) fail_at(start, fmt::format("{}: %{} needs a type", op, result.name));
        types.push_back(*result.type);
      }
      return graph.add_control_node(op, std::move(inputs), std::move(attrs), std::move(subgraphs), std::move(types), std::move(origin));
    } catch (const UserError& error) {
      const std::string_view words = error.what();
      if (words.starts_with(where_ + ":")) throw;
      fail_at(start, words);
    }
  }

  std::string where_;
  base::Lexer lexer_;
  const op::OpTable& table_;
  const op::ConstantPool& pool_;
};

}  // namespace

Graph parse_graph(std::string_view text, const op::OpTable& table, std::string where, const op::ConstantPool& pool) {
  return Parser(text, table, std::move(where), pool).parse();
}

}  // namespace fuseloom::graph
