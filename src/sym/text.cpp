// Expressions as text.
#include <array>

#include "base/check.h"
#include "base/lexer.h"
#include "sym/algebra.h"
#include "sym/expr.h"
#include "sym/node.h"

namespace fuseloom::sym {
namespace {

struct Function {
  std::string_view name;
  Kind kind;
  size_t arity;  // min and max: at least
};
constexpr std::array<Function, 9> kFunctions = {{
    {"floor_div", Kind::FloorDiv, 2},
    {"mod", Kind::Mod, 2},
    {"min", Kind::Min, 2},
    {"max", Kind::Max, 2},
    {"eq", Kind::Eq, 2},
    {"ne", Kind::Ne, 2},
    {"lt", Kind::Lt, 2},
    {"le", Kind::Le, 2},
    {"select", Kind::Select, 3},
}};

// ---- Printing ----------------------------------------------------------------------------------------------------

void print(const Expr& expr, std::string& out);

void print_factor(const Expr& factor, std::string& out) {
  const bool sum = factor.kind() == Kind::Add;
  if (sum) out += '(';
  print(factor, out);
  if (sum) out += ')';
}

// A term of a sum, or a whole product. Its sign is written apart, except that INT64_MIN has no magnitude.
void print_term(const Expr& term, bool first, std::string& out) {
  const std::span<const Expr> atoms = term.is_const() ? std::span<const Expr>() : atoms_of(term);
  int64_t coefficient = 1;
  if (const auto value = term.as_const()) {
    coefficient = *value;
  } else if (term.kind() == Kind::Mul) {
    coefficient = term.args().back().as_const().value_or(1);
  }
  const bool minus = coefficient < 0 && coefficient != INT64_MIN;
  if (first) {
    if (minus) out += '-';
  } else {
    out += minus ? " - " : " + ";
  }
  if (minus) coefficient = -coefficient;
  bool separate = false;
  for (const Expr& atom : atoms) {
    if (separate) out += '*';
    print_factor(atom, out);
    separate = true;
  }
  if (!separate) {
    out += std::to_string(coefficient);
  } else if (coefficient != 1) {
    out += '*';
    out += std::to_string(coefficient);
  }
}

void print(const Expr& expr, std::string& out) {
  switch (expr.kind()) {
    case Kind::Symbol:
      out += expr.name();
      return;
    case Kind::Const:
    case Kind::Mul:
      print_term(expr, true, out);
      return;
    case Kind::Add: {
      bool first = true;
      for (const Expr& term : expr.args()) {
        print_term(term, first, out);
        first = false;
      }
      return;
    }
    case Kind::FloorDiv:
    case Kind::Mod:
    case Kind::Min:
    case Kind::Max:
    case Kind::Eq:
    case Kind::Ne:
    case Kind::Lt:
    case Kind::Le:
    case Kind::Select:
      break;
  }
  for (const Function& function : kFunctions) {
    if (function.kind == expr.kind()) out += function.name;
  }
  out += '(';
  bool first = true;
  for (const Expr& arg : expr.args()) {
    if (!first) out += ", ";
    print(arg, out);
    first = false;
  }
  out += ')';
}

// ---- Parsing -----------------------------------------------------------------------------------------------------
//   sum     = product { ("+" | "-") product }
//   product = unary { "*" unary }
//   unary   = "-" unary | integer | name | function "(" sum { "," sum } ")" | "(" sum ")"
class Parser {
 public:
  explicit Parser(base::Lexer& lexer) : lexer_(lexer) {}

  Expr sum() {
    Expr result = product_of_factors();
    while (true) {
      if (lexer_.accept("+")) {
        result = result + product_of_factors();
      } else if (lexer_.accept("-")) {
        result = result - product_of_factors();
      } else {
        return result;
      }
    }
  }

 private:
  // All factors at once: whether a product is expanded depends on all of them.
  Expr product_of_factors() {
    std::vector<Expr> factors = {unary()};
    while (lexer_.accept("*")) factors.push_back(unary());
    return factors.size() == 1 ? factors[0] : product(factors);
  }

  Expr unary() {
    if (++depth_ > kMaxDepth) lexer_.fail(fmt::format("expression nested deeper than {}", kMaxDepth));
    Expr result = primary();
    --depth_;
    return result;
  }

  Expr primary() {
    const base::Token token = lexer_.peek();
    if (token.kind == base::Token::Kind::Integer) return lexer_.expect_integer();
    if (lexer_.accept("-")) {
      const base::Token& magnitude = lexer_.peek();
      if (magnitude.kind == base::Token::Kind::Integer && magnitude.integer == INT64_MIN) {
        lexer_.next();
        return INT64_MIN;
      }
      return -unary();
    }
    if (lexer_.accept("(")) {
      Expr inner = sum();
      lexer_.expect(")");
      return inner;
    }
    const std::string name = lexer_.expect_name();
    if (!lexer_.peek().is("(")) return Expr::symbol(name);
    return call(token, name);
  }

  Expr call(const base::Token& at, const std::string& name) {
    const Function* function = nullptr;
    for (const Function& candidate : kFunctions) {
      if (candidate.name == name) function = &candidate;
    }
    if (!function) lexer_.fail(fmt::format("unknown function '{}' in an expression", name));
    lexer_.expect("(");
    std::vector<Expr> args = {sum()};
    while (lexer_.accept(",")) args.push_back(sum());
    lexer_.expect(")");
    const bool any_count = function->kind == Kind::Min || function->kind == Kind::Max;
    if (args.size() < function->arity || (args.size() > function->arity && !any_count)) {
      lexer_.fail(fmt::format("{} at line {}, column {} takes {}{} arguments, found {}", name, at.line, at.column,
                              any_count ? "at least " : "", function->arity, args.size()));
    }
    return Algebra().build(function->kind, args);
  }

  static constexpr int kMaxDepth = 1000;
  base::Lexer& lexer_;
  int depth_ = 0;
};

}  // namespace

std::string to_string(const Expr& expr) {
  std::string out;
  print(expr, out);
  return out;
}

Expr parse_expr(base::Lexer& lexer) { return Parser(lexer).sum(); }

Expr parse_expr(std::string_view text) {
  base::Lexer lexer(text, "<expression>");
  Expr expr = parse_expr(lexer);
  if (!lexer.at_end()) lexer.fail(fmt::format("expected the end of the expression, found '{}'", lexer.peek().text));
  return expr;
}

}  // namespace fuseloom::sym
