#include "sym/algebra.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "sym/interval.h"

namespace fuseloom::sym {
namespace {

// A product of sums is expanded up to this many terms.
constexpr size_t kMaxExpandedTerms = 32;
// Pairwise rules of min and max look at this many arguments only.
constexpr size_t kMaxPairwise = 8;
// Rounds of rewriting in one sum, and of polynomial division. Both end by themselves; this bounds the time.
constexpr int kMaxRounds = 64;

bool is_comparison(Kind kind) { return kind == Kind::Eq || kind == Kind::Ne || kind == Kind::Lt || kind == Kind::Le; }

// 0 or 1 whatever the symbols are.
bool is_boolean(const Expr& expr) {
  const Range range = ExprAccess::range(expr);
  return range.low >= 0 && range.high <= 1;
}

size_t term_count(const Expr& expr) { return expr.kind() == Kind::Add ? expr.args().size() : 1; }

const Term* find_term(const Polynomial& polynomial, std::span<const Expr> atoms) {
  const auto it = std::lower_bound(
      polynomial.terms.begin(), polynomial.terms.end(), atoms,
      [](const Term& term, std::span<const Expr> key) { return compare_monomials(term.atoms(), key) < 0; });
  return it != polynomial.terms.end() && compare_monomials(it->atoms(), atoms) == 0 ? &*it : nullptr;
}

// The gcd of the coefficients of the terms, without the constant.
int64_t content(const Polynomial& polynomial) {
  int64_t result = 0;
  for (const Term& term : polynomial.terms) result = gcd_int(result, term.coefficient);
  return result;
}

// Every coefficient and the constant divided by a positive divisor, rounded down.
Polynomial divided_coefficients(Polynomial polynomial, int64_t divisor) {
  for (Term& term : polynomial.terms) term.coefficient = floor_div_int(term.coefficient, divisor);
  polynomial.constant = floor_div_int(polynomial.constant, divisor);
  return polynomial;
}

Expr monomial_expr(std::span<const Expr> atoms, int64_t coefficient) {
  if (atoms.empty()) return coefficient;
  if (coefficient == 0) return 0;
  return term_expr(make_term({atoms.begin(), atoms.end()}, coefficient));
}

// The coefficient and the atoms of a constant or of a single term; nothing for a sum.
struct Monomial {
  int64_t coefficient = 1;
  std::vector<Expr> atoms;
};
std::optional<Monomial> monomial_of(const Expr& expr) {
  if (expr.kind() == Kind::Add) return std::nullopt;
  if (const auto value = expr.as_const()) return Monomial{.coefficient = *value};
  const Polynomial polynomial = polynomial_of(expr);
  const std::span<const Expr> atoms = polynomial.terms[0].atoms();
  return Monomial{.coefficient = polynomial.terms[0].coefficient, .atoms = {atoms.begin(), atoms.end()}};
}

// The term without one occurrence of an atom.
Expr without_atom(const Term& term, const Expr& atom) {
  const auto rest = divide_atoms(term.atoms(), {&atom, 1});
  FL_CHECK(rest.has_value(), "the atom is not in the term");
  return monomial_expr(*rest, term.coefficient);
}

}  // namespace

// ---- Sums and products -------------------------------------------------------------------------------------------

Expr Algebra::add(const Expr& a, const Expr& b) {
  if (a.is_const(0)) return b;
  if (b.is_const(0)) return a;
  if (a.is_const() && b.is_const()) return wrap_add(*a.as_const(), *b.as_const());
  const Polynomial left = polynomial_of(a), right = polynomial_of(b);
  Polynomial both{.constant = wrap_add(left.constant, right.constant)};
  both.terms.reserve(left.terms.size() + right.terms.size());
  std::merge(left.terms.begin(), left.terms.end(), right.terms.begin(), right.terms.end(),
             std::back_inserter(both.terms), comes_before);
  return sum(std::move(both));
}

Expr Algebra::subtract(const Expr& a, const Expr& b) { return add(a, negate(b)); }

Expr Algebra::scale(const Expr& a, int64_t factor) {
  if (factor == 1) return a;
  if (factor == 0) return 0;
  Polynomial polynomial = polynomial_of(a);
  for (Term& term : polynomial.terms) term.coefficient = wrap_mul(term.coefficient, factor);
  polynomial.constant = wrap_mul(polynomial.constant, factor);
  return sum(std::move(polynomial));
}

Expr Algebra::multiply(const Expr& a, const Expr& b) {
  const Expr factors[] = {a, b};
  return product(factors);
}

// 1. The factors of factors become one list of atoms, with the constants multiplied.
// 2. Sums among them are multiplied out unless that gives too many terms.
// 3. What is left is one monomial.
Expr Algebra::product(std::span<const Expr> factors) {
  int64_t coefficient = 1;
  std::vector<Expr> atoms;
  for (const Expr& factor : factors) {
    if (const auto value = factor.as_const()) {
      coefficient = wrap_mul(coefficient, *value);
    } else if (factor.kind() == Kind::Mul) {
      for (const Expr& atom : factor.args()) {
        if (const auto value = atom.as_const()) {
          coefficient = wrap_mul(coefficient, *value);
        } else {
          atoms.push_back(atom);
        }
      }
    } else {
      atoms.push_back(factor);
    }
  }
  if (coefficient == 0) return 0;
  if (atoms.empty()) return coefficient;
  if (atoms.size() == 1) return scale(atoms[0], coefficient);

  size_t expanded = 1;
  bool has_sum = false;
  for (const Expr& atom : atoms) {
    has_sum |= atom.kind() == Kind::Add;
    expanded = std::min(expanded * term_count(atom), kMaxExpandedTerms + 1);
  }
  if (has_sum && expanded <= kMaxExpandedTerms) {
    Polynomial result{.constant = coefficient};
    for (const Expr& atom : atoms) {
      const Polynomial factor = polynomial_of(atom);
      Polynomial next{.constant = wrap_mul(result.constant, factor.constant)};
      for (const Term& left : result.terms) {
        for (const Term& right : factor.terms) {
          std::vector<Expr> both;
          const std::span<const Expr> a = left.atoms(), b = right.atoms();
          both.reserve(a.size() + b.size());
          std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
          next.terms.push_back(make_term(std::move(both), wrap_mul(left.coefficient, right.coefficient)));
        }
        if (factor.constant != 0) {
          next.terms.push_back({left.body, wrap_mul(left.coefficient, factor.constant)});
        }
      }
      if (result.constant != 0) {
        for (const Term& right : factor.terms) {
          next.terms.push_back({right.body, wrap_mul(right.coefficient, result.constant)});
        }
      }
      collect_like_terms(next);
      result = std::move(next);
    }
    return sum(std::move(result));
  }
  std::sort(atoms.begin(), atoms.end());
  return sum({.terms = {make_term(std::move(atoms), coefficient)}});
}

Expr Algebra::sum(Polynomial polynomial) {
  collect_like_terms(polynomial);
  for (int round = 0; recombines_ && round < kMaxRounds && recombine(polynomial); ++round) {
  }
  return sum_expr(polynomial);
}

// Puts quotients and remainders together again, x and n being any expressions with n != 0:
//   n*floor_div(x, n) + mod(x, n)                  → x
//   n*mod(floor_div(x, n), m) + mod(x, n)          → mod(x, n*m)          n, m > 0
//   x - n*floor_div(x, n)                          → mod(x, n)
//   n*floor_div(x, n)                              → x                    n divides x
// each times any factor. Returns whether something was found; one change at a time.
bool Algebra::recombine(Polynomial& polynomial) {
  bool has_floor_div = false;
  int mods = 0;
  for (const Term& term : polynomial.terms) {
    for (const Expr& atom : term.atoms()) {
      has_floor_div |= atom.kind() == Kind::FloorDiv;
      mods += atom.kind() == Kind::Mod;
    }
  }
  if (!has_floor_div && mods < 2) return false;
  for (size_t i = 0; i < polynomial.terms.size(); ++i) {
    const std::vector<Expr> atoms(polynomial.terms[i].atoms().begin(), polynomial.terms[i].atoms().end());
    for (size_t j = 0; j < atoms.size(); ++j) {
      if (j > 0 && atoms[j] == atoms[j - 1]) continue;
      std::optional<Polynomial> result;
      if (atoms[j].kind() == Kind::Mod) result = recombine_mod(polynomial, i, atoms[j]);
      if (atoms[j].kind() == Kind::FloorDiv) result = recombine_floor_div(polynomial, i, atoms[j]);
      if (result) {
        polynomial = std::move(*result);
        return true;
      }
    }
  }
  return false;
}

namespace {

void append(Polynomial& polynomial, const Expr& expr, int64_t factor) {
  const Polynomial more = polynomial_of(expr);
  for (const Term& term : more.terms) {
    polynomial.terms.push_back({term.body, wrap_mul(term.coefficient, factor)});
  }
  polynomial.constant = wrap_add(polynomial.constant, wrap_mul(more.constant, factor));
}

// polynomial - remove + insert(), when every term of `remove` is in the polynomial with the same coefficient. The
// constant may differ.
template <class Insert>
std::optional<Polynomial> exchanged(const Polynomial& polynomial, const Expr& remove, const Insert& insert) {
  for (const Term& term : polynomial_of(remove).terms) {
    const Term* found = find_term(polynomial, term.atoms());
    if (!found || found->coefficient != term.coefficient) return std::nullopt;
  }
  Polynomial result = polynomial;
  append(result, remove, -1);
  append(result, insert(), 1);
  collect_like_terms(result);
  return result;
}

}  // namespace

std::optional<Polynomial> Algebra::recombine_mod(const Polynomial& polynomial, size_t index, const Expr& atom) {
  const Term& term = polynomial.terms[index];
  const Expr &x = atom.args()[0], &n = atom.args()[1];
  if (!nonzero(n)) return std::nullopt;
  Algebra ring = ring_only();
  const Expr factor = without_atom(term, atom);
  const Expr quotient = floor_div(x, n);
  if (!product_has_small_coefficients({factor, n, quotient}) || !product_has_small_coefficients({factor, x})) {
    return std::nullopt;
  }
  const Expr scaled = ring.multiply(factor, n);
  if (!quotient.is_const()) {
    const Expr both = ring.add(ring.multiply(scaled, quotient), term_expr(term));
    if (auto result = exchanged(polynomial, both, [&] { return ring.multiply(factor, x); })) return result;
  }
  for (const Term& other : polynomial.terms) {
    for (const Expr& digit : other.atoms()) {
      if (digit.kind() != Kind::Mod || digit.args()[0] != quotient) continue;
      if (term_expr(other) != ring.multiply(scaled, digit)) continue;
      const Expr& m = digit.args()[1];
      if (!at_least(n, 1) || !at_least(m, 1)) continue;
      if (!product_has_small_coefficients({n, m})) continue;
      const Expr both = ring.add(term_expr(other), term_expr(term));
      if (auto result = exchanged(polynomial, both, [&] { return ring.multiply(factor, mod(x, multiply(n, m))); })) return result;
    }
  }
  return std::nullopt;
}

std::optional<Polynomial> Algebra::recombine_floor_div(const Polynomial& polynomial, size_t index, const Expr& atom) {
  const Term& term = polynomial.terms[index];
  const Expr &x = atom.args()[0], &n = atom.args()[1];
  const auto integer = n.as_const();
  if (integer ? *integer <= 0 || term.coefficient % *integer != 0 : !nonzero(n)) return std::nullopt;
  const bool divides = integer && range(x).divisor % *integer == 0;
  // The terms of x, which are not in its quotient, would be others of the sum.
  if (!divides && polynomial.terms.size() < 2 && !x.is_const()) return std::nullopt;
  Algebra ring = ring_only();
  const Division scaled = ring.divide(without_atom(term, atom), n);
  if (scaled.remainder != 0) return std::nullopt;
  const Expr& factor = scaled.quotient;
  if (!product_has_small_coefficients({factor, x})) return std::nullopt;
  const Expr multiple = ring.multiply(factor, x);
  if (divides) return exchanged(polynomial, term_expr(term), [&] { return multiple; });
  const Expr both = ring.subtract(term_expr(term), multiple);
  return exchanged(polynomial, both, [&] { return ring.negate(ring.multiply(factor, mod(x, n))); });
}

// ---- Quotients and remainders ------------------------------------------------------------------------------------

// a = b * quotient + remainder, where the remainder has fewer terms than a, or else the quotient is 0. By an integer n
// every coefficient is divided, truncating, and the constant rounding down, so that 0 <= constant of remainder < n.
// By a polynomial this is the division algorithm on leading terms.
Algebra::Division Algebra::divide(const Expr& a, const Expr& b) {
  Algebra ring = ring_only();
  Polynomial dividend = polynomial_of(a);
  if (const auto n = b.as_const()) {
    Polynomial quotient, remainder;
    for (const Term& term : dividend.terms) {
      const int64_t q = *n == 0 ? 0 : *n == -1 ? wrap_neg(term.coefficient) : term.coefficient / *n;
      const int64_t r = wrap_sub(term.coefficient, wrap_mul(q, *n));
      if (q != 0) quotient.terms.push_back({term.body, q});
      if (r != 0) remainder.terms.push_back({term.body, r});
    }
    quotient.constant = floor_div_int(dividend.constant, *n);
    if (quotient.terms.empty() && quotient.constant == 0) return {0, a};
    remainder.constant = wrap_sub(dividend.constant, wrap_mul(quotient.constant, *n));
    return {sum(std::move(quotient)), sum(std::move(remainder))};
  }
  const Polynomial divisor = polynomial_of(b);
  const Term& lead = divisor.terms[0];
  const bool single = divisor.terms.size() == 1 && divisor.constant == 0;
  Polynomial quotient;
  size_t next = 0;  // terms before this one cannot be divided
  for (int round = 0; round < kMaxRounds && next < dividend.terms.size(); ++round) {
    const Term term = dividend.terms[next];
    const auto rest = divide_atoms(term.atoms(), lead.atoms());
    const int64_t q = lead.coefficient == -1 ? wrap_neg(term.coefficient) : term.coefficient / lead.coefficient;
    if (!rest || q == 0 || (!single && wrap_mul(q, lead.coefficient) != term.coefficient)) {
      ++next;
      continue;
    }
    const Expr part = monomial_expr(*rest, q);
    append(quotient, part, 1);
    append(dividend, ring.multiply(part, b), -1);
    collect_like_terms(dividend);
    // A single-term divisor leaves the same monomial with a smaller coefficient, or removes it.
    if (single && wrap_mul(q, lead.coefficient) != term.coefficient) ++next;
  }
  if (quotient.terms.empty() && quotient.constant == 0) return {0, a};
  const auto size = [](const Polynomial& p) { return p.terms.size() + (p.constant != 0); };
  if (!single && size(dividend) >= size(polynomial_of(a))) return {0, a};
  return {sum(std::move(quotient)), sum(std::move(dividend))};
}

// q when q*b <= a < (q + 1)*b is certain.
std::optional<int64_t> Algebra::constant_quotient(const Expr& a, const Expr& b) {
  if (const auto n = b.as_const(); n && *n > 0) {
    const Range dividend = range(a);
    if (dividend.low >= -kMaxNorm && dividend.high <= kMaxNorm) {
      const int64_t quotient = floor_div_int(dividend.low, *n);
      if (quotient == floor_div_int(dividend.high, *n)) return quotient;
    }
  }
  if (!facts_) return std::nullopt;
  Algebra ring = ring_only();
  if (at_least(a, 0)) {
    if (at_most(ring.subtract(a, b), -1)) return 0;
  } else if (at_most(a, -1) && at_least(ring.add(a, b), 0)) {
    return -1;
  }
  return std::nullopt;
}

// floor_div(g*x + c, g*n) = floor_div(x + floor(c/g), n) for an integer g and an integer n > 0. Otherwise the factor
// must be common to all terms, and for floor_div its atoms must be known nonzero.
std::optional<Algebra::Cancelled> Algebra::cancel(const Expr& a, const Expr& b, bool needs_nonzero) {
  const Polynomial dividend = polynomial_of(a);
  if (dividend.terms.empty()) return std::nullopt;
  if (const auto n = b.as_const()) {
    if (*n <= 0) return std::nullopt;
    const int64_t factor = gcd_int(content(dividend), *n);
    if (factor == 1) return std::nullopt;
    return Cancelled{.dividend = sum(divided_coefficients(dividend, factor)),
                     .divisor = *n / factor,
                     .factor = factor,
                     .low = floor_mod_int(dividend.constant, factor)};
  }
  const Polynomial divisor = polynomial_of(b);
  const int64_t coefficient =
      gcd_int(gcd_int(content(dividend), content(divisor)), gcd_int(dividend.constant, divisor.constant));
  std::vector<Expr> atoms;
  if (dividend.constant == 0 && divisor.constant == 0) {
    atoms.assign(divisor.terms[0].atoms().begin(), divisor.terms[0].atoms().end());
    for (const Term& term : divisor.terms) atoms = common_atoms(atoms, term.atoms());
    for (const Term& term : dividend.terms) atoms = common_atoms(atoms, term.atoms());
    if (needs_nonzero) std::erase_if(atoms, [&](const Expr& atom) { return !nonzero(atom); });
  }
  if (coefficient == 1 && atoms.empty()) return std::nullopt;
  const auto reduced = [&](Polynomial polynomial) {
    polynomial = divided_coefficients(std::move(polynomial), coefficient);
    Polynomial result{.constant = polynomial.constant};
    for (const Term& term : polynomial.terms)
      append(result, monomial_expr(*divide_atoms(term.atoms(), atoms), term.coefficient), 1);
    return sum(std::move(result));
  };
  return Cancelled{
      .dividend = reduced(dividend), .divisor = reduced(divisor), .factor = monomial_expr(atoms, coefficient)};
}

// Looks for a radix g that divides the divisor and some terms of a, such that the other terms together are provably a
// digit 0 <= low < g: the shape of a linearised index.
std::optional<Algebra::Digits> Algebra::separate_digits(const Expr& a, const Expr& b, int64_t least_rest) {
  const auto divisor = monomial_of(b);
  if (!divisor || (b.is_const() && *b.as_const() <= 0)) return std::nullopt;
  if (!facts_ && !b.is_const()) return std::nullopt;
  const Polynomial dividend = polynomial_of(a);
  if (dividend.terms.size() + (dividend.constant != 0) < 2) return std::nullopt;
  Algebra ring = ring_only();
  std::vector<Expr> tried;
  for (const Term& term : dividend.terms) {
    const std::vector<Expr> atoms = common_atoms(term.atoms(), divisor->atoms);
    const int64_t coefficient = gcd_int(term.coefficient, divisor->coefficient);
    const Expr radix = monomial_expr(atoms, coefficient);
    if (radix.is_const(1) || radix == b || std::find(tried.begin(), tried.end(), radix) != tried.end()) continue;
    tried.push_back(radix);
    Polynomial high, low;
    for (const Term& other : dividend.terms) {
      const auto rest = divide_atoms(other.atoms(), atoms);
      if (rest && other.coefficient % coefficient == 0) {
        append(high, monomial_expr(*rest, other.coefficient / coefficient), 1);
      } else {
        low.terms.push_back(other);
      }
    }
    low.constant = dividend.constant;
    if (atoms.empty()) {
      high.constant = wrap_add(high.constant, floor_div_int(dividend.constant, coefficient));
      low.constant = floor_mod_int(dividend.constant, coefficient);
    }
    if (low.terms.empty() && low.constant == 0) continue;
    const Expr digit = ring.sum(std::move(low));
    if (!at_least(digit, 0)) continue;
    if (atoms.empty() ? !at_most(digit, coefficient - 1) : !at_most(ring.subtract(digit, radix), -1)) continue;
    const auto rest_atoms = divide_atoms(divisor->atoms, atoms);
    const Expr rest = monomial_expr(*rest_atoms, divisor->coefficient / coefficient);
    if (!at_least(rest, least_rest)) continue;
    return Digits{.high = sum(std::move(high)), .low = digit, .radix = radix, .rest = rest};
  }
  return std::nullopt;
}

// Terms that the facts make multiples of the divisor get a quotient of their own; the rest may then become small.
Expr Algebra::floor_div_by_terms(const Expr& a, int64_t divisor) {
  const Polynomial dividend = polynomial_of(a);
  const bool single = dividend.terms.size() == 1 && dividend.constant == 0;
  Expr quotient;
  Polynomial rest{.constant = dividend.constant};
  for (const Term& term : dividend.terms) {
    const Expr monomial = monomial_expr(term.atoms(), 1);
    if ((term.coefficient != 1 || !single) && range(monomial).divisor % divisor == 0) {
      quotient = add(quotient, scale(floor_div(monomial, divisor), term.coefficient));
    } else if (!single && range(term_expr(term)).divisor % divisor == 0) {
      quotient = add(quotient, floor_div(term_expr(term), divisor));
    } else {
      rest.terms.push_back(term);
    }
  }
  if (quotient == 0) return ExprAccess::node(Kind::FloorDiv, {a, divisor});
  return add(quotient, floor_div(sum(std::move(rest)), divisor));
}

Expr Algebra::floor_div(const Expr& a, const Expr& b) {
  const auto n = b.as_const();
  if (n) {
    if (const auto value = a.as_const()) return floor_div_int(*value, *n);
    if (*n == 0) return 0;
    if (*n == 1) return a;
    if (*n < 0 && *n != INT64_MIN) return floor_div(negate(a), -*n);
  }
  if (a.is_const(0)) return 0;
  const bool is_small =
      n ? has_small_coefficients(a) && *n > 0 && *n <= kMaxNorm : product_has_small_coefficients({a, b});
  if (!is_small) return ExprAccess::node(Kind::FloorDiv, {a, b});
  // 1. What the divisor divides comes out.
  const bool divisor_nonzero = nonzero(b);
  if (divisor_nonzero) {
    const Division division = divide(a, b);
    if (division.quotient != 0) return add(division.quotient, floor_div(division.remainder, b));
  }
  // 2. What is left may be small.
  if (const auto quotient = constant_quotient(a, b)) return *quotient;
  // 3. Common factors cancel.
  if (const auto cancelled = cancel(a, b, true)) return floor_div(cancelled->dividend, cancelled->divisor);
  // 4. One sign for the leading term: floor_div(-x, n) = -floor_div(x + n - 1, n).
  if (n && polynomial_of(a).terms[0].coefficient < 0) return negate(floor_div(add(negate(a), *n - 1), b));
  // 5. The digits below a common radix do not count.
  if (const auto digits = separate_digits(a, b, 0)) return floor_div(digits->high, digits->rest);
  // 6. A quotient of a quotient: floor_div(floor_div(x, m) + c, n) = floor_div(x + m*c, m*n) for n >= 0.
  {
    const Polynomial dividend = polynomial_of(a);
    if (dividend.terms.size() == 1 && dividend.terms[0].coefficient == 1 &&
        dividend.terms[0].body.kind() == Kind::FloorDiv) {
      const Expr &x = dividend.terms[0].body.args()[0], &m = dividend.terms[0].body.args()[1];
      const bool fits =
          product_has_small_coefficients({m, b}) && product_has_small_coefficients({m, dividend.constant});
      if (fits && at_least(b, 0) && (dividend.constant == 0 || nonzero(m))) {
        return floor_div(add(x, scale(m, dividend.constant)), multiply(m, b));
      }
    }
  }
  // 7. The upper digits of a remainder: floor_div(mod(x, n*q), n) = mod(floor_div(x, n), q) for n, q > 0.
  if (a.kind() == Kind::Mod && divisor_nonzero) {
    const Division modulus = divide(a.args()[1], b);
    if (modulus.remainder == 0 && at_least(b, 1) && at_least(modulus.quotient, 1)) {
      return mod(floor_div(a.args()[0], b), modulus.quotient);
    }
  }
  // 8. Multiples by facts.
  if (n) return floor_div_by_terms(a, *n);
  return ExprAccess::node(Kind::FloorDiv, {a, b});
}

// `a` without terms that are multiples of the divisor by facts, and with x for mod(x, m) where its term times m is such
// a multiple: c*mod(x, m) = c*x - c*m*floor_div(x, m) for m != 0. Nothing when there are none.
std::optional<Expr> Algebra::without_multiples(const Expr& a, const Expr& b) {
  const auto n = b.as_const();
  const Polynomial dividend = polynomial_of(a);
  Polynomial kept{.constant = dividend.constant};
  bool changed = false;
  for (const Term& term : dividend.terms) {
    if (n && range(term_expr(term)).divisor % *n == 0) {
      changed = true;
      continue;
    }
    const std::span<const Expr> atoms = term.atoms();
    const auto inner = std::find_if(atoms.begin(), atoms.end(), [&](const Expr& atom) {
      if (atom.kind() != Kind::Mod || !nonzero(atom.args()[1])) return false;
      const Expr &x = atom.args()[0], &m = atom.args()[1];
      Algebra ring = ring_only();
      const Expr factor = without_atom(term, atom);
      return product_has_small_coefficients({factor, x}) && product_has_small_coefficients({factor, m, b}) &&
             ring.divide(ring.multiply(factor, m), b).remainder == 0;
    });
    if (inner == atoms.end()) {
      kept.terms.push_back(term);
    } else {
      changed = true;
      append(kept, multiply(without_atom(term, *inner), inner->args()[0]), 1);
    }
  }
  if (!changed) return std::nullopt;
  return sum(std::move(kept));
}

Expr Algebra::mod(const Expr& a, const Expr& b) {
  const auto n = b.as_const();
  if (n) {
    if (const auto value = a.as_const()) return floor_mod_int(*value, *n);
    if (*n == 0 || *n == 1) return 0;
    if (*n < 0 && *n != INT64_MIN) return negate(mod(negate(a), -*n));
  }
  if (a.is_const(0)) return 0;
  const bool is_small =
      n ? has_small_coefficients(a) && *n > 0 && *n <= kMaxNorm : product_has_small_coefficients({a, b});
  if (!is_small) return ExprAccess::node(Kind::Mod, {a, b});
  // 1. Multiples of the divisor do not count. This holds for a divisor of 0, too: both sides are 0.
  const Division division = divide(a, b);
  if (division.quotient != 0) return mod(division.remainder, b);
  // 2. Nor do multiples by facts, and an inner remainder by a multiple of the divisor is the thing itself.
  if (const auto reduced = without_multiples(a, b)) return mod(*reduced, b);
  // 3. What is left may be small.
  if (const auto quotient = constant_quotient(a, b)) return subtract(a, scale(b, *quotient));
  // 4. mod(g*x + r, g*n) = g*mod(x, n) + r for 0 <= r < g.
  if (const auto cancelled = cancel(a, b, false)) {
    return add(multiply(cancelled->factor, mod(cancelled->dividend, cancelled->divisor)), cancelled->low);
  }
  // 5. One sign for the leading term: mod(-x, n) = n - 1 - mod(x + n - 1, n).
  if (n && polynomial_of(a).terms[0].coefficient < 0) {
    return subtract(*n - 1, mod(add(negate(a), *n - 1), b));
  }
  // 6. The digits below a common radix stay as they are.
  if (const auto digits = separate_digits(a, b, 1)) {
    return add(multiply(digits->radix, mod(digits->high, digits->rest)), digits->low);
  }
  return ExprAccess::node(Kind::Mod, {a, b});
}

// ---- min, max, comparisons, select -------------------------------------------------------------------------------

Expr Algebra::extremum(Kind kind, std::span<const Expr> args) {
  const bool smallest = kind == Kind::Min;
  const Kind dual = smallest ? Kind::Max : Kind::Min;
  std::vector<Expr> kept;
  std::optional<int64_t> constant;
  const auto take = [&](const Expr& arg) {
    if (const auto value = arg.as_const()) {
      constant = !constant ? *value : smallest ? std::min(*constant, *value) : std::max(*constant, *value);
    } else {
      kept.push_back(arg);
    }
  };
  for (const Expr& arg : args) {
    if (arg.kind() == kind) {
      for (const Expr& inner : arg.args()) take(inner);
    } else {
      take(arg);
    }
  }
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  if (constant) kept.emplace_back(*constant);
  // min(a, max(a, b)) = a.
  std::erase_if(kept, [&](const Expr& arg) {
    if (arg.kind() != dual) return false;
    const std::span<const Expr> inner = arg.args();
    return std::any_of(kept.begin(), kept.end(), [&](const Expr& other) {
      return other.kind() != dual && std::find(inner.begin(), inner.end(), other) != inner.end();
    });
  });
  // An argument that another one always beats goes.
  if (kept.size() <= kMaxPairwise && std::all_of(kept.begin(), kept.end(), has_small_coefficients)) {
    Algebra ring = ring_only();
    for (size_t i = 0; i < kept.size(); ++i) {
      for (size_t j = i + 1; j < kept.size();) {
        const Expr difference = ring.subtract(kept[i], kept[j]);
        if (smallest ? at_most(difference, 0) : at_least(difference, 0)) {
          kept.erase(kept.begin() + static_cast<ptrdiff_t>(j));
        } else if (smallest ? at_least(difference, 0) : at_most(difference, 0)) {
          kept.erase(kept.begin() + static_cast<ptrdiff_t>(i));
          j = i + 1;
        } else {
          ++j;
        }
      }
    }
  }
  FL_CHECK(!kept.empty(), "min or max of nothing");
  return kept.size() == 1 ? kept[0] : ExprAccess::node(kind, std::move(kept));
}

Expr Algebra::negation(const Expr& condition) {
  const std::span<const Expr> args = condition.args();
  switch (condition.kind()) {
    case Kind::Eq:
      return compare(Kind::Ne, args[0], args[1]);
    case Kind::Ne:
      return compare(Kind::Eq, args[0], args[1]);
    case Kind::Lt:
      return compare(Kind::Le, args[1], args[0]);
    case Kind::Le:
      return compare(Kind::Lt, args[1], args[0]);
    case Kind::Const:
      return condition.is_const(0) ? 1 : 0;
    case Kind::Symbol:
    case Kind::Add:
    case Kind::Mul:
    case Kind::FloorDiv:
    case Kind::Mod:
    case Kind::Min:
    case Kind::Max:
    case Kind::Select:
      break;
  }
  return is_zero(condition);
}

namespace {

// difference = left - right + constant, both with positive coefficients.
struct Sides {
  Polynomial left, right;
  int64_t constant = 0;
};
Sides sides_of(const Polynomial& difference) {
  Sides sides{.constant = difference.constant};
  for (const Term& term : difference.terms) {
    if (term.coefficient < 0) {
      sides.right.terms.push_back({term.body, wrap_neg(term.coefficient)});
    } else {
      sides.left.terms.push_back(term);
    }
  }
  return sides;
}

// b for a difference that is b + constant or -b + constant, b a comparison.
const Expr* comparison_in(const Polynomial& difference) {
  if (difference.terms.size() != 1) return nullptr;
  const Term& term = difference.terms[0];
  const bool unit = term.coefficient == 1 || term.coefficient == -1;
  return unit && term.atoms().size() == 1 && is_comparison(term.atoms()[0].kind()) ? &term.atoms()[0] : nullptr;
}

}  // namespace

// difference <= 0, as le(left, right) or lt(left, right).
Expr Algebra::at_most_zero(const Expr& difference) {
  if (at_most(difference, 0)) return 1;
  if (at_least(difference, 1)) return 0;
  Polynomial polynomial = polynomial_of(difference);
  FL_CHECK(!polynomial.terms.empty(), "a constant difference decides a comparison");
  // g*x + c <= 0  ⇔  x + ceil(c/g) <= 0
  if (const int64_t factor = content(polynomial); factor > 1) {
    polynomial.constant = wrap_add(polynomial.constant, floor_mod_int(wrap_neg(polynomial.constant), factor));
    polynomial = divided_coefficients(std::move(polynomial), factor);
    return at_most_zero(sum_expr(polynomial));
  }
  if (const Expr* condition = comparison_in(polynomial)) {
    return polynomial.terms[0].coefficient == 1 ? negation(*condition) : *condition;
  }
  Sides sides = sides_of(polynomial);
  const int64_t constant = sides.constant;
  if (constant == 1) return ExprAccess::node(Kind::Lt, {sum_expr(sides.left), sum_expr(sides.right)});
  const bool constant_left = sides.left.terms.empty() || (constant > 1 && !sides.right.terms.empty());
  if (constant_left) {
    sides.left.constant = constant;
  } else {
    sides.right.constant = wrap_neg(constant);
  }
  return ExprAccess::node(Kind::Le, {sum_expr(sides.left), sum_expr(sides.right)});
}

// difference == 0, as eq(left, right).
Expr Algebra::is_zero(const Expr& difference) {
  if (const auto value = difference.as_const()) return *value == 0 ? 1 : 0;
  if (at_most(difference, -1) || at_least(difference, 1)) return 0;
  Polynomial polynomial = polynomial_of(difference);
  if (polynomial.terms[0].coefficient < 0) {
    for (Term& term : polynomial.terms) term.coefficient = wrap_neg(term.coefficient);
    polynomial.constant = wrap_neg(polynomial.constant);
  }
  // The terms are a multiple of something that the constant is not.
  int64_t divisor = 0;
  for (const Term& term : polynomial.terms) divisor = gcd_int(divisor, range(term_expr(term)).divisor);
  if (divisor == 0 ? polynomial.constant != 0 : polynomial.constant % divisor != 0) return 0;
  if (divisor == 0) return 1;
  if (const int64_t factor = content(polynomial); factor > 1) {
    return is_zero(sum_expr(divided_coefficients(std::move(polynomial), factor)));
  }
  if (const Expr* condition = comparison_in(polynomial)) {
    return polynomial.constant == 0 ? negation(*condition) : *condition;
  }
  Sides sides = sides_of(polynomial);
  sides.right.constant = wrap_neg(sides.constant);
  return ExprAccess::node(Kind::Eq, {sum_expr(sides.left), sum_expr(sides.right)});
}

Expr Algebra::compare(Kind kind, const Expr& a, const Expr& b) {
  if (a.is_const() && b.is_const()) {
    const int64_t left = *a.as_const(), right = *b.as_const();
    const bool equal = left == right, less = left < right;
    return (kind == Kind::Eq ? equal : kind == Kind::Ne ? !equal : kind == Kind::Lt ? less : less || equal) ? 1 : 0;
  }
  // The difference would wrap.
  if (!has_small_coefficients(a) || !has_small_coefficients(b)) return ExprAccess::node(kind, {a, b});
  const Expr difference = subtract(a, b);
  if (kind == Kind::Le) return at_most_zero(difference);
  if (kind == Kind::Lt) return at_most_zero(add(difference, 1));
  const Expr equal = is_zero(difference);
  if (kind == Kind::Eq) return equal;
  FL_CHECK(kind == Kind::Ne, "not a comparison");
  if (equal.kind() == Kind::Eq) {
    return ExprAccess::node(Kind::Ne, {equal.args()[0], equal.args()[1]});
  }
  return negation(equal);
}

Expr Algebra::select(const Expr& condition, const Expr& a, const Expr& b) {
  if (a == b) return a;
  if (const auto value = condition.as_const()) return *value != 0 ? a : b;
  if (!is_boolean(condition)) return select(compare(Kind::Ne, condition, 0), a, b);
  if (excludes_zero(range(condition))) return a;
  if (at_most(condition, 0)) return b;
  if (a.is_const(1) && b.is_const(0)) return condition;
  if (a.is_const(0) && b.is_const(1)) return negation(condition);
  // select(x <= y, x, y) = min(x, y), and so on: the branches differ as the sides do.
  const auto sides_fit = [&] {
    const std::span<const Expr> args = condition.args();
    return has_small_coefficients(a) && has_small_coefficients(b) && has_small_coefficients(args[0]) &&
           has_small_coefficients(args[1]);
  };
  if ((condition.kind() == Kind::Lt || condition.kind() == Kind::Le) && sides_fit()) {
    Algebra ring = ring_only();
    const Expr sides = ring.subtract(condition.args()[0], condition.args()[1]);
    const Expr branches = ring.subtract(a, b);
    const Expr both[] = {a, b};
    // lt(x, y) decides x - y + 1 <= 0 as well as x - y <= -1; either reading has a min or max.
    const int64_t slack = condition.kind() == Kind::Lt ? 1 : 0;
    for (const int64_t shift : {slack, slack - 1}) {
      if (branches == ring.add(sides, shift)) return extremum(Kind::Min, both);
      if (branches == ring.negate(ring.add(sides, shift))) return extremum(Kind::Max, both);
    }
  }
  return ExprAccess::node(Kind::Select, {condition, a, b});
}

Expr Algebra::build(Kind kind, std::span<const Expr> args) {
  switch (kind) {
    case Kind::Const:
    case Kind::Symbol:
      break;
    case Kind::Add: {
      Polynomial polynomial;
      for (const Expr& arg : args) append(polynomial, arg, 1);
      return sum(std::move(polynomial));
    }
    case Kind::Mul:
      return product(args);
    case Kind::FloorDiv:
      return floor_div(args[0], args[1]);
    case Kind::Mod:
      return mod(args[0], args[1]);
    case Kind::Min:
    case Kind::Max:
      return extremum(kind, args);
    case Kind::Eq:
    case Kind::Ne:
    case Kind::Lt:
    case Kind::Le:
      return compare(kind, args[0], args[1]);
    case Kind::Select:
      return select(args[0], args[1], args[2]);
  }
  FL_CHECK(false, "constants and symbols have no arguments");
}

}  // namespace fuseloom::sym
