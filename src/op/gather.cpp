// Gathers and scatters: elements at places that other tensors name. An index counts from the end when negative; one
// outside is a UserError that names it.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "op/arithmetic.h"
#include "op/axis.h"
#include "op/element.h"
#include "op/op.h"
#include "op/stream.h"

namespace fuseloom::op {
namespace {

using sym::Expr;
using sym::Proof;

// ---- indices
// ---------------------------------------------------------------------------------------------------------
void require_index_dtype(const InferContext& context, size_t input) {
  const DType dtype = context.in(input).dtype;
  if (dtype != DType::I32 && dtype != DType::I64) {
    context.fail(fmt::format("indices are i32 or i64, found {}", to_string(context.in(input))));
  }
}

// Every element of a tensor as int64, in row-major order.
std::vector<int64_t> read_integers(const Tensor& tensor) {
  const int64_t count = tensor.count();
  std::vector<int64_t> values(static_cast<size_t>(count));
  StreamReader reader(tensor);
  ChunkBuffer chunk;
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(count - first, kChunk);
    reader.read(n, chunk.bytes);
    convert_chunk(reader.domain(), chunk.bytes, Domain::Int, values.data() + first, n);
  }
  return values;
}

// The index counted from the front. `position` is its place among the indices.
int64_t wrap_index(const OpRecord& record, int64_t index, int64_t size, int64_t position, int64_t axis) {
  FL_REQUIRE(index >= -size && index < size,
             "{}: index {} (number {} of the indices) is outside {}..{} of axis {}, which has {} elements", record.name,
             index, position, -size, size - 1, axis, size);
  return index < 0 ? index + size : index;
}

int64_t axis_of(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (x.rank() == 0) context.fail("a 0-d tensor has no axis to index");
  return normal_axis(context.record->name, context.attrs.integer("axis"), x.rank());
}
int64_t axis_of(const ReferenceContext& context) {
  return normal_axis(context.record->name, context.attrs.integer("axis"), context.inputs[0].rank());
}

int64_t product_of(std::span<const int64_t> dims) {
  int64_t count = 1;
  for (const int64_t size : dims) count *= size;
  return count;
}

// ---- gather
// ----------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_gather(const InferContext& context) {
  require_index_dtype(context, 1);
  const TensorType& x = context.in(0);
  const int64_t axis = axis_of(context);
  TensorType result{.dtype = x.dtype};
  result.shape.assign(x.shape.begin(), x.shape.begin() + axis);
  result.shape.insert(result.shape.end(), context.in(1).shape.begin(), context.in(1).shape.end());
  result.shape.insert(result.shape.end(), x.shape.begin() + axis + 1, x.shape.end());
  return {std::move(result)};
}

void reference_gather(const ReferenceContext& context) {
  const Tensor x = context.inputs[0].to_contiguous();
  const int64_t axis = axis_of(context), size = x.dim(axis);
  std::vector<int64_t> indices = read_integers(context.inputs[1]);
  for (size_t k = 0; k < indices.size(); ++k) {
    indices[k] = wrap_index(*context.record, indices[k], size, static_cast<int64_t>(k), axis);
  }
  if (context.outputs[0].count() == 0) return;
  const std::span<const int64_t> dims = x.dims();
  const int64_t outer = product_of(dims.first(static_cast<size_t>(axis)));
  const int64_t inner = product_of(dims.subspan(static_cast<size_t>(axis) + 1));
  with_unit(x.dtype(), [&]<class Unit>() {
    const Unit* in = x.as<Unit>();
    Unit* out = context.outputs[0].as<Unit>();
    for (int64_t block = 0; block < outer; ++block, in += size * inner) {
      for (const int64_t index : indices) out = std::copy_n(in + index * inner, inner, out);
    }
  });
}

// ---- gather_elements and scatter_elements
// ---------------------------------------------------------------------------- The index tensor has x's rank and does
// not exceed it in any dimension but the axis.
void require_elementwise_indices(const InferContext& context, int64_t axis) {
  require_index_dtype(context, 1);
  const TensorType& x = context.in(0);
  const TensorType& indices = context.in(1);
  if (indices.rank() != x.rank()) {
    context.fail(fmt::format("the indices {} must have the rank of {}", to_string(indices), to_string(x)));
  }
  for (int64_t i = 0; i < x.rank(); ++i) {
    const size_t d = static_cast<size_t>(i);
    if (i != axis && sym::prove_less_equal(indices.shape[d], x.shape[d]) == Proof::No) {
      context.fail(
          fmt::format("dimension {} of the indices {} is larger than that of {}", i, to_string(indices), to_string(x)));
    }
  }
}

// Calls visit(k, offset) for every element k of the indices with the place in x (row-major) that it names.
template <class Visit>
void visit_elementwise(const OpRecord& record, const Dims& x_dims, const Tensor& index_tensor, int64_t axis,
                       Visit&& visit) {
  const std::vector<int64_t> indices = read_integers(index_tensor);
  Dims strides = contiguous_strides(x_dims);
  const int64_t axis_stride = strides[static_cast<size_t>(axis)], size = x_dims[static_cast<size_t>(axis)];
  strides[static_cast<size_t>(axis)] = 0;
  StridedWalk walk(index_tensor.dims(), strides);
  int64_t k = 0;
  walk.advance(static_cast<int64_t>(indices.size()), [&](int64_t offset, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; ++i, ++k) {
      const int64_t index = wrap_index(record, indices[static_cast<size_t>(k)], size, k, axis);
      visit(k, offset + i * stride + index * axis_stride);
    }
  });
}

std::vector<TensorType> infer_gather_elements(const InferContext& context) {
  require_elementwise_indices(context, axis_of(context));
  return {{.dtype = context.in(0).dtype, .shape = context.in(1).shape}};
}

void reference_gather_elements(const ReferenceContext& context) {
  const Tensor x = context.inputs[0].to_contiguous();
  with_unit(x.dtype(), [&]<class Unit>() {
    const Unit* in = x.as<Unit>();
    Unit* out = context.outputs[0].as<Unit>();
    visit_elementwise(*context.record, x.dims(), context.inputs[1], axis_of(context),
                      [&](int64_t k, int64_t offset) { out[k] = in[offset]; });
  });
}

// ---- gather_nd and scatter_nd
// ---------------------------------------------------------------------------------------- How many dimensions of x an
// index tuple (the last dimension of the indices) names.
int64_t tuple_size(const InferContext& context, int64_t batch_dims) {
  require_index_dtype(context, 1);
  const TensorType& x = context.in(0);
  const TensorType& indices = context.in(1);
  if (indices.rank() == 0) context.fail("the indices must have a last dimension, found " + to_string(indices));
  const std::optional<int64_t> size = indices.shape.back().as_const();
  if (!size) context.fail(fmt::format("the last dimension of the indices {} must be constant", to_string(indices)));
  if (batch_dims < 0 || batch_dims >= indices.rank() || batch_dims + *size > x.rank()) {
    context.fail(fmt::format("indices of {} dimensions behind {} batch dimensions do not fit {}", *size, batch_dims,
                             to_string(x)));
  }
  for (size_t i = 0; i < static_cast<size_t>(batch_dims); ++i) {
    if (sym::prove_equal(x.shape[i], indices.shape[i]) == Proof::No) {
      context.fail(fmt::format("batch dimension {} differs between {} and {}", i, to_string(x), to_string(indices)));
    }
  }
  return *size;
}

// Indices as tuples: `tuples` of them in each batch, each naming a block of `block` elements of x.
struct TupleIndices {
  int64_t batches = 1, tuples = 1, block = 1;
  std::vector<int64_t> offsets;  // of each tuple's block in x, in elements

  TupleIndices(const OpRecord& record, const Dims& x_dims, const Tensor& index_tensor, int64_t batch_dims) {
    const std::span<const int64_t> dims = x_dims, index_dims = index_tensor.dims();
    const size_t batch = static_cast<size_t>(batch_dims), width = static_cast<size_t>(index_dims.back());
    batches = product_of(index_dims.first(batch));
    tuples = product_of(index_dims.subspan(batch, index_dims.size() - 1 - batch));
    block = product_of(dims.subspan(batch + width));
    const int64_t batch_stride = product_of(dims.subspan(batch));
    const Dims strides = contiguous_strides(dims);
    const std::vector<int64_t> indices = read_integers(index_tensor);
    size_t k = 0;
    for (int64_t b = 0; b < batches; ++b) {
      for (int64_t t = 0; t < tuples; ++t) {
        int64_t offset = b * batch_stride;
        for (size_t j = 0; j < width; ++j, ++k) {
          const size_t axis = batch + j;
          offset += strides[axis] *
                    wrap_index(record, indices[k], dims[axis], static_cast<int64_t>(k), static_cast<int64_t>(axis));
        }
        offsets.push_back(offset);
      }
    }
  }
};

std::vector<TensorType> infer_gather_nd(const InferContext& context) {
  const TensorType& x = context.in(0);
  const TensorType& indices = context.in(1);
  const int64_t batch_dims = context.attrs.integer("batch_dims");
  const int64_t width = tuple_size(context, batch_dims);
  TensorType result{.dtype = x.dtype, .shape = {indices.shape.begin(), indices.shape.end() - 1}};
  result.shape.insert(result.shape.end(), x.shape.begin() + batch_dims + width, x.shape.end());
  return {std::move(result)};
}

void reference_gather_nd(const ReferenceContext& context) {
  const Tensor x = context.inputs[0].to_contiguous();
  const TupleIndices places(*context.record, x.dims(), context.inputs[1], context.attrs.integer("batch_dims"));
  with_unit(x.dtype(), [&]<class Unit>() {
    Unit* out = context.outputs[0].as<Unit>();
    for (const int64_t offset : places.offsets) out = std::copy_n(x.as<Unit>() + offset, places.block, out);
  });
}

// ---- scatter
// ---------------------------------------------------------------------------------------------------------
enum class ScatterReduction : uint8_t { None, Add, Mul, Max, Min };

std::optional<ScatterReduction> scatter_reduction(std::string_view text) {
  if (text == "none") return ScatterReduction::None;
  if (text == "add") return ScatterReduction::Add;
  if (text == "mul") return ScatterReduction::Mul;
  if (text == "max") return ScatterReduction::Max;
  if (text == "min") return ScatterReduction::Min;
  return std::nullopt;
}

void require_scatter_types(const InferContext& context) {
  const std::string& text = context.attrs.text("reduction");
  const std::optional<ScatterReduction> reduction = scatter_reduction(text);
  if (!reduction) context.fail(fmt::format("the reduction is none, add, mul, max or min, found \"{}\"", text));
  const DType dtype = context.in(0).dtype;
  if (context.in(2).dtype != dtype) {
    context.fail(fmt::format("the updates {} must have the element type of {}", to_string(context.in(2)),
                             to_string(context.in(0))));
  }
  if (is_complex(dtype) && (*reduction == ScatterReduction::Max || *reduction == ScatterReduction::Min)) {
    context.fail(fmt::format("{} has no order for the reduction \"{}\"", dtype_name(dtype), text));
  }
}

void require_update_shape(const InferContext& context, const Shape& expected) {
  const TensorType& updates = context.in(2);
  bool fits = updates.shape.size() == expected.size();
  for (size_t i = 0; fits && i < expected.size(); ++i) {
    fits = sym::prove_equal(updates.shape[i], expected[i]) != Proof::No;
  }
  if (!fits)
    context.fail(fmt::format("the updates must have the shape {}, found {}", to_string(expected), to_string(updates)));
}

template <class Storage>
Storage combine_update(ScatterReduction how, Storage old_value, Storage update) {
  const Computed<Storage> a = load(old_value), b = load(update);
  switch (how) {
    case ScatterReduction::None:
      return update;
    case ScatterReduction::Add:
      return store<Storage>(combine_add(a, b));
    case ScatterReduction::Mul:
      return store<Storage>(combine_mul(a, b));
    case ScatterReduction::Max:
      if constexpr (!std::is_same_v<Computed<Storage>, std::complex<double>>) return store<Storage>(combine_max(a, b));
      break;
    case ScatterReduction::Min:
      if constexpr (!std::is_same_v<Computed<Storage>, std::complex<double>>) return store<Storage>(combine_min(a, b));
      break;
  }
  FL_CHECK(false, "complex numbers have no order");
  return update;
}

void copy_input_to_output(const ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  copy_strided(x.dtype(), context.outputs[0].data(), context.outputs[0].strides(), x.data(), x.strides(), x.dims());
}

std::vector<TensorType> infer_scatter_elements(const InferContext& context) {
  require_scatter_types(context);
  require_elementwise_indices(context, axis_of(context));
  require_update_shape(context, context.in(1).shape);
  return {context.in(0)};
}

void reference_scatter_elements(const ReferenceContext& context) {
  copy_input_to_output(context);
  const Tensor updates = context.inputs[2].to_contiguous();
  const ScatterReduction how = *scatter_reduction(context.attrs.text("reduction"));
  with_storage(updates.dtype(), [&]<class Storage>() {
    Storage* out = context.outputs[0].as<Storage>();
    const Storage* in = updates.as<Storage>();
    visit_elementwise(*context.record, context.inputs[0].dims(), context.inputs[1], axis_of(context),
                      [&](int64_t k, int64_t offset) { out[offset] = combine_update(how, out[offset], in[k]); });
  });
}

std::vector<TensorType> infer_scatter_nd(const InferContext& context) {
  require_scatter_types(context);
  const TensorType& x = context.in(0);
  const TensorType& indices = context.in(1);
  const int64_t width = tuple_size(context, 0);
  Shape expected(indices.shape.begin(), indices.shape.end() - 1);
  expected.insert(expected.end(), x.shape.begin() + width, x.shape.end());
  require_update_shape(context, expected);
  return {x};
}

void reference_scatter_nd(const ReferenceContext& context) {
  copy_input_to_output(context);
  const Tensor updates = context.inputs[2].to_contiguous();
  const ScatterReduction how = *scatter_reduction(context.attrs.text("reduction"));
  const TupleIndices places(*context.record, context.inputs[0].dims(), context.inputs[1], 0);
  with_storage(updates.dtype(), [&]<class Storage>() {
    const Storage* in = updates.as<Storage>();
    for (const int64_t offset : places.offsets) {
      Storage* out = context.outputs[0].as<Storage>() + offset;
      for (int64_t i = 0; i < places.block; ++i) out[i] = combine_update(how, out[i], *in++);
    }
  });
}

// ---- one_hot
// --------------------------------------------------------------------------------------------------------- The new
// axis may be the one behind the last.
int64_t one_hot_axis(std::string_view op, const Attrs& attrs, int64_t rank) {
  return normal_axis(op, attrs.integer("axis"), rank + 1);
}

std::vector<TensorType> infer_one_hot(const InferContext& context) {
  const TensorType& indices = context.in(0);
  const TensorType& values = context.in(1);
  const Shape depth = context.attrs.shape("depth");
  if (!is_int(indices.dtype) && !is_float(indices.dtype))
    context.fail("indices are numbers, found " + to_string(indices));
  if (values.rank() != 1 || sym::prove_equal(values.shape[0], 2) == Proof::No) {
    context.fail("the values are the pair (off, on), found " + to_string(values));
  }
  if (depth.size() != 1) context.fail(fmt::format("'depth' is one size, found {}", to_string(depth)));
  TensorType result{.dtype = values.dtype, .shape = indices.shape};
  result.shape.insert(result.shape.begin() + one_hot_axis(context.record->name, context.attrs, indices.rank()),
                      depth[0]);
  return {std::move(result)};
}

void reference_one_hot(const ReferenceContext& context) {
  const Tensor values = context.inputs[1].to_contiguous();
  Tensor& output = context.outputs[0];
  const int64_t axis = one_hot_axis(context.record->name, context.attrs, context.inputs[0].rank());
  const int64_t depth = output.dim(axis),
                inner = product_of(std::span(output.dims()).subspan(static_cast<size_t>(axis) + 1));
  const std::vector<int64_t> indices = read_integers(context.inputs[0]);
  with_unit(values.dtype(), [&]<class Unit>() {
    Unit* out = output.as<Unit>();
    std::fill_n(out, output.count(), values.as<Unit>()[0]);
    for (size_t k = 0; k < indices.size(); ++k) {
      const int64_t index = indices[k] < 0 ? indices[k] + depth : indices[k];
      if (index < 0 || index >= depth) continue;
      const int64_t block = static_cast<int64_t>(k) / inner, rest = static_cast<int64_t>(k) % inner;
      out[(block * depth + index) * inner + rest] = values.as<Unit>()[1];
    }
  });
}

std::vector<Val> decompose_one_hot(OpBuilder& builder, const DecomposeContext& context) {
  const TensorType& result = context.outputs[0];
  const TensorType indices = builder.type(context.inputs[0]);
  const int64_t axis = one_hot_axis("one_hot", context.attrs, indices.rank());
  const Expr depth = context.attrs.shape("depth")[0];
  const auto value_at = [&](int64_t place) {
    const Val one = builder.apply("slice", {context.inputs[1]},
                                  {{"starts", Shape{place}}, {"sizes", Shape{1}}, {"steps", std::vector<int64_t>{1}}});
    return builder.reshape(one, {});
  };
  const Val index = builder.cast(context.inputs[0], DType::I64);
  const Val size =
      builder.apply("sym_value", {}, {{"values", Shape{depth}}, {"dtype", DType::I64}, {"scalar", int64_t{1}}});
  const Val negative = builder.apply("lt", {index, builder.scalar(DType::I64, 0)});
  const Val wrapped = builder.apply("select", {negative, builder.apply("add", {index, size}), index});
  Shape with_axis = indices.shape, place_shape(result.shape.size(), Expr(1));
  with_axis.insert(with_axis.begin() + axis, Expr(1));
  place_shape[static_cast<size_t>(axis)] = depth;
  const Val place = builder.apply("iota", {}, {{"shape", place_shape}, {"axis", axis}, {"dtype", DType::I64}});
  const Val hot = builder.apply("eq", {builder.reshape(wrapped, with_axis), place});
  return {builder.apply("select", {hot, value_at(1), value_at(0)})};
}

// ---- trilu
// -----------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_trilu(const InferContext& context) {
  const TensorType& x = context.in(0);
  if (x.rank() < 2) context.fail("a matrix has two dimensions, found " + to_string(x));
  if (context.has(1)) {
    require_index_dtype(context, 1);
    if (sym::prove_equal(count_of(context.in(1).shape), 1) != Proof::Yes) {
      context.fail("the diagonal is one integer, found " + to_string(context.in(1)));
    }
  }
  return {x};
}

void reference_trilu(const ReferenceContext& context) {
  const int64_t diagonal = context.has(1) ? context.inputs[1].int_at(0) : 0;
  const bool upper = context.attrs.integer("upper") != 0;
  copy_input_to_output(context);
  Tensor& output = context.outputs[0];
  const int64_t rank = output.rank(), rows = output.dim(rank - 2), columns = output.dim(rank - 1);
  if (output.count() == 0) return;
  with_unit(output.dtype(), [&]<class Unit>() {
    Unit* row = output.as<Unit>();
    for (int64_t r = 0; r < output.count() / columns; ++r, row += columns) {
      // Column c is kept when c - r >= diagonal (upper) or <= diagonal (lower); compared without overflow for any
      // diagonal.
      const __int128 edge = static_cast<__int128>(r % rows) + diagonal;
      for (int64_t c = 0; c < columns; ++c) {
        if (upper ? c < edge : c > edge) row[c] = Unit{};
      }
    }
  });
}

std::vector<Val> decompose_trilu(OpBuilder& builder, const DecomposeContext& context) {
  const TensorType& x = context.outputs[0];
  const size_t rank = x.shape.size();
  const auto iota = [&](Shape shape, int64_t axis) {
    return builder.apply("iota", {}, {{"shape", std::move(shape)}, {"axis", axis}, {"dtype", DType::I64}});
  };
  const Val row = iota({x.shape[rank - 2], 1}, 0), column = iota({1, x.shape[rank - 1]}, 1);
  const Val diagonal =
      context.has(1) ? builder.cast(builder.reshape(context.inputs[1], {}), DType::I64) : builder.scalar(DType::I64, 0);
  const Val distance = builder.apply("sub", {column, row});
  const Val kept = builder.apply(context.attrs.integer("upper") != 0 ? "ge" : "le", {distance, diagonal});
  return {builder.apply("select", {kept, context.inputs[0], builder.scalar(x.dtype, 0)})};
}

}  // namespace

void add_gather_ops(OpTable& table) {
  using Kind = AttrSpec::Kind;
  const auto add = [&](const char* name, Family family, const char* summary, int inputs, std::vector<AttrSpec> attrs,
                       InferFn infer, ReferenceFn reference) {
    table.add({.name = name,
               .family = family,
               .summary = summary,
               .min_inputs = inputs,
               .max_inputs = inputs,
               .attrs = std::move(attrs),
               .infer = std::move(infer),
               .reference = std::move(reference),
               .cost = 2});
  };
  add("gather", Family::Gather, "the slices of x along an axis that the indices name", 2, {{"axis", Kind::Integer}},
      infer_gather, reference_gather);
  add("gather_elements", Family::Gather, "x at each index along an axis, the other coordinates being the index's own",
      2, {{"axis", Kind::Integer}}, infer_gather_elements, reference_gather_elements);
  add("gather_nd", Family::Gather, "the blocks of x that index tuples name", 2, {{"batch_dims", Kind::Integer}},
      infer_gather_nd, reference_gather_nd);
  add("scatter_elements", Family::Scatter, "x with updates at each index along an axis", 3,
      {{"axis", Kind::Integer}, {"reduction", Kind::Text}}, infer_scatter_elements, reference_scatter_elements);
  add("scatter_nd", Family::Scatter, "x with updates in the blocks that index tuples name", 3,
      {{"reduction", Kind::Text}}, infer_scatter_nd, reference_scatter_nd);
  table.add(
      {.name = "one_hot",
       .family = Family::Composite,
       .summary = "`on` where the place along a new axis is the index, else `off`; indices outside give off everywhere",
       .min_inputs = 2,
       .max_inputs = 2,
       .attrs = {{"depth", Kind::Sizes}, {"axis", Kind::Integer}},
       .infer = infer_one_hot,
       .reference = reference_one_hot,
       .decompose = decompose_one_hot,
       .cost = 3});
  table.add({.name = "trilu",
             .family = Family::Composite,
             .summary = "the upper or lower triangle of each matrix from a diagonal on, 0 elsewhere",
             .min_inputs = 1,
             .max_inputs = 2,
             .attrs = {{"upper", Kind::Integer}},
             .infer = infer_trilu,
             .reference = reference_trilu,
             .decompose = decompose_trilu,
             .cost = 3});
}

}  // namespace fuseloom::op
