#include "fuseloom/tensor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "op/element.h"
#include "op/stream.h"

namespace fuseloom {
namespace {

constexpr size_t kAlignment = 64;

// Element access on device memory would be a crash.
void require_host(const Tensor& tensor) {
  FL_REQUIRE(tensor.on_host(), "{} lies on a CUDA device; copy it to the host first (fuseloom/cuda.h)", tensor.type_string());
}

std::string dims_text(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(dims[i]);
  return text + "]";
}

// Zero-filled and aligned. calloc hands out untouched zero pages for large sizes, which a memset would fault in.
std::shared_ptr<void> allocate_zeroed(size_t bytes, void*& data) {
  void* block = std::calloc(bytes + kAlignment, 1);
  FL_REQUIRE(block != nullptr, "cannot allocate a tensor of {} bytes", bytes);
  std::shared_ptr<void> owner(block, std::free);
  const uintptr_t address = reinterpret_cast<uintptr_t>(block);
  data = reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
  return owner;
}

}  // namespace

int64_t element_count(std::span<const int64_t> dims) {
  int64_t count = 1;
  bool overflow = false;
  for (const int64_t size : dims) {
    FL_REQUIRE(size >= 0, "a tensor of shape {} has a negative size", dims_text(dims));
    if (size == 0) return 0;
    overflow = overflow || __builtin_mul_overflow(count, size, &count);
  }
  FL_REQUIRE(!overflow, "the element count of shape {} does not fit 63 bits", dims_text(dims));
  return count;
}

Dims contiguous_strides(std::span<const int64_t> dims) {
  Dims strides(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    // An empty tensor may have sizes whose product overflows; its strides are never used.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(dims[i], 1), &stride)) stride = 0;
  }
  return strides;
}

Tensor::Tensor(DType dtype, Dims dims) : dtype_(dtype), valid_(true), dims_(std::move(dims)) {
  const int64_t bytes = dtype_bytes(dtype_, element_count(dims_));
  strides_ = contiguous_strides(dims_);
  owner_ = allocate_zeroed(static_cast<size_t>(bytes), data_);
}

Tensor Tensor::borrow(DType dtype, Dims dims, void* data) {
  Dims strides = contiguous_strides(dims);
  return share(dtype, std::move(dims), std::move(strides), data, nullptr);
}

Tensor Tensor::borrow(DType dtype, Dims dims, Dims strides, void* data) {
  return share(dtype, std::move(dims), std::move(strides), data, nullptr);
}

Tensor Tensor::share(DType dtype, Dims dims, Dims strides, void* data, std::shared_ptr<void> owner) {
  FL_REQUIRE(dims.size() == strides.size(), "a tensor of rank {} was given {} strides", dims.size(), strides.size());
  const int64_t count = element_count(dims);
  FL_REQUIRE(data != nullptr || count == 0, "a tensor of shape {} was given no memory", dims_text(dims));
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.valid_ = true;
  tensor.dims_ = std::move(dims);
  tensor.strides_ = std::move(strides);
  tensor.data_ = data;
  tensor.owner_ = std::move(owner);
  return tensor;
}

Tensor Tensor::on_device(Device device, DType dtype, Dims dims, Dims strides, void* data, std::shared_ptr<void> owner) {
  Tensor tensor = share(dtype, std::move(dims), std::move(strides), data, std::move(owner));
  tensor.device_ = device;
  return tensor;
}

Tensor Tensor::of(DType dtype, Dims dims, std::span<const double> values) {
  Tensor tensor(dtype, std::move(dims));
  FL_REQUIRE(tensor.count() == static_cast<int64_t>(values.size()), "{} takes {} values, found {}",
             tensor.type_string(), tensor.count(), values.size());
  op::StreamWriter(tensor, op::Domain::Real).write(tensor.count(), values.data());
  return tensor;
}

Tensor Tensor::of_ints(DType dtype, Dims dims, std::span<const int64_t> values) {
  Tensor tensor(dtype, std::move(dims));
  FL_REQUIRE(tensor.count() == static_cast<int64_t>(values.size()), "{} takes {} values, found {}",
             tensor.type_string(), tensor.count(), values.size());
  op::StreamWriter(tensor, op::Domain::Int).write(tensor.count(), values.data());
  return tensor;
}

int64_t Tensor::count() const { return element_count(dims_); }

bool Tensor::contiguous() const {
  if (count() == 0) return true;
  int64_t expected = 1;
  for (size_t i = dims_.size(); i-- > 0;) {
    if (dims_[i] == 1) continue;
    if (strides_[i] != expected) return false;
    expected *= dims_[i];
  }
  return true;
}

int64_t Tensor::element_offset(int64_t linear) const {
  int64_t offset = 0;
  for (size_t i = dims_.size(); i-- > 0;) {
    offset += linear % dims_[i] * strides_[i];
    linear /= dims_[i];
  }
  return offset;
}

double Tensor::at(int64_t linear) const {
  require_host(*this);
  return op::with_storage(dtype_, [&]<class Storage>() -> double {
    return op::store<double>(op::load(as<Storage>()[element_offset(linear)]));
  });
}

double Tensor::imag_at(int64_t linear) const {
  require_host(*this);
  return op::with_storage(dtype_, [&]<class Storage>() -> double {
    return op::store<std::complex<double>>(op::load(as<Storage>()[element_offset(linear)])).imag();
  });
}

int64_t Tensor::int_at(int64_t linear) const {
  require_host(*this);
  return op::with_storage(dtype_, [&]<class Storage>() -> int64_t {
    return op::store<int64_t>(op::load(as<Storage>()[element_offset(linear)]));
  });
}

void Tensor::set(int64_t linear, double value) {
  require_host(*this);
  op::with_storage(dtype_, [&]<class Storage>() { as<Storage>()[element_offset(linear)] = op::store<Storage>(value); });
}

void Tensor::set_complex(int64_t linear, double real, double imag) {
  require_host(*this);
  op::with_storage(dtype_, [&]<class Storage>() {
    as<Storage>()[element_offset(linear)] = op::store<Storage>(std::complex<double>(real, imag));
  });
}

void Tensor::set_int(int64_t linear, int64_t value) {
  require_host(*this);
  op::with_storage(dtype_, [&]<class Storage>() { as<Storage>()[element_offset(linear)] = op::store<Storage>(value); });
}

Tensor Tensor::contiguous_copy() const {
  require_host(*this);
  Tensor copy(dtype_, dims_);
  op::copy_strided(dtype_, copy.data_, copy.strides_, data_, strides_, dims_);
  return copy;
}

Tensor Tensor::to_contiguous() const {
  if (!contiguous()) return contiguous_copy();
  Tensor same = *this;
  same.strides_ = contiguous_strides(dims_);
  return same;
}

Tensor Tensor::reshaped(Dims dims) const {
  FL_REQUIRE(contiguous(), "reshaped: {} is not contiguous; copy it with to_contiguous() first", type_string());
  FL_REQUIRE(element_count(dims) == count(), "reshaped: {} has {} elements, the shape {} has {}", type_string(),
             count(), dims_text(dims), element_count(dims));
  Tensor view = *this;
  view.strides_ = contiguous_strides(dims);
  view.dims_ = std::move(dims);
  return view;
}

Tensor Tensor::cast(DType dtype) const {
  require_host(*this);
  if (dtype == dtype_) return contiguous_copy();
  Tensor result(dtype, dims_);
  op::StreamReader reader(*this);
  op::StreamWriter writer(result, reader.domain());
  op::ChunkBuffer chunk;
  for (int64_t left = count(); left > 0; left -= op::kChunk) {
    const int64_t n = std::min(left, op::kChunk);
    reader.read(n, chunk.bytes);
    writer.write(n, chunk.bytes);
  }
  return result;
}

std::string Tensor::type_string() const { return std::string(dtype_name(dtype_)) + dims_text(dims_); }

}  // namespace fuseloom
