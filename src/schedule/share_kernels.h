// One kernel for all launches that differ in sizes only.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "kernel/kernel.h"
#include "program/program.h"

namespace fuseloom::schedule {

// Layers of a network repeat one structure with other channel counts and other positions in the pyramid of sizes. Kernels
// of equal general form (kernel/visit.h) become one: what is the same constant in all of them stays a constant, everything
// else becomes a size argument, known within the range and divisibility that all of them share. A kernel that is alone
// keeps its constants; sizes that it would derive from the program's symbols become arguments too, computed once per shape. Nested programs included; launches with several variants are left as they are.
// The result: old names of kernels that are gone, and the names that took their place.
std::map<std::string, std::string> share_kernels(program::Program& program, std::vector<kernel::Kernel>& kernels);

}  // namespace fuseloom::schedule
