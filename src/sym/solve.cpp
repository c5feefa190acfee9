// Solving a linear equation for one symbol.
#include "sym/algebra.h"
#include "sym/expr.h"
#include "sym/node.h"

namespace fuseloom::sym {
namespace {

// expr = factor * atom + rest, where the symbol occurs in the atom only.
struct Linear {
  Expr atom, factor, rest;
};

std::optional<Linear> linear_in(const Expr& expr, const std::string& symbol) {
  std::optional<Expr> atom;
  const Polynomial polynomial = polynomial_of(expr);
  Expr factor = 0, rest = polynomial.constant;
  for (const Term& term : polynomial.terms) {
    const Expr* inside = nullptr;
    std::vector<Expr> others;
    for (const Expr& candidate : term.atoms()) {
      if (!symbols_of(candidate).contains(symbol)) {
        others.push_back(candidate);
      } else if (inside) {
        return std::nullopt;
      } else {
        inside = &candidate;
      }
    }
    if (!inside) {
      rest = rest + term_expr(term);
      continue;
    }
    if (atom && *atom != *inside) return std::nullopt;
    atom = *inside;
    factor = factor + product(others) * term.coefficient;
  }
  if (!atom) return std::nullopt;
  return Linear{.atom = *atom, .factor = factor, .rest = rest};
}

}  // namespace

// 1. expr = factor * atom + rest gives atom = floor_div(target - rest, factor).
// 2. The atom is the symbol, and that is the answer, or it is a quotient floor_div(x, n) with n > 0.
// 3. Then x lies in [n*atom, n*atom + n). x = factor * symbol + rest, and the symbol that makes x the least number not
//    below n*atom hits that window if any symbol does: it is rounded up for a positive factor, down for a negative one.
std::optional<Expr> solve_for(const Expr& expr, const std::string& symbol, const Expr& target, const Facts& facts) {
  Algebra algebra(facts);
  const auto outer = linear_in(expr, symbol);
  if (!outer || !algebra.nonzero(outer->factor)) return std::nullopt;
  const Expr value = algebra.floor_div(algebra.subtract(target, outer->rest), outer->factor);
  if (outer->atom.is_symbol()) return value;
  if (outer->atom.kind() != Kind::FloorDiv) return std::nullopt;
  const auto divisor = outer->atom.args()[1].as_const();
  if (!divisor || *divisor <= 0) return std::nullopt;
  const auto inner = linear_in(outer->atom.args()[0], symbol);
  if (!inner || !inner->atom.is_symbol()) return std::nullopt;
  const Expr least = algebra.subtract(algebra.scale(value, *divisor), inner->rest);
  if (algebra.at_least(inner->factor, 1)) {
    return algebra.negate(algebra.floor_div(algebra.negate(least), inner->factor));
  }
  if (algebra.at_most(inner->factor, -1)) return algebra.floor_div(least, inner->factor);
  return std::nullopt;
}

}  // namespace fuseloom::sym
