#include "op/staging.h"

#include <cstring>

#include "base/check.h"
#include "op/element.h"

namespace fuseloom::op {
template <class T>
std::vector<T> stage(const Tensor& tensor) {
  const Tensor source = tensor.to_contiguous();
  const size_t count = static_cast<size_t>(source.count());
  std::vector<T> values(count);
  with_storage(source.dtype(), [&]<class Storage>() {
    const Storage* from = source.as<Storage>();
    for (size_t i = 0; i < count; ++i) values[i] = store<T>(load(from[i]));
  });
  return values;
}

template <class T>
void unstage(std::span<const T> values, Tensor& tensor) {
  FL_CHECK(static_cast<int64_t>(values.size()) == tensor.count(), "{} values for {}", values.size(),
           tensor.type_string());
  FL_CHECK(tensor.contiguous(), "a reference writes contiguous tensors, this one is {}", tensor.type_string());
  with_storage(tensor.dtype(), [&]<class Storage>() {
    Storage* to = tensor.as<Storage>();
    for (size_t i = 0; i < values.size(); ++i) to[i] = store<Storage>(values[i]);
  });
}

template std::vector<double> stage<double>(const Tensor&);
template std::vector<int64_t> stage<int64_t>(const Tensor&);
template std::vector<uint64_t> stage<uint64_t>(const Tensor&);
template std::vector<Complex> stage<Complex>(const Tensor&);
template void unstage<double>(std::span<const double>, Tensor&);
template void unstage<int64_t>(std::span<const int64_t>, Tensor&);
template void unstage<uint64_t>(std::span<const uint64_t>, Tensor&);
template void unstage<Complex>(std::span<const Complex>, Tensor&);

int64_t concrete_size(const sym::Expr& size) {
  const std::optional<int64_t> value = size.as_const();
  FL_CHECK(value.has_value(), "a reference ran with the symbolic size {}", sym::to_string(size));
  return *value;
}

Dims concrete_dims(const Shape& shape) {
  Dims dims;
  for (const sym::Expr& size : shape) dims.push_back(concrete_size(size));
  return dims;
}

std::vector<int64_t> broadcast_map(const Dims& operand, const Dims& result) {
  const size_t missing = result.size() - operand.size();
  Dims strides(result.size(), 0);
  int64_t stride = 1;
  for (size_t d = operand.size(); d-- > 0;) {
    if (operand[d] != 1) strides[d + missing] = stride;
    stride *= operand[d];
  }
  std::vector<int64_t> map(static_cast<size_t>(element_count(result)));
  Dims index(result.size(), 0);
  int64_t offset = 0;
  for (int64_t& entry : map) {
    entry = offset;
    for (size_t d = result.size(); d-- > 0;) {
      offset += strides[d];
      if (++index[d] < result[d]) break;
      offset -= strides[d] * result[d];
      index[d] = 0;
    }
  }
  return map;
}

void copy_elements(const void* from, int64_t from_index, void* to, int64_t to_index, int64_t count, DType dtype) {
  const int64_t size = dtype_bytes(dtype);
  if (count == 0) return;
  std::memcpy(static_cast<char*>(to) + to_index * size, static_cast<const char*>(from) + from_index * size,
              static_cast<size_t>(count * size));
}

}  // namespace fuseloom::op
