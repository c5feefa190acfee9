// What an Algebra can prove: ranges by interval arithmetic, and inequalities by replacing atoms with their bounds.
#include <algorithm>

#include "base/check.h"
#include "sym/algebra.h"
#include "sym/interval.h"

namespace fuseloom::sym {
namespace {

// Replacements in one proof, and proofs inside proofs.
constexpr int kProofBudget = 48;
constexpr int kMaxProofDepth = 2;
// An atom to a higher power than this is not replaced.
constexpr size_t kMaxPower = 4;

// expr = sum over k of coefficients[k] * atom^k, the coefficients free of the atom as a factor.
std::vector<Expr> coefficients_of(const Expr& expr, const Expr& atom) {
  std::vector<Polynomial> parts(1);
  const Polynomial polynomial = polynomial_of(expr);
  parts[0].constant = polynomial.constant;
  for (const Term& term : polynomial.terms) {
    std::vector<Expr> rest;
    size_t power = 0;
    for (const Expr& factor : term.atoms()) {
      if (factor == atom) {
        ++power;
      } else {
        rest.push_back(factor);
      }
    }
    if (parts.size() <= power) parts.resize(power + 1);
    if (rest.empty()) {
      parts[power].constant = wrap_add(parts[power].constant, term.coefficient);
    } else {
      parts[power].terms.push_back(make_term(std::move(rest), term.coefficient));
    }
  }
  std::vector<Expr> result;
  for (Polynomial& part : parts) {
    collect_like_terms(part);
    result.push_back(sum_expr(part));
  }
  return result;
}

bool is_at_least_zero(const Range& range) { return range.low >= 0; }
bool is_at_most_zero(const Range& range) { return range.high <= 0; }

}  // namespace

Algebra Algebra::ring_only() {
  Algebra algebra;
  algebra.recombines_ = false;
  return algebra;
}

Algebra::Algebra(const Facts& facts) : facts_(&facts), upper_exclusive_(facts.upper_exclusive) {
  for (const auto& [name, bound] : facts.upper_exclusive) positive_.insert(bound);
  // A bound such as ceil_div(n, 4) is of use once the facts have made it n/4.
  for (auto& [name, bound] : upper_exclusive_) {
    if (!bound.is_const() && !bound.is_symbol()) bound = rebuild(bound);
  }
  for (const auto& [name, bound] : upper_exclusive_) positive_.insert(bound);
  ranges_.clear();
  rebuilt_.clear();
}

Expr Algebra::rebuild(const Expr& expr) {
  if (expr.is_const()) return expr;
  if (expr.is_symbol()) {
    // A symbol that the facts pin to one value is that value.
    const Range known = range(expr);
    const bool pinned = known.low == known.high && known.low != Range::kMin && known.low != Range::kMax;
    return pinned ? Expr(known.low) : expr;
  }
  if (const auto it = rebuilt_.find(expr); it != rebuilt_.end()) return it->second;
  std::vector<Expr> args;
  args.reserve(expr.args().size());
  for (const Expr& arg : expr.args()) args.push_back(rebuild(arg));
  Expr result = build(expr.kind(), args);
  if (result == expr) result = expr;
  rebuilt_.emplace(expr, result);
  return result;
}

Range Algebra::symbol_range(const Expr& symbol) {
  Range result;
  const std::string& name = symbol.name();
  if (const auto it = facts_->symbols.find(name); it != facts_->symbols.end()) result = it->second;
  if (const auto it = upper_exclusive_.find(name); it != upper_exclusive_.end() && visiting_.insert(name).second) {
    result.low = std::max<int64_t>(result.low, 0);
    const int64_t high = range(it->second).high;
    if (high != Range::kMax) result.high = std::min(result.high, std::max<int64_t>(high, 1) - 1);
    visiting_.erase(name);
  }
  // 0 <= index < bound makes the bound positive, and with it every factor that is not negative.
  for (const Expr& bound : positive_) {
    if (bound.is_const() || visiting_.contains(name)) continue;
    const Polynomial polynomial = polynomial_of(bound);
    if (polynomial.terms.size() != 1 || polynomial.constant != 0 || polynomial.terms[0].coefficient <= 0) continue;
    bool contains = false, nonnegative = true;
    for (const Expr& atom : polynomial.terms[0].atoms()) {
      if (atom == symbol) {
        contains = true;
        continue;
      }
      const auto it = atom.is_symbol() ? facts_->symbols.find(atom.name()) : facts_->symbols.end();
      nonnegative &= it != facts_->symbols.end() && it->second.low >= 0;
    }
    const bool alone = polynomial.terms[0].atoms().size() == 1;
    if (contains && nonnegative && (alone || result.low >= 0)) result.low = std::max<int64_t>(result.low, 1);
  }
  result.divisor = result.divisor < 0 ? gcd_int(result.divisor, 0) : result.divisor;
  return tightened(result);
}

Range Algebra::range(const Expr& expr) {
  if (!facts_ || expr.is_const()) return ExprAccess::range(expr);
  if (const auto it = ranges_.find(expr); it != ranges_.end()) return it->second;
  Range result;
  if (expr.is_symbol()) {
    result = symbol_range(expr);
    // A range found while a cyclic bound is open is sound but may be wider than the one to remember.
    if (!visiting_.empty()) return result;
  } else {
    std::vector<Range> args;
    args.reserve(expr.args().size());
    for (const Expr& arg : expr.args()) args.push_back(range(arg));
    result = range_of(expr.kind(), args);
    if (positive_.contains(expr)) result.low = std::max<int64_t>(result.low, 1);
    if (!visiting_.empty()) return result;
  }
  ranges_.emplace(expr, result);
  return result;
}

bool Algebra::nonzero(const Expr& expr) {
  if (const auto value = expr.as_const()) return *value != 0;
  if (excludes_zero(range(expr))) return true;
  if (!facts_) return false;
  if (expr.kind() == Kind::Mul) {
    const std::span<const Expr> factors = expr.args();
    if (std::all_of(factors.begin(), factors.end(), [&](const Expr& factor) { return nonzero(factor); })) return true;
  }
  // Whatever divides a nonzero expression is nonzero.
  Algebra ring = ring_only();
  for (const Expr& known : facts_->nonzero) {
    if (known == expr) return true;
    if (known.is_const() || !product_has_small_coefficients({known, expr})) continue;
    if (ring.divide(known, expr).remainder == 0) return true;
  }
  return at_least(expr, 1) || at_most(expr, -1);
}

bool Algebra::at_least(const Expr& expr, int64_t limit) {
  if (range(expr).low >= limit) return true;
  if (!facts_ || limit == INT64_MIN || !has_small_coefficients(expr)) return false;
  Algebra ring = ring_only();
  return at_most(ring.negate(expr), -limit);
}

bool Algebra::at_most(const Expr& expr, int64_t limit) {
  const Range whole = range(expr);
  if (whole.high <= limit) return true;
  if (!facts_ || whole.low > limit || proof_depth_ >= kMaxProofDepth || !has_small_coefficients(expr)) return false;
  ++proof_depth_;
  int budget = kProofBudget;
  const bool proven = prove_at_most(expr, limit, budget);
  --proof_depth_;
  return proven;
}

// Goes from one polynomial to another that is nowhere smaller, until the interval of one is small enough: an index i in
// [0, n) becomes n - 1 where its coefficient is not negative, so that i*s + j - n*s with j in [0, s) becomes -1.
bool Algebra::prove_at_most(Expr expr, int64_t limit, int& budget) {
  while (true) {
    const Range whole = range(expr);
    if (whole.high <= limit) return true;
    if (whole.low > limit || budget-- <= 0) return false;
    std::optional<Relaxation> relaxation;
    for (const BoundKind kind :
         {BoundKind::FreeIndex, BoundKind::Digit, BoundKind::Branch, BoundKind::Index, BoundKind::Constant}) {
      if ((relaxation = relax(expr, kind))) break;
    }
    if (!relaxation) return false;
    const std::vector<Expr>& next = relaxation->alternatives;
    if (next.size() == 1) {
      expr = next[0];
      continue;
    }
    const auto proven = [&](const Expr& alternative) { return prove_at_most(alternative, limit, budget); };
    return relaxation->all ? std::all_of(next.begin(), next.end(), proven)
                           : std::any_of(next.begin(), next.end(), proven);
  }
}

std::optional<Algebra::Relaxation> Algebra::relax(const Expr& expr, BoundKind kind) {
  std::vector<Expr> atoms;
  const Polynomial polynomial = polynomial_of(expr);
  for (const Term& term : polynomial.terms) {
    for (const Expr& atom : term.atoms()) {
      if (std::find(atoms.begin(), atoms.end(), atom) == atoms.end()) atoms.push_back(atom);
    }
  }
  if (kind == BoundKind::FreeIndex || kind == BoundKind::Index) {
    std::vector<Expr> free, waiting;
    for (const Expr& atom : atoms) {
      if (!atom.is_symbol() || !upper_exclusive_.contains(atom.name())) continue;
      const bool waits = std::any_of(atoms.begin(), atoms.end(), [&](const Expr& other) {
        if (other == atom) return false;
        const auto bound = other.is_symbol() ? upper_exclusive_.find(other.name()) : upper_exclusive_.end();
        return symbols_of(bound != upper_exclusive_.end() ? bound->second : other).contains(atom.name());
      });
      (waits ? waiting : free).push_back(atom);
    }
    atoms = std::move(free);
    if (kind == BoundKind::Index) atoms.insert(atoms.end(), waiting.begin(), waiting.end());
  }
  if (kind == BoundKind::Constant) {
    // The interval has already replaced what occurs once, with a constant factor: only correlations are to be gained.
    std::erase_if(atoms, [&](const Expr& atom) {
      size_t count = 0;
      bool product = false;
      for (const Term& term : polynomial.terms) {
        const std::span<const Expr> factors = term.atoms();
        if (std::find(factors.begin(), factors.end(), atom) == factors.end()) continue;
        ++count;
        product |= factors.size() > 1;
      }
      return count < 2 && !product;
    });
  }
  for (const Expr& atom : atoms) {
    if (auto relaxation = relax_atom(expr, atom, kind)) return relaxation;
  }
  return std::nullopt;
}

std::optional<Algebra::Relaxation> Algebra::relax_atom(const Expr& expr, const Expr& atom, BoundKind kind) {
  const auto is_of_kind = [&] {
    switch (atom.kind()) {
      case Kind::Symbol:
        return kind == BoundKind::FreeIndex || kind == BoundKind::Index || kind == BoundKind::Constant;
      case Kind::FloorDiv:
      case Kind::Mod:
        return kind == BoundKind::Digit || kind == BoundKind::Constant;
      case Kind::Min:
      case Kind::Max:
      case Kind::Select:
        return kind == BoundKind::Branch || kind == BoundKind::Constant;
      case Kind::Const:
      case Kind::Add:
      case Kind::Mul:
      case Kind::Eq:
      case Kind::Ne:
      case Kind::Lt:
      case Kind::Le:
        return kind == BoundKind::Constant;
    }
    FL_CHECK(false, "unknown kind");
  };
  if (!is_of_kind()) return std::nullopt;
  // 1. The direction in which expr grows with the atom.
  const std::vector<Expr> coefficients = coefficients_of(expr, atom);
  if (coefficients.size() < 2 || coefficients.size() > kMaxPower + 1) return std::nullopt;
  bool grows = true, falls = true;
  for (size_t power = 1; power < coefficients.size(); ++power) {
    if (coefficients[power].is_const(0)) continue;
    grows &= is_at_least_zero(range(coefficients[power]));
    falls &= is_at_most_zero(range(coefficients[power]));
  }
  if (coefficients.size() > 2 && range(atom).low < 0) return std::nullopt;
  if (!grows && !falls) return std::nullopt;
  Algebra ring = ring_only();
  // The polynomial with a value for the atom; nothing when a coefficient could wrap.
  const auto with = [&](const Expr& value) -> std::optional<Expr> {
    Expr result = coefficients[0], power_of_value = 1;
    for (size_t power = 1; power < coefficients.size(); ++power) {
      if (!product_has_small_coefficients({power_of_value, value})) return std::nullopt;
      power_of_value = ring.multiply(power_of_value, value);
      if (!product_has_small_coefficients({coefficients[power], power_of_value})) return std::nullopt;
      result = ring.add(result, ring.multiply(coefficients[power], power_of_value));
      if (!has_small_coefficients(result)) return std::nullopt;
    }
    return result;
  };
  const auto one_of = [&](std::initializer_list<std::optional<Expr>> candidates) -> std::optional<Relaxation> {
    Relaxation relaxation;
    for (const std::optional<Expr>& candidate : candidates) {
      if (candidate) relaxation.alternatives.push_back(*candidate);
    }
    if (relaxation.alternatives.empty()) return std::nullopt;
    return relaxation;
  };
  // 2. The bound of the atom in that direction.
  switch (kind) {
    case BoundKind::FreeIndex:
    case BoundKind::Index:
      return one_of({with(grows ? ring.subtract(upper_exclusive_.at(atom.name()), 1) : 0)});
    case BoundKind::Digit: {
      const Expr &x = atom.args()[0], &n = atom.args()[1];
      if (!at_least(n, 1)) return std::nullopt;
      if (atom.kind() == Kind::Mod) return one_of({with(grows ? ring.subtract(n, 1) : 0)});
      // x - n + 1 <= n*floor_div(x, n) <= x
      std::optional<Expr> by_multiple, by_end;
      const bool linear = coefficients.size() == 2 && product_has_small_coefficients({coefficients[1], n, x});
      if (linear) {
        const Division factor = ring.divide(coefficients[1], n);
        if (factor.remainder == 0) {
          const Expr bound = grows ? x : ring.subtract(ring.add(x, 1), n);
          by_multiple = ring.add(coefficients[0], ring.multiply(factor.quotient, bound));
        }
      }
      // floor_div grows with x.
      if (const Expr end = extreme(x, grows); end != x) {
        if (const Expr quotient = floor_div(end, n); quotient != atom) by_end = with(quotient);
      }
      return one_of({by_multiple, by_end});
    }
    case BoundKind::Branch: {
      const bool is_select = atom.kind() == Kind::Select;
      Relaxation relaxation;
      for (const Expr& choice : is_select ? atom.args().subspan(1) : atom.args()) {
        const std::optional<Expr> alternative = with(choice);
        if (!alternative) return std::nullopt;
        relaxation.alternatives.push_back(*alternative);
      }
      // The value is one of the choices: all of them are safe. A min is at most each of them: one will do.
      relaxation.all = is_select || grows != (atom.kind() == Kind::Min);
      return relaxation;
    }
    case BoundKind::Constant: {
      const Range ends = range(atom);
      const int64_t end = grows ? ends.high : ends.low;
      if (end == Range::kMax || end == Range::kMin) return std::nullopt;
      return one_of({with(end)});
    }
  }
  FL_CHECK(false, "unknown kind of bound");
}

// An expression that is nowhere smaller (or nowhere larger) than expr, without its loop indices where possible.
Expr Algebra::extreme(Expr expr, bool upper) {
  Algebra ring = ring_only();
  if (!upper) expr = ring.negate(expr);
  for (int round = 0; round < kProofBudget; ++round) {
    const auto relaxation = relax(expr, BoundKind::Index);
    if (!relaxation) break;
    expr = relaxation->alternatives[0];
  }
  return upper ? expr : ring.negate(expr);
}

}  // namespace fuseloom::sym
