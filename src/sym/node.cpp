#include "sym/node.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "sym/interval.h"

namespace fuseloom::sym {
namespace {

// Symbols first, then composites in the order of Kind, constants last.
int rank(Kind kind) { return kind == Kind::Const ? 256 : static_cast<int>(kind); }

}  // namespace

Expr ExprAccess::symbol(std::string name) {
  FL_CHECK(!name.empty(), "a symbol needs a name");
  Expr::Node node{.kind = Kind::Symbol, .name = std::move(name)};
  node.fingerprint = base::hash_bytes(node.name.data(), node.name.size(), static_cast<uint64_t>(Kind::Symbol));
  Expr expr;
  expr.node_ = std::make_shared<const Expr::Node>(std::move(node));
  return expr;
}

Expr ExprAccess::node(Kind kind, std::vector<Expr> args) {
  // Tag and fingerprint of each argument, hashed together with the kind as the seed.
  constexpr size_t kInline = 16;
  uint64_t small[3 * kInline];
  std::vector<uint64_t> large;
  uint64_t* words = small;
  if (args.size() > kInline) {
    large.resize(3 * args.size());
    words = large.data();
  }
  std::vector<Range> ranges;
  ranges.reserve(args.size());
  size_t count = 0;
  for (const Expr& arg : args) {
    const base::Hash128 hash = fingerprint(arg);
    words[count++] = arg.is_const() ? 1 : 0;
    words[count++] = hash.low;
    words[count++] = hash.high;
    ranges.push_back(range(arg));
  }
  Expr::Node node{.kind = kind, .args = std::move(args)};
  node.fingerprint = base::hash_bytes(words, count * sizeof(uint64_t), static_cast<uint64_t>(kind));
  node.range = range_of(kind, ranges);
  Expr expr;
  expr.node_ = std::make_shared<const Expr::Node>(std::move(node));
  return expr;
}

base::Hash128 ExprAccess::fingerprint(const Expr& expr) {
  if (expr.node_) return expr.node_->fingerprint;
  return {.low = static_cast<uint64_t>(expr.value_), .high = 0};
}

Range ExprAccess::range(const Expr& expr) { return expr.node_ ? expr.node_->range : constant_range(expr.value_); }

int compare(const Expr& a, const Expr& b) {
  if (a == b) return 0;
  const Kind kind = a.kind();
  if (kind != b.kind()) return rank(kind) < rank(b.kind()) ? -1 : 1;
  if (kind == Kind::Const) return *a.as_const() < *b.as_const() ? -1 : 1;
  if (kind == Kind::Symbol) return a.name() < b.name() ? -1 : 1;
  const std::span<const Expr> left = a.args(), right = b.args();
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (const int order = compare(left[i], right[i]); order != 0) return order;
  }
  return left.size() < right.size() ? -1 : 1;
}

std::span<const Expr> atoms_of(const Expr& monomial) {
  if (monomial.kind() != Kind::Mul) return {&monomial, 1};
  const std::span<const Expr> args = monomial.args();
  return args.back().is_const() ? args.first(args.size() - 1) : args;
}

namespace {

int64_t own_coefficient(const Expr& body) {
  if (body.kind() != Kind::Mul) return 1;
  return body.args().back().as_const().value_or(1);
}

}  // namespace

Polynomial polynomial_of(const Expr& expr) {
  Polynomial polynomial;
  const auto add = [&](const Expr& part) {
    if (const auto value = part.as_const()) {
      polynomial.constant = *value;
    } else {
      polynomial.terms.push_back({part, own_coefficient(part)});
    }
  };
  if (expr.kind() == Kind::Add) {
    polynomial.terms.reserve(expr.args().size());
    for (const Expr& part : expr.args()) add(part);
  } else {
    add(expr);
  }
  return polynomial;
}

Term make_term(std::vector<Expr> atoms, int64_t coefficient) {
  FL_CHECK(!atoms.empty(), "a term without atoms is a constant");
  if (atoms.size() == 1) return {std::move(atoms[0]), coefficient};
  if (coefficient != 1) atoms.emplace_back(coefficient);
  return {ExprAccess::node(Kind::Mul, std::move(atoms)), coefficient};
}

Expr term_expr(const Term& term) {
  if (term.coefficient == 0) return 0;
  if (term.coefficient == own_coefficient(term.body)) return term.body;
  const std::span<const Expr> atoms = term.atoms();
  if (atoms.size() == 1 && term.coefficient == 1) return atoms[0];
  std::vector<Expr> args(atoms.begin(), atoms.end());
  if (term.coefficient != 1) args.emplace_back(term.coefficient);
  return ExprAccess::node(Kind::Mul, std::move(args));
}

int compare_monomials(std::span<const Expr> a, std::span<const Expr> b) {
  if (a.size() != b.size()) return a.size() > b.size() ? -1 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (const int order = compare(a[i], b[i]); order != 0) return order;
  }
  return 0;
}

void collect_like_terms(Polynomial& polynomial) {
  std::vector<Term>& terms = polynomial.terms;
  if (!std::is_sorted(terms.begin(), terms.end(), comes_before)) {
    std::stable_sort(terms.begin(), terms.end(), comes_before);
  }
  size_t kept = 0;
  for (size_t i = 0; i < terms.size();) {
    Term term = std::move(terms[i++]);
    while (i < terms.size() && compare_monomials(term.atoms(), terms[i].atoms()) == 0) {
      term.coefficient = wrap_add(term.coefficient, terms[i++].coefficient);
    }
    if (term.coefficient != 0) terms[kept++] = std::move(term);
  }
  terms.resize(kept);
}

Expr sum_expr(const Polynomial& polynomial) {
  if (polynomial.terms.empty()) return polynomial.constant;
  if (polynomial.terms.size() == 1 && polynomial.constant == 0) return term_expr(polynomial.terms[0]);
  std::vector<Expr> args;
  args.reserve(polynomial.terms.size() + 1);
  for (const Term& term : polynomial.terms) args.push_back(term_expr(term));
  if (polynomial.constant != 0) args.emplace_back(polynomial.constant);
  return ExprAccess::node(Kind::Add, std::move(args));
}

int64_t saturating_product(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

int64_t norm_of(const Expr& expr) {
  int64_t norm = 0;
  const auto add = [&](int64_t coefficient) {
    const int64_t magnitude = coefficient == INT64_MIN ? INT64_MAX : coefficient < 0 ? -coefficient : coefficient;
    if (__builtin_add_overflow(norm, magnitude, &norm)) norm = INT64_MAX;
  };
  const auto add_part = [&](const Expr& part) { add(part.as_const().value_or(own_coefficient(part))); };
  if (expr.kind() == Kind::Add) {
    for (const Expr& part : expr.args()) add_part(part);
  } else {
    add_part(expr);
  }
  return norm;
}

bool product_has_small_coefficients(std::initializer_list<Expr> factors) {
  int64_t norm = 1;
  for (const Expr& factor : factors) norm = saturating_product(norm, norm_of(factor));
  return norm <= kMaxNorm;
}

std::optional<std::vector<Expr>> divide_atoms(std::span<const Expr> a, std::span<const Expr> b) {
  if (b.size() > a.size()) return std::nullopt;
  std::vector<Expr> rest;
  size_t j = 0;
  for (const Expr& atom : a) {
    if (j < b.size() && atom == b[j]) {
      ++j;
    } else {
      rest.push_back(atom);
    }
  }
  if (j != b.size()) return std::nullopt;
  return rest;
}

std::vector<Expr> common_atoms(std::span<const Expr> a, std::span<const Expr> b) {
  std::vector<Expr> common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int order = compare(a[i], b[j]);
    if (order == 0) {
      common.push_back(a[i]);
      ++i, ++j;
    } else if (order < 0) {
      ++i;
    } else {
      ++j;
    }
  }
  return common;
}

int64_t gcd_int(int64_t a, int64_t b) {
  constexpr int64_t kLargest = int64_t{1} << 62;
  const auto magnitude = [](int64_t x) { return x == INT64_MIN ? kLargest : x < 0 ? -x : x; };
  return std::gcd(magnitude(a), magnitude(b));
}

}  // namespace fuseloom::sym
