// Nodes of ops that bring a kernel of their own (op/source_kernel.h).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "op/source_kernel.h"
#include "program/program.h"
#include "schedule/lower.h"

namespace fuseloom::schedule {

// Which configuration was fastest, by tuning key.
using TunedConfigurations = std::map<std::string, size_t>;

// A node as a launch: the expressions of its kernel over the sizes of the graph.
struct SourceLaunch {
  std::vector<op::SourceKernelInstance> kernels;  // by variant
  std::vector<program::Variant> variants;         // .kernel is left open
  std::vector<sym::Expr> sizes;
  sym::Expr work, bytes;
  std::vector<size_t> mutated;                    // inputs that the kernel gets as copies
};
SourceLaunch lower_source_kernel(const graph::Graph& graph, graph::NodeId node, const SizeHint& hint, const TunedConfigurations& tuned);

// What measuring needs: the configurations among which nothing but time decides at the typical sizes.
struct TuningRequest {
  std::string key;
  std::vector<op::SourceKernelInstance> candidates;
  std::vector<size_t> configurations;             // of the candidates
  std::vector<int64_t> sizes;
  std::vector<std::pair<DType, Dims>> inputs, outputs;
  std::vector<int64_t> extents, scratch_bytes;    // by candidate
};
// Nothing when there is no choice, or when the typical sizes are not known.
std::optional<TuningRequest> tuning_request(const graph::Graph& graph, graph::NodeId node, const SizeHint& hint);

}  // namespace fuseloom::schedule
