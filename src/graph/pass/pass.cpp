#include "graph/pass/pass.h"

#include <algorithm>

#include "fuseloom/error.h"
#include "graph/verify.h"

namespace fuseloom::graph {

const std::vector<NamedPass>& all_passes() {
  static const std::vector<NamedPass> passes = {
      {"remove_dead_nodes", remove_dead_nodes},
      {"merge_common_subexpressions", merge_common_subexpressions},
      {"fold_constants", [](Graph& graph) { return fold_constants(graph); }},
      {"propagate_sizes", propagate_sizes},
      {"inline_branches", inline_branches},
      {"canonicalize", canonicalize},
      {"recover_patterns", recover_patterns},
      {"decompose", [](Graph& graph) { return decompose(graph); }},
  };
  return passes;
}

std::vector<PassReport> run_passes(Graph& graph, std::span<const NamedPass> passes, const PassRunnerOptions& options) {
  std::vector<PassReport> reports;
  for (const NamedPass& pass : passes) {
    if (std::find(options.skip.begin(), options.skip.end(), pass.name) != options.skip.end()) continue;
    if (options.before) options.before(pass.name, graph);
    const auto start = std::chrono::steady_clock::now();
    const bool changed = pass.run(graph);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    reports.push_back({.name = pass.name, .changed = changed, .seconds = elapsed.count()});
    if (changed && options.verify) {
      try {
        verify(graph);
      } catch (const InternalError& error) {
        throw InternalError("after the pass " + pass.name + ": " + error.what());
      }
    }
    if (options.after) options.after(pass.name, graph);
    if (pass.name == options.stop_after) break;
  }
  return reports;
}

}  // namespace fuseloom::graph
