// A list of expressions compiled to a flat list of three-address instructions: evaluation allocates nothing, costs
// about a nanosecond an instruction, and shares common subexpressions.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sym/expr.h"

namespace fuseloom::sym {

class Evaluator {
 public:
  Evaluator() = default;
  // `symbols` fixes the order of the input values. Every symbol of `exprs` must be listed: throws InternalError.
  Evaluator(std::span<const std::string> symbols, std::span<const Expr> exprs);

  size_t symbol_count() const { return symbol_count_; }
  size_t result_count() const { return results_.size(); }
  // Number of int64 words of scratch that evaluate() needs.
  size_t scratch_size() const { return scratch_size_; }
  // symbols.size() == symbol_count(), scratch.size() >= scratch_size(), results.size() == result_count().
  void evaluate(std::span<const int64_t> symbols, std::span<int64_t> scratch, std::span<int64_t> results) const;

 private:
  // LinearSum: immediate + sum of terms_[a .. a + b), summed in a register. By a constant power of two, quotient and
  // remainder are a shift by and a mask of the immediate.
  enum class Opcode : uint8_t { LinearSum, Mul, FloorDiv, Shift, Mod, Mask, Min, Max, Eq, Ne, Lt, Le, Select };
  struct Instruction {
    Opcode opcode;
    int32_t a = 0, b = 0, c = 0, result = 0;  // slots in scratch
    int64_t immediate = 0;
  };
  struct LinearTerm {
    int64_t coefficient;
    int32_t slot;
  };
  class Compiler;
  size_t symbol_count_ = 0, scratch_size_ = 0;
  std::vector<int64_t> constants_;  // copied into scratch behind the symbols
  std::vector<Instruction> instructions_;
  std::vector<LinearTerm> terms_;
  std::vector<int32_t> results_;  // slots in scratch
};

// One-off evaluation, for tests and cold paths. Throws UserError naming a symbol that has no value.
int64_t evaluate(const Expr& expr, const std::map<std::string, int64_t>& values);

}  // namespace fuseloom::sym
