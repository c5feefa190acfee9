#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "progress.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Planned memory where the sizes follow from the inputs' sizes.
std::optional<std::pair<int64_t, int64_t>> planned_memory(const run::Executable& executable, std::span<const Dims> dims) {
  try {
    return std::pair(executable.arena_bytes(dims), executable.arena_lower_bound(dims));
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

// Fresh tensors for the results, or nothing where their sizes depend on the data.
std::vector<Tensor> result_buffers(const run::Executable& executable, std::span<const Dims> dims) {
  std::vector<Tensor> outputs;
  try {
    const std::vector<Dims> sizes = executable.output_dims(dims);
    for (size_t i = 0; i < sizes.size(); ++i) outputs.emplace_back(executable.program().outputs[i].type.dtype, sizes[i]);
  } catch (const Unsupported&) {
    outputs.clear();
  }
  return outputs;
}

int64_t constant_bytes(const program::Program& program) {
  int64_t bytes = 0;
  for (const Tensor& constant : program.constants) bytes += constant.bytes();
  return bytes;
}

}  // namespace

int bench(const BenchArguments& arguments) {
  Progress progress;
  progress.show("loading " + arguments.model.path);
  const double begin = now_ms();
  const Model model = load_model(arguments.model);
  const double import_ms = now_ms() - begin;
  std::vector<Tensor> inputs = make_inputs(model, arguments.model);
  progress.show("compiling");
  const double compile_begin = now_ms();
  const compile::Compiled compiled = make_executable(model, arguments.model, inputs);
  const double compile_ms = now_ms() - compile_begin;
  const run::Executable& executable = *compiled.executable;
  run::CudaDevice* const device = executable.device().get();
  std::vector<Dims> dims;
  for (const Tensor& input : inputs) dims.push_back(input.dims());

  // On a device, inputs and results are there, and a call ends when its work is done.
  if (device != nullptr) {
    for (Tensor& input : inputs) input = device->to_device(input, nullptr);
    device->reset_peak();
  }
  const auto finish = [&] {
    if (device != nullptr) device->synchronize(nullptr);
  };

  // 1. The first call binds the sizes; later ones find them.
  progress.show("running");
  const double first_begin = now_ms();
  const std::vector<Tensor> first = executable.run(inputs);
  finish();
  const double first_ms = now_ms() - first_begin;

  // 2. Latency.
  std::vector<Tensor> outputs = result_buffers(executable, dims);
  if (device != nullptr) {
    for (Tensor& output : outputs) output = device->empty(output.dtype(), output.dims(), nullptr);
  }
  const bool into = !outputs.empty();
  std::vector<double> samples;
  const double until = now_ms() + arguments.seconds * 1e3;
  while (arguments.repeat > 0 ? static_cast<int64_t>(samples.size()) < arguments.repeat : samples.size() < 3 || now_ms() < until) {
    const double start = now_ms();
    if (into) {
      executable.run_into(inputs, outputs);
    } else {
      (void)executable.run(inputs);
    }
    finish();
    samples.push_back(now_ms() - start);
  }
  std::sort(samples.begin(), samples.end());
  const auto quantile = [&](double q) { return samples[std::min(samples.size() - 1, static_cast<size_t>(q * static_cast<double>(samples.size())))]; };

  // 3. Where the time goes: on a few more calls, as measuring costs time itself.
  executable.set_profiling(true);
  for (size_t i = 0; i < std::clamp<size_t>(samples.size() / 4, 1, 20); ++i) (void)executable.run(inputs);
  executable.set_profiling(false);
  const run::Profile profile = executable.profile();
  if (!arguments.trace.empty()) {
    std::ofstream file(arguments.trace);
    file << profile.chrome_trace();
    file.close();
    FL_REQUIRE(file.good(), "--trace {}: cannot be written", arguments.trace);
  }
  double kernel_seconds = 0;
  int64_t library_calls = 0;
  for (const run::KernelStatistics& kernel : profile.kernels) {
    kernel_seconds += kernel.seconds;
    library_calls += kernel.calls > 0 && kernel.library ? 1 : 0;
  }
  const std::optional<std::pair<int64_t, int64_t>> memory = planned_memory(executable, dims);
  progress.clear();

  const compile::Report& report = compiled.report;
  nlohmann::ordered_json json = {{"model", arguments.model.path},
                                 {"min_ms", samples.front()},
                                 {"p50_ms", quantile(0.5)},
                                 {"p99_ms", quantile(0.99)},
                                 {"first_ms", first_ms},
                                 {"calls", samples.size()},
                                 {"import_ms", import_ms},
                                 {"compile_ms", compile_ms},
                                 {"load_ms", report.load_seconds * 1e3},
                                 {"from_cache", report.from_cache},
                                 {"nodes", report.nodes},
                                 {"kernel_count", report.kernels},
                                 {"distinct_kernels", report.distinct_kernels},
                                 {"library_calls", library_calls},   // launches of one call that a library does
                                 {"peak_bytes", nullptr},
                                 {"lower_bound_bytes", nullptr},
                                 {"constant_bytes", constant_bytes(executable.program())},
                                 {"device_peak_bytes", device == nullptr ? nlohmann::ordered_json() : nlohmann::ordered_json(device->peak_bytes())},
                                 {"kernels", nlohmann::ordered_json::array()}};
  if (memory) {
    json["peak_bytes"] = memory->first;
    json["lower_bound_bytes"] = memory->second;
  }
  json["stages_ms"] = {{"passes", report.passes_seconds * 1e3}, {"lower", report.lower_seconds * 1e3}, {"emit", report.emit_seconds * 1e3},
                       {"build", report.build_seconds * 1e3}, {"load", report.load_seconds * 1e3}};
  if (!arguments.model.json) {
    if (model.archive != nullptr) {
      fmt::print("{} kernels ({} distinct); opened in {:.2f} ms, loaded in {:.2f} ms\n", report.kernels, report.distinct_kernels, import_ms, compile_ms);
    } else {
      fmt::print("{} nodes in {} kernels ({} distinct){}\n", report.nodes, report.kernels, report.distinct_kernels,
                 library_calls > 0 ? fmt::format("; a library does {}", library_calls) : "");
      fmt::print("import {:.1f} ms, compile {:.1f} ms ({}): passes {:.1f}, lower {:.1f}, emit {:.1f}, build {:.1f}, load {:.1f}\n", import_ms,
                 compile_ms, report.from_cache ? "kernels from the cache" : "kernels compiled", report.passes_seconds * 1e3,
                 report.lower_seconds * 1e3, report.emit_seconds * 1e3, report.build_seconds * 1e3, report.load_seconds * 1e3);
    }
    fmt::print("first call {:.3f} ms; {} calls: min {:.4f} p50 {:.4f} p99 {:.4f} ms\n", first_ms, samples.size(), samples.front(),
               quantile(0.5), quantile(0.99));
    if (memory) fmt::print("temporaries {} bytes, lower bound {} bytes; ", memory->first, memory->second);
    fmt::print("constants {} bytes\n\n{:>10} {:>6} {:>9}  kernel: nodes\n", json["constant_bytes"].get<int64_t>(), "us", "share", "GB/s");
  }
  std::vector<const run::KernelStatistics*> order;
  for (const run::KernelStatistics& kernel : profile.kernels) order.push_back(&kernel);
  if (!arguments.model.json)   // a reader wants the dearest first, a script the program's order
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->seconds > b->seconds; });
  for (const run::KernelStatistics* kernel : order) {
    if (kernel->calls == 0) continue;
    const double seconds = kernel->seconds / static_cast<double>(kernel->calls);
    const double share = kernel_seconds > 0 ? kernel->seconds / kernel_seconds : 0;
    const double gbs = seconds > 0 ? static_cast<double>(kernel->bytes) / seconds / 1e9 : 0;
    json["kernels"].push_back({{"name", kernel->name}, {"origin", kernel->origin}, {"ms", seconds * 1e3}, {"bytes", kernel->bytes},
                               {"gbs", gbs}, {"share", share}});
    if (device != nullptr) json["kernels"].back().update({{"library", kernel->library}, {"note", kernel->note}});
    if (!arguments.model.json)
      fmt::print("{:>10.2f} {:>5.1f}% {:>9.2f}  {}: {}\n", seconds * 1e6, share * 100, gbs, kernel->name, kernel->origin.substr(0, 80));
  }
  if (arguments.model.json) fmt::print("{}\n", json.dump());
  return kOk;
}

}  // namespace fuseloom::tool
