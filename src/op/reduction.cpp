// Reductions, arg-reductions and scans.
//
// A reference folds the input in memory order into one state per output element: beside the walk over the input goes a
// walk whose strides lead to the state (0 along reduced axes). Every state meets its elements in increasing index
// order.
#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "op/arithmetic.h"
#include "op/axis.h"
#include "op/element.h"
#include "op/op.h"
#include "op/stream.h"

namespace fuseloom::op {
namespace {

using sym::Expr;

// ---- folding
// --------------------------------------------------------------------------------------------------------- For each
// input dimension the stride of the row-major output position: 0 where reduced.
Dims state_strides(const Dims& dims, const std::vector<int64_t>& axes) {
  Dims strides(dims.size(), 0);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end()) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

// Calls step(states[output position], element) for every element, as Value (the domain's own type, or double).
template <class Value, class State, class Step>
void fold(const Tensor& input, const std::vector<int64_t>& axes, std::vector<State>& states, Step&& step) {
  StreamReader reader(input);
  StridedWalk walk(input.dims(), state_strides(input.dims(), axes));
  const bool convert = std::is_same_v<Value, double> && reader.domain() != Domain::Real;
  ChunkBuffer own, converted;
  for (int64_t left = input.count(); left > 0; left -= kChunk) {
    const int64_t n = std::min(left, kChunk);
    reader.read(n, own.bytes);
    if (convert) convert_chunk(reader.domain(), own.bytes, Domain::Real, converted.bytes, n);
    const Value* values = convert ? converted.as<Value>() : own.as<Value>();
    walk.advance(n, [&](int64_t offset, int64_t stride, int64_t run) {
      if (stride == 0) {
        State state = states[static_cast<size_t>(offset)];
        for (int64_t i = 0; i < run; ++i) step(state, values[i]);
        states[static_cast<size_t>(offset)] = state;
      } else {
        for (int64_t i = 0; i < run; ++i) step(states[static_cast<size_t>(offset + i * stride)], values[i]);
      }
      values += run;
    });
  }
}

// Writes finish(state) for every state.
template <class Value, class State, class Finish>
void finish(Tensor& output, Domain domain, const std::vector<State>& states, Finish&& finish_state) {
  StreamWriter writer(output, domain);
  ChunkBuffer chunk;
  const int64_t count = output.count();
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(count - first, kChunk);
    for (int64_t i = 0; i < n; ++i) chunk.as<Value>()[i] = finish_state(states[static_cast<size_t>(first + i)]);
    writer.write(n, chunk.bytes);
  }
}

std::vector<int64_t> reduced_axes(const ReferenceContext& context) {
  return normal_axes(context.record->name, context.attrs.integers("axes"), context.inputs[0].rank());
}

// Elements per output element.
int64_t reduced_count(const Tensor& input, const std::vector<int64_t>& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) {
    if (input.rank() > 0) count *= input.dim(axis);
  }
  return count;
}

// ---- types
// -----------------------------------------------------------------------------------------------------------
Shape reduced_shape(const Shape& shape, const std::vector<int64_t>& axes, bool keepdims) {
  Shape result;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool reduced = std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end();
    if (!reduced) result.push_back(shape[i]);
    if (reduced && keepdims) result.push_back(1);
  }
  return result;
}

using Takes = bool (*)(DType);

bool takes_any_number(DType) { return true; }
bool takes_ordered(DType dtype) { return !is_complex(dtype); }
bool takes_bool(DType dtype) { return dtype == DType::Bool; }
bool takes_arithmetic(DType dtype) { return dtype != DType::Bool; }
bool takes_int_or_float(DType dtype) { return is_int(dtype) || is_float(dtype); }
bool takes_float(DType dtype) { return is_float(dtype); }

InferFn infer_reduction(Takes takes) {
  return [takes](const InferContext& context) -> std::vector<TensorType> {
    const TensorType& x = context.in(0);
    if (!takes(x.dtype)) context.fail(fmt::format("takes no {}", dtype_name(x.dtype)));
    const std::vector<int64_t> axes = normal_axes(context.record->name, context.attrs.integers("axes"), x.rank());
    return {{.dtype = x.dtype, .shape = reduced_shape(x.shape, axes, context.attrs.integer("keepdims") != 0)}};
  };
}

std::vector<TensorType> infer_arg(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (!takes_ordered(x.dtype)) context.fail(fmt::format("takes no {}", dtype_name(x.dtype)));
  const int64_t axis = normal_axis(context.record->name, context.attrs.integer("axis"), x.rank());
  return {{.dtype = DType::I64, .shape = reduced_shape(x.shape, {axis}, context.attrs.integer("keepdims") != 0)}};
}

std::vector<TensorType> infer_scan(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (!takes_arithmetic(x.dtype)) context.fail("takes no bool; cast it first");
  normal_axis(context.record->name, context.attrs.integer("axis"), x.rank());
  return {x};
}

Expr flops_of_input(const InferContext& context, std::span<const TensorType>) { return count_of(context.in(0).shape); }

// ---- primitive reductions
// --------------------------------------------------------------------------------------------
template <Combine how, class T>
T combine(T a, T b) {
  if constexpr (how == Combine::Add) {
    return combine_add(a, b);
  } else if constexpr (how == Combine::Mul) {
    return combine_mul(a, b);
  } else if constexpr (std::is_same_v<T, std::complex<double>>) {
    FL_CHECK(false, "complex numbers have no order");
    return a;
  } else if constexpr (how == Combine::Max || how == Combine::Or) {
    return combine_max(a, b);
  } else {
    static_assert(how == Combine::Min || how == Combine::And);
    return combine_min(a, b);
  }
}

// The value of a reduction over nothing: that of the element type, not of its domain, so that it is the lowest i8.
template <class Storage>
Computed<Storage> neutral(Combine how) {
  using Value = Computed<Storage>;
  if constexpr (!std::is_same_v<Value, std::complex<double>>) {
    if (how == Combine::Max || how == Combine::Or) {
      if constexpr (std::is_same_v<Value, bool>) return false;
      if constexpr (std::is_same_v<Value, double>) return -std::numeric_limits<double>::infinity();
      if constexpr (std::is_integral_v<Storage>) return std::numeric_limits<Storage>::min();
    }
    if (how == Combine::Min || how == Combine::And) {
      if constexpr (std::is_same_v<Value, bool>) return true;
      if constexpr (std::is_same_v<Value, double>) return std::numeric_limits<double>::infinity();
      if constexpr (std::is_integral_v<Storage>) return std::numeric_limits<Storage>::max();
    }
  }
  return Value(how == Combine::Mul ? 1 : 0);
}

template <Combine how>
void reference_reduce(const ReferenceContext& context) {
  with_storage(context.inputs[0].dtype(), [&]<class Storage>() {
    using Value = Computed<Storage>;
    // A vector<bool> has no references to its elements.
    struct State {
      Value value;
    };
    std::vector<State> states(static_cast<size_t>(context.outputs[0].count()), State{neutral<Storage>(how)});
    fold<Value>(context.inputs[0], reduced_axes(context), states,
                [](State& state, Value value) { state.value = combine<how>(state.value, value); });
    finish<Value>(context.outputs[0], domain_of(context.outputs[0].dtype()), states,
                  [](const State& state) { return state.value; });
  });
}

// ---- argmax and argmin
// -----------------------------------------------------------------------------------------------
template <class T>
bool is_nan_value(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

template <class Value>
struct Best {
  Value best = Value(0);
  int64_t seen = 0, index = 0;
};

// The first of equals (the last with select_last); a NaN is better than every number. Over nothing: 0.
template <bool kMax>
void reference_arg(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const int64_t axis = normal_axis(context.record->name, context.attrs.integer("axis"), input.rank());
  const bool last = context.attrs.integer("select_last") != 0;
  with_storage(input.dtype(), [&]<class Storage>() {
    using Value = Computed<Storage>;
    if constexpr (std::is_same_v<Value, std::complex<double>>) {
      FL_CHECK(false, "complex numbers have no order");
    } else {
      using State = Best<Value>;
      std::vector<State> states(static_cast<size_t>(context.outputs[0].count()));
      fold<Value>(input, {axis}, states, [last](State& state, Value value) {
        const bool nan = is_nan_value(value), best_nan = is_nan_value(state.best);
        const bool better = nan ? !best_nan : !best_nan && (kMax ? state.best < value : value < state.best);
        const bool equal = nan ? best_nan : value == state.best;
        if (state.seen == 0 || better || (last && equal)) {
          state.best = value;
          state.index = state.seen;
        }
        ++state.seen;
      });
      finish<int64_t>(context.outputs[0], Domain::Int, states, [](const State& state) { return state.index; });
    }
  });
}

// ---- scans
// -----------------------------------------------------------------------------------------------------------
template <Combine how>
void reference_scan(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  Tensor& output = context.outputs[0];
  const bool exclusive = context.attrs.integer("exclusive") != 0, reverse = context.attrs.integer("reverse") != 0;
  const int64_t axis = normal_axis(context.record->name, context.attrs.integer("axis"), input.rank());
  if (output.count() == 0) return;
  // Line by line: the axis is walked innermost.
  const auto innermost = [&](Dims values) {
    if (!values.empty()) std::rotate(values.begin() + axis, values.begin() + axis + 1, values.end());
    return values;
  };
  const int64_t size = input.rank() == 0 ? 1 : input.dim(axis);
  StreamReader reader(input, innermost(input.dims()), innermost(input.strides()));
  StreamWriter writer(output, reader.domain(), innermost(output.dims()), innermost(output.strides()));
  with_storage(input.dtype(), [&]<class Storage>() {
    using Value = Computed<Storage>;
    const std::unique_ptr<Value[]> line = std::make_unique<Value[]>(static_cast<size_t>(size));
    for (int64_t lines = input.count() / size; lines > 0; --lines) {
      reader.read(size, line.get());
      Value total = neutral<Storage>(how);
      for (int64_t i = 0; i < size; ++i) {
        Value& value = line[static_cast<size_t>(reverse ? size - 1 - i : i)];
        const Value next = combine<how>(total, value);
        value = exclusive ? total : next;
        total = next;
      }
      writer.write(size, line.get());
    }
  });
}

// ---- composite reductions: references
// --------------------------------------------------------------------------------
void reference_mean(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const std::vector<int64_t> axes = reduced_axes(context);
  const int64_t count = reduced_count(input, axes);
  with_domain(domain_of(input.dtype()), [&]<class Value>() {
    if constexpr (!std::is_same_v<Value, bool>) {
      std::vector<Value> sums(static_cast<size_t>(context.outputs[0].count()), Value(0));
      fold<Value>(input, axes, sums, [](Value& sum, Value value) { sum = combine_add(sum, value); });
      finish<Value>(context.outputs[0], domain_of(input.dtype()), sums, [&](Value sum) -> Value {
        if constexpr (std::is_integral_v<Value>) {
          return truncated_div(sum, static_cast<Value>(count));
        } else {
          return sum / static_cast<double>(count);
        }
      });
    }
  });
}

void reference_variance(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const std::vector<int64_t> axes = reduced_axes(context);
  const double count = static_cast<double>(reduced_count(input, axes));
  struct State {
    double mean = 0, sum = 0;
  };
  std::vector<State> states(static_cast<size_t>(context.outputs[0].count()));
  fold<double>(input, axes, states, [](State& state, double value) { state.mean += value; });
  for (State& state : states) state.mean /= count;
  fold<double>(input, axes, states, [](State& state, double value) {
    const double deviation = value - state.mean;
    state.sum += deviation * deviation;
  });
  const double divisor = float_max(count - context.attrs.real("correction"), 0);
  finish<double>(context.outputs[0], Domain::Real, states, [&](const State& state) { return state.sum / divisor; });
}

// Sums of a function of each element, then a function of the sum. Integers compute in integers when `kOwnDomain`, else
// in reals, truncated at the end.
template <bool kOwnDomain, class Map, class Finish>
ReferenceFn reference_mapped_sum(Map map, Finish finish_sum) {
  return [=](const ReferenceContext& context) {
    const Tensor& input = context.inputs[0];
    const Domain domain = kOwnDomain ? domain_of(input.dtype()) : Domain::Real;
    with_domain(domain, [&]<class Value>() {
      if constexpr (!std::is_same_v<Value, bool> && !std::is_same_v<Value, std::complex<double>>) {
        std::vector<Value> sums(static_cast<size_t>(context.outputs[0].count()), Value(0));
        fold<Value>(input, reduced_axes(context), sums,
                    [&](Value& sum, Value value) { sum = combine_add(sum, map(value)); });
        finish<Value>(context.outputs[0], domain, sums, finish_sum);
      }
    });
  };
}

void reference_log_sum_exp(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const std::vector<int64_t> axes = reduced_axes(context);
  struct State {
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
  };
  std::vector<State> states(static_cast<size_t>(context.outputs[0].count()));
  fold<double>(input, axes, states, [](State& state, double value) { state.max = float_max(state.max, value); });
  // An infinite maximum would give inf - inf; the plain formula is right there.
  for (State& state : states) state.max = std::isinf(state.max) ? 0 : state.max;
  fold<double>(input, axes, states, [](State& state, double value) { state.sum += std::exp(value - state.max); });
  finish<double>(context.outputs[0], Domain::Real, states,
                 [](const State& state) { return std::log(state.sum) + state.max; });
}

// ---- composite reductions: decompositions
// ---------------------------------------------------------------------------- What a decomposition computes in: f16
// and bf16 in f32, rounded once at the end.
class Reducer {
 public:
  Reducer(OpBuilder& builder, const DecomposeContext& context, std::string_view op, DType compute)
      : builder_(builder),
        input_(context.inputs[0]),
        result_type_(context.outputs[0]),
        compute_(compute),
        keepdims_(context.attrs.integer("keepdims")),
        axes_(normal_axes(op, context.attrs.integers("axes"), builder.type(input_).rank())) {}

  Val input() { return builder_.cast(input_, compute_); }
  Val reduce(const char* op, Val x) { return reduce(op, x, keepdims_); }
  Val reduce_keeping_dims(const char* op, Val x) { return reduce(op, x, 1); }
  Val apply(const char* op, std::vector<Val> inputs) { return builder_.apply(op, std::move(inputs)); }
  Val number(double value) { return builder_.scalar(compute_, value); }
  // The number of elements that are reduced to one.
  Val count() {
    Expr count = 1;
    const Shape shape = builder_.type(input_).shape;
    for (const int64_t axis : axes_) {
      if (!shape.empty()) count = count * shape[static_cast<size_t>(axis)];
    }
    if (count.is_const()) return number(static_cast<double>(*count.as_const()));
    return builder_.apply("sym_value", {}, {{"values", Shape{count}}, {"dtype", compute_}, {"scalar", int64_t{1}}});
  }
  // Casts back, and drops the reduced dimensions if they were kept against the node's wish.
  std::vector<Val> result(Val x) {
    if (builder_.type(x).rank() != result_type_.rank()) x = builder_.reshape(x, result_type_.shape);
    return {builder_.cast(x, result_type_.dtype)};
  }

 private:
  Val reduce(const char* op, Val x, int64_t keepdims) {
    return builder_.apply(op, {x}, {{"axes", axes_}, {"keepdims", keepdims}});
  }
  OpBuilder& builder_;
  Val input_;
  TensorType result_type_;
  DType compute_;
  int64_t keepdims_;
  std::vector<int64_t> axes_;
};

// Integers sum up in 64 bits.
DType sum_dtype(DType dtype) {
  if (is_int(dtype)) return is_unsigned_int(dtype) ? DType::U64 : DType::I64;
  return compute_dtype(dtype);
}
DType own_dtype(DType dtype) { return compute_dtype(dtype); }
// Integers compute in f64 and truncate at the end.
DType real_dtype(DType dtype) { return is_int(dtype) ? DType::F64 : compute_dtype(dtype); }

std::vector<Val> decompose_mean(Reducer& r, const DecomposeContext&) {
  return r.result(r.apply("div", {r.reduce("reduce_sum", r.input()), r.count()}));
}

// Two passes, and the second corrects the first: with d = x - mean the sum of d is 0 but for the rounding of the mean,
// whose square would otherwise end up in the result:
//   variance = max(sum(d * d) - sum(d)^2 / n, 0) / max(n - correction, 0)
std::vector<Val> decompose_variance(Reducer& r, const DecomposeContext& context) {
  const Val x = r.input(), n = r.count();
  const Val mean = r.apply("div", {r.reduce_keeping_dims("reduce_sum", x), n});
  const Val d = r.apply("sub", {x, mean});
  const Val sum = r.reduce("reduce_sum", d);
  const Val square_sum = r.reduce("reduce_sum", r.apply("mul", {d, d}));
  const Val drift = r.apply("div", {r.apply("mul", {sum, sum}), n});
  const Val centred = r.apply("max", {r.apply("sub", {square_sum, drift}), r.number(0)});
  const Val divisor = r.apply("max", {r.apply("sub", {n, r.number(context.attrs.real("correction"))}), r.number(0)});
  return r.result(r.apply("div", {centred, divisor}));
}

std::vector<Val> decompose_l1(Reducer& r, const DecomposeContext&) {
  return r.result(r.reduce("reduce_sum", r.apply("abs", {r.input()})));
}

std::vector<Val> decompose_sum_square(Reducer& r, const DecomposeContext&) {
  const Val x = r.input();
  return r.result(r.reduce("reduce_sum", r.apply("mul", {x, x})));
}

std::vector<Val> decompose_l2(Reducer& r, const DecomposeContext&) {
  const Val x = r.input();
  return r.result(r.apply("sqrt", {r.reduce("reduce_sum", r.apply("mul", {x, x}))}));
}

std::vector<Val> decompose_log_sum(Reducer& r, const DecomposeContext&) {
  return r.result(r.apply("log", {r.reduce("reduce_sum", r.input())}));
}

std::vector<Val> decompose_log_sum_exp(Reducer& r, const DecomposeContext&) {
  const Val x = r.input();
  const Val max = r.reduce_keeping_dims("reduce_max", x);
  // An infinite maximum would give inf - inf; the plain formula is right there.
  const Val shift = r.apply("select", {r.apply("is_inf", {max}), r.number(0), max});
  const Val sum = r.reduce_keeping_dims("reduce_sum", r.apply("exp", {r.apply("sub", {x, shift})}));
  return r.result(r.apply("add", {r.apply("log", {sum}), shift}));
}

}  // namespace

void add_reduction_ops(OpTable& table) {
  using Kind = AttrSpec::Kind;
  const std::vector<AttrSpec> reduction_attrs = {{"axes", Kind::Integers}, {"keepdims", Kind::Integer}};

  const auto add_reduction = [&](const char* name, const char* summary, Combine how, Takes takes,
                                 ReferenceFn reference) {
    table.add({.name = name,
               .family = Family::Reduction,
               .summary = summary,
               .attrs = reduction_attrs,
               .infer = infer_reduction(takes),
               .reference = std::move(reference),
               .combine = how,
               .flops = flops_of_input});
  };
  add_reduction("reduce_sum", "the sum along axes; bool: any", Combine::Add, takes_any_number,
                reference_reduce<Combine::Add>);
  add_reduction("reduce_prod", "the product along axes; bool: all", Combine::Mul, takes_any_number,
                reference_reduce<Combine::Mul>);
  add_reduction("reduce_max", "the largest along axes; NaN wins", Combine::Max, takes_ordered,
                reference_reduce<Combine::Max>);
  add_reduction("reduce_min", "the smallest along axes; NaN wins", Combine::Min, takes_ordered,
                reference_reduce<Combine::Min>);
  add_reduction("reduce_any", "whether any along axes holds", Combine::Or, takes_bool, reference_reduce<Combine::Or>);
  add_reduction("reduce_all", "whether all along axes hold", Combine::And, takes_bool, reference_reduce<Combine::And>);

  const auto add_arg = [&](const char* name, const char* summary, Combine how, ReferenceFn reference) {
    table.add({.name = name,
               .family = Family::Reduction,
               .summary = summary,
               .attrs = {{"axis", Kind::Integer}, {"keepdims", Kind::Integer}, {"select_last", Kind::Integer}},
               .infer = infer_arg,
               .reference = std::move(reference),
               .combine = how,
               .flops = flops_of_input});
  };
  add_arg("argmax", "the index of the first (or last) largest along an axis; NaN wins", Combine::ArgMax,
          reference_arg<true>);
  add_arg("argmin", "the index of the first (or last) smallest along an axis; NaN wins", Combine::ArgMin,
          reference_arg<false>);

  const auto add_scan = [&](const char* name, const char* summary, Combine how, ReferenceFn reference) {
    table.add({.name = name,
               .family = Family::Scan,
               .summary = summary,
               .attrs = {{"axis", Kind::Integer}, {"exclusive", Kind::Integer}, {"reverse", Kind::Integer}},
               .infer = infer_scan,
               .reference = std::move(reference),
               .combine = how});
  };
  add_scan("cumsum", "the running sum along an axis", Combine::Add, reference_scan<Combine::Add>);
  add_scan("cumprod", "the running product along an axis", Combine::Mul, reference_scan<Combine::Mul>);

  using Decompose = std::vector<Val> (*)(Reducer&, const DecomposeContext&);
  const auto add_composite = [&](const char* name, const char* summary, Takes takes, ReferenceFn reference,
                                 DType (*compute)(DType), Decompose decompose, int cost,
                                 std::vector<AttrSpec> more = {}) {
    std::vector<AttrSpec> attrs = reduction_attrs;
    attrs.insert(attrs.end(), more.begin(), more.end());
    table.add({.name = name,
               .family = Family::Composite,
               .summary = summary,
               .attrs = std::move(attrs),
               .infer = infer_reduction(takes),
               .reference = std::move(reference),
               .decompose =
                   [=](OpBuilder& builder, const DecomposeContext& context) {
                     Reducer reducer(builder, context, name, compute(builder.type(context.inputs[0]).dtype));
                     return decompose(reducer, context);
                   },
               .cost = cost,
               .flops = flops_of_input});
  };
  const auto same = [](auto value) { return value; };
  const auto absolute = [](auto value) {
    using Value = decltype(value);
    if constexpr (std::is_same_v<Value, int64_t>) return value < 0 ? wrap_sub<int64_t>(0, value) : value;
    if constexpr (std::is_same_v<Value, uint64_t>) return value;
    if constexpr (std::is_same_v<Value, double>) return std::fabs(value);
  };
  const auto squared = [](auto value) { return combine_mul(value, value); };
  const auto root = [](auto value) { return std::sqrt(value); };
  const auto logarithm = [](auto value) { return std::log(value); };
  add_composite("reduce_mean", "the mean along axes; integers truncate; NaN over nothing", takes_arithmetic,
                reference_mean, sum_dtype, decompose_mean, 1);
  add_composite("reduce_variance", "the mean squared deviation along axes, divided by count - correction", takes_float,
                reference_variance, own_dtype, decompose_variance, 3, {{"correction", Kind::Real}});
  add_composite("reduce_l1", "the sum of absolute values along axes", takes_int_or_float,
                reference_mapped_sum<true>(absolute, same), own_dtype, decompose_l1, 2);
  add_composite("reduce_sum_square", "the sum of squares along axes", takes_int_or_float,
                reference_mapped_sum<true>(squared, same), own_dtype, decompose_sum_square, 2);
  add_composite("reduce_l2", "the root of the sum of squares along axes", takes_int_or_float,
                reference_mapped_sum<false>(squared, root), real_dtype, decompose_l2, 2);
  add_composite("reduce_log_sum", "the logarithm of the sum along axes", takes_int_or_float,
                reference_mapped_sum<false>(same, logarithm), real_dtype, decompose_log_sum, 1);
  add_composite("reduce_log_sum_exp", "the logarithm of the sum of exponentials along axes", takes_int_or_float,
                reference_log_sum_exp, real_dtype, decompose_log_sum_exp, 12);
}

}  // namespace fuseloom::op
