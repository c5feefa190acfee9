// View ops: the result's elements are elements of the inputs at other places. The index map says where; kernels fuse it
// into their loads. The references move bytes and do not use the map, so that each checks the other.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "op/axis.h"
#include "op/element.h"
#include "op/op.h"
#include "op/stream.h"

namespace fuseloom::op {
namespace {

using sym::Expr;
using sym::Proof;

std::vector<Expr> to_vector(std::span<const Expr> index) { return {index.begin(), index.end()}; }

void require_length(const InferContext& context, const char* name, size_t found, int64_t rank) {
  if (static_cast<int64_t>(found) != rank) {
    context.fail(
        fmt::format("'{}' has {} entries, but {} has {} dimensions", name, found, to_string(context.in(0)), rank));
  }
}

void require_sizes(const InferContext& context, const Shape& sizes) {
  for (const Expr& size : sizes) {
    if (size.is_const() && *size.as_const() < 0) {
      context.fail(
          fmt::format("the shape {} has a negative size (input {})", to_string(sizes), to_string(context.in(0))));
    }
  }
}

// ---- reshape
// ---------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_reshape(const InferContext& context) {
  Shape shape = context.attrs.shape("shape");
  require_sizes(context, shape);
  const Expr from = count_of(context.in(0).shape), to = count_of(shape);
  if (sym::prove_equal(from, to) == Proof::No) {
    context.fail(fmt::format("{} has {} elements, the shape {} has {}", to_string(context.in(0)), sym::to_string(from),
                             to_string(shape), sym::to_string(to)));
  }
  return {{.dtype = context.in(0).dtype, .shape = std::move(shape)}};
}

void copy_to_output(const ReferenceContext& context, const Dims& from_strides, int64_t offset = 0) {
  const Tensor& input = context.inputs[0];
  Tensor& output = context.outputs[0];
  if (output.count() == 0) return;
  const int64_t width = dtype_bytes(input.dtype());
  copy_strided(input.dtype(), output.data(), output.strides(), input.as<std::byte>() + offset * width, from_strides,
               output.dims());
}

void reference_reshape(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  copy_strided(input.dtype(), context.outputs[0].data(), contiguous_strides(input.dims()), input.data(),
               input.strides(), input.dims());
}

// A run of input dimensions and the run of output dimensions that holds the same elements.
struct ReshapeGroup {
  std::vector<size_t> in, out;
};

// Splits two shapes of equal count into minimal groups of provably equal products, from the left and then from the
// right; what is left in the middle is one group. Dimensions of size 1 are in no group.
//
//   [a, 6, b, c*d] → [a, 2, 3, b, c, d]:   a→a | 6→2,3 | b→b | c*d→c,d
std::vector<ReshapeGroup> group_dimensions(const Shape& from, const Shape& to) {
  std::vector<size_t> in, out;
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i].is_const(1)) in.push_back(i);
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (!to[i].is_const(1)) out.push_back(i);
  }
  // The shortest pair of runs at one end with equal products: lengths (m, n) by growing m + n; {0, 0} when there is
  // none.
  const auto peel = [&](bool from_left) -> std::pair<size_t, size_t> {
    const auto products = [&](const Shape& shape, const std::vector<size_t>& dims) {
      std::vector<Expr> result;
      Expr product = 1;
      for (size_t k = 0; k < dims.size(); ++k) {
        product = product * shape[from_left ? dims[k] : dims[dims.size() - 1 - k]];
        result.push_back(product);
      }
      return result;
    };
    const std::vector<Expr> in_products = products(from, in), out_products = products(to, out);
    for (size_t total = 2; total <= in.size() + out.size(); ++total) {
      for (size_t m = 1; m < total && m <= in.size(); ++m) {
        const size_t n = total - m;
        if (n <= out.size() && sym::prove_equal(in_products[m - 1], out_products[n - 1]) == Proof::Yes) return {m, n};
      }
    }
    return {0, 0};
  };
  std::vector<ReshapeGroup> groups, right_groups;
  while (!in.empty() && !out.empty()) {
    const auto [m, n] = peel(true);
    if (m == 0) break;
    groups.push_back({{in.begin(), in.begin() + static_cast<std::ptrdiff_t>(m)},
                      {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n)}});
    in.erase(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(m));
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n));
  }
  while (!in.empty() && !out.empty()) {
    const auto [m, n] = peel(false);
    if (m == 0) break;
    right_groups.push_back({{in.end() - static_cast<std::ptrdiff_t>(m), in.end()},
                            {out.end() - static_cast<std::ptrdiff_t>(n), out.end()}});
    in.resize(in.size() - m);
    out.resize(out.size() - n);
  }
  if (!in.empty() || !out.empty()) groups.push_back({in, out});
  groups.insert(groups.end(), right_groups.rbegin(), right_groups.rend());
  return groups;
}

std::vector<IndexPiece> map_reshape(const IndexContext& context, std::span<const Expr> index) {
  const Shape& from = context.inputs[0].shape;
  const Shape& to = context.output.shape;
  IndexPiece piece{.indices = std::vector<Expr>(from.size(), Expr(0))};
  for (const ReshapeGroup& group : group_dimensions(from, to)) {
    if (group.in.empty()) continue;
    // The position inside the group, in row-major order of the output's sizes ...
    Expr linear = 0;
    for (const size_t dim : group.out) linear = linear * to[dim] + index[dim];
    // ... taken apart by the input's sizes, innermost first. The outermost needs no mod.
    Expr stride = 1;
    for (size_t k = group.in.size(); k-- > 0;) {
      const size_t dim = group.in[k];
      const Expr quotient = sym::floor_div(linear, stride);
      piece.indices[dim] = k == 0 ? quotient : sym::mod(quotient, from[dim]);
      stride = stride * from[dim];
    }
  }
  return {std::move(piece)};
}

// ---- transpose
// -------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_transpose(const InferContext& context) {
  const TensorType& x = context.in(0);
  const std::vector<int64_t>& perm = context.attrs.integers("perm");
  require_length(context, "perm", perm.size(), x.rank());
  std::vector<char> seen(perm.size(), 0);
  TensorType result{.dtype = x.dtype};
  for (const int64_t dim : perm) {
    if (dim < 0 || dim >= x.rank() || seen[static_cast<size_t>(dim)] != 0) {
      context.fail(fmt::format("perm = {} is no permutation of 0..{}", to_string(AttrValue(perm)), x.rank() - 1));
    }
    seen[static_cast<size_t>(dim)] = 1;
    result.shape.push_back(x.shape[static_cast<size_t>(dim)]);
  }
  return {std::move(result)};
}

void reference_transpose(const ReferenceContext& context) {
  Dims strides;
  for (const int64_t dim : context.attrs.integers("perm"))
    strides.push_back(context.inputs[0].strides()[static_cast<size_t>(dim)]);
  copy_to_output(context, strides);
}

std::vector<IndexPiece> map_transpose(const IndexContext& context, std::span<const Expr> index) {
  const std::vector<int64_t>& perm = context.attrs.integers("perm");
  IndexPiece piece{.indices = std::vector<Expr>(perm.size())};
  for (size_t i = 0; i < perm.size(); ++i) piece.indices[static_cast<size_t>(perm[i])] = index[i];
  return {std::move(piece)};
}

// ---- expand
// ----------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_expand(const InferContext& context) {
  const TensorType& x = context.in(0);
  Shape shape = context.attrs.shape("shape");
  require_sizes(context, shape);
  const auto refuse = [&] { context.fail(fmt::format("{} does not expand to {}", to_string(x), to_string(shape))); };
  if (x.shape.size() > shape.size()) refuse();
  const size_t lead = shape.size() - x.shape.size();
  for (size_t i = 0; i < x.shape.size(); ++i) {
    const Expr& size = x.shape[i];
    if (size.is_const() && !size.is_const(1) && sym::prove_equal(size, shape[lead + i]) == Proof::No) refuse();
  }
  return {{.dtype = x.dtype, .shape = std::move(shape)}};
}

void reference_expand(const ReferenceContext& context) {
  copy_to_output(context, broadcast_strides(context.inputs[0], context.outputs[0].dims()));
}

std::vector<IndexPiece> map_expand(const IndexContext& context, std::span<const Expr> index) {
  const Shape& from = context.inputs[0].shape;
  const Shape& to = context.output.shape;
  const size_t lead = to.size() - from.size();
  IndexPiece piece;
  for (size_t i = 0; i < from.size(); ++i) {
    const Expr& place = index[lead + i];
    if (from[i].is_const(1)) {
      piece.indices.push_back(0);
    } else if (from[i].is_const() || sym::prove_equal(from[i], to[lead + i]) == Proof::Yes) {
      piece.indices.push_back(place);
    } else {
      piece.indices.push_back(sym::select(sym::eq(from[i], 1), 0, place));
    }
  }
  return {std::move(piece)};
}

// ---- slice
// -----------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_slice(const InferContext& context) {
  const TensorType& x = context.in(0);
  const Shape starts = context.attrs.shape("starts");
  Shape sizes = context.attrs.shape("sizes");
  const std::vector<int64_t>& steps = context.attrs.integers("steps");
  require_length(context, "starts", starts.size(), x.rank());
  require_length(context, "sizes", sizes.size(), x.rank());
  require_length(context, "steps", steps.size(), x.rank());
  require_sizes(context, sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (steps[i] == 0) context.fail(fmt::format("the step of dimension {} is 0", i));
    const std::optional<int64_t> start = starts[i].as_const(), size = sizes[i].as_const(),
                                 whole = x.shape[i].as_const();
    if (!start || !size || !whole || *size == 0) continue;
    const __int128 last = static_cast<__int128>(*size - 1) * steps[i] + *start;
    if (*start < 0 || *start >= *whole || last < 0 || last >= *whole) {
      context.fail(fmt::format("dimension {} of {}: {} elements from {} by {} are not all inside", i, to_string(x),
                               *size, *start, steps[i]));
    }
  }
  return {{.dtype = x.dtype, .shape = std::move(sizes)}};
}

void reference_slice(const ReferenceContext& context) {
  const std::vector<int64_t>& starts = context.attrs.integers("starts");
  const std::vector<int64_t>& steps = context.attrs.integers("steps");
  Dims strides = context.inputs[0].strides();
  int64_t offset = 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    offset += starts[i] * strides[i];
    // A dimension of one element takes no step; its step may be any number.
    strides[i] = context.outputs[0].dims()[i] == 1 ? 0 : strides[i] * steps[i];
  }
  copy_to_output(context, strides, offset);
}

std::vector<IndexPiece> map_slice(const IndexContext& context, std::span<const Expr> index) {
  const Shape starts = context.attrs.shape("starts");
  const std::vector<int64_t>& steps = context.attrs.integers("steps");
  IndexPiece piece;
  for (size_t i = 0; i < index.size(); ++i) piece.indices.push_back(index[i] * steps[i] + starts[i]);
  return {std::move(piece)};
}

// ---- concat
// ----------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_concat(const InferContext& context) {
  TensorType result = context.in(0);
  if (result.rank() == 0) context.fail("scalars have no axis to be joined along");
  const size_t axis =
      static_cast<size_t>(normal_axis(context.record->name, context.attrs.integer("axis"), result.rank()));
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    const TensorType& x = context.in(i);
    const auto refuse = [&](const std::string& why) {
      context.fail(fmt::format("input {} is {}, input 0 is {}: {}", i, to_string(x), to_string(context.in(0)), why));
    };
    if (x.dtype != result.dtype) refuse("the element types differ");
    if (x.rank() != result.rank()) refuse("the ranks differ");
    for (size_t d = 0; d < x.shape.size(); ++d) {
      if (d == axis) {
        result.shape[d] = result.shape[d] + x.shape[d];
      } else {
        if (sym::prove_equal(result.shape[d], x.shape[d]) == Proof::No) refuse(fmt::format("dimension {} differs", d));
        if (x.shape[d].is_const()) result.shape[d] = x.shape[d];
      }
    }
  }
  return {std::move(result)};
}

void reference_concat(const ReferenceContext& context) {
  Tensor& output = context.outputs[0];
  const size_t axis =
      static_cast<size_t>(normal_axis(context.record->name, context.attrs.integer("axis"), output.rank()));
  const int64_t width = dtype_bytes(output.dtype());
  int64_t start = 0;
  for (const Tensor& input : context.inputs) {
    copy_strided(input.dtype(), output.as<std::byte>() + start * output.strides()[axis] * width, output.strides(),
                 input.data(), input.strides(), input.dims());
    start += input.dims()[axis];
  }
}

// Pieces are tried in order, so that an upper bound is guard enough, and the last one needs none.
std::vector<IndexPiece> map_concat(const IndexContext& context, std::span<const Expr> index) {
  const int64_t rank = context.output.rank(), given = context.attrs.integer("axis");
  const size_t axis = static_cast<size_t>(given < 0 ? given + rank : given);
  std::vector<IndexPiece> pieces;
  Expr start = 0;
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    const Expr& size = context.inputs[i].shape[axis];
    const bool last = i + 1 == context.inputs.size();
    if (size.is_const(0) && !(last && pieces.empty())) continue;
    IndexPiece piece{.input = i, .indices = to_vector(index)};
    piece.indices[axis] = index[axis] - start;
    start = start + size;
    piece.guards.push_back(sym::lt(index[axis], start));
    pieces.push_back(std::move(piece));
  }
  pieces.back().guards.clear();
  return pieces;
}

// ---- pad
// -------------------------------------------------------------------------------------------------------------
enum class PadMode : uint8_t { Constant, Edge, Reflect, Wrap };

std::optional<PadMode> pad_mode(std::string_view text) {
  if (text == "constant") return PadMode::Constant;
  if (text == "edge") return PadMode::Edge;
  if (text == "reflect") return PadMode::Reflect;
  if (text == "wrap") return PadMode::Wrap;
  return std::nullopt;
}

std::vector<TensorType> infer_pad(const InferContext& context) {
  const TensorType& x = context.in(0);
  const std::optional<PadMode> mode = pad_mode(context.attrs.text("mode"));
  if (!mode)
    context.fail(fmt::format("the mode is constant, edge, reflect or wrap, found \"{}\"", context.attrs.text("mode")));
  const Shape low = context.attrs.shape("low"), high = context.attrs.shape("high");
  require_length(context, "low", low.size(), x.rank());
  require_length(context, "high", high.size(), x.rank());
  if (context.has(1) && (context.in(1).dtype != x.dtype || context.in(1).rank() != 0)) {
    context.fail(fmt::format("the fill must be {}[], found {}", dtype_name(x.dtype), to_string(context.in(1))));
  }
  TensorType result{.dtype = x.dtype};
  for (size_t i = 0; i < low.size(); ++i) {
    const Expr size = x.shape[i] + low[i] + high[i];
    if (size.is_const() && *size.as_const() < 0) {
      context.fail(fmt::format("dimension {} of {} is cropped by more than it has ({} and {})", i, to_string(x),
                               sym::to_string(low[i]), sym::to_string(high[i])));
    }
    if (*mode != PadMode::Constant && x.shape[i].is_const(0) && size.is_const() && !size.is_const(0)) {
      context.fail(fmt::format("dimension {} of {} is empty and has no element to repeat", i, to_string(x)));
    }
    result.shape.push_back(size);
  }
  return {std::move(result)};
}

int64_t positive_mod(int64_t a, int64_t b) {
  const int64_t remainder = b == 0 ? 0 : a % b;
  return remainder < 0 ? remainder + b : remainder;
}

// For every output place of one dimension, the input place it reads; -1: the fill.
std::vector<int64_t> pad_table(PadMode mode, int64_t low, int64_t input_size, int64_t output_size) {
  std::vector<int64_t> table;
  for (int64_t i = 0; i < output_size; ++i) {
    const int64_t place = i - low;
    const int64_t period = 2 * (input_size - 1), phase = positive_mod(place, period);
    switch (mode) {
      case PadMode::Constant:
        table.push_back(place >= 0 && place < input_size ? place : -1);
        break;
      case PadMode::Edge:
        table.push_back(std::clamp<int64_t>(place, 0, input_size - 1));
        break;
      case PadMode::Reflect:
        table.push_back(std::min(phase, period - phase));
        break;
      case PadMode::Wrap:
        table.push_back(positive_mod(place, input_size));
        break;
    }
  }
  return table;
}

void reference_pad(const ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  Tensor& output = context.outputs[0];
  const size_t rank = static_cast<size_t>(input.rank());
  const size_t width = static_cast<size_t>(dtype_bytes(input.dtype()));
  const int64_t count = output.count();
  if (count == 0) return;
  const std::vector<int64_t>& low = context.attrs.integers("low");
  const PadMode mode = *pad_mode(context.attrs.text("mode"));
  std::vector<std::byte> fill(width);
  if (context.has(1)) std::memcpy(fill.data(), context.inputs[1].data(), width);
  const std::byte* in = input.as<std::byte>();
  std::byte* out = output.as<std::byte>();
  if (rank == 0) {
    std::memcpy(out, in, width);
    return;
  }
  std::vector<std::vector<int64_t>> tables;
  for (size_t i = 0; i < rank; ++i) tables.push_back(pad_table(mode, low[i], input.dims()[i], output.dims()[i]));
  const std::vector<int64_t>& row = tables.back();
  const int64_t row_stride = input.strides().back();
  Dims index(rank - 1, 0);
  for (int64_t done = 0; done < count; done += static_cast<int64_t>(row.size())) {
    int64_t offset = 0;
    bool filled = false;
    for (size_t i = 0; i + 1 < rank; ++i) {
      const int64_t place = tables[i][static_cast<size_t>(index[i])];
      filled = filled || place < 0;
      offset += place * input.strides()[i];
    }
    for (const int64_t place : row) {
      const std::byte* from =
          filled || place < 0 ? fill.data() : in + (offset + place * row_stride) * static_cast<int64_t>(width);
      std::memcpy(out, from, width);
      out += width;
    }
    for (size_t i = rank - 1; i-- > 0;) {
      if (++index[i] < output.dims()[i]) break;
      index[i] = 0;
    }
  }
}

bool not_positive(const Expr& value) { return sym::prove_less_equal(value, 0) == Proof::Yes; }

std::vector<IndexPiece> map_pad(const IndexContext& context, std::span<const Expr> index) {
  const PadMode mode = *pad_mode(context.attrs.text("mode"));
  const Shape low = context.attrs.shape("low"), high = context.attrs.shape("high");
  IndexPiece piece;
  for (size_t i = 0; i < index.size(); ++i) {
    const Expr& size = context.inputs[0].shape[i];
    const Expr place = index[i] - low[i];
    const bool no_low = not_positive(low[i]), no_high = not_positive(high[i]);
    if (no_low && no_high) {  // untouched or cropped
      piece.indices.push_back(place);
      continue;
    }
    switch (mode) {
      case PadMode::Constant:
        if (!no_low) piece.guards.push_back(sym::le(0, place));
        if (!no_high) piece.guards.push_back(sym::lt(place, size));
        piece.indices.push_back(place);
        break;
      case PadMode::Edge: {
        const Expr above = no_low ? place : sym::max(place, 0);
        piece.indices.push_back(no_high ? above : sym::min(above, size - 1));
        break;
      }
      case PadMode::Reflect: {
        // 0 1 2 3 | 2 1 | 0 1 ...: a triangle wave. The period of a single element is 0, and mod by 0 is 0.
        const Expr period = (size - 1) * 2;
        const Expr phase = sym::mod(place, period);
        piece.indices.push_back(sym::min(phase, period - phase));
        break;
      }
      case PadMode::Wrap:
        piece.indices.push_back(sym::mod(place, size));
        break;
    }
  }
  const bool can_fall_outside = !piece.guards.empty();
  std::vector<IndexPiece> pieces = {std::move(piece)};
  if (can_fall_outside && context.inputs.size() > 1) pieces.push_back({.input = 1});
  return pieces;
}

// ---- tile
// ------------------------------------------------------------------------------------------------------------
std::vector<TensorType> infer_tile(const InferContext& context) {
  const TensorType& x = context.in(0);
  const Shape repeats = context.attrs.shape("repeats");
  require_length(context, "repeats", repeats.size(), x.rank());
  TensorType result{.dtype = x.dtype};
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i].is_const() && *repeats[i].as_const() < 0)
      context.fail(fmt::format("dimension {} is repeated {} times", i, sym::to_string(repeats[i])));
    result.shape.push_back(x.shape[i] * repeats[i]);
  }
  return {std::move(result)};
}

void reference_tile(const ReferenceContext& context) {
  // [a, b] tiled by (r, s) is a copy of the view [r, a, s, b] in which the repeats have stride 0.
  const Tensor& input = context.inputs[0];
  Tensor& output = context.outputs[0];
  const std::vector<int64_t>& repeats = context.attrs.integers("repeats");
  Dims dims, strides;
  for (size_t i = 0; i < repeats.size(); ++i) {
    dims.insert(dims.end(), {repeats[i], input.dims()[i]});
    strides.insert(strides.end(), {0, input.strides()[i]});
  }
  copy_strided(input.dtype(), output.data(), contiguous_strides(dims), input.data(), strides, dims);
}

std::vector<IndexPiece> map_tile(const IndexContext& context, std::span<const Expr> index) {
  const Shape repeats = context.attrs.shape("repeats");
  IndexPiece piece;
  for (size_t i = 0; i < index.size(); ++i) {
    const Expr& size = context.inputs[0].shape[i];
    if (size.is_const(1)) {
      piece.indices.push_back(0);
    } else {
      piece.indices.push_back(repeats[i].is_const(1) ? index[i] : sym::mod(index[i], size));
    }
  }
  return {std::move(piece)};
}

}  // namespace

void add_view_ops(OpTable& table) {
  using Kind = AttrSpec::Kind;
  const auto add = [&](const char* name, const char* summary, int max_inputs, std::vector<AttrSpec> attrs,
                       InferFn infer, ReferenceFn reference, IndexMapFn map) {
    table.add({.name = name,
               .family = Family::View,
               .summary = summary,
               .max_inputs = max_inputs,
               .attrs = std::move(attrs),
               .infer = std::move(infer),
               .reference = std::move(reference),
               .index_map = std::move(map)});
  };
  add("reshape", "the same elements in row-major order under another shape", 1, {{"shape", Kind::Sizes}}, infer_reshape,
      reference_reshape, map_reshape);
  add("transpose", "dimension i of the result is dimension perm[i] of x", 1, {{"perm", Kind::Integers}},
      infer_transpose, reference_transpose, map_transpose);
  add("expand", "x broadcast to exactly this shape", 1, {{"shape", Kind::Sizes}}, infer_expand, reference_expand,
      map_expand);
  add("slice", "x[starts + i * steps]", 1, {{"starts", Kind::Sizes}, {"sizes", Kind::Sizes}, {"steps", Kind::Integers}},
      infer_slice, reference_slice, map_slice);
  add("concat", "the inputs one after the other along an axis", -1, {{"axis", Kind::Integer}}, infer_concat,
      reference_concat, map_concat);
  add("pad", "x with elements added before and after each dimension, or cropped", 2,
      {{"low", Kind::Sizes}, {"high", Kind::Sizes}, {"mode", Kind::Text}}, infer_pad, reference_pad, map_pad);
  add("tile", "x repeated along each dimension", 1, {{"repeats", Kind::Sizes}}, infer_tile, reference_tile, map_tile);
}

}  // namespace fuseloom::op
