// TensorProto → Tensor.
//
// Every element type of ONNX but strings is read. Those that fuseloom's DType does not have are carried in a wider type
// that holds each of their values exactly ("carrier"): 4-bit and 2-bit integers in i8 or u8, 8-bit and 4-bit floats in
// f32. The importer rounds to the narrow type wherever ONNX does.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "front/onnx/mapped_file.h"
#include "front/onnx/proto.h"
#include "fuseloom/tensor.h"

namespace fuseloom::front::onnx {

// Throws Unsupported for strings and for types that are not known; UserError for undefined. `where` is for the message.
DType carrier_dtype(ElementType type, const std::string& where);
// The element type whose DType is exactly this.
ElementType element_type_of(DType dtype);
bool is_narrow(ElementType type);  // has no DType of its own
// Bits of one element in raw data.
int64_t element_bits(ElementType type);

// A narrow float format: value = (-1)^sign * 1.mantissa * 2^(exponent - bias).
struct NarrowFloat {
  int exponent_bits = 0, mantissa_bits = 0, bias = 0;
  bool has_infinity = false;
  bool negative_zero_is_nan = false;  // the "fnuz" formats
  bool has_nan = true;
  double max = 0;  // the largest finite value
};
NarrowFloat narrow_float(ElementType type);  // of an 8-bit or 4-bit float but Float8E8M0
// The value of a narrow float's bits. Float8E8M0 is 2^(bits - 127); 255 is NaN.
float narrow_float_value(ElementType type, uint8_t bits);

// Where tensors come from: the model's folder for external data, and the mapping that raw data may be shared from.
class TensorSource {
 public:
  // `folder` is where external data may lie; nullptr owner: raw data is copied. has_folder = false: the model came as
  // bytes and external data is a UserError.
  TensorSource(std::string name, std::shared_ptr<void> owner, bool has_folder, std::string folder)
      : name_(std::move(name)), folder_(std::move(folder)), has_folder_(has_folder), owner_(std::move(owner)) {}

  // Shares the file's memory where it is aligned, else copies.
  Tensor load(const TensorProto& proto);
  Tensor load(const SparseTensorProto& proto);  // as a dense tensor
  const std::string& name() const { return name_; }

 private:
  Tensor from_bytes(const TensorProto& proto, std::string_view bytes, const std::shared_ptr<void>& owner,
                    const std::string& where) const;
  Tensor from_typed_data(const TensorProto& proto, const std::string& where) const;
  std::string_view external_bytes(const TensorProto& proto, std::shared_ptr<void>& owner, const std::string& where);

  std::string name_, folder_;
  bool has_folder_;
  std::shared_ptr<void> owner_;
  std::map<std::string, MappedFile> files_;  // external data, by location
};

}  // namespace fuseloom::front::onnx
