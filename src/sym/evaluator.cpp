#include "sym/evaluator.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "base/check.h"
#include "sym/node.h"

namespace fuseloom::sym {

// Scratch is [symbols][constants][intermediate results]. Every distinct subexpression is computed once; slots of
// intermediate results are not reused, since expressions are small.
class Evaluator::Compiler {
 public:
  Compiler(Evaluator& evaluator, std::span<const std::string> symbols) : evaluator_(evaluator) {
    for (const std::string& name : symbols) {
      const bool fresh = slots_.emplace(Expr::symbol(name), next_++).second;
      FL_CHECK(fresh, "symbol '{}' is listed twice", name);
    }
  }

  // Constants first, so that they lie in one piece behind the symbols.
  void place_constants(const Expr& expr) {
    if (!visited_.emplace(expr, true).second) return;
    if (expr.is_const()) return constant(*expr.as_const());
    if (is_by_power_of_two(expr)) {
      const int64_t divisor = *expr.args()[1].as_const();
      constant(expr.kind() == Kind::Mod ? divisor - 1 : std::countr_zero(static_cast<uint64_t>(divisor)));
      return place_constants(expr.args()[0]);
    }
    for (const Expr& arg : expr.args()) place_constants(arg);
  }

  int32_t compile(const Expr& expr) {
    if (const auto it = slots_.find(expr); it != slots_.end()) return it->second;
    FL_CHECK(!expr.is_symbol(), "symbol '{}' is not among the evaluator's inputs", expr.name());
    const int32_t slot = compile_node(expr);
    slots_.emplace(expr, slot);
    return slot;
  }

  int32_t slot_count() const { return next_; }

 private:
  void constant(int64_t value) {
    if (slots_.emplace(Expr(value), next_).second) {
      ++next_;
      evaluator_.constants_.push_back(value);
    }
  }

  static bool is_by_power_of_two(const Expr& expr) {
    if (expr.kind() != Kind::FloorDiv && expr.kind() != Kind::Mod) return false;
    const auto divisor = expr.args()[1].as_const();
    return divisor && *divisor > 0 && std::has_single_bit(static_cast<uint64_t>(*divisor));
  }

  int32_t emit(Opcode opcode, int32_t a, int32_t b, int32_t c = 0) {
    evaluator_.instructions_.push_back({.opcode = opcode, .a = a, .b = b, .c = c, .result = next_});
    return next_++;
  }

  int32_t chain(Opcode opcode, std::span<const Expr> args) {
    int32_t result = compile(args[0]);
    for (const Expr& arg : args.subspan(1)) {
      const int32_t next = compile(arg);
      result = emit(opcode, result, next);
    }
    return result;
  }

  // A sum is a chain of multiply-adds where its terms are products that nothing else has computed yet.
  int32_t compile_sum(std::span<const Expr> terms) {
    int32_t result = compile(terms.back());
    for (const Expr& term : terms.first(terms.size() - 1)) {
      if (term.kind() == Kind::Mul && !slots_.contains(term)) {
        const std::span<const Expr> factors = term.args();
        const int32_t left = chain(Opcode::Mul, factors.first(factors.size() - 1));
        result = emit(Opcode::MulAdd, left, compile(factors.back()), result);
      } else {
        result = emit(Opcode::Add, compile(term), result);
      }
    }
    return result;
  }

  int32_t compile_node(const Expr& expr) {
    const std::span<const Expr> args = expr.args();
    const auto binary = [&](Opcode opcode, const Expr& first, const Expr& second) {
      const int32_t a = compile(first), b = compile(second);
      return emit(opcode, a, b);
    };
    switch (expr.kind()) {
      case Kind::Const:
      case Kind::Symbol: break;
      case Kind::Add: return compile_sum(args);
      case Kind::Mul: return chain(Opcode::Mul, args);
      case Kind::FloorDiv: {
        if (!is_by_power_of_two(expr)) return binary(Opcode::FloorDiv, args[0], args[1]);
        const int shift = std::countr_zero(static_cast<uint64_t>(*args[1].as_const()));
        return binary(Opcode::Shift, args[0], shift);
      }
      case Kind::Mod: {
        if (!is_by_power_of_two(expr)) return binary(Opcode::Mod, args[0], args[1]);
        return binary(Opcode::Mask, args[0], *args[1].as_const() - 1);
      }
      case Kind::Min: return chain(Opcode::Min, args);
      case Kind::Max: return chain(Opcode::Max, args);
      case Kind::Eq: return binary(Opcode::Eq, args[0], args[1]);
      case Kind::Ne: return binary(Opcode::Ne, args[0], args[1]);
      case Kind::Lt: return binary(Opcode::Lt, args[0], args[1]);
      case Kind::Le: return binary(Opcode::Le, args[0], args[1]);
      case Kind::Select: {
        const int32_t a = compile(args[0]), b = compile(args[1]), c = compile(args[2]);
        return emit(Opcode::Select, a, b, c);
      }
    }
    FL_CHECK(false, "constants and symbols have slots from the start");
  }

  Evaluator& evaluator_;
  int32_t next_ = 0;
  std::unordered_map<Expr, int32_t> slots_;
  std::unordered_map<Expr, bool> visited_;
};

Evaluator::Evaluator(std::span<const std::string> symbols, std::span<const Expr> exprs)
    : symbol_count_(symbols.size()) {
  Compiler compiler(*this, symbols);
  for (const Expr& expr : exprs) compiler.place_constants(expr);
  for (const Expr& expr : exprs) results_.push_back(compiler.compile(expr));
  scratch_size_ = static_cast<size_t>(compiler.slot_count());
}

void Evaluator::evaluate(std::span<const int64_t> symbols, std::span<int64_t> scratch,
                         std::span<int64_t> results) const {
  FL_CHECK(symbols.size() == symbol_count_, "expected {} symbol values, found {}", symbol_count_, symbols.size());
  FL_CHECK(scratch.size() >= scratch_size_, "expected {} words of scratch, found {}", scratch_size_, scratch.size());
  FL_CHECK(results.size() == results_.size(), "expected room for {} results, found {}", results_.size(),
           results.size());
  int64_t* const slots = scratch.data();
  std::copy(symbols.begin(), symbols.end(), slots);
  std::copy(constants_.begin(), constants_.end(), slots + symbol_count_);
  for (const Instruction& instruction : instructions_) {
    const int64_t a = slots[instruction.a], b = slots[instruction.b];
    int64_t value = 0;
    switch (instruction.opcode) {
      case Opcode::Add: value = wrap_add(a, b); break;
      case Opcode::Mul: value = wrap_mul(a, b); break;
      case Opcode::MulAdd: value = wrap_add(wrap_mul(a, b), slots[instruction.c]); break;
      case Opcode::FloorDiv: value = floor_div_int(a, b); break;
      case Opcode::Shift: value = a >> b; break;
      case Opcode::Mod: value = floor_mod_int(a, b); break;
      case Opcode::Mask: value = a & b; break;
      case Opcode::Min: value = std::min(a, b); break;
      case Opcode::Max: value = std::max(a, b); break;
      case Opcode::Eq: value = a == b; break;
      case Opcode::Ne: value = a != b; break;
      case Opcode::Lt: value = a < b; break;
      case Opcode::Le: value = a <= b; break;
      case Opcode::Select: value = a != 0 ? b : slots[instruction.c]; break;
    }
    slots[instruction.result] = value;
  }
  for (size_t i = 0; i < results_.size(); ++i) results[i] = slots[results_[i]];
}

int64_t evaluate(const Expr& expr, const std::map<std::string, int64_t>& values) {
  std::vector<std::string> symbols;
  std::vector<int64_t> inputs;
  for (const std::string& name : symbols_of(expr)) {
    const auto it = values.find(name);
    FL_REQUIRE(it != values.end(), "symbol '{}' has no value in {}", name, to_string(expr));
    symbols.push_back(name);
    inputs.push_back(it->second);
  }
  const Evaluator evaluator(symbols, {&expr, 1});
  std::vector<int64_t> scratch(evaluator.scratch_size());
  int64_t result = 0;
  evaluator.evaluate(inputs, scratch, {&result, 1});
  return result;
}

}  // namespace fuseloom::sym
