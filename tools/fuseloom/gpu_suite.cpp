// Workloads that the memory of a CUDA device bounds, as a share of what a plain copy reaches there. bench/gpu_peers.py
// measures the same functions in PyTorch, by the same rules:
//   - device time only: events around the call, behind work that keeps the device busy until the host has queued it all;
//   - nothing comes from the cache: between calls a block larger than the L2 is written;
//   - the bytes of a workload are its inputs once and its outputs once, vectors left out, so that a second pass or a second
//     kernel counts against it;
//   - the median of the calls.
// A matrix product is bound by arithmetic: it is compared with the best of the ways that the device's library offers for its
// sizes, and is no part of the mean.
// All programs are compiled with dynamic sizes. Each is compared with the oracle on small sizes before it is measured: the
// same binary.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "build/compile_service.h"
#include "build/nvrtc.h"
#include "graph/evaluate.h"
#include "graph/text.h"
#include "op/op.h"
#include "progress.h"
#include "run/cuda_device.h"
#include "sym/evaluator.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

using Sizes = std::map<std::string, int64_t>;

struct Case {
  std::string name;
  std::string text;          // {T} is the element type
  Sizes sizes, small;        // what is measured; what is compared with the oracle
  double tensors;            // of `elements` elements, read or written once
  double elements;
  bool product = false;      // of %x: [m, k] and %w: [k, n], then %b: [n] and gelu
};

constexpr int64_t kRows = 16384, kColumns = 8192;

std::string rms_norm_of(const std::string& x) {
  return "  %eps: f32[] = constant() {value = f32[] {1.0e-6}}\n  %f = cast(%" + x +
         ") {to = :f32}\n  %q = mul(%f, %f)\n  %m = reduce_mean(%q) {axes = [1], keepdims = 1}\n  %e = add(%m, %eps)\n  %i = rsqrt(%e)\n"
         "  %n = mul(%f, %i)\n  %t = cast(%n) {to = :{T}}\n  %y = mul(%t, %w)\n";
}

std::vector<Case> standard_cases() {
  const Sizes rows = {{"r", kRows}, {"c", kColumns}}, small = {{"r", 5}, {"c", 1032}};
  const double all = static_cast<double>(kRows) * kColumns;
  const std::string softmax = "graph main(%x: {T}[r, c]) {\n  %y = softmax(%x) {axis = 1}\n  return %y\n}\n";
  const auto sum_over = [](const char* axes) {
    return std::string("graph main(%x: {T}[r, c]) {\n  %f = cast(%x) {to = :f32}\n  %y = reduce_sum(%f) {axes = [") + axes + "], keepdims = 0}\n  return %y\n}\n";
  };
  const std::string layer_norm = "graph main(%x: {T}[r, c], %w: {T}[c], %b: {T}[c]) {\n  %y = layer_norm(%x, %w, %b) {axis = 1, epsilon = 1.0e-5}\n  return %y\n}\n";
  return {
      {"gelu_bias", "graph main(%x: {T}[r, c], %b: {T}[c]) {\n  %s = add(%x, %b)\n  %y = gelu_tanh(%s)\n  return %y\n}\n", rows, small, 2, all},
      {"silu_mul", "graph main(%x: {T}[r, c], %y: {T}[r, c]) {\n  %s = silu(%x)\n  %z = mul(%s, %y)\n  return %z\n}\n", rows, small, 3, all},
      {"pointwise_chain",
       "graph main(%x: {T}[r, c], %y: {T}[r, c]) {\n  %half: {T}[] = constant() {value = {T}[] {0.5}}\n  %a = mul(%x, %y)\n  %b = add(%a, %half)\n"
       "  %d = tanh(%b)\n  %e = sigmoid(%x)\n  %f = mul(%d, %e)\n  %z = sub(%f, %y)\n  return %z\n}\n", rows, small, 3, all},
      {"softmax", softmax, rows, small, 2, all},
      {"softmax_32k", softmax, {{"r", kRows / 4}, {"c", 32768}}, {{"r", 2}, {"c", 32768}}, 2, all},
      {"softmax_128k", softmax, {{"r", 1024}, {"c", 131072}}, {{"r", 1}, {"c", 131072}}, 2, all},
      {"softmax_257", softmax, {{"r", 524288}, {"c", 257}}, {{"r", 9}, {"c", 257}}, 2, 524288.0 * 257},
      {"layernorm", layer_norm, rows, small, 2, all},
      {"rmsnorm", "graph main(%x: {T}[r, c], %w: {T}[c]) {\n" + rms_norm_of("x") + "  return %y\n}\n", rows, small, 2, all},
      {"add_rmsnorm", "graph main(%x: {T}[r, c], %r: {T}[r, c], %w: {T}[c]) {\n  %h = add(%x, %r)\n" + rms_norm_of("h") + "  return %h, %y\n}\n", rows, small, 4, all},
      {"row_sum", sum_over("1"), rows, small, 1, all},
      {"col_sum", sum_over("0"), rows, {{"r", 1032}, {"c", 40}}, 1, all},
      {"full_sum", sum_over("0, 1"), rows, small, 1, all},
      {"transpose_add", "graph main(%x: {T}[c, r], %y: {T}[r, c]) {\n  %t = transpose(%x) {perm = [1, 0]}\n  %z = add(%t, %y)\n  return %z\n}\n", rows,
       {{"r", 72}, {"c", 136}}, 3, all},
      {"softmax_bwd",
       "graph main(%g: {T}[r, c], %y: {T}[r, c]) {\n  %gf = cast(%g) {to = :f32}\n  %yf = cast(%y) {to = :f32}\n  %p = mul(%gf, %yf)\n"
       "  %s = reduce_sum(%p) {axes = [1], keepdims = 1}\n  %d = sub(%gf, %s)\n  %q = mul(%yf, %d)\n  %z = cast(%q) {to = :{T}}\n  return %z\n}\n", rows, small, 3, all},
      {"layernorm_bwd",
       "graph main(%g: {T}[r, c], %x: {T}[r, c], %w: {T}[c], %mean: f32[r, 1], %rstd: f32[r, 1]) {\n  %gf = cast(%g) {to = :f32}\n  %xf = cast(%x) {to = :f32}\n"
       "  %wf = cast(%w) {to = :f32}\n  %x0 = sub(%xf, %mean)\n  %xh = mul(%x0, %rstd)\n  %gw = mul(%gf, %wf)\n  %p = mul(%xh, %gw)\n"
       "  %c1 = reduce_mean(%p) {axes = [1], keepdims = 1}\n  %c2 = reduce_mean(%gw) {axes = [1], keepdims = 1}\n  %a = mul(%xh, %c1)\n  %b = add(%a, %c2)\n"
       "  %d = sub(%gw, %b)\n  %e = mul(%d, %rstd)\n  %dx = cast(%e) {to = :{T}}\n  %gx = mul(%gf, %xh)\n  %sw = reduce_sum(%gx) {axes = [0], keepdims = 0}\n"
       "  %dw = cast(%sw) {to = :{T}}\n  %sb = reduce_sum(%gf) {axes = [0], keepdims = 0}\n  %db = cast(%sb) {to = :{T}}\n  return %dx, %dw, %db\n}\n", rows,
       {{"r", 33}, {"c", 264}}, 3, all},
      {"cross_entropy",
       "graph main(%x: {T}[r, c], %i: i64[r]) {\n  %f = cast(%x) {to = :f32}\n  %m = reduce_max(%f) {axes = [1], keepdims = 1}\n  %d = sub(%f, %m)\n  %e = exp(%d)\n"
       "  %s = reduce_sum(%e) {axes = [1], keepdims = 1}\n  %l = log(%s)\n  %n = add(%l, %m)\n  %j = reshape(%i) {shape = <r, 1>}\n"
       "  %p = gather_elements(%f, %j) {axis = 1}\n  %y = sub(%n, %p)\n  %z = reshape(%y) {shape = <r>}\n  return %z\n}\n",
       {{"r", 4096}, {"c", 50257}}, {{"r", 5}, {"c", 50257}}, 1, 4096.0 * 50257},
      {"batchnorm_train",
       "graph main(%x: {T}[n, c, h, w], %s: f32[c], %b: f32[c]) {\n  %eps: f32[] = constant() {value = f32[] {1.0e-5}}\n  %f = cast(%x) {to = :f32}\n"
       "  %m = reduce_mean(%f) {axes = [0, 2, 3], keepdims = 1}\n  %d = sub(%f, %m)\n  %q = mul(%d, %d)\n  %v = reduce_mean(%q) {axes = [0, 2, 3], keepdims = 1}\n"
       "  %e = add(%v, %eps)\n  %i = rsqrt(%e)\n  %k = mul(%d, %i)\n  %sr = reshape(%s) {shape = <1, c, 1, 1>}\n  %br = reshape(%b) {shape = <1, c, 1, 1>}\n"
       "  %t = mul(%k, %sr)\n  %u = add(%t, %br)\n  %y = cast(%u) {to = :{T}}\n  return %y\n}\n",
       {{"n", 128}, {"c", 256}, {"h", 56}, {"w", 56}}, {{"n", 3}, {"c", 4}, {"h", 8}, {"w", 12}}, 2, 128.0 * 256 * 56 * 56},
      {"groupnorm", "graph main(%x: {T}[n, c, h, w], %s: {T}[c], %b: {T}[c]) {\n  %y = group_norm(%x, %s, %b) {groups = 32, epsilon = 1.0e-5}\n  return %y\n}\n",
       {{"n", 64}, {"c", 320}, {"h", 64}, {"w", 64}}, {{"n", 2}, {"c", 64}, {"h", 8}, {"w", 8}}, 2, 64.0 * 320 * 64 * 64},
      {"rope",
       "graph main(%x: {T}[n, h, s, 2*k], %c: {T}[s, 2*k], %d: {T}[s, 2*k]) {\n  %x1 = slice(%x) {starts = <0, 0, 0, 0>, sizes = <n, h, s, k>, steps = [1, 1, 1, 1]}\n"
       "  %x2 = slice(%x) {starts = <0, 0, 0, k>, sizes = <n, h, s, k>, steps = [1, 1, 1, 1]}\n  %n2 = neg(%x2)\n  %o = concat(%n2, %x1) {axis = 3}\n"
       "  %a = mul(%x, %c)\n  %b = mul(%o, %d)\n  %y = add(%a, %b)\n  return %y\n}\n",
       {{"n", 8}, {"h", 32}, {"s", 4096}, {"k", 64}}, {{"n", 1}, {"h", 2}, {"s", 5}, {"k", 64}}, 2, 8.0 * 32 * 4096 * 128},
      {"matmul_bias_gelu",
       "graph main(%x: {T}[m, k], %w: {T}[k, n], %b: {T}[n]) {\n  %p = matmul(%x, %w)\n  %s = add(%p, %b)\n  %y = gelu_tanh(%s)\n  return %y\n}\n",
       {{"m", 4096}, {"k", 4096}, {"n", 16384}}, {{"m", 33}, {"k", 264}, {"n", 72}}, 1, 4096.0 * 4096 + 2 * 4096.0 * 16384, true},
  };
}

// Rows that defeat vectors.
std::vector<Case> odd_cases() {
  std::vector<Case> found;
  for (const Case& each : standard_cases()) {
    if (each.sizes.count("c") == 0 || each.sizes.at("c") != kColumns || each.name == "full_sum") continue;
    for (const int64_t more : {1, 2, 8}) {
      Case odd = each;
      odd.name += fmt::format("+{}", more);
      odd.sizes["c"] += more;
      odd.small["c"] += more;
      odd.elements = static_cast<double>(odd.sizes.at("r")) * static_cast<double>(odd.sizes.at("c"));
      found.push_back(odd);
    }
  }
  return found;
}

// Two and three dimensions, square and not, sizes that no vector divides. The sign makes it a kernel: a transpose alone is a
// view of its input.
std::vector<Case> transpose_cases() {
  std::vector<Case> found;
  const auto add = [&](const std::string& name, const std::string& dims, const std::string& permutation, Sizes sizes) {
    double elements = 1;
    Sizes small;
    for (const auto& [symbol, size] : sizes) {
      elements *= static_cast<double>(size);
      small[symbol] = std::min<int64_t>(size, 37);
    }
    found.push_back({name, "graph main(%x: {T}[" + dims + "]) {\n  %t = transpose(%x) {perm = [" + permutation + "]}\n  %y = neg(%t)\n  return %y\n}\n", std::move(sizes), small, 2, elements});
  };
  add("transpose_8192x8192", "a, b", "1, 0", {{"a", 8192}, {"b", 8192}});
  add("transpose_1048576x64", "a, b", "1, 0", {{"a", 1048576}, {"b", 64}});
  add("transpose_10001x8003", "a, b", "1, 0", {{"a", 10001}, {"b", 8003}});
  add("transpose_49x2048_batch", "a, b, c", "0, 2, 1", {{"a", 512}, {"b", 49}, {"c", 2048}});
  add("transpose_1001x2408_batch", "a, b, c", "0, 2, 1", {{"a", 32}, {"b", 1001}, {"c", 2408}});
  add("transpose_64x147_batch", "a, b, c", "0, 2, 1", {{"a", 8192}, {"b", 64}, {"c", 147}});
  add("transpose_201", "a, b, c", "2, 0, 1", {{"a", 512}, {"b", 512}, {"c", 512}});
  add("transpose_102", "a, b, c", "1, 0, 2", {{"a", 1024}, {"b", 2048}, {"c", 64}});
  return found;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  return text;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

// Measures calls on one stream of a device.
class Stopwatch {
 public:
  explicit Stopwatch(std::shared_ptr<run::CudaDevice> device)
      : device_(std::move(device)), flushed_(device_->empty(DType::U8, {flushed_bytes(*device_)}, nullptr)) {}

  // The median device time of a call in seconds.
  double seconds(int calls, const std::function<void()>& call) {
    const run::CudaDriver& driver = device_->driver();
    std::vector<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>> events;
    for (int i = 0; i < 3; ++i) call();
    for (int i = 0; i < calls; ++i) {
      events.emplace_back(device_->create_event(), device_->create_event());
      // Writing this takes the device longer than queueing the call takes the host.
      device_->fill(flushed_.data(), i & 1, flushed_.bytes(), nullptr);
      device_->require(driver.record_event(static_cast<run::CudaEvent>(events.back().first.get()), nullptr), "record an event");
      call();
      device_->require(driver.record_event(static_cast<run::CudaEvent>(events.back().second.get()), nullptr), "record an event");
      device_->synchronize(nullptr);
    }
    std::vector<double> samples;
    for (const auto& [begin, end] : events) {
      float milliseconds = 0;
      device_->require(driver.elapsed_time(&milliseconds, static_cast<run::CudaEvent>(begin.get()), static_cast<run::CudaEvent>(end.get())), "tell a time");
      samples.push_back(milliseconds * 1e-3);
    }
    return median(std::move(samples));
  }

 private:
  static int64_t flushed_bytes(const run::CudaDevice& device) {
    if (device.driver().is_host) return 1;   // times mean nothing there
    return std::max<int64_t>(4 * device.properties().l2_bytes, int64_t{256} << 20);
  }

  std::shared_ptr<run::CudaDevice> device_;
  Tensor flushed_;
};

Tensor period_of(DType dtype, int64_t count, int64_t classes) {
  Tensor period = random_tensor(dtype, {std::min<int64_t>(std::max<int64_t>(count, 1), 65521)}, 7);
  if (!is_float(dtype)) {
    for (int64_t i = 0; i < period.count(); ++i) period.set_int(i, (i * 7919) % classes);
  }
  return period;
}

// A period of random numbers, repeated: on the device by copies of what is there already.
Tensor device_tensor(run::CudaDevice& device, DType dtype, const Dims& dims, int64_t classes) {
  Tensor tensor = device.empty(dtype, dims, nullptr);
  const Tensor period = period_of(dtype, tensor.count(), classes);
  int64_t done = std::min(period.bytes(), tensor.bytes());
  device.upload(tensor.data(), period.data(), done, nullptr);
  for (; done < tensor.bytes(); done = std::min(2 * done, tensor.bytes()))
    device.copy(tensor.as<char>() + done, tensor.data(), std::min(done, tensor.bytes() - done), nullptr);
  device.synchronize(nullptr);
  return tensor;
}

Dims dims_of(const op::TensorType& type, const Sizes& sizes) {
  Dims dims;
  for (const sym::Expr& size : type.shape) dims.push_back(sym::evaluate(size, sizes));
  return dims;
}

// |result - expected| / |expected|, the largest of all results. NaN counts as infinite.
double error_of(std::span<const Tensor> results, std::span<const Tensor> expected) {
  double worst = 0;
  for (size_t r = 0; r < expected.size(); ++r) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < expected[r].count(); ++i) {
      const double e = expected[r].at(i), d = results[r].at(i) - e;
      difference += d * d;
      norm += e * e;
    }
    const double error = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  return worst;
}

double check_small(const graph::Graph& graph, const run::Executable& executable, const Sizes& small) {
  std::vector<Tensor> inputs;
  for (const graph::ValueId id : graph.inputs()) {
    const Dims dims = dims_of(graph.type(id), small);
    Tensor input(graph.type(id).dtype, dims);
    const Tensor period = period_of(input.dtype(), input.count(), small.count("c") != 0 ? small.at("c") : 2);
    for (int64_t i = 0; i < input.count(); ++i) {
      is_float(input.dtype()) ? input.set(i, period.at(i % period.count())) : input.set_int(i, period.int_at(i % period.count()));
    }
    inputs.push_back(std::move(input));
  }
  const std::vector<Tensor> expected = graph::evaluate(graph, inputs), results = executable.run(inputs);
  return error_of(results, expected);
}

// The least median of the ways that the device's library offers for a product with its epilogue. Null: there is no library, or it
// refuses; `reason` says why.
nlohmann::ordered_json library_best(Stopwatch& watch, const run::CudaDevice& device, const Case& product, bool tf32, std::span<const Tensor> inputs, const Tensor& output,
                                    const Tensor& workspace, std::string& reason) {
  const std::shared_ptr<const run::ProductLibrary> library = device.products();
  if (library == nullptr) {
    reason = device.products_missing();
    return nullptr;
  }
  const int64_t m = product.sizes.at("m"), k = product.sizes.at("k"), n = product.sizes.at("n");
  const run::ProductSizes sizes{.dtype = output.dtype(), .rows = m, .columns = n, .depth = k, .left = {0, k, 1}, .right = {0, n, 1}, .result = {0, n, 1}, .bias = true,
                                .activation = program::Activation::GeluTanh, .tf32 = tf32, .workspace_bytes = workspace.bytes()};
  double best = INFINITY;
  for (const auto& plan : library->plans(sizes, 16, reason)) {
    const run::ProductLibrary::Pointers at{.left = inputs[0].data(), .right = inputs[1].data(), .bias = inputs[2].data(), .result = const_cast<void*>(output.data()),
                                           .workspace = const_cast<void*>(workspace.data())};
    best = std::min(best, watch.seconds(20, [&] { library->run(*plan, at, nullptr); }));
  }
  return std::isfinite(best) ? nlohmann::ordered_json(best * 1e3) : nullptr;
}

// What a call costs the host beside its kernels.
nlohmann::ordered_json host_figures(const std::shared_ptr<run::CudaDevice>& device, const compile::Options& options, bool print) {
  constexpr int kBatch = 200, kBatches = 15;  // few enough that the queue of the device never fills
  const auto per_call = [&](const std::function<void()>& call) {
    std::vector<double> samples;
    for (int batch = 0; batch < kBatches; ++batch) {
      device->synchronize(nullptr);
      const double start = now();
      for (int i = 0; i < kBatch; ++i) call();
      samples.push_back((now() - start) / kBatch);
    }
    device->synchronize(nullptr);
    return median(std::move(samples));
  };
  const auto chain = [&](int kernels) {
    std::string text = "graph main(%x: f32[r, c], %y: f32[r, c]) {\n  %v0 = mul(%x, %y)\n";
    for (int i = 1; i < kernels; ++i) text += fmt::format("  %v{} = add(%v{}, %y)\n", i, i - 1);
    text += fmt::format("  return %v{}\n}}\n", kernels - 1);
    compile::Options unfused = options;
    unfused.fuse = false;
    return compile::compile(graph::parse_graph(text, op::standard_ops()), unfused).executable;
  };
  const auto executable_1 = chain(1), executable_9 = chain(9);
  const std::vector<Tensor> inputs{device_tensor(*device, DType::F32, {64, 64}, 1), device_tensor(*device, DType::F32, {64, 64}, 1)};
  std::vector<Tensor> outputs{device->empty(DType::F32, {64, 64}, nullptr)};
  const auto time_of = [&](const run::Executable& executable) { return per_call([&] { executable.run_into(inputs, outputs); }); };
  nlohmann::ordered_json json;
  const double one = time_of(*executable_1), nine = time_of(*executable_9);
  json["one_kernel_us"] = one * 1e6;
  json["further_kernel_us"] = (nine - one) / 8 * 1e6;
  // The driver alone, with as many arguments.
  if (!device->driver().is_host) {
    const build::CudaModule module = build::build_cuda_module("extern \"C\" __global__ void nothing(const float*, const float*, float*, long long, long long) {}\n",
                                                              {.architecture = device->properties().architecture()}, nullptr);
    const std::shared_ptr<void> loaded = device->load_module(module.bytes.data());
    const run::CudaKernel kernel = device->describe(device->function(loaded, "nothing"), "nothing");
    const run::CudaLaunch launch{.kernel = &kernel, .grid = {4, 1, 1}, .block = {256, 1, 1}};
    const uint64_t words[5] = {};
    const double driver = per_call([&] { device->launch(launch, words, 5, nullptr); });
    json["driver_launch_us"] = driver * 1e6;
    json["over_driver_us"] = (one - driver) * 1e6;
  }
  // A shape that was never seen.
  std::vector<double> first;
  for (int64_t n = 65; n < 97; ++n) {
    const std::vector<Tensor> fresh{device_tensor(*device, DType::F32, {n, 64}, 1), device_tensor(*device, DType::F32, {n, 64}, 1)};
    std::vector<Tensor> result{device->empty(DType::F32, {n, 64}, nullptr)};
    device->synchronize(nullptr);
    const double start = now();
    executable_1->run_into(fresh, result);
    first.push_back(now() - start);
  }
  device->synchronize(nullptr);
  json["new_shape_more_us"] = (median(std::move(first)) - one) * 1e6;
  if (print) {
    fmt::print("\nhost time of a call, one kernel: {:.2f} us{}; each further kernel {:.2f} us; a new shape {:.2f} us more\n", one * 1e6,
               json.contains("over_driver_us") ? fmt::format(", {:.2f} us over the driver's own launch", json["over_driver_us"].get<double>()) : "",
               json["further_kernel_us"].get<double>(), json["new_shape_more_us"].get<double>());
  }
  return json;
}

}  // namespace

int gpu_suite(const SuiteArguments& arguments) {
  const std::shared_ptr<run::CudaDevice> device = open_device(arguments.device == "gpu" ? "cuda:0" : arguments.device);
  const bool on_host = device->driver().is_host;   // the small sizes: a rehearsal
  device->make_current();
  Progress progress;
  Stopwatch watch(device);
  progress.show("copy");
  double copy_gbs = 0;
  {
    const int64_t count = int64_t{1} << (on_host ? 20 : 30);
    const Tensor source = device_tensor(*device, DType::F32, {count}, 1);
    Tensor target = device->empty(DType::F32, {count}, nullptr);
    const double seconds = watch.seconds(10, [&] { device->copy(target.data(), source.data(), source.bytes(), nullptr); });
    copy_gbs = 2 * static_cast<double>(source.bytes()) / seconds / 1e9;
  }
  device->release_cached();
  progress.clear();
  nlohmann::ordered_json json = {{"device", device->properties().name}, {"copy_gbs", copy_gbs}, {"cases", nlohmann::ordered_json::array()}};
  if (!arguments.json) {
    fmt::print("{}: copy {:.0f} GB/s (read plus written)\n\n", device->properties().name, copy_gbs);
    fmt::print("{:<24} {:<5} {:>10} {:>8} {:>10} {:>8} {:>10} {:>9}\n", "case", "dtype", "ms", "GB/s", "% of copy", "kernels", "compile ms", "error");
  }
  std::vector<Case> cases = standard_cases();
  for (const Case& each : odd_cases()) cases.push_back(each);
  for (const Case& each : transpose_cases()) cases.push_back(each);
  if (on_host) {
    for (Case& each : cases) each.sizes = each.small;
  }
  compile::Options options{.device = program::Device::Cuda, .cuda_device = device};
  options.run.tf32 = arguments.tf32;
  options.run.products = !arguments.no_library;
  std::map<std::string, std::shared_ptr<compile::Compiled>> compiled_texts;  // cases that differ in sizes only share a binary
  double logs = 0;
  int measured = 0, wrong = 0;
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const Case& each : cases) {
      if (each.name.find(arguments.filter) == std::string::npos) continue;
      progress.show(fmt::format("{} {}", each.name, dtype_name(dtype)));
      nlohmann::ordered_json row = {{"case", each.name}, {"dtype", dtype_name(dtype)}};
      try {
        const std::string text = replace_all(each.text, "{T}", dtype_name(dtype));
        const graph::Graph graph = graph::parse_graph(text, op::standard_ops(), each.name);
        std::shared_ptr<compile::Compiled>& compiled = compiled_texts[text];
        if (compiled == nullptr) compiled = std::make_shared<compile::Compiled>(compile::compile(graph.clone(), options));
        const double error = check_small(graph, *compiled->executable, each.small);
        // One rounding of the result's type, and some of f32.
        const double allowed = dtype != DType::F32 ? 8e-3 : each.product && arguments.tf32 ? 2e-3 : 1e-5;
        std::vector<Tensor> inputs, outputs;
        for (const graph::ValueId id : graph.inputs())
          inputs.push_back(device_tensor(*device, graph.type(id).dtype, dims_of(graph.type(id), each.sizes), each.sizes.count("c") != 0 ? each.sizes.at("c") : 2));
        for (const graph::ValueId id : graph.outputs()) outputs.push_back(device->empty(graph.type(id).dtype, dims_of(graph.type(id), each.sizes), nullptr));
        const double seconds = watch.seconds(20, [&] { compiled->executable->run_into(inputs, outputs); });
        const double bytes = each.tensors * each.elements * static_cast<double>(dtype_bytes(dtype));
        const double gbs = bytes / seconds / 1e9, percent = 100 * gbs / copy_gbs;
        const bool right = error <= allowed;
        row["shape"] = inputs[0].dims();
        row.update({{"ms", seconds * 1e3}, {"bytes", bytes}, {"gbs", gbs}, {"pct_of_copy", percent}, {"kernels", compiled->report.kernels},
                    {"compile_ms", compiled->report.total_seconds * 1e3}, {"error", error}, {"right", right}});
        wrong += right ? 0 : 1;
        std::string product;
        if (each.product) {
          std::string reason;
          const Tensor workspace = device->empty(DType::U8, {int64_t{32} << 20}, nullptr);
          const nlohmann::ordered_json best = library_best(watch, *device, each, arguments.tf32, inputs, outputs[0], workspace, reason);
          const int64_t calls = library_calls(*compiled->executable, inputs);
          const double flops = 2.0 * static_cast<double>(each.sizes.at("m")) * static_cast<double>(each.sizes.at("k")) * static_cast<double>(each.sizes.at("n"));
          row.update({{"product", {each.sizes.at("m"), each.sizes.at("k"), each.sizes.at("n")}}, {"tflops", flops / seconds * 1e-12}, {"library_calls", calls}, {"library_best_ms", best}});
          product = fmt::format("  {:.1f} TFLOP/s by {}; ", flops / seconds * 1e-12, calls > 0 ? "the library" : "a kernel");
          if (best.is_null()) {
            row["library_missing"] = reason;
            product += "no library to compare with: " + reason;
          } else {
            row["pct_of_library"] = 100 * best.get<double>() / (seconds * 1e3);
            product += fmt::format("the library's best {:.3f} ms, that is {:.1f}% of it", best.get<double>(), row["pct_of_library"].get<double>());
          }
        } else {
          logs += std::log(percent);
          ++measured;
        }
        progress.clear();
        if (!arguments.json)
          fmt::print("{:<24} {:<5} {:>10.3f} {:>8.0f} {:>9.1f}% {:>8} {:>10.1f} {:>9.1e}{}\n", each.name, dtype_name(dtype), seconds * 1e3, gbs, percent,
                     compiled->report.kernels, compiled->report.total_seconds * 1e3, error, (right ? "" : "  WRONG") + product);
      } catch (const Error& failure) {
        row["failure"] = failure.what();
        ++wrong;
        progress.clear();
        if (!arguments.json) fmt::print("{:<24} {:<5} FAILED: {}\n", each.name, dtype_name(dtype), std::string_view(failure.what()).substr(0, 300));
      }
      json["cases"].push_back(std::move(row));
      device->release_cached();
    }
  }
  if (measured > 0) json["geometric_mean_pct"] = std::exp(logs / measured);
  if (!arguments.json && measured > 0) fmt::print("\ngeometric mean {:.1f}% of copy over {} rows; {} wrong or failed\n", std::exp(logs / measured), measured, wrong);
  if (arguments.filter.empty() && !on_host) json["host"] = host_figures(device, options, !arguments.json);
  if (arguments.json) fmt::print("{}\n", json.dump());
  return wrong == 0 ? kOk : kMismatch;
}

}  // namespace fuseloom::tool
