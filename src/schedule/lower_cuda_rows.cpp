// Reductions and normalizations along the contiguous axis on CUDA: `rows` rows a block, `threads` threads along each.
//
//   registers   each thread loads its vectors of the row once; every loop over the row reads registers
//   shared      the same in shared memory: each thread reads what it wrote itself, so nobody waits for it
//   reload      every loop over the row loads it again
//
// Few long rows are cut into parts, a block each; a second kernel combines the parts.
#include <algorithm>
#include <functional>

#include "base/check.h"
#include "schedule/cuda_variant.h"

namespace fuseloom::schedule {

using kernel::Binding;
using kernel::BufferId;
using sym::Expr;

namespace {

constexpr int64_t kManyRows = 1 << 14;
constexpr int64_t kLongRow = 1 << 17;              // a row of unknown length beyond the classes is ranked at this length
constexpr int32_t kRegisterBytes = 160;            // of a thread, for what is loaded ahead and kept
constexpr int64_t kPartLength = 8192;              // a part of a cut row is at least this long
constexpr int32_t kFinishThreads = 128;

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

// What the parts of a cut row leave behind, each [rows, parts]: the results of the reductions, and the values beside the
// indices of argmax and argmin.
std::vector<DType> part_types(const CudaGroup& of, const PhasePlan& phase) {
  std::vector<DType> types;
  for (const NodeId id : phase.reductions()) {
    const op::Combine combine = of.graph.node(id).op->combine;
    if (combine == op::Combine::ArgMax || combine == op::Combine::ArgMin) {
      const DType compared = compute_dtype(of.graph.type(phase.operand(id)).dtype);
      types.push_back(compared == DType::Bool ? DType::U8 : compared);
    }
    types.push_back(compute_dtype(of.graph.type(of.graph.node(id).outputs[0]).dtype));
  }
  return types;
}

class RowKernel {
 public:
  // `parts`: how many parts a row may be cut into, where the group has a kernel that does.
  RowKernel(const CudaGroup& of, const sym::Facts& facts, std::optional<Expr> parts)
      : of_(of), plan_(of.graph, of.group, of.accesses, AxisPlan::Merge::On, facts), build_(of.graph, of.group, plan_), phase_(of.graph, of.group),
        part_count_(std::move(parts)) {
    const LoopAxis* vector = contiguous_axis(of, plan_);
    for (const LoopAxis& axis : plan_.axes()) {
      if (!axis.reduced) {
        kept_.push_back(&axis);
      } else if (&axis != vector) {
        folded_.push_back(&axis);
      }
    }
    if (vector != nullptr) folded_.push_back(vector);
    for (const LoopAxis* axis : folded_) folded_members_.insert(axis->members.begin(), axis->members.end());
    for (const LoopAxis* axis : kept_) kept_members_.insert(axis->members.begin(), axis->members.end());
  }

  LoweredKernel make(const RowChoice& choice) {
    choice_ = choice;
    declare(kernel::Access::Write);
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

  // A block reduces one part of a row.
  LoweredKernel make_part(const RowChoice& choice) {
    choice_ = choice;
    declare(kernel::Access::Write);
    build_.open("row_", 0, rows_, Binding::GridY);
    build_.open("b_", 0, parts_, Binding::GridX);
    build_.set_floor();
    define_digits(build_, kept_, Expr::symbol("row_"));
    set_positions();
    // Parts are whole steps of the block.
    const Expr step = int64_t{choice.threads} * choice.vector * choice.unroll;
    const Expr steps = sym::ceil_div(length_, step);
    const Expr each = build_.define("steps_", sym::ceil_div(steps, parts_));
    first_step_ = Expr::symbol("b_") * each;
    last_step_ = sym::min(steps, (Expr::symbol("b_") + 1) * each);
    loop(0, false);
    build_.set_guards({});
    build_.open("t_", 0, 1, Binding::ThreadX);
    size_t next = 0;
    for (const NodeId id : phase_.reductions()) {
      const kernel::Accumulator& accumulator = accumulators_.at(id);
      const Expr at = Expr::symbol("row_") * parts_ + Expr::symbol("b_");
      if (accumulator.value.valid()) build_.append({kernel::Store{.buffer = part_buffers_[next++], .index = at, .value = accumulator.value}});
      build_.append({kernel::Store{.buffer = part_buffers_[next++], .index = at, .value = accumulator.result}});
    }
    build_.close();
    build_.close();
    build_.close();
    return build_.finish("row_parts");
  }

  // Combines the parts of a row and computes what follows from the result.
  LoweredKernel make_finish() {
    declare(kernel::Access::Read);
    build_.open("row_", 0, rows_, Binding::GridX);
    build_.set_floor();
    define_digits(build_, kept_, Expr::symbol("row_"));
    std::vector<kernel::Accumulator> accumulators;
    for (const NodeId id : phase_.reductions()) accumulators.push_back(build_.accumulator_of(id));
    build_.open_reduce(accumulators);
    build_.open("t_", 0, kFinishThreads, Binding::ThreadX);
    build_.open("i_", 0, sym::ceil_div(parts_, kFinishThreads), Binding::Serial);
    const Expr part = build_.define("part_", Expr::symbol("i_") * kFinishThreads + Expr::symbol("t_"));
    const std::vector<Expr> inside{sym::lt(part, parts_)};
    size_t next = 0;
    std::vector<std::tuple<ScalarId, ScalarId, Expr>> combined;
    for (const kernel::Accumulator& accumulator : accumulators) {
      const auto read = [&] {
        const BufferId buffer = part_buffers_[next++];
        return build_.let(build_.kernel().buffer(buffer).dtype, kernel::Load{.buffer = buffer, .index = Expr::symbol("row_") * parts_ + part, .guards = inside});
      };
      const ScalarId value = read();
      Expr index = 0;
      if (accumulator.value.valid()) index = Expr::symbol(build_.kernel().scalar(read()).name);
      combined.emplace_back(accumulator.result, value, index);
    }
    build_.open_if(inside[0]);
    for (const auto& [accumulator, value, index] : combined) build_.accumulate(accumulator, value, index);
    build_.close();
    build_.close();
    build_.close();
    build_.close();
    for (size_t i = 0; i < accumulators.size(); ++i) set_result(phase_.reductions()[i], accumulators[i]);
    store_narrow({});
    build_.close();
    return build_.finish("row_finish");
  }


 private:
  // A size that index arithmetic uses often, as one symbol.
  Expr sized(const std::string& name, const Expr& value) {
    if (value.is_const() || value.is_symbol()) return value;
    return build_.size(name, value, {.low = 0, .high = kSmallSize});
  }
  void declare(kernel::Access parts_access) {
    declare_arguments(of_, build_);
    length_ = sized("length_", extent_of(folded_));
    rows_ = sized("rows_", extent_of(kept_));
    if (!part_count_) return;
    parts_ = build_.size("parts_", *part_count_, {.low = 0, .high = 1 << 20});
    const std::vector<DType> types = part_types(of_, phase_);
    for (size_t i = 0; i < types.size(); ++i) {
      part_buffers_.push_back(build_.argument(Argument{.kind = Argument::Kind::Partial, .partial = static_cast<int>(i)}, fmt::format("part{}", i), types[i], rows_ * parts_, parts_access));
    }
  }

  Expr lane() const { return choice_.vector == 1 ? Expr(0) : Expr::symbol("v_"); }
  Expr copy() const { return choice_.unroll == 1 ? Expr(0) : Expr::symbol("u_"); }
  void open_lanes() {
    if (choice_.vector > 1) build_.open("v_", 0, choice_.vector, Binding::Vector, choice_.vector, 1);
  }
  void close_lanes() {
    if (choice_.vector > 1) build_.close();
  }
  void set_positions() {
    build_.assume("base_", {.low = 0, .high = sym::Range::kMax, .divisor = choice_.vector});
    if (choice_.vector > 1) build_.assume_lanes("v_", choice_.vector);
    set_digits(build_, folded_, Expr::symbol("base_") + lane());
  }
  bool in_registers() const { return choice_.keep == Keep::Registers; }
  Expr steps() const { return sym::ceil_div(length_, int64_t{choice_.threads} * choice_.vector * choice_.unroll); }
  // Where a thread keeps the current element.
  Expr slot() const {
    if (choice_.keep == Keep::Shared) return Expr::symbol("base_") + lane();
    return copy() * choice_.vector + lane();
  }

  // Runs `body` for each of the thread's vectors of one step, the elements' position known as base_.
  void each_vector(const Expr& step, const std::function<void()>& body) {
    if (choice_.unroll > 1) build_.open("u_", 0, choice_.unroll, Binding::Unroll);
    build_.define("base_", ((step * choice_.unroll + copy()) * choice_.threads + Expr::symbol("t_")) * choice_.vector);
    inside_ = sym::lt(Expr::symbol("base_"), length_);
    std::vector<Expr> guards{inside_};
    build_.set_guards(guards);
    open_lanes();
    body();
    close_lanes();
    if (choice_.unroll > 1) build_.close();
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

  // Inputs that differ along the row, those that differ from row to row first; as many as registers allow.
  std::vector<StagedInput> streams() const {
    std::vector<StagedInput> inputs, weights;
    for (const StagedInput& input : stageable_inputs(of_, folded_members_)) {
      bool by_row = false;
      for (const Expr& at : input.use->index) {
        for (const std::string& symbol : sym::symbols_of(at)) by_row = by_row || kept_members_.count(symbol) != 0;
      }
      (by_row || kept_.empty() ? inputs : weights).push_back(input);
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
    const BufferId buffer = choice_.keep == Keep::Shared ? build_.shared(input.name("row"), type, sym::ceil_div(length_, step) * step)
                                                         : build_.local(input.name("ahead"), type, int64_t{choice_.unroll} * choice_.vector);
    return staged_[input.use] = buffer;
  }
  void stage(const std::vector<StagedInput>& inputs, const Expr& step) {
    if (inputs.empty()) return;
    each_vector(step, [&] {
      for (const StagedInput& input : inputs) build_.stage(input.value, input.use->index, input.use->guards, staging(input), slot());
    });
    for (const StagedInput& input : inputs) build_.set_resident(input.value, input.use->index, staged_.at(input.use), slot());
  }

  void for_each_loop() {
    const int loops = phase_.phases() + (any_wide_output(phase_.phases()) ? 1 : 0);
    for (int at = 0; at < loops; ++at) {
      loop(at, at + 1 < loops);
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
    if (!load_first && at == 0) each_step([&](const Expr& step) { stage(inputs, step); });
    std::vector<NodeId> here;
    std::vector<kernel::Accumulator> accumulators;
    for (const NodeId id : phase_.reductions()) {
      if (phase_.phase(id) != at) continue;
      here.push_back(id);
      accumulators.push_back(accumulators_[id] = build_.accumulator_of(id));
    }
    if (!here.empty()) build_.open_reduce(accumulators);
    each_step([&](const Expr& step) {
      if (load_first && choice_.unroll > 1) stage(inputs, step);
      each_vector(step, [&] {
        std::vector<ScalarId> operands;
        for (const NodeId id : here) operands.push_back(build_.value_at(phase_.operand(id), phase_.operand_position(id)));
        if (!here.empty()) {
          // Beyond the row's end nothing counts.
          const Expr inside = build_.simplified(inside_);
          if (!inside.is_const(1)) build_.open_if(inside);
          for (size_t i = 0; i < here.size(); ++i) build_.accumulate(accumulators[i], operands[i], phase_.folded_index(here[i]));
          if (!inside.is_const(1)) build_.close();
        }
        std::vector<Expr> guards = row_guards_;
        guards.push_back(inside_);
        build_.set_guards(guards);
        build_.store(outputs([&](ValueId value) { return phase_.wide(value) && phase_.stored_in(value) == at; }));
        build_.set_guards({inside_});
        if (more && in_registers()) keep(at);
      });
    });
    if (!here.empty()) build_.close();
    for (size_t i = 0; i < here.size(); ++i) set_result(here[i], accumulators[i]);
    for (const auto& [value, buffer] : kept_here_) build_.set_resident(value, buffer, slot());
    kept_here_.clear();
    if (more && !in_registers()) {
      // What has been stored is read back: by the same thread.
      for (const ValueId value : of_.group.outputs) {
        if (!phase_.wide(value) || phase_.ready(value) != at) continue;
        build_.set_resident(value, build_.argument(value, kernel::Access::Write), linear_index(of_.graph.type(value).shape, phase_.position(value)));
      }
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
  std::set<std::string> kept_members_, folded_members_;
  Expr length_, rows_, parts_;
  Expr first_step_ = 0;
  std::optional<Expr> last_step_;                // absent: all of the row
  std::optional<Expr> part_count_;
  Expr inside_;
  std::vector<Expr> row_guards_;
  std::map<const Use*, BufferId> staged_;
  std::map<ValueId, BufferId> kept_here_;
  std::map<NodeId, kernel::Accumulator> accumulators_;
  std::vector<BufferId> part_buffers_;
};

}  // namespace

LoweredGroup lower_cuda_rows(const CudaGroup& of) {
  const AxisPlan plan(of.graph, of.group, of.accesses);
  const PhasePlan phase(of.graph, of.group);
  Expr length = 1, rows = 1;
  std::set<std::string> folded;
  for (const LoopAxis& axis : plan.axes()) {
    (axis.reduced ? length : rows) = (axis.reduced ? length : rows) * axis.extent;
    if (axis.reduced) folded.insert(axis.members.begin(), axis.members.end());
  }
  const LoopAxis* contiguous = contiguous_axis(of, plan);
  const auto aligns = [&](VariantFacts& facts, int32_t lanes) { return contiguous == nullptr ? lanes == 1 : align(of, plan, *contiguous, lanes, facts); };
  const bool row_outputs = phase.has_wide_outputs();
  RowWork work{.rows = of.typical(rows, kManyRows), .loops = phase.phases() + (row_outputs ? 1 : 0)};
  for (const StagedInput& input : stageable_inputs(of, folded)) work.staged_bytes += input.bytes;
  work.staged_bytes = std::max(work.staged_bytes, 1);
  for (const ValueId value : of.group.outputs) {
    if (phase.wide(value)) work.stored_bytes += static_cast<int32_t>(dtype_bytes(of.graph.type(value).dtype));
  }
  work.kept_bytes = 4 * static_cast<int32_t>(phase.repeated().size());
  work.instructions = instructions_of(of);
  const int32_t vector = vector_elements(of, plan, contiguous);
  const sym::Facts& known = of.graph.facts();
  // Rows are counted by the grid.
  const auto small_rows = [&](VariantFacts& facts) { return facts.at_most(rows, kSmallSize) && facts.at_most(length, kSmallSize); };

  LoweredGroup lowered;
  VariantList variants;
  // ---- few long rows: cut into parts
  std::optional<Expr> part_count;
  VariantFacts cut(known);
  const int64_t wanted_blocks = int64_t{of.target.multiprocessors} * 4;
  if (phase.phases() == 1 && !row_outputs && cut.at_least(length, 2 * kPartLength) && cut.at_most(rows, wanted_blocks / 2) && small_rows(cut)) {
    part_count = sym::select(cut.condition(), sym::min(sym::ceil_div(length, kPartLength), sym::ceil_div(wanted_blocks, sym::max(1, rows))), 0);
    for (const DType type : part_types(of, phase)) lowered.partials.push_back({type, {rows * *part_count}});
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
  for (const int32_t lanes : {vector, 1}) {
    VariantFacts aligned(known);
    if (!aligns(aligned, lanes) || !small_rows(aligned)) continue;
    const sym::Range range = sym::bounds(length, known);
    if (length.is_const()) {
      work.vector = lanes;
      work.length = *length.as_const();
      work.bounded = true;
      const RowChoice choice = rank(work, of.target).at(0).choice;
      variants.add(aligned.condition(), RowKernel(of, aligned.facts(), part_count).make(choice), choice.text());
      continue;
    }
    std::optional<RowChoice> previous;
    for (int64_t longest = 32; ; longest *= 2) {
      work.vector = lanes;
      work.length = longest * lanes;
      work.bounded = true;
      const RowChoice choice = rank(work, of.target).at(0).choice;
      if (choice.keep == Keep::Reload || longest * lanes > kLongRow) break;
      if (range.low > longest * lanes) continue;
      VariantFacts facts = aligned;
      if (!facts.at_most(length, longest * lanes)) continue;
      variants.add(facts.condition(), RowKernel(of, facts.facts(), part_count).make(choice), choice.text());
      if (range.high <= longest * lanes) break;
    }
    work.length = kLongRow;
    work.bounded = false;
    const RowChoice choice = rank(work, of.target).at(0).choice;
    variants.add(aligned.condition(), RowKernel(of, aligned.facts(), part_count).make(choice), choice.text());
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
    VariantList finish;
    const LoweredKernel kernel = RowKernel(of, cut.facts(), part_count).make_finish();
    finish.add(cut.condition(), kernel, fmt::format("{} threads combine the parts of a row", kFinishThreads));
    if (!finish.complete()) {
      LoweredKernel none = RowKernel(of, known, part_count).make_finish();
      none.variants[0].grid = {0, 1, 1};
      finish.add(1, std::move(none), "rows are not cut");
    }
    lowered.kernels.push_back(finish.take("row_finish"));
  }
  return lowered;
}

}  // namespace fuseloom::schedule
