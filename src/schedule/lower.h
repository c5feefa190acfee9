// Group → kernels.
#pragma once
#include <array>
#include <map>
#include <string>
#include <vector>

#include "kernel/kernel.h"
#include "schedule/cuda_target.h"
#include "schedule/group.h"

namespace fuseloom::schedule {

struct CpuTarget {
  int32_t vector_bytes = 64;           // 16 baseline, 32 AVX2, 64 AVX-512
  int32_t vector_registers = 32;       // 16 baseline and AVX2, 32 AVX-512
};

// Typical sizes of symbols; a symbol without one counts as 64.
using SizeHint = std::map<std::string, int64_t>;
int64_t hinted(const sym::Expr& expr, const SizeHint& hint);

// What a kernel's Global buffer is bound to.
struct Argument {
  enum class Kind : uint8_t {
    Value,       // a value of the graph
    Prepared,    // written once when the program is loaded (packed weights)
    Partial,     // handed from one kernel of the group to the next
    Check,       // i64[2]: nonzero, and the index, when an index was outside (gather)
  };
  Kind kind = Kind::Value;
  ValueId value;
  int prepared = -1;                   // index into LoweredGroup::prepared
  int partial = -1;                    // index into LoweredGroup::partials
  friend bool operator==(const Argument&, const Argument&) = default;
};

// A kernel made under facts about the sizes. On the CPU there is one variant.
struct LoweredVariant {
  sym::Expr condition = 1;             // nonzero: the facts hold for these sizes
  kernel::Kernel kernel;
  sym::Expr extent = 1;                // CPU: of the Core loop
  std::array<sym::Expr, 3> grid = {1, 1, 1};   // CUDA: blocks, and the threads of one
  std::array<int32_t, 3> block = {1, 1, 1};
  std::string choice;                  // readable
};

struct LoweredKernel {
  std::vector<LoweredVariant> variants;        // in order of preference; the last one's condition is 1
  std::vector<Argument> arguments;     // of the Global buffers, in order; the same for all variants
  sym::Substitution sizes;             // kernel symbols that stand for expressions over the program's symbols
  sym::Expr work = 0;                  // estimated nanoseconds on one core
  sym::Expr bytes = 0;                 // fewest bytes to move
  std::string check_message;           // with a Check argument: what a nonzero check means
};

struct Prepared {
  op::TensorType type;
  LoweredKernel pack;                  // its last argument is the prepared buffer
};

// How the group was scheduled: the choices, as values that print.
struct Choice {
  std::string schedule;                // "pointwise", "transpose", "inner reduction", "outer reduction", "normalization", "contraction", ...
  std::string vector_axis;
  int32_t width = 1;
  int32_t unroll = 1;                  // vectors of a turn, where that is one choice for all loops
  std::string text() const;
};

struct LoweredGroup {
  std::vector<LoweredKernel> kernels;
  std::vector<Prepared> prepared;
  std::vector<op::TensorType> partials;
  Choice choice;
};

// The fewest bytes a group must move: what it reads and stores, once.
sym::Expr moved_bytes(const graph::Graph& graph, const Group& group);

// `hint` gives sizes to symbols where a choice depends on them; every size is right, some are faster.
LoweredGroup lower_group(const graph::Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint);
LoweredGroup lower_group(const graph::Graph& graph, const Group& group, const CudaTarget& target, const SizeHint& hint);

}  // namespace fuseloom::schedule
