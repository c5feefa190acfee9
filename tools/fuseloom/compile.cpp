#include <chrono>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "build/file.h"
#include "compile/aot.h"
#include "emit/program_cpp.h"
#include "progress.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

std::vector<build::Isa> isas_of(const std::string& name) {
  if (name == "portable") return {};
  const std::optional<build::Isa> isa = build::parse_isa(name);
  FL_REQUIRE(isa.has_value(), "--isa {}: expected portable, native, baseline, avx2 or avx512", name);
  return {*isa};
}

}  // namespace

int compile_model(const CompileArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  const std::filesystem::path output(arguments.output);
  const std::string extension = output.extension().string();
  if (extension == ".floom") return compile_archive(arguments);
  FL_REQUIRE(extension == ".so" || extension == ".cpp", "-o {}: expected a name that ends in .floom, .so or .cpp", arguments.output);
  FL_REQUIRE(arguments.weights == "embed" || arguments.weights == "file", "--weights {}: expected embed or file", arguments.weights);

  Progress progress;
  progress.show("loading " + arguments.model.path);
  const Model model = load_model(arguments.model);
  FL_REQUIRE(model.archive == nullptr, "{}: is compiled already", arguments.model.path);
  ModelArguments pipeline_arguments = arguments.model;
  pipeline_arguments.isa = "native";   // --isa names the variants here
  compile::Options options = make_options(pipeline_arguments, model, {});
  options.hint = given_dims(arguments.model);
  compile::AotOptions aot{.name = arguments.name.empty() ? output.stem().string() : arguments.name,
                          .isas = isas_of(arguments.isa),
                          .weights = arguments.weights == "embed" ? compile::WeightsPlace::Embedded : compile::WeightsPlace::File,
                          .observable = arguments.observable};
  aot.input_names = model.input_names;
  aot.output_names = model.output_names;
  aot.progress = [&](const std::string& step) { progress.show(step); };

  const std::filesystem::path weights_path = std::filesystem::path(output).replace_extension(".weights");
  compile::AotReport report;
  size_t bytes = 0, weights_bytes = 0, weights_beside = 0;
  if (extension == ".so") {
    const compile::AotLibrary library = compile::compile_to_library(model.graph.clone(), options, aot);
    build::write_file(output.string(), library.bytes);
    if (!library.weights.empty()) build::write_file(weights_path.string(), library.weights);
    report = library.report;
    bytes = library.bytes.size();
    weights_bytes = static_cast<size_t>(library.weights_bytes);
    weights_beside = library.weights.size();
  } else {
    const compile::AotSource source = compile::compile_to_source(model.graph.clone(), options, aot, weights_path.filename().string());
    build::write_file(output.string(), build::as_bytes(source.text));
    if (!source.weights.empty()) build::write_file(weights_path.string(), source.weights);
    report = source.report;
    bytes = source.text.size();
    weights_bytes = weights_beside = source.weights.size();
  }
  progress.clear();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::string kernels;
  for (size_t i = 0; i < report.isas.size(); ++i) kernels += fmt::format("{}{} for {}", i == 0 ? "" : ", ", report.kernels[i], report.isas[i]);
  if (arguments.model.json) {
    nlohmann::ordered_json json = {{"model", arguments.model.path}, {"output", arguments.output}, {"name", emit::c_identifier(aot.name)}, {"bytes", bytes},
                                   {"weights_bytes", weights_bytes}, {"weights_file", weights_beside > 0 ? weights_path.string() : ""}, {"isas", report.isas},
                                   {"kernels", report.kernels}, {"passes_seconds", report.passes_seconds}, {"lower_seconds", report.lower_seconds},
                                   {"emit_seconds", report.emit_seconds}, {"build_seconds", report.build_seconds}, {"seconds", seconds}};
    fmt::print("{}\n", json.dump());
    return kOk;
  }
  fmt::print("{}: {} bytes, of which weights {}; kernels: {}; {:.1f} s\n", arguments.output, bytes, extension == ".so" ? weights_bytes - weights_beside : 0, kernels, seconds);
  if (weights_beside > 0) fmt::print("{}: {} bytes of weights\n", weights_path.string(), weights_beside);
  return kOk;
}

}  // namespace fuseloom::tool
