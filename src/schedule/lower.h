// Group → kernels.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "kernel/kernel.h"
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
    Check,       // i64[2]: nonzero, and the index, when an index was outside (gather)
  };
  Kind kind = Kind::Value;
  ValueId value;
  int prepared = -1;                   // index into LoweredGroup::prepared
};

struct LoweredKernel {
  kernel::Kernel kernel;
  std::vector<Argument> arguments;     // of the Global buffers, in order
  sym::Expr extent = 1;                // of the Core loop
  sym::Expr work = 0;                  // estimated nanoseconds on one core
  sym::Expr bytes = 0;                 // fewest bytes to move
};

struct Prepared {
  op::TensorType type;
  LoweredKernel pack;                  // its last argument is the prepared buffer
};

// How the group was scheduled: the choices, as values that print.
struct Choice {
  std::string schedule;                // "pointwise", "transpose", "inner reduction", "outer reduction", "normalization", "contraction", ...
  std::string vector_axis;
  int32_t width = 1, unroll = 1;
  std::string text() const;
};

struct LoweredGroup {
  std::vector<LoweredKernel> kernels;
  std::vector<Prepared> prepared;
  Choice choice;
  std::string check_message;           // with a Check argument: what a nonzero check means
};

// `hint` gives sizes to symbols where a choice depends on them; every size is right, some are faster.
LoweredGroup lower_group(const graph::Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint);

}  // namespace fuseloom::schedule
