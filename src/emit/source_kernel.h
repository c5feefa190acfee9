// User-written kernels → one translation unit.
#pragma once
#include <span>
#include <string>

#include "op/source_kernel.h"

namespace fuseloom::emit {

// The user's text as it stands, between what it is promised: the types X0, Y0, ... of inputs and outputs, the constants and the
// numeric attributes by name. Each instance is in a namespace of its own.
std::string to_cpp(std::span<const op::SourceKernelInstance> kernels);

// What the compiler calls the file in its messages about the kernel of this op.
std::string source_name(const op::SourceKernelInstance& kernel);

}  // namespace fuseloom::emit
