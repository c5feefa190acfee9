// Kernels that come with an op record as C++ text: the user's own (docs/custom-ops.md).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuseloom/dtype.h"
#include "op/attrs.h"

namespace fuseloom::op {

struct OpRecord;

// One way to compile the kernel.
struct KernelConfiguration {
  std::map<std::string, int64_t> constants;  // `constexpr int64_t NAME = VALUE;` before the source
  std::string condition = "1";               // nonzero: it can be used for these sizes
};

// The text defines
//   void run(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end)
// which computes the part [begin, end) of its range; parts are computed by several threads at a time. buffers: inputs, then
// outputs, contiguous and 64-byte aligned as a rule; sizes: all of the inputs, then all of the outputs, in order.
//
// Expressions (text of sym/expr.h) are over x0_d1 (input 0, dimension 1), y0_d1 (output 0, dimension 1), the configuration's
// constants, and integer attributes.
struct SourceKernel {
  std::string helpers;                       // at file scope: includes, functions
  std::string source;
  // The first whose condition holds is used; the last one's is "1". Among neighbours with the same condition the one that
  // was fastest at the typical sizes, or the first.
  std::vector<KernelConfiguration> configurations = {{}};
  std::string extent = "1";
  std::string scratch_bytes = "0";           // per thread
  std::string work;                          // estimated nanoseconds of all of it on one core; "": a nanosecond an output element
  // What the best configuration depends on, as expressions; empty: all sizes of the inputs.
  std::vector<std::string> key;
  // Inputs that the kernel writes to; it gets copies of them, values never change. Absent: nothing is known, so all of them.
  std::optional<std::vector<size_t>> mutates;
};

// The kernel for some element types and attributes, in one configuration.
struct SourceKernelInstance {
  std::string name;                          // of its function
  const OpRecord* record = nullptr;
  size_t configuration = 0;
  std::vector<DType> inputs, outputs;
  Attrs attrs;
};

// Throws UserError for expressions that do not parse, names that are none, configurations that cannot be told apart.
void check_source_kernel(const OpRecord& record);

}  // namespace fuseloom::op
