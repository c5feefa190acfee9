// Symbolic integers: the sizes, strides, offsets, grids and loop bounds of every IR.
//
// Semantics. An Expr denotes a mathematical integer; the evaluator computes in int64 with two's-complement wrap.
//   floor_div, mod   floor semantics: mod has the sign of the divisor. By zero: the value is 0 (documented, total).
//   eq ne lt le      1 or 0
//   select(c,a,b)    a when c != 0, else b
// An Expr is an immutable value (cheap to copy, thread-safe). Every constructor returns the canonical form: sums and
// products are flattened, sorted and have their constants folded, so that structural equality decides most questions.
// Building an expression from parts that are already canonical never changes its value.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fuseloom::base {
class Lexer;
}

namespace fuseloom::sym {

enum class Kind : uint8_t { Const, Symbol, Add, Mul, FloorDiv, Mod, Min, Max, Eq, Ne, Lt, Le, Select };

class Expr {
 public:
  Expr() = default;                       // 0
  Expr(int64_t value) : value_(value) {}  // NOLINT: an integer is an expression
  Expr(int value) : value_(value) {}      // NOLINT
  static Expr symbol(std::string name);   // name: [A-Za-z_][A-Za-z0-9_.]*

  Kind kind() const;
  bool is_const() const { return node_ == nullptr; }
  bool is_const(int64_t value) const { return node_ == nullptr && value_ == value; }
  std::optional<int64_t> as_const() const { return is_const() ? std::optional(value_) : std::nullopt; }
  bool is_symbol() const { return kind() == Kind::Symbol; }
  const std::string& name() const;     // of a symbol
  std::span<const Expr> args() const;  // empty for constants and symbols
  uint64_t hash() const;
  bool same_node(const Expr& other) const;  // identity: the very same node (or equal constants)

  friend bool operator==(const Expr& a, const Expr& b);  // structural
  friend bool operator<(const Expr& a, const Expr& b);   // a total order that does not depend on addresses

 private:
  struct Node;
  friend struct ExprAccess;
  int64_t value_ = 0;
  std::shared_ptr<const Node> node_;
};

Expr operator+(const Expr& a, const Expr& b);
Expr operator-(const Expr& a, const Expr& b);
Expr operator-(const Expr& a);
Expr operator*(const Expr& a, const Expr& b);
Expr floor_div(const Expr& a, const Expr& b);
Expr ceil_div(const Expr& a, const Expr& b);
Expr mod(const Expr& a, const Expr& b);
Expr min(const Expr& a, const Expr& b);
Expr max(const Expr& a, const Expr& b);
Expr eq(const Expr& a, const Expr& b);
Expr ne(const Expr& a, const Expr& b);
Expr lt(const Expr& a, const Expr& b);
Expr le(const Expr& a, const Expr& b);
Expr select(const Expr& condition, const Expr& a, const Expr& b);
Expr product(std::span<const Expr> factors);
// kind(args...), for every kind but Const and Symbol. Add, Mul, Min and Max take any number of arguments from one on.
Expr build(Kind kind, std::span<const Expr> args);
Expr round_up(const Expr& a, int64_t multiple);

// Text: infix with floor division `/` and `%` printed as calls: `s0*4 + min(h, 3) + floor_div(w, 2)`, `mod(a, 4)`,
// `select(lt(a, b), a, b)`. print → parse → print is the identity.
std::string to_string(const Expr& expr);
Expr parse_expr(base::Lexer& lexer);  // throws UserError
Expr parse_expr(std::string_view text);

// The symbols an expression needs, in name order.
void collect_symbols(const Expr& expr, std::set<std::string>& out);
std::set<std::string> symbols_of(const Expr& expr);

using Substitution = std::map<std::string, Expr>;
Expr substitute(const Expr& expr, const Substitution& by);

// What is known of symbols. A symbol without a fact can be any integer.
struct Range {
  static constexpr int64_t kMin = INT64_MIN, kMax = INT64_MAX;  // unbounded below / above
  int64_t low = kMin, high = kMax;                              // inclusive
  int64_t divisor = 1;                                          // the value is a multiple of this (0: the value is 0)
};
struct Facts {
  std::map<std::string, Range> symbols;
  std::vector<Expr> nonzero;                    // expressions known to differ from 0 (divisors)
  std::map<std::string, Expr> upper_exclusive;  // loop indices: 0 <= symbol < expr
  static Range size() { return {.low = 0, .high = Range::kMax, .divisor = 1}; }
};

// Interval and divisibility of an expression under facts; sound: never narrower than the truth (saturating arithmetic).
Range bounds(const Expr& expr, const Facts& facts);

// Simplifies with facts: removes mod and floor_div by interval and divisibility, cancels common factors, resolves min,
// max, comparisons, selects. Idempotent; returns the very same node when nothing changes.
Expr simplify(const Expr& expr, const Facts& facts);

enum class Proof : uint8_t { Yes, No, Unknown };
Proof prove_equal(const Expr& a, const Expr& b, const Facts& facts = {});
Proof prove_less_equal(const Expr& a, const Expr& b, const Facts& facts = {});
Proof prove_divisible(const Expr& a, int64_t by, const Facts& facts = {});

// Solves `expr == target` for the one symbol: an expression over the other symbols, when expr is linear in the symbol
// with a constant nonzero factor, or a product of the symbol with factors known nonzero under `facts`, or a floor_div
// by a constant of those (then the smallest of the equally good values). If any value of the symbol makes
// expr == target true, so does the answer; if none does, the answer does not either, which is why the caller re-checks
// expr == target after binding (B2).
std::optional<Expr> solve_for(const Expr& expr, const std::string& symbol, const Expr& target, const Facts& facts = {});

}  // namespace fuseloom::sym

template <>
struct std::hash<fuseloom::sym::Expr> {
  size_t operator()(const fuseloom::sym::Expr& expr) const { return expr.hash(); }
};
