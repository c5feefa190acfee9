// Runs single ops on concrete tensors, whole (the record's reference) or decomposed (each op that the decomposition
// builds runs on its own reference). The two must agree: the oracle evaluates an op before it is decomposed.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "op/op.h"

namespace fuseloom::op {

inline std::vector<Tensor> run_op(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                                  int64_t outputs = 1) {
  return run_reference(standard_ops().at(op), inputs, attrs, outputs);
}

class EagerBuilder final : public OpBuilder {
 public:
  Val value(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return Val{static_cast<int32_t>(tensors_.size()) - 1};
  }
  const Tensor& tensor(Val val) const { return tensors_[static_cast<size_t>(val.id)]; }
  std::vector<Val> apply_many(std::string_view op, std::vector<Val> inputs, Attrs attrs, int64_t outputs) override {
    std::vector<Tensor> operands;
    for (const Val input : inputs) operands.push_back(input.valid() ? tensor(input) : Tensor());
    std::vector<Val> results;
    for (Tensor& result : run_op(op, operands, concrete(attrs, {}), outputs)) results.push_back(value(std::move(result)));
    return results;
  }
  TensorType type(Val val) const override { return {tensor(val).dtype(), shape_of(tensor(val).dims())}; }

 private:
  std::vector<Tensor> tensors_;
};

inline std::vector<Tensor> run_decomposed(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                                          int64_t outputs = 1) {
  const OpRecord& record = standard_ops().at(op);
  std::vector<TensorType> types;
  std::vector<char> present;
  EagerBuilder builder;
  std::vector<Val> values;
  for (const Tensor& input : inputs) {
    types.push_back({input.dtype(), shape_of(input.dims())});
    present.push_back(input.valid() ? 1 : 0);
    values.push_back(input.valid() ? builder.value(input) : Val());
  }
  const std::vector<TensorType> result_types = infer_types(record, types, present, attrs, outputs);
  std::vector<Tensor> results;
  for (const Val result : record.decompose(
           builder, {.inputs = values, .attrs = attrs, .output_count = outputs, .outputs = result_types})) {
    results.push_back(builder.tensor(result));
  }
  return results;
}

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.count(); ++i) values.push_back(tensor.at(i));
  return values;
}

// Same dtype and shape; |got - expected| <= tolerance * (1 + |expected|); NaN where NaN is expected.
inline void expect_near(const Tensor& got, const Tensor& expected, double tolerance) {
  ASSERT_EQ(got.type_string(), expected.type_string());
  for (int64_t i = 0; i < expected.count(); ++i) {
    const double g = got.at(i), e = expected.at(i);
    if (std::isnan(e)) {
      EXPECT_TRUE(std::isnan(g)) << "element " << i << " is " << g;
    } else if (std::isinf(e)) {
      EXPECT_EQ(g, e) << "element " << i;
    } else {
      EXPECT_LE(std::abs(g - e), tolerance * (1 + std::abs(e))) << "element " << i << ": " << g << ", expected " << e;
    }
  }
}

inline double tolerance_of(DType dtype) {
  return dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 2e-6 : dtype == DType::F16 ? 1.5e-3 : 1.2e-2;
}

inline void expect_decomposition(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                                 int64_t outputs = 1) {
  SCOPED_TRACE(std::string(op) + to_string(attrs));
  const std::vector<Tensor> whole = run_op(op, inputs, attrs, outputs);
  const std::vector<Tensor> parts = run_decomposed(op, inputs, attrs, outputs);
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) expect_near(parts[i], whole[i], tolerance_of(whole[i].dtype()));
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

inline Tensor floats(Dims dims, std::initializer_list<double> values) { return Tensor::of(DType::F32, std::move(dims), values); }
inline Tensor ints(Dims dims, std::initializer_list<double> values) { return Tensor::of(DType::I64, std::move(dims), values); }

}  // namespace fuseloom::op
