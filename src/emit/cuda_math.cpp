// Functions of the prelude as a CUDA device has them. Those of f32 are NVRTC's own (NVIDIA's CUDA C++ programming guide
// bounds their errors: at most 2 ulp for those used here).
#include "emit/cpp_function.h"

namespace fuseloom::emit {

namespace {

struct DeviceBody {
  std::string_view name;
  DType dtype;
  std::string_view body;
};

constexpr DeviceBody kBodies[] = {
    {"exp", DType::F32, "  return expf(a);\n"},
    {"expm1", DType::F32, "  return expm1f(a);\n"},
    {"log", DType::F32, "  return logf(a);\n"},
    {"log1p", DType::F32, "  return log1pf(a);\n"},
    {"tanh", DType::F32, "  return tanhf(a);\n"},
    {"erf", DType::F32, "  return erff(a);\n"},
    {"sin", DType::F32, "  return sinf(a);\n"},
    {"cos", DType::F32, "  return cosf(a);\n"},
    {"exp", DType::F64, "  return exp(a);\n"},
    {"log", DType::F64, "  return log(a);\n"},
    {"tanh", DType::F64, "  return tanh(a);\n"},
    // One instruction each. max and min: a NaN wins, and +0 is above -0.
    {"max", DType::F32, "  f32 y;\n  asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(y) : \"f\"(a), \"f\"(b));\n  return y;\n"},
    {"min", DType::F32, "  f32 y;\n  asm(\"min.NaN.f32 %0, %1, %2;\" : \"=f\"(y) : \"f\"(a), \"f\"(b));\n  return y;\n"},
    {"widen", DType::F16, "  f32 y;\n  asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(y) : \"h\"(a));\n  return y;\n"},
    {"narrow_f16", DType::F32, "  u16 y;\n  asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(y) : \"f\"(a));\n  return y;\n"},
    {"narrow_bf16", DType::F32, "  u16 y;\n  asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(y) : \"f\"(a));\n  return y;\n"},
};

}  // namespace

std::string_view device_body(std::string_view name, DType dtype) {
  for (const DeviceBody& each : kBodies) {
    if (each.name == name && each.dtype == dtype) return each.body;
  }
  return "";
}

}  // namespace fuseloom::emit
