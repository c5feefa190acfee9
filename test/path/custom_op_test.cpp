// Ops of the user's own: by rule they fuse, by a kernel they are launched, tuned, cached and archived like ours.
#include <gtest/gtest.h>

#include <algorithm>

#include "build/file.h"
#include "compile/archive.h"
#include "compile/pipeline.h"
#include "graph/evaluate.h"
#include "graph/text.h"
#include "run/archive.h"
#include "support/greedy_op.h"

namespace fuseloom::test {
namespace {

std::vector<op::TensorType> like_input(const op::InferContext& context) { return {context.in(0)}; }

// y = x * FACTOR + add, row by row.
op::OpRecord scaled(std::vector<op::KernelConfiguration> configurations) {
  op::SourceKernel kernel{.helpers = "static inline float scale(float x, float by) { return x * by; }",
                          .source = R"(void run(void* const* buffers, const int64_t* sizes, char*, int64_t begin, int64_t end) {
  const X0* x = static_cast<const X0*>(buffers[0]);
  Y0* y = static_cast<Y0*>(buffers[1]);
  for (int64_t i = begin * sizes[1]; i < end * sizes[1]; ++i) y[i] = scale(x[i], FACTOR) + add;
})",
                          .configurations = std::move(configurations),
                          .extent = "x0_d0",
                          .mutates = std::vector<size_t>()};
  return {.name = "scaled", .summary = "x * FACTOR + add", .attrs = {{"add", op::AttrSpec::Kind::Integer, true}}, .infer = like_input, .kernel = std::move(kernel)};
}

const char* const kGraph = "graph main(%x: f32[n, m]) {\n  %a: f32[n, m] = relu(%x)\n  %b: f32[n, m] = scaled(%a) {add = 1}\n"
                           "  %y: f32[n, m] = mul(%b, %b)\n  return %y\n}\n";

Tensor run_graph(const op::OpTable& table, const std::string& text, const Tensor& x, compile::Options options = {}) {
  options.threads = 2;
  if (!options.cache_dir) options.cache_dir = "";
  return compile::compile(graph::parse_graph(text, table), options).executable->run({&x, 1})[0];
}

Tensor counted(Dims dims) {
  Tensor tensor(DType::F32, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, static_cast<double>(i % 11) - 3);
  return tensor;
}

void expect_scaled(const Tensor& x, const Tensor& y, double factor) {
  ASSERT_EQ(x.dims(), y.dims());
  for (int64_t i = 0; i < x.count(); ++i) {
    const double b = std::max(0.0, x.at(i)) * factor + 1;
    ASSERT_EQ(y.at(i), b * b) << i;
  }
}

TEST(CustomOp, ScalarRuleJoinsFusion) {
  const op::OpTable table = table_with({.name = "wobble", .summary = "x^2 - x", .rule = "sub(mul(x0, x0), x0)"});
  const std::string text = "graph main(%x: f32[n]) {\n  %a: f32[n] = relu(%x)\n  %b: f32[n] = wobble(%a)\n  %y: f32[n] = neg(%b)\n  return %y\n}\n";
  const compile::Compiled compiled = compile::compile(graph::parse_graph(text, table), {.threads = 1});
  EXPECT_EQ(compiled.report.kernels, 1u);
  const Tensor x = counted({40});
  const Tensor y = compiled.executable->run({&x, 1})[0];
  for (int64_t i = 0; i < x.count(); ++i) {
    const double a = std::max(0.0, x.at(i));
    EXPECT_EQ(y.at(i), -(a * a - a));
  }
}

TEST(CustomOp, OneConfigurationWithoutConstants) {  // R61
  op::OpRecord record = scaled({{}});
  record.kernel->source.replace(record.kernel->source.find("FACTOR"), 6, "3");
  const op::OpTable table = table_with(std::move(record));
  for (const int64_t n : {0, 1, 7}) {
    const Tensor x = counted({n, 5});
    expect_scaled(x, run_graph(table, kGraph, x), 3);
  }
}

TEST(CustomOp, MostSpecificConfigurationFirst) {  // R61: each has its own constant
  const op::OpTable table = table_with(scaled({{.constants = {{"FACTOR", 7}}, .condition = "eq(mod(x0_d1, 8), 0)"},
                                               {.constants = {{"FACTOR", 5}}, .condition = "eq(mod(x0_d1, 4), 0)"},
                                               {.constants = {{"FACTOR", 2}}}}));
  const std::pair<int64_t, double> cases[] = {{16, 7}, {12, 5}, {3, 2}};
  for (const auto& [columns, factor] : cases) {
    const Tensor x = counted({3, columns});
    expect_scaled(x, run_graph(table, kGraph, x), factor);  // as it is
    expect_scaled(x, run_graph(table, kGraph, x, {.hint = {{"n", 3}, {"m", columns}}}), factor);
  }
}

// The slower of two configurations is not chosen; the choice is kept.
TEST(CustomOp, TunesAmongEqualConditions) {
  op::OpRecord record = scaled({{.constants = {{"FACTOR", 2}, {"REPEAT", 400}}}, {.constants = {{"FACTOR", 3}, {"REPEAT", 1}}}});
  record.kernel->source = R"(void run(void* const* buffers, const int64_t* sizes, char*, int64_t begin, int64_t end) {
  const X0* x = static_cast<const X0*>(buffers[0]);
  volatile Y0* y = static_cast<volatile Y0*>(buffers[1]);
  for (int64_t r = 0; r < REPEAT; ++r)
    for (int64_t i = begin * sizes[1]; i < end * sizes[1]; ++i) y[i] = scale(x[i], FACTOR) + add;
})";
  const op::OpTable table = table_with(std::move(record));
  const build::TemporaryDirectory folder;
  const Tensor x = counted({4, 100});
  expect_scaled(x, run_graph(table, kGraph, x), 2);  // without typical sizes: the first
  const compile::Options typical{.hint = {{"n", 4}, {"m", 100}}, .cache_dir = folder.path()};
  for (int repeat = 0; repeat < 2; ++repeat) {
    const compile::Compiled compiled = compile::compile(graph::parse_graph(kGraph, table), typical);
    EXPECT_NE(compiled.report.explanation.find("kernel of op scaled: configuration 1"), std::string::npos) << compiled.report.explanation;
    EXPECT_EQ(compiled.report.from_cache, repeat == 1);
    expect_scaled(x, compiled.executable->run({&x, 1})[0], 3);
  }
}

TEST(CustomOp, InputsThatMayBeWrittenAreCopies) {
  for (const bool declared : {false, true}) {
    const op::OpTable table = table_with_greedy(declared ? std::optional(std::vector<size_t>{0}) : std::nullopt);
    const std::string text = "graph main(%x: f32[n]) {\n  %a: f32[n] = neg(%x)\n  %b: f32[n] = greedy(%a)\n  %y: f32[n] = add(%a, %b)\n  return %y\n}\n";
    const Tensor x = counted({20});
    const Tensor y = run_graph(table, text, x);
    for (int64_t i = 0; i < x.count(); ++i) EXPECT_EQ(y.at(i), -x.at(i) + x.at(i) * x.at(i) + 1);
    const std::string direct = "graph main(%x: f32[n]) {\n  %y: f32[n] = greedy(%x)\n  return %y\n}\n";
    run_graph(table, direct, x);
    EXPECT_EQ(x.at(0), -3);  // the caller's
  }
}

TEST(CustomOp, ScratchAndOtherTypes) {
  op::SourceKernel kernel{.helpers = "#include <cmath>",
                          .source = R"(void run(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end) {
  Y0* row = reinterpret_cast<Y0*>(scratch);
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < sizes[1]; ++c) row[c] = static_cast<Y0>(static_cast<const X0*>(buffers[0])[r * sizes[1] + c]);
    for (int64_t c = 0; c < sizes[1]; ++c) static_cast<Y0*>(buffers[1])[r * sizes[1] + c] = std::sqrt(row[sizes[1] - 1 - c]) * eps;
  }
})",
                          .extent = "x0_d0",
                          .scratch_bytes = "x0_d1*8",
                          .mutates = std::vector<size_t>()};
  const op::OpTable table = table_with({.name = "reversed_root", .summary = "", .attrs = {{"eps", op::AttrSpec::Kind::Real, true}},
                                        .infer = [](const op::InferContext& context) { return std::vector<op::TensorType>{{DType::F64, context.in(0).shape}}; },
                                        .kernel = kernel});
  const std::string text = "graph main(%x: i32[n, m]) {\n  %y: f64[n, m] = reversed_root(%x) {eps = 0.5}\n  return %y\n}\n";
  const Tensor y = run_graph(table, text, Tensor::of(DType::I32, {2, 2}, {4, 9, 16, 25}));
  EXPECT_EQ(y.at(0), 1.5);
  EXPECT_EQ(y.at(3), 2);
}

TEST(CustomOp, IsArchivedAndNeedsNoTable) {
  const op::OpTable table = table_with(scaled({{.constants = {{"FACTOR", 4}}}}));
  const build::TemporaryDirectory folder;
  const std::string path = folder.path() + "/custom.floom";
  compile::write_archive(graph::parse_graph(kGraph, table), path, {}, {.isas = compile::parse_isas("portable")});
  const Tensor x = counted({3, 6});
  for (const char* isa : {"", "baseline"}) expect_scaled(x, run::Archive::open(path).load({.threads = 2, .isa = isa})->run({&x, 1})[0], 4);
}

TEST(CustomOp, AReferenceIsOptional) {
  op::OpRecord record = scaled({{.constants = {{"FACTOR", 2}}}});
  const Tensor x = counted({2, 3});
  const op::OpTable without = table_with(record);
  EXPECT_THROW(graph::evaluate(graph::parse_graph(kGraph, without), {&x, 1}), Unsupported);
  record.reference = [](const op::ReferenceContext& context) {
    Tensor& y = context.outputs[0];
    for (int64_t i = 0; i < y.count(); ++i) y.set(i, context.inputs[0].at(i) * 2 + static_cast<double>(context.attrs.integer("add")));
  };
  const op::OpTable with = table_with(record);
  expect_scaled(x, graph::evaluate(graph::parse_graph(kGraph, with), {&x, 1})[0], 2);
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

TEST(CustomOp, SaysWhatIsWrong) {
  const auto added = [](const std::function<void(op::OpRecord&)>& change) {
    op::OpRecord record = scaled({{.constants = {{"FACTOR", 2}}}});
    change(record);
    return message_of([&] { table_with(std::move(record)); });
  };
  EXPECT_EQ(added([](op::OpRecord&) {}), "no error");
  EXPECT_NE(added([](op::OpRecord& r) { r.kernel->extent = "x0_d0*"; }).find("error"), 0u);
  EXPECT_NE(added([](op::OpRecord& r) { r.kernel->extent = "rows"; }).find("op 'scaled': the extent 'rows' names 'rows'"), std::string::npos);
  EXPECT_NE(added([](op::OpRecord& r) { r.kernel->configurations.clear(); }).find("has no configuration"), std::string::npos);
  EXPECT_NE(added([](op::OpRecord& r) { r.kernel->configurations[0].condition = "lt(x0_d0, 4)"; }).find("it must be 1"), std::string::npos);
  EXPECT_NE(added([](op::OpRecord& r) { r.kernel->configurations.push_back({.constants = {{"OTHER", 1}}}); }).find("other constants"), std::string::npos);
  EXPECT_NE(added([](op::OpRecord& r) { r.kernel->source = ""; }).find("no source"), std::string::npos);
  EXPECT_NE(added([](op::OpRecord& r) { r.infer = nullptr; }).find("infer"), std::string::npos);
  EXPECT_NE(added([](op::OpRecord& r) { r.kernel->mutates = {3}; }).find("mutates input 3"), std::string::npos);
  EXPECT_NE(added([](op::OpRecord& r) { r.name = "my op"; }).find("letters"), std::string::npos);

  const auto compiled = [](const std::string& source) {
    op::OpRecord record = scaled({{.constants = {{"FACTOR", 2}}}});
    record.kernel->source = source;
    const op::OpTable table = table_with(std::move(record));
    return message_of([&] { compile::compile(graph::parse_graph(kGraph, table), {.cache_dir = ""}); });
  };
  EXPECT_NE(compiled("void run(void* const*, const int64_t*, char*, int64_t, int64_t) {\n  nonsense;\n}").find("kernel of op scaled:2"), std::string::npos);
  EXPECT_NE(compiled("void walk() {}").find("op 'scaled': the compiler refuses its kernel"), std::string::npos);
  EXPECT_NE(compiled("void elsewhere();\nvoid run(void* const*, const int64_t*, char*, int64_t, int64_t) { elsewhere(); }").find("op 'scaled'"), std::string::npos);
}

}  // namespace
}  // namespace fuseloom::test
