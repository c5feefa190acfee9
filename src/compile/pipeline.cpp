#include "compile/pipeline.h"

#include <chrono>
#include <cstdlib>

#include "base/check.h"
#include "compile/trace.h"
#include "emit/cpp.h"
#include "graph/text.h"
#include "graph/verify.h"

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

// Fills in what follows from the text: the scratch each variant needs.
void set_scratch(program::Program& program, const std::map<std::string, const kernel::Kernel*>& kernels, const emit::CppTarget& target) {
  for (std::vector<program::Line>* lines : {&program.init, &program.lines}) {
    for (program::Line& line : *lines) {
      if (auto* launch = std::get_if<program::Launch>(&line.what)) {
        for (program::Variant& variant : launch->variants) {
          const kernel::Kernel& kernel = *kernels.at(program.kernels[static_cast<size_t>(variant.kernel)].name);
          sym::Substitution sizes;
          for (size_t i = 0; i < kernel.symbols.size(); ++i) sizes[kernel.symbols[i]] = launch->sizes[i];
          variant.scratch_bytes = sym::substitute(emit::scratch_bytes(kernel, target), sizes);
        }
      } else if (auto* branch = std::get_if<program::If>(&line.what)) {
        set_scratch(*branch->then, kernels, target);
        set_scratch(*branch->otherwise, kernels, target);
      } else if (auto* loop = std::get_if<program::While>(&line.what)) {
        set_scratch(*loop->body, kernels, target);
      }
    }
  }
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
  schedule::LowerOptions lower{.hint = options.hint};
  lower.grouping.fuse = options.fuse;
  lower.target.vector_bytes = build::vector_bytes(out.isa);
  lower.target.vector_registers = out.isa == build::Isa::Avx512 ? 32 : 16;
  schedule::LoweredProgram lowered = schedule::lower_program(graph, lower);
  out.program = std::move(lowered.program);
  out.kernels = std::move(lowered.kernels);
  report.nodes = lowered.nodes;
  report.kernels = lowered.launches;
  report.distinct_kernels = out.kernels.size();
  report.explanation = std::move(lowered.explanation);
  report.kernels_text.clear();
  const emit::CppTarget target = cpp_target(out.isa);
  std::map<std::string, const kernel::Kernel*> kernels;
  for (const kernel::Kernel& kernel : out.kernels) {
    kernels[kernel.name] = &kernel;
    report.kernels_text += kernel::to_string(kernel) + "\n";
  }
  set_scratch(out.program, kernels, target);
  if (options.verify) program::verify(out.program);
  report.program_text = program::to_string(out.program);
  trace.write("groups", "txt", report.explanation);
  if (trace.on()) {
    for (const kernel::Kernel& kernel : out.kernels) trace.write("kernel." + kernel.name, "fl", kernel::to_string(kernel));
  }
  trace.write("program", "fl", report.program_text);
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
  report.emit_seconds += watch.lap();
  return out;
}

Compiled compile(Graph graph, const Options& options) {
  Compiled out;
  Report& report = out.report;
  Stopwatch total, watch;
  Trace trace(trace_dir(options));
  run_pipeline_passes(graph, options, report, trace);
  LoweredTarget lowered = lower_for(graph, options.isa, options, report, trace);

  // Text to a loaded library.
  watch.lap();
  std::shared_ptr<build::Binary> binary;
  if (!lowered.sources.empty() && !options.dry_run) {
    const std::string cache_dir = options.cache_dir ? *options.cache_dir : build::default_cache_dir();
    const build::DiskCache cache(cache_dir);
    binary = std::make_shared<build::Binary>(
        build::build_host_library(lowered.sources, build::CompileOptions{.isa = lowered.isa}, cache_dir.empty() ? nullptr : &cache));
    report.from_cache = binary->statistics.hits > 0;
  }
  report.build_seconds = watch.lap();

  // The executable.
  const run::KernelLookup lookup = [&](const std::string& name) -> run::KernelFunction {
    if (binary == nullptr) return do_nothing;
    return reinterpret_cast<run::KernelFunction>(binary->library.symbol(name));
  };
  const std::shared_ptr<run::ThreadPool> pool = options.pool ? options.pool : std::make_shared<run::ThreadPool>(options.threads);
  run::RunOptions run_options = options.run;
  if (options.threads > 0) run_options.threads = options.threads;
  out.executable = std::make_shared<run::Executable>(std::move(lowered.program), lookup, binary, pool, run_options);
  report.load_seconds = watch.lap();
  report.total_seconds = total.lap();
  trace.finish();
  return out;
}

}  // namespace fuseloom::compile
