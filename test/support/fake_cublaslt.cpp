// A libcublasLt for tests: computes on the host, with memory of the host, and notes what it was asked for. As strict as the
// real one where that is known: sizes of attributes, leading dimensions, batch counts that differ, a bias without an address.
#include "support/fake_cublaslt.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

namespace {

using fuseloom::test::FakeMatrix;
using fuseloom::test::FakeProduct;

constexpr int kSuccess = 0, kInvalidValue = 7, kNotSupported = 15;
struct State {
  bool refuse = false;
  size_t workspace_bytes = 0;
  int heuristics = 0, checks = 0;
  std::vector<std::unique_ptr<FakeProduct>> calls;
};
State& state() {
  static State held;
  return held;
}
struct Preference {
  uint64_t workspace = 0;
};
struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
constexpr uint64_t kMark = 0x66616b65;   // an algorithm of ours

template <class T>
bool set(T& field, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(&field, value, bytes);
  return true;
}

// An attribute that an object has, under its number.
template <class T>
struct Attribute {
  int number;
  T& field;
};
template <class... Attributes>
int set_attribute(int number, const void* value, size_t bytes, Attributes... attributes) {
  return ((number == attributes.number && set(attributes.field, value, bytes)) || ...) ? kSuccess : kInvalidValue;
}

float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24) : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY) : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}
uint16_t float_to_half(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(size)) return 0x7E00;
  if (size >= 65520) return sign | 0x7C00;
  int exponent = 0;
  std::frexp(size, &exponent);
  const int step = size < 6.103515625e-05f ? -24 : exponent - 11;
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(size, -step)), step);
  if (rounded < 6.103515625e-05f) return sign | static_cast<uint16_t>(std::ldexp(rounded, 24));
  std::frexp(rounded, &exponent);
  return static_cast<uint16_t>(sign | ((exponent + 14) << 10) | (static_cast<uint16_t>(std::ldexp(rounded, 11 - exponent)) - 1024));
}
float load(const void* at, int type, int64_t index) {
  if (type == 0) return static_cast<const float*>(at)[index];
  const uint16_t bits = static_cast<const uint16_t*>(at)[index];
  if (type == 2) return half_to_float(bits);
  const uint32_t wide = uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  return value;
}
void store(void* at, int type, int64_t index, float value) {
  if (type == 0) {
    static_cast<float*>(at)[index] = value;
  } else if (type == 2) {
    static_cast<uint16_t*>(at)[index] = float_to_half(value);
  } else {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    static_cast<uint16_t*>(at)[index] = static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
}

// Whether the four matrices fit together.
int verify(const FakeProduct& product, const FakeMatrix& a, const FakeMatrix& b, const FakeMatrix& d) {
  const uint64_t m = product.transpose_a != 0 ? a.columns : a.rows, k = product.transpose_a != 0 ? a.rows : a.columns;
  const uint64_t other_k = product.transpose_b != 0 ? b.columns : b.rows, n = product.transpose_b != 0 ? b.rows : b.columns;
  if (k != other_k || d.rows != m || d.columns != n || a.batch != d.batch || b.batch != d.batch) return kInvalidValue;
  if ((product.epilogue & 4) != 0 && product.bias == nullptr) return kInvalidValue;
  return kSuccess;
}

}  // namespace

extern "C" {

void fake_reset(int refuse, size_t workspace_bytes) {
  state().calls.clear();
  state().refuse = refuse != 0;
  state().workspace_bytes = workspace_bytes;
  state().heuristics = state().checks = 0;
}
int fake_count() { return static_cast<int>(state().calls.size()); }
const FakeProduct* fake_call(int index) { return state().calls[static_cast<size_t>(index)].get(); }

int cublasLtCreate(void** handle) { return *handle = &state(), kSuccess; }
int cublasLtDestroy(void*) { return kSuccess; }
size_t cublasLtGetVersion() { return 130100; }
int cublasLtMatmulDescCreate(void** made, int compute_type, int scale_type) {
  auto* product = new FakeProduct;
  product->compute_type = compute_type;
  product->scale_type = scale_type;
  *made = product;
  return kSuccess;
}
int cublasLtMatmulDescDestroy(void* product) { return delete static_cast<FakeProduct*>(product), kSuccess; }
int cublasLtMatmulDescSetAttribute(void* held, int attribute, const void* value, size_t bytes) {
  FakeProduct& product = *static_cast<FakeProduct*>(held);
  return set_attribute(attribute, value, bytes, Attribute{3, product.transpose_a}, Attribute{4, product.transpose_b}, Attribute{7, product.epilogue}, Attribute{8, product.bias});
}
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t leading_dimension) {
  if (rows == 0 || columns == 0 || leading_dimension < static_cast<int64_t>(rows)) return kInvalidValue;
  auto* matrix = new FakeMatrix;
  matrix->type = type;
  matrix->rows = rows;
  matrix->columns = columns;
  matrix->leading_dimension = leading_dimension;
  *made = matrix;
  return kSuccess;
}
int cublasLtMatrixLayoutDestroy(void* matrix) { return delete static_cast<FakeMatrix*>(matrix), kSuccess; }
int cublasLtMatrixLayoutSetAttribute(void* held, int attribute, const void* value, size_t bytes) {
  FakeMatrix& matrix = *static_cast<FakeMatrix*>(held);
  return set_attribute(attribute, value, bytes, Attribute{5, matrix.batch}, Attribute{6, matrix.batch_stride});
}
int cublasLtMatmulPreferenceCreate(void** made) { return *made = new Preference, kSuccess; }
int cublasLtMatmulPreferenceDestroy(void* preference) { return delete static_cast<Preference*>(preference), kSuccess; }
int cublasLtMatmulPreferenceSetAttribute(void* held, int attribute, const void* value, size_t bytes) {
  Preference& preference = *static_cast<Preference*>(held);
  uint32_t alignment = 0;
  if (attribute == 1) return set(preference.workspace, value, bytes) ? kSuccess : kInvalidValue;
  return attribute >= 5 && attribute <= 8 && set(alignment, value, bytes) && (alignment & (alignment - 1)) == 0 ? kSuccess : kInvalidValue;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void* product, void* a, void* b, void* c, void* d, void* preference, int requested, HeuristicResult* results, int* returned) {
  ++state().heuristics;
  *returned = 0;
  if (c != d) return kInvalidValue;
  const int fits = verify(*static_cast<FakeProduct*>(product), *static_cast<FakeMatrix*>(a), *static_cast<FakeMatrix*>(b), *static_cast<FakeMatrix*>(d));
  if (fits != kSuccess) return fits;
  if (state().refuse || requested < 1 || static_cast<Preference*>(preference)->workspace < state().workspace_bytes) return kNotSupported;
  results[0] = {{kMark}, state().workspace_bytes, kSuccess, 1, {}};
  *returned = 1;
  return kSuccess;
}
int cublasLtMatmulAlgoCheck(void*, void* product, void* a, void* b, void*, void* d, const uint64_t* algorithm, HeuristicResult* result) {
  ++state().checks;
  result->workspace_bytes = state().workspace_bytes;
  if (algorithm[0] != kMark) return kInvalidValue;
  return verify(*static_cast<FakeProduct*>(product), *static_cast<FakeMatrix*>(a), *static_cast<FakeMatrix*>(b), *static_cast<FakeMatrix*>(d));
}
int cublasLtMatmul(void*, void* held, const void* alpha, const void* a, void* a_layout, const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                   void* d, void* d_layout, const uint64_t* algorithm, void* workspace, size_t workspace_bytes, void*) {
  auto call = std::make_unique<FakeProduct>(*static_cast<FakeProduct*>(held));
  call->a = *static_cast<FakeMatrix*>(a_layout);
  call->b = *static_cast<FakeMatrix*>(b_layout);
  call->c = *static_cast<FakeMatrix*>(c_layout);
  call->d = *static_cast<FakeMatrix*>(d_layout);
  call->workspace = workspace;
  call->workspace_bytes = workspace_bytes;
  call->heuristics = state().heuristics;
  call->checks = state().checks;
  const int fits = verify(*call, call->a, call->b, call->d);
  if (fits != kSuccess) return fits;
  if (algorithm[0] != kMark || c != d || *static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0) return kInvalidValue;
  if (workspace_bytes < state().workspace_bytes || (workspace_bytes > 0 && workspace == nullptr)) return kInvalidValue;
  if (workspace_bytes > 0) std::memset(workspace, 0x5A, workspace_bytes);   // nobody else's memory
  const auto depth = static_cast<int64_t>(call->transpose_a != 0 ? call->a.rows : call->a.columns);
  for (int batch = 0; batch < call->d.batch; ++batch) {
    for (int64_t j = 0; j < static_cast<int64_t>(call->d.columns); ++j) {
      for (int64_t i = 0; i < static_cast<int64_t>(call->d.rows); ++i) {
        double sum = 0;
        for (int64_t l = 0; l < depth; ++l) {
          const int64_t at_a = call->transpose_a != 0 ? l + i * call->a.leading_dimension : i + l * call->a.leading_dimension;
          const int64_t at_b = call->transpose_b != 0 ? j + l * call->b.leading_dimension : l + j * call->b.leading_dimension;
          sum += static_cast<double>(load(a, call->a.type, batch * call->a.batch_stride + at_a)) * static_cast<double>(load(b, call->b.type, batch * call->b.batch_stride + at_b));
        }
        auto value = static_cast<float>(sum);
        if ((call->epilogue & 4) != 0) value += load(call->bias, call->d.type, i);
        if ((call->epilogue & 2) != 0) value = std::fmax(value, 0.0f);
        if ((call->epilogue & 32) != 0) value = 0.5f * value * (1 + std::tanh(0.7978845608f * (value + 0.044715f * value * value * value)));
        store(d, call->d.type, batch * call->d.batch_stride + i + j * call->d.leading_dimension, value);
      }
    }
  }
  state().calls.push_back(std::move(call));
  return kSuccess;
}

}  // extern "C"
