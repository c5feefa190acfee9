#include "emit/c_like.h"

#include <cmath>

#include "base/check.h"
#include "base/lexer.h"

namespace fuseloom::emit {

std::string_view c_type(DType dtype) {
  switch (dtype) {
    case DType::Bool: return "bool";
    case DType::I8: return "i8";
    case DType::I16: return "i16";
    case DType::I32: return "i32";
    case DType::I64: return "i64";
    case DType::U8: return "u8";
    case DType::U16: return "u16";
    case DType::U32: return "u32";
    case DType::U64: return "u64";
    case DType::F16: return "u16";
    case DType::BF16: return "u16";
    case DType::F32: return "f32";
    case DType::F64: return "f64";
    case DType::C64: return "c64";
    case DType::C128: return "c128";
  }
  throw InternalError("c_type: unknown dtype");
}

std::string_view c_storage_type(DType dtype) { return dtype == DType::Bool ? "u8" : c_type(dtype); }

std::string_view c_typedef(std::string_view type) {
  if (type == "i8") return "typedef signed char i8;";
  if (type == "i16") return "typedef short i16;";
  if (type == "i32") return "typedef int i32;";
  // long long: the vector builtins of both compilers are declared with it.
  if (type == "i64") return "typedef long long i64;";
  if (type == "u8") return "typedef unsigned char u8;";
  if (type == "u16") return "typedef unsigned short u16;";
  if (type == "u32") return "typedef unsigned int u32;";
  if (type == "u64") return "typedef unsigned long long u64;";
  if (type == "f32") return "typedef float f32;";
  if (type == "f64") return "typedef double f64;";
  throw InternalError(fmt::format("c_typedef: no plain type '{}'", type));
}

std::string float_literal(DType dtype, double value) {
  const bool single = dtype != DType::F64 && dtype != DType::C128;
  const std::string_view suffix = single ? "f" : "";
  const double rounded = single ? static_cast<double>(static_cast<float>(value)) : value;
  if (std::isnan(rounded)) return fmt::format("__builtin_nan{}(\"\")", suffix);
  if (std::isinf(rounded)) return fmt::format("{}__builtin_inf{}()", rounded < 0 ? "-" : "", suffix);
  if (!single) return base::format_double(rounded);
  std::string text = fmt::format("{}", static_cast<float>(rounded));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

std::string int64_literal(int64_t value) {
  if (value == INT64_MIN) return "(-9223372036854775807 - 1)";
  return fmt::format("{}", value);
}

std::string integer_literal(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::Bool: return value != 0 ? "true" : "false";
    case DType::I8: return fmt::format("(i8){}", static_cast<int8_t>(value));
    case DType::I16: return fmt::format("(i16){}", static_cast<int16_t>(value));
    case DType::I32:
      return static_cast<int32_t>(value) == INT32_MIN ? "(-2147483647 - 1)" : fmt::format("{}", static_cast<int32_t>(value));
    case DType::I64: return fmt::format("(i64){}", int64_literal(value));
    case DType::U8: return fmt::format("(u8){}", static_cast<uint8_t>(value));
    case DType::U16: return fmt::format("(u16){}", static_cast<uint16_t>(value));
    case DType::U32: return fmt::format("{}u", static_cast<uint32_t>(value));
    case DType::U64: return fmt::format("(u64){}u", static_cast<uint64_t>(value));
    case DType::F16: case DType::BF16: case DType::F32: case DType::F64: case DType::C64: case DType::C128: break;
  }
  throw InternalError(fmt::format("integer_literal: {} is no integer type", dtype_name(dtype)));
}

// ---- names -----------------------------------------------------------------------------------------------------------
namespace {

constexpr std::string_view kReserved[] = {
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class", "compl", "concept", "const",
    "continue", "decltype", "default", "delete", "do", "double", "else", "enum", "explicit", "export", "extern", "false",
    "float", "for", "friend", "goto", "if", "inline", "int", "linux", "long", "mutable", "namespace", "new", "noexcept", "not",
    "nullptr", "operator", "or", "private", "protected", "public", "register", "requires", "return", "short", "signed",
    "sizeof", "static", "struct", "switch", "template", "this", "throw", "true", "try", "typedef", "typeid", "typename",
    "union", "unix", "unsigned", "using", "virtual", "void", "volatile", "while", "xor", "not_eq", "or_eq", "and_eq", "bitand",
    "bitor", "xor_eq",
    // the entry's parameters and the types of the prelude
    "buffers", "sizes", "scratch", "begin", "end", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "c64",
    "c128",
    // CUDA
    "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "shared_memory", "words", "thread", "part", "first",
    // libm
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "exp", "expm1", "fmod", "log", "log1p",
    "pow", "sin", "sinh", "tan", "tanh", "hypot",
};

// Names of the prelude end in a type: _f32, _i64x8, ...
bool looks_like_prelude(std::string_view name) {
  const size_t underscore = name.rfind('_');
  if (underscore == std::string_view::npos) return false;
  const std::string_view tail = name.substr(underscore + 1);
  if (tail.size() < 2 || std::string_view("iufcb").find(tail[0]) == std::string_view::npos) return false;
  return tail.find_first_not_of("0123456789x", 1) == std::string_view::npos;
}

}  // namespace

std::string NameScope::declare(std::string_view wanted) {
  std::string base;
  for (const char c : wanted) base += c == '.' ? '_' : c;
  if (looks_like_prelude(base) || base.starts_with("__")) base = "k_" + base + "_";
  for (const std::string_view reserved : kReserved)
    if (base == reserved) base += '_';
  std::string name = base;
  for (int suffix = 2; !taken_.insert(name).second; ++suffix) name = fmt::format("{}_n{}", base, suffix);
  order_.push_back(name);
  return name;
}

void NameScope::close() {
  while (order_.size() > marks_.back()) {
    taken_.erase(order_.back());
    order_.pop_back();
  }
  marks_.pop_back();
}

bool mentions(std::string_view text, std::string_view name) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const bool begins = at == 0 || !is_part(text[at - 1]);
    const bool ends = at + name.size() >= text.size() || !is_part(text[at + name.size()]);
    if (begins && ends) return true;
  }
  return false;
}

// ---- writer ----------------------------------------------------------------------------------------------------------
void SourceWriter::text_line(std::string_view text) {
  if (!text.empty()) text_.append(static_cast<size_t>(depth_) * 2, ' ');
  text_ += text;
  text_ += '\n';
}

void SourceWriter::close(std::string_view end) {
  --depth_;
  text_line(end);
}

// ---- integers --------------------------------------------------------------------------------------------------------
bool is_c_division(const sym::Expr& numerator, const sym::Expr& divisor, const sym::Facts& facts) {
  return sym::bounds(divisor, facts).low > 0 && sym::bounds(numerator, facts).low >= 0;
}

namespace {
// -x as x, when the term is a product with a negative constant or a negative constant.
std::optional<sym::Expr> without_minus(const sym::Expr& term) {
  if (const std::optional<int64_t> value = term.as_const()) {
    if (*value < 0 && *value != INT64_MIN) return sym::Expr(-*value);
    return std::nullopt;
  }
  if (term.kind() != sym::Kind::Mul) return std::nullopt;
  for (const sym::Expr& factor : term.args()) {
    const std::optional<int64_t> value = factor.as_const();
    if (value && *value < 0 && *value != INT64_MIN) return -term;
  }
  return std::nullopt;
}
}  // namespace

std::string IntegerText::sum(const sym::Expr& expr) const {
  // Terms with a plus first, so that the text does not begin with a minus where it need not.
  std::string positive, negative;
  for (const sym::Expr& term : expr.args()) {
    if (const std::optional<sym::Expr> magnitude = without_minus(term)) {
      negative += " - " + print(*magnitude, 3);
    } else {
      positive += (positive.empty() ? "" : " + ") + print(term, 2);
    }
  }
  if (positive.empty()) return "-" + negative.substr(3);
  return positive + negative;
}

std::string IntegerText::condition(const sym::Expr& expr) const {
  const auto compare = [&](std::string_view op) {
    return fmt::format("{} {} {}", print(expr.args()[0], 2), op, print(expr.args()[1], 2));
  };
  switch (expr.kind()) {
    case sym::Kind::Eq: return compare("==");
    case sym::Kind::Ne: return compare("!=");
    case sym::Kind::Lt: return compare("<");
    case sym::Kind::Le: return compare("<=");
    case sym::Kind::Const: case sym::Kind::Symbol: case sym::Kind::Add: case sym::Kind::Mul: case sym::Kind::FloorDiv:
    case sym::Kind::Mod: case sym::Kind::Min: case sym::Kind::Max: case sym::Kind::Select:
      return fmt::format("{} != 0", print(expr, 2));
  }
  throw InternalError("integer text: unknown expression");
}

std::string IntegerText::print(const sym::Expr& expr, int precedence) const {
  const auto call = [&](std::string_view function) {
    // Min and Max are n-ary: nested calls of the binary helper.
    std::string text = value(expr.args()[0]);
    for (size_t i = 1; i < expr.args().size(); ++i)
      text = fmt::format("{}({}, {})", helper(function), text, value(expr.args()[i]));
    return text;
  };
  const auto division = [&](std::string_view op, std::string_view function) {
    if (!is_c_division(expr.args()[0], expr.args()[1], *facts)) return call(function);
    std::string text = fmt::format("{} {} {}", print(expr.args()[0], 3), op, print(expr.args()[1], 4));
    return precedence >= 2 ? "(" + text + ")" : text;
  };
  if (named) {
    if (std::string variable = named(expr); !variable.empty()) return variable;
  }
  switch (expr.kind()) {
    case sym::Kind::Const: {
      const int64_t constant = *expr.as_const();
      return constant < 0 && precedence >= 2 && constant != INT64_MIN ? "(" + int64_literal(constant) + ")"
                                                                      : int64_literal(constant);
    }
    case sym::Kind::Symbol: return name(expr.name());
    case sym::Kind::Add: {
      std::string text = sum(expr);
      return precedence >= 3 || (precedence == 2 && text[0] == '-') ? "(" + text + ")" : text;
    }
    case sym::Kind::Mul: {
      std::string variables, constants;
      for (const sym::Expr& factor : expr.args()) {
        std::string& part = factor.is_const() ? constants : variables;
        part += (part.empty() ? "" : "*") + print(factor, 3);
      }
      std::string text = constants.empty() ? variables : variables + "*" + constants;
      return precedence >= 4 ? "(" + text + ")" : text;
    }
    case sym::Kind::FloorDiv: return division("/", "floor_div");
    case sym::Kind::Mod: return division("%", "mod");
    case sym::Kind::Min: return call("min");
    case sym::Kind::Max: return call("max");
    case sym::Kind::Eq: case sym::Kind::Ne: case sym::Kind::Lt: case sym::Kind::Le:
      return fmt::format("(i64)({})", condition(expr));
    case sym::Kind::Select:
      return fmt::format("({} ? {} : {})", condition(expr.args()[0]), print(expr.args()[1], 1), print(expr.args()[2], 1));
  }
  throw InternalError("integer text: unknown expression");
}

}  // namespace fuseloom::emit
