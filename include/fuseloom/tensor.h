// A tensor: element type, sizes, strides, and memory it owns or borrows, of the host or of a CUDA device. What reads or
// writes elements here needs host memory; fuseloom/cuda.h copies to and from devices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fuseloom/device.h"
#include "fuseloom/dtype.h"

namespace fuseloom {

using Dims = std::vector<int64_t>;

class Tensor {
 public:
  Tensor() = default;
  // Owned, contiguous (row-major), 64-byte aligned, filled with zero. Throws UserError for a negative size or an
  // element count that does not fit 63 bits.
  Tensor(DType dtype, Dims dims);
  // Borrowed memory, which must outlive the tensor. Without strides: contiguous. Strides are in elements.
  static Tensor borrow(DType dtype, Dims dims, void* data);
  static Tensor borrow(DType dtype, Dims dims, Dims strides, void* data);
  // Shares `owner`, which keeps `data` alive.
  static Tensor share(DType dtype, Dims dims, Dims strides, void* data, std::shared_ptr<void> owner);
  // Memory of `device`, whose address `data` is; `owner` may be null, for borrowed memory.
  static Tensor on_device(Device device, DType dtype, Dims dims, Dims strides, void* data, std::shared_ptr<void> owner);
  // A tensor of these values, converted to dtype.
  static Tensor of(DType dtype, Dims dims, std::span<const double> values);
  static Tensor of(DType dtype, Dims dims, std::initializer_list<double> values) {
    return of(dtype, std::move(dims), std::span<const double>(values.begin(), values.size()));
  }
  static Tensor of_ints(DType dtype, Dims dims, std::span<const int64_t> values);
  static Tensor scalar(DType dtype, double value) { return of(dtype, {}, {value}); }

  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  const Dims& strides() const { return strides_; }
  int64_t rank() const { return static_cast<int64_t>(dims_.size()); }
  int64_t dim(int64_t axis) const { return dims_[static_cast<size_t>(axis)]; }
  int64_t count() const;                                   // number of elements
  int64_t bytes() const { return dtype_bytes(dtype_, count()); }
  bool contiguous() const;                                 // strides of empty tensors and size-1 dimensions are ignored
  Device device() const { return device_; }
  bool on_host() const { return device_.kind == DeviceKind::Cpu; }
  bool valid() const { return data_ != nullptr || valid_; }

  void* data() { return data_; }
  const void* data() const { return data_; }
  template <class T> T* as() { return static_cast<T*>(data_); }
  template <class T> const T* as() const { return static_cast<const T*>(data_); }
  const std::shared_ptr<void>& owner() const { return owner_; }

  // The element at a linear row-major index (strides respected), converted. Complex: the real part / imag() the other.
  double at(int64_t linear) const;
  double imag_at(int64_t linear) const;
  int64_t int_at(int64_t linear) const;                    // exact for every integer type; floats truncate
  void set(int64_t linear, double value);                  // rounds to dtype (docs/numerics.md)
  void set_complex(int64_t linear, double real, double imag);
  void set_int(int64_t linear, int64_t value);

  Tensor contiguous_copy() const;                          // always a fresh owned copy
  Tensor to_contiguous() const;                            // itself when contiguous
  Tensor reshaped(Dims dims) const;                        // contiguous only; shares memory; throws UserError
  Tensor cast(DType dtype) const;                          // the cast of docs/numerics.md

  int64_t element_offset(int64_t linear) const;            // in elements, strides respected
  std::string type_string() const;                         // "f32[2,3]"

 private:
  DType dtype_ = DType::F32;
  bool valid_ = false;
  Dims dims_, strides_;
  void* data_ = nullptr;
  std::shared_ptr<void> owner_;
  Device device_;
};

Dims contiguous_strides(std::span<const int64_t> dims);
int64_t element_count(std::span<const int64_t> dims);      // throws UserError on overflow or a negative size

}  // namespace fuseloom
