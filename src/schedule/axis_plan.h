// The loops a group really runs: its axes with neighbours merged wherever every access allows it.
//
// Axes i and j (j next inside i, extent n) merge into one when each access moves n times as far along i as along j: then
// the pair is one axis of i's extent times n. Merging makes rows long and index arithmetic short.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "schedule/group.h"

namespace fuseloom::schedule {

struct MemoryAccess {
  ValueId value;
  sym::Expr address;                   // in elements, over the group's axes
  std::vector<sym::Expr> guards;
  bool store = false;
};
// Every load and store of the group.
std::vector<MemoryAccess> accesses_of(const graph::Graph& graph, const Group& group);

struct LoopAxis {
  std::string name;
  sym::Expr extent;
  bool reduced = false;
  std::vector<std::string> members;    // the group's axes, outermost first
};

class AxisPlan {
 public:
  enum class Merge : uint8_t { On, Off };
  AxisPlan(const graph::Graph& graph, const Group& group, const std::vector<MemoryAccess>& accesses, Merge merging = Merge::On);
  // Under more facts about the sizes than the graph has.
  AxisPlan(const graph::Graph& graph, const Group& group, const std::vector<MemoryAccess>& accesses, Merge merging, sym::Facts sizes);

  const std::vector<LoopAxis>& axes() const { return axes_; }
  // An expression over the group's axes as one over the loop axes, simplified under facts().
  sym::Expr rewrite(const sym::Expr& expr) const;
  // Sizes are >= 0, loop axes lie in their extents.
  const sym::Facts& facts() const { return facts_; }
  // What is known of the sizes alone.
  const sym::Facts& size_facts() const { return sizes_; }
  // How far an address moves along a loop axis: a stride, or nothing when it is not affine there.
  std::optional<sym::Expr> stride(const sym::Expr& address, const LoopAxis& axis) const;

 private:
  std::vector<LoopAxis> axes_;
  std::map<std::string, sym::Expr> extents_;   // of the group's axes
  sym::Facts sizes_, facts_;
  mutable std::map<sym::Expr, sym::Expr> rewritten_;
};

}  // namespace fuseloom::schedule
