#include "compile/pipeline.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/check.h"
#include "compile/trace.h"
#include "compile/tune.h"
#include "emit/cpp.h"
#include "emit/cuda.h"
#include "emit/source_kernel.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "run/host_driver.h"

namespace fuseloom::compile {

using graph::Graph;

std::vector<graph::NamedPass> pipeline_passes() {
  return {
      {"propagate_sizes", graph::propagate_sizes},
      {"fold_constants", [](Graph& g) { return graph::fold_constants(g); }},
      {"canonicalize", graph::canonicalize},
      {"remove_dead_nodes", graph::remove_dead_nodes},
      {"decompose", [](Graph& g) { return graph::decompose(g); }},
      {"propagate_sizes", graph::propagate_sizes},
      {"fold_constants", [](Graph& g) { return graph::fold_constants(g); }},
      {"canonicalize", graph::canonicalize},
      {"merge_common_subexpressions", graph::merge_common_subexpressions},
      {"remove_dead_nodes", graph::remove_dead_nodes},
  };
}

namespace {

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Every variant of every launch, of nested programs too, with its kernel and the sizes it is launched with.
using VariantVisit = std::function<void(program::Variant&, const kernel::Kernel&, const sym::Substitution&)>;
void for_each_variant(program::Program& program, const std::map<std::string, const kernel::Kernel*>& kernels, const VariantVisit& visit) {
  for (std::vector<program::Line>* lines : {&program.init, &program.lines}) {
    for (program::Line& line : *lines) {
      if (auto* launch = std::get_if<program::Launch>(&line.what)) {
        for (program::Variant& variant : launch->variants) {
          const auto found = kernels.find(program.kernels[static_cast<size_t>(variant.kernel)].name);
          if (found == kernels.end()) continue;  // user-written: lowering has taken what its record says
          const kernel::Kernel& kernel = *found->second;
          sym::Substitution sizes;
          for (size_t i = 0; i < kernel.symbols.size(); ++i) sizes[kernel.symbols[i]] = launch->sizes[i];
          visit(variant, kernel, sizes);
        }
      } else if (auto* branch = std::get_if<program::If>(&line.what)) {
        for_each_variant(*branch->then, kernels, visit);
        for_each_variant(*branch->otherwise, kernels, visit);
      } else if (auto* loop = std::get_if<program::While>(&line.what)) {
        for_each_variant(*loop->body, kernels, visit);
      }
    }
  }
}

// Takes what lowering gave, fills in what follows from how kernels are written, verifies and shows it.
void finish_lowering(schedule::LoweredProgram lowered, const VariantVisit& visit, const Options& options, Report& report, Trace& trace,
                     program::Program& program, std::vector<kernel::Kernel>& kernels) {
  program = std::move(lowered.program);
  kernels = std::move(lowered.kernels);
  report.nodes = lowered.nodes;
  report.kernels = lowered.launches;
  report.products = lowered.products;
  report.distinct_kernels = kernels.size();
  report.explanation = std::move(lowered.explanation);
  report.kernels_text.clear();
  std::map<std::string, const kernel::Kernel*> by_name;
  for (const kernel::Kernel& kernel : kernels) {
    by_name[kernel.name] = &kernel;
    report.kernels_text += kernel::to_string(kernel) + "\n";
  }
  for_each_variant(program, by_name, visit);
  if (options.verify) program::verify(program);
  report.program_text = program::to_string(program);
  trace.write("groups", "txt", report.explanation);
  if (trace.on()) {
    for (const kernel::Kernel& kernel : kernels) trace.write("kernel." + kernel.name, "fl", kernel::to_string(kernel));
  }
  trace.write("program", "fl", report.program_text);
}

void do_nothing(void* const*, const int64_t*, char*, int64_t, int64_t) {}

}  // namespace

std::string trace_dir(const Options& options) {
  if (options.trace_dir) return *options.trace_dir;
  const char* variable = std::getenv("FUSELOOM_TRACE");
  return variable != nullptr ? variable : "";
}

void run_pipeline_passes(Graph& graph, const Options& options, Report& report, Trace& trace) {
  Stopwatch watch;
  trace.write("graph.imported", "fl", trace.on() ? graph::to_string(graph) : "");
  if (options.verify) graph::verify(graph);
  const std::vector<graph::NamedPass> passes = pipeline_passes();
  graph::PassRunnerOptions runner{.verify = options.verify, .skip = options.skip_passes, .before = options.before_pass};
  runner.after = [&](const std::string& name, const Graph& now) {
    if (trace.on()) trace.write("graph." + name, "fl", graph::to_string(now));
    if (options.after_pass) options.after_pass(name, now);
  };
  report.passes = graph::run_passes(graph, passes, runner);
  report.graph_text = graph::to_string(graph);
  report.passes_seconds = watch.lap();
}

emit::CppTarget cpp_target(build::Isa isa) {
  return {.vector_bytes = build::vector_bytes(isa), .fma = isa != build::Isa::Baseline, .avx512 = isa == build::Isa::Avx512};
}

LoweredTarget lower_for(const Graph& graph, build::Isa isa, const Options& options, Report& report, Trace& trace) {
  Stopwatch watch;
  LoweredTarget out{.isa = isa == build::Isa::Native ? build::detect_isa() : isa};

  // 1. Groups, kernels, host program.
  const build::DiskCache cache(options.cache_dir ? *options.cache_dir : build::default_cache_dir());
  schedule::LowerOptions lower{.tuned = options.dry_run ? schedule::TunedConfigurations() : tune_source_kernels(graph, out.isa, options.hint, cache), .hint = options.hint};
  lower.grouping.fuse = options.fuse;
  lower.target.vector_bytes = build::vector_bytes(out.isa);
  lower.target.vector_registers = out.isa == build::Isa::Avx512 ? 32 : 16;
  const emit::CppTarget target = cpp_target(out.isa);
  const auto set_scratch = [&](program::Variant& variant, const kernel::Kernel& kernel, const sym::Substitution& sizes) {
    variant.scratch_bytes = sym::substitute(emit::scratch_bytes(kernel, target), sizes);
  };
  schedule::LoweredProgram lowered = schedule::lower_program(graph, lower);
  out.source_kernels = std::move(lowered.source_kernels);
  finish_lowering(std::move(lowered), set_scratch, options, report, trace, out.program, out.kernels);
  report.distinct_kernels += out.source_kernels.size();
  report.lower_seconds += watch.lap();

  // 2. Kernels to text, in as many translation units as compile fastest.
  report.source.clear();
  const size_t units = static_cast<size_t>(std::max(1, build::suggested_source_count(static_cast<int32_t>(out.kernels.size()))));
  for (size_t unit = 0; unit < units; ++unit) {
    std::vector<const kernel::Kernel*> part;
    for (size_t i = unit; i < out.kernels.size(); i += units) part.push_back(&out.kernels[i]);
    if (part.empty()) continue;
    out.sources.push_back(emit::to_cpp(part, target));
    report.source += out.sources.back();
    trace.write("source", "cpp", out.sources.back());
  }
  if (!out.source_kernels.empty()) {
    out.sources.push_back(emit::to_cpp(out.source_kernels));
    report.source += out.sources.back();
    trace.write("source", "cpp", out.sources.back());
  }
  report.emit_seconds += watch.lap();
  return out;
}

LoweredCuda lower_for_cuda(const Graph& graph, const schedule::CudaTarget& target, bool library_products, const Options& options, Report& report, Trace& trace) {
  Stopwatch watch;
  LoweredCuda out;
  schedule::LowerOptions lower{.cuda = target, .hint = options.hint};
  lower.grouping.fuse = options.fuse;
  lower.grouping.library_products = library_products;
  const auto set_shared = [](program::Variant& variant, const kernel::Kernel& kernel, const sym::Substitution& sizes) {
    variant.shared_bytes = sym::substitute(emit::shared_bytes(kernel), sizes);
    FL_CHECK(variant.block == emit::block_of(kernel), "kernel {}: launched with blocks of ({}), written for ({})", kernel.name, fmt::join(variant.block, ", "),
             fmt::join(emit::block_of(kernel), ", "));
  };
  finish_lowering(schedule::lower_program(graph, lower), set_shared, options, report, trace, out.program, out.kernels);
  report.lower_seconds += watch.lap();
  report.source.clear();
  for (const kernel::Kernel& kernel : out.kernels) {
    const kernel::Kernel* const one = &kernel;
    out.sources.push_back(emit::to_cuda({&one, 1}));
    report.source += out.sources.back();
    if (trace.on()) trace.write("source." + kernel.name, "cu", out.sources.back());
  }
  report.emit_seconds += watch.lap();
  return out;
}

namespace {

// Kernels → functions of a device, kept alive by what is returned beside them.
struct CudaBinary {
  std::map<std::string, run::CudaFunction> functions;
  std::map<std::string, run::HostKernel> host_kernels;
  std::vector<std::shared_ptr<void>> modules;
  std::shared_ptr<build::Binary> library;
};

void run_nothing(const uint64_t*, const uint32_t*, const uint32_t*, const uint32_t*, uint32_t) {}

std::shared_ptr<CudaBinary> build_for_device(const LoweredCuda& lowered, run::CudaDevice& device, const Options& options, const build::DiskCache* cache, Report& report) {
  auto binary = std::make_shared<CudaBinary>();
  const auto add_host = [&](const std::string& name, run::HostKernelEntry entry) {
    run::HostKernel& kernel = binary->host_kernels[name];
    kernel.entry = entry;
    binary->functions[name] = run::host_function(kernel);
  };
  if (options.dry_run) {
    for (const kernel::Kernel& kernel : lowered.kernels) add_host(kernel.name, run_nothing);
    return binary;
  }
  if (lowered.kernels.empty()) return binary;
  if (device.driver().is_host) {
    // One source: the prelude is most of what there is to compile.
    std::vector<const kernel::Kernel*> all;
    for (const kernel::Kernel& kernel : lowered.kernels) all.push_back(&kernel);
    const std::string source = emit::cuda_host_prelude() + emit::to_cuda(all);
    binary->library = std::make_shared<build::Binary>(build::build_host_library({source}, build::CompileOptions{.isa = build::Isa::Native}, cache));
    report.from_cache = binary->library->statistics.hits > 0;
    for (const kernel::Kernel& kernel : lowered.kernels)
      add_host(kernel.name, reinterpret_cast<run::HostKernelEntry>(binary->library->library.symbol(emit::host_entry_name(kernel.name))));
    return binary;
  }
  const std::vector<build::CudaModule> modules =
      build::build_cuda_modules(lowered.sources, build::CudaOptions{.architecture = device.properties().architecture()}, cache);
  report.from_cache = std::all_of(modules.begin(), modules.end(), [](const build::CudaModule& module) { return module.statistics.hits > 0; });
  for (size_t i = 0; i < modules.size(); ++i) {
    binary->modules.push_back(device.load_module(modules[i].bytes.data()));
    binary->functions[lowered.kernels[i].name] = device.function(binary->modules.back(), lowered.kernels[i].name);
  }
  return binary;
}

schedule::CudaTarget target_of(const run::CudaDevice& device) {
  schedule::CudaTarget target;
  if (device.driver().is_host) return target;  // the default: as on the device that is meant
  const run::CudaProperties& properties = device.properties();
  target.multiprocessors = properties.multiprocessors;
  target.threads_per_multiprocessor = properties.threads_per_multiprocessor;
  target.shared_per_block = properties.shared_bytes_per_block;
  target.l2_bytes = properties.l2_bytes;
  return target;
}

std::shared_ptr<run::CudaDevice> device_of(const Options& options) {
  if (options.cuda_device != nullptr) return options.cuda_device;
  return run::CudaDevice::open(options.dry_run ? run::host_driver() : run::load_cuda_driver());
}

}  // namespace

Compiled compile(Graph graph, const Options& options) {
  Compiled out;
  Report& report = out.report;
  Stopwatch total, watch;
  Trace trace(trace_dir(options));
  const std::shared_ptr<run::CudaDevice> device = options.device == program::Device::Cuda ? device_of(options) : nullptr;
  run_pipeline_passes(graph, options, report, trace);
  const std::string cache_dir = options.cache_dir ? *options.cache_dir : build::default_cache_dir();
  const build::DiskCache disk_cache(cache_dir);
  const build::DiskCache* const cache = cache_dir.empty() ? nullptr : &disk_cache;
  const std::shared_ptr<run::ThreadPool> pool = options.pool ? options.pool : std::make_shared<run::ThreadPool>(options.threads);
  run::RunOptions run_options = options.run;
  if (options.threads > 0) run_options.threads = options.threads;

  if (device != nullptr) {
    const std::shared_ptr<const run::ProductLibrary> library = run_options.products ? device->products() : nullptr;
    LoweredCuda lowered = lower_for_cuda(graph, target_of(*device), library != nullptr, options, report, trace);
    report.explanation += library != nullptr          ? fmt::format("library of matrix products: {}\n", library->description())
                          : run_options.products ? fmt::format("no library of matrix products, kernels do them: {}\n", device->products_missing())
                                                 : "no library of matrix products, kernels do them: the options forbid it\n";
    watch.lap();
    const std::shared_ptr<CudaBinary> binary = build_for_device(lowered, *device, options, cache, report);
    report.build_seconds = watch.lap();
    const run::Kernels kernels{.device = device, .cuda = [&](const std::string& name) { return binary->functions.at(name); }};
    out.executable = std::make_shared<run::Executable>(std::move(lowered.program), kernels, binary, pool, run_options);
  } else {
    LoweredTarget lowered = lower_for(graph, options.isa, options, report, trace);
    watch.lap();
    std::shared_ptr<build::Binary> binary;
    if (!lowered.sources.empty() && !options.dry_run) {
      try {
        binary = std::make_shared<build::Binary>(build::build_host_library(lowered.sources, library_options(lowered.isa, lowered.source_kernels), cache));
      } catch (const build::BuildError& error) {
        blame_source_kernel(error, lowered.source_kernels);
        throw;
      }
      report.from_cache = binary->statistics.hits > 0;
    }
    report.build_seconds = watch.lap();
    const run::KernelLookup lookup = [&](const std::string& name) -> run::KernelFunction {
      if (binary == nullptr) return do_nothing;
      return reinterpret_cast<run::KernelFunction>(binary->library.symbol(name));
    };
    out.executable = std::make_shared<run::Executable>(std::move(lowered.program), lookup, binary, pool, run_options);
  }
  report.load_seconds = watch.lap();
  report.total_seconds = total.lap();
  trace.finish();
  return out;
}

}  // namespace fuseloom::compile
