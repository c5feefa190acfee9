#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "compile/archive.h"
#include "progress.h"
#include "verbs.h"

namespace fuseloom::tool {

int compile_archive(const CompileArguments& arguments) {
  Progress progress;
  progress.show("loading " + arguments.model.path);
  const Model model = load_model(arguments.model);
  FL_REQUIRE(model.archive == nullptr, "{}: is compiled already", arguments.model.path);
  compile::ArchiveOptions archive{.isas = compile::parse_isas(arguments.isa),
                                  .input_names = model.input_names,
                                  .output_names = model.output_names,
                                  .documents = !arguments.strip};
  FL_REQUIRE(!archive.isas.empty(), "--isa {}: expected portable, native, baseline, avx2 or avx512", arguments.isa);
  if (arguments.raw_weights) archive.prepare = false;
  compile::Options options = make_options(arguments.model, model, {});
  options.hint = given_dims(arguments.model);
  progress.show("compiling");
  const compile::Report report = compile::write_archive(model.graph.clone(), arguments.output, options, archive);
  const run::Archive written = run::Archive::open(arguments.output);
  progress.clear();

  nlohmann::ordered_json json = {{"model", arguments.model.path},
                                 {"output", arguments.output},
                                 {"bytes", std::filesystem::file_size(arguments.output)},
                                 {"tensor_bytes", written.reader().tensor_bytes()},
                                 {"targets", nlohmann::ordered_json::array()},
                                 {"documents", written.reader().documents()},
                                 {"kernels", report.kernels},
                                 {"from_cache", report.from_cache},
                                 {"seconds", report.total_seconds}};
  std::string targets;
  for (const program::ArchiveReader::TargetInfo& target : written.reader().targets()) {
    for (const program::ArchiveReader::ModuleInfo& module : target.modules) {
      json["targets"].push_back({{"architecture", module.architecture}, {"isa", module.isa}, {"bytes", module.bytes}});
      targets += fmt::format("{}{} {} ({} bytes)", targets.empty() ? "" : ", ", module.architecture, module.isa, module.bytes);
    }
  }
  if (arguments.model.json) {
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}: {} bytes, of which tensors {}; code for {}; {:.1f} s\n", arguments.output, json["bytes"].get<int64_t>(),
               written.reader().tensor_bytes(), targets, report.total_seconds);
  }
  return kOk;
}

}  // namespace fuseloom::tool
