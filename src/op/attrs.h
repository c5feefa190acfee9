// Attributes of a node: a small ordered map from name to value. Sizes that may be symbolic are `Shape` (exprs).
// A node's attributes become concrete when every Shape attribute is evaluated to std::vector<int64_t>.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "op/type.h"

namespace fuseloom::op {

using AttrValue = std::variant<int64_t, double, std::string, DType, std::vector<int64_t>, std::vector<double>, Shape, Tensor>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, AttrValue>> values) : values_(values) {}
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  void set(std::string name, AttrValue value) { values_.insert_or_assign(std::move(name), std::move(value)); }
  void erase(std::string_view name);

  // Typed access. A missing attribute or one of another kind throws InternalError unless a fallback is given. The op
  // table's schema check runs before, so a user never sees these. Integers are accepted where a double is asked for,
  // an integer list where a Shape is asked for.
  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t fallback) const;
  double real(std::string_view name) const;
  double real(std::string_view name, double fallback) const;
  const std::string& text(std::string_view name) const;
  std::string text(std::string_view name, std::string_view fallback) const;
  DType dtype(std::string_view name) const;
  const std::vector<int64_t>& integers(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name, std::vector<int64_t> fallback) const;
  const std::vector<double>& reals(std::string_view name) const;
  Shape shape(std::string_view name) const;
  const Tensor& tensor(std::string_view name) const;

  const std::map<std::string, AttrValue, std::less<>>& all() const { return values_; }

 private:
  std::map<std::string, AttrValue, std::less<>> values_;
};

// Text: {axis = 1, eps = 1.0e-5, mode = "edge", to = :f16, perm = [0, 2, 1], alpha = [0.5, 1.0], shape = <s0, 4>,
// value = f32[2] {1.0, 2.0}}. A tensor literal above 64 elements prints as f32[1000] @<hash128 hex>; its bytes travel
// beside the text (ConstantPool) and parsing it without them is a UserError.
using ConstantPool = std::map<std::string, Tensor>;   // hash → tensor
std::string to_string(const AttrValue& value);
std::string to_string(const Attrs& attrs);            // "" when empty
Attrs parse_attrs(base::Lexer& lexer, const ConstantPool& pool = {});   // at '{'
std::string tensor_hash(const Tensor& tensor);        // content hash over dtype, dims and bytes
bool equal(const Attrs& a, const Attrs& b);           // structural; tensors by content
uint64_t hash(const Attrs& attrs);

// Every Shape attribute evaluated, except `defines`: it names symbols that get their values from the node. Throws
// UserError naming a symbol without a value.
Attrs concrete(const Attrs& attrs, const std::map<std::string, int64_t>& symbols);
// Substitutes symbols in every Shape attribute.
Attrs substitute(const Attrs& attrs, const sym::Substitution& by);

}  // namespace fuseloom::op
