// Private to sym: what an expression is made of, and its view as a polynomial over atoms.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "sym/expr.h"

namespace fuseloom::sym {

struct Expr::Node {
  Kind kind;
  base::Hash128 fingerprint;  // of the structure: two nodes are equal exactly when their fingerprints are
  std::string name;           // of a symbol
  std::vector<Expr> args;
  Range range;  // what holds without any facts
};

// The door to the private parts of Expr.
struct ExprAccess {
  static Expr symbol(std::string name);
  // A node exactly as given: the caller has brought the arguments into canonical form.
  static Expr node(Kind kind, std::vector<Expr> args);
  static const void* identity(const Expr& expr) { return expr.node_.get(); }
  static base::Hash128 fingerprint(const Expr& expr);
  static Range range(const Expr& expr);
};

// The total order: symbols by name, then composites by kind and arguments, constants last. Negative, zero, positive.
// Equal arguments are skipped by their fingerprints, so that the cost is the depth, not the size.
int compare(const Expr& a, const Expr& b);

// ---- Polynomials -------------------------------------------------------------------------------------------------
// An Expr is a sum of terms and a constant; a term is a coefficient times a monomial; a monomial is a sorted list of
// atoms (everything that is not a constant or a sum; a sum too when its product was too large to expand).

// The atoms of a monomial: the arguments of a product without its constant, or the expression itself.
std::span<const Expr> atoms_of(const Expr& monomial);

struct Term {
  Expr body;  // an Expr whose atoms are the monomial; its own constant factor does not count
  int64_t coefficient = 1;
  std::span<const Expr> atoms() const { return atoms_of(body); }
};

struct Polynomial {
  std::vector<Term> terms;
  int64_t constant = 0;
};

Polynomial polynomial_of(const Expr& expr);
Expr term_expr(const Term& term);
// The term coefficient * product of sorted atoms (not empty).
Term make_term(std::vector<Expr> atoms, int64_t coefficient);

// The monomial order of sums: higher degree first, then lexicographic. It is compatible with multiplication, which is
// what makes polynomial division terminate with a unique remainder.
int compare_monomials(std::span<const Expr> a, std::span<const Expr> b);

inline bool comes_before(const Term& a, const Term& b) { return compare_monomials(a.atoms(), b.atoms()) < 0; }

// Sorts the terms and adds up equal monomials.
void collect_like_terms(Polynomial& polynomial);
// A canonical sum from collected terms.
Expr sum_expr(const Polynomial& polynomial);

// The sum of the magnitudes of the coefficients and the constant, saturating. Since norm(a + b) <= norm(a) + norm(b)
// and norm(a*b) <= norm(a)*norm(b), no coefficient of a result wraps while the norm stays within kMaxNorm. Rules that
// derive new coefficients apply within it only: they argue about integers, not about integers modulo 2^64.
constexpr int64_t kMaxNorm = int64_t{1} << 60;
int64_t norm_of(const Expr& expr);
int64_t saturating_product(int64_t a, int64_t b);  // of nonnegative numbers
inline bool has_small_coefficients(const Expr& expr) { return norm_of(expr) <= kMaxNorm; }
bool product_has_small_coefficients(std::initializer_list<Expr> factors);

// Atoms of `a` without those of `b` (multisets, both sorted); nothing when b is not contained in a.
std::optional<std::vector<Expr>> divide_atoms(std::span<const Expr> a, std::span<const Expr> b);
std::vector<Expr> common_atoms(std::span<const Expr> a, std::span<const Expr> b);

// ---- Integers ----------------------------------------------------------------------------------------------------
// Two's-complement wrap, without undefined behaviour.
constexpr int64_t wrap_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
constexpr int64_t wrap_sub(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
constexpr int64_t wrap_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
constexpr int64_t wrap_neg(int64_t a) { return wrap_sub(0, a); }
// Floor division; by zero 0; INT64_MIN / -1 wraps.
constexpr int64_t floor_div_int(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrap_neg(a);
  const int64_t quotient = a / b;
  return a % b != 0 && ((a < 0) != (b < 0)) ? quotient - 1 : quotient;
}
constexpr int64_t floor_mod_int(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t remainder = a % b;
  return remainder != 0 && ((remainder < 0) != (b < 0)) ? remainder + b : remainder;
}
// Greatest common divisor of magnitudes; 2^63 counts as 2^62, which divides it and fits.
int64_t gcd_int(int64_t a, int64_t b);

}  // namespace fuseloom::sym
