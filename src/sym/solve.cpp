// Solving a linear equation for one symbol.
#include "base/check.h"
#include "sym/algebra.h"
#include "sym/expr.h"
#include "sym/node.h"

namespace fuseloom::sym {

// 1. Split expr = factor * atom + rest, where the only thing that contains the symbol is one atom (in any number of
//    terms, once in each).
// 2. The atom must be floor_div(target - rest, factor).
// 3. The atom is the symbol, or a quotient floor_div(x, n), n > 0, whose least x is n times that.
std::optional<Expr> solve_for(const Expr& expr, const std::string& symbol, const Expr& target, const Facts& facts) {
  Algebra algebra(facts);
  std::optional<Expr> atom;
  Expr factor = 0, rest = 0;
  const Polynomial polynomial = polynomial_of(expr);
  rest = polynomial.constant;
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
  if (!atom || !algebra.nonzero(factor)) return std::nullopt;
  const Expr value = algebra.floor_div(algebra.subtract(target, rest), factor);
  if (atom->is_symbol()) return value;
  if (atom->kind() != Kind::FloorDiv) return std::nullopt;
  const auto divisor = atom->args()[1].as_const();
  if (!divisor || *divisor <= 0) return std::nullopt;
  return solve_for(atom->args()[0], symbol, value * *divisor, facts);
}

}  // namespace fuseloom::sym
