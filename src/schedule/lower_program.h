// Graph → host program and kernels.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "program/program.h"
#include "schedule/lower.h"
#include "schedule/source_kernel.h"

namespace fuseloom::schedule {

struct LowerOptions {
  CpuTarget target;
  std::optional<CudaTarget> cuda;      // present: lower for CUDA instead
  GroupOptions grouping;               // library_products: launches of products say so, see program::MatrixProduct
  TunedConfigurations tuned;           // of user-written kernels
  SizeHint hint;                       // typical sizes: they steer choices and the memory plan, never results
};

struct LoweredProgram {
  program::Program program;
  std::vector<kernel::Kernel> kernels; // of the program and all nested ones, each once (B11)
  std::vector<op::SourceKernelInstance> source_kernels;   // user-written ones, each once
  Grouping grouping;                   // of the outermost graph
  std::string explanation;             // groups, choices and boundaries, nested graphs included (C9)
  size_t launches = 0;                 // Launch lines, nested programs included
  size_t products = 0;                 // of them, those that a library can do
  size_t nodes = 0;                    // nodes that would each be a kernel without fusion
};
// The launches' scratch_bytes are left at 0: they follow from how the kernels are written as text (emit), and the pipeline
// fills them in.
LoweredProgram lower_program(const graph::Graph& graph, const LowerOptions& options);

}  // namespace fuseloom::schedule
