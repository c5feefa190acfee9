// What C++ and CUDA text have in common: identifiers, literals, integer expressions, and an indented writer.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kernel/kernel.h"

namespace fuseloom::emit {

// The type a scalar of this dtype has in generated text: "f32", "i64", "u16" for the bits of f16 and bf16, "bool", "c64".
std::string_view c_type(DType dtype);
// What an element of a buffer is in memory: as c_type, but "u8" for bool.
std::string_view c_storage_type(DType dtype);
// "typedef float f32;" for one of those names (not for c64 and c128, which are structs of the dialect).
std::string_view c_typedef(std::string_view type);

// Literals that read back as exactly this value.
std::string float_literal(DType dtype, double value);    // f32: 1.5f, f64: 1.5; inf and nan by __builtin
std::string integer_literal(DType dtype, int64_t value); // of the dtype's C type
std::string int64_literal(int64_t value);

// The names of one function: C identifiers for kernel names, unique in their scope, clear of keywords, of libm, and of the
// prelude, whose names all end in a type ("exp_f32x16").
class NameScope {
 public:
  // A fresh identifier close to `wanted`, known until the scope that is open now closes.
  std::string declare(std::string_view wanted);
  void open() { marks_.push_back(order_.size()); }
  void close();

 private:
  std::unordered_set<std::string> taken_;
  std::vector<std::string> order_;
  std::vector<size_t> marks_;
};

// The identifier occurs in the text.
bool mentions(std::string_view text, std::string_view name);

// Indented lines.
class SourceWriter {
 public:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_line(fmt::format(format, std::forward<Args>(args)...));
  }
  void text_line(std::string_view text);
  // "<text> {" and the matching "}".
  template <class... Args>
  void open(fmt::format_string<Args...> format, Args&&... args) {
    const std::string head = fmt::format(format, std::forward<Args>(args)...);
    text_line(head.empty() ? "{" : head + " {");
    ++depth_;
  }
  void close(std::string_view end = "}");
  // Text that is indented already.
  void append(std::string_view text) { text_ += text; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  int depth_ = 0;
};

// A sym expression as C text over 64-bit integers. `name` gives the text of a symbol; `helper` is told which of the
// functions floor_div_i64, mod_i64, min_i64, max_i64 the text calls and gives its name. `facts` decides where C's / and %
// do (a numerator >= 0 and a divisor > 0).
struct IntegerText {
  std::function<std::string(const std::string&)> name;
  std::function<std::string(std::string_view)> helper;
  const sym::Facts* facts = nullptr;
  std::function<std::string(const sym::Expr&)> named;   // the name of a variable that holds the expression; "": none does

  std::string value(const sym::Expr& expr) const { return print(expr, 0); }
  std::string term(const sym::Expr& expr) const { return print(expr, 2); }   // fit as an operand of +
  std::string factor(const sym::Expr& expr) const { return print(expr, 3); }   // of *, and behind a minus
  std::string condition(const sym::Expr& expr) const;

 private:
  // precedence: what the text must be fit for: 0 anything, 1 a branch of ?:, 2 an operand of +, 3 of *, 4 a divisor
  std::string print(const sym::Expr& expr, int precedence) const;
  std::string sum(const sym::Expr& expr) const;
};

// Whether C's division can stand for floor_div and mod.
bool is_c_division(const sym::Expr& numerator, const sym::Expr& divisor, const sym::Facts& facts);

}  // namespace fuseloom::emit
