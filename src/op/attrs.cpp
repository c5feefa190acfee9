#include "op/attrs.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "base/lexer.h"
#include "sym/evaluator.h"

namespace fuseloom::op {
namespace {

// Literals above this many elements are printed by hash.
constexpr int64_t kLiteralLimit = 64;

const char* kind_name(const AttrValue& value) {
  static constexpr const char* kNames[] = {"integer", "real", "text", "type", "integers", "reals", "sizes", "tensor"};
  return kNames[value.index()];
}

[[noreturn]] void wrong_kind(std::string_view name, const char* wanted, const AttrValue& value) {
  FL_CHECK(false, "attribute '{}' is asked for as {}, but is {}", name, wanted, kind_name(value));
  __builtin_unreachable();
}

const AttrValue& find(const std::map<std::string, AttrValue, std::less<>>& values, std::string_view name) {
  const auto it = values.find(name);
  FL_CHECK(it != values.end(), "attribute '{}' is missing", name);
  return it->second;
}

template <class T>
const T& get(const std::map<std::string, AttrValue, std::less<>>& values, std::string_view name, const char* wanted) {
  const AttrValue& value = find(values, name);
  const T* typed = std::get_if<T>(&value);
  if (typed == nullptr) wrong_kind(name, wanted, value);
  return *typed;
}

// The shortest text that reads back as exactly this element of the tensor.
std::string float_text(double value, DType dtype) {
  if (dtype != DType::F64 && dtype != DType::C128 && std::isfinite(value)) {
    // Elements of f32 and below are floats: the shortest text of the float is shorter than that of the double. Reading
    // goes through double; in the rare case where rounding twice gives another float, the double's text is used.
    std::string text = fmt::format("{}", static_cast<float>(value));
    if (static_cast<double>(static_cast<float>(std::strtod(text.c_str(), nullptr))) == value) {
      if (text.find_first_of(".e") == std::string::npos) text += ".0";
      return text;
    }
  }
  return base::format_double(value);
}

std::string tensor_text(const Tensor& tensor) {
  std::string text = to_string(TensorType{tensor.dtype(), shape_of(tensor.dims())});
  const int64_t count = tensor.count();
  if (count > kLiteralLimit) return text + " @" + tensor_hash(tensor);
  text += " {";
  for (int64_t i = 0; i < count; ++i) {
    if (i != 0) text += ", ";
    if (is_float(tensor.dtype())) {
      text += float_text(tensor.at(i), tensor.dtype());
    } else if (is_complex(tensor.dtype())) {
      text += float_text(tensor.at(i), tensor.dtype()) + ", " + float_text(tensor.imag_at(i), tensor.dtype());
    } else {
      // u64 above 2^63 - 1 prints as the negative integer with the same bits: the lexer's integers are signed.
      text += fmt::format("{}", tensor.int_at(i));
    }
  }
  return text + "}";
}

Tensor parse_tensor(base::Lexer& lexer, const ConstantPool& pool) {
  const TensorType type = parse_type(lexer);
  Dims dims;
  for (const sym::Expr& size : type.shape) {
    if (!size.is_const() || *size.as_const() < 0) lexer.fail("a tensor literal needs constant sizes");
    dims.push_back(*size.as_const());
  }
  if (lexer.peek().kind == base::Token::Kind::Symbol) {
    const auto it = pool.find(lexer.peek().text);
    if (it == pool.end()) lexer.fail(fmt::format("the bytes of constant @{} are not in the pool", lexer.peek().text));
    if (it->second.dtype() != type.dtype || it->second.dims() != dims) {
      lexer.fail(fmt::format("constant @{} is {} in the pool", lexer.peek().text, it->second.type_string()));
    }
    lexer.next();
    return it->second;
  }
  const int64_t count = element_count(dims);
  if (count > kLiteralLimit)
    lexer.fail(fmt::format("a literal of more than {} elements is written as @hash", kLiteralLimit));
  Tensor tensor(type.dtype, dims);
  lexer.expect("{");
  for (int64_t i = 0; i < count; ++i) {
    if (i != 0) lexer.expect(",");
    if (is_float(type.dtype)) {
      tensor.set(i, lexer.expect_number());
    } else if (is_complex(type.dtype)) {
      const double real = lexer.expect_number();
      lexer.expect(",");
      tensor.set_complex(i, real, lexer.expect_number());
    } else {
      tensor.set_int(i, lexer.expect_integer());
    }
  }
  lexer.expect("}");
  return tensor;
}

bool starts_real(const base::Token& token) {
  return token.kind == base::Token::Kind::Float || token.is("inf") || token.is("nan");
}

// A number: an integer stays one when nothing makes it a real.
AttrValue parse_number(base::Lexer& lexer) {
  const bool negative = lexer.accept("-");
  if (starts_real(lexer.peek())) {
    const double magnitude = lexer.expect_number();
    return negative ? -magnitude : magnitude;
  }
  const base::Token& token = lexer.peek();
  if (token.kind == base::Token::Kind::Integer && negative && token.integer == INT64_MIN) {
    lexer.next();
    return INT64_MIN;
  }
  const int64_t magnitude = lexer.expect_integer();
  return negative ? -magnitude : magnitude;
}

AttrValue parse_list(base::Lexer& lexer) {
  std::vector<int64_t> integers;
  std::vector<double> reals;
  bool real = false;
  lexer.expect("[");
  if (!lexer.accept("]")) {
    do {
      const AttrValue number = parse_number(lexer);
      if (const int64_t* integer = std::get_if<int64_t>(&number)) {
        integers.push_back(*integer);
        reals.push_back(static_cast<double>(*integer));
      } else {
        real = true;
        reals.push_back(std::get<double>(number));
      }
    } while (lexer.accept(","));
    lexer.expect("]");
  }
  if (real) return reals;
  return integers;
}

AttrValue parse_value(base::Lexer& lexer, const ConstantPool& pool) {
  const base::Token& token = lexer.peek();
  if (token.kind == base::Token::Kind::String) return lexer.expect_string();
  if (token.is("[")) return parse_list(lexer);
  if (lexer.accept(":")) {
    const std::optional<DType> dtype = parse_dtype(lexer.peek().text);
    if (!dtype) lexer.fail(fmt::format("'{}' is no element type", lexer.peek().text));
    lexer.next();
    return *dtype;
  }
  if (lexer.accept("<")) {
    Shape shape;
    if (lexer.accept(">")) return shape;
    do {
      shape.push_back(sym::parse_expr(lexer));
    } while (lexer.accept(","));
    lexer.expect(">");
    return shape;
  }
  if (lexer.accept("reals")) {
    lexer.expect("[");
    lexer.expect("]");
    return std::vector<double>();
  }
  if (token.kind == base::Token::Kind::Name && parse_dtype(token.text)) return parse_tensor(lexer, pool);
  if (token.is("-") || token.kind == base::Token::Kind::Integer || starts_real(token)) return parse_number(lexer);
  lexer.fail(fmt::format("expected an attribute value, found '{}'", token.text));
}

bool equal_tensors(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.dims() != b.dims()) return false;
  const Tensor left = a.to_contiguous(), right = b.to_contiguous();
  return left.count() == 0 || left.data() == right.data() ||
         std::memcmp(left.data(), right.data(), static_cast<size_t>(left.bytes())) == 0;
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool equal_values(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (const double* real = std::get_if<double>(&a)) return same_bits(*real, std::get<double>(b));
  if (const Tensor* tensor = std::get_if<Tensor>(&a)) return equal_tensors(*tensor, std::get<Tensor>(b));
  if (const std::vector<double>* reals = std::get_if<std::vector<double>>(&a)) {
    const std::vector<double>& others = std::get<std::vector<double>>(b);
    if (reals->size() != others.size()) return false;
    for (size_t i = 0; i < reals->size(); ++i) {
      if (!same_bits((*reals)[i], others[i])) return false;
    }
    return true;
  }
  if (const int64_t* integer = std::get_if<int64_t>(&a)) return *integer == std::get<int64_t>(b);
  if (const std::string* text = std::get_if<std::string>(&a)) return *text == std::get<std::string>(b);
  if (const DType* dtype = std::get_if<DType>(&a)) return *dtype == std::get<DType>(b);
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&a))
    return *integers == std::get<std::vector<int64_t>>(b);
  return std::get<Shape>(a) == std::get<Shape>(b);
}

}  // namespace

void Attrs::erase(std::string_view name) {
  const auto it = values_.find(name);
  if (it != values_.end()) values_.erase(it);
}

int64_t Attrs::integer(std::string_view name) const { return get<int64_t>(values_, name, "an integer"); }
int64_t Attrs::integer(std::string_view name, int64_t fallback) const { return has(name) ? integer(name) : fallback; }

double Attrs::real(std::string_view name) const {
  const AttrValue& value = find(values_, name);
  if (const int64_t* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
  return get<double>(values_, name, "a real");
}
double Attrs::real(std::string_view name, double fallback) const { return has(name) ? real(name) : fallback; }

const std::string& Attrs::text(std::string_view name) const { return get<std::string>(values_, name, "text"); }
std::string Attrs::text(std::string_view name, std::string_view fallback) const {
  return has(name) ? text(name) : std::string(fallback);
}

DType Attrs::dtype(std::string_view name) const { return get<DType>(values_, name, "a type"); }

const std::vector<int64_t>& Attrs::integers(std::string_view name) const {
  return get<std::vector<int64_t>>(values_, name, "integers");
}
std::vector<int64_t> Attrs::integers(std::string_view name, std::vector<int64_t> fallback) const {
  return has(name) ? integers(name) : fallback;
}

const std::vector<double>& Attrs::reals(std::string_view name) const {
  return get<std::vector<double>>(values_, name, "reals");
}

Shape Attrs::shape(std::string_view name) const {
  const AttrValue& value = find(values_, name);
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) return shape_of(*integers);
  return get<Shape>(values_, name, "sizes");
}

const Tensor& Attrs::tensor(std::string_view name) const { return get<Tensor>(values_, name, "a tensor"); }

std::string to_string(const AttrValue& value) {
  const auto list = [](const auto& items, const char* open, const char* close, auto&& print) {
    std::string text = open;
    for (size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : ", ") + print(items[i]);
    return text + close;
  };
  if (const int64_t* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const double* real = std::get_if<double>(&value)) return base::format_double(*real);
  if (const std::string* text = std::get_if<std::string>(&value)) return base::quote(*text);
  if (const DType* dtype = std::get_if<DType>(&value)) return ":" + std::string(dtype_name(*dtype));
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    return list(*integers, "[", "]", [](int64_t item) { return fmt::format("{}", item); });
  }
  if (const auto* reals = std::get_if<std::vector<double>>(&value)) {
    return list(*reals, reals->empty() ? "reals[" : "[", "]", [](double item) { return base::format_double(item); });
  }
  if (const Shape* shape = std::get_if<Shape>(&value)) {
    return list(*shape, "<", ">", [](const sym::Expr& item) { return sym::to_string(item); });
  }
  return tensor_text(std::get<Tensor>(value));
}

std::string to_string(const Attrs& attrs) {
  if (attrs.all().empty()) return "";
  std::string text = "{";
  for (const auto& [name, value] : attrs.all()) {
    if (text.size() > 1) text += ", ";
    text += name + " = " + to_string(value);
  }
  return text + "}";
}

Attrs parse_attrs(base::Lexer& lexer, const ConstantPool& pool) {
  Attrs attrs;
  lexer.expect("{");
  if (lexer.accept("}")) return attrs;
  do {
    const base::Token name = lexer.peek();
    if (attrs.has(name.text)) lexer.fail(fmt::format("attribute '{}' is given twice", name.text));
    lexer.expect_name();
    lexer.expect("=");
    attrs.set(name.text, parse_value(lexer, pool));
  } while (lexer.accept(","));
  lexer.expect("}");
  return attrs;
}

std::string tensor_hash(const Tensor& tensor) {
  const Tensor packed = tensor.to_contiguous();
  const base::Hash128 type = base::hash_text(packed.type_string());
  return base::hash_bytes(packed.data(), static_cast<size_t>(packed.bytes()), type.low).hex();
}

bool equal(const Attrs& a, const Attrs& b) {
  if (a.all().size() != b.all().size()) return false;
  for (auto left = a.all().begin(), right = b.all().begin(); left != a.all().end(); ++left, ++right) {
    if (left->first != right->first || !equal_values(left->second, right->second)) return false;
  }
  return true;
}

uint64_t hash(const Attrs& attrs) { return base::hash_text(to_string(attrs)).low; }

Attrs concrete(const Attrs& attrs, const std::map<std::string, int64_t>& symbols) {
  Attrs result;
  for (const auto& [name, value] : attrs.all()) {
    const Shape* shape = std::get_if<Shape>(&value);
    // `defines` names symbols that the node gives a value to; there is nothing to evaluate yet.
    if (shape == nullptr || name == "defines") {
      result.set(name, value);
      continue;
    }
    std::vector<int64_t> sizes;
    for (const sym::Expr& size : *shape) sizes.push_back(sym::evaluate(size, symbols));
    result.set(name, std::move(sizes));
  }
  return result;
}

Attrs substitute(const Attrs& attrs, const sym::Substitution& by) {
  Attrs result = attrs;
  for (const auto& [name, value] : attrs.all()) {
    const Shape* shape = std::get_if<Shape>(&value);
    if (shape == nullptr) continue;
    Shape replaced;
    for (const sym::Expr& size : *shape) replaced.push_back(sym::substitute(size, by));
    result.set(name, std::move(replaced));
  }
  return result;
}

}  // namespace fuseloom::op
