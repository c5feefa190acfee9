// Host program and kernels → C++17 that stands alone: no header of fuseloom, no library but the C library.
//
// One text holds, in this order: the C interface (include/fuseloom/abi.h, copied), the support code that programs are
// written with (model/support.inc), one namespace per instruction set with its kernels and its program, the implementation
// of the interface (model/interface.inc), and last, where its macros reach nothing of ours, the text of kernels that users
// wrote. Every program of the IR, nested ones included, becomes two
// functions:
//
//   plan_P   symbols from the sizes of the inputs, the checks on them, and the arena: what follows from sizes alone, kept
//            until other sizes come
//   run_P    the lines, in order, each under a comment with the graph's nodes that it computes
//
// The decisions are those of program/layout.h, which the interpreter follows too; so results have the same bits.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "emit/cpp.h"
#include "op/source_kernel.h"
#include "program/program.h"
#include "program/weights.h"

namespace fuseloom::emit {

// A program as it was lowered for one instruction set.
struct ModelVariant {
  std::string isa;                               // "baseline", "avx2", "avx512"
  const program::Program* program = nullptr;
  std::span<const kernel::Kernel> kernels;
  std::span<const op::SourceKernelInstance> source_kernels;   // user-written ones
  CppTarget target;
};

struct Model {
  std::string name;                              // a C identifier
  std::string compiler;                          // "fuseloom 0.1.0"
  std::vector<ModelVariant> variants;            // narrow to wide; of one graph
  const program::Weights* weights = nullptr;     // of all variants
  std::string embedded_weights;                  // the file that the assembler includes; "": given at run time
  std::map<std::string, int64_t> typical;        // sizes of symbols
};

// Native calls of the program and those nested in it, which generated code cannot make: "resize (Resize_12)". Empty: it
// can be written as C++.
std::vector<std::string> native_calls(const program::Program& program);

// One file.
std::string to_cpp(const Model& model);
// Several that compile side by side and are linked into one library: each variant, then the interface.
std::vector<std::string> to_cpp_units(const Model& model);

// A C identifier close to `text`.
std::string c_identifier(std::string_view text);

}  // namespace fuseloom::emit
