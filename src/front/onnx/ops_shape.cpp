// Operators that rearrange: shapes, views, concatenation, padding; and tensors made of sizes alone.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "front/onnx/axis_set.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

// The axes in [begin, end), clamped to the rank.
std::pair<int64_t, int64_t> axis_range(int64_t begin, int64_t end, int64_t rank) {
  const auto clamp = [&](int64_t a) { return std::clamp<int64_t>(a < 0 ? a + rank : a, 0, rank); };
  return {clamp(begin), clamp(end)};
}

void import_shape(NodeImport& n) {
  const ValueId x = n.in(0);
  const auto [begin, end] = axis_range(n.integer("start", 0), n.integer("end", n.rank(x)), n.rank(x));
  std::vector<Expr> sizes;
  for (int64_t i = begin; i < end; ++i) sizes.push_back(n.size(x, i));
  n.out(n.sym_values(sizes));
}

void import_size(NodeImport& n) { n.out(n.sym_scalar(n.simplify(op::count_of(n.shape(n.in(0)))))); }

// ---- Reshape
// ---------------------------------------------------------------------------------------------------------

void collect_factors(const Expr& e, int64_t& constant, std::vector<Expr>& factors) {
  if (const auto value = e.as_const(); value.has_value()) {
    constant *= *value;
  } else if (e.kind() == sym::Kind::Mul) {
    for (const Expr& part : e.args()) collect_factors(part, constant, factors);
  } else {
    factors.push_back(e);
  }
}

// count / known, exact by the operator's contract. Common factors cancel without asking whether they are zero: where
// one is, ONNX leaves the answer open, and the rest of the product is as good as any.
Expr exact_quotient(std::span<const Expr> count, std::span<const Expr> known) {
  int64_t numerator = 1, denominator = 1;
  std::vector<Expr> over, under;
  for (const Expr& e : count) collect_factors(e, numerator, over);
  for (const Expr& e : known) collect_factors(e, denominator, under);
  std::vector<Expr> left;
  for (const Expr& e : under) {
    if (const auto it = std::find(over.begin(), over.end(), e); it != over.end()) {
      over.erase(it);
    } else {
      left.push_back(e);
    }
  }
  const int64_t common = std::gcd(numerator, denominator);
  if (common > 1) {
    numerator /= common;
    denominator /= common;
  }
  over.emplace_back(numerator);
  left.emplace_back(denominator);
  const Expr top = sym::product(over), bottom = sym::product(left);
  return bottom.is_const(1) ? top : sym::floor_div(top, bottom);
}

// Whether an entry is the size that is wanted. Sizes are (also when one of them is 0 at run time), and what
// bind_symbols reads, which has no facts, may be 0 or -1 with the meaning those have here.
bool is_literal(const Expr& e, const Graph& graph) {
  for (const std::string& symbol : sym::symbols_of(e))
    if (!graph.facts().symbols.contains(symbol)) return false;
  return true;
}

void import_reshape(NodeImport& n) {
  const ValueId x = n.in(0);
  const Shape input = n.shape(x);
  std::vector<Expr> entries;
  if (n.version() >= 5) {
    const ValueId shape = n.in(1);
    if (n.rank(shape) != 1) n.fail(fmt::format("the shape has rank {}", n.rank(shape)));
    entries = n.read_sizes(shape);
  } else {
    for (const int64_t v : n.integers("shape")) entries.emplace_back(v);
  }
  const bool allow_zero = n.integer("allowzero", 0) != 0;
  // 1. Zeros copy the input's size.
  std::optional<size_t> inferred;
  std::vector<size_t> undecided;  // entries that only the data decides
  Shape result = entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].is_const(0) && !allow_zero) {
      if (i >= input.size())
        n.fail(fmt::format("entry {} of the shape is 0, and the input has rank {}", i, input.size()));
      result[i] = input[i];
    } else if (entries[i].is_const(-1)) {
      if (inferred.has_value()) n.fail("two entries of the shape are -1");
      inferred = i;
    } else if (entries[i].is_const() && *entries[i].as_const() < -1) {
      n.fail(fmt::format("entry {} of the shape is {}", i, *entries[i].as_const()));
    } else if (!entries[i].is_const() && !is_literal(entries[i], n.graph())) {
      undecided.push_back(i);
      if (!allow_zero && i < input.size()) result[i] = sym::select(sym::eq(entries[i], 0), input[i], entries[i]);
    }
  }
  // 2. The one that is -1 takes what the others leave. When the file says which it is, no other can be.
  const auto others = [&](size_t but) {
    Shape rest = result;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(but));
    return rest;
  };
  if (inferred.has_value()) {
    result[*inferred] = n.simplify(exact_quotient(input, others(*inferred)));
  } else if (!undecided.empty()) {
    Shape decided = result;
    for (const size_t i : undecided)
      decided[i] = n.simplify(sym::select(sym::eq(entries[i], -1), exact_quotient(input, others(i)), result[i]));
    result = std::move(decided);
  }
  n.out(n.reshape(x, std::move(result)));
}

void import_flatten(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t axis = n.integer("axis", 1), rank = n.rank(x);
  if (axis < -rank || axis > rank) n.fail(fmt::format("axis {} is out of range for rank {}", axis, rank));
  n.out(n.flatten(x, axis < 0 ? axis + rank : axis));
}

void import_squeeze(NodeImport& n) {
  const ValueId x = n.in(0);
  const auto given = n.axes_from(1, 13);
  if (!given.has_value()) {
    std::vector<int64_t> axes;
    for (int64_t a = 0; a < n.rank(x); ++a)
      if (n.size(x, a).is_const(1)) axes.push_back(a);
    n.out(n.squeeze(x, axes));
    return;
  }
  const AxisSet axes(n, *given, n.rank(x));
  for (int64_t a = 0; a < n.rank(x); ++a)
    if (axes.contains(a).is_const(1) && n.size(x, a).is_const() && !n.size(x, a).is_const(1))
      n.fail(fmt::format("axis {} has the size {}, not 1", a, sym::to_string(n.size(x, a))));
  n.out(n.reshape(x, axes.without(n, n.shape(x))));
}

void import_unsqueeze(NodeImport& n) {
  const ValueId x = n.in(0);
  const auto given = n.axes_from(1, 13);
  if (!given.has_value()) n.fail("axes are missing");
  const int64_t rank = n.rank(x) + static_cast<int64_t>(given->size());
  const AxisSet axes(n, *given, rank);
  n.out(n.reshape(x, axes.with_ones(n, n.shape(x))));
}

void import_transpose(NodeImport& n) {
  const ValueId x = n.in(0);
  std::vector<int64_t> perm(static_cast<size_t>(n.rank(x)));
  std::iota(perm.rbegin(), perm.rend(), 0);
  perm = n.axes(n.integers("perm", perm), n.rank(x));
  if (static_cast<int64_t>(perm.size()) != n.rank(x))
    n.fail(fmt::format("perm has {} entries for rank {}", perm.size(), n.rank(x)));
  n.out(n.transpose(x, std::move(perm)));
}

void import_expand(NodeImport& n) {
  const ValueId x = n.in(0);
  const Shape target = n.read_sizes(n.in(1));
  n.out(n.expand(x, n.graph().broadcast(n.shape(x), target)));
}

void import_concat(NodeImport& n) {
  const std::vector<ValueId> parts = n.all_inputs();
  if (parts.empty()) n.fail("has no inputs");
  const int64_t axis = n.axis(n.integer("axis", n.version() < 4 ? 1 : 0), n.rank(parts[0]));
  n.out(n.concat(parts, axis));
}

// ---- Slice
// -----------------------------------------------------------------------------------------------------------

// The start and the number of elements of begin:end:step on a dimension of this size, as NumPy clamps them.
std::pair<Expr, Expr> clamped_range(NodeImport& n, const Expr& begin, const Expr& end, int64_t step, const Expr& size) {
  const Expr low = step > 0 ? Expr(0) : Expr(-1), high = step > 0 ? size : size - 1;
  const auto clamp = [&](const Expr& e, bool is_start) {
    if (const auto value = e.as_const(); value.has_value()) {  // INT64_MIN and MAX must not be added to
      if (*value >= 0 && *value > (int64_t{1} << 60)) return high;
      if (*value < -(int64_t{1} << 60)) return low;
      const Expr position = *value < 0 ? size + *value : e;
      if (*value == 0 && step > 0) return Expr(0);
      if (step < 0 && is_start && *value == -1) return high;
      return sym::min(sym::max(position, low), high);
    }
    const sym::Range range = sym::bounds(e, n.graph().facts());
    const Expr position = range.low >= 0 ? e : sym::select(sym::lt(e, 0), e + size, e);
    return sym::min(sym::max(position, low), high);
  };
  const Expr first = n.simplify(clamp(begin, true)), last = n.simplify(clamp(end, false));
  const Expr span = step > 0 ? last - first : first - last;
  const Expr count = sym::max(sym::ceil_div(span, step > 0 ? step : -step), 0);
  return {first, n.simplify(count)};
}

void import_slice(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t rank = n.rank(x);
  std::vector<Expr> starts, ends, steps, axes;
  if (n.version() >= 10) {
    starts = n.read_sizes(n.in(1));
    ends = n.read_sizes(n.in(2));
    if (n.has(3)) axes = n.read_sizes(n.in(3));
    if (n.has(4)) steps = n.read_sizes(n.in(4));
  } else {
    starts = op::shape_of(n.integers("starts"));
    ends = op::shape_of(n.integers("ends"));
    axes = op::shape_of(n.integers("axes"));
  }
  if (axes.empty())
    for (size_t i = 0; i < starts.size(); ++i) axes.emplace_back(static_cast<int64_t>(i));
  if (steps.empty()) steps.assign(starts.size(), Expr(1));
  if (starts.size() != ends.size() || starts.size() != axes.size() || starts.size() != steps.size())
    n.fail(fmt::format("has {} starts, {} ends, {} axes and {} steps", starts.size(), ends.size(), axes.size(),
                       steps.size()));
  const AxisSet set(n, axes, rank);
  const Shape in = n.shape(x);
  Shape begin(in.size(), Expr(0)), sizes = in;
  std::vector<int64_t> step(in.size(), 1);
  std::vector<Expr> run_time_step(in.size(), Expr(0));  // not 0 where only the run knows the step
  for (size_t d = 0; d < in.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (set.contains(dim).is_const(0)) continue;
    // The entries for this axis; without one the whole dimension.
    const Expr stride = set.choose(dim, steps, 1);
    const Expr from = set.choose(dim, starts, 0), to = set.choose(dim, ends, in[d]);
    if (const auto known = stride.as_const(); known.has_value()) {
      if (*known == 0) n.fail("a step is 0");
      // A step longer than any dimension takes one element, as the longest sensible step does.
      step[d] = std::clamp<int64_t>(*known, -(int64_t{1} << 40), int64_t{1} << 40);
      std::tie(begin[d], sizes[d]) = clamped_range(n, from, to, step[d], in[d]);
    } else {
      const auto [up_begin, up_size] = clamped_range(n, from, to, 1, in[d]);
      const auto [down_begin, down_size] = clamped_range(n, from, to, -1, in[d]);
      const Expr down = sym::lt(stride, 0);
      begin[d] = sym::select(down, down_begin, up_begin);
      sizes[d] = sym::select(down, sym::ceil_div(down_size, -stride), sym::ceil_div(up_size, stride));
      run_time_step[d] = stride;
    }
  }
  if (sizes == in && std::all_of(step.begin(), step.end(), [](int64_t s) { return s == 1; }) &&
      std::all_of(begin.begin(), begin.end(), [](const Expr& e) { return e.is_const(0); })) {
    n.out(0, n.item(0));
    return;
  }
  // Where nothing is taken, the start may lie one before the first element; any start will do then.
  for (size_t d = 0; d < in.size(); ++d)
    if (step[d] < 0) begin[d] = n.simplify(sym::max(begin[d], 0));
  // A step that only the run knows makes a gather of its dimension.
  ValueId y = x;
  for (size_t d = 0; d < in.size(); ++d) {
    if (run_time_step[d].is_const(0)) continue;
    const ValueId place = n.add("iota", {}, {{"shape", Shape{sizes[d]}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
    const ValueId index = n.add("add", {n.add("mul", {place, n.sym_scalar(run_time_step[d])}), n.sym_scalar(begin[d])});
    y = n.add("gather", {y, index}, {{"axis", static_cast<int64_t>(d)}});
    begin[d] = 0;
  }
  n.out(0, n.add("slice", {y}, {{"starts", std::move(begin)}, {"sizes", std::move(sizes)}, {"steps", std::move(step)}}),
        n.item(0).narrow);
}

// Sizes of the parts when `count` parts share a dimension: equal but for a smaller last one.
std::vector<Expr> even_parts(NodeImport& n, const Expr& size, int64_t count) {
  const Expr chunk = n.simplify(sym::ceil_div(size, count));
  std::vector<Expr> parts;
  for (int64_t i = 0; i < count; ++i) parts.push_back(n.simplify(sym::max(sym::min(chunk, size - chunk * i), 0)));
  return parts;
}

void import_split(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t axis = n.axis(n.integer("axis", 0), n.rank(x));
  const auto count = static_cast<int64_t>(n.output_count());
  std::vector<Expr> parts;
  if (n.version() >= 13 ? n.has(1) : n.has_attr("split")) {
    if (n.version() >= 13) {
      parts = n.read_sizes(n.in(1));
    } else {
      for (const int64_t v : n.integers("split")) parts.emplace_back(v);
    }
  } else {
    if (n.integer("num_outputs", count) != count)
      n.fail(fmt::format("num_outputs is {}, and the node has {} outputs", n.integer("num_outputs"), count));
    parts = even_parts(n, n.size(x, axis), count);
  }
  if (static_cast<int64_t>(parts.size()) != count)
    n.fail(fmt::format("splits into {} parts, and the node has {} outputs", parts.size(), count));
  Expr start = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Expr& part = parts[static_cast<size_t>(i)];
    if (n.wants(static_cast<size_t>(i))) n.out(static_cast<size_t>(i), n.slice(x, axis, start, part));
    start = n.simplify(start + part);
  }
}

void import_tile(NodeImport& n) {
  const ValueId x = n.in(0);
  Shape repeats;
  if (n.version() >= 6) {
    repeats = n.read_sizes(n.in(1));
  } else {  // opset 1: how often, and along which axis
    repeats.assign(static_cast<size_t>(n.rank(x)), Expr(1));
    repeats[static_cast<size_t>(n.axis(n.require_integers(n.in(2), "axis").at(0), n.rank(x)))] = n.read_size(n.in(1));
  }
  n.out(n.add("tile", {x}, {{"repeats", std::move(repeats)}}));
}

void import_pad(NodeImport& n) {
  const ValueId x = n.in(0);
  std::vector<Expr> pads;
  ValueId fill;
  if (n.version() >= 11) {
    pads = n.read_sizes(n.in(1));
    if (n.has(2)) fill = n.reshape(n.in(2), {});
  } else {
    for (const int64_t v : n.integers(n.version() >= 2 ? "pads" : "paddings")) pads.emplace_back(v);
    if (const double value = n.real("value", 0); value != 0) fill = n.like(x, value);
  }
  std::vector<Expr> axes;
  if (n.has(3)) {
    axes = n.read_sizes(n.in(3));
  } else {
    for (int64_t a = 0; a < n.rank(x); ++a) axes.emplace_back(a);
  }
  if (pads.size() != 2 * axes.size()) n.fail(fmt::format("has {} pads for {} axes", pads.size(), axes.size()));
  const AxisSet set(n, axes, n.rank(x));
  const std::vector<Expr> before(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(axes.size()));
  const std::vector<Expr> after(pads.begin() + static_cast<std::ptrdiff_t>(axes.size()), pads.end());
  Shape low, high;
  for (int64_t a = 0; a < n.rank(x); ++a) {
    low.push_back(n.simplify(set.choose(a, before, 0)));
    high.push_back(n.simplify(set.choose(a, after, 0)));
  }
  const std::string mode = n.text("mode", "constant");
  n.out(n.pad(x, std::move(low), std::move(high), mode, mode == "constant" ? fill : ValueId{}));
}

// Centers a crop or a padding of the given axes.
void import_center_crop_pad(NodeImport& n) {
  const ValueId x = n.in(0);
  const std::vector<Expr> target = n.read_sizes(n.in(1));
  std::vector<int64_t> axes(static_cast<size_t>(n.rank(x)));
  std::iota(axes.begin(), axes.end(), 0);
  if (n.has_attr("axes")) axes = n.axes(n.integers("axes"), n.rank(x));
  if (axes.size() != target.size()) n.fail(fmt::format("has {} sizes for {} axes", target.size(), axes.size()));
  Shape low(static_cast<size_t>(n.rank(x)), Expr(0)), high = low;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto a = static_cast<size_t>(axes[i]);
    const Expr more = n.simplify(target[i] - n.shape(x)[a]);
    // Padding puts the odd element behind, cropping takes it off behind: both halves round down in magnitude.
    low[a] = n.simplify(sym::select(sym::lt(more, 0), -sym::floor_div(-more, 2), sym::floor_div(more, 2)));
    high[a] = n.simplify(more - low[a]);
  }
  n.out(n.pad(x, std::move(low), std::move(high)));
}

// ---- sizes as data
// ---------------------------------------------------------------------------------------------------

void import_range(NodeImport& n) {
  const ValueId start = n.in(0), limit = n.in(1), delta = n.in(2);
  const DType dtype = n.dtype(start);
  const auto scalar = [&](ValueId v) { return n.reshape(v, {}); };
  Expr count;
  if (is_float(dtype)) {
    // The count is computed on the values where they are constants, and in the graph where they are not.
    const auto a = n.constant_value(start), b = n.constant_value(limit), d = n.constant_value(delta);
    if (a.has_value() && b.has_value() && d.has_value()) {
      count = Expr(std::max<int64_t>(static_cast<int64_t>(std::ceil((b->at(0) - a->at(0)) / d->at(0))), 0));
    } else {
      const auto wide = [&](ValueId v) { return n.cast(scalar(v), DType::F64); };
      const ValueId ratio = n.add("ceil", {n.add("div", {n.add("sub", {wide(limit), wide(start)}), wide(delta)})});
      count = sym::max(n.read_size(n.cast(ratio, DType::I64)), 0);
    }
  } else {
    const Expr a = n.read_size(start), b = n.read_size(limit), d = n.read_size(delta);
    const auto step = d.as_const();
    if (step == 0) n.fail("delta is 0");
    // ceil((b - a) / d): with a negative step both sides change sign.
    if (step.has_value()) {
      count = *step > 0 ? sym::ceil_div(b - a, d) : sym::ceil_div(a - b, -d);
    } else {
      count = sym::select(sym::lt(d, 0), sym::ceil_div(a - b, -d), sym::ceil_div(b - a, d));
    }
    count = n.simplify(sym::max(count, 0));
  }
  ValueId values = n.add("iota", {}, {{"shape", Shape{count}}, {"axis", int64_t{0}}, {"dtype", dtype}});
  values = n.add("add", {scalar(start), n.add("mul", {values, scalar(delta)})});
  n.out(values);
}

void import_constant_of_shape(NodeImport& n) {
  const Shape shape = n.read_sizes(n.in(0));
  Tensor value = n.has_attr("value") ? n.tensor("value") : Tensor::scalar(DType::F32, 0);
  if (value.count() != 1) n.fail(fmt::format("the value has {} elements, not 1", value.count()));
  const AttributeProto* const attribute = n.find("value");
  const ElementType type = attribute != nullptr ? attribute->tensor->type : ElementType::Float;
  n.out(0, n.expand(n.constant(value.reshaped({})), shape), is_narrow(type) ? type : ElementType::Undefined);
}

// rows == columns - k, of an [r, c] shape.
ValueId diagonal_mask(NodeImport& n, const Shape& shape, const Expr& k) {
  const ValueId row =
      n.add("iota", {}, {{"shape", Shape{shape[0], Expr(1)}}, {"axis", int64_t{0}}, {"dtype", DType::I64}});
  const ValueId column =
      n.add("iota", {}, {{"shape", Shape{Expr(1), shape[1]}}, {"axis", int64_t{1}}, {"dtype", DType::I64}});
  return n.add("eq", {n.add("add", {row, n.sym_scalar(k)}), column});
}

void import_eye_like(NodeImport& n) {
  const ValueId x = n.in(0);
  if (n.rank(x) != 2) n.fail(fmt::format("takes a matrix, not rank {}", n.rank(x)));
  const DType dtype =
      n.has_attr("dtype") ? carrier_dtype(static_cast<ElementType>(n.integer("dtype")), n.describe()) : n.dtype(x);
  n.out(n.cast(diagonal_mask(n, n.shape(x), n.integer("k", 0)), dtype));
}

void import_trilu(NodeImport& n) {
  std::vector<ValueId> inputs = {n.in(0)};
  if (n.has(1)) inputs.push_back(n.reshape(n.in(1), {}));
  n.out(n.add("trilu", std::move(inputs), {{"upper", n.integer("upper", 1)}}));
}

// ---- space and depth
// -------------------------------------------------------------------------------------------------

void import_depth_to_space(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t block = n.integer("blocksize");
  if (n.rank(x) != 4 || block < 1)
    n.fail(fmt::format("takes [n, c, h, w] and a positive blocksize, not rank {} and {}", n.rank(x), block));
  const Shape s = n.shape(x);
  const Expr depth = n.simplify(sym::floor_div(s[1], block * block));
  const std::string mode = n.text("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") n.fail(fmt::format("mode '{}' is neither DCR nor CRD", mode));
  const ValueId y = mode == "DCR"
                        ? n.transpose(n.reshape(x, {s[0], block, block, depth, s[2], s[3]}), {0, 3, 4, 1, 5, 2})
                        : n.transpose(n.reshape(x, {s[0], depth, block, block, s[2], s[3]}), {0, 1, 4, 2, 5, 3});
  n.out(n.reshape(y, {s[0], depth, n.simplify(s[2] * block), n.simplify(s[3] * block)}));
}

void import_space_to_depth(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t block = n.integer("blocksize");
  if (n.rank(x) != 4 || block < 1)
    n.fail(fmt::format("takes [n, c, h, w] and a positive blocksize, not rank {} and {}", n.rank(x), block));
  const Shape s = n.shape(x);
  const Expr h = n.simplify(sym::floor_div(s[2], block)), w = n.simplify(sym::floor_div(s[3], block));
  const ValueId y = n.transpose(n.reshape(x, {s[0], s[1], h, block, w, block}), {0, 3, 5, 1, 2, 4});
  n.out(n.reshape(y, {s[0], n.simplify(s[1] * (block * block)), h, w}));
}

}  // namespace

void add_shape_imports(ImportTable& t) {
  t.add("Shape", import_shape);
  t.add("Size", import_size);
  t.add("Reshape", import_reshape);
  t.add("Flatten", import_flatten);
  t.add("Squeeze", import_squeeze);
  t.add("Unsqueeze", import_unsqueeze);
  t.add("Transpose", import_transpose);
  t.add("Expand", import_expand);
  t.add("Concat", import_concat);
  t.add("Slice", import_slice);
  t.add("Split", import_split);
  t.add("Tile", import_tile);
  t.add("Pad", import_pad);
  t.add("CenterCropPad", import_center_crop_pad);
  t.add("Range", import_range);
  t.add("ConstantOfShape", import_constant_of_shape);
  t.add("EyeLike", import_eye_like);
  t.add("Trilu", import_trilu);
  t.add("DepthToSpace", import_depth_to_space);
  t.add("SpaceToDepth", import_space_to_depth);
}

}  // namespace fuseloom::front::onnx
