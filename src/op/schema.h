// Words for writing op records: attribute specifications, axes, and checks that hold for many ops. All checks throw
// UserError through InferContext::fail.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/check.h"
#include "op/axis.h"
#include "op/op.h"

namespace fuseloom::op {

inline AttrSpec required_attr(std::string name, AttrSpec::Kind kind) { return {std::move(name), kind, true}; }
inline AttrSpec optional_attr(std::string name, AttrSpec::Kind kind) { return {std::move(name), kind, false}; }

// An axis counted from the front; fails outside [-rank, rank). A 0-d tensor is treated as having one axis.
inline int64_t axis_in_rank(const InferContext& context, int64_t axis, int64_t rank) {
  return normal_axis(context.record->name, axis, rank);
}
// The same in a reference, where inference has checked the range already.
inline int64_t wrap_axis(int64_t axis, int64_t rank) { return axis < 0 ? axis + std::max<int64_t>(rank, 1) : axis; }

// Fails when two sizes are known to differ; sizes that may be equal pass and are compared at run time.
inline void expect_size(const InferContext& context, std::string_view what, const sym::Expr& got,
                        const sym::Expr& expected) {
  if (got.is_const() && expected.is_const() && !(got == expected))
    context.fail(fmt::format("{} is {}, expected {}", what, sym::to_string(got), sym::to_string(expected)));
}
inline void expect_rank(const InferContext& context, std::string_view what, const TensorType& type, int64_t rank) {
  if (type.rank() != rank) context.fail(fmt::format("{} is {}, expected rank {}", what, to_string(type), rank));
}
inline void expect_dtype(const InferContext& context, std::string_view what, const TensorType& type, DType dtype) {
  if (type.dtype != dtype)
    context.fail(fmt::format("{} is {}, expected {}", what, dtype_name(type.dtype), dtype_name(dtype)));
}
inline void expect_float(const InferContext& context, std::string_view what, const TensorType& type) {
  if (!is_float(type.dtype)) context.fail(fmt::format("{} is {}, expected a float type", what, dtype_name(type.dtype)));
}
inline void expect_index(const InferContext& context, std::string_view what, const TensorType& type) {
  if (type.dtype != DType::I32 && type.dtype != DType::I64)
    context.fail(fmt::format("{} is {}, expected i32 or i64", what, dtype_name(type.dtype)));
}
// An attribute that holds one entry per dimension.
inline void expect_entries(const InferContext& context, std::string_view attribute, size_t got, int64_t expected) {
  if (static_cast<int64_t>(got) != expected)
    context.fail(fmt::format("{} has {} entries, expected {}", attribute, got, expected));
}
// An attribute with one of a few words.
inline void expect_text(const InferContext& context, std::string_view attribute, const std::string& got,
                        std::initializer_list<std::string_view> words) {
  std::string list;
  for (const std::string_view word : words) {
    if (got == word) return;
    list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", word);
  }
  context.fail(fmt::format("{} is \"{}\", expected one of {}", attribute, got, list));
}

}  // namespace fuseloom::op
