// Short words for tests of ops: run a reference on literal tensors, compare with literal values.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "fuseloom/error.h"
#include "fuseloom/tensor.h"
#include "op/op.h"

namespace fuseloom::op {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

inline std::vector<Tensor> run_all(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                                   int64_t outputs = 1) {
  return run_reference(standard_ops().at(op), inputs, concrete(attrs, {}), outputs);
}
inline Tensor run(std::string_view op, const std::vector<Tensor>& inputs, const Attrs& attrs = {}) {
  return run_all(op, inputs, attrs)[0];
}

inline std::vector<TensorType> infer(std::string_view op, const std::vector<TensorType>& inputs,
                                     const Attrs& attrs = {}, int64_t outputs = 1) {
  return infer_types(standard_ops().at(op), inputs, std::vector<char>(inputs.size(), 1), attrs, outputs);
}

inline Tensor floats(std::initializer_list<double> values) {
  return Tensor::of(DType::F32, {static_cast<int64_t>(values.size())}, values);
}
inline Tensor ints(DType dtype, std::initializer_list<int64_t> values) {
  return Tensor::of_ints(dtype, {static_cast<int64_t>(values.size())}, std::vector<int64_t>(values));
}
inline Tensor complexes(std::initializer_list<std::complex<double>> values) {
  Tensor tensor(DType::C64, {static_cast<int64_t>(values.size())});
  int64_t i = 0;
  for (const std::complex<double> value : values) tensor.set_complex(i++, value.real(), value.imag());
  return tensor;
}

// Exactly these values: NaN equals NaN, and zeros have the wanted sign.
inline void expect_values(const Tensor& tensor, const std::vector<double>& values) {
  ASSERT_EQ(tensor.count(), static_cast<int64_t>(values.size())) << tensor.type_string();
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double expected = values[static_cast<size_t>(i)], found = tensor.at(i);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << "element " << i << " is " << found;
    } else {
      EXPECT_EQ(found, expected) << "element " << i;
      if (is_float(tensor.dtype())) {
        EXPECT_EQ(std::signbit(found), std::signbit(expected)) << "sign of element " << i;
      }
    }
  }
}
inline void expect_ints(const Tensor& tensor, const std::vector<int64_t>& values) {
  ASSERT_EQ(tensor.count(), static_cast<int64_t>(values.size())) << tensor.type_string();
  for (int64_t i = 0; i < tensor.count(); ++i)
    EXPECT_EQ(tensor.int_at(i), values[static_cast<size_t>(i)]) << "element " << i;
}

// Equal up to `relative` of the larger magnitude (at least 1); NaN and infinities in the same places.
inline void expect_close(const Tensor& found, const Tensor& expected, double relative) {
  ASSERT_EQ(found.type_string(), expected.type_string());
  for (int64_t i = 0; i < found.count(); ++i) {
    const double a = found.at(i), b = expected.at(i);
    if (std::isnan(b)) {
      ASSERT_TRUE(std::isnan(a)) << "element " << i << ": " << a;
    } else if (std::isinf(b)) {
      ASSERT_EQ(a, b) << "element " << i;
    } else {
      ASSERT_NEAR(a, b, relative * std::max(1.0, std::fabs(b))) << "element " << i;
    }
  }
}

// The call throws a UserError whose message has `words` in it.
template <class Call>
void expect_user_error(Call&& call, std::string_view words) {
  try {
    call();
    ADD_FAILURE() << "no error; expected \"" << words << "\"";
  } catch (const UserError& error) {
    EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
  }
}

// Small integers for integer types, a normal distribution for the others.
inline Tensor random_tensor(DType dtype, const Dims& dims, std::mt19937_64& random) {
  Tensor tensor(dtype, dims);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if (dtype == DType::Bool) {
      tensor.set_int(i, static_cast<int64_t>(random() % 2));
    } else if (is_int(dtype)) {
      tensor.set_int(i, static_cast<int64_t>(random() % 20) - (is_signed_int(dtype) ? 10 : 0));
    } else {
      tensor.set_complex(i, normal(random), is_complex(dtype) ? normal(random) : 0);
    }
  }
  return tensor;
}

// A view of the same values in a layout that is not contiguous: every dimension has a gap behind each element.
inline Tensor spread(const Tensor& tensor) {
  Dims dims = tensor.dims(), strides = dims;
  int64_t stride = 2;
  for (size_t i = 0; i < dims.size(); ++i) {  // column-major, doubled
    strides[i] = stride;
    stride *= dims[i] + 1;
  }
  Tensor memory(tensor.dtype(), {stride + 1});
  Tensor view = Tensor::share(tensor.dtype(), dims, strides, memory.data(), memory.owner());
  for (int64_t i = 0; i < tensor.count(); ++i) {
    if (is_complex(tensor.dtype())) {
      view.set_complex(i, tensor.at(i), tensor.imag_at(i));
    } else if (is_float(tensor.dtype())) {
      view.set(i, tensor.at(i));
    } else {
      view.set_int(i, tensor.int_at(i));
    }
  }
  return view;
}

// Evaluates a decomposition op by op on the references.
class EagerBuilder final : public OpBuilder {
 public:
  explicit EagerBuilder(const OpTable& table) : table_(table) {}
  Val add(Tensor tensor) {
    values_.push_back(std::move(tensor));
    return {static_cast<int32_t>(values_.size()) - 1};
  }
  const Tensor& tensor(Val value) const { return values_[static_cast<size_t>(value.id)]; }
  std::vector<Val> apply_many(std::string_view op, std::vector<Val> inputs, Attrs attrs, int64_t outputs) override {
    std::vector<Tensor> tensors;
    for (const Val input : inputs) tensors.push_back(input.valid() ? tensor(input) : Tensor());
    std::vector<Val> results;
    for (Tensor& result : run_reference(table_.at(op), tensors, concrete(attrs, {}), outputs))
      results.push_back(add(std::move(result)));
    return results;
  }
  TensorType type(Val value) const override {
    return {.dtype = tensor(value).dtype(), .shape = shape_of(tensor(value).dims())};
  }

 private:
  const OpTable& table_;
  std::vector<Tensor> values_;
};

inline std::vector<Tensor> run_decomposition(std::string_view op, const std::vector<Tensor>& inputs,
                                             const Attrs& attrs = {}, int64_t outputs = 1) {
  const OpRecord& record = standard_ops().at(op);
  EagerBuilder builder(standard_ops());
  std::vector<Val> values;
  std::vector<TensorType> types;
  std::vector<char> present;
  for (const Tensor& input : inputs) {
    values.push_back(input.valid() ? builder.add(input) : Val{});
    types.push_back({.dtype = input.dtype(), .shape = shape_of(input.dims())});
    present.push_back(input.valid() ? 1 : 0);
  }
  const std::vector<TensorType> result_types = infer_types(record, types, present, attrs, outputs);
  std::vector<Tensor> results;
  for (const Val value : record.decompose(
           builder, {.inputs = values, .attrs = attrs, .output_count = outputs, .outputs = result_types})) {
    results.push_back(builder.tensor(value));
  }
  return results;
}

}  // namespace fuseloom::op
