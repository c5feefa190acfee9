// Random graphs, for comparing one way to run a graph with another. A graph is a function of its seed alone.
//
//   const test::RandomGraph random = test::random_graph({.seed = seed});
//   const graph::SymbolValues symbols = test::random_symbols(random.graph, seed);
//   const std::vector<Tensor> inputs = test::random_inputs(random.graph, symbols, seed);
//
// The values stay small and smooth on purpose, so that two right executors differ by rounding only: nothing overflows,
// and what is discontinuous (comparisons, arg-reductions, integer casts) reads integers.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "graph/evaluate.h"
#include "graph/graph.h"
#include "op/op.h"
#include "sym/evaluator.h"

namespace fuseloom::test {

struct RandomGraphOptions {
  uint64_t seed = 0;
  int nodes = 16;
  int inputs = 3;
  int outputs = 3;
  int max_rank = 4;
  bool symbolic = true;  // some input sizes are the symbols n and m, or 2*n
  bool views = true, reductions = true, matmuls = true, gathers = true, composites = true, scans = true, casts = true;
  bool control = false;  // if and while over random bodies
  bool siblings = false;        // several loops over one value
  bool random_numbers = false;  // Philox
  std::vector<DType> floats = {DType::F32, DType::F32, DType::F32, DType::F64, DType::F16};
  std::vector<int64_t> sizes = {0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33};
};

struct RandomGraph {
  graph::Graph graph;
  // The longest sum behind any value: tolerances grow with it.
  int64_t reduction_length = 1;
};

class RandomGraphBuilder {
 public:
  explicit RandomGraphBuilder(const RandomGraphOptions& options)
      : options_(options), random_(options.seed * 0x9e3779b97f4a7c15u + 1), graph_(op::standard_ops(), "random") {}

  RandomGraph build() {
    for (int i = 0; i < options_.inputs; ++i) add_input(i);
    for (int made = 0, tries = 0; made < options_.nodes && tries < 50 * options_.nodes; ++tries)
      if (step()) ++made;
    std::vector<graph::ValueId> outputs;
    for (size_t i = values_.size(); i-- > 0 && static_cast<int>(outputs.size()) < options_.outputs;)
      if (graph_.use_count(values_[i]) == 0) outputs.push_back(values_[i]);
    if (outputs.empty()) outputs.push_back(values_.back());
    graph_.set_outputs(outputs);
    return {std::move(graph_), reduction_length_};
  }

 private:
  using Value = graph::ValueId;

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(std::max<int64_t>(n, 1))); }
  bool chance(int percent) { return below(100) < percent; }
  template <class List>
  auto pick(const List& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }
  const op::TensorType& type(Value value) const { return graph_.type(value); }
  const op::Shape& shape(Value value) const { return graph_.type(value).shape; }
  bool floating(Value value) const { return is_float(type(value).dtype); }

  sym::Expr random_size() {
    if (!options_.symbolic || chance(55)) return sym::Expr(pick(options_.sizes));
    if (chance(20)) return sym::Expr::symbol("n") * 2;
    return sym::Expr::symbol(chance(60) ? "n" : "m");
  }

  void add_input(int index) {
    const DType dtype = index == options_.inputs - 1 && index > 0 && chance(50) ? DType::I32 : pick(options_.floats);
    op::Shape dims;
    // n and m must be determined by some input.
    if (index == 0 && options_.symbolic) dims = {sym::Expr::symbol("n"), sym::Expr::symbol("m")};
    const int64_t rank = below(options_.max_rank + 1);
    while (static_cast<int64_t>(dims.size()) < rank) dims.push_back(random_size());
    keep(graph_.add_input("x" + std::to_string(index), {.dtype = dtype, .shape = dims}));
  }

  void keep(Value value) { values_.push_back(value); }
  void keep(std::string_view op, std::vector<Value> inputs, op::Attrs attrs = {}) {
    keep(graph_.add(op, std::move(inputs), std::move(attrs)));
  }

  // Recent values are read more often: the graph gets deep.
  Value any() {
    const auto count = static_cast<int64_t>(values_.size());
    return values_[static_cast<size_t>(chance(60) ? count - 1 - below(std::min<int64_t>(count, 3)) : below(count))];
  }

  Tensor random_constant(DType dtype, const Dims& dims) {
    Tensor tensor(dtype, dims);
    for (int64_t i = 0; i < tensor.count(); ++i)
      tensor.set(i, is_float(dtype) ? static_cast<double>(below(17) - 8) / 8 : static_cast<double>(below(9) - 4));
    return tensor;
  }

  // A value that broadcasts with x: one of the same shape, or a constant, or x reduced.
  Value partner(Value x) {
    std::vector<Value> same;
    for (const Value value : values_)
      if (type(value) == type(x)) same.push_back(value);
    if (same.size() > 1 && chance(60)) return pick(same);
    Dims dims;
    if (!shape(x).empty() && shape(x).back().is_const() && chance(50)) dims.push_back(*shape(x).back().as_const());
    return graph_.add_constant(random_constant(type(x).dtype, dims));
  }

  int64_t random_axis(Value x) { return below(type(x).rank()); }

  bool step() {
    const Value x = any();
    if (options_.control && chance(12)) return chance(50) ? branch(x) : loop(x);
    if (options_.siblings && chance(15)) return siblings(x);
    if (options_.random_numbers && chance(10)) return random_numbers(x);
    const int kind = static_cast<int>(below(12));
    if (kind <= 3) return elementwise(x);
    if (kind <= 6) return options_.views && view(x);
    if (kind == 7) return options_.reductions && reduction(x);
    if (kind == 8) return options_.matmuls && matmul(x);
    if (kind == 9) return options_.gathers && gather(x);
    if (kind == 10) return options_.composites && composite(x);
    return chance(50) ? options_.scans && scan(x) : options_.casts && cast(x);
  }

  bool elementwise(Value x) {
    static const std::vector<std::string> unary = {"neg",  "abs",  "tanh", "sigmoid",    "sin",     "erf",
                                                   "relu", "gelu", "silu", "hard_swish", "softsign"};
    if (type(x).dtype == DType::Bool) {
      keep("not", {x});
      return true;
    }
    if (chance(40)) {
      const std::string op = floating(x) ? pick(unary) : pick(std::vector<std::string>{"neg", "abs", "sign"});
      keep(op, {x});
      return true;
    }
    const Value y = partner(x);
    if (!floating(x) && chance(30)) {
      const Value condition = graph_.add(pick(std::vector<std::string>{"lt", "ge", "eq"}), {x, y});
      keep("select", {condition, x, y});
      return true;
    }
    const std::string op = pick(std::vector<std::string>{"add", "sub", "mul", "max", "min"});
    std::vector<Value> inputs{x, y};
    if (chance(30)) std::swap(inputs[0], inputs[1]);
    // Products are brought back to the unit interval, or wrapped values would grow without end.
    if (op == "mul" && floating(x)) {
      keep("tanh", {graph_.add("mul", inputs)});
    } else if (op == "mul") {
      keep("floor_mod", {graph_.add("mul", inputs), graph_.add_constant(Tensor::scalar(type(x).dtype, 7))});
    } else {
      keep(op, inputs);
    }
    return true;
  }

  bool view(Value x) {
    const int64_t rank = type(x).rank();
    const op::Shape dims = shape(x);
    switch (below(9)) {
      case 0: {
        if (rank < 2) return false;
        std::vector<int64_t> perm(static_cast<size_t>(rank));
        for (int64_t i = 0; i < rank; ++i) perm[static_cast<size_t>(i)] = i;
        std::shuffle(perm.begin(), perm.end(), random_);
        keep("transpose", {x}, {{"perm", perm}});
        return true;
      }
      case 1: {  // merge two neighbours
        if (rank < 2) return false;
        const auto at = static_cast<size_t>(below(rank - 1));
        op::Shape merged = dims;
        merged[at] = merged[at] * merged[at + 1];
        merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        keep("reshape", {x}, {{"shape", merged}});
        return true;
      }
      case 2: {  // split or insert a one
        if (rank >= options_.max_rank) return false;
        const auto at = static_cast<size_t>(below(rank + 1));
        op::Shape split = dims;
        if (at < dims.size() && dims[at].is_const() && *dims[at].as_const() % 2 == 0 && *dims[at].as_const() > 0 &&
            chance(60)) {
          split[at] = sym::Expr(*dims[at].as_const() / 2);
          split.insert(split.begin() + static_cast<std::ptrdiff_t>(at), sym::Expr(2));
        } else {
          split.insert(split.begin() + static_cast<std::ptrdiff_t>(at), sym::Expr(1));
        }
        keep("reshape", {x}, {{"shape", split}});
        return true;
      }
      case 3: {  // slice: a part of constant dimensions, all of the others, some backwards
        op::Shape starts, sizes;
        std::vector<int64_t> steps;
        for (const sym::Expr& size : dims) {
          if (size.is_const() && *size.as_const() > 1 && chance(60)) {
            const int64_t whole = *size.as_const(), start = below(whole), step = 1 + below(2);
            starts.push_back(sym::Expr(start));
            sizes.push_back(sym::Expr((whole - start + step - 1) / step));
            steps.push_back(step);
          } else if (chance(25)) {
            starts.push_back(size - 1);
            sizes.push_back(size);
            steps.push_back(-1);
          } else {
            starts.push_back(sym::Expr(0));
            sizes.push_back(size);
            steps.push_back(1);
          }
        }
        keep("slice", {x}, {{"starts", starts}, {"sizes", sizes}, {"steps", steps}});
        return true;
      }
      case 4: {
        if (rank == 0) return false;
        std::vector<Value> pieces{x};
        while (pieces.size() < 3 && (pieces.size() < 2 || chance(30))) {
          const Value y = partner(x);
          if (!(type(y) == type(x))) break;
          pieces.push_back(y);
        }
        keep("concat", pieces, {{"axis", random_axis(x)}});
        return true;
      }
      case 5: {
        op::Shape low, high;
        for (size_t i = 0; i < dims.size(); ++i) {
          low.push_back(sym::Expr(below(3)));
          high.push_back(sym::Expr(below(2)));
        }
        std::vector<Value> inputs{x};
        if (chance(50)) inputs.push_back(graph_.add_constant(random_constant(type(x).dtype, {})));
        keep("pad", inputs, {{"low", low}, {"high", high}, {"mode", std::string("constant")}});
        return true;
      }
      case 6: {
        op::Shape wide = dims;
        for (sym::Expr& size : wide)
          if (size.is_const(1) && chance(70)) size = sym::Expr(pick(options_.sizes));
        if (rank < options_.max_rank && chance(50)) wide.insert(wide.begin(), sym::Expr(1 + below(3)));
        keep("expand", {x}, {{"shape", wide}});
        return true;
      }
      case 7: {
        if (rank == 0) return false;
        op::Shape repeats;
        for (size_t i = 0; i < dims.size(); ++i) repeats.push_back(sym::Expr(chance(30) ? 2 : 1));
        keep("tile", {x}, {{"repeats", repeats}});
        return true;
      }
      default:  // a vector of everything
        keep("reshape", {x}, {{"shape", op::Shape{op::count_of(dims)}}});
        return true;
    }
  }

  std::vector<int64_t> random_axes(Value x) {
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < type(x).rank(); ++i)
      if (chance(45)) axes.push_back(i);
    if (axes.empty() && type(x).rank() > 0) axes.push_back(random_axis(x));
    return axes;
  }

  void note_length(Value x, const std::vector<int64_t>& axes) {
    int64_t length = 1;
    for (const int64_t axis : axes) {
      const std::optional<int64_t> size = shape(x)[static_cast<size_t>(axis)].as_const();
      length *= std::max<int64_t>(1, size.value_or(64));
    }
    reduction_length_ = std::max(reduction_length_, length);
  }

  bool reduction(Value x) {
    const bool truth = type(x).dtype == DType::Bool;
    const std::vector<int64_t> axes = random_axes(x);
    note_length(x, axes);
    const int64_t keepdims = chance(50) ? 1 : 0;
    if (!floating(x) && !truth && type(x).rank() > 0 && chance(20)) {
      // argmax over nothing is no question.
      const int64_t axis = random_axis(x);
      const std::optional<int64_t> size = shape(x)[static_cast<size_t>(axis)].as_const();
      if (!size.has_value() || *size == 0) return false;
      keep(chance(50) ? "argmax" : "argmin", {x},
           {{"axis", axis}, {"keepdims", keepdims}, {"select_last", int64_t{chance(30) ? 1 : 0}}});
      return true;
    }
    const std::string op = truth         ? pick(std::vector<std::string>{"reduce_any", "reduce_all"})
                           : floating(x) ? pick(std::vector<std::string>{"reduce_sum", "reduce_max", "reduce_min",
                                                                         "reduce_mean", "reduce_sum_square"})
                                         : pick(std::vector<std::string>{"reduce_sum", "reduce_max", "reduce_min"});
    Value result = graph_.add(op, {x}, {{"axes", axes}, {"keepdims", keepdims}});
    // Sums grow and maxima over nothing are infinite: tanh brings both back.
    if (floating(x)) result = graph_.add("tanh", {result});
    keep(result);
    // Normalisation pattern: broadcast back over x.
    if (keepdims == 1 && !truth && chance(60)) keep("sub", {x, result});
    return true;
  }

  bool scan(Value x) {
    if (type(x).rank() == 0 || type(x).dtype == DType::Bool || type(x).dtype == DType::F16) return false;
    const int64_t axis = random_axis(x);
    note_length(x, {axis});
    const Value sums = graph_.add(
        "cumsum", {x},
        {{"axis", axis}, {"exclusive", int64_t{chance(30) ? 1 : 0}}, {"reverse", int64_t{chance(30) ? 1 : 0}}});
    keep(floating(x) ? graph_.add("tanh", {sums}) : sums);
    return true;
  }

  bool matmul(Value x) {
    if (!floating(x) || type(x).rank() < 2) return false;
    const sym::Expr inner = shape(x).back();
    note_length(x, {type(x).rank() - 1});
    Value product;
    if (inner.is_const() && chance(70)) {
      const int64_t columns = pick(options_.sizes);
      product =
          graph_.add("matmul", {x, graph_.add_constant(random_constant(type(x).dtype, {*inner.as_const(), columns}))});
    } else {
      product = graph_.add("matmul", {x, x}, {{"trans_b", int64_t{1}}});
    }
    keep("tanh", {product});
    return true;
  }

  bool gather(Value x) {
    if (type(x).rank() == 0) return false;
    const int64_t axis = random_axis(x);
    const std::optional<int64_t> size = shape(x)[static_cast<size_t>(axis)].as_const();
    if (!size.has_value() || *size == 0) return false;
    std::vector<int64_t> indices;
    Dims dims;
    for (int64_t rank = type(x).rank() < options_.max_rank ? below(3) : below(2); rank > 0; --rank)
      dims.push_back(1 + below(4));
    for (int64_t i = 0; i < element_count(dims); ++i) indices.push_back(below(2 * *size) - *size);
    const Value index = graph_.add_constant(Tensor::of_ints(chance(50) ? DType::I64 : DType::I32, dims, indices));
    keep("gather", {x, index}, {{"axis", axis}});
    return true;
  }

  bool composite(Value x) {
    if (!floating(x) || type(x).rank() == 0) return false;
    const int64_t last = type(x).rank() - 1;
    note_length(x, {last});
    switch (below(4)) {
      case 0:
        keep("softmax", {x}, {{"axis", random_axis(x)}});
        return true;
      case 1: {
        const std::optional<int64_t> size = shape(x).back().as_const();
        if (!size.has_value()) return false;
        const Value scale = graph_.add_constant(random_constant(type(x).dtype, {*size}));
        // An epsilon of 1 keeps rows of equal values tame.
        keep("layer_norm", {x, scale, scale}, {{"axis", last}, {"epsilon", 1.0}});
        return true;
      }
      case 2:
        keep("rms_norm", {x}, {{"axis", last}, {"epsilon", 1.0}});
        return true;
      default:
        keep("tanh", {graph_.add("log_softmax", {x}, {{"axis", last}})});
        return true;
    }
  }

  // Loops that read one value and do not need each other: some over the whole of it, some that fold the same axis.
  bool siblings(Value x) {
    if (!floating(x) || type(x).rank() == 0) return false;
    const int64_t axis = random_axis(x);
    note_length(x, {axis});
    for (int64_t count = 2 + below(3); count > 0; --count) {
      if (chance(50)) {
        keep(pick(std::vector<std::string>{"tanh", "sin", "neg", "relu"}), {x});
      } else {
        keep("tanh", {graph_.add(pick(std::vector<std::string>{"reduce_sum", "reduce_max", "reduce_min"}), {x},
                                 {{"axes", std::vector<int64_t>{axis}}, {"keepdims", int64_t{1}}})});
      }
    }
    return true;
  }

  bool random_numbers(Value x) {
    if (!floating(x)) return false;
    const bool uniform = chance(50);
    const op::Attrs attrs{{"shape", shape(x)},     {"dtype", type(x).dtype},         {"seed", below(1 << 30)},
                          {"offset", below(1000)}, {uniform ? "low" : "mean", -0.5}, {uniform ? "high" : "scale", 0.5}};
    keep("add", {x, graph_.add(uniform ? "random_uniform" : "random_normal", {}, attrs)});
    return true;
  }

  // A chain of unary ops, the same sizes in and out.
  Value body_chain(graph::Graph& body, Value x) {
    const bool real = is_float(body.type(x).dtype), truth = body.type(x).dtype == DType::Bool;
    for (int64_t i = below(4); i > 0; --i)
      x = body.add(truth  ? std::string("not")
                   : real ? pick(std::vector<std::string>{"tanh", "neg", "relu", "sin"})
                          : pick(std::vector<std::string>{"neg", "abs"}),
                   {x});
    return x;
  }

  std::unique_ptr<graph::Graph> new_body(std::string name, const op::Shape& sizes) {
    auto body = std::make_unique<graph::Graph>(op::standard_ops(), std::move(name));
    std::set<std::string> outer;
    for (const sym::Expr& size : sizes) sym::collect_symbols(size, outer);
    body->set_outer_symbols({outer.begin(), outer.end()});
    return body;
  }

  // A condition that depends on the data, but not on rounding: whether an input has an element other than 0.
  Value condition() {
    const Value x = graph_.inputs().back();
    return graph_.add("reduce_any", {graph_.add("cast", {x}, {{"to", DType::Bool}})},
                      {{"axes", all_axes(x)}, {"keepdims", int64_t{0}}});
  }
  std::vector<int64_t> all_axes(Value x) const {
    std::vector<int64_t> axes;
    for (int64_t i = 0; i < type(x).rank(); ++i) axes.push_back(i);
    return axes;
  }

  bool branch(Value x) {
    std::vector<std::unique_ptr<graph::Graph>> branches;
    for (const char* name : {"then", "else"}) {
      branches.push_back(new_body(name, shape(x)));
      const Value input = branches.back()->add_input("x", type(x));
      branches.back()->set_outputs({body_chain(*branches.back(), input)});
    }
    const Value c = condition();
    keep(graph_.node(graph_.add_control_node("if", {c, x}, {}, std::move(branches), {type(x)})).outputs[0]);
    return true;
  }

  // Carries x for 0 to 3 trips and stacks what it sees on the way.
  bool loop(Value x) {
    if (type(x).rank() >= options_.max_rank) return false;
    std::unique_ptr<graph::Graph> body = new_body("body", shape(x));
    body->add_input("i", {.dtype = DType::I64, .shape = {}});
    const Value c = body->add_input("c", {.dtype = DType::Bool, .shape = {}});
    const Value carried = body_chain(*body, body->add_input("x", type(x)));
    body->set_outputs({c, carried, body_chain(*body, carried)});
    const std::vector<int64_t> trips{below(4)};
    const Value count = graph_.add_constant(Tensor::of_ints(DType::I64, {}, trips));
    op::TensorType stacked = type(x);
    const sym::Expr symbol = sym::Expr::symbol(graph_.fresh_symbol("trips"));
    stacked.shape.insert(stacked.shape.begin(), symbol);
    std::vector<std::unique_ptr<graph::Graph>> bodies;
    bodies.push_back(std::move(body));
    const graph::NodeId id =
        graph_.add_control_node("while", {count, chance(50) ? Value{} : condition(), x},
                                {{"carried", int64_t{1}}, {"scans", int64_t{1}}, {"defines", op::Shape{symbol}}},
                                std::move(bodies), {type(x), stacked});
    keep(graph_.node(id).outputs[1]);
    keep(graph_.node(id).outputs[0]);
    return true;
  }

  bool cast(Value x) {
    if (floating(x)) {
      keep("cast", {x}, {{"to", pick(options_.floats)}});
    } else {
      keep("cast", {x}, {{"to", pick(std::vector<DType>{DType::F32, DType::I64, DType::I32, DType::Bool})}});
    }
    return true;
  }

  RandomGraphOptions options_;
  std::mt19937_64 random_;
  graph::Graph graph_;
  std::vector<Value> values_;
  int64_t reduction_length_ = 1;
};

inline RandomGraph random_graph(const RandomGraphOptions& options) { return RandomGraphBuilder(options).build(); }

// A size for every symbol of the inputs, 0 and 1 among them.
inline graph::SymbolValues random_symbols(const graph::Graph& graph, uint64_t seed) {
  std::mt19937_64 random(seed * 31 + 7);
  static const std::vector<int64_t> sizes = {0, 1, 2, 3, 5, 8, 16, 19};
  graph::SymbolValues values;
  for (const graph::ValueId input : graph.inputs())
    for (const sym::Expr& size : graph.type(input).shape)
      for (const std::string& symbol : sym::symbols_of(size))
        if (!values.contains(symbol)) values.emplace(symbol, sizes[random() % sizes.size()]);
  return values;
}

// Normal floats, integers in -4..4, both bools.
inline std::vector<Tensor> random_inputs(const graph::Graph& graph, const graph::SymbolValues& symbols, uint64_t seed) {
  std::mt19937_64 random(seed * 17 + 3);
  std::vector<Tensor> inputs;
  for (const graph::ValueId input : graph.inputs()) {
    const op::TensorType& type = graph.type(input);
    Dims dims;
    for (const sym::Expr& size : type.shape) dims.push_back(sym::evaluate(size, symbols));
    Tensor tensor(type.dtype, dims);
    for (int64_t i = 0; i < tensor.count(); ++i) {
      if (type.dtype == DType::Bool) {
        tensor.set_int(i, static_cast<int64_t>(random() % 2));
      } else if (is_int(type.dtype)) {
        tensor.set_int(i, static_cast<int64_t>(random() % 9) - (is_signed_int(type.dtype) ? 4 : 0));
      } else {
        // The sum of four uniforms: near enough to normal, and the same on every standard library.
        double sum = 0;
        for (int k = 0; k < 4; ++k) sum += static_cast<double>(random() >> 11) * 0x1p-53;
        tensor.set(i, (sum - 2) * 1.7);
      }
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

// Some of its numbers become NaN, infinities, -0 and a number below the normal ones.
inline void add_special_values(Tensor& tensor, uint64_t seed) {
  if (!is_float(tensor.dtype())) return;
  std::mt19937_64 random(seed * 13 + 5);
  const double infinity = std::numeric_limits<double>::infinity();
  const double special[] = {std::nan(""), infinity, -infinity, -0.0, 1e-40};
  for (int64_t i = 0; i < tensor.count(); ++i)
    if (random() % 6 == 0) tensor.set(i, special[random() % 5]);
}

// The same elements in other places: behind an element that makes every address odd, with gaps, with the dimensions in
// another order in memory, or backwards. Elements that one dimension repeats may share a place.
inline Tensor scattered(const Tensor& tensor, uint64_t seed) {
  std::mt19937_64 random(seed * 29 + 11);
  const auto rank = static_cast<size_t>(tensor.rank());
  std::vector<size_t> order(rank);
  for (size_t i = 0; i < rank; ++i) order[i] = i;
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  Dims strides(rank);
  int64_t step = 1 + static_cast<int64_t>(random() % 2), first = static_cast<int64_t>(random() % 4), size = 1;
  for (size_t i = rank; i-- > 0;) {
    const size_t d = order[i];
    const int64_t extent = std::max<int64_t>(tensor.dim(static_cast<int64_t>(d)), 1);
    strides[d] = step;
    size += (extent - 1) * step;
    if (random() % 4 == 0) {
      first += (extent - 1) * step;
      strides[d] = -step;
    }
    step *= extent + static_cast<int64_t>(random() % 2);
  }
  const int64_t bytes = dtype_bytes(tensor.dtype(), 1);
  auto memory = std::make_shared<std::vector<std::byte>>(static_cast<size_t>((size + first + 4) * bytes));
  Tensor result = Tensor::share(tensor.dtype(), Dims(tensor.dims()), strides, memory->data() + first * bytes, memory);
  const std::byte* const from = static_cast<const std::byte*>(tensor.data());
  for (int64_t i = 0; i < tensor.count(); ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = rank; d-- > 0;) {
      at += rest % tensor.dim(static_cast<int64_t>(d)) * strides[d];
      rest /= tensor.dim(static_cast<int64_t>(d));
    }
    std::memcpy(memory->data() + (first + at) * bytes, from + i * bytes, static_cast<size_t>(bytes));
  }
  return result;
}
// One dimension with stride 0: all of its elements are the first.
inline Tensor overlapping(const Tensor& tensor, uint64_t seed) {
  if (tensor.rank() == 0 || tensor.count() == 0) return tensor;
  Dims strides(tensor.strides());
  strides[seed % static_cast<size_t>(tensor.rank())] = 0;
  return Tensor::share(tensor.dtype(), Dims(tensor.dims()), strides, const_cast<void*>(tensor.data()),
                       std::make_shared<Tensor>(tensor));
}

// "" when the tensors agree to `tolerance` (relative to the larger magnitude, at least 1; 0: bit for bit but for the
// payload of NaN), else the first difference.
inline std::string difference(const Tensor& found, const Tensor& expected, double tolerance) {
  if (found.type_string() != expected.type_string())
    return found.type_string() + " instead of " + expected.type_string();
  for (int64_t i = 0; i < found.count(); ++i) {
    const bool real = is_float(found.dtype());
    const double a = real ? found.at(i) : static_cast<double>(found.int_at(i)),
                 b = real ? expected.at(i) : static_cast<double>(expected.int_at(i));
    if (std::isnan(a) && std::isnan(b)) continue;
    const bool equal = tolerance == 0 || !real ? a == b && std::signbit(a) == std::signbit(b)
                                               : a == b || std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b));
    if (!equal) return "element " + std::to_string(i) + " is " + std::to_string(a) + " instead of " + std::to_string(b);
  }
  return "";
}

}  // namespace fuseloom::test
