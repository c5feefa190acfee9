#include "compile/archive.h"

#include <chrono>

#include "base/check.h"
#include "base/version.h"
#include "build/file.h"
#include "compile/trace.h"
#include "compile/tune.h"
#include "graph/name_values.h"
#include "graph/text.h"
#include "run/prepare.h"
#include "sym/evaluator.h"

namespace fuseloom::compile {

namespace {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The sizes of the inputs at the typical sizes, where these give all of them.
std::optional<std::vector<Dims>> typical_dims(const program::Program& program, const schedule::SizeHint& hint) {
  std::vector<Dims> dims;
  for (const op::TensorType& type : program.input_types) {
    Dims& sizes = dims.emplace_back();
    for (const sym::Expr& size : type.shape) {
      for (const std::string& symbol : sym::symbols_of(size)) {
        if (hint.count(symbol) == 0) return std::nullopt;
      }
      sizes.push_back(sym::evaluate(size, hint));
    }
  }
  return dims;
}

program::Program prepared(program::Program program, const build::Bytes& code) {
  const build::SharedObject library = code.empty() ? build::SharedObject() : build::SharedObject::load(code, program.name);
  return run::prepare_buffers(std::move(program),
                              [&](const std::string& name) { return reinterpret_cast<run::KernelFunction>(library.symbol(name)); });
}

void add_constants(op::ConstantPool& pool, const graph::Graph& graph) {
  for (auto& [key, tensor] : graph::constant_pool(graph)) pool.emplace(key, tensor);
}

}  // namespace

std::vector<build::Isa> parse_isas(std::string_view name) {
  if (name == "portable") {
    if (build::architecture_name() != "x86-64") return {build::Isa::Baseline};
    return {build::Isa::Baseline, build::Isa::Avx2, build::Isa::Avx512};
  }
  const std::optional<build::Isa> isa = build::parse_isa(name);
  return isa ? std::vector{*isa} : std::vector<build::Isa>();
}

std::string document_name(std::string_view stage, build::Isa isa) { return fmt::format("{}.{}", stage, build::isa_name(isa)); }

program::ArchiveContents make_archive(graph::Graph graph, const Options& options, const ArchiveOptions& archive, Report& report) {
  const double start = seconds_now();
  FL_REQUIRE(!archive.isas.empty(), "an archive needs code for at least one instruction set");
  program::ArchiveContents contents{.writer = fmt::format("fuseloom {}", base::kVersion)};
  if (archive.documents) {
    contents.documents.push_back({std::string(kImportedGraphDocument), graph::to_string(graph)});
    add_constants(contents.pool, graph);
  }
  Trace trace(trace_dir(options));
  run_pipeline_passes(graph, options, report, trace);
  graph::name_values(graph);
  if (archive.documents) {
    contents.documents.push_back({std::string(kGraphDocument), graph::to_string(graph)});
    add_constants(contents.pool, graph);
  }

  const std::string cache_dir = options.cache_dir ? *options.cache_dir : build::default_cache_dir();
  const build::DiskCache cache(cache_dir);
  const bool prepare = archive.prepare.value_or(archive.isas.size() == 1);
  report.from_cache = true;
  for (const build::Isa wanted : archive.isas) {
    LoweredTarget lowered = lower_for(graph, wanted, options, report, trace);
    const double before = seconds_now();
    if (!archive.input_names.empty()) lowered.program.input_names = archive.input_names;
    for (size_t i = 0; i < archive.output_names.size(); ++i) lowered.program.outputs.at(i).name = archive.output_names[i];
    program::ArchiveTarget target{.program = std::move(lowered.program)};
    program::ArchiveModule module{.architecture = std::string(build::architecture_name()), .isa = std::string(build::isa_name(lowered.isa))};
    if (!lowered.sources.empty()) {
      build::HostLibrary library = build_library(lowered.sources, lowered.source_kernels, lowered.isa, cache);
      report.from_cache = report.from_cache && library.statistics.hits > 0;
      module.bytes = std::move(library.bytes);
    }
    if (prepare && build::runs_here(lowered.isa)) target.program = prepared(std::move(target.program), module.bytes);
    if (std::optional<std::vector<Dims>> dims = typical_dims(target.program, options.hint)) target.entries.push_back(std::move(*dims));
    target.modules.push_back(std::move(module));
    contents.targets.push_back(std::move(target));
    if (archive.documents) {
      contents.documents.push_back({document_name("groups", lowered.isa), report.explanation});
      contents.documents.push_back({document_name("kernels", lowered.isa), report.kernels_text});
      contents.documents.push_back({document_name("source", lowered.isa), report.source});
    }
    report.build_seconds += seconds_now() - before;
  }
  trace.finish();
  report.total_seconds = seconds_now() - start;
  return contents;
}

Report write_archive(graph::Graph graph, const std::string& path, const Options& options, const ArchiveOptions& archive) {
  Report report;
  const program::ArchiveContents contents = make_archive(std::move(graph), options, archive, report);
  build::replace_file(path, [&](const build::AppendBytes& append) { program::write_archive(contents, append); });
  return report;
}

}  // namespace fuseloom::compile
