#include "sym/evaluator.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <unordered_set>

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

  // Constants that are operands come first, so that they lie in one piece behind the symbols.
  void place_operand_constants(const Expr& expr, bool is_operand) {
    if (expr.is_const()) {
      if (is_operand && slots_.emplace(expr, next_).second) {
        ++next_;
        evaluator_.constants_.push_back(*expr.as_const());
      }
      return;
    }
    if (!visited_.insert(expr).second) return;
    const bool has_immediate = expr.kind() == Kind::Add || is_by_power_of_two(expr);
    for (const Expr& arg : expr.args()) {
      if (expr.kind() == Kind::Add && arg.kind() == Kind::Mul) {
        place_operand_constants(monomial_of_term(arg), true);
      } else {
        place_operand_constants(arg, !has_immediate);
      }
    }
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
  static bool is_by_power_of_two(const Expr& expr) {
    if (expr.kind() != Kind::FloorDiv && expr.kind() != Kind::Mod) return false;
    const auto divisor = expr.args()[1].as_const();
    return divisor && *divisor > 0 && std::has_single_bit(static_cast<uint64_t>(*divisor));
  }

  static Expr monomial_of_term(const Expr& term) {
    const std::span<const Expr> atoms = atoms_of(term);
    return term_expr(make_term({atoms.begin(), atoms.end()}, 1));
  }

  int32_t emit(Instruction instruction) {
    instruction.result = next_;
    evaluator_.instructions_.push_back(instruction);
    return next_++;
  }

  int32_t chain(Opcode opcode, std::span<const Expr> args) {
    int32_t result = compile(args[0]);
    for (const Expr& arg : args.subspan(1)) {
      const int32_t next = compile(arg);
      result = emit({.opcode = opcode, .a = result, .b = next});
    }
    return result;
  }

  int32_t compile_sum(const Expr& sum) {
    const Polynomial polynomial = polynomial_of(sum);
    std::vector<LinearTerm> terms;
    for (const Term& term : polynomial.terms) {
      // A product that is there already, with its coefficient, or else the product of its atoms.
      if (const auto it = slots_.find(term.body); it != slots_.end()) {
        terms.push_back({.coefficient = 1, .slot = it->second});
      } else {
        const int32_t slot = compile(monomial_of_term(term.body));
        terms.push_back({.coefficient = term.coefficient, .slot = slot});
      }
    }
    const auto first = static_cast<int32_t>(evaluator_.terms_.size());
    evaluator_.terms_.insert(evaluator_.terms_.end(), terms.begin(), terms.end());
    return emit({.opcode = Opcode::LinearSum,
                 .a = first,
                 .b = static_cast<int32_t>(terms.size()),
                 .immediate = polynomial.constant});
  }

  int32_t compile_node(const Expr& expr) {
    const std::span<const Expr> args = expr.args();
    const auto binary = [&](Opcode opcode) {
      const int32_t a = compile(args[0]), b = compile(args[1]);
      return emit({.opcode = opcode, .a = a, .b = b});
    };
    const auto by_power_of_two = [&](Opcode opcode, int64_t immediate) {
      return emit({.opcode = opcode, .a = compile(args[0]), .immediate = immediate});
    };
    switch (expr.kind()) {
      case Kind::Const:
      case Kind::Symbol:
        break;
      case Kind::Add:
        return compile_sum(expr);
      case Kind::Mul:
        return chain(Opcode::Mul, args);
      case Kind::FloorDiv:
        if (!is_by_power_of_two(expr)) return binary(Opcode::FloorDiv);
        return by_power_of_two(Opcode::Shift, std::countr_zero(static_cast<uint64_t>(*args[1].as_const())));
      case Kind::Mod:
        if (!is_by_power_of_two(expr)) return binary(Opcode::Mod);
        return by_power_of_two(Opcode::Mask, *args[1].as_const() - 1);
      case Kind::Min:
        return chain(Opcode::Min, args);
      case Kind::Max:
        return chain(Opcode::Max, args);
      case Kind::Eq:
        return binary(Opcode::Eq);
      case Kind::Ne:
        return binary(Opcode::Ne);
      case Kind::Lt:
        return binary(Opcode::Lt);
      case Kind::Le:
        return binary(Opcode::Le);
      case Kind::Select: {
        const int32_t a = compile(args[0]), b = compile(args[1]), c = compile(args[2]);
        return emit({.opcode = Opcode::Select, .a = a, .b = b, .c = c});
      }
    }
    FL_CHECK(false, "constants and symbols have slots from the start");
  }

  Evaluator& evaluator_;
  int32_t next_ = 0;
  std::unordered_map<Expr, int32_t> slots_;
  std::unordered_set<Expr> visited_;
};

Evaluator::Evaluator(std::span<const std::string> symbols, std::span<const Expr> exprs)
    : symbol_count_(symbols.size()) {
  Compiler compiler(*this, symbols);
  for (const Expr& expr : exprs) compiler.place_operand_constants(expr, true);
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
    const auto a = [&] { return slots[instruction.a]; };
    const auto b = [&] { return slots[instruction.b]; };
    int64_t value = instruction.immediate;
    switch (instruction.opcode) {
      case Opcode::LinearSum: {
        const LinearTerm* term = terms_.data() + instruction.a;
        for (const LinearTerm* const end = term + instruction.b; term != end; ++term) {
          value = wrap_add(value, wrap_mul(slots[term->slot], term->coefficient));
        }
        break;
      }
      case Opcode::Mul:
        value = wrap_mul(a(), b());
        break;
      case Opcode::FloorDiv:
        value = floor_div_int(a(), b());
        break;
      case Opcode::Shift:
        value = a() >> value;
        break;
      case Opcode::Mod:
        value = floor_mod_int(a(), b());
        break;
      case Opcode::Mask:
        value = a() & value;
        break;
      case Opcode::Min:
        value = std::min(a(), b());
        break;
      case Opcode::Max:
        value = std::max(a(), b());
        break;
      case Opcode::Eq:
        value = a() == b();
        break;
      case Opcode::Ne:
        value = a() != b();
        break;
      case Opcode::Lt:
        value = a() < b();
        break;
      case Opcode::Le:
        value = a() <= b();
        break;
      case Opcode::Select:
        value = a() != 0 ? b() : slots[instruction.c];
        break;
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
