// Elementwise operators, casts, constants and random numbers.
#include <bit>

#include "base/check.h"
#include "front/onnx/model_importer.h"
#include "front/onnx/narrow.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

// One input, one output, no attribute.
ImportFn unary(std::string op) {
  return [op = std::move(op)](NodeImport& n) { n.out(n.add(op, {n.in(0)})); };
}

// Real attributes that the op has under the same names.
ImportFn unary_with(std::string op, std::vector<std::pair<std::string, double>> defaults) {
  return [op = std::move(op), defaults = std::move(defaults)](NodeImport& n) {
    Attrs attrs;
    for (const auto& [name, fallback] : defaults) attrs.set(name, n.real(name, fallback));
    n.out(n.add(op, {n.in(0)}, std::move(attrs)));
  };
}

// Opsets 1 to 6: with broadcast = 1 the second input is aligned with the first at `axis` (default: at the end).
ValueId aligned_operand(NodeImport& n, ValueId a, ValueId b) {
  if (n.version() >= 7 || n.integer("broadcast", 0) == 0 || !n.has_attr("axis")) return b;
  const int64_t axis = n.axis(n.integer("axis"), n.rank(a));
  Shape shape = n.shape(b);
  while (static_cast<int64_t>(shape.size()) < n.rank(a) - axis) shape.emplace_back(1);
  return n.reshape(b, std::move(shape));
}

ImportFn binary(std::string op) {
  return [op = std::move(op)](NodeImport& n) {
    const ValueId a = n.in(0);
    n.out(n.add(op, {a, aligned_operand(n, a, n.in(1))}));
  };
}

// Any number of inputs, combined from the left.
ValueId fold_inputs(NodeImport& n, std::string_view op) {
  ValueId result = n.in(0);
  for (size_t i = 1; i < n.input_count(); ++i) result = n.add(op, {result, n.in(i)});
  return result;
}
ImportFn variadic(std::string op) {
  return [op = std::move(op)](NodeImport& n) { n.out(fold_inputs(n, op)); };
}

void import_mean(NodeImport& n) {
  const ValueId sum = fold_inputs(n, "add");
  n.out(n.add("div", {sum, n.like(sum, static_cast<double>(n.input_count()))}));
}

void import_mod(NodeImport& n) { n.out(n.add(n.integer("fmod", 0) != 0 ? "fmod" : "floor_mod", {n.in(0), n.in(1)})); }

void import_bit_shift(NodeImport& n) {
  const std::string direction = n.text("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    n.fail(fmt::format("direction '{}' is neither LEFT nor RIGHT", direction));
  n.out(n.add(direction == "LEFT" ? "shift_left" : "shift_right", {n.in(0), n.in(1)}));
}

void import_clip(NodeImport& n) {
  ValueId x = n.in(0);
  // max(x, low) first and min(.., high) last: where low > high the result is high. NaN bounds do not occur.
  if (n.version() < 11) {
    if (n.has_attr("min")) x = n.add("max", {x, n.like(x, n.real("min", 0))});
    if (n.has_attr("max")) x = n.add("min", {x, n.like(x, n.real("max", 0))});
  } else {
    if (n.has(1)) x = n.add("max", {x, n.in(1)});
    if (n.has(2)) x = n.add("min", {x, n.in(2)});
  }
  n.out(x);
}

void import_gelu(NodeImport& n) {
  const std::string approximate = n.text("approximate", "none");
  if (approximate != "none" && approximate != "tanh")
    n.fail(fmt::format("approximate '{}' is neither none nor tanh", approximate));
  n.out(n.add(approximate == "tanh" ? "gelu_tanh" : "gelu", {n.in(0)}));
}

void import_is_inf(NodeImport& n) {
  n.out(n.add("is_inf", {n.in(0)},
              {{"positive", n.integer("detect_positive", 1)}, {"negative", n.integer("detect_negative", 1)}}));
}

void import_prelu(NodeImport& n) {
  const ValueId x = n.in(0);
  ValueId slope = n.in(1);
  // Before opset 7 a slope of rank 1 runs along the channels.
  if (n.version() < 7 && n.rank(slope) == 1 && n.rank(x) > 2 && !n.size(slope, 0).is_const(1)) {
    Shape shape(static_cast<size_t>(n.rank(x)) - 1, Expr(1));
    shape[0] = n.size(slope, 0);
    slope = n.reshape(slope, std::move(shape));
  }
  n.out(n.add("prelu", {x, slope}));
}

void import_cast(NodeImport& n) {
  const auto to = static_cast<ElementType>(n.integer("to"));
  cast_output(n, to);
}

void import_cast_like(NodeImport& n) {
  const Item& like = n.item(1);
  cast_output(n, like.narrow != ElementType::Undefined ? like.narrow : element_type_of(n.dtype(n.in(1))));
}

void import_bitcast(NodeImport& n) {
  const auto to = static_cast<ElementType>(n.integer("to"));
  if (is_narrow(to) || n.item(0).narrow != ElementType::Undefined)
    n.unsupported(
        fmt::format("a bit cast to or from {}, which fuseloom carries in a wider type", element_type_name(to)));
  n.out(n.add("bitcast", {n.in(0)}, {{"to", carrier_dtype(to, n.describe())}}));
}

void import_identity(NodeImport& n) { n.out(0, n.item(0)); }

// Philox is keyed by the seed; without one, by the node's own name, so that two nodes differ and runs repeat.
int64_t seed_of(const NodeImport& n) {
  if (const AttributeProto* const seed = n.find("seed"); seed != nullptr && seed->type == AttributeProto::Type::Int)
    return seed->i;
  if (n.has_attr("seed")) {
    return std::bit_cast<int32_t>(static_cast<float>(n.real("seed", 0)));
  }
  uint64_t hash = 1469598103934665603u;  // FNV-1a: the same on every machine
  for (const char c : n.origin()) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<int64_t>(hash >> 1);
}

// Identity, unless opset 12's training_mode says otherwise. Before, there was no training mode, or one (is_test) that
// exporters of inference models did not set.
void import_dropout(NodeImport& n) {
  const ValueId x = n.in(0);
  const auto mode = n.version() >= 12 && n.has(2) ? n.constant_integers(n.in(2)) : std::vector<int64_t>{0};
  if (mode.has_value() && mode->at(0) == 0) {
    n.out(0, n.item(0));
    if (n.wants(1)) n.out(1, n.full(DType::Bool, 1, n.shape(x)));
    return;
  }
  const ValueId training = n.reshape(n.in(2), {});
  const ValueId ratio = n.has(1) ? n.reshape(n.cast(n.in(1), DType::F32), {}) : n.scalar(DType::F32, 0.5);
  const ValueId uniform = n.add("random_uniform", {},
                                {{"shape", n.shape(x)},
                                 {"dtype", DType::F32},
                                 {"seed", seed_of(n)},
                                 {"offset", int64_t{0}},
                                 {"low", 0.0},
                                 {"high", 1.0}});
  const ValueId kept = n.add("or", {n.add("not", {training}), n.add("ge", {uniform, ratio})});
  const ValueId scale = n.cast(n.add("reciprocal", {n.add("sub", {n.like(ratio, 1), ratio})}), n.dtype(x));
  const ValueId scaled = n.add("select", {kept, n.add("mul", {x, scale}), n.like(x, 0)});
  n.out(0, n.add("select", {training, scaled, x}));
  n.out(1, kept);
}

void import_constant(NodeImport& n) {
  if (const AttributeProto* const value = n.find("value"); value != nullptr) {
    const Tensor t = n.tensor("value");
    const ElementType type = value->tensor->type;
    n.out(0, n.constant(t), is_narrow(type) ? type : ElementType::Undefined);
  } else if (n.has_attr("value_int")) {
    n.out(n.constant(Tensor::of_ints(DType::I64, {}, std::vector<int64_t>{n.integer("value_int")})));
  } else if (n.has_attr("value_float")) {
    n.out(n.scalar(DType::F32, n.real("value_float", 0)));
  } else if (n.has_attr("value_ints")) {
    n.out(n.ints(n.integers("value_ints")));
  } else if (n.has_attr("value_floats")) {
    const std::vector<double> values = n.reals("value_floats");
    n.out(n.constant(Tensor::of(DType::F32, {static_cast<int64_t>(values.size())}, values)));
  } else if (const AttributeProto* const sparse = n.find("sparse_value");
             sparse != nullptr && sparse->sparse_tensor != nullptr) {
    n.out(n.constant(n.model().tensors().load(*sparse->sparse_tensor)));
  } else if (n.has_attr("value_string") || n.has_attr("value_strings")) {
    n.unsupported("a constant of strings; fuseloom has no string type");
  } else {
    n.fail("has none of the attributes that give its value");
  }
}

// ---- random numbers
// --------------------------------------------------------------------------------------------------

ValueId random_values(NodeImport& n, bool normal, Shape shape, DType dtype, int64_t offset = 0) {
  Attrs attrs{{"shape", std::move(shape)}, {"dtype", dtype}, {"seed", seed_of(n)}, {"offset", offset}};
  if (normal) {
    attrs.set("mean", n.real("mean", 0));
    attrs.set("scale", n.real("scale", 1));
  } else {
    attrs.set("low", n.real("low", 0));
    attrs.set("high", n.real("high", 1));
  }
  return n.add(normal ? "random_normal" : "random_uniform", {}, std::move(attrs));
}

DType dtype_attribute(const NodeImport& n, DType fallback) {
  return n.has_attr("dtype") ? carrier_dtype(static_cast<ElementType>(n.integer("dtype")), n.describe()) : fallback;
}

ImportFn random(bool normal, bool like) {
  return [=](NodeImport& n) {
    if (like) {
      const ValueId x = n.in(0);
      const DType fallback = is_float(n.dtype(x)) ? n.dtype(x) : DType::F32;
      n.out(random_values(n, normal, n.shape(x), dtype_attribute(n, fallback)));
    } else {
      n.out(random_values(n, normal, op::shape_of(n.integers("shape")), dtype_attribute(n, DType::F32)));
    }
  };
}

void import_bernoulli(NodeImport& n) {
  const ValueId p = n.in(0);
  const ValueId uniform = n.add("random_uniform", {},
                                {{"shape", n.shape(p)},
                                 {"dtype", n.dtype(p)},
                                 {"seed", seed_of(n)},
                                 {"offset", int64_t{0}},
                                 {"low", 0.0},
                                 {"high", 1.0}});
  n.out(n.cast(n.add("lt", {uniform, p}), dtype_attribute(n, n.dtype(p))));
}

}  // namespace

void add_math_imports(ImportTable& t) {
  for (const auto& [onnx, op] : std::initializer_list<std::pair<const char*, const char*>>{{"Abs", "abs"},
                                                                                           {"Neg", "neg"},
                                                                                           {"Sign", "sign"},
                                                                                           {"Floor", "floor"},
                                                                                           {"Ceil", "ceil"},
                                                                                           {"Round", "round"},
                                                                                           {"Sqrt", "sqrt"},
                                                                                           {"Reciprocal", "reciprocal"},
                                                                                           {"Exp", "exp"},
                                                                                           {"Log", "log"},
                                                                                           {"Sin", "sin"},
                                                                                           {"Cos", "cos"},
                                                                                           {"Tan", "tan"},
                                                                                           {"Asin", "asin"},
                                                                                           {"Acos", "acos"},
                                                                                           {"Atan", "atan"},
                                                                                           {"Sinh", "sinh"},
                                                                                           {"Cosh", "cosh"},
                                                                                           {"Tanh", "tanh"},
                                                                                           {"Asinh", "asinh"},
                                                                                           {"Acosh", "acosh"},
                                                                                           {"Atanh", "atanh"},
                                                                                           {"Erf", "erf"},
                                                                                           {"IsNaN", "is_nan"},
                                                                                           {"Not", "not"},
                                                                                           {"BitwiseNot", "bit_not"},
                                                                                           {"Relu", "relu"},
                                                                                           {"Sigmoid", "sigmoid"},
                                                                                           {"Softplus", "softplus"},
                                                                                           {"Softsign", "softsign"},
                                                                                           {"HardSwish", "hard_swish"},
                                                                                           {"Mish", "mish"},
                                                                                           {"Det", "det"}})
    t.add(onnx, unary(op));
  t.add("LeakyRelu", unary_with("leaky_relu", {{"alpha", 0.01}}));
  t.add("Elu", unary_with("elu", {{"alpha", 1}}));
  t.add("Selu", unary_with("selu", {{"alpha", 1.67326319217681884765625}, {"gamma", 1.05070102214813232421875}}));
  t.add("Celu", unary_with("celu", {{"alpha", 1}}));
  t.add("HardSigmoid", unary_with("hard_sigmoid", {{"alpha", 0.2}, {"beta", 0.5}}));
  t.add("ThresholdedRelu", unary_with("thresholded_relu", {{"alpha", 1}}));
  t.add("Shrink", unary_with("shrink", {{"bias", 0}, {"lambd", 0.5}}));
  t.add("Swish", unary_with("swish", {{"alpha", 1}}));
  t.add("Gelu", import_gelu);
  t.add("PRelu", import_prelu);
  t.add("IsInf", import_is_inf);
  for (const auto& [onnx, op] : std::initializer_list<std::pair<const char*, const char*>>{{"Add", "add"},
                                                                                           {"Sub", "sub"},
                                                                                           {"Mul", "mul"},
                                                                                           {"Div", "div"},
                                                                                           {"Pow", "pow"},
                                                                                           {"And", "and"},
                                                                                           {"Or", "or"},
                                                                                           {"Xor", "xor"},
                                                                                           {"BitwiseAnd", "bit_and"},
                                                                                           {"BitwiseOr", "bit_or"},
                                                                                           {"BitwiseXor", "bit_xor"},
                                                                                           {"Equal", "eq"},
                                                                                           {"Less", "lt"},
                                                                                           {"LessOrEqual", "le"},
                                                                                           {"Greater", "gt"},
                                                                                           {"GreaterOrEqual", "ge"}})
    t.add(onnx, binary(op));
  t.add("Mod", import_mod);
  t.add("BitShift", import_bit_shift);
  t.add("Max", variadic("max"));
  t.add("Min", variadic("min"));
  t.add("Sum", variadic("add"));
  t.add("Mean", import_mean);
  t.add("Where", [](NodeImport& n) { n.out(n.add("select", {n.in(0), n.in(1), n.in(2)})); });
  t.add("Clip", import_clip);
  t.add("Cast", import_cast);
  t.add("CastLike", import_cast_like);
  t.add("BitCast", import_bitcast);
  t.add("Identity", import_identity);
  t.add("Dropout", import_dropout);
  t.add("Constant", import_constant);
  t.add("RandomUniform", random(false, false));
  t.add("RandomUniformLike", random(false, true));
  t.add("RandomNormal", random(true, false));
  t.add("RandomNormalLike", random(true, true));
  t.add("Bernoulli", import_bernoulli);
}

}  // namespace fuseloom::front::onnx
