// Built-in workloads that memory bandwidth bounds: how close to a plain copy does each come?
//
// The copy loop reads one array and writes another of the size of the case's largest tensor, with 32-byte vectors and
// ordinary stores; its bandwidth counts bytes read plus bytes written, as do the cases'. It takes turns with the case, so
// that both see the same neighbours on the machine; each counts with its best call. memcpy is shown once: for large arrays
// it uses streaming stores, which save reading the target first.
#include <algorithm>
#include <chrono>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "graph/text.h"
#include "op/op.h"
#include "progress.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

using Words = int64_t __attribute__((vector_size(32)));

// Four vectors a turn: compilers do not replace it by memcpy.
void copy_loop(const void* from, void* to, int64_t bytes) {
  const Words* source = static_cast<const Words*>(from);
  Words* target = static_cast<Words*>(to);
  for (int64_t i = 0; i + 4 <= bytes / 32; i += 4) {
    const Words a = source[i], b = source[i + 1], c = source[i + 2], d = source[i + 3];
    target[i] = a;
    target[i + 1] = b;
    target[i + 2] = c;
    target[i + 3] = d;
    asm volatile("" ::: "memory");
  }
}

// The best calls of two bodies that take turns while the time lasts, at least three times.
template <class First, class Second>
std::pair<double, double> best_seconds(double budget, const First& first, const Second& second) {
  first();   // touches the pages, binds the sizes
  second();
  std::pair<double, double> best = {1e30, 1e30};
  const double until = now() + budget;
  for (int calls = 0; calls < 3 || now() < until; ++calls) {
    const double begin = now();
    first();
    const double middle = now();
    second();
    best = {std::min(best.first, middle - begin), std::min(best.second, now() - middle)};
  }
  return best;
}

struct Case {
  std::string name;
  int64_t rows, columns;
  double passes;              // tensors of rows x columns elements that are read or written once
  std::string text;           // {T} is the element type, sizes are symbolic: x is [r, c]
};

// The largest tensor has `elements` elements.
std::vector<Case> cases(int64_t elements) {
  const int64_t width = 1024, height = elements / width;
  return {
      {"pointwise", height, width, 3,
       "graph main(%x: {T}[r, c], %y: {T}[r, c]) {\n  %k: {T}[] = constant() {value = {T}[] {0.5}}\n  %a = mul(%x, %k)\n  %b = add(%a, %y)\n"
       "  %d = relu(%b)\n  %e = sub(%d, %k)\n  return %e\n}\n"},
      {"softmax", height, width, 2, "graph main(%x: {T}[r, c]) {\n  %y = softmax(%x) {axis = 1}\n  return %y\n}\n"},
      {"layer_norm", height, width, 2,
       "graph main(%x: {T}[r, c], %s: {T}[c], %b: {T}[c]) {\n  %y = layer_norm(%x, %s, %b) {axis = 1, epsilon = 1.0e-5}\n  return %y\n}\n"},
      {"rms_norm", height, width, 2, "graph main(%x: {T}[r, c], %s: {T}[c]) {\n  %y = rms_norm(%x, %s) {axis = 1, epsilon = 1.0e-5}\n  return %y\n}\n"},
      {"row_sum", height, width, 1, "graph main(%x: {T}[r, c]) {\n  %y = reduce_sum(%x) {axes = [1], keepdims = 0}\n  return %y\n}\n"},
      {"col_sum", height, width, 1, "graph main(%x: {T}[r, c]) {\n  %y = reduce_sum(%x) {axes = [0], keepdims = 0}\n  return %y\n}\n"},
      {"transpose_add", height, width, 3,
       "graph main(%x: {T}[r, c], %y: {T}[c, r]) {\n  %t = transpose(%x) {perm = [1, 0]}\n  %z = add(%t, %y)\n  return %z\n}\n"},
  };
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  return text;
}

}  // namespace

int suite(const SuiteArguments& arguments) {
  if (arguments.device != "cpu") return gpu_suite(arguments);
  FL_REQUIRE(arguments.mebibytes >= 1, "--mebibytes {}: expected at least 1", arguments.mebibytes);
  Progress progress;
  const int64_t bytes = arguments.mebibytes << 20;
  nlohmann::ordered_json json = {{"device", "cpu"}, {"threads", arguments.threads}, {"copy_gbs", 0.0}, {"memcpy_gbs", 0.0},
                                 {"cases", nlohmann::ordered_json::array()}};
  const Tensor source(DType::U8, {bytes});
  Tensor target(DType::U8, {bytes});
  std::memset(const_cast<void*>(source.data()), 1, static_cast<size_t>(bytes));
  const auto copy = [&] { copy_loop(source.data(), target.data(), bytes); };
  progress.show("copy");
  const auto [copy_seconds, memcpy_seconds] = best_seconds(arguments.seconds, copy, [&] {
    std::memcpy(target.data(), source.data(), static_cast<size_t>(bytes));
    asm volatile("" ::"r"(target.data()) : "memory");
  });
  const double copied = 2 * static_cast<double>(bytes), copy_gbs = copied / copy_seconds / 1e9, memcpy_gbs = copied / memcpy_seconds / 1e9;
  json["copy_gbs"] = copy_gbs;
  json["memcpy_gbs"] = memcpy_gbs;
  progress.clear();
  if (!arguments.json) {
    fmt::print("copy loop {:.2f} GB/s, memcpy {:.2f} GB/s, one thread; tensors of {} MiB; cases on {} thread(s)\n\n", copy_gbs, memcpy_gbs,
               arguments.mebibytes, arguments.threads);
    fmt::print("{:<16} {:<5} {:>14} {:>10} {:>8} {:>10} {:>10}\n", "case", "dtype", "shape", "ms", "GB/s", "% of copy", "compile ms");
  }
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const Case& each : cases(bytes / dtype_bytes(dtype))) {
      if (each.name.find(arguments.filter) == std::string::npos) continue;
      progress.show(fmt::format("{} {}", each.name, dtype_name(dtype)));
      const std::string text = replace_all(each.text, "{T}", dtype_name(dtype));
      graph::Graph graph = graph::parse_graph(text, op::standard_ops(), each.name);
      const std::map<std::string, int64_t> sizes = {{"r", each.rows}, {"c", each.columns}};
      std::vector<Tensor> inputs;
      for (const graph::ValueId id : graph.inputs()) {
        Dims dims;
        for (const sym::Expr& size : graph.type(id).shape) dims.push_back(sizes.at(size.name()));
        // A period of random numbers, repeated: filling the whole of it would take longer than measuring.
        Tensor input(dtype, dims);
        const Tensor period = random_tensor(dtype, {std::min<int64_t>(input.count(), 65521)}, 7);
        for (int64_t at = 0; at < input.bytes(); at += period.bytes())
          std::memcpy(input.as<char>() + at, period.data(), static_cast<size_t>(std::min(period.bytes(), input.bytes() - at)));
        inputs.push_back(std::move(input));
      }
      compile::Options options{.hint = sizes, .threads = arguments.threads};
      const compile::Compiled compiled = compile::compile(std::move(graph), options);
      std::vector<Dims> dims;
      for (const Tensor& input : inputs) dims.push_back(input.dims());
      std::vector<Tensor> outputs;
      for (const Dims& output : compiled.executable->output_dims(dims)) outputs.emplace_back(dtype, output);
      const auto [beside, seconds] = best_seconds(arguments.seconds, copy, [&] { compiled.executable->run_into(inputs, outputs); });
      const double moved = each.passes * static_cast<double>(dtype_bytes(dtype, each.rows * each.columns));
      const double gbs = moved / seconds / 1e9, percent = 100 * gbs / (copied / beside / 1e9);
      json["cases"].push_back({{"case", each.name}, {"dtype", dtype_name(dtype)}, {"shape", {each.rows, each.columns}}, {"ms", seconds * 1e3},
                               {"bytes", moved}, {"gbs", gbs}, {"copy_ms", beside * 1e3}, {"pct_of_copy", percent},
                               {"compile_ms", compiled.report.total_seconds * 1e3}, {"kernels", compiled.report.kernels}});
      progress.clear();
      if (!arguments.json)
        fmt::print("{:<16} {:<5} {:>14} {:>10.3f} {:>8.2f} {:>9.1f}% {:>10.1f}\n", each.name, dtype_name(dtype),
                   fmt::format("{}x{}", each.rows, each.columns), seconds * 1e3, gbs, percent, compiled.report.total_seconds * 1e3);
    }
  }
  if (arguments.json) fmt::print("{}\n", json.dump());
  return kOk;
}

}  // namespace fuseloom::tool
