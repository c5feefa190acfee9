#include "compile/aot.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/version.h"
#include "build/file.h"
#include "build/host_compiler.h"
#include "compile/trace.h"
#include "compile/tune.h"
#include "emit/program_cpp.h"
#include "program/weights.h"

namespace fuseloom::compile {

using graph::Graph;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }

std::vector<build::Isa> isas_of(const AotOptions& aot) {
  std::vector<build::Isa> isas = aot.isas;
#if defined(__x86_64__)
  if (isas.empty()) isas = {build::Isa::Baseline, build::Isa::Avx2, build::Isa::Avx512};
#else
  if (isas.empty()) isas = {build::Isa::Baseline};
#endif
  for (build::Isa& isa : isas) isa = isa == build::Isa::Native ? build::detect_isa() : isa;
  std::sort(isas.begin(), isas.end());
  isas.erase(std::unique(isas.begin(), isas.end()), isas.end());
  return isas;
}

// A graph lowered for every instruction set, and what its variants share.
struct Lowerings {
  std::vector<LoweredTarget> each;
  program::Weights weights;
  AotReport report;

  emit::Model model(const Options& options, const AotOptions& aot, std::string embedded_weights) const {
    emit::Model out{.name = emit::c_identifier(aot.name), .compiler = fmt::format("fuseloom {}", base::kVersion), .weights = &weights, .embedded_weights = std::move(embedded_weights), .typical = options.hint};
    for (size_t i = 0; i < each.size(); ++i)
      out.variants.push_back({.isa = std::string(build::isa_name(each[i].isa)), .program = &each[i].program, .kernels = each[i].kernels, .source_kernels = each[i].source_kernels, .target = cpp_target(each[i].isa)});
    return out;
  }
};

// A file may use other names than the graph, whose names are unique.
void rename(program::Program& program, const AotOptions& aot) {
  if (!aot.input_names.empty()) {
    FL_CHECK(aot.input_names.size() == program.input_names.size(), "{} names for {} inputs", aot.input_names.size(), program.input_names.size());
    program.input_names = aot.input_names;
  }
  if (!aot.output_names.empty()) {
    FL_CHECK(aot.output_names.size() == program.outputs.size(), "{} names for {} outputs", aot.output_names.size(), program.outputs.size());
    for (size_t i = 0; i < program.outputs.size(); ++i) program.outputs[i].name = aot.output_names[i];
  }
}

Lowerings lower_all(Graph& graph, const Options& options, const AotOptions& aot) {
  const auto step = [&](const std::string& words) {
    if (aot.progress) aot.progress(words);
  };
  Lowerings out;
  Report report;
  Trace trace("");
  step("passes");
  run_pipeline_passes(graph, options, report, trace);
  for (const build::Isa isa : isas_of(aot)) {
    step(fmt::format("lowering for {}", build::isa_name(isa)));
    out.each.push_back(lower_for(graph, isa, options, report, trace));
    const std::vector<std::string> calls = emit::native_calls(out.each.back().program);
    FL_SUPPORTED(calls.empty(), "ahead-of-time output has kernels only, and this model needs ops that have none yet: {}", fmt::join(calls, ", "));
    rename(out.each.back().program, aot);
    out.weights.add(out.each.back().program);
    out.report.isas.emplace_back(build::isa_name(isa));
    out.report.kernels.push_back(out.each.back().kernels.size());
  }
  out.report.nodes = report.nodes;
  out.report.passes_seconds = report.passes_seconds;
  out.report.lower_seconds = report.lower_seconds;
  return out;
}

}  // namespace

AotSource compile_to_source(Graph graph, const Options& options, const AotOptions& aot, const std::string& weights_file) {
  Lowerings lowerings = lower_all(graph, options, aot);
  const auto start = std::chrono::steady_clock::now();
  AotSource out{.text = emit::to_cpp(lowerings.model(options, aot, aot.weights == WeightsPlace::Embedded ? weights_file : "")),
                .weights_file = weights_file,
                .weights = lowerings.weights.blob(),
                .report = lowerings.report};
  out.report.emit_seconds = seconds_since(start);
  return out;
}

AotLibrary compile_to_library(Graph graph, const Options& options, const AotOptions& aot) {
  Lowerings lowerings = lower_all(graph, options, aot);
  AotLibrary out{.weights_bytes = lowerings.weights.bytes(), .report = lowerings.report};
  auto start = std::chrono::steady_clock::now();
  // The assembler reads the weights from a file; no text of hundreds of megabytes is made of them.
  const build::TemporaryDirectory directory;
  const std::string weights_path = directory.path() + "/weights";
  std::vector<std::byte> blob = lowerings.weights.blob();
  const bool embedded = aot.weights == WeightsPlace::Embedded && !blob.empty();
  if (embedded) build::write_file(weights_path, blob);
  const std::vector<std::string> units = emit::to_cpp_units(lowerings.model(options, aot, embedded ? weights_path : ""));
  out.report.emit_seconds = seconds_since(start);

  start = std::chrono::steady_clock::now();
  if (aot.progress) aot.progress("compiling");
  build::CompileOptions build_options{.isa = build::Isa::Baseline, .extra_flags = {"-fvisibility=hidden"}, .timeout_seconds = 600};
  std::vector<op::SourceKernelInstance> user;
  for (const LoweredTarget& lowered : lowerings.each) {
    build_options.source_isas.push_back(lowered.isa);
    user.insert(user.end(), lowered.source_kernels.begin(), lowered.source_kernels.end());
  }
  build_options.optimization = library_options(build::Isa::Baseline, user).optimization;
  build_options.source_isas.push_back(build::Isa::Baseline);   // the interface
  if (aot.observable) build_options.extra_flags.push_back("-DFUSELOOM_OBSERVABLE");
  build_options.extra_flags.insert(build_options.extra_flags.end(), aot.extra_flags.begin(), aot.extra_flags.end());
  const build::DiskCache cache(options.cache_dir ? *options.cache_dir : build::default_cache_dir());
  try {
    out.bytes = build::compile_host_library(build::find_host_compiler(build::compiler_candidates(), cache), units, build_options);
  } catch (const build::BuildError& error) {
    blame_source_kernel(error, user);
    throw;
  }
  out.report.build_seconds = seconds_since(start);
  if (!embedded) out.weights = std::move(blob);
  return out;
}

}  // namespace fuseloom::compile
