#include "front/onnx/tensor_proto.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace fuseloom::front::onnx {

namespace {

// A dense tensor made of a sparse one takes at most this much, so that a few bytes of file cannot ask for terabytes.
constexpr int64_t kMaxDenseBytes = int64_t{1} << 31;

int64_t parse_size(std::string_view text, std::string_view what, const std::string& where) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  FL_REQUIRE(error == std::errc() && end == text.data() + text.size() && value >= 0,
             "{}: the external data's {} '{}' is not a number of bytes", where, what, text);
  return value;
}

std::string where_of(const std::string& file, const TensorProto& proto) {
  return fmt::format("{}: tensor '{}'", file, proto.name);
}

// Elements packed below one byte: the first in the lowest bits.
uint8_t packed_element(std::string_view bytes, int64_t index, int64_t bits) {
  const int64_t per_byte = 8 / bits;
  const auto byte = static_cast<uint8_t>(bytes[static_cast<size_t>(index / per_byte)]);
  return static_cast<uint8_t>((byte >> (index % per_byte * bits)) & ((1 << bits) - 1));
}

// The value of an element of at most 8 bits.
double narrow_value(ElementType type, uint8_t bits) {
  switch (type) {
    case ElementType::UInt4:
    case ElementType::UInt2:
      return bits;
    case ElementType::Int4:
      return bits < 8 ? bits : bits - 16;
    case ElementType::Int2:
      return bits < 2 ? bits : bits - 4;
    default:
      return narrow_float_value(type, bits);
  }
}

int64_t checked_count(const TensorProto& proto, const std::string& where) {
  for (const int64_t dim : proto.dims) FL_REQUIRE(dim >= 0, "{}: the dimension {} is negative", where, dim);
  try {
    return element_count(proto.dims);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace

DType carrier_dtype(ElementType type, const std::string& where) {
  switch (type) {
    case ElementType::Bool:
      return DType::Bool;
    case ElementType::Int8:
    case ElementType::Int4:
    case ElementType::Int2:
      return DType::I8;
    case ElementType::Int16:
      return DType::I16;
    case ElementType::Int32:
      return DType::I32;
    case ElementType::Int64:
      return DType::I64;
    case ElementType::UInt8:
    case ElementType::UInt4:
    case ElementType::UInt2:
      return DType::U8;
    case ElementType::UInt16:
      return DType::U16;
    case ElementType::UInt32:
      return DType::U32;
    case ElementType::UInt64:
      return DType::U64;
    case ElementType::Float16:
      return DType::F16;
    case ElementType::BFloat16:
      return DType::BF16;
    case ElementType::Float:
    case ElementType::Float8E4M3FN:
    case ElementType::Float8E4M3FNUZ:
    case ElementType::Float8E5M2:
    case ElementType::Float8E5M2FNUZ:
    case ElementType::Float8E8M0:
    case ElementType::Float4E2M1:
      return DType::F32;
    case ElementType::Double:
      return DType::F64;
    case ElementType::Complex64:
      return DType::C64;
    case ElementType::Complex128:
      return DType::C128;
    case ElementType::String:
      throw Unsupported(fmt::format("{}: strings are not tensors of numbers; fuseloom has no string type", where));
    case ElementType::Undefined:
      throw UserError(fmt::format("{}: has no element type", where));
  }
  throw Unsupported(fmt::format("{}: {} is not known", where, element_type_name(type)));
}

ElementType element_type_of(DType dtype) {
  switch (dtype) {
    case DType::Bool:
      return ElementType::Bool;
    case DType::I8:
      return ElementType::Int8;
    case DType::I16:
      return ElementType::Int16;
    case DType::I32:
      return ElementType::Int32;
    case DType::I64:
      return ElementType::Int64;
    case DType::U8:
      return ElementType::UInt8;
    case DType::U16:
      return ElementType::UInt16;
    case DType::U32:
      return ElementType::UInt32;
    case DType::U64:
      return ElementType::UInt64;
    case DType::F16:
      return ElementType::Float16;
    case DType::BF16:
      return ElementType::BFloat16;
    case DType::F32:
      return ElementType::Float;
    case DType::F64:
      return ElementType::Double;
    case DType::C64:
      return ElementType::Complex64;
    case DType::C128:
      return ElementType::Complex128;
  }
  return ElementType::Undefined;
}

bool is_narrow(ElementType type) { return type >= ElementType::Float8E4M3FN && type <= ElementType::Int2; }

int64_t element_bits(ElementType type) {
  switch (type) {
    case ElementType::UInt4:
    case ElementType::Int4:
    case ElementType::Float4E2M1:
      return 4;
    case ElementType::UInt2:
    case ElementType::Int2:
      return 2;
    case ElementType::Float8E4M3FN:
    case ElementType::Float8E4M3FNUZ:
    case ElementType::Float8E5M2:
    case ElementType::Float8E5M2FNUZ:
    case ElementType::Float8E8M0:
      return 8;
    default:
      return dtype_bits(carrier_dtype(type, "element_bits"));
  }
}

NarrowFloat narrow_float(ElementType type) {
  switch (type) {
    case ElementType::Float8E4M3FN:
      return {.exponent_bits = 4, .mantissa_bits = 3, .bias = 7, .max = 448};
    case ElementType::Float8E4M3FNUZ:
      return {.exponent_bits = 4, .mantissa_bits = 3, .bias = 8, .negative_zero_is_nan = true, .max = 240};
    case ElementType::Float8E5M2:
      return {.exponent_bits = 5, .mantissa_bits = 2, .bias = 15, .has_infinity = true, .max = 57344};
    case ElementType::Float8E5M2FNUZ:
      return {.exponent_bits = 5, .mantissa_bits = 2, .bias = 16, .negative_zero_is_nan = true, .max = 57344};
    case ElementType::Float4E2M1:
      return {.exponent_bits = 2, .mantissa_bits = 1, .bias = 1, .has_nan = false, .max = 6};
    default:
      break;
  }
  FL_CHECK(false, "{} is not a narrow float with a mantissa", element_type_name(type));
}

float narrow_float_value(ElementType type, uint8_t bits) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  if (type == ElementType::Float8E8M0) return bits == 255 ? kNaN : std::ldexp(1.0f, bits - 127);
  const NarrowFloat format = narrow_float(type);
  const int width = 1 + format.exponent_bits + format.mantissa_bits;
  const int sign = bits >> (width - 1) & 1;
  const int exponent = bits >> format.mantissa_bits & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int top = (1 << format.exponent_bits) - 1;
  if (format.negative_zero_is_nan) {
    if (sign == 1 && exponent == 0 && mantissa == 0) return kNaN;
  } else if (format.has_infinity && exponent == top) {
    if (mantissa != 0) return kNaN;
    return sign == 1 ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  } else if (format.has_nan && exponent == top && mantissa == (1 << format.mantissa_bits) - 1) {
    return kNaN;
  }
  const float scale = 1.0f / static_cast<float>(1 << format.mantissa_bits);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa) * scale, 1 - format.bias)
                              : std::ldexp(1.0f + static_cast<float>(mantissa) * scale, exponent - format.bias);
  return sign == 1 ? -magnitude : magnitude;
}

std::string_view TensorSource::external_bytes(const TensorProto& proto, std::shared_ptr<void>& owner,
                                              const std::string& where) {
  FL_REQUIRE(has_folder_, "{}: has external data, and the model was given as bytes: load it from its file", where);
  std::string location;
  int64_t offset = 0, length = -1;
  for (const StringPair& entry : proto.external_data) {
    if (entry.key == "location") location = std::string(entry.value);
    if (entry.key == "offset") offset = parse_size(entry.value, "offset", where);
    if (entry.key == "length") length = parse_size(entry.value, "length", where);
  }
  auto it = files_.find(location);
  if (it == files_.end()) it = files_.emplace(location, map_contained_file(folder_, location, where)).first;
  const auto size = static_cast<int64_t>(it->second.bytes.size());
  FL_REQUIRE(offset <= size && (length < 0 || length <= size - offset),
             "{}: external data '{}' has {} bytes; offset {} and length {} lie outside", where, location, size, offset,
             length);
  owner = it->second.owner;
  return it->second.bytes.substr(static_cast<size_t>(offset),
                                 length < 0 ? std::string_view::npos : static_cast<size_t>(length));
}

Tensor TensorSource::load(const TensorProto& proto) {
  const std::string where = where_of(name_, proto);
  FL_SUPPORTED(!proto.segmented, "{}: segmented tensors are not read", where);
  carrier_dtype(proto.type, where);
  if (proto.external) {
    std::shared_ptr<void> owner;
    std::string_view bytes = external_bytes(proto, owner, where);
    bool has_length = false;
    for (const StringPair& entry : proto.external_data) has_length |= entry.key == "length";
    if (!has_length) {
      const int64_t needed = (checked_count(proto, where) * element_bits(proto.type) + 7) / 8;
      bytes = bytes.substr(0, static_cast<size_t>(std::max<int64_t>(needed, 0)));
    }
    return from_bytes(proto, bytes, owner, where);
  }
  return proto.has_raw ? from_bytes(proto, proto.raw, owner_, where) : from_typed_data(proto, where);
}

Tensor TensorSource::from_bytes(const TensorProto& proto, std::string_view bytes, const std::shared_ptr<void>& owner,
                                const std::string& where) const {
  const DType dtype = carrier_dtype(proto.type, where);
  const int64_t count = checked_count(proto, where);
  const int64_t bits = element_bits(proto.type);
  // The division keeps count * bits from overflowing on a hostile count.
  const bool fits = count / 8 <= static_cast<int64_t>(bytes.size()) * 4 &&
                    static_cast<int64_t>(bytes.size()) == (count * bits + 7) / 8;
  FL_REQUIRE(fits, "{}: {} elements of {} do not take {} bytes", where, count, element_type_name(proto.type),
             bytes.size());
  if (is_narrow(proto.type)) {
    Tensor tensor(dtype, proto.dims);
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t element =
          bits == 8 ? static_cast<uint8_t>(bytes[static_cast<size_t>(i)]) : packed_element(bytes, i, bits);
      tensor.set(i, narrow_value(proto.type, element));
    }
    return tensor;
  }
  if (dtype == DType::Bool) {  // a byte other than 0 and 1 must not become a bool
    Tensor tensor(dtype, proto.dims);
    for (int64_t i = 0; i < count; ++i) tensor.as<uint8_t>()[i] = bytes[static_cast<size_t>(i)] != 0 ? 1 : 0;
    return tensor;
  }
  const int64_t alignment = std::min<int64_t>(dtype_bytes(dtype), 8);
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % static_cast<uintptr_t>(alignment) == 0;
  if (owner != nullptr && aligned && count > 0) {
    // The mapping is read-only; a constant is never written.
    return Tensor::share(dtype, proto.dims, contiguous_strides(proto.dims), const_cast<char*>(bytes.data()), owner);
  }
  Tensor tensor(dtype, proto.dims);
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

Tensor TensorSource::from_typed_data(const TensorProto& proto, const std::string& where) const {
  const DType dtype = carrier_dtype(proto.type, where);
  const int64_t count = checked_count(proto, where);
  const TypedData data = parse_typed_data(proto, name_);
  const auto require_count = [&](size_t got, int64_t wanted) {
    FL_REQUIRE(static_cast<int64_t>(got) == wanted, "{}: {} elements of {} need {} stored values, and the file has {}",
               where, count, element_type_name(proto.type), wanted, got);
  };
  if (is_complex(dtype)) {  // pairs of real and imaginary parts
    const bool wide = dtype == DType::C128;
    FL_REQUIRE(count <= std::numeric_limits<int64_t>::max() / 2, "{}: too many elements", where);
    require_count(wide ? data.doubles.size() : data.floats.size(), 2 * count);
    Tensor tensor(dtype, proto.dims);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(2 * i);
      if (wide) {
        tensor.set_complex(i, data.doubles[at], data.doubles[at + 1]);
      } else {
        tensor.set_complex(i, data.floats[at], data.floats[at + 1]);
      }
    }
    return tensor;
  }
  if (proto.type == ElementType::Float || proto.type == ElementType::Double) {
    const bool wide = dtype == DType::F64;
    require_count(wide ? data.doubles.size() : data.floats.size(), count);
    Tensor tensor(dtype, proto.dims);
    if (count > 0)
      std::memcpy(tensor.data(), wide ? static_cast<const void*>(data.doubles.data()) : data.floats.data(),
                  static_cast<size_t>(tensor.bytes()));
    return tensor;
  }
  const int64_t bits = element_bits(proto.type);
  if (bits < 8) {  // packed into bytes, one byte per stored integer
    const int64_t per_byte = 8 / bits;
    require_count(data.integers.size(), count / per_byte + (count % per_byte != 0 ? 1 : 0));
    std::string bytes;
    for (const int64_t value : data.integers) bytes.push_back(static_cast<char>(value));
    Tensor tensor(dtype, proto.dims);
    for (int64_t i = 0; i < count; ++i) tensor.set(i, narrow_value(proto.type, packed_element(bytes, i, bits)));
    return tensor;
  }
  require_count(data.integers.size(), count);
  Tensor tensor(dtype, proto.dims);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t value = data.integers[static_cast<size_t>(i)];
    if (is_narrow(proto.type)) {
      tensor.set(i, narrow_value(proto.type, static_cast<uint8_t>(value)));
    } else if (dtype == DType::F16 || dtype == DType::BF16) {  // bit patterns
      tensor.as<uint16_t>()[i] = static_cast<uint16_t>(value);
    } else if (dtype == DType::Bool) {
      tensor.as<uint8_t>()[i] = value != 0 ? 1 : 0;
    } else {
      tensor.set_int(i, value);
    }
  }
  return tensor;
}

Tensor TensorSource::load(const SparseTensorProto& proto) {
  const std::string where = where_of(name_, proto.values);
  const Tensor values = load(proto.values), indices = load(proto.indices);
  TensorProto dense;
  dense.dims = proto.dims;
  const int64_t count = checked_count(dense, where);
  FL_REQUIRE(values.rank() == 1 && indices.dtype() == DType::I64,
             "{}: a sparse tensor needs [n] values and int64 indices", where);
  const int64_t n = values.dim(0);
  const auto rank = static_cast<int64_t>(proto.dims.size());
  const bool linear = indices.rank() == 1;
  FL_REQUIRE(indices.dims() == (linear ? Dims{n} : Dims{n, rank}), "{}: sparse indices of shape {} for {} values",
             where, indices.type_string(), n);
  FL_SUPPORTED(count <= kMaxDenseBytes / dtype_bytes(values.dtype()),
               "{}: a sparse tensor of {} elements is not made dense", where, count);
  Tensor tensor(values.dtype(), proto.dims);
  const int64_t size = dtype_bytes(values.dtype());
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = linear ? indices.int_at(i) : 0;
    for (int64_t d = 0; !linear && d < rank; ++d) {
      const int64_t index = indices.int_at(i * rank + d), extent = proto.dims[static_cast<size_t>(d)];
      FL_REQUIRE(index >= 0 && index < extent, "{}: the sparse index {} is outside of {}", where, index, extent);
      at = at * extent + index;
    }
    FL_REQUIRE(at >= 0 && at < count, "{}: the sparse index {} is outside of {}", where, at, count);
    std::memcpy(tensor.as<char>() + at * size, values.as<char>() + i * size, static_cast<size_t>(size));
  }
  return tensor;
}

}  // namespace fuseloom::front::onnx
