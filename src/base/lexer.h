// The one tokenizer behind every textual IR. Tokens: identifiers ([A-Za-z_][A-Za-z0-9_.]*), sigiled names (%x, @f),
// integers, floats, "strings" with \n \t \" \\ \xHH escapes, punctuation (single characters and ->), end.
// `//` starts a comment up to the end of the line. Every error is a UserError "<where>:<line>:<column>: ...".
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fuseloom::base {

struct Token {
  enum class Kind : uint8_t { End, Name, Value, Symbol, Integer, Float, String, Punctuation };
  Kind kind = Kind::End;
  std::string text;  // for Value (%x) and Symbol (@f) without the sigil; for String unescaped
  int64_t integer = 0;
  double real = 0;
  int line = 1, column = 1;
  bool is(std::string_view punctuation_or_name) const {
    return (kind == Kind::Punctuation || kind == Kind::Name) && text == punctuation_or_name;
  }
};

class Lexer {
 public:
  // `where` names the file in messages. `text` must outlive the lexer.
  explicit Lexer(std::string_view text, std::string where = "<text>");
  const Token& peek() const { return current_; }
  Token next();
  // Consumes the token if it is this punctuation or name.
  bool accept(std::string_view punctuation_or_name);
  void expect(std::string_view punctuation_or_name);
  std::string expect_name();      // an identifier
  std::string expect_value();     // %x
  std::string expect_symbol();    // @f
  std::string expect_string();    // "..."
  int64_t expect_integer();       // optionally negative
  double expect_number();         // integer or float, optionally negative; also inf, -inf, nan
  bool at_end() const { return current_.kind == Token::Kind::End; }
  [[noreturn]] void fail(std::string_view message) const;  // at the current token

 private:
  void advance();
  std::string_view text_;
  std::string where_;
  size_t position_ = 0;
  int line_ = 1, column_ = 1;
  Token current_;
};

// The text as a quoted string literal that Lexer reads back.
std::string quote(std::string_view text);
// The shortest text that reads back as exactly this double: always with '.', 'e', "inf" or "nan", so that it stays a float.
std::string format_double(double value);

}  // namespace fuseloom::base
