// Tensors as streams: a reader gives the elements of a strided tensor in a wanted order as values of its domain, a
// writer takes them. References work on chunks of such streams, so that the arithmetic is written once per domain and
// neither the element type nor the layout is looked at inside the hot loop.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fuseloom/tensor.h"
#include "op/element.h"

namespace fuseloom::op {

inline constexpr int64_t kChunk = 512;

// Room for one chunk of any domain.
struct ChunkBuffer {
  alignas(64) std::byte bytes[kChunk * sizeof(std::complex<double>)];
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes);
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes);
  }
};

// Merges neighbouring dimensions that one stride walks, and drops dimensions of size 1.
void collapse(Dims& dims, Dims& strides);

// Strides with which a tensor is read as if broadcast (right-aligned) to `dims`: 0 in repeated dimensions.
Dims broadcast_strides(const Tensor& tensor, std::span<const int64_t> dims);

// A walk over (dims, strides) in row-major order of dims, in runs of the innermost dimension.
class StridedWalk {
 public:
  StridedWalk(Dims dims, Dims strides);
  // Calls run(offset, stride, n) for pieces that together cover the next `count` elements.
  template <class Run>
  void advance(int64_t count, Run&& run) {
    while (count > 0) {
      const int64_t left = inner_ - position_;
      const int64_t n = count < left ? count : left;
      run(offset_ + position_ * stride_, stride_, n);
      count -= n;
      position_ += n;
      if (position_ == inner_) step_outer();
    }
  }

 private:
  void step_outer();
  Dims dims_, strides_, index_;     // the outer dimensions
  int64_t inner_ = 1, stride_ = 0;  // the innermost
  int64_t position_ = 0, offset_ = 0;
};

class StreamReader {
 public:
  explicit StreamReader(const Tensor& tensor) : StreamReader(tensor, tensor.dims(), tensor.strides()) {}
  // Reads the tensor's memory in row-major order of `dims` with these strides (in elements).
  StreamReader(const Tensor& tensor, Dims dims, Dims strides);
  Domain domain() const { return domain_; }
  // The next n elements (n <= what is left) into n values of the domain.
  void read(int64_t n, void* out);

 private:
  using LoadRun = void (*)(const void* data, int64_t offset, int64_t stride, int64_t n, void* out, int64_t at);
  StridedWalk walk_;
  const void* data_;
  Domain domain_;
  LoadRun load_run_;
};

class StreamWriter {
 public:
  // `from`: the domain of the values to come; they are cast to the tensor's dtype.
  StreamWriter(Tensor& tensor, Domain from) : StreamWriter(tensor, from, tensor.dims(), tensor.strides()) {}
  StreamWriter(Tensor& tensor, Domain from, Dims dims, Dims strides);
  void write(int64_t n, const void* values);

 private:
  using StoreRun = void (*)(void* data, int64_t offset, int64_t stride, int64_t n, const void* values, int64_t at);
  StridedWalk walk_;
  void* data_;
  StoreRun store_run_;
};

// Copies elements between two strided regions of the same dims.
void copy_strided(DType dtype, void* to, const Dims& to_strides, const void* from, const Dims& from_strides,
                  const Dims& dims);

// Converts n values of one domain to another, as `cast` does.
void convert_chunk(Domain from, const void* in, Domain to, void* out, int64_t n);

}  // namespace fuseloom::op
