// Private to sym: the constructors of canonical expressions, with or without facts. The public operators are an Algebra
// without facts; simplify() rebuilds an expression bottom-up with an Algebra that has them. Every rule is written once:
// a condition such as "0 <= x < n" is asked of at_least/at_most, which without facts look at the range stored in a node
// and with facts search a proof of bounded length.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sym/expr.h"
#include "sym/node.h"

namespace fuseloom::sym {

class Algebra {
 public:
  Algebra() = default;  // without facts
  // Without facts, and with sums and products that stay polynomials: what the rules themselves calculate with.
  static Algebra ring_only();
  // `facts` must outlive the algebra.
  explicit Algebra(const Facts& facts);

  Expr add(const Expr& a, const Expr& b);
  Expr subtract(const Expr& a, const Expr& b);
  Expr negate(const Expr& a) { return scale(a, -1); }
  Expr scale(const Expr& a, int64_t factor);
  Expr multiply(const Expr& a, const Expr& b);
  Expr product(std::span<const Expr> factors);
  Expr floor_div(const Expr& a, const Expr& b);
  Expr mod(const Expr& a, const Expr& b);
  Expr extremum(Kind kind, std::span<const Expr> args);   // Min, Max
  Expr compare(Kind kind, const Expr& a, const Expr& b);  // Eq, Ne, Lt, Le
  Expr select(const Expr& condition, const Expr& a, const Expr& b);
  // kind(args...) for every kind but Const and Symbol.
  Expr build(Kind kind, std::span<const Expr> args);

  Range range(const Expr& expr);
  bool at_most(const Expr& expr, int64_t limit);
  bool at_least(const Expr& expr, int64_t limit);
  bool nonzero(const Expr& expr);

  // Rebuilds an expression bottom-up with the facts, each distinct subexpression once. What does not change stays the
  // same node.
  Expr rebuild(const Expr& expr);

 private:
  struct Division {
    Expr quotient, remainder;
  };
  // x = radix * high + low with 0 <= low < radix, and divisor = radix * rest.
  struct Digits {
    Expr high, low, radix, rest;
  };
  // A dividend over a divisor, both without their common factor; low is what the factor leaves of the constant:
  // dividend = factor * reduced + low, 0 <= low < factor.
  struct Cancelled {
    Expr dividend, divisor, factor;
    int64_t low = 0;
  };
  // What at_most may go on with instead of a polynomial, each alternative nowhere smaller: an atom is replaced by one
  // of its bounds. One proven alternative is enough, unless `all` is set.
  struct Relaxation {
    std::vector<Expr> alternatives;
    bool all = false;
  };
  // Which atoms to replace, in this order: loop indices that nothing else in the polynomial depends on (in j < i < n
  // first j becomes i - 1, and only then i becomes n - 1); remainders and quotients; min, max and select; loop indices
  // in any order; and whatever has constant bounds.
  enum class BoundKind : uint8_t { FreeIndex, Digit, Branch, Index, Constant };

  Expr sum(Polynomial polynomial);
  bool recombine(Polynomial& polynomial);
  std::optional<Polynomial> recombine_mod(const Polynomial& polynomial, size_t term, const Expr& atom);
  std::optional<Polynomial> recombine_floor_div(const Polynomial& polynomial, size_t term, const Expr& atom);

  Division divide(const Expr& a, const Expr& b);
  std::optional<int64_t> constant_quotient(const Expr& a, const Expr& b);
  std::optional<Cancelled> cancel(const Expr& a, const Expr& b, bool needs_nonzero);
  std::optional<Digits> separate_digits(const Expr& a, const Expr& b, int64_t least_rest);
  std::optional<Expr> without_multiples(const Expr& a, const Expr& b);
  Expr floor_div_by_terms(const Expr& a, int64_t divisor);

  Expr at_most_zero(const Expr& difference);
  Expr is_zero(const Expr& difference);
  Expr negation(const Expr& condition);

  Range symbol_range(const Expr& symbol);
  bool prove_at_most(Expr expr, int64_t limit, int& budget);
  std::optional<Relaxation> relax(const Expr& expr, BoundKind kind);
  std::optional<Relaxation> relax_atom(const Expr& expr, const Expr& atom, BoundKind kind);
  Expr extreme(Expr expr, bool upper);

  const Facts* facts_ = nullptr;
  bool recombines_ = true;
  int proof_depth_ = 0;
  std::map<std::string, Expr> upper_exclusive_;  // of the facts, simplified
  std::unordered_set<Expr> positive_;            // those bounds, since an index exists below them
  std::unordered_map<Expr, Range> ranges_;
  std::unordered_map<Expr, Expr> rebuilt_;
  std::unordered_set<std::string> visiting_;  // symbols whose range is being computed, against cyclic bounds
};

}  // namespace fuseloom::sym
