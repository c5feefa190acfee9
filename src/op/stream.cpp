#include "op/stream.h"

#include <algorithm>
#include <cstring>

namespace fuseloom::op {

void collapse(Dims& dims, Dims& strides) {
  size_t kept = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    if (kept > 0 && strides[kept - 1] == strides[i] * dims[i]) {
      dims[kept - 1] *= dims[i];
      strides[kept - 1] = strides[i];
    } else {
      dims[kept] = dims[i];
      strides[kept] = strides[i];
      ++kept;
    }
  }
  dims.resize(kept);
  strides.resize(kept);
}

Dims broadcast_strides(const Tensor& tensor, std::span<const int64_t> dims) {
  const size_t lead = dims.size() - static_cast<size_t>(tensor.rank());
  Dims strides(dims.size(), 0);
  for (size_t i = lead; i < dims.size(); ++i) {
    const size_t own = i - lead;
    if (tensor.dims()[own] != 1) strides[i] = tensor.strides()[own];
  }
  return strides;
}

StridedWalk::StridedWalk(Dims dims, Dims strides) : dims_(std::move(dims)), strides_(std::move(strides)) {
  // Sizes of an empty tensor may have a product that overflows; there is nothing to walk over.
  if (std::find(dims_.begin(), dims_.end(), 0) != dims_.end()) {
    dims_.clear();
    strides_.clear();
  }
  collapse(dims_, strides_);
  if (!dims_.empty()) {
    inner_ = dims_.back();
    stride_ = strides_.back();
    dims_.pop_back();
    strides_.pop_back();
  }
  index_.assign(dims_.size(), 0);
}

void StridedWalk::step_outer() {
  position_ = 0;
  for (size_t i = dims_.size(); i-- > 0;) {
    offset_ += strides_[i];
    if (++index_[i] < dims_[i]) return;
    offset_ -= strides_[i] * dims_[i];
    index_[i] = 0;
  }
}

namespace {

template <class Storage>
void load_run(const void* data, int64_t offset, int64_t stride, int64_t n, void* out, int64_t at) {
  const Storage* from = static_cast<const Storage*>(data) + offset;
  Computed<Storage>* to = static_cast<Computed<Storage>*>(out) + at;
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = load(from[i]);
  } else if (stride == 0) {
    std::fill_n(to, n, load(from[0]));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = load(from[i * stride]);
  }
}

template <class Storage, class Value>
void store_run(void* data, int64_t offset, int64_t stride, int64_t n, const void* values, int64_t at) {
  Storage* to = static_cast<Storage*>(data) + offset;
  const Value* from = static_cast<const Value*>(values) + at;
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = store<Storage>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = store<Storage>(from[i]);
  }
}

template <class Unit>
void copy_units(void* to, const Dims& to_strides, const void* from, const Dims& from_strides, const Dims& dims) {
  // Collapse where both sides allow it: a dimension of pairs (to stride, from stride).
  Dims sizes, outs, ins;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    if (!sizes.empty() && outs.back() == to_strides[i] * dims[i] && ins.back() == from_strides[i] * dims[i]) {
      sizes.back() *= dims[i];
      outs.back() = to_strides[i];
      ins.back() = from_strides[i];
    } else {
      sizes.push_back(dims[i]);
      outs.push_back(to_strides[i]);
      ins.push_back(from_strides[i]);
    }
  }
  int64_t inner = 1, out_stride = 1, in_stride = 1;
  if (!sizes.empty()) {
    inner = sizes.back();
    out_stride = outs.back();
    in_stride = ins.back();
    sizes.pop_back();
  }
  Dims index(sizes.size(), 0);
  Unit* out = static_cast<Unit*>(to);
  const Unit* in = static_cast<const Unit*>(from);
  while (true) {
    if (out_stride == 1 && in_stride == 1) {
      std::memcpy(out, in, static_cast<size_t>(inner) * sizeof(Unit));
    } else {
      for (int64_t i = 0; i < inner; ++i) out[i * out_stride] = in[i * in_stride];
    }
    size_t axis = sizes.size();
    while (axis-- > 0) {
      out += outs[axis];
      in += ins[axis];
      if (++index[axis] < sizes[axis]) break;
      out -= outs[axis] * sizes[axis];
      in -= ins[axis] * sizes[axis];
      index[axis] = 0;
    }
    if (axis == static_cast<size_t>(-1)) return;
  }
}

}  // namespace

StreamReader::StreamReader(const Tensor& tensor, Dims dims, Dims strides)
    : walk_(std::move(dims), std::move(strides)),
      data_(tensor.data()),
      domain_(domain_of(tensor.dtype())),
      load_run_(with_storage(tensor.dtype(), []<class Storage>() -> LoadRun { return &load_run<Storage>; })) {}

void StreamReader::read(int64_t n, void* out) {
  int64_t at = 0;
  walk_.advance(n, [&](int64_t offset, int64_t stride, int64_t run) {
    load_run_(data_, offset, stride, run, out, at);
    at += run;
  });
}

StreamWriter::StreamWriter(Tensor& tensor, Domain from, Dims dims, Dims strides)
    : walk_(std::move(dims), std::move(strides)),
      data_(tensor.data()),
      store_run_(with_storage(tensor.dtype(), [&]<class Storage>() -> StoreRun {
        return with_domain(from, []<class Value>() -> StoreRun { return &store_run<Storage, Value>; });
      })) {}

void StreamWriter::write(int64_t n, const void* values) {
  int64_t at = 0;
  walk_.advance(n, [&](int64_t offset, int64_t stride, int64_t run) {
    store_run_(data_, offset, stride, run, values, at);
    at += run;
  });
}

void copy_strided(DType dtype, void* to, const Dims& to_strides, const void* from, const Dims& from_strides,
                  const Dims& dims) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return;
  with_unit(dtype, [&]<class Unit>() { copy_units<Unit>(to, to_strides, from, from_strides, dims); });
}

void convert_chunk(Domain from, const void* in, Domain to, void* out, int64_t n) {
  with_domain(from, [&]<class From>() {
    with_domain(to, [&]<class To>() {
      const From* values = static_cast<const From*>(in);
      To* results = static_cast<To*>(out);
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<To, bool>) {
          results[i] = load(store<Bool8>(values[i]));
        } else {
          results[i] = store<To>(values[i]);
        }
      }
    });
  });
}

}  // namespace fuseloom::op
