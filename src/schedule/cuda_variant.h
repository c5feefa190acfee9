// What the CUDA schedules share: the facts that a variant of a kernel is made under, the values it loads ahead of their use,
// and how variants become one kernel of a group.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "schedule/cuda_cost.h"
#include "schedule/loop_builder.h"
#include "schedule/lower.h"
#include "schedule/phase_plan.h"
#include "schedule/row_column_pair.h"

namespace fuseloom::schedule {

// A group on its way to CUDA kernels.
struct CudaGroup {
  const graph::Graph& graph;
  const Group& group;
  const CudaTarget& target;
  const SizeHint& hint;
  std::vector<MemoryAccess> accesses;

  CudaGroup(const graph::Graph& graph, const Group& group, const CudaTarget& target, const SizeHint& hint)
      : graph(graph), group(group), target(target), hint(hint), accesses(accesses_of(graph, group)) {}
  // A typical size; without a hint for one of its symbols, `otherwise`.
  int64_t typical(const sym::Expr& expr, int64_t otherwise) const;
};

// Facts about sizes, and the condition under which they hold. The functions that add one return false when it cannot hold
// or cannot be said as a fact about symbols: then the variant is not to be made.
class VariantFacts {
 public:
  explicit VariantFacts(const sym::Facts& known) : facts_(known) {}
  bool at_most(const sym::Expr& expr, int64_t limit);
  bool at_least(const sym::Expr& expr, int64_t limit);
  bool divisible(const sym::Expr& expr, int64_t by);
  // Every size symbol of the group's loops fits 32 bits, so that what is computed of them one by one does too.
  bool small_symbols(const CudaGroup& group);
  const sym::Expr& condition() const { return condition_; }
  const sym::Facts& facts() const { return facts_; }

 private:
  sym::Expr condition_ = 1;
  sym::Facts facts_;
};
// Adds what makes the accesses along a loop axis start at multiples of `lanes`: row pitches and offsets that are multiples.
// False when the axis' own extent cannot be one; what else cannot be is accessed element by element.
bool align(const CudaGroup& group, const AxisPlan& plan, const LoopAxis& along, int32_t lanes, VariantFacts& facts);

// Grids and block indices are 32-bit; sizes up to this keep index arithmetic there, with room for a last tile.
inline constexpr int64_t kSmallSize = (int64_t{1} << 31) - (int64_t{1} << 20);

// The kernels of variants as one: same arguments, all symbols. Variants after the first unconditional one are dropped.
class VariantList {
 public:
  void add(const sym::Expr& condition, LoweredKernel kernel, std::string choice);
  bool complete() const { return !kernel_.variants.empty() && kernel_.variants.back().condition.is_const(1); }
  LoweredKernel take(std::string_view kind);

 private:
  LoweredKernel kernel_;
};

// Under the condition another kernel has done the work: nothing is launched.
void done_elsewhere(LoweredKernel& kernel, const sym::Expr& condition);

// Elements of a thread's vector along an axis: 16 bytes of the narrowest type that lies along it, 32 of the widest.
int32_t vector_elements(const CudaGroup& group, const AxisPlan& plan, const LoopAxis* along);

// An input that is loaded ahead of its use: a load for each of a thread's vectors is under way before the first is used. An
// input that is read at several positions is one for each.
struct StagedInput {
  ValueId value;
  const Use* use;
  int32_t bytes;                       // of an element
  int32_t number;                      // among the uses of the value
  std::string name(std::string_view prefix) const;
};
// Those whose position depends on one of the axes.
std::vector<StagedInput> stageable_inputs(const CudaGroup& group, const std::set<std::string>& axes);

// Rough instructions per element.
int32_t instructions_of(const CudaGroup& group);

// Names the group's axes behind `row` (a number over the axes' product), the last one varying fastest.
void define_digits(LoopBuilder& build, const std::vector<const LoopAxis*>& axes, const sym::Expr& row);
sym::Expr extent_of(const std::vector<const LoopAxis*>& axes);
// The value of each axis behind `position`, substituted wherever the axis is used.
void set_digits(LoopBuilder& build, const std::vector<const LoopAxis*>& axes, const sym::Expr& position);

// All arguments in one order, whatever the body reads first.
void declare_arguments(const CudaGroup& group, LoopBuilder& build);

// The group's contraction at its own position, summed by the thread that asks: one loop over each of its axes.
void contract(LoopBuilder& build, const CudaGroup& group);

// ---- one function per schedule; each returns all variants
LoweredGroup lower_cuda_pointwise(const CudaGroup& group);
LoweredGroup lower_cuda_transpose(const CudaGroup& group, const std::string& across);
LoweredGroup lower_cuda_rows(const CudaGroup& group);
LoweredGroup lower_cuda_pair(const CudaGroup& rows, const RowColumnPair& pair);
// `elsewhere`: under its condition another kernel leaves so many parts for the second kernel to combine.
struct PartsElsewhere {
  sym::Expr condition, count;
};
LoweredGroup lower_cuda_columns(const CudaGroup& group, const std::optional<PartsElsewhere>& elsewhere = std::nullopt);
LoweredGroup lower_cuda_contraction(const CudaGroup& group);
LoweredGroup lower_cuda_scan(const CudaGroup& group);

}  // namespace fuseloom::schedule
