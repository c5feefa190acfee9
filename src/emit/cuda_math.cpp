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
    // Two at once, the second of them 0: the conversions of one run at a quarter of that rate.
    {"narrow_f16", DType::F32, "  u32 y;\n  asm(\"cvt.rn.f16x2.f32 %0, %1, %2;\" : \"=r\"(y) : \"f\"(0.0f), \"f\"(a));\n  return (u16)y;\n"},
    {"narrow_bf16", DType::F32, "  u32 y;\n  asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(y) : \"f\"(0.0f), \"f\"(a));\n  return (u16)y;\n"},
    {"pack_f16", DType::F32, "  u32 y;\n  asm(\"cvt.rn.f16x2.f32 %0, %1, %2;\" : \"=r\"(y) : \"f\"(b), \"f\"(a));\n  return y;\n"},
    {"pack_bf16", DType::F32, "  u32 y;\n  asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(y) : \"f\"(b), \"f\"(a));\n  return y;\n"},
    // rsqrtf: 2 ulp, subnormals included.
    {"rsqrt", DType::F32, "  return rsqrtf(a);\n"},
    // Coarse functions: docs/numerics.md bounds their errors.
    {"coarse_exp", DType::F32, "  f32 y;\n  asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(a * 1.44269504f));\n  return y;\n"},
    {"coarse_exp_subnormal", DType::F32, "  f32 y;\n  asm(\"ex2.approx.f32 %0, %1;\" : \"=f\"(y) : \"f\"(a * 1.44269504f));\n  return y;\n"},
    {"coarse_tanh", DType::F32, "  f32 y;\n  asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(y) : \"f\"(a));\n  return y;\n"},
    {"coarse_inverse", DType::F32, "  f32 y;\n  asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(y) : \"f\"(a));\n  return y;\n"},
};

}  // namespace

std::string_view device_body(std::string_view name, DType dtype) {
  for (const DeviceBody& each : kBodies) {
    if (each.name == name && each.dtype == dtype) return each.body;
  }
  return "";
}

}  // namespace fuseloom::emit
