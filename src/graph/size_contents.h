// The contents of small integer tensors as expressions. Exporters compute sizes by tensor arithmetic (Shape, Gather, Mul,
// Concat, Reshape, ...); this analysis runs that arithmetic on expressions instead of numbers. The ONNX importer and
// propagate_sizes share it.
//
// A content is exact as long as no intermediate size leaves its element type (32 bits, or the 2^24 up to which f32 counts),
// which no shape computation does on purpose. Types below 32 bits are followed as constants only.
// Data movement of every kind (views, gathers, scatters) is not modelled op by op: its reference runs on the numbers of the
// elements, and the contents are then moved as it moved those.
#pragma once
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace fuseloom::graph {

// A number that a tensor of sizes can hold: an integer expression over a positive constant. Floats between a cast to float and
// back (n * 0.5, floored) need the denominator; integers and bools have 1.
struct Ratio {
  sym::Expr numerator;
  int64_t denominator = 1;
  friend bool operator==(const Ratio&, const Ratio&) = default;
};

// Computes on demand and remembers. The graph may grow meanwhile; after any other change of it make a new one.
class SizeContents {
 public:
  static constexpr int64_t kMaxElements = 256;
  explicit SizeContents(const Graph& graph) : graph_(graph) {}

  // The elements of a tensor of integers or bools (0 and 1) in row-major order, or nothing when one is unknown.
  std::optional<std::vector<sym::Expr>> of(ValueId id);
  // The same for every type that is followed; of floats, those that stay exact in arithmetic with sizes.
  std::optional<std::vector<Ratio>> ratios_of(ValueId id);

 private:
  using Contents = std::optional<std::vector<Ratio>>;
  bool can_know(ValueId id) const;
  const Contents& known(ValueId id) const { return memo_.at(id.index); }
  Contents compute(ValueId id) const;
  Contents compute_elementwise(const Node& node) const;
  Contents compute_movement(const Node& node) const;
  Contents compute_reduction(const Node& node) const;
  Ratio simplified(const Ratio& ratio) const;

  const Graph& graph_;
  std::unordered_map<int32_t, Contents> memo_;
};

// One-off. Repeated questions should share a SizeContents.
std::optional<std::vector<sym::Expr>> known_contents(const Graph& graph, ValueId id);

}  // namespace fuseloom::graph
