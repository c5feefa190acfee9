#include "emit/cpp.h"

#include "emit/cpp_kernel.h"
#include "emit/cpp_prelude.h"

namespace fuseloom::emit {

std::string to_cpp(std::span<const kernel::Kernel* const> kernels, const CppTarget& target) {
  CppPrelude prelude(target);
  std::string functions;
  for (const kernel::Kernel* kernel : kernels) functions += "\n" + CppKernelWriter(*kernel, target, prelude).write();
  return prelude.text() + functions;
}

sym::Expr scratch_bytes(const kernel::Kernel& kernel, const CppTarget&) { return layout_scratch(kernel).bytes; }

sym::Expr core_extent(const kernel::Kernel& kernel) {
  for (const kernel::Statement& statement : kernel.body) {
    const auto* loop = std::get_if<kernel::Loop>(&statement.what);
    if (loop != nullptr && loop->binding == kernel::Binding::Core) return loop->end - loop->begin;
  }
  return 1;
}

}  // namespace fuseloom::emit
