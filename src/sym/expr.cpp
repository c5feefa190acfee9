#include "sym/expr.h"

#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "sym/algebra.h"
#include "sym/node.h"

namespace fuseloom::sym {

Expr Expr::symbol(std::string name) { return ExprAccess::symbol(std::move(name)); }

Kind Expr::kind() const { return node_ ? node_->kind : Kind::Const; }

const std::string& Expr::name() const {
  FL_CHECK(is_symbol(), "only a symbol has a name, this is {}", to_string(*this));
  return node_->name;
}

std::span<const Expr> Expr::args() const {
  return node_ ? std::span<const Expr>(node_->args) : std::span<const Expr>();
}

uint64_t Expr::hash() const {
  const base::Hash128 fingerprint = ExprAccess::fingerprint(*this);
  return base::hash_combine(fingerprint.low, fingerprint.high);
}

bool Expr::same_node(const Expr& other) const { return node_ == other.node_ && (node_ || value_ == other.value_); }

bool operator==(const Expr& a, const Expr& b) {
  if (a.node_ == b.node_) return a.node_ || a.value_ == b.value_;
  return a.node_ && b.node_ && a.node_->fingerprint == b.node_->fingerprint;
}

bool operator<(const Expr& a, const Expr& b) { return compare(a, b) < 0; }

Expr operator+(const Expr& a, const Expr& b) { return Algebra().add(a, b); }
Expr operator-(const Expr& a, const Expr& b) { return Algebra().subtract(a, b); }
Expr operator-(const Expr& a) { return Algebra().negate(a); }
Expr operator*(const Expr& a, const Expr& b) { return Algebra().multiply(a, b); }
Expr floor_div(const Expr& a, const Expr& b) { return Algebra().floor_div(a, b); }

// For every divisor, also a negative one: ceil(a / b) = -floor(-a / b).
Expr ceil_div(const Expr& a, const Expr& b) { return -floor_div(-a, b); }

Expr mod(const Expr& a, const Expr& b) { return Algebra().mod(a, b); }
Expr min(const Expr& a, const Expr& b) {
  const Expr args[] = {a, b};
  return Algebra().extremum(Kind::Min, args);
}
Expr max(const Expr& a, const Expr& b) {
  const Expr args[] = {a, b};
  return Algebra().extremum(Kind::Max, args);
}
Expr eq(const Expr& a, const Expr& b) { return Algebra().compare(Kind::Eq, a, b); }
Expr ne(const Expr& a, const Expr& b) { return Algebra().compare(Kind::Ne, a, b); }
Expr lt(const Expr& a, const Expr& b) { return Algebra().compare(Kind::Lt, a, b); }
Expr le(const Expr& a, const Expr& b) { return Algebra().compare(Kind::Le, a, b); }
Expr select(const Expr& condition, const Expr& a, const Expr& b) { return Algebra().select(condition, a, b); }
Expr product(std::span<const Expr> factors) { return Algebra().product(factors); }
Expr build(Kind kind, std::span<const Expr> args) { return Algebra().build(kind, args); }

Expr round_up(const Expr& a, int64_t multiple) {
  FL_CHECK(multiple > 0, "round_up to a multiple of {}", multiple);
  return ceil_div(a, multiple) * multiple;
}

namespace {

// Calls visit(symbol) once for every symbol node; shared subexpressions are walked once.
template <class Visit>
void for_each_symbol(const Expr& expr, std::unordered_set<const void*>& seen, const Visit& visit) {
  if (expr.is_const() || !seen.insert(ExprAccess::identity(expr)).second) return;
  if (expr.is_symbol()) return visit(expr);
  for (const Expr& arg : expr.args()) for_each_symbol(arg, seen, visit);
}

Expr substitute(const Expr& expr, const Substitution& by, Algebra& algebra, std::unordered_map<Expr, Expr>& done) {
  if (expr.is_const()) return expr;
  if (expr.is_symbol()) {
    const auto it = by.find(expr.name());
    return it == by.end() ? expr : it->second;
  }
  if (const auto it = done.find(expr); it != done.end()) return it->second;
  std::vector<Expr> args;
  args.reserve(expr.args().size());
  bool same = true;
  for (const Expr& arg : expr.args()) {
    args.push_back(substitute(arg, by, algebra, done));
    same &= args.back().same_node(arg);
  }
  Expr result = same ? expr : algebra.build(expr.kind(), args);
  done.emplace(expr, result);
  return result;
}

// Rounds of simplification: one is nearly always enough, a second shows it.
constexpr int kMaxSimplifyRounds = 8;

}  // namespace

void collect_symbols(const Expr& expr, std::set<std::string>& out) {
  std::unordered_set<const void*> seen;
  for_each_symbol(expr, seen, [&](const Expr& symbol) { out.insert(symbol.name()); });
}

std::set<std::string> symbols_of(const Expr& expr) {
  std::set<std::string> symbols;
  collect_symbols(expr, symbols);
  return symbols;
}

Expr substitute(const Expr& expr, const Substitution& by) {
  Algebra algebra;
  std::unordered_map<Expr, Expr> done;
  return substitute(expr, by, algebra, done);
}

Range bounds(const Expr& expr, const Facts& facts) { return Algebra(facts).range(expr); }

Expr simplify(const Expr& expr, const Facts& facts) {
  Algebra algebra(facts);
  Expr result = expr;
  for (int round = 0; round < kMaxSimplifyRounds; ++round) {
    const Expr next = algebra.rebuild(result);
    if (next.same_node(result)) break;
    result = next;
  }
  return result;
}

Proof prove_equal(const Expr& a, const Expr& b, const Facts& facts) {
  if (a == b) return Proof::Yes;
  const Expr equal = simplify(eq(a, b), facts);
  if (equal.is_const()) return equal.is_const(0) ? Proof::No : Proof::Yes;
  if (!has_small_coefficients(a) || !has_small_coefficients(b)) return Proof::Unknown;
  Algebra algebra(facts);
  const Expr difference = simplify(a - b, facts);
  return algebra.at_most(difference, 0) && algebra.at_least(difference, 0) ? Proof::Yes : Proof::Unknown;
}

Proof prove_less_equal(const Expr& a, const Expr& b, const Facts& facts) {
  const Expr less_equal = simplify(le(a, b), facts);
  if (!less_equal.is_const()) return Proof::Unknown;
  return less_equal.is_const(0) ? Proof::No : Proof::Yes;
}

Proof prove_divisible(const Expr& a, int64_t by, const Facts& facts) {
  if (by == 0) return prove_equal(a, 0, facts);  // 0 is the only multiple of 0
  const Expr remainder = simplify(mod(a, by), facts);
  if (remainder.is_const(0)) return Proof::Yes;
  return prove_equal(remainder, 0, facts) == Proof::No ? Proof::No : Proof::Unknown;
}

}  // namespace fuseloom::sym
