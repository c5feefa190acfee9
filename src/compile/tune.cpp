#include "compile/tune.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>

#include "base/check.h"
#include "emit/source_kernel.h"

namespace fuseloom::compile {

namespace {

using schedule::TuningRequest;

void collect_requests(const graph::Graph& graph, const schedule::SizeHint& hint, std::vector<TuningRequest>& out) {
  for (const graph::NodeId id : graph.nodes()) {
    const graph::Node& node = graph.node(id);
    if (node.op->kernel) {
      std::optional<TuningRequest> request = schedule::tuning_request(graph, id, hint);
      const auto same = [&](const TuningRequest& other) { return other.key == request->key; };
      if (request && std::none_of(out.begin(), out.end(), same)) out.push_back(std::move(*request));
    }
    for (const auto& subgraph : node.subgraphs) collect_requests(*subgraph, hint, out);
  }
}

// Small and different numbers in every type.
Tensor made_up(DType dtype, Dims dims) {
  Tensor tensor(dtype, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, static_cast<double>((i * 2654435761u >> 7) % 3));
  return tensor;
}

// The candidate with the least of several times, each long enough for the clock. Rounds go over all candidates, so that a
// machine that slows down or speeds up does so for all of them.
size_t measure(const TuningRequest& request, const build::SharedObject& library) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 7;
  constexpr std::chrono::microseconds kEnough(500);
  std::vector<Tensor> tensors;
  for (const auto& [dtype, dims] : request.inputs) tensors.push_back(made_up(dtype, dims));
  for (const auto& [dtype, dims] : request.outputs) tensors.emplace_back(dtype, dims);
  std::vector<void*> buffers;
  for (Tensor& tensor : tensors) buffers.push_back(tensor.data());
  std::vector<double> best(request.candidates.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t c = 0; c < request.candidates.size(); ++c) {
      const auto function = library.function<run::KernelFunction>(request.candidates[c].name);
      Tensor scratch(DType::U8, {std::max<int64_t>(request.scratch_bytes[c], 1)});
      int64_t calls = 0;
      const Clock::time_point start = Clock::now();
      do {
        if (request.extents[c] > 0) function(buffers.data(), request.sizes.data(), scratch.as<char>(), 0, request.extents[c]);
        ++calls;
      } while (Clock::now() - start < kEnough);
      best[c] = std::min(best[c], std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(calls));
    }
  }
  return static_cast<size_t>(std::min_element(best.begin(), best.end()) - best.begin());
}

}  // namespace

build::CompileOptions library_options(build::Isa isa, std::span<const op::SourceKernelInstance> kernels) {
  build::CompileOptions options{.isa = isa};
  if (!kernels.empty()) options.optimization = build::Optimization::Full;  // nobody has written the user's loops out
  return options;
}

void blame_source_kernel(const build::BuildError& error, std::span<const op::SourceKernelInstance> kernels) {
  constexpr size_t kLongest = 2000;
  for (const op::SourceKernelInstance& kernel : kernels) {
    if (error.log().find(emit::source_name(kernel)) == std::string::npos && error.log().find(kernel.name) == std::string::npos) continue;
    throw UserError(fmt::format("op '{}': the compiler refuses its kernel:\n{}", kernel.record->name, error.log().substr(0, kLongest)));
  }
}

build::HostLibrary build_library(const std::vector<std::string>& sources, std::span<const op::SourceKernelInstance> kernels, build::Isa isa,
                                 const build::DiskCache& cache) {
  try {
    return build::build_host_library_bytes(sources, library_options(isa, kernels), cache.enabled() ? &cache : nullptr);
  } catch (const build::BuildError& error) {
    blame_source_kernel(error, kernels);
    throw;
  }
}

schedule::TunedConfigurations tune_source_kernels(const graph::Graph& graph, build::Isa isa, const schedule::SizeHint& hint, const build::DiskCache& cache) {
  schedule::TunedConfigurations tuned;
  if (!build::runs_here(isa)) return tuned;
  std::vector<TuningRequest> requests;
  collect_requests(graph, hint, requests);
  for (const TuningRequest& request : requests) {
    const std::string name = fmt::format("{} {}", build::isa_identity(isa), request.key);
    if (const std::optional<std::string> known = cache.get_named(name)) {
      size_t configuration = 0;
      const auto [end, error] = std::from_chars(known->data(), known->data() + known->size(), configuration);
      const bool listed = std::find(request.configurations.begin(), request.configurations.end(), configuration) != request.configurations.end();
      if (error == std::errc() && end == known->data() + known->size() && listed) {
        tuned[request.key] = configuration;
        continue;
      }
    }
    const build::HostLibrary code = build_library({emit::to_cpp(request.candidates)}, request.candidates, isa, cache);
    const size_t best = request.configurations[measure(request, build::SharedObject::load(code.bytes, "tuning"))];
    tuned[request.key] = best;
    cache.put_named(name, std::to_string(best));
  }
  return tuned;
}

}  // namespace fuseloom::compile
