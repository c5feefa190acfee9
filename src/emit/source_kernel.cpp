#include "emit/source_kernel.h"

#include <set>

#include "base/check.h"
#include "base/lexer.h"
#include "op/op.h"

namespace fuseloom::emit {

namespace {

// 16-bit floats are their bits: C++17 has no type for them.
std::string_view type_name(DType dtype) {
  switch (dtype) {
    case DType::Bool: return "bool";
    case DType::I8: return "signed char";
    case DType::I16: return "short";
    case DType::I32: return "int";
    case DType::I64: return "int64_t";
    case DType::U8: return "unsigned char";
    case DType::U16:
    case DType::F16:
    case DType::BF16: return "unsigned short";
    case DType::U32: return "unsigned int";
    case DType::U64: return "unsigned long";
    case DType::F32: return "float";
    case DType::F64: return "double";
    case DType::C64: return "float _Complex";
    case DType::C128: return "double _Complex";
  }
  return "void";
}

}  // namespace

std::string source_name(const op::SourceKernelInstance& kernel) { return "kernel of op " + kernel.record->name; }

std::string to_cpp(std::span<const op::SourceKernelInstance> kernels) {
  std::string text = "using int64_t = long;\n";
  std::set<std::string> helpers;
  for (const op::SourceKernelInstance& kernel : kernels) {
    const std::string& helper = kernel.record->kernel->helpers;
    if (helper.empty() || !helpers.insert(helper).second) continue;
    text += fmt::format("#line 1 \"helpers of the {}\"\n{}\n", source_name(kernel), helper);
  }
  for (const op::SourceKernelInstance& kernel : kernels) {
    const op::SourceKernel& source = *kernel.record->kernel;
    text += fmt::format("#line 1 \"constants of the {}\"\nnamespace {{\nnamespace {}_ {{\n", source_name(kernel), kernel.name);
    for (size_t i = 0; i < kernel.inputs.size(); ++i) text += fmt::format("using X{} = {};\n", i, type_name(kernel.inputs[i]));
    for (size_t i = 0; i < kernel.outputs.size(); ++i) text += fmt::format("using Y{} = {};\n", i, type_name(kernel.outputs[i]));
    for (const auto& [name, value] : source.configurations[kernel.configuration].constants)
      text += fmt::format("[[maybe_unused]] constexpr int64_t {} = {};\n", name, value);
    for (const auto& [name, value] : kernel.attrs.all()) {
      if (const int64_t* integer = std::get_if<int64_t>(&value)) text += fmt::format("[[maybe_unused]] constexpr int64_t {} = {};\n", name, *integer);
      if (const double* real = std::get_if<double>(&value)) text += fmt::format("[[maybe_unused]] constexpr double {} = {};\n", name, base::format_double(*real));
    }
    text += fmt::format("#line 1 \"{}\"\n{}\n#line 1 \"end of the {}\"\n}}\n}}\n", source_name(kernel), source.source, source_name(kernel));
    text += fmt::format(
        "extern \"C\" void {0}(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end) {{\n"
        "  {0}_::run(buffers, sizes, scratch, begin, end);\n}}\n",
        kernel.name);
  }
  return text;
}

}  // namespace fuseloom::emit
