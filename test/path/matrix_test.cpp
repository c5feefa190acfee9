// The op table through the compiled path: op × element type × shape × layout, against the oracle. The ops come from the
// table itself, so that a new record is tested the day it is added.
//
// Many ops share one graph (one compilation); a failure names the op. Elements are compared relative to their own size.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "fuseloom/error.h"
#include "path/path_testing.h"

namespace fuseloom::test {
namespace {

using graph::Graph;
using graph::ValueId;
using sym::Expr;

const std::vector<DType> kTypes = {DType::Bool, DType::I8,  DType::I16,  DType::I32, DType::I64, DType::U8,  DType::U16, DType::U32,
                                   DType::U64,  DType::F16, DType::BF16, DType::F32, DType::F64, DType::C64, DType::C128};

// One of each kind and width: what moves elements or folds them depends on no more. All of kTypes are tested as disabled
// tests, by hand.
const std::vector<DType> kSomeTypes = {DType::Bool, DType::I8, DType::I32, DType::U64, DType::F16, DType::F32, DType::F64, DType::C64};

// Sizes of [a, b]: nothing, one, fewer and more than a vector.
const std::vector<Dims> kShapes = {{0, 3}, {3, 0}, {1, 1}, {2, 1}, {1, 7}, {3, 33}, {5, 129}};

std::string type_name(const testing::TestParamInfo<DType>& info) { return std::string(dtype_name(info.param)); }

// Several outputs by name, compiled once, run over shapes.
class Batch {
 public:
  explicit Batch(DType dtype) : dtype_(dtype), graph_(op::standard_ops()) {}

  Graph& graph() { return graph_; }
  ValueId input(std::string name, DType dtype, op::Shape shape) { return graph_.add_input(std::move(name), {dtype, std::move(shape)}); }
  // Adds the op when its record takes these types; says whether it did.
  bool add(const std::string& op, const std::vector<ValueId>& inputs, const op::Attrs& attrs = {}, const std::string& name = "") {
    const op::OpRecord& record = graph_.table().at(op);
    std::vector<op::TensorType> types;
    for (const ValueId id : inputs) types.push_back(graph_.type(id));
    try {
      (void)op::infer_types(record, types, std::vector<char>(inputs.size(), 1), attrs);
    } catch (const UserError&) {
      return false;
    }
    names_.push_back(name.empty() ? op : name);
    outputs_.push_back(graph_.add(op, inputs, attrs));
    return true;
  }
  bool empty() const { return outputs_.empty(); }

  // Compiles; run() compares each output with the oracle.
  void compile(bool fuse = true) {
    graph_.set_outputs(outputs_);
    compile::Options options{.fuse = fuse, .threads = 1};
    options.run.poison = true;
    compiled_ = compile::compile(graph_.clone(), options);
  }
  void run(std::span<const Tensor> inputs, double rounding = 0) {
    std::string sizes;
    for (const Tensor& input : inputs) sizes += " " + input.type_string();
    const std::vector<Tensor> expected = graph::evaluate(graph_, inputs), got = compiled_.executable->run(inputs);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(elementwise_difference(expected[i], got[i], std::max(rounding, rounding_of(dtype_))), "") << names_[i] << " on" << sizes;
    }
  }

 private:
  // Every element to the rounding of its type, relative to itself (or to 1, below it).
  static std::string elementwise_difference(const Tensor& expected, const Tensor& got, double rounding) {
    if (expected.type_string() != got.type_string()) return expected.type_string() + " expected, got " + got.type_string();
    const auto near = [&](double e, double g) { return (std::isnan(e) && std::isnan(g)) || e == g || std::abs(e - g) <= rounding * std::max(1.0, std::abs(e)); };
    const bool whole = is_int(expected.dtype()) || expected.dtype() == DType::Bool;
    for (int64_t i = 0; i < expected.count(); ++i) {
      if (whole ? expected.int_at(i) != got.int_at(i) : !near(expected.at(i), got.at(i)) || (is_complex(expected.dtype()) && !near(expected.imag_at(i), got.imag_at(i)))) {
        return fmt::format("element {}: {} expected, got {}", i, whole ? static_cast<double>(expected.int_at(i)) : expected.at(i),
                           whole ? static_cast<double>(got.int_at(i)) : got.at(i));
      }
    }
    return "";
  }

  DType dtype_;
  Graph graph_;
  std::vector<ValueId> outputs_;
  std::vector<std::string> names_;
  compile::Compiled compiled_;
};

// Numbers, and among them what is special in the type.
Tensor with_special_values(DType dtype, Dims dims, uint64_t seed) {
  Tensor tensor = numbers(dtype, std::move(dims), seed);
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> floats = {0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 1e-3, 60000, -60000};
  if (dtype == DType::Bool) return tensor;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if ((i + static_cast<int64_t>(seed)) % 3 != 0) continue;
    const size_t k = static_cast<size_t>(i / 3) + seed;
    if (is_int(dtype)) {
      const int64_t bits = dtype_bits(dtype);
      const int64_t high = is_signed_int(dtype) ? std::numeric_limits<int64_t>::max() >> (64 - bits) : bits == 64 ? -1 : (int64_t{1} << bits) - 1;
      const std::vector<int64_t> values = {0, high, is_signed_int(dtype) ? -high - 1 : 1, is_signed_int(dtype) ? -1 : high - 1, 1, 63, 64};
      tensor.set_int(i, values[k % values.size()]);
    } else {
      tensor.set(i, floats[k % floats.size()]);
    }
  }
  return tensor;
}

// ---- elementwise ops -------------------------------------------------------------------------------------------------

op::Attrs elementwise_attrs(const op::OpRecord& record) {
  op::Attrs attrs;
  for (const op::AttrSpec& spec : record.attrs) {
    if (spec.required && spec.kind == op::AttrSpec::Kind::Real) attrs.set(spec.name, spec.name == "low" ? -1.0 : 0.75);
  }
  return attrs;
}

class Elementwise : public testing::TestWithParam<DType> {};

TEST_P(Elementwise, EveryOpEveryShape) {
  Batch batch(GetParam());
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b");
  const ValueId x = batch.input("x", GetParam(), {a, b}), row = batch.input("row", GetParam(), {b}), one = batch.input("one", GetParam(), {});
  const ValueId condition = batch.input("c", DType::Bool, {a, 1});
  for (const op::OpRecord* record : op::standard_ops().all()) {
    if (record->family != op::Family::Elementwise || record->name == "cast" || record->name == "bitcast") continue;
    const op::Attrs attrs = elementwise_attrs(*record);
    if (record->name == "select") {
      batch.add(record->name, {condition, x, row});
    } else if (record->min_inputs == 1) {
      batch.add(record->name, {x}, attrs);
    } else if (record->min_inputs == 2) {
      batch.add(record->name, {x, row}, attrs);
    } else {
      batch.add(record->name, {x, one, row}, attrs);
    }
  }
  for (const DType to : kTypes) {
    batch.add("cast", {x}, {{"to", to}}, fmt::format("cast to {}", dtype_name(to)));
    batch.add("bitcast", {x}, {{"to", to}}, fmt::format("bitcast to {}", dtype_name(to)));
  }
  ASSERT_FALSE(batch.empty());
  batch.compile();
  for (const Dims& dims : kShapes) {
    const std::vector<Tensor> inputs{with_special_values(GetParam(), dims, 1), with_special_values(GetParam(), {dims[1]}, 2),
                                     numbers(GetParam(), {}, 3), numbers(DType::Bool, {dims[0], 1}, 4)};
    batch.run(inputs);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Elementwise, testing::ValuesIn(kTypes), type_name);

// ---- views -----------------------------------------------------------------------------------------------------------

class Views : public testing::TestWithParam<DType> {};

TEST_P(Views, EveryOpEveryShape) {
  Batch batch(GetParam());
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b");
  const ValueId x = batch.input("x", GetParam(), {a, b}), y = batch.input("y", GetParam(), {a, b}), fill = batch.input("fill", GetParam(), {});
  // Each behind an elementwise op and before one, so that it is fused, and as it is.
  const DType middle = GetParam();
  const auto around = [&](const std::string& name, const std::string& op, const std::vector<ValueId>& inputs, const op::Attrs& attrs) {
    ASSERT_TRUE(batch.add(op, inputs, attrs, name));
    const ValueId viewed = batch.graph().add(op, inputs, attrs);
    batch.add("eq", {viewed, fill}, {}, name + ", then eq");
    if (middle == DType::Bool || is_complex(middle)) return;
    std::vector<ValueId> before;
    for (const ValueId input : inputs) before.push_back(batch.graph().add("max", {input, fill}));
    batch.add(op, before, attrs, "max, then " + name);
  };
  around("reshape", "reshape", {x}, {{"shape", op::Shape{a * b}}});
  around("transpose", "transpose", {x}, {{"perm", std::vector<int64_t>{1, 0}}});
  around("expand", "expand", {x}, {{"shape", op::Shape{2, a, b}}});
  around("slice backwards", "slice", {x}, {{"starts", op::Shape{a - 1, 0}}, {"sizes", op::Shape{a, b}}, {"steps", std::vector<int64_t>{-1, 1}}});
  around("slice every other", "slice", {x}, {{"starts", op::Shape{0, 0}}, {"sizes", op::Shape{a, sym::ceil_div(b, 2)}}, {"steps", std::vector<int64_t>{1, 2}}});
  around("concat of rows", "concat", {x, y, x}, {{"axis", int64_t{0}}});
  around("concat of columns", "concat", {x, y}, {{"axis", int64_t{1}}});
  around("tile", "tile", {x}, {{"repeats", op::Shape{1, 3}}});
  around("pad", "pad", {x, fill}, {{"low", op::Shape{1, 0}}, {"high", op::Shape{2, 5}}, {"mode", std::string("constant")}});
  batch.add("pad", {x}, {{"low", op::Shape{0, 2}}, {"high", op::Shape{1, 0}}, {"mode", std::string("constant")}}, "pad with zeros");
  batch.add("gather", {x, batch.input("i", DType::I64, {Expr::symbol("n")})}, {{"axis", int64_t{1}}});
  batch.compile();
  for (const Dims& dims : kShapes) {
    std::vector<Tensor> inputs{numbers(GetParam(), dims, 1), numbers(GetParam(), dims, 2), numbers(GetParam(), {}, 3)};
    Tensor index(DType::I64, {dims[1] == 0 ? 0 : 5});
    for (int64_t i = 0; i < index.count(); ++i) index.set_int(i, (i * 7) % (2 * dims[1]) - dims[1]);
    inputs.push_back(index);
    batch.run(inputs);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Views, testing::ValuesIn(kSomeTypes), type_name);
INSTANTIATE_TEST_SUITE_P(DISABLED_AllTypes, Views, testing::ValuesIn(kTypes), type_name);

// The modes that read elements again need elements to read: sizes of at least what they add.
TEST(PadModes, EveryMode) {
  Batch batch(DType::F32);
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b");
  const ValueId x = batch.input("x", DType::F32, {a, b});
  for (const char* mode : {"reflect", "edge", "wrap"}) {
    batch.add("pad", {x}, {{"low", op::Shape{1, 2}}, {"high", op::Shape{2, 0}}, {"mode", std::string(mode)}}, mode);
    batch.add("pad", {batch.graph().add("exp", {x})}, {{"low", op::Shape{0, 1}}, {"high", op::Shape{0, 2}}, {"mode", std::string(mode)}}, mode);
  }
  batch.compile();
  for (const Dims& dims : std::vector<Dims>{{3, 3}, {4, 33}, {5, 129}}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, dims, 1)};
    batch.run(inputs);
  }
}

// ---- reductions and scans --------------------------------------------------------------------------------------------

class Reductions : public testing::TestWithParam<DType> {};

TEST_P(Reductions, EveryOpEveryAxis) {
  Batch batch(GetParam());
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b");
  const ValueId x = batch.input("x", GetParam(), {a, b});
  for (const op::OpRecord* record : op::standard_ops().all()) {
    const bool reduces = record->family == op::Family::Reduction || record->name.starts_with("reduce_");
    if (!reduces && record->family != op::Family::Scan) continue;
    for (const std::vector<int64_t>& axes : std::vector<std::vector<int64_t>>{{0}, {1}, {0, 1}}) {
      const std::string name = fmt::format("{} over {}", record->name, fmt::join(axes, ", "));
      if (record->family == op::Family::Scan) {
        if (axes.size() > 1) continue;
        for (const int64_t flags : {0, 3})
          batch.add(record->name, {x}, {{"axis", axes[0]}, {"exclusive", flags & 1}, {"reverse", flags >> 1}}, name);
      } else if (record->name.starts_with("arg")) {
        if (axes.size() > 1) continue;
        for (const int64_t last : {0, 1}) batch.add(record->name, {x}, {{"axis", axes[0]}, {"keepdims", int64_t{0}}, {"select_last", last}}, name);
      } else {
        op::Attrs attrs{{"axes", axes}, {"keepdims", int64_t{axes[0]}}};
        if (record->name == "reduce_variance") attrs.set("correction", 1.0);
        batch.add(record->name, {x}, attrs, name);
      }
    }
  }
  if (batch.empty()) return;
  batch.compile();
  for (const Dims& dims : kShapes) {
    if (dims[0] * dims[1] == 0) continue;   // argmax over nothing is an error
    const std::vector<Tensor> inputs{numbers(GetParam(), dims, 1)};
    batch.run(inputs, rounding_of(GetParam()) * 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Reductions, testing::ValuesIn(kSomeTypes), type_name);
INSTANTIATE_TEST_SUITE_P(DISABLED_AllTypes, Reductions, testing::ValuesIn(kTypes), type_name);

TEST(OverNothing, ReductionsAndScans) {
  Batch batch(DType::F32);
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b");
  const ValueId x = batch.input("x", DType::F32, {a, b});
  for (const char* name : {"reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_mean", "reduce_sum_square", "reduce_log_sum_exp"}) {
    for (const std::vector<int64_t>& axes : std::vector<std::vector<int64_t>>{{0}, {1}, {0, 1}})
      batch.add(name, {x}, {{"axes", axes}, {"keepdims", int64_t{0}}}, fmt::format("{} over {}", name, fmt::join(axes, ", ")));
  }
  batch.add("cumsum", {x}, {{"axis", int64_t{1}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}});
  batch.add("softmax", {x}, {{"axis", int64_t{1}}});
  batch.compile();
  for (const Dims& dims : std::vector<Dims>{{0, 3}, {3, 0}, {0, 0}, {1, 1}}) {
    const std::vector<Tensor> inputs{numbers(DType::F32, dims, 1)};
    batch.run(inputs);
  }
}

// ---- layouts ---------------------------------------------------------------------------------------------------------

// The caller's tensors need not be contiguous: transposed, with a step, backwards, repeated, from the middle of another.
TEST(Layouts, EveryInputLayout) {
  Batch batch(DType::F32);
  const Expr a = Expr::symbol("a"), b = Expr::symbol("b");
  const ValueId x = batch.input("x", DType::F32, {a, b}), y = batch.input("y", DType::F32, {a, b});
  batch.add("add", {x, y});
  batch.add("softmax", {x}, {{"axis", int64_t{1}}});
  batch.add("softmax", {x}, {{"axis", int64_t{0}}});
  batch.add("transpose", {x}, {{"perm", std::vector<int64_t>{1, 0}}});
  batch.add("matmul", {x, y}, {{"trans_b", int64_t{1}}});
  batch.compile();
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 1}, {1, 5}, {4, 33}, {7, 129}}) {
    Tensor storage = numbers(DType::F32, {4 * rows * columns + 64}, 1);
    float* const at = storage.as<float>();
    const Tensor plain = numbers(DType::F32, {rows, columns}, 2);
    const std::map<std::string, Tensor> layouts = {
        {"transposed", Tensor::borrow(DType::F32, {rows, columns}, {1, rows}, at)},
        {"at an odd offset", Tensor::borrow(DType::F32, {rows, columns}, at + 1)},
        {"every other column", Tensor::borrow(DType::F32, {rows, columns}, {2 * columns, 2}, at + 3)},
        {"rows of a wider tensor", Tensor::borrow(DType::F32, {rows, columns}, {columns + 1, 1}, at + 1)},
        {"backwards", Tensor::borrow(DType::F32, {rows, columns}, {columns, -1}, at + columns - 1)},
        {"rows backwards", Tensor::borrow(DType::F32, {rows, columns}, {-columns, 1}, at + (rows - 1) * columns)},
        {"one row for all", Tensor::borrow(DType::F32, {rows, columns}, {0, 1}, at)},
        {"one element for all", Tensor::borrow(DType::F32, {rows, columns}, {0, 0}, at + 5)},
    };
    for (const auto& [name, tensor] : layouts) {
      SCOPED_TRACE(name);
      const std::vector<Tensor> first{tensor, plain}, second{plain, tensor}, both{tensor, tensor};
      for (const std::vector<Tensor>& inputs : {first, second, both}) batch.run(inputs);
    }
  }
}

}  // namespace
}  // namespace fuseloom::test
