// Reductions along an outer axis on CUDA: threads_x threads along the columns, a vector of columns each; threads_y threads
// share the folded rows. Accumulators are registers; the threads of a column combine in shared memory.
//
//   columns   a block owns its columns; a normalization runs over the rows once per phase
//   parts     the folded rows are cut into parts, a block each; a second kernel combines the parts
//   serial    a thread per column: argmax and argmin
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
constexpr int64_t kManyColumns = 1 << 13;

class ColumnKernel {
 public:
  ColumnKernel(const CudaGroup& of, const sym::Facts& facts, std::optional<Expr> parts)
      : of_(of), plan_(of.graph, of.group, of.accesses, AxisPlan::Merge::On, facts), build_(of.graph, of.group, plan_), phase_(of.graph, of.group),
        part_count_(std::move(parts)) {
    for (const LoopAxis& axis : plan_.axes()) {
      (axis.reduced ? folded_ : outer_).push_back(&axis);
      if (axis.reduced) folded_members_.insert(axis.members.begin(), axis.members.end());
    }
    column_ = outer_.back();
    outer_.pop_back();
  }

  LoweredKernel make(const ColumnChoice& choice) {
    begin(choice, kernel::Access::Write);
    open_block(0);
    keep_column_inputs();
    const int loops = phase_.phases() + (any_wide_output(phase_.phases()) ? 1 : 0);
    for (int at = 0; at < loops; ++at) loop(at, 0, length_);
    store_narrow();
    close_block();
    return build_.finish("columns");
  }

  // Every phase in one thread, one column each.
  LoweredKernel make_serial(const ColumnChoice& choice) {
    begin(choice, kernel::Access::Write);
    open_block(0);
    build_.open("t_", 0, choice_.threads_x, Binding::ThreadX);
    define_base();
    build_.set_guards({inside_});
    const int loops = phase_.phases() + (any_wide_output(phase_.phases()) ? 1 : 0);
    for (int at = 0; at < loops; ++at) {
      std::vector<NodeId> here;
      std::vector<kernel::Accumulator> accumulators;
      for (const NodeId id : phase_.reductions()) {
        if (phase_.phase(id) != at) continue;
        here.push_back(id);
        accumulators.push_back(build_.accumulator_of(id));
      }
      if (!here.empty()) build_.open_reduce(accumulators);
      build_.open("r_", 0, length_, Binding::Serial);
      define_digits(build_, folded_, Expr::symbol("r_"));
      for (size_t i = 0; i < here.size(); ++i) {
        build_.accumulate(accumulators[i], build_.value_at(phase_.operand(here[i]), phase_.operand_position(here[i])), phase_.folded_index(here[i]));
      }
      store_wide(at);
      build_.close();
      if (!here.empty()) build_.close();
      for (size_t i = 0; i < here.size(); ++i) {
        build_.set_result(here[i], build_.round_to(of_.graph.type(of_.graph.node(here[i]).outputs[0]).dtype, accumulators[i].result));
      }
    }
    build_.store(outputs([&](ValueId value) { return !phase_.wide(value); }));
    build_.set_guards({});
    build_.close();
    close_block();
    return build_.finish("columns_serial");
  }

  LoweredKernel make_part(const ColumnChoice& choice) {
    begin(choice, kernel::Access::Write);
    open_block(parts_);
    keep_column_inputs();
    const Expr step = int64_t{choice.threads_y} * choice.unroll;
    const Expr each = build_.define("rows_each_", sym::ceil_div(sym::ceil_div(length_, step), parts_) * step);
    const Expr part = Expr::symbol("part_");
    loop(0, part * each, sym::min(length_, (part + 1) * each));
    open_first_threads();
    open_lanes();
    for (size_t i = 0; i < phase_.reductions().size(); ++i) {
      const ValueId value = of_.graph.node(phase_.reductions()[i]).outputs[0];
      const ScalarId scalar = build_.let(accumulator_type(phase_.reductions()[i]), kernel::Load{.buffer = totals_.at(value), .index = build_.simplified(lane())});
      build_.append({kernel::Store{.buffer = part_buffers_[i], .index = build_.simplified(part_index(part)), .value = scalar, .guards = {build_.simplified(inside_)}}});
    }
    close_lanes();
    close_first_threads();
    close_block();
    return build_.finish("column_parts");
  }

  LoweredKernel make_finish(const ColumnChoice& choice) {
    begin(choice, kernel::Access::Read);
    open_block(0);
    from_parts_ = true;
    loop(0, 0, parts_);
    store_narrow();
    close_block();
    return build_.finish("column_finish");
  }

 private:
  Expr sized(const std::string& name, const Expr& value) {
    if (value.is_const() || value.is_symbol()) return value;
    return build_.size(name, value, {.low = 0, .high = kSmallSize});
  }
  void begin(const ColumnChoice& choice, kernel::Access parts_access) {
    choice_ = choice;
    declare_arguments(of_, build_);
    length_ = sized("length_", extent_of(folded_));
    outers_ = sized("outers_", extent_of(outer_));
    if (!part_count_) return;
    parts_ = build_.size("parts_", *part_count_, {.low = 0, .high = 1 << 16});
    for (size_t i = 0; i < phase_.reductions().size(); ++i) {
      part_buffers_.push_back(build_.argument(Argument{.kind = Argument::Kind::Partial, .partial = static_cast<int>(i)}, fmt::format("part{}", i),
                                              accumulator_type(phase_.reductions()[i]), parts_ * outers_ * column_->extent, parts_access));
    }
  }
  DType accumulator_type(NodeId id) const { return compute_dtype(of_.graph.type(of_.graph.node(id).outputs[0]).dtype); }
  Expr part_index(const Expr& part) const { return (part * outers_ + Expr::symbol("outer_")) * column_->extent + Expr::symbol("base_") + lane(); }

  // Blocks: columns and what lies outside them along x, parts along y.
  void open_block(const Expr& parts) {
    const Expr tiles = sym::ceil_div(column_->extent, int64_t{choice_.threads_x} * choice_.vector);
    cut_ = !parts.is_const(0);
    if (cut_) build_.open("part_", 0, parts, Binding::GridY);
    build_.open("b_", 0, tiles * outers_, Binding::GridX);
    build_.set_floor();
    const bool one = outers_.is_const(1);
    tile_ = one ? Expr::symbol("b_") : build_.define("tile_", sym::mod(Expr::symbol("b_"), tiles));
    build_.assume("outer_", sym::Facts::size());
    build_.define("outer_", one ? Expr(0) : sym::floor_div(Expr::symbol("b_"), tiles));
    define_digits(build_, outer_, Expr::symbol("outer_"));
    build_.assume("base_", {.low = 0, .high = sym::Range::kMax, .divisor = choice_.vector});
    if (choice_.vector > 1) build_.assume_lanes("v_", choice_.vector);
    build_.set_axis(column_->name, Expr::symbol("base_") + lane());
  }
  void close_block() {
    build_.close();
    if (cut_) build_.close();
  }
  Expr lane() const { return choice_.vector == 1 ? Expr(0) : Expr::symbol("v_"); }
  Expr copy() const { return choice_.unroll == 1 ? Expr(0) : Expr::symbol("u_"); }
  void open_lanes() {
    if (choice_.vector > 1) build_.open("v_", 0, choice_.vector, Binding::Vector, choice_.vector, 1);
  }
  void close_lanes() {
    if (choice_.vector > 1) build_.close();
  }
  void define_base() {
    build_.define("base_", (tile_ * choice_.threads_x + Expr::symbol("t_")) * choice_.vector);
    inside_ = sym::lt(Expr::symbol("base_"), column_->extent);
  }
  void open_threads() {
    if (choice_.threads_y > 1) build_.open("ty_", 0, choice_.threads_y, Binding::ThreadY);
    build_.open("t_", 0, choice_.threads_x, Binding::ThreadX);
    define_base();
  }
  void close_threads() {
    build_.close();
    if (choice_.threads_y > 1) build_.close();
  }
  // The threads that write what a column has once.
  void open_first_threads() {
    if (choice_.threads_y > 1) build_.open("ty_", 0, 1, Binding::ThreadY);
    build_.open("t_", 0, choice_.threads_x, Binding::ThreadX);
    define_base();
  }
  void close_first_threads() { close_threads(); }
  Expr thread_y() const { return choice_.threads_y > 1 ? Expr::symbol("ty_") : Expr(0); }

  bool any_wide_output(int loop) const {
    return std::any_of(of_.group.outputs.begin(), of_.group.outputs.end(), [&](ValueId value) { return phase_.wide(value) && phase_.stored_in(value) == loop; });
  }
  std::vector<ValueId> outputs(const std::function<bool(ValueId)>& which) const {
    std::vector<ValueId> values;
    std::copy_if(of_.group.outputs.begin(), of_.group.outputs.end(), std::back_inserter(values), which);
    return values;
  }
  void store_wide(int at) {
    build_.store(outputs([&](ValueId value) { return phase_.wide(value) && phase_.stored_in(value) == at; }));
  }
  void store_narrow() {
    const std::vector<ValueId> narrow = outputs([&](ValueId value) { return !phase_.wide(value); });
    if (narrow.empty()) return;
    open_first_threads();
    build_.set_guards({inside_});
    open_lanes();
    build_.store(narrow);
    close_lanes();
    build_.set_guards({});
    close_first_threads();
  }

  // A register per lane that holds a value of this thread's columns.
  BufferId column_register(const std::string& name, DType type) { return build_.local(name, type, choice_.vector); }
  ScalarId read(BufferId buffer) { return build_.let(build_.kernel().buffer(buffer).dtype, kernel::Load{.buffer = buffer, .index = build_.simplified(lane())}); }
  void write(BufferId buffer, ScalarId value) { build_.append({kernel::Store{.buffer = buffer, .index = build_.simplified(lane()), .value = value}}); }

  // Inputs with one element a column are loaded once.
  void keep_column_inputs() {
    std::vector<StagedInput> inputs = stageable_inputs(of_, {column_->members.begin(), column_->members.end()});
    const std::vector<StagedInput> by_row = stageable_inputs(of_, folded_members_);
    std::erase_if(inputs, [&](const StagedInput& input) {
      return std::any_of(by_row.begin(), by_row.end(), [&](const StagedInput& other) { return other.use == input.use; });
    });
    if (inputs.empty()) return;
    open_threads();
    build_.set_guards({inside_});
    open_lanes();
    for (const StagedInput& input : inputs) {
      staged_[input.use] = column_register(input.name("column"), of_.graph.type(input.value).dtype);
      build_.stage(input.value, input.use->index, input.use->guards, staged_[input.use], lane());
    }
    close_lanes();
    build_.set_guards({});
    close_threads();
    for (const StagedInput& input : inputs) build_.set_resident(input.value, input.use->index, staged_.at(input.use), lane());
  }

  // Values of a column that this loop needs and that are not free are computed once, before it.
  void keep_narrow(int at) {
    std::set<ValueId> seen, narrow;
    for (const ValueId root : phase_.roots_of(at)) phase_.visit(root, seen, [](ValueId) { return false; });
    for (const ValueId value : seen) {
      for (const ValueId input : of_.graph.producer(value)->inputs) {
        if (input.valid() && phase_.computed(input) && !phase_.wide(input) && phase_.ready(input) > 0 && phase_.at_own_axes(input) && kept_.insert(input).second) narrow.insert(input);
      }
    }
    if (narrow.empty()) return;
    open_threads();
    build_.set_guards({inside_});
    open_lanes();
    std::map<ValueId, BufferId> buffers;
    for (const ValueId value : narrow) {
      const ScalarId scalar = build_.value_at(value, phase_.position(value));
      buffers[value] = column_register(fmt::format("column{}", value.index), build_.dtype(scalar));
      write(buffers[value], scalar);
    }
    close_lanes();
    build_.set_guards({});
    close_threads();
    for (const auto& [value, buffer] : buffers) build_.set_resident(value, buffer, lane());
  }

  // Loops over the folded rows [low, high): reduces phase `at` and stores the outputs that are ready.
  void loop(int at, const Expr& low, const Expr& high) {
    std::vector<NodeId> here;
    for (const NodeId id : phase_.reductions()) {
      if (phase_.phase(id) == at) here.push_back(id);
    }
    if (!from_parts_) keep_narrow(at);
    std::vector<BufferId> accumulators;
    open_threads();
    if (!here.empty()) {
      open_lanes();
      for (const NodeId id : here) {
        const DType type = accumulator_type(id);
        accumulators.push_back(column_register(fmt::format("sum{}_{}", at, accumulators.size()), type));
        write(accumulators.back(), build_.identity_of(of_.graph.node(id).op->combine, type));
      }
      close_lanes();
    }
    const int64_t y = choice_.threads_y, unroll = choice_.unroll;
    build_.open("s_", 0, sym::ceil_div(high - low, y * unroll), Binding::Serial);
    const auto open_row = [&] {
      if (unroll > 1) build_.open("u_", 0, unroll, Binding::Unroll);
      build_.assume("r_", sym::Facts::size());
      build_.define("r_", low + (Expr::symbol("s_") * unroll + copy()) * y + thread_y());
      row_inside_ = sym::lt(Expr::symbol("r_"), high);
      if (!from_parts_) define_digits(build_, folded_, Expr::symbol("r_"));
      build_.set_guards({inside_, row_inside_});
      open_lanes();
    };
    const auto close_row = [&] {
      close_lanes();
      build_.set_guards({});
      if (unroll > 1) build_.close();
    };
    if (unroll > 1) stage(open_row, close_row);
    open_row();
    std::vector<ScalarId> operands;
    for (size_t i = 0; i < here.size(); ++i) operands.push_back(from_parts_ ? part_value(i) : build_.value_at(phase_.operand(here[i]), phase_.operand_position(here[i])));
    store_wide(at);
    if (!here.empty()) {
      build_.open_if(row_inside_);
      for (size_t i = 0; i < here.size(); ++i) {
        write(accumulators[i], build_.combine(of_.graph.node(here[i]).op->combine, accumulator_type(here[i]), read(accumulators[i]), operands[i]));
      }
      build_.close();
    }
    close_row();
    build_.close();
    close_threads();
    for (size_t i = 0; i < here.size(); ++i) combine_threads(here[i], accumulators[i], at, i);
  }
  ScalarId part_value(size_t i) {
    const BufferId buffer = part_buffers_[i];
    return build_.let(build_.kernel().buffer(buffer).dtype, kernel::Load{.buffer = buffer, .index = build_.simplified(part_index(Expr::symbol("r_"))),
                                                                         .guards = {build_.simplified(inside_), build_.simplified(row_inside_)}});
  }
  void stage(const std::function<void()>& open_row, const std::function<void()>& close_row) {
    const Expr slot = copy() * choice_.vector + lane();
    if (from_parts_) return;
    const std::vector<StagedInput> inputs = stageable_inputs(of_, folded_members_);
    if (inputs.empty()) return;
    open_row();
    for (const StagedInput& input : inputs) {
      auto [buffer, first] = staged_.try_emplace(input.use);
      if (first) buffer->second = build_.local(input.name("ahead"), of_.graph.type(input.value).dtype, int64_t{choice_.unroll} * choice_.vector);
      build_.stage(input.value, input.use->index, input.use->guards, buffer->second, slot);
    }
    close_row();
    for (const StagedInput& input : inputs) build_.set_resident(input.value, input.use->index, staged_.at(input.use), slot);
  }

  // Every thread of a column gets the total of all of them, in the order of the threads.
  void combine_threads(NodeId id, BufferId accumulator, int at, size_t i) {
    const ValueId value = of_.graph.node(id).outputs[0];
    const DType type = accumulator_type(id);
    const op::Combine combine = of_.graph.node(id).op->combine;
    if (choice_.threads_y > 1) {
      const int64_t row = int64_t{choice_.threads_x} * choice_.vector;
      const BufferId shared = build_.shared(fmt::format("sums{}_{}", at, i), type, choice_.threads_y * row);
      const Expr place = Expr::symbol("t_") * choice_.vector + lane();
      open_threads();
      open_lanes();
      build_.append({kernel::Store{.buffer = shared, .index = build_.simplified(thread_y() * row + place), .value = read(accumulator)}});
      close_lanes();
      close_threads();
      build_.append({kernel::Barrier{}});
      accumulator = column_register(fmt::format("total{}_{}", at, i), type);
      open_threads();
      open_lanes();
      write(accumulator, build_.let(type, kernel::Load{.buffer = shared, .index = build_.simplified(place)}));
      close_lanes();
      build_.open("y_", 1, choice_.threads_y, Binding::Unroll);
      open_lanes();
      const ScalarId other = build_.let(type, kernel::Load{.buffer = shared, .index = build_.simplified(Expr::symbol("y_") * row + place)});
      write(accumulator, build_.combine(combine, type, read(accumulator), other));
      close_lanes();
      build_.close();
      close_threads();
    }
    totals_[value] = accumulator;
    kept_.insert(value);
    build_.set_resident(value, accumulator, lane());
  }

  const CudaGroup& of_;
  const AxisPlan plan_;
  LoopBuilder build_;
  const PhasePlan phase_;
  std::optional<Expr> part_count_;
  ColumnChoice choice_;
  std::vector<const LoopAxis*> outer_, folded_;
  const LoopAxis* column_ = nullptr;
  std::set<std::string> folded_members_;
  Expr length_, outers_, parts_, tile_, inside_, row_inside_;
  bool cut_ = false, from_parts_ = false;
  std::map<const Use*, BufferId> staged_;
  std::map<ValueId, BufferId> totals_;
  std::set<ValueId> kept_;
  std::vector<BufferId> part_buffers_;
};

}  // namespace

LoweredGroup lower_cuda_columns(const CudaGroup& of, const std::optional<PartsElsewhere>& elsewhere) {
  const AxisPlan plan(of.graph, of.group, of.accesses);
  const PhasePlan phase(of.graph, of.group);
  std::vector<const LoopAxis*> outer, folded;
  std::set<std::string> members;
  for (const LoopAxis& axis : plan.axes()) {
    (axis.reduced ? folded : outer).push_back(&axis);
    if (axis.reduced) members.insert(axis.members.begin(), axis.members.end());
  }
  const LoopAxis& column = *outer.back();
  const Expr columns = column.extent;
  outer.pop_back();
  const Expr length = extent_of(folded), outers = extent_of(outer);
  const bool indices = std::any_of(phase.reductions().begin(), phase.reductions().end(), [&](NodeId id) {
    const op::Combine combine = of.graph.node(id).op->combine;
    return combine == op::Combine::ArgMax || combine == op::Combine::ArgMin;
  });
  ColumnWork work{.columns = of.typical(columns, kManyColumns), .length = of.typical(length, kManyRows)};
  for (const StagedInput& input : stageable_inputs(of, members)) work.staged_bytes += input.bytes;
  work.staged_bytes = std::max(1, work.staged_bytes);
  work.instructions = instructions_of(of);
  work.accumulators = std::max<int32_t>(1, static_cast<int32_t>(phase.reductions().size()));
  const sym::Facts& known = of.graph.facts();
  const int32_t vector = vector_elements(of, plan, &column);
  LoweredGroup lowered;
  VariantList variants;
  if (indices) {
    const ColumnChoice choice{.vector = 1, .unroll = 1, .threads_x = 128, .threads_y = 1};
    variants.add(1, ColumnKernel(of, known, std::nullopt).make_serial(choice), "a thread per column, " + choice.text());
    lowered.choice = Choice{.schedule = "column reduction", .vector_axis = "", .width = 1, .unroll = 1};
    lowered.kernels.push_back(variants.take("columns"));
    return lowered;
  }
  // ---- cut the folded rows where the columns alone do not fill the device
  const bool can_cut = phase.phases() == 1 && !phase.has_wide_outputs();
  std::optional<Expr> part_count;
  VariantFacts cut(known);
  work.vector = vector;
  const ColumnChoice widest = rank(work, of.target).at(0).choice;
  const int64_t step = int64_t{widest.threads_y} * widest.unroll, wanted = int64_t{of.target.multiprocessors} * 2048 / (int64_t{widest.threads_x} * widest.threads_y) * 2;
  const auto small = [&](VariantFacts& facts) { return facts.at_most(length, kSmallSize) && facts.at_most(columns, kSmallSize) && facts.at_most(outers, kSmallSize) && facts.small_symbols(of); };
  if (can_cut && cut.at_least(length, 4 * step) && small(cut)) {
    const Expr blocks = sym::ceil_div(columns, int64_t{widest.threads_x} * vector) * outers;
    const Expr count = sym::max(1, sym::min(sym::ceil_div(length, 2 * step), sym::floor_div(wanted, sym::max(1, blocks))));
    // With enough columns there is one part, and no second kernel.
    part_count = sym::select(cut.condition() * sym::lt(1, count), count, 0);
    if (elsewhere) part_count = sym::select(elsewhere->condition, elsewhere->count, *part_count);
    for (const NodeId id : phase.reductions()) lowered.partials.push_back({compute_dtype(of.graph.type(of.graph.node(id).outputs[0]).dtype), {*part_count * outers * columns}});
    for (const int32_t lanes : {vector, 1}) {
      VariantFacts facts = cut;
      if (align(of, plan, column, lanes, facts)) {
        work.vector = lanes;
        const ColumnChoice choice = rank(work, of.target).at(0).choice;
        variants.add(facts.condition() * sym::lt(0, *part_count), ColumnKernel(of, facts.facts(), part_count).make_part(choice), "a part of the rows, " + choice.text());
      }
      if (lanes == 1) break;
    }
  }
  for (const int32_t lanes : {vector, 1}) {
    VariantFacts facts(known);
    if (align(of, plan, column, lanes, facts) && small(facts)) {
      work.vector = lanes;
      const ColumnChoice choice = rank(work, of.target).at(0).choice;
      variants.add(facts.condition(), ColumnKernel(of, facts.facts(), part_count).make(choice), choice.text());
    }
    if (lanes == 1) break;
  }
  if (!variants.complete()) {
    work.vector = 1;
    const ColumnChoice choice = rank(work, of.target).at(0).choice;
    variants.add(1, ColumnKernel(of, known, part_count).make(choice), choice.text());
  }
  lowered.choice = Choice{.schedule = phase.phases() > 1 || phase.has_wide_outputs() ? "column normalization" : "column reduction", .vector_axis = outer.empty() ? "" : plan.axes().back().name, .width = vector, .unroll = 1};
  lowered.kernels.push_back(variants.take("columns"));
  if (elsewhere) done_elsewhere(lowered.kernels.back(), elsewhere->condition);
  if (part_count) {
    VariantList finish;
    const ColumnChoice choice{.vector = 1, .unroll = 4, .threads_x = 32, .threads_y = 8};
    finish.add(cut.condition() * sym::lt(0, *part_count), ColumnKernel(of, cut.facts(), part_count).make_finish(choice), "the parts combined, " + choice.text());
    if (!finish.complete()) {
      LoweredKernel none = ColumnKernel(of, known, part_count).make_finish(choice);
      none.variants[0].grid = {0, 1, 1};
      finish.add(1, std::move(none), "rows are not cut");
    }
    lowered.kernels.push_back(finish.take("column_finish"));
  }
  return lowered;
}

}  // namespace fuseloom::schedule
