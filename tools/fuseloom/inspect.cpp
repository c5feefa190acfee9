#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "compile/archive.h"
#include "program/plan/csv.h"
#include "program/plan/solve.h"
#include "program/program.h"
#include "sym/evaluator.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else out += c;
  }
  return out;
}

// The temporaries of the outermost program at the sizes of the inputs, as a planning problem: a step is a line.
program::plan::Problem memory_problem(const program::Program& program, const std::map<std::string, int64_t>& sizes) {
  program::plan::Problem problem;
  const std::vector<program::LiveRange> ranges = program::live_ranges(program);
  const std::vector<char> planned = program::planned_buffers(program);
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const program::Buffer& buffer = program.buffers[b];
    if (buffer.kind != program::BufferKind::Temporary || planned[b] == 0 || ranges[b].first < 0) continue;
    const int64_t count = sym::evaluate(op::count_of(buffer.type.shape), sizes);
    problem.buffers.push_back({.id = buffer.name, .lower = ranges[b].first, .upper = ranges[b].last + 1, .size = dtype_bytes(buffer.type.dtype, count)});
  }
  return problem;
}

// Time runs to the right, memory upwards; one rectangle a buffer.
std::string draw(const program::plan::Problem& problem, const program::plan::Solution& solution) {
  constexpr double kWidth = 1200, kHeight = 600;
  int64_t end = 1;
  for (const program::plan::Buffer& buffer : problem.buffers) end = std::max(end, buffer.upper);
  const double x_scale = kWidth / static_cast<double>(end), y_scale = kHeight / static_cast<double>(std::max<int64_t>(1, solution.height));
  std::string svg = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\">\n", kWidth, kHeight);
  for (size_t i = 0; i < problem.buffers.size(); ++i) {
    const program::plan::Buffer& buffer = problem.buffers[i];
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"hsl({},60%,70%)\" stroke=\"#333\" stroke-width=\"0.5\">"
        "<title>{}: {} bytes at {}, lines {} to {}</title></rect>\n",
        static_cast<double>(buffer.lower) * x_scale, kHeight - static_cast<double>(solution.offsets[i] + buffer.size) * y_scale,
        static_cast<double>(buffer.upper - buffer.lower) * x_scale, static_cast<double>(buffer.size) * y_scale, i * 47 % 360, escape(buffer.id),
        buffer.size, solution.offsets[i], buffer.lower, buffer.upper - 1);
  }
  return svg + "</svg>\n";
}

compile::Compiled dry_run(const Model& model, const ModelArguments& arguments, std::span<const Tensor> inputs) {
  compile::Options options = make_options(arguments, model, inputs);
  options.dry_run = true;
  return compile::compile(model.graph.clone(), options);
}

// What the archive tells about how it was made, for the target that this machine takes.
compile::Compiled stages_of_archive(const Model& model, const ModelArguments& arguments) {
  compile::Compiled loaded = make_executable(model, arguments, {});
  const program::ArchiveReader& reader = model.archive->reader();
  const build::Isa isa = *build::parse_isa(model.archive->chosen_isa(archive_options(arguments)));
  compile::Report& report = loaded.report;
  report.program_text = program::to_string(loaded.executable->program());
  const std::string absent = "left out: the archive was compiled with --strip\n";
  report.graph_text = reader.document(compile::kGraphDocument).value_or(absent);
  report.explanation = reader.document(compile::document_name("groups", isa)).value_or(absent);
  report.kernels_text = reader.document(compile::document_name("kernels", isa)).value_or(absent);
  report.source = reader.document(compile::document_name("source", isa)).value_or(absent);
  return loaded;
}

}  // namespace

int inspect(const InspectArguments& arguments) {
  const Model model = load_model(arguments.model);
  const bool memory = arguments.stage == "memory";
  std::vector<Tensor> inputs;
  if (memory || !arguments.model.dims.empty() || !arguments.model.inputs.empty()) inputs = make_inputs(model, arguments.model);
  const compile::Compiled compiled = model.archive != nullptr ? stages_of_archive(model, arguments.model) : dry_run(model, arguments.model, inputs);
  const compile::Report& report = compiled.report;
  nlohmann::ordered_json json = {{"model", arguments.model.path}, {"stage", arguments.stage}, {"nodes", report.nodes},
                                 {"kernels", report.kernels}, {"distinct_kernels", report.distinct_kernels}};
  std::string text, picture;
  if (arguments.stage == "graph") text = report.graph_text;
  else if (arguments.stage == "groups") text = report.explanation;
  else if (arguments.stage == "kernels") text = report.kernels_text;
  else if (arguments.stage == "source") text = report.source;
  else if (arguments.stage == "program") text = report.program_text;
  else if (memory) {
    std::vector<Dims> dims;
    for (const Tensor& input : inputs) dims.push_back(input.dims());
    const run::Executable& executable = *compiled.executable;
    const program::plan::Problem problem = memory_problem(executable.program(), graph::bind_symbols(model.graph, inputs));
    const program::plan::Result solved = program::plan::solve(problem, {.mode = program::plan::Options::Mode::Quick});
    json["arena_bytes"] = executable.arena_bytes(dims);
    json["lower_bound_bytes"] = executable.arena_lower_bound(dims);
    text = program::plan::to_csv(problem, &solved.solution);
    picture = fmt::format("<p>arena {} bytes, lower bound {} bytes; drawn: a plan of {} bytes without in-place reuse</p>\n{}", json["arena_bytes"].dump(),
                          json["lower_bound_bytes"].dump(), solved.height, draw(problem, solved.solution));
    if (!arguments.model.json && arguments.html.empty())
      fmt::print(stderr, "arena {} bytes, lower bound {} bytes\n", json["arena_bytes"].dump(), json["lower_bound_bytes"].dump());
  } else {
    throw UserError(fmt::format("--stage {}: expected graph, groups, kernels, source, program or memory", arguments.stage));
  }
  if (!arguments.html.empty()) {
    std::ofstream file(arguments.html);
    file << "<!doctype html><meta charset=utf-8><title>" << escape(arguments.model.path) << ": " << arguments.stage << "</title>\n<h1>"
         << escape(arguments.model.path) << ": " << arguments.stage << "</h1>\n<p>" << report.nodes << " nodes in " << report.kernels
         << " kernels</p>\n" << picture << "<pre>" << escape(text) << "</pre>\n";
    file.close();
    FL_REQUIRE(file.good(), "--html {}: cannot be written", arguments.html);
    json["html"] = arguments.html;
  }
  if (arguments.model.json) {
    json["text"] = text;
    fmt::print("{}\n", json.dump());
  } else if (arguments.html.empty()) {
    fmt::print("{}", text);
  }
  return kOk;
}

}  // namespace fuseloom::tool
