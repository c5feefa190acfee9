// User-written kernels → one translation unit.
#pragma once
#include <set>
#include <span>
#include <string>

#include "op/source_kernel.h"

namespace fuseloom::emit {

// The user's text as it stands, between what it is promised: the types X0, Y0, ... of inputs and outputs, the constants and the
// numeric attributes by name. Each instance is in a namespace of its own.
std::string to_cpp(std::span<const op::SourceKernelInstance> kernels);

// The parts of it, for text that is made of more: `int64_t` must be known. `marks`: #line, so that the compiler's messages count
// from the first line of the user's text.
// What comes at file scope, without what is in `written` already.
std::string helper_text(std::span<const op::SourceKernelInstance> kernels, std::set<std::string>& written, bool marks);
// namespace NAME_ with the function run.
std::string namespace_text(const op::SourceKernelInstance& kernel, bool marks);

// What the compiler calls the file in its messages about the kernel of this op.
std::string source_name(const op::SourceKernelInstance& kernel);

}  // namespace fuseloom::emit
