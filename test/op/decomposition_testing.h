// More words for tests of ops with decompositions: an op runs whole (the record's reference) or decomposed (each op
// that the decomposition builds runs on its own reference). The two must agree: the oracle evaluates an op whole.
#pragma once
#include <string>
#include <vector>

#include "op/op_testing.h"

namespace fuseloom::op {

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.count(); ++i) values.push_back(tensor.at(i));
  return values;
}

inline double tolerance_of(DType dtype) {
  return dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 2e-6 : dtype == DType::F16 ? 1.5e-3 : 1.2e-2;
}

inline void expect_decomposition(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                                 int64_t outputs = 1) {
  SCOPED_TRACE(std::string(op) + to_string(attrs));
  const std::vector<Tensor> whole = run_all(op, inputs, attrs, outputs);
  const std::vector<Tensor> parts = run_decomposition(op, inputs, attrs, outputs);
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) expect_close(parts[i], whole[i], tolerance_of(whole[i].dtype()));
}

// Normal floats, or integers in [-100, 100] (unsigned: [0, 200]); the same for a seed everywhere.
inline Tensor random_tensor(DType dtype, Dims dims, uint64_t seed) {
  std::mt19937_64 generator(seed);
  Tensor tensor(dtype, std::move(dims));
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double uniform = static_cast<double>(generator() >> 11) * 0x1p-53;
    if (is_int(dtype)) {
      tensor.set_int(i, static_cast<int64_t>(uniform * 200) - (is_unsigned_int(dtype) ? 0 : 100));
    } else {
      tensor.set(i, (uniform - 0.5) * 4);
    }
  }
  return tensor;
}

inline Tensor floats(Dims dims, std::initializer_list<double> values) {
  return Tensor::of(DType::F32, std::move(dims), values);
}
inline Tensor ints(Dims dims, std::initializer_list<double> values) {
  return Tensor::of(DType::I64, std::move(dims), values);
}

}  // namespace fuseloom::op
