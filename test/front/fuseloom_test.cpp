#include "fuseloom/fuseloom.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "build/file.h"

namespace fuseloom {
namespace {

CompileOptions uncached() {
  CompileOptions options;
  options.cache_dir = "";
  options.threads = 2;
  return options;
}

Tensor counted(Dims dims) {
  Tensor tensor(DType::F32, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, static_cast<double>(i % 7) - 3);
  return tensor;
}

// y = softmax(relu(x * 2 + b) - 1): one symbol, one constant.
Graph small_network() {
  Graph graph("small");
  const Value x = graph.input("x", DType::F32, {"n", 5});
  const Value b = graph.constant(Tensor::of(DType::F32, {5}, {0.5, 0, -0.5, 1, 2}));
  graph.output(softmax(relu(x * 2.0 + b) - 1.0, -1), "y");
  return graph;
}

double expected(const Tensor& x, int64_t row, int64_t column) {
  const double b[] = {0.5, 0, -0.5, 1, 2};
  double sum = 0, own = 0;
  for (int64_t j = 0; j < 5; ++j) {
    const double e = std::exp(std::max(0.0, x.at(row * 5 + j) * 2 + b[j]) - 1);
    sum += e;
    if (j == column) own = e;
  }
  return own / sum;
}

TEST(Api, BuildsCompilesAndRunsForEverySize) {
  const Program program = compile(small_network(), uncached());
  EXPECT_EQ(program.inputs().size(), 1u);
  EXPECT_EQ(program.inputs()[0].name, "x");
  EXPECT_EQ(program.inputs()[0].sizes[0].text(), "n");
  EXPECT_EQ(program.outputs()[0].name, "y");
  EXPECT_EQ(program.info().kernels, 1u);
  EXPECT_GT(program.info().nodes, 1u);
  EXPECT_NE(program.explain().find("group"), std::string::npos);
  EXPECT_NE(program.source().find("extern \"C\""), std::string::npos);
  for (const int64_t n : {0, 1, 3, 64}) {
    const Tensor x = counted({n, 5});
    const std::vector<Tensor> results = program.run({x});
    ASSERT_EQ(results[0].dims(), (Dims{n, 5}));
    for (int64_t i = 0; i < n * 5; ++i) EXPECT_NEAR(results[0].at(i), expected(x, i / 5, i % 5), 1e-6);
  }
}

TEST(Api, RunsOnTheCallersBuffers) {
  const Program program = compile(small_network(), uncached());
  const std::vector<Dims> dims = {{4, 5}};
  EXPECT_EQ(program.output_dims(dims), (std::vector<Dims>{{4, 5}}));
  EXPECT_GE(program.arena_bytes(dims), program.arena_lower_bound(dims));
  std::vector<float> in(20), out(20, -1);
  std::iota(in.begin(), in.end(), -10.0f);
  const std::vector<Tensor> inputs = {Tensor::borrow(DType::F32, {4, 5}, in.data())};
  std::vector<Tensor> outputs = {Tensor::borrow(DType::F32, {4, 5}, out.data())};
  program.run_into(inputs, outputs);
  for (int64_t i = 0; i < 20; ++i) EXPECT_NEAR(out[static_cast<size_t>(i)], expected(inputs[0], i / 5, i % 5), 1e-6);
  // Strided inputs are taken as they are.
  const std::vector<Tensor> strided = {Tensor::borrow(DType::F32, {4, 5}, {1, 4}, in.data())};
  const Tensor copy = strided[0].contiguous_copy();
  const std::vector<Tensor> results = program.run(strided);
  for (int64_t i = 0; i < 20; ++i) EXPECT_NEAR(results[0].at(i), expected(copy, i / 5, i % 5), 1e-6);
}

TEST(Api, ManyThreadsRunOneProgram) {
  const Program program = compile(small_network(), uncached());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int64_t n = 1; n < 40; ++n) {
        const Tensor x = counted({n + static_cast<int64_t>(t), 5});
        const std::vector<Tensor> results = program.run({x});
        for (int64_t i = 0; i < x.count(); ++i) wrong[t] += std::abs(results[0].at(i) - expected(x, i / 5, i % 5)) > 1e-6;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Api, ProfilesKernels) {
  const Program program = compile(small_network(), uncached());
  program.set_profiling(true);
  for (int i = 0; i < 3; ++i) (void)program.run({counted({8, 5})});
  const std::vector<KernelProfile> profile = program.profile();
  ASSERT_EQ(profile.size(), 1u);
  EXPECT_EQ(profile[0].calls, 3);
  EXPECT_GT(profile[0].bytes, 0);
  EXPECT_EQ(program.chrome_trace().front(), program.chrome_trace().find('{') == 0 ? '{' : '[');
}

TEST(Api, EveryConvenienceBuildsItsOp) {
  Graph graph;
  const Value x = graph.input("x", DType::F32, {"n", 6});
  const Value scale = graph.input("scale", DType::F32, {6});
  EXPECT_EQ(x.type_string(), "f32[n, 6]");
  EXPECT_EQ(reshape(x, {"n", 2, 3}).type_string(), "f32[n, 2, 3]");
  EXPECT_EQ(transpose(x, {1, 0}).type_string(), "f32[6, n]");
  EXPECT_EQ(concat({x, x}, -1).type_string(), "f32[n, 12]");
  EXPECT_EQ(reduce_sum(x, {-1}).type_string(), "f32[n]");
  EXPECT_EQ(reduce_mean(x, {0}, true).type_string(), "f32[1, 6]");
  EXPECT_EQ(reduce_max(x, {0, 1}).type_string(), "f32[]");
  EXPECT_EQ(cast(x, DType::BF16).dtype(), DType::BF16);
  EXPECT_EQ(matmul(x, transpose(x, {1, 0})).type_string(), "f32[n, n]");
  for (const Value& same : {x + 1.0, 1.0 - x, x / x, -x, exp(x), log(x), sqrt(x), tanh(x), sigmoid(x), silu(x), gelu(x), max(x, scale), min(x, scale),
                            layer_norm(x, scale, Value(), -1), rms_norm(x, scale, -1)})
    EXPECT_EQ(same.type_string(), "f32[n, 6]");
  const Value positive = graph.apply("gt", {x, graph.constant(Tensor::scalar(DType::F32, 0))});
  EXPECT_EQ(select(positive, x, -x).rank(), 2);
  const std::vector<Value> best = graph.apply_many("top_k", {x}, {{"k", Sizes{2}}, {"axis", int64_t{1}}, {"largest", int64_t{1}}}, 2);
  EXPECT_EQ(best[1].type_string(), "i64[n, 2]");
}

TEST(Api, TextGoesThereAndBack) {
  const Graph graph = small_network();
  const std::string text = graph.text();
  EXPECT_EQ(Graph::parse(text).text(), text);
}

TEST(Api, SaysWhatIsWrong) {
  Graph graph, other;
  const Value x = graph.input("x", DType::F32, {"n", 6});
  EXPECT_THROW(graph.apply("no_such_op", {x}), UserError);
  EXPECT_THROW(x + other.input("y", DType::F32, {6}), UserError);
  EXPECT_THROW(x + Value(), UserError);
  EXPECT_THROW(matmul(x, graph.input("w", DType::F32, {5, 2})), UserError);
  EXPECT_THROW(graph.input("z", DType::F32, {"2 +"}), UserError);
  EXPECT_THROW(compile(graph), UserError);   // no outputs
  graph.output(relu(x));
  CompileOptions options = uncached();
  options.isa = "abacus";
  EXPECT_THROW(compile(graph, options), UserError);
  const Program program = compile(graph, uncached());
  EXPECT_THROW(program.run({Tensor(DType::F32, {2, 7})}), UserError);
  EXPECT_THROW(program.run({Tensor(DType::F64, {2, 6})}), UserError);
  EXPECT_THROW(program.run(std::initializer_list<Tensor>{}), UserError);
  EXPECT_THROW(load_onnx("/nowhere/model.onnx"), UserError);
}

TEST(Api, LoadsOnnx) {
  LoadOptions options;
  options.dims = {{"batch", 3}};
  const std::string path = FUSELOOM_SOURCE_DIR "/examples/tiny.onnx";
  const Program fixed = compile(load_onnx(path, options), uncached());
  EXPECT_EQ(fixed.inputs()[0].sizes[0].text(), "3");
  const Program open = compile(load_onnx(path), uncached());
  const Tensor x = counted({3, 16});
  const Tensor a = fixed.run({x})[0], b = open.run({x})[0];
  for (int64_t row = 0; row < 3; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(a.at(row * 4 + i), b.at(row * 4 + i), 1e-6);
      sum += a.at(row * 4 + i);
    }
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

TEST(Api, SavesAndLoads) {
  const build::TemporaryDirectory folder;
  const std::string path = folder.path() + "/small.floom";
  save(small_network(), path, uncached());
  const Program loaded = load(path, {.threads = 2});
  const Program compiled = compile(small_network(), uncached());
  const Tensor x = counted({3, 5});
  const Tensor got = loaded.run({x})[0], wanted = compiled.run({x})[0];
  for (int64_t i = 0; i < got.count(); ++i) EXPECT_EQ(got.at(i), wanted.at(i));
  EXPECT_EQ(loaded.inputs()[0].name, "x");
  EXPECT_EQ(loaded.inputs()[0].sizes[0].text(), "n");
  EXPECT_EQ(loaded.outputs()[0].name, "y");
  EXPECT_EQ(loaded.info().kernels, compiled.info().kernels);
  const std::optional<build::Bytes> bytes = build::read_file(path);
  EXPECT_EQ(load(*bytes).run({x})[0].at(4), wanted.at(4));
  EXPECT_THROW(load(std::span(*bytes).first(bytes->size() - 1)), UserError);
  EXPECT_THROW(load(folder.path() + "/absent.floom"), UserError);
  EXPECT_THROW(save(small_network(), folder.path() + "/no/such/folder.floom", uncached()), UserError);
}

// The example of docs/custom-ops.md.
Ops with_row_sums() {
  Ops ops;
  ops.add({.name = "scaled_silu", .summary = "x * sigmoid(beta x)", .attributes = {{"beta", AttributeKind::Real}}, .rule = "mul(x0, sigmoid(mul(x0, beta)))"});
  ops.add({.name = "row_sum_of_squares",
           .summary = "sum over the last axis of x * x",
           .infer = [](std::span<const TypeInfo> inputs, const Attributes&) { return std::vector<TypeInfo>{{inputs[0].dtype, {inputs[0].sizes[0]}}}; },
           .kernel = CustomKernel{.source = R"(
void run(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end) {
  const X0* x = static_cast<const X0*>(buffers[0]);
  Y0* y = static_cast<Y0*>(buffers[1]);
  for (int64_t r = begin; r < end; ++r) {
    Y0 part[LANES] = {};
    for (int64_t c = 0; c < sizes[1]; c += LANES)
      for (int64_t l = 0; l < LANES; ++l) part[l] += x[r * sizes[1] + c + l] * x[r * sizes[1] + c + l];
    for (int64_t l = 1; l < LANES; ++l) part[0] += part[l];
    y[r] = part[0];
  }
})",
                                  .configurations = {{.constants = {{"LANES", 16}}, .condition = "eq(mod(x0_d1, 16), 0)"},
                                                     {.constants = {{"LANES", 8}}, .condition = "eq(mod(x0_d1, 16), 0)"},
                                                     {.constants = {{"LANES", 1}}}},
                                  .extent = "x0_d0",
                                  .mutates = std::vector<size_t>()},
           .reference = [](std::span<const Tensor> inputs, const Attributes&, std::span<Tensor> outputs) {
             for (int64_t r = 0; r < inputs[0].dim(0); ++r) {
               double sum = 0;
               for (int64_t c = 0; c < inputs[0].dim(1); ++c) sum += inputs[0].at(r * inputs[0].dim(1) + c) * inputs[0].at(r * inputs[0].dim(1) + c);
               outputs[0].set(r, sum);
             }
           }});
  return ops;
}

TEST(Api, RunsOpsOfYourOwn) {
  std::optional<Graph> graph;
  {
    const Ops ops = with_row_sums();   // the graph and its programs keep it
    graph.emplace("mine", ops);
    const Value x = graph->input("x", DType::F32, {"n", "m"});
    graph->output(graph->apply("row_sum_of_squares", {graph->apply("scaled_silu", {x}, {{"beta", 2.0}})}), "y");
  }
  const build::TemporaryDirectory folder;
  const std::string path = folder.path() + "/mine.floom";
  CompileOptions options = uncached();
  options.typical = {{"n", 3}, {"m", 32}};
  const Program program = compile(*graph, options);
  save(*graph, path, options);
  graph.reset();
  const Program loaded = load(path, {.threads = 1});   // its kernels are in the file
  for (const int64_t m : {1, 5, 32}) {
    const Tensor x = counted({3, m});
    const Tensor y = program.run({x})[0], again = loaded.run({x})[0];
    for (int64_t r = 0; r < 3; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < m; ++c) {
        const double value = x.at(r * m + c), scaled = value / (1 + std::exp(-2 * value));
        sum += scaled * scaled;
      }
      EXPECT_NEAR(y.at(r), sum, 1e-4 * (1 + sum));
      EXPECT_EQ(y.at(r), again.at(r));
    }
  }
}

TEST(Api, RunsOpsByTheirReference) {
  Ops ops;
  const auto same = [](std::span<const TypeInfo> inputs, const Attributes&) { return std::vector<TypeInfo>{inputs[0]}; };
  ops.add({.name = "odd", .infer = same, .reference = [](std::span<const Tensor> inputs, const Attributes&, std::span<Tensor> outputs) {
             for (int64_t i = 0; i < outputs[0].count(); ++i) outputs[0].set(i, inputs[0].at(i) + static_cast<double>(i));
           }});
  const Graph graph = Graph::parse("graph main(%x: f32[n]) {\n  %y: f32[n] = odd(%x)\n  return %y\n}\n", ops);
  const Tensor x = counted({4});
  EXPECT_EQ(compile(graph, uncached()).run({x})[0].at(3), 3);
  const build::TemporaryDirectory folder;
  save(graph, folder.path() + "/odd.floom", uncached());
  EXPECT_EQ(load(folder.path() + "/odd.floom", {.ops = &ops}).run({x})[0].at(3), 3);
  EXPECT_THROW(load(folder.path() + "/odd.floom"), UserError);
  EXPECT_THROW(ops.add({.name = "odd", .infer = same, .rule = "x0"}), UserError);
  EXPECT_THROW(ops.add({.name = "nothing"}), UserError);
}

}  // namespace
}  // namespace fuseloom
