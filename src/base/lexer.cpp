#include "base/lexer.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace fuseloom::base {
namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c) || c == '.'; }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Lexer::Lexer(std::string_view text, std::string where) : text_(text), where_(std::move(where)) { advance(); }

void Lexer::fail(std::string_view message) const {
  throw UserError(fmt::format("{}:{}:{}: {}", where_, current_.line, current_.column, message));
}

void Lexer::advance() {
  const auto step = [&] {
    if (text_[position_] == '\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
    ++position_;
  };
  const auto look = [&](size_t ahead) { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; };
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      step();
    } else if (c == '/' && look(1) == '/') {
      while (position_ < text_.size() && text_[position_] != '\n') step();
    } else {
      break;
    }
  }
  current_ = Token{.line = line_, .column = column_};
  if (position_ >= text_.size()) return;
  const char c = text_[position_];
  const auto take_name = [&] {
    const size_t begin = position_;
    while (position_ < text_.size() && is_name_part(text_[position_])) step();
    return std::string(text_.substr(begin, position_ - begin));
  };
  if (is_name_start(c)) {
    current_.kind = Token::Kind::Name;
    current_.text = take_name();
    return;
  }
  if ((c == '%' || c == '@') && (is_name_part(look(1)))) {
    current_.kind = c == '%' ? Token::Kind::Value : Token::Kind::Symbol;
    step();
    current_.text = take_name();
    return;
  }
  if (is_digit(c)) {
    const size_t begin = position_;
    bool real = false;
    while (position_ < text_.size()) {
      const char d = text_[position_];
      if (is_digit(d)) {
        step();
      } else if (d == '.' && is_digit(look(1))) {
        real = true;
        step();
      } else if ((d == 'e' || d == 'E') && (is_digit(look(1)) || ((look(1) == '-' || look(1) == '+') && is_digit(look(2))))) {
        real = true;
        step();
        step();
      } else {
        break;
      }
    }
    current_.text = std::string(text_.substr(begin, position_ - begin));
    const char* first = current_.text.data();
    const char* last = first + current_.text.size();
    if (real) {
      current_.kind = Token::Kind::Float;
      current_.real = std::strtod(first, nullptr);
    } else {
      current_.kind = Token::Kind::Integer;
      uint64_t magnitude = 0;
      const auto result = std::from_chars(first, last, magnitude);
      // 2^63 is let through as INT64_MIN so that its negation, INT64_MIN, can be written.
      if (result.ec != std::errc() || magnitude > (uint64_t{1} << 63)) fail("integer does not fit 64 bits: " + current_.text);
      current_.integer = static_cast<int64_t>(magnitude);
      current_.real = static_cast<double>(magnitude);
    }
    return;
  }
  if (c == '"') {
    current_.kind = Token::Kind::String;
    step();
    while (true) {
      if (position_ >= text_.size()) fail("string without its closing quote");
      const char d = text_[position_];
      step();
      if (d == '"') return;
      if (d != '\\') {
        current_.text += d;
        continue;
      }
      if (position_ >= text_.size()) fail("string without its closing quote");
      const char e = text_[position_];
      step();
      switch (e) {
        case 'n': current_.text += '\n'; break;
        case 't': current_.text += '\t'; break;
        case '"': case '\\': current_.text += e; break;
        case 'x': {
          const int high = hex_digit(look(0)), low = hex_digit(look(1));
          if (high < 0 || low < 0) fail("\\x needs two hexadecimal digits");
          current_.text += static_cast<char>(high * 16 + low);
          step();
          step();
          break;
        }
        default: fail(fmt::format("unknown escape \\{}", e));
      }
    }
  }
  current_.kind = Token::Kind::Punctuation;
  if (c == '-' && look(1) == '>') {
    current_.text = "->";
    step();
  } else {
    current_.text = std::string(1, c);
  }
  step();
}

Token Lexer::next() {
  Token token = current_;
  advance();
  return token;
}

bool Lexer::accept(std::string_view text) {
  if (!current_.is(text)) return false;
  advance();
  return true;
}

namespace {
std::string found(const Token& token) {
  return token.kind == Token::Kind::End ? std::string("the end of the text") : "'" + token.text + "'";
}
}  // namespace

void Lexer::expect(std::string_view text) {
  if (!accept(text)) fail(fmt::format("expected '{}', found {}", text, found(current_)));
}
std::string Lexer::expect_name() {
  if (current_.kind != Token::Kind::Name) fail("expected a name, found " + found(current_));
  return next().text;
}
std::string Lexer::expect_value() {
  if (current_.kind != Token::Kind::Value) fail("expected a %value, found " + found(current_));
  return next().text;
}
std::string Lexer::expect_symbol() {
  if (current_.kind != Token::Kind::Symbol) fail("expected an @name, found " + found(current_));
  return next().text;
}
std::string Lexer::expect_string() {
  if (current_.kind != Token::Kind::String) fail("expected a \"string\", found " + found(current_));
  return next().text;
}
int64_t Lexer::expect_integer() {
  const bool negative = accept("-");
  if (current_.kind != Token::Kind::Integer) fail("expected an integer, found " + found(current_));
  const int64_t magnitude = current_.integer;
  if (!negative && magnitude == std::numeric_limits<int64_t>::min()) fail("integer does not fit 64 bits: " + current_.text);
  advance();
  return negative && magnitude != std::numeric_limits<int64_t>::min() ? -magnitude : magnitude;
}
double Lexer::expect_number() {
  const bool negative = accept("-");
  double value = 0;
  if (current_.kind == Token::Kind::Integer || current_.kind == Token::Kind::Float) {
    value = current_.real;
  } else if (current_.is("inf")) {
    value = std::numeric_limits<double>::infinity();
  } else if (current_.is("nan")) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else {
    fail("expected a number, found " + found(current_));
  }
  advance();
  return negative ? -value : value;
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string format_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace fuseloom::base
