// Every kernel and every result against the oracle.
//
// 1. The passes run once. In the graph they leave, every value gets a name, and the program's buffers take these names.
// 2. The oracle evaluates the graph as imported: the results are compared with its results, so that a wrong pass shows.
// 3. The oracle evaluates the graph after the passes, node by node: each value that a kernel stored is compared with the
//    node that the oracle computed it by. The first one that differs is named.
#include <cmath>
#include <deque>
#include <map>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "compare.h"
#include "compile/archive.h"
#include "graph/name_values.h"
#include "graph/text.h"
#include "progress.h"
#include "program/program.h"
#include "verbs.h"

namespace fuseloom::tool {

namespace {

using graph::Graph;
using graph::NodeId;
using graph::ValueId;

void run_passes(Graph& graph) {
  const std::vector<graph::NamedPass> passes = compile::pipeline_passes();
  graph::run_passes(graph, passes);
}

std::vector<std::string> names_of(std::span<const graph::NamedPass> passes) {
  std::vector<std::string> names;
  for (const graph::NamedPass& pass : passes) names.push_back(pass.name);
  return names;
}

// A compiled program and what it has to agree with.
struct Subject {
  Graph imported, graph;                   // graph: after the passes, with the names that the buffers have
  compile::Compiled compiled;
};

Subject subject_of_model(const Model& model, const ModelArguments& arguments, std::span<const Tensor> inputs) {
  Graph graph = model.graph.clone();
  run_passes(graph);
  graph::name_values(graph);
  compile::Options options = make_options(arguments, model, inputs);
  options.skip_passes = names_of(compile::pipeline_passes());
  compile::Compiled compiled = compile::compile(graph.clone(), options);
  return {model.graph.clone(), std::move(graph), std::move(compiled)};
}

Subject subject_of_archive(const Model& model, const ModelArguments& arguments, std::span<const Tensor> inputs) {
  const program::ArchiveReader& reader = model.archive->reader();
  reader.check_everything();
  const op::ConstantPool pool = reader.pool();
  const auto graph = [&](std::string_view document) {
    const std::optional<std::string> text = reader.document(document);
    FL_REQUIRE(text.has_value(), "{}: holds no graph to compare with: it was compiled with --strip", arguments.path);
    return graph::parse_graph(*text, op::standard_ops(), fmt::format("{}:{}", arguments.path, document), pool);
  };
  Graph imported = graph(compile::kImportedGraphDocument);
  compile::Compiled compiled = make_executable(model, arguments, inputs);
  Graph passed = graph(compile::kGraphDocument);
  compiled.report.nodes = passed.nodes().size();
  return {std::move(imported), std::move(passed), std::move(compiled)};
}

struct Verification {
  bool ok = true;
  double max_abs = 0, max_rel = 0;
  size_t compared = 0;
  std::string first_difference;
};

void note(Verification& total, const Difference& difference, const std::string& what) {
  if (std::isfinite(difference.max_abs)) {
    total.max_abs = std::max(total.max_abs, difference.max_abs);
    total.max_rel = std::max(total.max_rel, difference.max_rel);
  }
  if (difference.ok) return;
  total.ok = false;
  if (total.first_difference.empty()) total.first_difference = what + ": " + difference.words;
}

}  // namespace

int verify(const ModelArguments& arguments) {
  Progress progress;
  progress.show("loading " + arguments.path);
  const Model model = load_model(arguments);
  const std::vector<Tensor> inputs = make_inputs(model, arguments);
  progress.show("compiling");
  const Subject subject = model.archive != nullptr ? subject_of_archive(model, arguments, inputs) : subject_of_model(model, arguments, inputs);
  const Graph& graph = subject.graph;
  const compile::Compiled& compiled = subject.compiled;

  progress.show("running");
  std::map<std::string, std::deque<Tensor>> stored;   // by name: what the runs of its line wrote, first to last
  const run::LineHook keep = [&](const program::Program& program, size_t line, std::span<const program::BufferId> buffers,
                                 std::span<const Tensor> written) {
    if (program.lines[line].nodes.empty()) return;
    for (size_t i = 0; i < buffers.size(); ++i) {
      stored[program.buffers[static_cast<size_t>(buffers[i].index)].name].push_back(written[i].contiguous_copy());
    }
  };
  compiled.executable->set_line_hook(keep);
  const std::vector<Tensor> outputs = compiled.executable->run(inputs);
  compiled.executable->set_line_hook({});

  Verification kernels, results;
  int64_t done = 0;
  graph::EvaluateOptions watch;
  watch.after_node = [&](const Graph& at, NodeId id, std::span<const Tensor> computed) {
    if (&at == &graph) progress.show(fmt::format("oracle: node {} of {}", ++done, graph.nodes().size()));
    const graph::Node& node = at.node(id);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const auto found = stored.find(at.value(node.outputs[i]).name);
      if (found == stored.end() || found->second.empty() || !computed[i].valid()) continue;
      ++kernels.compared;
      note(kernels, compare(found->second.front(), computed[i], tolerance_of(computed[i].dtype())),
           fmt::format("{}, value %{}", at.describe(id), at.value(node.outputs[i]).name));
      found->second.pop_front();
    }
  };
  const std::vector<Tensor> after_passes = graph::evaluate(graph, inputs, watch);
  progress.show("oracle: the graph as imported");
  const std::vector<Tensor> expected = graph::evaluate(subject.imported, inputs);
  progress.clear();
  FL_CHECK(outputs.size() == expected.size(), "the program gives {} results of {}", outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    ++results.compared;
    const Tolerance tolerance = tolerance_of(expected[i].dtype());
    const bool pass_to_blame = !compare(after_passes[i], expected[i], tolerance).ok;
    note(results, compare(outputs[i], expected[i], tolerance),
         fmt::format("output '{}'{}", model.output_names[i], pass_to_blame ? " (already after the graph passes)" : ""));
  }

  // A kernel beyond its own tolerance whose effect on the results is not is told, and is no failure: the tolerance of an
  // intermediate value says nothing about what the model makes of it.
  const bool ok = results.ok;
  const std::string first = !kernels.first_difference.empty() ? kernels.first_difference : results.first_difference;
  if (arguments.json) {
    nlohmann::ordered_json json = {{"ok", ok},
                                   {"max_abs", results.max_abs},
                                   {"max_rel", results.max_rel},
                                   {"kernels", compiled.report.kernels},
                                   {"nodes", compiled.report.nodes},
                                   {"values_compared", kernels.compared},
                                   {"values_max_rel", kernels.max_rel},
                                   {"first_difference", nullptr}};
    if (!first.empty()) json["first_difference"] = first;
    if (!results.first_difference.empty()) json["first_wrong_output"] = results.first_difference;
    fmt::print("{}\n", json.dump());
  } else {
    fmt::print("{}: {} outputs and {} stored values of {} kernels ({} nodes) compared\n", ok ? "ok" : "MISMATCH", results.compared,
               kernels.compared, compiled.report.kernels, compiled.report.nodes);
    fmt::print("greatest error of the outputs: {:.3g} absolute, {:.3g} relative; of stored values: {:.3g} relative\n", results.max_abs,
               results.max_rel, kernels.max_rel);
    if (!results.first_difference.empty()) fmt::print("{}\n", results.first_difference);
    if (!kernels.first_difference.empty()) fmt::print("first value beyond its tolerance: {}\n", kernels.first_difference);
  }
  return ok ? kOk : kMismatch;
}

}  // namespace fuseloom::tool
