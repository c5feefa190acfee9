// Reductions and normalizations along the contiguous axis on CUDA: `rows` rows a block, `threads` threads along each.
//
//   registers   each thread loads its vectors of the row once; every loop over the row reads registers
//   shared      the same in shared memory: each thread reads what it wrote itself, so nobody waits for it
//   reload      every loop over the row loads it again
//
// A row that is loaded more than once is reduced in one pass where online_reduction.h knows how: a thread keeps the running
// state of its part. Few long rows are cut into parts, a block each; a second kernel combines the parts, and a third
// computes what lies along the rows. Sums of columns over the same data join the rows' kernel (row_column_pair.h).
#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"
#include "schedule/cuda_variant.h"
#include "schedule/online_reduction.h"

namespace fuseloom::schedule {

using kernel::Binding;
using kernel::BufferId;
using sym::Expr;

namespace {

constexpr int64_t kManyRows = 1 << 14;
constexpr int64_t kLongRow = 1 << 17;              // a row of unknown length beyond the classes is ranked at this length
constexpr int32_t kRegisterBytes = 160;            // of a thread, for what is loaded ahead and kept
constexpr int32_t kFinishThreads = 128;
constexpr int64_t kPeeledVectors = 64;             // rows of fewer vectors are not peeled
constexpr int64_t kHeldWithColumns = 16;           // elements of a row that a thread holds, of each input twice, of each sum once

// The folded axis along which most of what is read lies next to each other; else the last one.
const LoopAxis* contiguous_axis(const CudaGroup& of, const AxisPlan& plan) {
  const LoopAxis* best = nullptr;
  size_t most = 0;
  for (const LoopAxis& axis : plan.axes()) {
    if (!axis.reduced) continue;
    size_t count = 0;
    for (const MemoryAccess& access : of.accesses) {
      const std::optional<Expr> stride = plan.stride(access.address, axis);
      if (stride && stride->is_const(1)) ++count;
    }
    if (best == nullptr || count >= most) {
      best = &axis;
      most = count;
    }
  }
  return best;
}

std::set<std::string> contiguous_members(const LoopAxis* axis) {
  if (axis == nullptr) return {};
  return {axis->members.begin(), axis->members.end()};
}

// Where a row starts in the tensors that are moved along it, as most of them have it: over the kept axes. Vectors from there on
// can be whole ones wherever the row starts.
std::optional<Expr> peeled_start(const CudaGroup& of, const AxisPlan& plan) {
  const LoopAxis* along = contiguous_axis(of, plan);
  std::vector<std::pair<Expr, int>> starts;
  std::set<std::string> kept;
  for (const LoopAxis& axis : plan.axes()) {
    if (axis.reduced && &axis != along) return std::nullopt;
    if (!axis.reduced) kept.insert(axis.name);
  }
  if (along == nullptr) return std::nullopt;
  for (const MemoryAccess& access : of.accesses) {
    const std::optional<Expr> stride = plan.stride(access.address, *along);
    if (!stride || !stride->is_const(1)) continue;
    const Expr start = sym::substitute(plan.rewrite(access.address), {{along->name, 0}});
    const std::set<std::string> symbols = sym::symbols_of(start);
    if (std::none_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) { return kept.count(symbol) != 0; })) continue;
    const auto known = std::find_if(starts.begin(), starts.end(), [&](const auto& each) { return each.first == start; });
    if (known == starts.end()) {
      starts.emplace_back(start, 1);
    } else {
      ++known->second;
    }
  }
  const auto most = std::max_element(starts.begin(), starts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == starts.end()) return std::nullopt;
  return most->first;
}

// What the parts of a cut row leave behind, each [rows, parts]:
//   of an online pair             the two results, and for deviations the count
//   of argmax and argmin          the value and its index
//   of any other reduction        the result
struct Parts {
  std::vector<OnlinePair> pairs;
  std::vector<NodeId> single;                    // the reductions in no pair
  std::vector<DType> types;                      // of the parts: pairs first
  std::vector<DType> results;                    // of the reductions, in their order
};
Parts parts_of(const CudaGroup& of, const PhasePlan& phase) {
  Parts parts{.pairs = online_pairs(of.graph, of.group, phase), .single = {}, .types = {}, .results = {}};
  const auto type_of = [&](NodeId id) { return compute_dtype(of.graph.type(of.graph.node(id).outputs[0]).dtype); };
  std::set<NodeId> paired;
  for (const OnlinePair& pair : parts.pairs) {
    paired.insert({pair.first, pair.second});
    parts.types.insert(parts.types.end(), pair.kind == OnlinePair::Kind::Deviations ? 3 : 2, type_of(pair.first));
  }
  for (const NodeId id : phase.reductions()) {
    parts.results.push_back(type_of(id));
    if (paired.count(id) != 0) continue;
    parts.single.push_back(id);
    const op::Combine combine = of.graph.node(id).op->combine;
    if (combine == op::Combine::ArgMax || combine == op::Combine::ArgMin) {
      const DType compared = compute_dtype(of.graph.type(phase.operand(id)).dtype);
      parts.types.push_back(compared == DType::Bool ? DType::U8 : compared);
    }
    parts.types.push_back(type_of(id));
  }
  return parts;
}
// Whether one pass over a row gives all of its reductions.
bool single_pass(const PhasePlan& phase, const Parts& parts) { return phase.phases() == 1 || !parts.pairs.empty(); }

class RowKernel {
 public:
  // `parts`: how many parts a row may be cut into, where the group has a kernel that does.
  RowKernel(const CudaGroup& of, const sym::Facts& facts, std::optional<Expr> parts, const RowColumnPair* pair = nullptr)
      : of_(of), plan_(of.graph, of.group, of.accesses, AxisPlan::Merge::On, facts), build_(of.graph, of.group, plan_),
        phase_(of.graph, pair == nullptr ? of.group : pair->rows), parts_of_(parts_of(of, phase_)), part_count_(std::move(parts)), pair_(pair) {
    const LoopAxis* vector = contiguous_axis(of, plan_);
    for (const LoopAxis& axis : plan_.axes()) {
      if (!axis.reduced) {
        kept_.push_back(&axis);
      } else if (&axis != vector) {
        folded_.push_back(&axis);
      }
    }
    if (vector != nullptr) folded_.push_back(vector);
    for (const LoopAxis* axis : kept_) kept_members_.insert(axis->members.begin(), axis->members.end());
  }

  LoweredKernel make(const RowChoice& choice) {
    choice_ = choice;
    declare(true, false);
    build_.open("b_", 0, sym::ceil_div(rows_, choice.rows), Binding::GridX);
    build_.set_floor();
    if (choice.rows > 1) build_.open("ty_", 0, choice.rows, Binding::ThreadY);
    // Rows beyond the last one do its work again, and store nothing.
    const Expr row = Expr::symbol("b_") * choice.rows + (choice.rows > 1 ? Expr::symbol("ty_") : Expr(0));
    row_guards_.clear();
    if (!kept_.empty()) {
      build_.assume("row_", sym::Facts::size());
      if (choice.rows > 1) {
        build_.define("row_", sym::min(row, rows_ - 1));
        row_guards_ = {sym::lt(row, rows_)};
      } else {
        build_.define("row_", row);
      }
      define_digits(build_, kept_, Expr::symbol("row_"));
    }
    set_positions();
    for_each_loop();
    store_narrow(row_guards_);
    if (choice.rows > 1) build_.close();
    build_.close();
    return build_.finish(phase_.phases() > 1 || phase_.has_wide_outputs() ? "normalization" : "row_reduction");
  }

  // A block takes every grid'th row. Its threads keep sums of their columns over all of them; the loads of the next row are
  // under way while one is computed.
  LoweredKernel make_with_columns(const RowChoice& choice) {
    choice_ = choice;
    declare(true, false);
    build_.open("b_", 0, parts_, Binding::GridX);
    build_.set_floor();
    set_positions();
    const int64_t held = int64_t{choice.unroll} * choice.vector;
    std::vector<BufferId> sums;
    for (size_t i = 0; i < pair_->reductions.size(); ++i) {
      sums.push_back(build_.local(fmt::format("sum{}", i), column_type(i), held));
    }
    const std::vector<StagedInput> inputs = streams();
    std::vector<StagedInput> by_row, by_column;
    for (const StagedInput& input : inputs) (depends_on_row(input) ? by_row : by_column).push_back(input);
    const auto stage_row = [&](const std::string& row) {
      set_digits(build_, kept_, Expr::symbol(row));
      each_vector(0, [&] {
        for (const StagedInput& input : by_row) build_.stage(input.value, input.use->index, input.use->guards, next_row(input), slot());
      }, true);
    };
    build_.assume("row_", sym::Facts::size());
    build_.assume("next_row_", sym::Facts::size());
    build_.open("t_", 0, choice.threads, Binding::ThreadX);
    each_vector(0, [&] {
      for (size_t i = 0; i < sums.size(); ++i) {
        const ScalarId none = build_.identity_of(of_.graph.node(pair_->reductions[i].id).op->combine, column_type(i));
        build_.append({kernel::Store{.buffer = sums[i], .index = build_.simplified(slot()), .value = none}});
      }
      for (const StagedInput& input : by_column) build_.stage(input.value, input.use->index, input.use->guards, staging(input), slot());
    }, true);
    build_.define("next_row_", sym::min(Expr::symbol("b_"), rows_ - 1));
    stage_row("next_row_");
    build_.close();
    build_.open("i_", 0, sym::ceil_div(rows_ - Expr::symbol("b_"), parts_), Binding::Serial);
    build_.define("row_", Expr::symbol("b_") + Expr::symbol("i_") * parts_);
    build_.define("next_row_", sym::min(Expr::symbol("row_") + parts_, rows_ - 1));
    build_.open("t_", 0, choice.threads, Binding::ThreadX);
    each_vector(0, [&] {
      for (const StagedInput& input : by_row) {
        const ScalarId element = build_.let(of_.graph.type(input.value).dtype, kernel::Load{.buffer = next_row(input), .index = build_.simplified(slot())});
        build_.append({kernel::Store{.buffer = staging(input), .index = build_.simplified(slot()), .value = element}});
      }
    }, true);
    stage_row("next_row_");
    build_.close();
    set_digits(build_, kept_, Expr::symbol("row_"));
    for (const StagedInput& input : inputs) build_.set_resident(input.value, input.use->index, staged_.at(input.use), slot());
    staged_before_ = true;
    for_each_loop();
    build_.open("t_", 0, choice.threads, Binding::ThreadX);
    each_vector(0, [&] {
      for (size_t i = 0; i < sums.size(); ++i) {
        const ColumnReduction& reduction = pair_->reductions[i];
        const ScalarId value = build_.value_at(reduction.operand, reduction.position);
        const ScalarId sum = build_.let(column_type(i), kernel::Load{.buffer = sums[i], .index = build_.simplified(slot())});
        const ScalarId total = build_.combine(of_.graph.node(reduction.id).op->combine, column_type(i), sum, value);
        build_.append({kernel::Store{.buffer = sums[i], .index = build_.simplified(slot()), .value = total}});
      }
    });
    build_.close();
    build_.set_guards({});
    store_narrow({});
    build_.close();
    build_.open("t_", 0, choice.threads, Binding::ThreadX);
    each_vector(0, [&] {
      for (size_t i = 0; i < sums.size(); ++i) {
        const ScalarId sum = build_.let(column_type(i), kernel::Load{.buffer = sums[i], .index = build_.simplified(slot())});
        build_.append({kernel::Store{.buffer = part_buffers_[i], .index = build_.simplified(Expr::symbol("b_") * length_ + Expr::symbol("base_") + lane()), .value = sum,
                                     .guards = {build_.simplified(inside_)}}});
      }
    });
    build_.close();
    build_.set_guards({});
    build_.close();
    return build_.finish("rows_and_columns");
  }

  // A block reduces one part of a row.
  LoweredKernel make_part(const RowChoice& choice) {
    choice_ = choice;
    declare(true, false);
    open_part();
    reduce_in_one_pass();
    build_.set_guards({});
    build_.open("t_", 0, 1, Binding::ThreadX);
    size_t next = 0;
    const auto store = [&](ScalarId value) {
      build_.append({kernel::Store{.buffer = part_buffers_[next++], .index = build_.simplified(Expr::symbol("row_") * parts_ + Expr::symbol("b_")), .value = value}});
    };
    for (size_t i = 0; i < parts_of_.pairs.size(); ++i) {
      store(pair_results_[i].first);
      store(pair_results_[i].second);
      if (parts_of_.pairs[i].kind == OnlinePair::Kind::Deviations) store(build_.index_value(part_type(i), part_count()));
    }
    for (const NodeId id : parts_of_.single) {
      if (accumulators_.at(id).value.valid()) store(accumulators_.at(id).value);
      store(accumulators_.at(id).result);
    }
    build_.close();
    close_part();
    return build_.finish("row_parts");
  }

  // Combines the parts of a row, and computes what has one element a row.
  LoweredKernel make_finish() {
    declare(true, true);
    build_.open("row_", 0, rows_, Binding::GridX);
    build_.set_floor();
    define_digits(build_, kept_, Expr::symbol("row_"));
    // First what every state needs: sums, maxima, and the reductions in no pair.
    std::vector<kernel::Accumulator> accumulators;
    for (const OnlinePair& pair : parts_of_.pairs) accumulators.push_back(build_.accumulator_of(pair.first));
    for (const NodeId id : parts_of_.single) accumulators.push_back(build_.accumulator_of(id));
    for_each_part(accumulators, [&](const std::function<ScalarId(size_t)>& part) {
      std::vector<std::pair<ScalarId, Expr>> values;
      size_t next = 0;
      for (const OnlinePair& pair : parts_of_.pairs) {
        values.emplace_back(part(next), 0);
        next += pair.kind == OnlinePair::Kind::Deviations ? 3 : 2;
      }
      for (size_t i = parts_of_.pairs.size(); i < accumulators.size(); ++i) {
        const ScalarId value = part(next++);
        Expr index = 0;
        if (accumulators[i].value.valid()) index = Expr::symbol(build_.kernel().scalar(part(next++)).name);
        values.emplace_back(value, index);
      }
      return values;
    });
    size_t made = 0;
    for (const OnlinePair& pair : parts_of_.pairs) set_result(pair.first, accumulators_[pair.first] = accumulators[made++]);
    for (const NodeId id : parts_of_.single) set_result(id, accumulators_[id] = accumulators[made++]);
    // Then what is relative to them.
    if (!parts_of_.pairs.empty()) {
      accumulators.clear();
      for (const OnlinePair& pair : parts_of_.pairs) accumulators.push_back(build_.accumulator_of(pair.second));
      for_each_part(accumulators, [&](const std::function<ScalarId(size_t)>& part) {
        std::vector<std::pair<ScalarId, Expr>> values;
        size_t next = 0;
        for (const OnlinePair& pair : parts_of_.pairs) {
          const bool deviations = pair.kind == OnlinePair::Kind::Deviations;
          const ScalarId first = part(next), second = part(next + 1);
          values.emplace_back(deviations ? moved_deviations(pair, part(next + 2), build_.apply("div", build_.dtype(first), {first, part(next + 2)}), second)
                                         : rescaled(second, first, accumulators_.at(pair.first).result),
                              0);
          next += deviations ? 3 : 2;
        }
        return values;
      });
      for (size_t i = 0; i < accumulators.size(); ++i) {
        const OnlinePair& pair = parts_of_.pairs[i];
        if (pair.kind == OnlinePair::Kind::Exponentials) accumulators[i].result = without_maximum(accumulators[i].result, accumulators_.at(pair.first).result);
        set_result(pair.second, accumulators_[pair.second] = accumulators[i]);
      }
    }
    if (phase_.has_wide_outputs()) {
      build_.open("t_", 0, 1, Binding::ThreadX);
      for (size_t i = 0; i < phase_.reductions().size(); ++i) {
        build_.append({kernel::Store{.buffer = result_buffers_[i], .index = Expr::symbol("row_"), .value = accumulators_.at(phase_.reductions()[i]).result}});
      }
      build_.close();
    }
    store_narrow({});
    build_.close();
    return build_.finish("row_finish");
  }

  // With the results known, a block computes a part of what lies along a row.
  LoweredKernel make_apply(const RowChoice& choice) {
    choice_ = choice;
    declare(false, true);
    open_part();
    for (size_t i = 0; i < phase_.reductions().size(); ++i) {
      const DType type = build_.kernel().buffer(result_buffers_[i]).dtype;
      const ScalarId result = build_.let(type, kernel::Load{.buffer = result_buffers_[i], .index = Expr::symbol("row_")});
      set_result(phase_.reductions()[i], kernel::Accumulator{.result = result});
    }
    store_everything_ = true;
    loop(phase_.phases(), false);
    build_.set_guards({});
    close_part();
    return build_.finish("row_apply");
  }

 private:
  // A size that index arithmetic uses often, as one symbol.
  Expr sized(const std::string& name, const Expr& value) {
    if (value.is_const() || value.is_symbol()) return value;
    return build_.size(name, value, {.low = 0, .high = kSmallSize});
  }
  void declare(bool parts, bool results) {
    declare_arguments(of_, build_);
    length_ = sized("length_", extent_of(folded_));
    rows_ = sized("rows_", extent_of(kept_));
    if (!part_count_) return;
    parts_ = build_.size("parts_", *part_count_, {.low = 0, .high = 1 << 20});
    const auto declare_each = [&](const std::vector<DType>& types, int first, const std::string& name, const Expr& size, std::vector<BufferId>& buffers) {
      for (size_t i = 0; i < types.size(); ++i) {
        buffers.push_back(build_.argument(Argument{.kind = Argument::Kind::Partial, .partial = first + static_cast<int>(i)}, fmt::format("{}{}", name, i), types[i], size,
                                          kernel::Access::ReadWrite));
      }
    };
    if (pair_ != nullptr) {
      std::vector<DType> types;
      for (size_t i = 0; i < pair_->reductions.size(); ++i) types.push_back(column_type(i));
      declare_each(types, 0, "column", parts_ * length_, part_buffers_);
      return;
    }
    if (parts) declare_each(parts_of_.types, 0, "part", rows_ * parts_, part_buffers_);
    if (results && phase_.has_wide_outputs()) declare_each(parts_of_.results, static_cast<int>(parts_of_.types.size()), "result", rows_, result_buffers_);
  }

  // ---- rows and columns
  DType column_type(size_t i) const { return compute_dtype(of_.graph.type(of_.graph.node(pair_->reductions[i].id).outputs[0]).dtype); }
  bool depends_on_row(const StagedInput& input) const {
    std::set<std::string> symbols;
    for (const Expr& at : input.use->index) sym::collect_symbols(at, symbols);
    return std::any_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) { return kept_members_.count(symbol) != 0; });
  }
  BufferId next_row(const StagedInput& input) {
    const auto known = next_.find(input.use);
    if (known != next_.end()) return known->second;
    return next_[input.use] = build_.local(input.name("next"), of_.graph.type(input.value).dtype, int64_t{choice_.unroll} * choice_.vector);
  }

  // ---- parts of rows
  void open_part() {
    build_.open("row_", 0, rows_, Binding::GridY);
    build_.open("b_", 0, parts_, Binding::GridX);
    build_.set_floor();
    define_digits(build_, kept_, Expr::symbol("row_"));
    set_positions();
    // Parts are whole steps of the block.
    const Expr each = build_.define("steps_", sym::ceil_div(steps(), parts_));
    first_step_ = build_.define("first_step_", sym::min(steps(), Expr::symbol("b_") * each));
    last_step_ = build_.define("last_step_", sym::min(steps(), (Expr::symbol("b_") + 1) * each));
  }
  void close_part() {
    build_.close();
    build_.close();
  }
  Expr step_elements() const { return int64_t{choice_.threads} * choice_.vector * choice_.unroll; }
  // Elements of this block's part.
  Expr part_count() const { return sym::max(0, sym::min(length_, *last_step_ * step_elements()) - first_step_ * step_elements()); }
  DType part_type(size_t pair) const { return compute_dtype(of_.graph.type(of_.graph.node(parts_of_.pairs[pair].first).outputs[0]).dtype); }

  // A reduction of the parts of a row by the threads of a block; `values` gives one part's value for each accumulator.
  using PartReader = std::function<ScalarId(size_t)>;
  void for_each_part(const std::vector<kernel::Accumulator>& accumulators, const std::function<std::vector<std::pair<ScalarId, Expr>>(const PartReader&)>& values) {
    build_.open_reduce(accumulators);
    build_.open("t_", 0, kFinishThreads, Binding::ThreadX);
    build_.open("i_", 0, sym::ceil_div(parts_, kFinishThreads), Binding::Serial);
    const Expr part = build_.define("part_", Expr::symbol("i_") * kFinishThreads + Expr::symbol("t_"));
    const Expr inside = sym::lt(part, parts_);
    std::map<size_t, ScalarId> known;
    const PartReader read = [&](size_t i) {
      const auto found = known.find(i);
      if (found != known.end()) return found->second;
      const kernel::Load load{.buffer = part_buffers_[i], .index = Expr::symbol("row_") * parts_ + part, .guards = {inside}};
      return known[i] = build_.let(build_.kernel().buffer(part_buffers_[i]).dtype, load);
    };
    const std::vector<std::pair<ScalarId, Expr>> found = values(read);
    build_.open_if(inside);
    for (size_t i = 0; i < accumulators.size(); ++i) build_.accumulate(accumulators[i].result, found[i].first, found[i].second);
    build_.close();
    build_.close();
    build_.close();
    build_.close();
  }

  // ---- online reductions
  // A sum of exponentials relative to `from`, relative to `to`. Equal maxima, infinite ones too, change nothing.
  ScalarId rescaled(ScalarId sum, ScalarId from, ScalarId to) {
    const DType type = build_.dtype(sum);
    const ScalarId factor = build_.apply("select", type, {build_.apply("eq", DType::Bool, {from, to}), build_.constant(type, 1),
                                                          build_.apply("exp", type, {build_.apply("sub", type, {from, to})})});
    return build_.apply("mul", type, {sum, factor});
  }
  // While all elements are -inf none of them counts; in the end the sum of such a row is NaN, as exp(-inf - -inf) is.
  ScalarId without_maximum(ScalarId sum, ScalarId maximum) {
    const DType type = build_.dtype(sum);
    const double infinity = std::numeric_limits<double>::infinity();
    const ScalarId lowest = build_.apply("eq", DType::Bool, {maximum, build_.constant(type, -infinity)});
    const ScalarId any = build_.condition({sym::lt(0, length_)});
    return build_.apply("select", type, {build_.apply("and", DType::Bool, {lowest, any}), build_.constant(type, std::numeric_limits<double>::quiet_NaN()), sum});
  }
  // Squares about a part's own mean, moved to the mean of the whole.
  ScalarId moved_deviations(const OnlinePair& pair, ScalarId count, ScalarId mean, ScalarId squares) {
    return moved_deviations(build_.value_at(pair.mean, phase_.position(pair.mean)), count, mean, squares);
  }
  ScalarId moved_deviations(ScalarId whole_mean, ScalarId count, ScalarId mean, ScalarId squares) {
    const DType type = build_.dtype(squares), truth = DType::Bool;
    const ScalarId shift = build_.apply("sub", type, {mean, whole_mean});
    const ScalarId moved = build_.apply("add", type, {squares, build_.apply("mul", type, {count, build_.apply("mul", type, {shift, shift})})});
    const ScalarId zero = build_.constant(type, 0);
    return build_.apply("select", type, {build_.apply("eq", truth, {count, zero}), zero, moved});
  }

  // The state that a thread keeps of a pair: maximum and sum, or mean, squares and count.
  struct State {
    std::vector<BufferId> buffers;
  };
  ScalarId state(const State& of, size_t i) { return build_.let(build_.kernel().buffer(of.buffers[i]).dtype, kernel::Load{.buffer = of.buffers[i], .index = 0}); }
  void set_state(const State& of, size_t i, ScalarId value) { build_.append({kernel::Store{.buffer = of.buffers[i], .index = 0, .value = value}}); }

  // One value for a thread's vectors of this step.
  ScalarId reduce_step(op::Combine combine, DType type, const Expr& step, const std::function<ScalarId()>& value) {
    if (at_end_) return value();
    const kernel::Accumulator accumulator{.result = build_.reserve(type), .combine = combine};
    build_.open_reduce({accumulator});
    each_vector(step, [&] {
      const ScalarId element = value();
      accumulate_inside([&] { build_.accumulate(accumulator.result, element); });
    });
    build_.close();
    return accumulator.result;
  }
  // How many elements the thread has in this step.
  Expr step_count(const Expr& step) const {
    if (at_end_) return 1;
    if (choice_.peeled) {
      Expr count = 0;
      for (int64_t u = 0; u < choice_.unroll; ++u) {
        const Expr base = ((step * choice_.unroll + u) * choice_.threads + Expr::symbol("t_")) * choice_.vector - Expr::symbol("shift_");
        count = count + sym::le(0, base) * sym::le(base + choice_.vector, length_);
      }
      return count * choice_.vector;
    }
    const Expr vectors = sym::ceil_div(length_, choice_.vector) - step * choice_.unroll * choice_.threads - Expr::symbol("t_");
    return sym::max(0, sym::min(choice_.unroll, sym::ceil_div(vectors, choice_.threads))) * choice_.vector;
  }

  void update(const OnlinePair& pair, const State& of, const Expr& step) {
    const DType type = build_.kernel().buffer(of.buffers[0]).dtype;
    const auto element = [&] { return build_.value_at(pair.value, phase_.operand_position(pair.first)); };
    const auto apply = [&](std::string_view op, std::vector<ScalarId> args) { return build_.apply(op, type, std::move(args)); };
    const ScalarId zero = build_.constant(type, 0);
    if (pair.kind == OnlinePair::Kind::Exponentials) {
      const ScalarId here = reduce_step(op::Combine::Max, type, step, element);
      const ScalarId before = state(of, 0), maximum = apply("max", {before, here});
      const ScalarId none = build_.apply("eq", DType::Bool, {maximum, build_.constant(type, -std::numeric_limits<double>::infinity())});
      const ScalarId sum = reduce_step(op::Combine::Add, type, step, [&] { return apply("select", {none, zero, apply("exp", {apply("sub", {element(), maximum})})}); });
      set_state(of, 1, apply("add", {rescaled(state(of, 1), before, maximum), sum}));
      set_state(of, 0, maximum);
      return;
    }
    const ScalarId count = build_.index_value(type, step_count(step));
    const ScalarId none = build_.apply("eq", DType::Bool, {count, zero});
    const ScalarId sum = reduce_step(op::Combine::Add, type, step, element);
    const ScalarId mean = apply("select", {none, zero, apply("div", {sum, count})});
    const ScalarId squares = reduce_step(op::Combine::Add, type, step, [&] {
      const ScalarId deviation = apply("sub", {element(), mean});
      return apply("mul", {deviation, deviation});
    });
    // Chan et al.: the means move together by the share of the new elements, the squares by what lies between.
    const ScalarId before = state(of, 2), total = apply("add", {before, count});
    const ScalarId share = apply("select", {build_.apply("eq", DType::Bool, {total, zero}), zero, apply("div", {count, total})});
    const ScalarId old_mean = state(of, 0), between = apply("sub", {mean, old_mean});
    const ScalarId moved = apply("mul", {apply("mul", {between, between}), apply("mul", {before, share})});
    set_state(of, 1, apply("add", {apply("add", {state(of, 1), squares}), moved}));
    set_state(of, 0, apply("add", {old_mean, apply("mul", {between, share})}));
    set_state(of, 2, total);
  }

  // All reductions of the group in one loop over the row; wide outputs are left to a later one.
  void reduce_in_one_pass() {
    const std::vector<StagedInput> inputs = streams();
    std::vector<State> states;
    for (size_t i = 0; i < parts_of_.pairs.size(); ++i) {
      State of;
      const size_t count = parts_of_.pairs[i].kind == OnlinePair::Kind::Deviations ? 3 : 2;
      for (size_t k = 0; k < count; ++k) of.buffers.push_back(build_.local(fmt::format("state{}_{}", i, k), part_type(i), 1));
      states.push_back(std::move(of));
    }
    std::vector<kernel::Accumulator> accumulators;
    for (const NodeId id : parts_of_.single) accumulators.push_back(accumulators_[id] = build_.accumulator_of(id));
    if (!accumulators.empty()) build_.open_reduce(accumulators);
    build_.open("t_", 0, choice_.threads, Binding::ThreadX);
    for (size_t i = 0; i < states.size(); ++i) {
      const bool exponentials = parts_of_.pairs[i].kind == OnlinePair::Kind::Exponentials;
      for (size_t k = 0; k < states[i].buffers.size(); ++k) {
        set_state(states[i], k, build_.constant(part_type(i), exponentials && k == 0 ? -std::numeric_limits<double>::infinity() : 0));
      }
    }
    build_.open("s_", first_step_, last_step_ ? *last_step_ : steps(), Binding::Serial);
    const Expr step = Expr::symbol("s_");
    if (choice_.unroll > 1) stage(inputs, step);
    for (size_t i = 0; i < states.size(); ++i) update(parts_of_.pairs[i], states[i], step);
    if (!accumulators.empty()) {
      each_vector(step, [&] {
        std::vector<ScalarId> operands;
        for (const NodeId id : parts_of_.single) operands.push_back(build_.value_at(phase_.operand(id), phase_.operand_position(id)));
        accumulate_inside([&] {
          for (size_t i = 0; i < accumulators.size(); ++i) build_.accumulate(accumulators[i], operands[i], phase_.folded_index(parts_of_.single[i]));
        });
      });
    }
    build_.close();
    build_.close();
    each_end([&] {
      for (size_t i = 0; i < states.size(); ++i) update(parts_of_.pairs[i], states[i], 0);
      for (size_t i = 0; i < accumulators.size(); ++i) {
        const NodeId id = parts_of_.single[i];
        build_.accumulate(accumulators[i], build_.value_at(phase_.operand(id), phase_.operand_position(id)), phase_.folded_index(id));
      }
    });
    if (!accumulators.empty()) build_.close();
    build_.set_guards({});
    for (size_t i = 0; i < accumulators.size(); ++i) set_result(parts_of_.single[i], accumulators[i]);
    for (size_t i = 0; i < states.size(); ++i) combine_states(parts_of_.pairs[i], states[i]);
  }
  // The threads' states as the block's.
  void combine_states(const OnlinePair& pair, const State& of) {
    const DType type = build_.kernel().buffer(of.buffers[0]).dtype;
    const auto over_threads = [&](NodeId id, const std::function<ScalarId()>& value) {
      const kernel::Accumulator accumulator = build_.accumulator_of(id);
      build_.open_reduce({accumulator});
      build_.open("t_", 0, choice_.threads, Binding::ThreadX);
      build_.accumulate(accumulator.result, value());
      build_.close();
      build_.close();
      return accumulator;
    };
    const bool exponentials = pair.kind == OnlinePair::Kind::Exponentials;
    const kernel::Accumulator first = over_threads(pair.first, [&] { return exponentials ? state(of, 0) : build_.apply("mul", type, {state(of, 0), state(of, 2)}); });
    set_result(pair.first, first);
    kernel::Accumulator second;
    if (exponentials) {
      second = over_threads(pair.second, [&] { return rescaled(state(of, 1), state(of, 0), first.result); });
      if (!last_step_) second.result = without_maximum(second.result, first.result);
    } else {
      // A part is about its own mean, a whole row about the mean that the graph computes.
      const ScalarId mean = last_step_ ? part_mean(type, first.result) : build_.value_at(pair.mean, phase_.position(pair.mean));
      second = over_threads(pair.second, [&] { return moved_deviations(mean, state(of, 2), state(of, 0), state(of, 1)); });
    }
    set_result(pair.second, second);
    pair_results_.emplace_back(first.result, second.result);
  }
  ScalarId part_mean(DType type, ScalarId sum) { return build_.apply("div", type, {sum, build_.index_value(type, sym::max(1, part_count()))}); }

  Expr lane() const { return choice_.vector == 1 ? Expr(0) : Expr::symbol("v_"); }
  Expr copy() const { return choice_.unroll == 1 ? Expr(0) : Expr::symbol("u_"); }
  void open_lanes() {
    if (choice_.vector > 1) build_.open("v_", 0, choice_.vector, Binding::Vector, choice_.vector, 1);
  }
  void close_lanes() {
    if (choice_.vector > 1) build_.close();
  }
  void set_positions() {
    if (choice_.vector > 1) build_.assume_lanes("v_", choice_.vector);
    if (choice_.peeled) {
      // The row starts `shift_` elements behind a multiple of the vector; aligned_ counts from the start of the tensor.
      row_start_ = *peeled_start(of_, plan_);
      build_.define("shift_", sym::mod(row_start_, choice_.vector));
      build_.define("first_", sym::floor_div(row_start_, choice_.vector));
      build_.define("tail_", length_ - sym::mod(row_start_ + length_, choice_.vector));
      build_.assume("base_", {.low = 1 - choice_.vector, .high = sym::Range::kMax});
      build_.assume("aligned_", {.low = 0, .high = sym::Range::kMax, .divisor = choice_.vector});
      build_.set_axis(folded_.back()->name, Expr::symbol("aligned_") - row_start_ + lane());
      return;
    }
    build_.assume("base_", {.low = 0, .high = sym::Range::kMax, .divisor = choice_.vector});
    // A vector lies within one row of the last axis: its place is found once, not lane by lane.
    digits_ = folded_.size() > 1 && sym::prove_divisible(folded_.back()->extent, choice_.vector, plan_.facts()) == sym::Proof::Yes;
    if (!digits_) {
      set_digits(build_, folded_, Expr::symbol("base_") + lane());
      return;
    }
    for (size_t i = 0; i < folded_.size(); ++i) {
      const bool last = i + 1 == folded_.size();
      build_.assume_below(digit(i), folded_[i]->extent);
      build_.assume(digit(i), {.low = 0, .high = sym::Range::kMax, .divisor = last ? choice_.vector : 1});
      build_.set_axis(folded_[i]->name, last ? Expr::symbol(digit(i)) + lane() : Expr::symbol(digit(i)));
    }
  }
  static std::string digit(size_t i) { return fmt::format("digit{}_", i); }
  // The position along each folded axis of the vector at base_.
  void define_digits_of_vector() {
    Expr rest = Expr::symbol("base_");
    for (size_t i = folded_.size(); i-- > 1;) {
      const Expr& extent = folded_[i]->extent;
      // Where there is a vector no extent is 0.
      const Expr divisor = extent.is_const() ? extent
                           : build_.size(fmt::format("extent{}_", i), sym::max(1, extent), {.low = 1, .high = kSmallSize, .divisor = i + 1 == folded_.size() ? choice_.vector : 1});
      build_.define(digit(i), sym::mod(rest, divisor));
      rest = build_.define(i == 1 ? digit(0) : fmt::format("rest{}_", i), sym::floor_div(rest, divisor));
    }
  }
  bool in_registers() const { return choice_.keep == Keep::Registers; }
  Expr steps() const { return sym::ceil_div(spanned(), int64_t{choice_.threads} * choice_.vector * choice_.unroll); }
  // Elements of the vectors that a row touches, at most.
  Expr spanned() const { return choice_.peeled ? length_ + (choice_.vector - 1) : length_; }
  // Where a thread keeps the current element.
  Expr slot() const {
    if (choice_.keep == Keep::Shared) return (choice_.peeled ? Expr::symbol("slot_") : Expr::symbol("base_")) + lane();
    return copy() * choice_.vector + lane();
  }

  // Runs `body` for each of the thread's vectors of one step, the elements' position known as base_. Vectors beyond the row are
  // skipped, but for loads that come ahead of their use.
  void each_vector(const Expr& step, const std::function<void()>& body, bool ahead = false) {
    if (choice_.unroll > 1) build_.open("u_", 0, choice_.unroll, Binding::Unroll);
    const Expr slot = ((step * choice_.unroll + copy()) * choice_.threads + Expr::symbol("t_")) * choice_.vector;
    if (choice_.peeled) {
      build_.define("slot_", slot);
      build_.define("base_", slot - Expr::symbol("shift_"));
      build_.define("aligned_", slot + Expr::symbol("first_") * choice_.vector);
      inside_ = sym::le(0, Expr::symbol("base_")) * sym::le(Expr::symbol("base_") + choice_.vector, length_);
    } else {
      build_.define("base_", slot);
      if (digits_) define_digits_of_vector();
      inside_ = sym::lt(Expr::symbol("base_"), length_);
    }
    build_.set_guards({inside_});
    skipped_ = choice_.vector > 1 && !ahead && !build_.simplified(inside_).is_const(1);
    if (skipped_) build_.open_if(inside_);
    open_lanes();
    body();
    close_lanes();
    if (skipped_) build_.close();
    skipped_ = false;
    if (choice_.unroll > 1) build_.close();
  }
  // What no whole vector covers, an element a thread: those before the first vector, and those behind the last.
  void each_end(const std::function<void()>& body) {
    if (!choice_.peeled) return;
    const Expr t = Expr::symbol("t_"), vector = choice_.vector, shift = Expr::symbol("shift_");
    const Expr first = sym::lt(t, vector);
    build_.open("t_", 0, choice_.threads, Binding::ThreadX);
    const Expr at = build_.define("end_", sym::select(first, t - shift, Expr::symbol("tail_") + t - vector));
    inside_ = sym::select(first, sym::lt(0, shift) * sym::le(0, at), sym::lt(t, 2 * vector) * sym::lt(at, length_));
    build_.set_axis(folded_.back()->name, at);
    build_.set_guards({inside_});
    build_.open_if(inside_);
    skipped_ = at_end_ = true;
    build_.without_residents(body);
    skipped_ = at_end_ = false;
    build_.close();
    build_.close();
    build_.set_axis(folded_.back()->name, Expr::symbol("aligned_") - row_start_ + lane());
  }
  // Combines the values into accumulators; beyond the row's end nothing counts.
  void accumulate_inside(const std::function<void()>& accumulate) {
    const Expr inside = build_.simplified(inside_);
    const bool open = !skipped_ && !inside.is_const(1);
    if (open) build_.open_if(inside);
    accumulate();
    if (open) build_.close();
  }
  // Opens the threads of a row and, where the row takes several, its steps.
  void each_step(const std::function<void(const Expr&)>& body) {
    build_.open("t_", 0, choice_.threads, Binding::ThreadX);
    const bool serial = !in_registers();
    if (serial) build_.open("s_", first_step_, last_step_ ? *last_step_ : steps(), Binding::Serial);
    body(serial ? Expr::symbol("s_") : Expr(0));
    if (serial) build_.close();
    build_.close();
  }

  // Inputs that differ along the row, those that differ from row to row first; as many as registers allow. What is the same for
  // all of a vector (an element a channel) is loaded where it is used.
  std::vector<StagedInput> streams() const {
    std::vector<StagedInput> inputs, weights;
    for (const StagedInput& input : stageable_inputs(of_, contiguous_members(folded_.empty() ? nullptr : folded_.back()))) {
      (depends_on_row(input) || kept_.empty() ? inputs : weights).push_back(input);
    }
    if (choice_.keep == Keep::Shared) return inputs;
    const int32_t held = choice_.unroll * choice_.vector;
    int32_t bytes = 0;
    for (const StagedInput& input : inputs) bytes += input.bytes * held;
    for (const StagedInput& input : weights) {
      if (bytes + input.bytes * held > kRegisterBytes / 2) continue;
      bytes += input.bytes * held;
      inputs.push_back(input);
    }
    return inputs;
  }

  BufferId staging(const StagedInput& input) {
    const auto known = staged_.find(input.use);
    if (known != staged_.end()) return known->second;
    const DType type = of_.graph.type(input.value).dtype;
    const int64_t step = int64_t{choice_.threads} * choice_.vector * choice_.unroll;
    const BufferId buffer = choice_.keep == Keep::Shared ? build_.shared(input.name("row"), type, sym::ceil_div(spanned(), step) * step)
                                                         : build_.local(input.name("ahead"), type, int64_t{choice_.unroll} * choice_.vector);
    return staged_[input.use] = buffer;
  }
  void stage(const std::vector<StagedInput>& inputs, const Expr& step) {
    if (inputs.empty()) return;
    each_vector(step, [&] {
      for (const StagedInput& input : inputs) build_.stage(input.value, input.use->index, input.use->guards, staging(input), slot());
    }, true);
    for (const StagedInput& input : inputs) build_.set_resident(input.value, input.use->index, staged_.at(input.use), slot());
  }

  void for_each_loop() {
    if (choice_.keep == Keep::Reload && !parts_of_.pairs.empty()) {
      reduce_in_one_pass();
      store_everything_ = true;
      if (phase_.has_wide_outputs()) loop(phase_.phases(), false);
    } else {
      const int loops = phase_.phases() + (any_wide_output(phase_.phases()) ? 1 : 0);
      for (int at = 0; at < loops; ++at) loop(at, at + 1 < loops);
    }
    build_.set_guards({});
  }
  bool any_wide_output(int loop) const {
    return std::any_of(of_.group.outputs.begin(), of_.group.outputs.end(), [&](ValueId value) { return phase_.wide(value) && phase_.stored_in(value) == loop; });
  }

  // One loop over the row: reduces phase `at`, stores the outputs that are ready, keeps what a later loop needs.
  void loop(int at, bool more) {
    const std::vector<StagedInput> inputs = streams();
    const bool load_first = choice_.keep == Keep::Reload;      // each step's inputs before their use
    if (!load_first && at == 0 && !staged_before_) each_step([&](const Expr& step) { stage(inputs, step); });
    std::vector<NodeId> here;
    std::vector<kernel::Accumulator> accumulators;
    for (const NodeId id : phase_.reductions()) {
      if (phase_.phase(id) != at) continue;
      here.push_back(id);
      accumulators.push_back(accumulators_[id] = build_.accumulator_of(id));
    }
    if (!here.empty()) build_.open_reduce(accumulators);
    const auto compute = [&] {
      std::vector<ScalarId> operands;
      for (const NodeId id : here) operands.push_back(build_.value_at(phase_.operand(id), phase_.operand_position(id)));
      if (!here.empty()) {
        accumulate_inside([&] {
          for (size_t i = 0; i < here.size(); ++i) build_.accumulate(accumulators[i], operands[i], phase_.folded_index(here[i]));
        });
      }
      std::vector<Expr> guards = row_guards_;
      guards.push_back(inside_);
      build_.set_guards(guards);
      build_.store(outputs([&](ValueId value) { return phase_.wide(value) && (store_everything_ || phase_.stored_in(value) == at); }));
      build_.set_guards({inside_});
      if (more && in_registers() && !at_end_) keep(at);
    };
    each_step([&](const Expr& step) {
      if (load_first && choice_.unroll > 1) stage(inputs, step);
      each_vector(step, compute);
    });
    each_end([&] {
      if (!store_everything_) read_back(at);
      compute();
    });
    if (!here.empty()) build_.close();
    for (size_t i = 0; i < here.size(); ++i) set_result(here[i], accumulators[i]);
    for (const auto& [value, buffer] : kept_here_) build_.set_resident(value, buffer, slot());
    kept_here_.clear();
    if (more && !in_registers()) read_back(at + 1);
  }
  // What has been stored before this loop is read back, by the same thread: it may lie where an input was.
  void read_back(int loop) {
    for (const ValueId value : of_.group.outputs) {
      if (!phase_.wide(value) || phase_.ready(value) >= loop) continue;
      build_.set_resident(value, build_.argument(value, kernel::Access::Write), linear_index(of_.graph.type(value).shape, phase_.position(value)));
    }
  }
  void keep(int at) {
    const int64_t held = int64_t{choice_.unroll} * choice_.vector;
    for (const auto& [value, first] : phase_.repeated()) {
      if (first != at || held * 4 > kRegisterBytes) continue;
      const ScalarId scalar = build_.value_at(value, phase_.position(value));
      const BufferId buffer = build_.local(fmt::format("kept{}", value.index), build_.dtype(scalar), held);
      build_.append({kernel::Store{.buffer = buffer, .index = build_.simplified(slot()), .value = scalar}});
      kept_here_[value] = buffer;
    }
  }
  void set_result(NodeId id, const kernel::Accumulator& accumulator) {
    build_.set_result(id, build_.round_to(of_.graph.type(of_.graph.node(id).outputs[0]).dtype, accumulator.result));
  }

  std::vector<ValueId> outputs(const std::function<bool(ValueId)>& which) const {
    std::vector<ValueId> values;
    std::copy_if(of_.group.outputs.begin(), of_.group.outputs.end(), std::back_inserter(values), which);
    return values;
  }
  // Outputs that have one element a row: the first thread's.
  void store_narrow(const std::vector<Expr>& guards) {
    const std::vector<ValueId> narrow = outputs([&](ValueId value) { return !phase_.wide(value); });
    if (narrow.empty()) return;
    build_.set_guards(guards);
    build_.open("t_", 0, 1, Binding::ThreadX);
    build_.store(narrow);
    build_.close();
    build_.set_guards({});
  }

  const CudaGroup& of_;
  const AxisPlan plan_;
  LoopBuilder build_;
  const PhasePlan phase_;
  RowChoice choice_;
  std::vector<const LoopAxis*> kept_, folded_;   // folded: the contiguous one last
  std::set<std::string> kept_members_;
  Expr length_, rows_, parts_;
  Expr first_step_ = 0;
  std::optional<Expr> last_step_;                // absent: all of the row
  const Parts parts_of_;
  std::optional<Expr> part_count_;
  const RowColumnPair* const pair_;
  std::map<const Use*, BufferId> next_;          // the next row's elements
  bool skipped_ = false, at_end_ = false;        // inside a condition that holds within the row; where single elements are computed
  Expr row_start_;
  bool digits_ = false;                          // positions along the folded axes are defined for each vector
  bool staged_before_ = false;
  bool store_everything_ = false;                // this loop stores all outputs along the row
  std::vector<std::pair<ScalarId, ScalarId>> pair_results_;
  Expr inside_;
  std::vector<Expr> row_guards_;
  std::map<const Use*, BufferId> staged_;
  std::map<ValueId, BufferId> kept_here_;
  std::map<NodeId, kernel::Accumulator> accumulators_;
  std::vector<BufferId> part_buffers_, result_buffers_;
};

}  // namespace

LoweredGroup lower_cuda_rows(const CudaGroup& of) {
  const AxisPlan plan(of.graph, of.group, of.accesses);
  const PhasePlan phase(of.graph, of.group);
  Expr length = 1, rows = 1;
  for (const LoopAxis& axis : plan.axes()) (axis.reduced ? length : rows) = (axis.reduced ? length : rows) * axis.extent;
  const LoopAxis* contiguous = contiguous_axis(of, plan);
  const auto aligns = [&](VariantFacts& facts, int32_t lanes) { return contiguous == nullptr ? lanes == 1 : align(of, plan, *contiguous, lanes, facts); };
  const bool row_outputs = phase.has_wide_outputs();
  const Parts parts = parts_of(of, phase);
  RowWork work{.rows = of.typical(rows, kManyRows), .loops = phase.phases() + (row_outputs ? 1 : 0)};
  work.passes = (single_pass(phase, parts) ? 1 : phase.phases()) + (row_outputs ? 1 : 0);
  for (const StagedInput& input : stageable_inputs(of, contiguous_members(contiguous))) work.staged_bytes += input.bytes;
  work.staged_bytes = std::max(work.staged_bytes, 1);
  for (const ValueId value : of.group.outputs) {
    if (phase.wide(value)) work.stored_bytes += static_cast<int32_t>(dtype_bytes(of.graph.type(value).dtype));
  }
  work.kept_bytes = 4 * static_cast<int32_t>(phase.repeated().size());
  work.instructions = instructions_of(of);
  const int32_t vector = vector_elements(of, plan, contiguous);
  const sym::Facts& known = of.graph.facts();
  // Rows are counted by the grid.
  const auto small_rows = [&](VariantFacts& facts) { return facts.at_most(rows, kSmallSize) && facts.at_most(length, kSmallSize) && facts.small_symbols(of); };

  LoweredGroup lowered;
  VariantList variants;
  // ---- few long rows: cut into parts
  std::optional<Expr> part_count;
  VariantFacts cut(known);
  const int64_t wanted_blocks = int64_t{of.target.multiprocessors} * 4;
  if (single_pass(phase, parts) && cut.at_least(length, 2 * of.target.part_elements) && cut.at_most(rows, wanted_blocks / 2) && small_rows(cut)) {
    part_count = sym::select(cut.condition(), sym::min(sym::ceil_div(length, of.target.part_elements), sym::ceil_div(4 * wanted_blocks, sym::max(1, rows))), 0);
    for (const DType type : parts.types) lowered.partials.push_back({type, {rows * *part_count}});
    for (const DType type : parts.results) {
      if (row_outputs) lowered.partials.push_back({type, {sym::select(sym::lt(0, *part_count), rows, 0)}});
    }
    for (const int32_t lanes : {vector, 1}) {
      VariantFacts facts = cut;
      if (aligns(facts, lanes)) {
        const RowChoice choice{.keep = Keep::Reload, .vector = lanes, .unroll = lanes == 1 ? 8 : 4, .threads = 512, .rows = 1};
        variants.add(facts.condition(), RowKernel(of, facts.facts(), part_count).make_part(choice), "part of a " + choice.text());
      }
      if (lanes == 1) break;
    }
  }
  // ---- classes of row lengths, in vectors
  const auto folded_axes = std::count_if(plan.axes().begin(), plan.axes().end(), [](const LoopAxis& axis) { return axis.reduced; });
  struct Mode {
    int32_t lanes;
    bool peeled;
  };
  std::vector<Mode> modes{{vector, false}};
  const bool peels = vector > 1 && peeled_start(of, plan).has_value();
  if (peels) modes.push_back({vector, true});
  if (vector > 1) modes.push_back({1, false});
  for (const auto& [lanes, peeled] : modes) {
    // Of single elements behind several axes each has an address of its own to find.
    work.most_held = lanes == 1 && folded_axes > 1 ? 16 : 64;
    VariantFacts aligned(known);
    // Of short rows most would be left over.
    if (peeled ? !aligned.at_least(length, kPeeledVectors * lanes) : !aligns(aligned, lanes)) continue;
    // A class's limit comes first: the ranges of the symbols follow from it.
    const VariantFacts unlimited = aligned;
    if (!small_rows(aligned)) continue;
    const sym::Range range = sym::bounds(length, known);
    const auto add = [&](const VariantFacts& facts) {
      RowChoice choice = rank(work, of.target).at(0).choice;
      choice.peeled = peeled;
      variants.add(facts.condition(), RowKernel(of, facts.facts(), part_count).make(choice), choice.text());
    };
    work.vector = lanes;
    if (length.is_const()) {
      work.length = *length.as_const() + (peeled ? lanes : 0);
      work.bounded = true;
      add(aligned);
      continue;
    }
    const int64_t typical = of.typical(length, 0);
    // Element by element, finer classes would not pay for their compilation. Rows that start anywhere are often a little longer
    // than a power of two, and touch a vector more than they fill.
    for (int64_t longest = peeled ? 2 * kPeeledVectors + kPeeledVectors / 4 : 32;; longest *= lanes == 1 ? 4 : 2) {
      const int64_t limit = peeled ? (longest - 1) * lanes : longest * lanes;
      work.length = longest * lanes;
      work.bounded = true;
      if (rank(work, of.target).at(0).choice.keep == Keep::Reload || limit > kLongRow) break;
      if (lanes == 1 && peels && limit > 2 * kPeeledVectors * vector) break;
      if (range.low > limit) continue;
      // With a typical length the classes around it are enough: a kernel runs every shorter row too.
      if (typical != 0 && (limit < typical ? limit * 16 < typical : limit >= 2 * typical && limit < 16 * typical)) continue;
      VariantFacts facts = unlimited;
      if (!facts.at_most(length, limit) || !small_rows(facts)) continue;
      add(facts);
      if (range.high <= limit) break;
    }
    work.length = kLongRow;
    work.bounded = false;
    add(aligned);
    if (lanes == 1) break;
  }
  if (!variants.complete()) {
    work.vector = 1;
    work.length = kLongRow;
    work.bounded = false;
    const RowChoice choice = rank(work, of.target).at(0).choice;
    variants.add(1, RowKernel(of, known, part_count).make(choice), choice.text());
  }
  lowered.choice = Choice{.schedule = row_outputs || phase.phases() > 1 ? "normalization" : "row reduction", .vector_axis = "", .width = vector, .unroll = 1};
  lowered.kernels.push_back(variants.take("rows"));
  if (part_count) {
    // The later kernels are started where rows are cut.
    const auto or_nothing = [&](VariantList& list, LoweredKernel kernel, const std::string& kind) {
      if (!list.complete()) {
        kernel.variants[0].grid = {0, 1, 1};
        list.add(1, std::move(kernel), "rows are not cut");
      }
      lowered.kernels.push_back(list.take(kind));
    };
    VariantList finish, apply;
    finish.add(cut.condition(), RowKernel(of, cut.facts(), part_count).make_finish(), fmt::format("{} threads combine the parts of a row", kFinishThreads));
    or_nothing(finish, RowKernel(of, known, part_count).make_finish(), "row_finish");
    if (row_outputs) {
      RowChoice choice{.keep = Keep::Reload, .vector = 1, .unroll = 4, .threads = 256, .rows = 1};
      for (const int32_t lanes : {vector, 1}) {
        VariantFacts facts = cut;
        choice.vector = lanes;
        choice.unroll = lanes == 1 ? 4 : 2;
        if (aligns(facts, lanes)) apply.add(facts.condition(), RowKernel(of, facts.facts(), part_count).make_apply(choice), "what lies along a row, a part a block");
        if (lanes == 1) break;
      }
      or_nothing(apply, RowKernel(of, known, part_count).make_apply(choice), "row_apply");
    }
  }
  return lowered;
}

LoweredGroup lower_cuda_pair(const CudaGroup& of, const RowColumnPair& pair) {
  const CudaGroup merged(of.graph, pair.merged, of.target, of.hint), columns(of.graph, pair.columns, of.target, of.hint);
  const AxisPlan plan(merged.graph, merged.group, merged.accesses);
  const LoopAxis* contiguous = contiguous_axis(merged, plan);
  Expr length = 1, rows = 1;
  for (const LoopAxis& axis : plan.axes()) (axis.reduced ? length : rows) = (axis.reduced ? length : rows) * axis.extent;
  const int32_t vector = vector_elements(merged, plan, contiguous);
  struct Class {
    int32_t threads;
    VariantFacts facts;
  };
  std::vector<Class> classes;                    // short rows first
  Expr any = 0, count = 0;
  for (const int32_t threads : {512, 128}) {
    VariantFacts facts(of.graph.facts());
    const int64_t blocks = int64_t{of.target.multiprocessors} * (512 / threads);
    if (!facts.at_most(length, int64_t{threads} * kHeldWithColumns) || !facts.at_least(rows, 4 * blocks) || !facts.at_most(rows, kSmallSize) || !facts.small_symbols(of)) continue;
    any = any + facts.condition();
    count = sym::select(facts.condition(), blocks, count);
    classes.insert(classes.begin(), Class{threads, facts});
  }
  const PartsElsewhere elsewhere{.condition = sym::lt(0, any), .count = count};
  const bool together = !classes.empty() && contiguous != nullptr && vector <= kHeldWithColumns;
  LoweredGroup lowered = lower_cuda_columns(columns, together ? std::optional(elsewhere) : std::nullopt);
  LoweredGroup apart = lower_cuda_rows(of);
  // The rows' own partial results follow those of the columns.
  for (LoweredKernel& kernel : apart.kernels) {
    for (Argument& argument : kernel.arguments) {
      if (argument.kind == Argument::Kind::Partial) argument.partial += static_cast<int>(lowered.partials.size());
    }
  }
  const size_t column_partials = lowered.partials.size();
  lowered.partials.insert(lowered.partials.end(), apart.partials.begin(), apart.partials.end());
  lowered.kernels.insert(lowered.kernels.begin(), apart.kernels.begin(), apart.kernels.end());
  lowered.choice = apart.choice;
  if (!together || column_partials != pair.reductions.size()) return lowered;
  VariantList variants;
  for (const Class& each : classes) {
    for (const int32_t lanes : {vector, 1}) {
      VariantFacts facts = each.facts;
      const RowChoice choice{.keep = Keep::Registers, .vector = lanes, .unroll = static_cast<int32_t>(kHeldWithColumns / lanes), .threads = each.threads, .rows = 1};
      if (align(merged, plan, *contiguous, lanes, facts)) {
        variants.add(facts.condition(), RowKernel(merged, facts.facts(), count, &pair).make_with_columns(choice), "rows and columns, " + choice.text());
      }
      if (lanes == 1) break;
    }
  }
  if (!variants.complete()) {
    const RowChoice choice{.keep = Keep::Registers, .vector = 1, .unroll = static_cast<int32_t>(kHeldWithColumns), .threads = 128, .rows = 1};
    LoweredKernel none = RowKernel(merged, of.graph.facts(), count, &pair).make_with_columns(choice);
    none.variants[0].grid = {0, 1, 1};
    variants.add(1, std::move(none), "rows and columns apart");
  }
  for (size_t i = 0; i < apart.kernels.size(); ++i) done_elsewhere(lowered.kernels[i], elsewhere.condition);
  lowered.kernels.insert(lowered.kernels.begin(), variants.take("rows_and_columns"));
  lowered.choice.schedule = "rows and columns";
  return lowered;
}

}  // namespace fuseloom::schedule
