#include "op/elementwise.h"

#include <algorithm>

#include "base/check.h"
#include "op/arithmetic.h"
#include "op/stream.h"

namespace fuseloom::op {

namespace {

using Complex = std::complex<double>;

// ---- chunk functions
// ------------------------------------------------------------------------------------------------- `F` is a lambda
// without captures: its type alone is the function.
template <class Result, class A, class F>
ChunkFn unary(F) {
  return [](const void* const* inputs, void* result, int64_t n) {
    const A* a = static_cast<const A*>(inputs[0]);
    Result* out = static_cast<Result*>(result);
    for (int64_t i = 0; i < n; ++i) out[i] = F{}(a[i]);
  };
}

template <class Result, class A, class F>
ChunkFn binary(F) {
  return [](const void* const* inputs, void* result, int64_t n) {
    const A* a = static_cast<const A*>(inputs[0]);
    const A* b = static_cast<const A*>(inputs[1]);
    Result* out = static_cast<Result*>(result);
    for (int64_t i = 0; i < n; ++i) out[i] = F{}(a[i], b[i]);
  };
}

template <class T>
void select_chunk(const void* const* inputs, void* result, int64_t n) {
  const bool* condition = static_cast<const bool*>(inputs[0]);
  const T* a = static_cast<const T*>(inputs[1]);
  const T* b = static_cast<const T*>(inputs[2]);
  T* out = static_cast<T*>(result);
  for (int64_t i = 0; i < n; ++i) out[i] = condition[i] ? a[i] : b[i];
}

using Functions = std::array<ChunkFn, kDomainCount>;  // bool, int, uint, real, complex

template <class F>
Functions on_reals(F f) {
  return {nullptr, nullptr, nullptr, unary<double, double>(f), nullptr};
}
template <class F>
Functions on_reals_and_complex(F f) {
  return {nullptr, nullptr, nullptr, unary<double, double>(f), unary<Complex, Complex>(f)};
}
// Rounding functions: integers pass through.
template <class F>
Functions rounding(F f) {
  const auto same = [](auto a) { return a; };
  return {nullptr, unary<int64_t, int64_t>(same), unary<uint64_t, uint64_t>(same), unary<double, double>(f), nullptr};
}
template <class F>
Functions comparison(F f) {
  return {nullptr, binary<bool, int64_t>(f), binary<bool, uint64_t>(f), binary<bool, double>(f), nullptr};
}
template <class F>
Functions equality(F f) {
  return {binary<bool, bool>(f), binary<bool, int64_t>(f), binary<bool, uint64_t>(f), binary<bool, double>(f),
          binary<bool, Complex>(f)};
}
template <class F>
Functions on_integers(F f) {
  return {nullptr, binary<int64_t, int64_t>(f), binary<uint64_t, uint64_t>(f), nullptr, nullptr};
}
template <class F>
Functions on_bits(F f) {
  return {binary<bool, bool>(f), binary<int64_t, int64_t>(f), binary<uint64_t, uint64_t>(f), nullptr, nullptr};
}
template <class F>
Functions on_bools(F f) {
  return {binary<bool, bool>(f), nullptr, nullptr, nullptr, nullptr};
}
// One function for integers (template over the domain), one for reals.
template <class I, class R>
Functions on_numbers(I integer, R real) {
  return {nullptr, binary<int64_t, int64_t>(integer), binary<uint64_t, uint64_t>(integer), binary<double, double>(real),
          nullptr};
}

std::vector<Primitive> make_primitives() {
  using Result = Primitive::Result;
  std::vector<Primitive> rows;
  const auto add1 = [&](std::string_view name, int cost, Functions functions, std::string_view summary,
                        Result result = Result::Same) {
    rows.push_back(
        {.name = name, .arity = 1, .result = result, .cost = cost, .functions = functions, .summary = summary});
  };
  const auto add2 = [&](std::string_view name, int cost, bool commutative, Functions functions,
                        std::string_view summary, Result result = Result::Same) {
    rows.push_back({.name = name,
                    .arity = 2,
                    .result = result,
                    .cost = cost,
                    .commutative = commutative,
                    .functions = functions,
                    .summary = summary});
  };

  // Numbers.
  const auto wrap_neg = [](auto a) { return wrap_sub(decltype(a)(0), a); };
  const auto same = [](auto a) { return a; };
  add1("neg", 1,
       {nullptr, unary<int64_t, int64_t>(wrap_neg), unary<uint64_t, uint64_t>(wrap_neg),
        unary<double, double>([](double a) { return -a; }), unary<Complex, Complex>([](Complex a) { return -a; })},
       "-x");
  add1("abs", 1,
       {nullptr, unary<int64_t, int64_t>([](int64_t a) { return a < 0 ? wrap_sub<int64_t>(0, a) : a; }),
        unary<uint64_t, uint64_t>(same), unary<double, double>([](double a) { return std::fabs(a); }),
        unary<double, Complex>([](Complex a) { return std::abs(a); })},
       "|x|", Result::Part);
  const auto sign = [](auto a) { return sign_of(a); };
  add1("sign", 1,
       {nullptr, unary<int64_t, int64_t>(sign), unary<uint64_t, uint64_t>(sign), unary<double, double>(sign), nullptr},
       "-1, 0 or 1; NaN for NaN");
  add1("floor", 1, rounding([](double a) { return std::floor(a); }), "the largest integer not above x");
  add1("ceil", 1, rounding([](double a) { return std::ceil(a); }), "the smallest integer not below x");
  add1("trunc", 1, rounding([](double a) { return std::trunc(a); }), "rounded toward zero");
  add1("round", 1, rounding([](double a) { return std::nearbyint(a); }), "rounded to nearest, half to even");

  // Floats.
  add1("sqrt", 4, on_reals_and_complex([](auto a) { return std::sqrt(a); }), "square root");
  add1("rsqrt", 6, on_reals([](double a) { return 1 / std::sqrt(a); }), "1 / sqrt(x)");
  add1("reciprocal", 4, on_reals([](double a) { return 1 / a; }), "1 / x");
  add1("exp", 8, on_reals_and_complex([](auto a) { return std::exp(a); }), "e to the x");
  add1("expm1", 12, on_reals([](double a) { return std::expm1(a); }), "exp(x) - 1");
  add1("log", 8, on_reals_and_complex([](auto a) { return std::log(a); }), "natural logarithm");
  add1("log1p", 12, on_reals([](double a) { return std::log1p(a); }), "log(1 + x)");
  add1("sin", 12, on_reals_and_complex([](auto a) { return std::sin(a); }), "sine");
  add1("cos", 12, on_reals_and_complex([](auto a) { return std::cos(a); }), "cosine");
  add1("tan", 16, on_reals([](double a) { return std::tan(a); }), "tangent");
  add1("asin", 12, on_reals([](double a) { return std::asin(a); }), "arc sine");
  add1("acos", 12, on_reals([](double a) { return std::acos(a); }), "arc cosine");
  add1("atan", 12, on_reals([](double a) { return std::atan(a); }), "arc tangent");
  add1("sinh", 12, on_reals([](double a) { return std::sinh(a); }), "hyperbolic sine");
  add1("cosh", 12, on_reals([](double a) { return std::cosh(a); }), "hyperbolic cosine");
  add1("tanh", 12, on_reals_and_complex([](auto a) { return std::tanh(a); }), "hyperbolic tangent");
  add1("asinh", 16, on_reals([](double a) { return std::asinh(a); }), "inverse hyperbolic sine");
  add1("acosh", 16, on_reals([](double a) { return std::acosh(a); }), "inverse hyperbolic cosine");
  add1("atanh", 16, on_reals([](double a) { return std::atanh(a); }), "inverse hyperbolic tangent");
  add1("erf", 12, on_reals([](double a) { return std::erf(a); }), "the error function");
  add1("is_nan", 1, {nullptr, nullptr, nullptr, unary<bool, double>([](double a) { return std::isnan(a); }), nullptr},
       "whether x is NaN", Result::Bool);
  add1("is_inf", 1, {nullptr, nullptr, nullptr, unary<bool, double>([](double a) { return std::isinf(a); }), nullptr},
       "whether x is infinite, of the signs that the attributes name", Result::Bool);

  // Bits.
  add1("not", 1, {unary<bool, bool>([](bool a) { return !a; }), nullptr, nullptr, nullptr, nullptr}, "logical not");
  const auto flip = [](auto a) { return static_cast<decltype(a)>(~a); };
  add1("bit_not", 1,
       {unary<bool, bool>([](bool a) { return !a; }), unary<int64_t, int64_t>(flip), unary<uint64_t, uint64_t>(flip),
        nullptr, nullptr},
       "every bit flipped");

  // Complex.
  add1("real", 1, {nullptr, nullptr, nullptr, nullptr, unary<double, Complex>([](Complex a) { return a.real(); })},
       "the real part", Result::Part);
  add1("imag", 1, {nullptr, nullptr, nullptr, nullptr, unary<double, Complex>([](Complex a) { return a.imag(); })},
       "the imaginary part", Result::Part);
  add1("conj", 1, {nullptr, nullptr, nullptr, nullptr, unary<Complex, Complex>([](Complex a) { return std::conj(a); })},
       "the complex conjugate");

  // Arithmetic.
  const auto either = [](bool a, bool b) { return a || b; };
  const auto both = [](bool a, bool b) { return a && b; };
  Functions sum = on_numbers([](auto a, auto b) { return wrap_add(a, b); }, [](double a, double b) { return a + b; });
  sum[0] = binary<bool, bool>(either);
  sum[4] = binary<Complex, Complex>([](Complex a, Complex b) { return a + b; });
  add2("add", 1, true, sum, "a + b; bool: or");
  Functions difference =
      on_numbers([](auto a, auto b) { return wrap_sub(a, b); }, [](double a, double b) { return a - b; });
  difference[4] = binary<Complex, Complex>([](Complex a, Complex b) { return a - b; });
  add2("sub", 1, false, difference, "a - b");
  Functions product =
      on_numbers([](auto a, auto b) { return wrap_mul(a, b); }, [](double a, double b) { return a * b; });
  product[0] = binary<bool, bool>(both);
  product[4] = binary<Complex, Complex>([](Complex a, Complex b) { return complex_mul(a, b); });
  add2("mul", 1, true, product, "a * b; bool: and");
  Functions quotient =
      on_numbers([](auto a, auto b) { return truncated_div(a, b); }, [](double a, double b) { return a / b; });
  quotient[4] = binary<Complex, Complex>([](Complex a, Complex b) { return a / b; });
  add2("div", 4, false, quotient, "a / b; integers truncate");
  add2("floor_div", 6, false,
       on_numbers([](auto a, auto b) { return floor_div(a, b); }, [](double a, double b) { return floor_div(a, b); }),
       "a / b rounded down");
  add2("floor_mod", 6, false,
       on_numbers([](auto a, auto b) { return floor_mod(a, b); }, [](double a, double b) { return floor_mod(a, b); }),
       "the remainder of floor_div, with the sign of b");
  add2("fmod", 6, false,
       on_numbers([](auto a, auto b) { return truncated_mod(a, b); },
                  [](double a, double b) { return std::fmod(a, b); }),
       "the remainder of the truncated division, with the sign of a");
  add2(
      "pow", 16, false,
      on_numbers([](auto a, auto b) { return integer_power(a, b); }, [](double a, double b) { return std::pow(a, b); }),
      "a to the b");
  Functions larger =
      on_numbers([](auto a, auto b) { return std::max(a, b); }, [](double a, double b) { return float_max(a, b); });
  larger[0] = binary<bool, bool>(either);
  add2("max", 1, true, larger, "the larger; NaN wins");
  Functions smaller =
      on_numbers([](auto a, auto b) { return std::min(a, b); }, [](double a, double b) { return float_min(a, b); });
  smaller[0] = binary<bool, bool>(both);
  add2("min", 1, true, smaller, "the smaller; NaN wins");
  add2(
      "atan2", 16, false,
      {nullptr, nullptr, nullptr, binary<double, double>([](double a, double b) { return std::atan2(a, b); }), nullptr},
      "the angle of the point (b, a)");

  // Logic and bits.
  add2("and", 1, true, on_bools(both), "logical and");
  add2("or", 1, true, on_bools(either), "logical or");
  add2("xor", 1, true, on_bools([](bool a, bool b) { return a != b; }), "logical exclusive or");
  add2("bit_and", 1, true, on_bits([](auto a, auto b) { return static_cast<decltype(a)>(a & b); }), "bitwise and");
  add2("bit_or", 1, true, on_bits([](auto a, auto b) { return static_cast<decltype(a)>(a | b); }), "bitwise or");
  add2("bit_xor", 1, true, on_bits([](auto a, auto b) { return static_cast<decltype(a)>(a ^ b); }),
       "bitwise exclusive or");
  add2("shift_left", 1, false, on_integers([](auto a, auto b) { return left_shift(a, b); }),
       "a << b; 0 when b is out of range");
  add2("shift_right", 1, false, on_integers([](auto a, auto b) { return right_shift(a, b); }),
       "a >> b, arithmetic for signed types; 0 or -1 when b is out of range");

  // Comparisons.
  add2("eq", 1, true, equality([](auto a, auto b) { return a == b; }), "a == b", Result::Bool);
  add2("ne", 1, true, equality([](auto a, auto b) { return a != b; }), "a != b", Result::Bool);
  add2("lt", 1, false, comparison([](auto a, auto b) { return a < b; }), "a < b", Result::Bool);
  add2("le", 1, false, comparison([](auto a, auto b) { return a <= b; }), "a <= b", Result::Bool);
  add2("gt", 1, false, comparison([](auto a, auto b) { return a > b; }), "a > b", Result::Bool);
  add2("ge", 1, false, comparison([](auto a, auto b) { return a >= b; }), "a >= b", Result::Bool);

  rows.push_back({.name = "select",
                  .arity = 3,
                  .functions = {&select_chunk<bool>, &select_chunk<int64_t>, &select_chunk<uint64_t>,
                                &select_chunk<double>, &select_chunk<Complex>},
                  .summary = "a where c holds, else b"});
  return rows;
}

}  // namespace

std::span<const Primitive> primitives() {
  static const std::vector<Primitive> rows = make_primitives();
  return rows;
}

const Primitive* find_primitive(std::string_view name) {
  static const std::map<std::string_view, const Primitive*> by_name = [] {
    std::map<std::string_view, const Primitive*> map;
    for (const Primitive& primitive : primitives()) map.emplace(primitive.name, &primitive);
    return map;
  }();
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : it->second;
}

// ---- types
// -----------------------------------------------------------------------------------------------------------
namespace {

DType part_of(DType dtype) {
  if (dtype == DType::C64) return DType::F32;
  return dtype == DType::C128 ? DType::F64 : dtype;
}

}  // namespace

DType primitive_result(const Primitive& primitive, std::span<const DType> inputs, std::string_view asker) {
  // "gelu: exp takes no i32" inside a rule, "exp: takes no i32" for the op itself.
  const std::string prefix =
      asker == primitive.name ? fmt::format("{}:", asker) : fmt::format("{}: its rule's {}", asker, primitive.name);
  const size_t first = primitive.name == "select" ? 1 : 0;
  if (first == 1) {
    FL_REQUIRE(inputs[0] == DType::Bool, "{} the condition must be bool, found {}", prefix, dtype_name(inputs[0]));
  }
  const DType dtype = inputs[first];
  for (size_t i = first + 1; i < inputs.size(); ++i) {
    FL_REQUIRE(inputs[i] == dtype, "{} the inputs must have one element type, found {} and {}; cast one of them",
               prefix, dtype_name(dtype), dtype_name(inputs[i]));
  }
  FL_REQUIRE(primitive.functions[static_cast<size_t>(domain_of(dtype))] != nullptr, "{} takes no {}", prefix,
             dtype_name(dtype));
  switch (primitive.result) {
    case Primitive::Result::Same:
      return dtype;
    case Primitive::Result::Bool:
      return DType::Bool;
    case Primitive::Result::Part:
      return part_of(dtype);
  }
  __builtin_unreachable();
}

DType rule_dtype(std::span<const DType> inputs) {
  const auto it = std::find_if(inputs.begin(), inputs.end(), [](DType dtype) { return dtype != DType::Bool; });
  return it == inputs.end() ? DType::Bool : *it;
}

DType rule_result(const ScalarNode& rule, std::span<const DType> inputs, std::string_view asker) {
  switch (rule.kind) {
    case ScalarNode::Kind::Input:
      return inputs[static_cast<size_t>(rule.input)];
    case ScalarNode::Kind::Constant:
    case ScalarNode::Kind::Attribute:
      return rule_dtype(inputs);
    case ScalarNode::Kind::Call: {
      const Primitive* primitive = find_primitive(rule.name);
      FL_CHECK(primitive != nullptr, "{}: its rule calls '{}', which is no built-in primitive", asker, rule.name);
      std::vector<DType> args;
      for (const ScalarNode& arg : rule.args) args.push_back(rule_result(arg, inputs, asker));
      return primitive_result(*primitive, args, asker);
    }
  }
  __builtin_unreachable();
}

Shape broadcast_inputs(const InferContext& context) {
  Shape shape;
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (!context.has(i)) continue;
    try {
      shape = broadcast_shapes(shape, context.in(i).shape);
    } catch (const UserError& error) {
      std::string types;
      for (const TensorType& type : context.inputs) types += (types.empty() ? "" : ", ") + to_string(type);
      context.fail(fmt::format("{} (inputs {})", error.what(), types));
    }
  }
  return shape;
}

namespace {

std::vector<DType> input_dtypes(std::span<const TensorType> inputs) {
  std::vector<DType> dtypes;
  for (const TensorType& type : inputs) dtypes.push_back(type.dtype);
  return dtypes;
}

std::vector<TensorType> infer_primitive(const InferContext& context) {
  const Primitive& primitive = *find_primitive(context.record->name);
  return {{.dtype = primitive_result(primitive, input_dtypes(context.inputs), primitive.name),
           .shape = broadcast_inputs(context)}};
}

// Readers over the inputs, each broadcast to the output.
std::vector<StreamReader> broadcast_readers(const ReferenceContext& context) {
  const Dims& dims = context.outputs[0].dims();
  std::vector<StreamReader> readers;
  for (const Tensor& input : context.inputs) readers.emplace_back(input, dims, broadcast_strides(input, dims));
  return readers;
}

// Streams the inputs through `compute`, which maps chunks of the inputs' domains to a chunk of the `result` domain.
template <class Compute>
void map_chunks(const ReferenceContext& context, Domain result, Compute&& compute) {
  std::vector<StreamReader> readers = broadcast_readers(context);
  StreamWriter writer(context.outputs[0], result);
  std::vector<ChunkBuffer> buffers(readers.size() + 1);
  std::vector<const void*> inputs;
  for (size_t i = 0; i < readers.size(); ++i) inputs.push_back(buffers[i].bytes);
  void* out = buffers.back().bytes;
  for (int64_t left = context.outputs[0].count(); left > 0; left -= kChunk) {
    const int64_t n = std::min(left, kChunk);
    for (size_t i = 0; i < readers.size(); ++i) readers[i].read(n, buffers[i].bytes);
    compute(inputs.data(), out, n);
    writer.write(n, out);
  }
}

Domain result_domain(const Primitive& primitive, Domain data) {
  switch (primitive.result) {
    case Primitive::Result::Same:
      return data;
    case Primitive::Result::Bool:
      return Domain::Bool;
    case Primitive::Result::Part:
      return data == Domain::Complex ? Domain::Real : data;
  }
  __builtin_unreachable();
}

void reference_primitive(const ReferenceContext& context) {
  const Primitive& primitive = *find_primitive(context.record->name);
  const Domain data = domain_of(context.inputs.back().dtype());
  map_chunks(context, result_domain(primitive, data), primitive.functions[static_cast<size_t>(data)]);
}

// A rule laid out as steps over chunk buffers: the buffers of the inputs first, then one per node of the tree.
class RuleProgram {
 public:
  RuleProgram(const ScalarNode& rule, std::span<const DType> inputs, const Attrs& attrs)
      : inputs_(inputs.begin(), inputs.end()), attrs_(attrs), buffers_(inputs.size()) {
    result_ = add(rule).buffer;
  }
  void* input(size_t i) { return buffers_[i].bytes; }
  const void* run(int64_t n) {
    for (Step& step : steps_) {
      std::array<const void*, 3> args = {};
      for (size_t i = 0; i < step.args.size(); ++i) args[i] = buffers_[step.args[i]].bytes;
      step.function(args.data(), buffers_[step.result].bytes, n);
      if (is_int(step.dtype) && dtype_bits(step.dtype) < 64) wrap(step.dtype, buffers_[step.result], n);
    }
    return buffers_[result_].bytes;
  }

 private:
  struct Step {
    ChunkFn function;
    std::vector<size_t> args;
    size_t result;
    DType dtype = DType::Bool;  // of the result
  };
  struct Place {
    size_t buffer;
    DType dtype;
  };

  Place add(const ScalarNode& node) {
    switch (node.kind) {
      case ScalarNode::Kind::Input:
        return {static_cast<size_t>(node.input), inputs_[static_cast<size_t>(node.input)]};
      case ScalarNode::Kind::Constant:
        return add_constant(node.constant);
      case ScalarNode::Kind::Attribute:
        return add_constant(attrs_.real(node.name));
      case ScalarNode::Kind::Call: {
        const Primitive& primitive = *find_primitive(node.name);
        Step step;
        std::vector<DType> dtypes;
        for (const ScalarNode& arg : node.args) {
          const Place place = add(arg);
          step.args.push_back(place.buffer);
          dtypes.push_back(place.dtype);
        }
        step.function = primitive.functions[static_cast<size_t>(domain_of(dtypes.back()))];
        step.result = buffers_.size();
        buffers_.emplace_back();
        step.dtype = primitive_result(primitive, dtypes, node.name);
        const Place place{step.result, step.dtype};
        steps_.push_back(std::move(step));
        return place;
      }
    }
    __builtin_unreachable();
  }

  // Every call of a rule gives a number of its type: a quotient of 64-bit numbers would not wrap to the right one.
  static void wrap(DType dtype, ChunkBuffer& buffer, int64_t n) {
    with_storage(dtype, [&]<class Storage>() {
      auto* const values = buffer.as<Computed<Storage>>();
      for (int64_t i = 0; i < n; ++i) values[i] = load(store<Storage>(values[i]));
    });
  }

  // A constant is rounded to the compute dtype, as kernels hold it.
  Place add_constant(double value) {
    const DType dtype = compute_dtype(rule_dtype(inputs_));
    const size_t buffer = buffers_.size();
    buffers_.emplace_back();
    with_storage(dtype, [&]<class Storage>() {
      std::fill_n(buffers_[buffer].as<Computed<Storage>>(), kChunk, load(store<Storage>(value)));
    });
    return {buffer, rule_dtype(inputs_)};
  }

  std::vector<DType> inputs_;
  const Attrs& attrs_;
  std::vector<ChunkBuffer> buffers_;
  std::vector<Step> steps_;
  size_t result_ = 0;
};

}  // namespace

std::vector<TensorType> infer_by_rule(const InferContext& context) {
  return {{.dtype = rule_result(*context.record->scalar, input_dtypes(context.inputs), context.record->name),
           .shape = broadcast_inputs(context)}};
}

void reference_by_rule(const ReferenceContext& context) {
  std::vector<DType> dtypes;
  for (const Tensor& input : context.inputs) dtypes.push_back(input.dtype());
  RuleProgram program(*context.record->scalar, dtypes, context.attrs);
  std::vector<StreamReader> readers = broadcast_readers(context);
  StreamWriter writer(context.outputs[0], domain_of(context.outputs[0].dtype()));
  for (int64_t left = context.outputs[0].count(); left > 0; left -= kChunk) {
    const int64_t n = std::min(left, kChunk);
    for (size_t i = 0; i < readers.size(); ++i) readers[i].read(n, program.input(i));
    writer.write(n, program.run(n));
  }
}

// ---- records
// ---------------------------------------------------------------------------------------------------------
namespace {

void reference_is_inf(const ReferenceContext& context) {
  const bool positive = context.attrs.integer("positive", 1) != 0, negative = context.attrs.integer("negative", 1) != 0;
  map_chunks(context, Domain::Bool, [&](const void* const* inputs, void* result, int64_t n) {
    const double* a = static_cast<const double*>(inputs[0]);
    bool* out = static_cast<bool*>(result);
    for (int64_t i = 0; i < n; ++i) out[i] = std::isinf(a[i]) && (a[i] > 0 ? positive : negative);
  });
}

// The exponent may have another type than the base, whose type the result has. A real on either side makes the
// computation real.
std::vector<TensorType> infer_pow(const InferContext& context) {
  for (size_t i = 0; i < 2; ++i) {
    const DType dtype = context.in(i).dtype;
    if (dtype == DType::Bool || is_complex(dtype)) context.fail(fmt::format("takes no {}", dtype_name(dtype)));
  }
  return {{.dtype = context.in(0).dtype, .shape = broadcast_inputs(context)}};
}

void reference_pow(const ReferenceContext& context) {
  const Domain base = domain_of(context.inputs[0].dtype()), exponent = domain_of(context.inputs[1].dtype());
  const Domain domain = exponent == Domain::Real ? Domain::Real : base;
  const ChunkFn function = find_primitive("pow")->functions[static_cast<size_t>(domain)];
  ChunkBuffer a, b;
  map_chunks(context, domain, [&](const void* const* inputs, void* result, int64_t n) {
    convert_chunk(base, inputs[0], domain, a.bytes, n);
    convert_chunk(exponent, inputs[1], domain, b.bytes, n);
    const void* const args[] = {a.bytes, b.bytes};
    function(args, result, n);
  });
}

std::vector<TensorType> infer_cast(const InferContext& context) {
  return {{.dtype = context.attrs.dtype("to"), .shape = context.in(0).shape}};
}

void reference_cast(const ReferenceContext& context) {
  StreamReader reader(context.inputs[0]);
  StreamWriter writer(context.outputs[0], reader.domain());
  ChunkBuffer chunk;
  for (int64_t left = context.outputs[0].count(); left > 0; left -= kChunk) {
    const int64_t n = std::min(left, kChunk);
    reader.read(n, chunk.bytes);
    writer.write(n, chunk.bytes);
  }
}

std::vector<TensorType> infer_bitcast(const InferContext& context) {
  const DType from = context.in(0).dtype, to = context.attrs.dtype("to");
  if (dtype_bits(from) != dtype_bits(to)) {
    context.fail(
        fmt::format("{} has {} bits, {} has {}", dtype_name(from), dtype_bits(from), dtype_name(to), dtype_bits(to)));
  }
  if (to == DType::Bool && from != DType::Bool)
    context.fail("bits are not reinterpreted as bool; compare with 0 or cast");
  return {{.dtype = to, .shape = context.in(0).shape}};
}

void reference_bitcast(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  Tensor& output = context.outputs[0];
  copy_strided(input.dtype(), output.data(), output.strides(), input.data(), input.strides(), input.dims());
}

}  // namespace

void add_elementwise_ops(OpTable& table) {
  for (const Primitive& primitive : primitives()) {
    OpRecord record{.name = std::string(primitive.name),
                    .family = Family::Elementwise,
                    .summary = std::string(primitive.summary),
                    .min_inputs = primitive.arity,
                    .max_inputs = primitive.arity,
                    .infer = infer_primitive,
                    .reference = reference_primitive,
                    .commutative = primitive.commutative,
                    .cost = primitive.cost};
    if (primitive.name == "is_inf") {
      record.attrs = {{"positive", AttrSpec::Kind::Integer, false}, {"negative", AttrSpec::Kind::Integer, false}};
      record.reference = reference_is_inf;
    } else if (primitive.name == "pow") {
      record.infer = infer_pow;
      record.reference = reference_pow;
    }
    table.add(std::move(record));
  }
  table.add({.name = "cast",
             .family = Family::Elementwise,
             .summary = "x converted to another element type",
             .attrs = {{"to", AttrSpec::Kind::Type}},
             .infer = infer_cast,
             .reference = reference_cast});
  table.add({.name = "bitcast",
             .family = Family::Elementwise,
             .summary = "the bits of x as another element type of the same size",
             .attrs = {{"to", AttrSpec::Kind::Type}},
             .infer = infer_bitcast,
             .reference = reference_bitcast});
}

}  // namespace fuseloom::op
