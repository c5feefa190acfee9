#include "op/staging.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"

namespace fuseloom::op {
namespace {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

template <class F>
void with_element_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::Bool: return f(bool());
    case DType::I8: return f(int8_t());
    case DType::I16: return f(int16_t());
    case DType::I32: return f(int32_t());
    case DType::I64: return f(int64_t());
    case DType::U8: return f(uint8_t());
    case DType::U16: return f(uint16_t());
    case DType::U32: return f(uint32_t());
    case DType::U64: return f(uint64_t());
    case DType::F16: return f(Half());
    case DType::BF16: return f(Brain());
    case DType::F32: return f(float());
    case DType::F64: return f(double());
    case DType::C64: return f(std::complex<float>());
    case DType::C128: return f(std::complex<double>());
  }
  FL_CHECK(false, "dtype {} has no element type", static_cast<int>(dtype));
}

template <class E>
constexpr bool kIsComplex = std::is_same_v<E, std::complex<float>> || std::is_same_v<E, std::complex<double>>;

// The float-to-integer cast of docs/numerics.md: truncates, saturates, NaN gives 0.
template <class I>
I saturating(double value) {
  if (std::isnan(value)) return 0;
  const double low = static_cast<double>(std::numeric_limits<I>::min());
  const double high = std::ldexp(1.0, std::numeric_limits<I>::digits);   // the first value above the range
  if (value < low) return std::numeric_limits<I>::min();
  if (value >= high) return std::numeric_limits<I>::max();
  return static_cast<I>(value);
}

template <class T, class E>
T load(E element) {
  if constexpr (std::is_same_v<E, Half>) {
    return load<T>(f16_to_f32(element.bits));
  } else if constexpr (std::is_same_v<E, Brain>) {
    return load<T>(bf16_to_f32(element.bits));
  } else if constexpr (std::is_same_v<T, Complex>) {
    if constexpr (kIsComplex<E>) {
      return T(element.real(), element.imag());
    } else {
      return T(static_cast<double>(element), 0.0);
    }
  } else if constexpr (kIsComplex<E>) {
    return load<T>(element.real());
  } else if constexpr (std::is_floating_point_v<E> && std::is_integral_v<T>) {
    return saturating<T>(static_cast<double>(element));
  } else {
    return static_cast<T>(element);
  }
}

template <class E, class T>
E store(T value) {
  if constexpr (std::is_same_v<T, Complex>) {
    if constexpr (kIsComplex<E>) {
      using Part = typename E::value_type;
      return E(static_cast<Part>(value.real()), static_cast<Part>(value.imag()));
    } else {
      return store<E>(value.real());
    }
  } else if constexpr (kIsComplex<E>) {
    return E(static_cast<typename E::value_type>(value), 0);
  } else if constexpr (std::is_same_v<E, Half>) {
    return Half{f64_to_f16(static_cast<double>(value))};
  } else if constexpr (std::is_same_v<E, Brain>) {
    return Brain{f64_to_bf16(static_cast<double>(value))};
  } else if constexpr (std::is_same_v<E, bool>) {
    return value != T(0);
  } else if constexpr (std::is_floating_point_v<T> && std::is_integral_v<E>) {
    return saturating<E>(value);
  } else {
    return static_cast<E>(value);
  }
}

}  // namespace

template <class T>
std::vector<T> stage(const Tensor& tensor) {
  const Tensor source = tensor.to_contiguous();
  const size_t count = static_cast<size_t>(source.count());
  std::vector<T> values(count);
  with_element_type(source.dtype(), [&](auto element) {
    const auto* from = source.as<decltype(element)>();
    for (size_t i = 0; i < count; ++i) values[i] = load<T>(from[i]);
  });
  return values;
}

template <class T>
void unstage(std::span<const T> values, Tensor& tensor) {
  FL_CHECK(static_cast<int64_t>(values.size()) == tensor.count(), "{} values for {}", values.size(), tensor.type_string());
  FL_CHECK(tensor.contiguous(), "a reference writes contiguous tensors, this one is {}", tensor.type_string());
  with_element_type(tensor.dtype(), [&](auto element) {
    using E = decltype(element);
    E* to = tensor.as<E>();
    for (size_t i = 0; i < values.size(); ++i) to[i] = store<E>(values[i]);
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
