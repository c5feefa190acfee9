#include "schedule/cuda_variant.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "schedule/read.h"
#include "sym/evaluator.h"

namespace fuseloom::schedule {

using graph::Node;
using sym::Expr;

int64_t CudaGroup::typical(const Expr& expr, int64_t otherwise) const {
  if (expr.is_const()) return *expr.as_const();
  for (const std::string& symbol : sym::symbols_of(expr)) {
    if (hint.count(symbol) == 0) return otherwise;
  }
  return hinted(expr, hint);
}

// ---- facts -----------------------------------------------------------------------------------------------------------

namespace {

// expr = factor * symbol.
struct Scaled {
  std::string symbol;
  int64_t factor = 1;
};
std::optional<Scaled> as_scaled(const Expr& expr) {
  const std::set<std::string> symbols = sym::symbols_of(expr);
  if (symbols.size() != 1) return std::nullopt;
  const Expr symbol = Expr::symbol(*symbols.begin());
  const Expr one = sym::substitute(expr, {{*symbols.begin(), 1}});
  if (!one.is_const() || *one.as_const() <= 0 || !(expr == symbol * one)) return std::nullopt;
  return Scaled{*symbols.begin(), *one.as_const()};
}

sym::Range& range_of(sym::Facts& facts, const std::string& symbol) {
  const auto found = facts.symbols.find(symbol);
  return found != facts.symbols.end() ? found->second : facts.symbols[symbol] = sym::Range{};
}

}  // namespace

bool VariantFacts::at_most(const Expr& expr, int64_t limit) {
  const sym::Range known = sym::bounds(expr, facts_);
  if (known.low > limit) return false;
  if (known.high <= limit) return true;
  condition_ = condition_ * sym::le(expr, limit);
  if (const std::optional<Scaled> scaled = as_scaled(expr)) {
    sym::Range& range = range_of(facts_, scaled->symbol);
    range.high = std::min(range.high, limit / scaled->factor);
  }
  return true;
}

bool VariantFacts::at_least(const Expr& expr, int64_t limit) {
  const sym::Range known = sym::bounds(expr, facts_);
  if (known.high < limit) return false;
  if (known.low >= limit) return true;
  condition_ = condition_ * sym::le(limit, expr);
  if (const std::optional<Scaled> scaled = as_scaled(expr)) {
    sym::Range& range = range_of(facts_, scaled->symbol);
    range.low = std::max(range.low, (limit + scaled->factor - 1) / scaled->factor);
  }
  return true;
}

bool VariantFacts::divisible(const Expr& expr, int64_t by) {
  if (by == 1) return true;
  const sym::Proof proof = sym::prove_divisible(expr, by, facts_);
  if (proof == sym::Proof::Yes) return true;
  if (proof == sym::Proof::No) return false;
  VariantFacts with = *this;
  const auto require = [&](const std::string& symbol, int64_t multiple) {
    sym::Range& range = range_of(with.facts_, symbol);
    if (range.divisor != 0) range.divisor = std::lcm(range.divisor, multiple);
    with.condition_ = with.condition_ * sym::eq(sym::mod(Expr::symbol(symbol), multiple), 0);
  };
  if (const std::optional<Scaled> scaled = as_scaled(expr)) {
    require(scaled->symbol, by / std::gcd(by, scaled->factor));
  } else {
    // It is enough that every symbol is a multiple.
    for (const std::string& symbol : sym::symbols_of(expr)) require(symbol, by);
  }
  if (sym::prove_divisible(expr, by, with.facts_) != sym::Proof::Yes) return false;
  *this = std::move(with);
  return true;
}

bool VariantFacts::small_symbols(const CudaGroup& of) {
  std::set<std::string> symbols;
  for (const Axis& axis : of.group.axes) sym::collect_symbols(axis.extent, symbols);
  return std::all_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) { return at_most(Expr::symbol(symbol), kSmallSize); });
}

bool align(const CudaGroup& of, const AxisPlan& plan, const LoopAxis& along, int32_t lanes, VariantFacts& facts) {
  if (!facts.divisible(along.extent, lanes)) return false;
  for (const MemoryAccess& access : of.accesses) {
    const std::optional<Expr> own = plan.stride(access.address, along);
    if (!own || !own->is_const(1)) continue;
    Expr offset = plan.rewrite(access.address);
    for (const LoopAxis& axis : plan.axes()) {
      if (&axis != &along) {
        const std::optional<Expr> pitch = plan.stride(access.address, axis);
        if (pitch) facts.divisible(*pitch, lanes);
      }
      offset = sym::substitute(offset, {{axis.name, 0}});
    }
    facts.divisible(offset, lanes);
  }
  return true;
}

// ---- variants --------------------------------------------------------------------------------------------------------

void VariantList::add(const Expr& condition, LoweredKernel kernel, std::string choice) {
  if (complete()) return;
  FL_CHECK(kernel.variants.size() == 1, "a kernel with {} variants is added as one", kernel.variants.size());
  kernel.variants[0].condition = condition;
  kernel.variants[0].choice = std::move(choice);
  if (kernel_.variants.empty()) {
    kernel_ = std::move(kernel);
    return;
  }
  FL_CHECK(kernel.arguments == kernel_.arguments, "two variants of a kernel differ in their arguments");
  kernel_.variants.push_back(std::move(kernel.variants[0]));
  kernel_.sizes.insert(kernel.sizes.begin(), kernel.sizes.end());
}

LoweredKernel VariantList::take(std::string_view kind) {
  FL_CHECK(complete(), "the last variant of a kernel has a condition");
  std::set<std::string> symbols;
  for (const LoweredVariant& variant : kernel_.variants) symbols.insert(variant.kernel.symbols.begin(), variant.kernel.symbols.end());
  for (LoweredVariant& variant : kernel_.variants) {
    variant.kernel.symbols.assign(symbols.begin(), symbols.end());
    // What one variant writes only, all of them may write.
    for (size_t b = 0; b < kernel_.arguments.size(); ++b) {
      for (const LoweredVariant& other : kernel_.variants) {
        kernel::Access& access = variant.kernel.buffers[b].access;
        if (access != other.kernel.buffers[b].access) access = kernel::Access::ReadWrite;
      }
    }
    kernel::name_kernel(variant.kernel, kind);
  }
  return std::move(kernel_);
}

void done_elsewhere(LoweredKernel& kernel, const Expr& condition) {
  LoweredVariant none = kernel.variants.back();
  none.condition = condition;
  none.grid = {0, 1, 1};
  none.choice = "done elsewhere";
  kernel.variants.insert(kernel.variants.begin(), std::move(none));
}

// ---- what a group reads and computes ---------------------------------------------------------------------------------

int32_t vector_elements(const CudaGroup& of, const AxisPlan& plan, const LoopAxis* along) {
  if (along == nullptr || !of.group.local_axes.empty()) return 1;   // a window's own loops would run once per lane
  int64_t narrowest = 16, widest = 1;
  for (const MemoryAccess& access : of.accesses) {
    const op::TensorType& type = of.graph.type(access.value);
    const std::optional<Expr> stride = plan.stride(access.address, *along);
    if (!stride || !stride->is_const(1)) continue;
    narrowest = std::min<int64_t>(narrowest, dtype_bytes(type.dtype));
    widest = std::max<int64_t>(widest, dtype_bytes(type.dtype));
  }
  return static_cast<int32_t>(std::max<int64_t>(1, std::min(16 / narrowest, 32 / widest)));
}

std::vector<StagedInput> stageable_inputs(const CudaGroup& of, const std::set<std::string>& axes) {
  std::set<std::string> known;
  for (const Axis& axis : of.group.axes) known.insert(axis.name);
  std::set<ValueId> computed;
  for (const NodeId id : of.group.nodes) computed.insert(of.graph.node(id).outputs.begin(), of.graph.node(id).outputs.end());
  std::vector<StagedInput> staged;
  for (const auto& [value, uses] : of.group.uses) {
    if (computed.count(value) != 0) continue;
    const op::TensorType& type = of.graph.type(value);
    if (const Tensor* constant = of.graph.constant(value); constant != nullptr && constant->count() == 1) continue;
    for (size_t number = 0; number < uses.size(); ++number) {
      const Use& use = uses[number];
      if (use.index.size() != type.shape.size()) continue;
      bool depends = false, own = true;
      std::set<std::string> symbols;
      for (const Expr& at : use.index) sym::collect_symbols(at, symbols);
      for (const Expr& guard : use.guards) sym::collect_symbols(guard, symbols);
      for (const std::string& symbol : symbols) {
        depends = depends || axes.count(symbol) != 0;
        // Loaded indices and windows' axes have no value here.
        own = own && (known.count(symbol) != 0 || symbol.back() != '_');
      }
      if (depends && own) {
        staged.push_back({value, &use, static_cast<int32_t>(std::max<int64_t>(1, dtype_bytes(type.dtype))), static_cast<int32_t>(number)});
      }
    }
  }
  return staged;
}

std::string StagedInput::name(std::string_view prefix) const { return fmt::format("{}{}{}", prefix, value.index, number == 0 ? "" : fmt::format("_{}", number)); }

int32_t instructions_of(const CudaGroup& of) {
  int32_t instructions = 0;
  for (const NodeId id : of.group.nodes) instructions += 1 + std::min(of.graph.node(id).op->cost, 64) * 2;
  return instructions;
}

// ---- axes ------------------------------------------------------------------------------------------------------------

Expr extent_of(const std::vector<const LoopAxis*>& axes) {
  Expr extent = 1;
  for (const LoopAxis* axis : axes) extent = extent * axis->extent;
  return extent;
}

namespace {

// Each axis' value, last axis first.
std::vector<std::pair<const LoopAxis*, Expr>> digits_of(const std::vector<const LoopAxis*>& axes, Expr rest) {
  std::vector<std::pair<const LoopAxis*, Expr>> digits;
  for (size_t i = axes.size(); i-- > 0;) {
    digits.emplace_back(axes[i], i == 0 ? rest : sym::mod(rest, axes[i]->extent));
    if (i > 0) rest = sym::floor_div(rest, axes[i]->extent);
  }
  return digits;
}

}  // namespace

void define_digits(LoopBuilder& build, const std::vector<const LoopAxis*>& axes, const Expr& row) {
  const auto digits = digits_of(axes, row);
  for (size_t i = digits.size(); i-- > 0;) {
    build.assume_below(digits[i].first->name, digits[i].first->extent);
    build.define(digits[i].first->name, digits[i].second);
  }
}

void set_digits(LoopBuilder& build, const std::vector<const LoopAxis*>& axes, const Expr& position) {
  for (const auto& [axis, value] : digits_of(axes, position)) build.set_axis(axis->name, value);
}

void declare_arguments(const CudaGroup& of, LoopBuilder& build) {
  for (const ValueId value : of.group.inputs) {
    const Tensor* constant = of.graph.constant(value);
    if (constant != nullptr && constant->count() == 1) continue;
    build.argument(value, kernel::Access::Read);
  }
  for (const ValueId value : of.group.outputs) build.argument(value, kernel::Access::Write);
  for (const NodeId id : of.group.nodes) {
    if (loop_role(of.graph, id) == LoopRole::Gather) build.check_argument(of.graph.node(id).origin.empty() ? std::string(of.graph.node(id).op->name) : of.graph.node(id).origin);
  }
}

}  // namespace fuseloom::schedule
