#include "graph/size_contents.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "base/check.h"
#include "op/axis.h"

namespace fuseloom::graph {
namespace {

using sym::Expr;
using MaybeRatio = std::optional<Ratio>;

// Sizes in f32 are exact up to 2^24 as long as only powers of two divide them.
bool dyadic(const Ratio& ratio) { return std::has_single_bit(static_cast<uint64_t>(ratio.denominator)); }

Ratio reduced(Expr numerator, int64_t denominator) {
  if (const std::optional<int64_t> value = numerator.as_const(); value.has_value() && denominator != 1) {
    const int64_t common = std::gcd(*value, denominator);
    return {Expr(*value / common), denominator / common};
  }
  if (denominator == 1) return {std::move(numerator), 1};
  const sym::Range range = sym::bounds(numerator, {});
  const int64_t common = range.divisor == 0 ? denominator : std::gcd(range.divisor, denominator);
  return common == 1 ? Ratio{std::move(numerator), denominator} : Ratio{sym::floor_div(numerator, common), denominator / common};
}

// A float constant whose product with a size stays exact in f32 for every size below 2^16: eight significant bits, down to
// 1/256. 0.5, 1.5, 2 are; 0.7 is not, because n * 0.7f rounds.
MaybeRatio ratio_of(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (value == std::floor(value) && std::abs(value) < 0x1p24) return Ratio{Expr(static_cast<int64_t>(value)), 1};
  const double scaled = value * 256;
  if (scaled != std::floor(scaled) || std::abs(scaled) >= 0x1p24) return std::nullopt;
  const Ratio ratio = reduced(Expr(static_cast<int64_t>(scaled)), 256);
  return std::abs(*ratio.numerator.as_const()) < 256 ? MaybeRatio(ratio) : std::nullopt;
}

bool is_truth(DType dtype) { return dtype == DType::Bool; }

bool is_tracked(DType dtype) { return dtype == DType::Bool || is_int(dtype) || dtype == DType::F32 || dtype == DType::F64; }

// Whether the element type holds the value. Of an expression that is taken for granted from 32 bits on.
bool fits(const Ratio& ratio, DType dtype) {
  const std::optional<int64_t> value = ratio.numerator.as_const();
  if (dtype == DType::F32) return !value.has_value() || std::abs(static_cast<double>(*value)) <= 0x1p24;
  if (dtype == DType::F64) return !value.has_value() || std::abs(static_cast<double>(*value)) <= 0x1p53;
  if (dtype == DType::Bool || dtype == DType::I64) return true;
  const int64_t bits = dtype_bits(dtype);
  if (!value.has_value()) return bits >= 32;
  if (is_unsigned_int(dtype)) return *value >= 0 && (bits == 64 || *value >> bits == 0);
  return *value >= -(int64_t{1} << (bits - 1)) && *value < int64_t{1} << (bits - 1);
}

// The scalar semantics of docs/ops.md over ratios.
class Arithmetic {
 public:
  explicit Arithmetic(const sym::Facts& facts) : facts_(facts) {}

  MaybeRatio call(std::string_view op, std::span<const Ratio> args, DType dtype) const {
    const bool integers = std::all_of(args.begin(), args.end(), [](const Ratio& r) { return r.denominator == 1; });
    if (args.size() == 1) return unary(op, args[0], dtype, integers);
    if (args.size() == 2) return binary(op, args[0], args[1], dtype, integers);
    if (op == "select" && integers) {
      return Ratio{sym::select(args[0].numerator, args[1].numerator, args[2].numerator), 1};
    }
    if (op == "select" && args[1] == args[2]) return args[1];
    if (op == "select" && args[0].numerator.is_const()) return args[args[0].numerator.is_const(0) ? 2 : 1];
    return std::nullopt;
  }

  // float → integer truncates toward zero; to bool: != 0.
  MaybeRatio cast(const Ratio& x, DType from, DType to) const {
    if (to == DType::Bool) return from == DType::Bool ? x : Ratio{sym::ne(x.numerator, 0), 1};
    if (is_int(to) && x.denominator != 1) return truncated(x);
    return x;
  }

 private:
  bool not_negative(const Expr& expr) const { return sym::bounds(expr, facts_).low >= 0; }

  Expr truncating_div(const Expr& a, const Expr& b) const {
    if (not_negative(a) && not_negative(b)) return sym::floor_div(a, b);
    const Expr magnitude = sym::floor_div(sym::max(a, -a), sym::max(b, -b));
    return sym::select(sym::eq(sym::lt(a, 0), sym::lt(b, 0)), magnitude, -magnitude);
  }

  MaybeRatio truncated(const Ratio& x) const { return Ratio{truncating_div(x.numerator, Expr(x.denominator)), 1}; }

  MaybeRatio unary(std::string_view op, const Ratio& x, DType dtype, bool integer) const {
    if (op == "floor") return integer ? x : Ratio{sym::floor_div(x.numerator, x.denominator), 1};
    if (op == "ceil") return integer ? x : Ratio{sym::ceil_div(x.numerator, x.denominator), 1};
    if (op == "trunc") return integer ? MaybeRatio(x) : truncated(x);
    if (op == "round" && integer) return x;
    if (op == "not") return Ratio{sym::eq(x.numerator, 0), 1};
    if (!dyadic(x) || is_truth(dtype)) return std::nullopt;
    if (op == "neg") return Ratio{-x.numerator, x.denominator};
    if (op == "abs") return Ratio{not_negative(x.numerator) ? x.numerator : sym::max(x.numerator, -x.numerator), x.denominator};
    if (op == "sign") return Ratio{sym::lt(0, x.numerator) - sym::lt(x.numerator, 0), 1};
    if (op == "is_nan" || op == "is_inf") return Ratio{Expr(0), 1};
    if (op == "reciprocal" && x.numerator.is_const()) return divided(Ratio{Expr(1), 1}, x);
    return std::nullopt;
  }

  // Exact quotient of floats by a constant.
  static MaybeRatio divided(const Ratio& a, const Ratio& b) {
    const std::optional<int64_t> by = b.numerator.as_const();
    if (!by.has_value() || *by == 0 || *by < -(1 << 24) || *by > (1 << 24) || a.denominator > (1 << 24)) return std::nullopt;
    const Expr numerator = a.numerator * Expr(b.denominator);
    return *by > 0 ? reduced(numerator, a.denominator * *by) : reduced(-numerator, a.denominator * -*by);
  }

  MaybeRatio binary(std::string_view op, const Ratio& a, const Ratio& b, DType dtype, bool integers) const {
    if (!dyadic(a) || !dyadic(b)) return std::nullopt;
    // Over the common denominator, the larger of two powers of two.
    const int64_t common = std::max(a.denominator, b.denominator);
    const Expr x = a.numerator * Expr(common / a.denominator), y = b.numerator * Expr(common / b.denominator);
    if (op == "eq") return Ratio{sym::eq(x, y), 1};
    if (op == "ne") return Ratio{sym::ne(x, y), 1};
    if (op == "lt") return Ratio{sym::lt(x, y), 1};
    if (op == "le") return Ratio{sym::le(x, y), 1};
    if (op == "gt") return Ratio{sym::lt(y, x), 1};
    if (op == "ge") return Ratio{sym::le(y, x), 1};
    if (op == "max") return reduced(sym::max(x, y), common);
    if (op == "min") return reduced(sym::min(x, y), common);
    if (is_truth(dtype)) {
      if (op == "and" || op == "mul" || op == "bit_and") return Ratio{sym::min(x, y), 1};
      if (op == "or" || op == "add" || op == "bit_or") return Ratio{sym::max(x, y), 1};
      if (op == "xor" || op == "bit_xor") return Ratio{sym::ne(x, y), 1};
      return std::nullopt;
    }
    if (op == "add") return reduced(x + y, common);
    if (op == "sub") return reduced(x - y, common);
    if (op == "mul") {
      if (a.denominator > (1 << 12) || b.denominator > (1 << 12)) return std::nullopt;
      return reduced(a.numerator * b.numerator, a.denominator * b.denominator);
    }
    if (op == "div") return is_int(dtype) ? MaybeRatio(Ratio{truncating_div(x, y), 1}) : divided(a, b);
    if (!integers) return std::nullopt;
    // Floats by zero give NaN and infinity, not 0.
    if (is_float(dtype) && !(y.is_const() && !y.is_const(0))) return std::nullopt;
    if (op == "floor_div") return Ratio{sym::floor_div(x, y), 1};
    // The remainder by zero is 0 (docs/numerics.md), that of sym is too.
    if (op == "floor_mod") return Ratio{sym::mod(x, y), 1};
    if (op == "fmod") {
      if (not_negative(x) && not_negative(y)) return Ratio{sym::mod(x, y), 1};
      return Ratio{sym::select(sym::eq(y, 0), Expr(0), x - y * truncating_div(x, y)), 1};
    }
    if (op == "pow") {
      const std::optional<int64_t> exponent = y.as_const();
      if (!exponent.has_value() || *exponent < 0 || *exponent > 8) return std::nullopt;
      Expr power(1);
      for (int64_t i = 0; i < *exponent; ++i) power = power * x;
      return Ratio{power, 1};
    }
    return std::nullopt;
  }

  const sym::Facts& facts_;
};

// The value of a composite elementwise op's rule.
MaybeRatio evaluate_rule(const op::ScalarNode& node, std::span<const Ratio> inputs, const op::Attrs& attrs, DType dtype,
                         const Arithmetic& arithmetic, const op::OpTable& table) {
  switch (node.kind) {
    case op::ScalarNode::Kind::Input:
      return inputs[static_cast<size_t>(node.input)];
    case op::ScalarNode::Kind::Constant:
      return ratio_of(node.constant);
    case op::ScalarNode::Kind::Attribute:
      return ratio_of(attrs.real(node.name));
    case op::ScalarNode::Kind::Call: {
      std::vector<Ratio> args;
      for (const op::ScalarNode& arg : node.args) {
        const MaybeRatio value = evaluate_rule(arg, inputs, attrs, dtype, arithmetic, table);
        if (!value.has_value()) return std::nullopt;
        args.push_back(*value);
      }
      const op::OpRecord* callee = table.find(node.name);
      if (callee != nullptr && callee->scalar.has_value())
        return evaluate_rule(*callee->scalar, args, {}, dtype, arithmetic, table);
      return arithmetic.call(node.name, args, dtype);
    }
  }
  FL_CHECK(false, "a scalar node of no kind");
}

std::optional<Dims> const_dims(const op::TensorType& type) {
  Dims dims;
  for (const Expr& size : type.shape) {
    if (!size.is_const()) return std::nullopt;
    dims.push_back(*size.as_const());
  }
  return dims;
}

bool has_symbols(const op::Attrs& attrs) {
  for (const auto& [name, attr] : attrs.all()) {
    const op::Shape* shape = std::get_if<op::Shape>(&attr);
    if (shape != nullptr && std::any_of(shape->begin(), shape->end(), [](const Expr& e) { return !e.is_const(); })) return true;
  }
  return false;
}

// Which inputs of a gather or scatter are indices.
bool is_index_input(const op::OpRecord& record, size_t input) {
  return input == 1 && (record.family == op::Family::Gather || record.family == op::Family::Scatter);
}

std::string_view combine_op(op::Combine combine) {
  switch (combine) {
    case op::Combine::Add: return "add";
    case op::Combine::Mul: return "mul";
    case op::Combine::Max: return "max";
    case op::Combine::Min: return "min";
    case op::Combine::Or: return "or";
    case op::Combine::And: return "and";
    case op::Combine::None:
    case op::Combine::ArgMax:
    case op::Combine::ArgMin: return "";
  }
  FL_CHECK(false, "a combine of no kind");
}

}  // namespace

bool SizeContents::can_know(ValueId id) const {
  const op::TensorType& type = graph_.type(id);
  if (!is_tracked(type.dtype) || !graph_.value(id).producer.valid()) return false;
  int64_t count = 1;
  for (const Expr& size : type.shape) {
    if (!size.is_const() || *size.as_const() > kMaxElements) return false;
    count *= *size.as_const();
    if (count > kMaxElements) return false;
  }
  return true;
}

Ratio SizeContents::simplified(const Ratio& ratio) const {
  return reduced(sym::simplify(ratio.numerator, graph_.facts()), ratio.denominator);
}

std::optional<std::vector<Ratio>> SizeContents::ratios_of(ValueId id) {
  // Depth-first with a stack of our own: size arithmetic can be as deep as the graph.
  std::vector<ValueId> stack{id};
  while (!stack.empty()) {
    const ValueId top = stack.back();
    if (memo_.contains(top.index)) {
      stack.pop_back();
      continue;
    }
    if (!can_know(top)) {
      memo_.emplace(top.index, std::nullopt);
      stack.pop_back();
      continue;
    }
    bool ready = true;
    for (const ValueId input : graph_.producer(top)->inputs) {
      if (!input.valid() || memo_.contains(input.index)) continue;
      stack.push_back(input);
      ready = false;
    }
    if (!ready) continue;
    Contents contents = compute(top);
    const DType dtype = graph_.type(top).dtype;
    if (contents.has_value()) {
      for (Ratio& ratio : *contents) {
        ratio = simplified(ratio);
        if (fits(ratio, dtype)) continue;
        contents.reset();
        break;
      }
    }
    memo_.emplace(top.index, std::move(contents));
    stack.pop_back();
  }
  return known(id);
}

std::optional<std::vector<Expr>> SizeContents::of(ValueId id) {
  if (is_float(graph_.type(id).dtype)) return std::nullopt;
  const Contents ratios = ratios_of(id);
  if (!ratios.has_value()) return std::nullopt;
  std::vector<Expr> values;
  for (const Ratio& ratio : *ratios) values.push_back(ratio.numerator);
  return values;
}

SizeContents::Contents SizeContents::compute(ValueId id) const {
  const Node& node = *graph_.producer(id);
  const std::string& op = node.op->name;
  const auto integers = [](const op::Shape& values) {
    std::vector<Ratio> contents;
    for (const Expr& value : values) contents.push_back({value, 1});
    return contents;
  };
  if (op == "constant") {
    const Tensor& tensor = node.attrs.tensor("value");
    std::vector<Ratio> contents;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const MaybeRatio ratio = is_float(tensor.dtype()) ? ratio_of(tensor.at(i)) : Ratio{Expr(tensor.int_at(i)), 1};
      if (!ratio.has_value()) return std::nullopt;
      contents.push_back(*ratio);
    }
    return contents;
  }
  if (op == "sym_value") return integers(node.attrs.shape("values"));
  if (op == "bind_symbols") {
    const Contents& source = known(node.inputs[0]);
    return source.has_value() ? source : Contents(integers(node.attrs.shape("defines")));
  }
  if (op == "iota") {
    const std::optional<Dims> dims = const_dims(graph_.type(id));
    if (!dims.has_value() || dims->empty()) return std::nullopt;
    const auto axis = static_cast<size_t>(op::normal_axis(op, node.attrs.integer("axis"), static_cast<int64_t>(dims->size())));
    const int64_t stride = std::accumulate(dims->begin() + static_cast<std::ptrdiff_t>(axis) + 1, dims->end(), int64_t{1}, std::multiplies<>());
    std::vector<Ratio> contents;
    for (int64_t i = 0; i < element_count(*dims); ++i) contents.push_back({Expr(i / stride % (*dims)[axis]), 1});
    return contents;
  }
  if (node.outputs.size() != 1) return std::nullopt;
  for (const ValueId input : node.inputs)
    if (input.valid() && !known(input).has_value()) return std::nullopt;
  switch (node.op->family) {
    case op::Family::Elementwise:
      return compute_elementwise(node);
    case op::Family::View:
    case op::Family::Gather:
    case op::Family::Scatter:
      return compute_movement(node);
    case op::Family::Reduction:
      return compute_reduction(node);
    case op::Family::Source:
    case op::Family::Scan:
    case op::Family::Contraction:
    case op::Family::Window:
    case op::Family::Composite:
    case op::Family::Extern:
    case op::Family::Control:
    case op::Family::Recurrence:
      return std::nullopt;
  }
  FL_CHECK(false, "an op of no family");
}

SizeContents::Contents SizeContents::compute_elementwise(const Node& node) const {
  const op::TensorType& type = graph_.type(node.outputs[0]);
  const std::optional<Dims> dims = const_dims(type);
  if (!dims.has_value()) return std::nullopt;
  const Arithmetic arithmetic(graph_.facts());
  std::vector<Dims> input_dims;
  for (const ValueId input : node.inputs) {
    const std::optional<Dims> known_dims = input.valid() ? const_dims(graph_.type(input)) : std::nullopt;
    if (!known_dims.has_value()) return std::nullopt;
    input_dims.push_back(*known_dims);
  }
  // The type that the arithmetic is carried out in: that of the data (select's first input is the condition).
  const DType dtype = graph_.type(node.inputs.back()).dtype;
  std::vector<Ratio> contents;
  for (int64_t linear = 0; linear < element_count(*dims); ++linear) {
    std::vector<Ratio> args;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      // Broadcasting: dimensions are aligned at the right, size 1 repeats.
      int64_t rest = linear, offset = 0, stride = 1;
      for (size_t back = 1; back <= dims->size(); ++back) {
        const int64_t size = (*dims)[dims->size() - back], index = rest % size;
        rest /= size;
        if (back > input_dims[i].size()) continue;
        const int64_t own = input_dims[i][input_dims[i].size() - back];
        offset += own == 1 ? 0 : index * stride;
        stride *= own;
      }
      args.push_back((*known(node.inputs[i]))[static_cast<size_t>(offset)]);
    }
    MaybeRatio value;
    if (node.op->name == "cast") {
      value = arithmetic.cast(args[0], graph_.type(node.inputs[0]).dtype, type.dtype);
    } else if (node.op->scalar.has_value()) {
      value = evaluate_rule(*node.op->scalar, args, node.attrs, dtype, arithmetic, graph_.table());
    } else {
      value = arithmetic.call(node.op->name, args, dtype);
    }
    if (!value.has_value()) return std::nullopt;
    contents.push_back(*value);
  }
  return contents;
}

SizeContents::Contents SizeContents::compute_movement(const Node& node) const {
  if (has_symbols(node.attrs)) return std::nullopt;
  if (node.op->family == op::Family::Scatter && node.attrs.text("reduction", "none") != "none") return std::nullopt;
  // Every element of the data inputs gets a number; 0 stands for the value 0 that padding without a fill gives.
  std::vector<Ratio> elements{Ratio{Expr(0), 1}};
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].valid()) {
      inputs.emplace_back();
      continue;
    }
    const op::TensorType& type = graph_.type(node.inputs[i]);
    const std::vector<Ratio>& contents = *known(node.inputs[i]);
    std::vector<int64_t> numbers;
    for (const Ratio& ratio : contents) {
      if (is_index_input(*node.op, i)) {
        if (!ratio.numerator.is_const()) return std::nullopt;
        numbers.push_back(*ratio.numerator.as_const());
      } else {
        numbers.push_back(static_cast<int64_t>(elements.size()));
        elements.push_back(ratio);
      }
    }
    inputs.push_back(Tensor::of_ints(is_index_input(*node.op, i) ? type.dtype : DType::I64, *const_dims(type), numbers));
  }
  std::vector<Tensor> outputs;
  try {
    outputs = op::run_reference(*node.op, inputs, op::concrete(node.attrs, {}), 1);
  } catch (const UserError&) {
    return std::nullopt;   // an index out of range: the error belongs to the run
  }
  std::vector<Ratio> contents;
  for (int64_t i = 0; i < outputs[0].count(); ++i) contents.push_back(elements[static_cast<size_t>(outputs[0].int_at(i))]);
  return contents;
}

SizeContents::Contents SizeContents::compute_reduction(const Node& node) const {
  const std::string_view combine = combine_op(node.op->combine);
  const op::TensorType& type = graph_.type(node.inputs[0]);
  const std::optional<Dims> dims = const_dims(type), output_dims = const_dims(graph_.type(node.outputs[0]));
  if (combine.empty() || !dims.has_value() || !output_dims.has_value()) return std::nullopt;
  std::vector<char> is_reduced(dims->size(), 0);
  for (const int64_t axis : op::normal_axes(node.op->name, node.attrs.integers("axes"), static_cast<int64_t>(dims->size())))
    if (!dims->empty()) is_reduced[static_cast<size_t>(axis)] = 1;
  const Arithmetic arithmetic(graph_.facts());
  std::vector<MaybeRatio> results(static_cast<size_t>(element_count(*output_dims)));
  const std::vector<Ratio>& elements = *known(node.inputs[0]);
  for (size_t linear = 0; linear < elements.size(); ++linear) {
    auto rest = static_cast<int64_t>(linear);
    int64_t target = 0, stride = 1;
    for (size_t axis = dims->size(); axis-- > 0;) {
      const int64_t index = rest % (*dims)[axis];
      rest /= (*dims)[axis];
      if (is_reduced[axis] != 0) continue;
      target += index * stride;
      stride *= (*dims)[axis];
    }
    MaybeRatio& result = results[static_cast<size_t>(target)];
    const Ratio args[] = {result.value_or(Ratio{}), elements[linear]};
    result = result.has_value() ? arithmetic.call(combine, args, type.dtype) : MaybeRatio(elements[linear]);
    if (!result.has_value()) return std::nullopt;
  }
  std::vector<Ratio> contents;
  for (const MaybeRatio& result : results) {
    if (result.has_value()) {
      contents.push_back(*result);
      continue;
    }
    // Nothing to combine: the neutral element, where it is a size.
    if (combine != "add" && combine != "mul" && combine != "or" && combine != "and") return std::nullopt;
    contents.push_back({Expr(combine == "mul" || combine == "and" ? 1 : 0), 1});
  }
  return contents;
}

std::optional<std::vector<Expr>> known_contents(const Graph& graph, ValueId id) { return SizeContents(graph).of(id); }

}  // namespace fuseloom::graph
