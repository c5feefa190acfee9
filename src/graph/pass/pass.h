// The graph passes. Each is a free function that returns whether it changed the graph; the runner names, times, verifies,
// dumps and skips them. Order and meaning of the pipeline: compile/pipeline.cpp.
#pragma once
#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace fuseloom::graph {

// Removes nodes whose outputs are unused (and which define no symbol that is used).
bool remove_dead_nodes(Graph& graph);
// One node for equal nodes (same op, attributes, inputs). Random ops are equal when seed and offset are.
bool merge_common_subexpressions(Graph& graph);
// Evaluates nodes whose inputs are all constants, up to `max_bytes` of result; sym_value of constants becomes a constant.
bool fold_constants(Graph& graph, int64_t max_bytes = int64_t{1} << 26);
// Propagates the contents of small integer tensors as expressions (shape arithmetic of exporters): a tensor whose elements
// are known expressions becomes sym_value; reshape/expand/slice/... whose sizes become known are refined; a node that reads
// sizes from run-time tensors through bind_symbols is replaced when the contents turn out to be known.
bool propagate_sizes(Graph& graph);
// Replaces an `if` with a constant condition by its branch.
bool inline_branches(Graph& graph);
// Local identities that hold bit for bit (docs/numerics.md): x+0 only where it is exact, x*1, double transpose, reshape of
// reshape, slice of everything, cast to the same type, widening casts back and forth, select with a constant condition, ...
bool canonicalize(Graph& graph);
// Replaces Composite nodes (and those whose record has `decompose`) by their decomposition, except the names in `keep`.
bool decompose(Graph& graph, std::span<const std::string> keep = {});
// Finds the patterns exporters left: LayerNorm, RMSNorm, GELU (erf and tanh), SiLU, HardSwish, Softmax, attention.
// For schedules that have a kernel for the whole (attention, normalization on CUDA).
bool recover_patterns(Graph& graph);

struct NamedPass {
  std::string name;
  std::function<bool(Graph&)> run;
};
// Every pass by name, for fuseloom-opt and the pipeline.
const std::vector<NamedPass>& all_passes();

struct PassReport {
  std::string name;
  bool changed = false;
  double seconds = 0;
};
struct PassRunnerOptions {
  bool verify = true;                                                    // after every pass that changed the graph
  std::vector<std::string> skip;                                         // names of passes not to run
  std::string stop_after;                                                // name of the last pass to run
  std::function<void(const std::string& name, const Graph&)> before, after;   // callbacks and dumps (A18)
};
std::vector<PassReport> run_passes(Graph& graph, std::span<const NamedPass> passes, const PassRunnerOptions& options = {});

}  // namespace fuseloom::graph
