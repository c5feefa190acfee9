// Any bytes as kernel text: a UserError, or a kernel that prints to text that parses to the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "fuseloom/error.h"
#include "kernel/kernel.h"
#include "op/op.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fuseloom;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string printed = kernel::to_string(kernel::parse_kernel(text, op::standard_ops()));
    if (kernel::to_string(kernel::parse_kernel(printed, op::standard_ops())) != printed) std::abort();
  } catch (const UserError&) {
  } catch (const Unsupported&) {
  }
  return 0;
}
