// Source ops: results that depend on no data input.
#include <algorithm>

#include "base/check.h"
#include "op/axis.h"
#include "op/element.h"
#include "op/op.h"
#include "op/philox.h"
#include "op/stream.h"

namespace fuseloom::op {
namespace {

// Fills the output in row-major order: `fill(first, n, values)` gives n values of the domain from element `first` on.
template <class Value, class Fill>
void generate(Tensor& output, Domain domain, Fill&& fill) {
  StreamWriter writer(output, domain);
  ChunkBuffer chunk;
  const int64_t count = output.count();
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(count - first, kChunk);
    fill(first, n, chunk.as<Value>());
    writer.write(n, chunk.bytes);
  }
}

Shape shape_attribute(const InferContext& context) {
  Shape shape = context.attrs.shape("shape");
  for (const sym::Expr& size : shape) {
    if (size.is_const() && *size.as_const() < 0) context.fail("the shape " + to_string(shape) + " has a negative size");
  }
  return shape;
}

// ---- constant
// --------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_constant(const InferContext& context) {
  const Tensor& value = context.attrs.tensor("value");
  if (!value.valid()) context.fail("the value is no tensor");
  return {{.dtype = value.dtype(), .shape = shape_of(value.dims())}};
}

void reference_constant(const ReferenceContext& context) {
  const Tensor& value = context.attrs.tensor("value");
  copy_strided(value.dtype(), context.outputs[0].data(), context.outputs[0].strides(), value.data(), value.strides(),
               value.dims());
}

// ---- iota
// ------------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_iota(const InferContext& context) {
  Shape shape = shape_attribute(context);
  if (shape.empty()) context.fail("a 0-d tensor has no axis to count along");
  normal_axis(context.record->name, context.attrs.integer("axis"), static_cast<int64_t>(shape.size()));
  return {{.dtype = context.attrs.dtype("dtype"), .shape = std::move(shape)}};
}

void reference_iota(const ReferenceContext& context) {
  Tensor& output = context.outputs[0];
  const size_t axis =
      static_cast<size_t>(normal_axis(context.record->name, context.attrs.integer("axis"), output.rank()));
  const int64_t size = output.dims()[axis];
  const int64_t stride = output.strides()[axis];
  generate<int64_t>(output, Domain::Int, [&](int64_t first, int64_t n, int64_t* values) {
    for (int64_t i = 0; i < n; ++i) values[i] = (first + i) / stride % size;
  });
}

// ---- sizes as values, values as sizes
// --------------------------------------------------------------------------------
std::vector<TensorType> infer_sym_value(const InferContext& context) {
  const int64_t count = static_cast<int64_t>(context.attrs.shape("values").size());
  const bool scalar = context.attrs.integer("scalar", 0) != 0;
  if (scalar && count != 1) context.fail(fmt::format("a 0-d result takes one expression, found {}", count));
  return {{.dtype = context.attrs.dtype("dtype"), .shape = scalar ? Shape{} : Shape{count}}};
}

void reference_sym_value(const ReferenceContext& context) {
  const std::vector<int64_t>& values = context.attrs.integers("values");
  StreamWriter(context.outputs[0], Domain::Int).write(static_cast<int64_t>(values.size()), values.data());
}

std::vector<TensorType> infer_bind_symbols(const InferContext& context) {
  const TensorType& x = context.in(0);
  const Shape symbols = context.attrs.shape("defines");
  if (!is_int(x.dtype) && x.dtype != DType::Bool) context.fail("sizes are integers, found " + to_string(x));
  for (const sym::Expr& symbol : symbols) {
    if (!symbol.is_symbol()) context.fail("'defines' lists symbols, found " + sym::to_string(symbol));
  }
  const sym::Expr count = count_of(x.shape);
  const int64_t expected = static_cast<int64_t>(symbols.size());
  if (sym::prove_equal(count, expected) == sym::Proof::No) {
    context.fail(fmt::format("{} has {} elements for {} symbols", to_string(x), sym::to_string(count), expected));
  }
  return {{.dtype = DType::I64, .shape = {expected}}};
}

void reference_bind_symbols(const ReferenceContext& context) {
  StreamReader reader(context.inputs[0]);
  StreamWriter writer(context.outputs[0], reader.domain());
  ChunkBuffer chunk;
  for (int64_t left = context.outputs[0].count(); left > 0; left -= kChunk) {
    const int64_t n = std::min(left, kChunk);
    reader.read(n, chunk.bytes);
    writer.write(n, chunk.bytes);
  }
}

// ---- random
// ----------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_random(const InferContext& context) {
  const DType dtype = context.attrs.dtype("dtype");
  if (!is_float(dtype)) context.fail(fmt::format("random numbers are floats, found {}", dtype_name(dtype)));
  return {{.dtype = dtype, .shape = shape_attribute(context)}};
}

struct Stream {
  unsigned long long seed, offset;
  explicit Stream(const Attrs& attrs)
      : seed(static_cast<unsigned long long>(attrs.integer("seed"))),
        offset(static_cast<unsigned long long>(attrs.integer("offset"))) {}
};

// The arithmetic of docs/numerics.md, in the compute type step by step, so that kernels give the same bits.
void reference_random_uniform(const ReferenceContext& context) {
  const Stream stream(context.attrs);
  const double low = context.attrs.real("low"), high = context.attrs.real("high");
  Tensor& output = context.outputs[0];
  if (output.dtype() == DType::F64) {
    const double range = high - low;
    generate<double>(output, Domain::Real, [&](int64_t first, int64_t n, double* values) {
      for (int64_t i = 0; i < n; ++i) {
        values[i] =
            low + range * philox::philox_uniform64(stream.seed, stream.offset, static_cast<uint64_t>(first + i));
      }
    });
    return;
  }
  const float base = static_cast<float>(low), range = static_cast<float>(high) - base;
  generate<double>(output, Domain::Real, [&](int64_t first, int64_t n, double* values) {
    for (int64_t i = 0; i < n; ++i) {
      const float scaled = range * philox::philox_uniform(stream.seed, stream.offset, static_cast<uint64_t>(first + i));
      values[i] = base + scaled;
    }
  });
}

void reference_random_normal(const ReferenceContext& context) {
  const Stream stream(context.attrs);
  const double mean = context.attrs.real("mean"), scale = context.attrs.real("scale");
  Tensor& output = context.outputs[0];
  const bool wide = output.dtype() == DType::F64;
  const float narrow_mean = static_cast<float>(mean), narrow_scale = static_cast<float>(scale);
  generate<double>(output, Domain::Real, [&](int64_t first, int64_t n, double* values) {
    for (int64_t i = 0; i < n; ++i) {
      const float normal = philox::philox_normal(stream.seed, stream.offset, static_cast<uint64_t>(first + i));
      const float narrow = narrow_mean + narrow_scale * normal;
      values[i] = wide ? mean + scale * static_cast<double>(normal) : static_cast<double>(narrow);
    }
  });
}

}  // namespace

void add_source_ops(OpTable& table) {
  using Kind = AttrSpec::Kind;
  const auto add = [&](const char* name, const char* summary, std::vector<AttrSpec> attrs, InferFn infer,
                       ReferenceFn reference, int cost) {
    table.add({.name = name,
               .family = Family::Source,
               .summary = summary,
               .min_inputs = 0,
               .max_inputs = 0,
               .attrs = std::move(attrs),
               .infer = std::move(infer),
               .reference = std::move(reference),
               .cost = cost});
  };
  add("constant", "a tensor known when the program is built", {{"value", Kind::Value}}, infer_constant,
      reference_constant, 1);
  add("iota", "the index along an axis", {{"shape", Kind::Sizes}, {"axis", Kind::Integer}, {"dtype", Kind::Type}},
      infer_iota, reference_iota, 1);
  add("sym_value", "the values of size expressions",
      {{"values", Kind::Sizes}, {"dtype", Kind::Type}, {"scalar", Kind::Integer, false}}, infer_sym_value,
      reference_sym_value, 1);
  table.add({.name = "bind_symbols",
             .family = Family::Source,
             .summary = "defines symbols from the elements of x, which is passed on as i64[n]",
             .attrs = {{"defines", Kind::Sizes}},
             .infer = infer_bind_symbols,
             .reference = reference_bind_symbols,
             .has_side_results = true});
  const std::vector<AttrSpec> random = {
      {"shape", Kind::Sizes}, {"dtype", Kind::Type}, {"seed", Kind::Integer}, {"offset", Kind::Integer}};
  std::vector<AttrSpec> uniform = random, normal = random;
  uniform.insert(uniform.end(), {{"low", Kind::Real}, {"high", Kind::Real}});
  normal.insert(normal.end(), {{"mean", Kind::Real}, {"scale", Kind::Real}});
  add("random_uniform", "random numbers, uniform in low..high", std::move(uniform), infer_random,
      reference_random_uniform, 24);
  add("random_normal", "random numbers, normally distributed", std::move(normal), infer_random, reference_random_normal,
      48);
}

}  // namespace fuseloom::op
