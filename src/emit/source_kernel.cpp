#include "emit/source_kernel.h"

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

std::string helper_text(std::span<const op::SourceKernelInstance> kernels, std::set<std::string>& written, bool marks) {
  std::string text;
  for (const op::SourceKernelInstance& kernel : kernels) {
    const std::string& helpers = kernel.record->kernel->helpers;
    if (helpers.empty() || !written.insert(helpers).second) continue;
    text += marks ? fmt::format("#line 1 \"helpers of the {}\"\n", source_name(kernel)) : fmt::format("// helpers of the {}\n", source_name(kernel));
    text += helpers + "\n";
  }
  return text;
}

std::string namespace_text(const op::SourceKernelInstance& kernel, bool marks) {
  const op::SourceKernel& source = *kernel.record->kernel;
  const auto mark = [&](std::string_view before) {
    return marks ? fmt::format("#line 1 \"{}{}\"\n", before, source_name(kernel)) : fmt::format("// {}{}\n", before, source_name(kernel));
  };
  std::string text = mark("constants of the ") + fmt::format("namespace {}_ {{\n", kernel.name);
  for (size_t i = 0; i < kernel.inputs.size(); ++i) text += fmt::format("using X{} = {};\n", i, type_name(kernel.inputs[i]));
  for (size_t i = 0; i < kernel.outputs.size(); ++i) text += fmt::format("using Y{} = {};\n", i, type_name(kernel.outputs[i]));
  for (const auto& [name, value] : source.configurations[kernel.configuration].constants)
    text += fmt::format("[[maybe_unused]] constexpr int64_t {} = {};\n", name, value);
  for (const auto& [name, value] : kernel.attrs.all()) {
    if (const int64_t* integer = std::get_if<int64_t>(&value)) text += fmt::format("[[maybe_unused]] constexpr int64_t {} = {};\n", name, *integer);
    if (const double* real = std::get_if<double>(&value)) text += fmt::format("[[maybe_unused]] constexpr double {} = {};\n", name, base::format_double(*real));
  }
  return text + mark("") + source.source + "\n" + mark("end of the ") + "}\n";
}

std::string to_cpp(std::span<const op::SourceKernelInstance> kernels) {
  std::set<std::string> written;
  std::string text = "using int64_t = long;\n" + helper_text(kernels, written, true);
  for (const op::SourceKernelInstance& kernel : kernels) {
    text += fmt::format(
        "namespace {{\n{1}}}\n"
        "extern \"C\" void {0}(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end) {{\n"
        "  {0}_::run(buffers, sizes, scratch, begin, end);\n}}\n",
        kernel.name, namespace_text(kernel, true));
  }
  return text;
}

}  // namespace fuseloom::emit
