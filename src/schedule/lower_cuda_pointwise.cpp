// Pointwise kernels on CUDA: a tile of elements a block, loads first, then arithmetic and stores.
//
//   flat             one axis. A thread computes `unroll` vectors, a block's width apart.
//   rows x columns   several axes, where broadcasts keep them apart. Vectors lie along the last axis, a thread computes one in
//                    each of `unroll` rows, so that what depends on the column alone is loaded once.
#include <algorithm>

#include "base/check.h"
#include "schedule/cuda_variant.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using kernel::Binding;
using sym::Expr;

void contract(LoopBuilder& build, const CudaGroup& of) {
  const NodeId id = of.group.contraction;
  const graph::Node& node = of.graph.node(id);
  const ValueId value = node.outputs[0];
  const Index& position = of.group.uses.at(value)[0].index;
  const DType declared = of.graph.type(value).dtype, type = compute_dtype(declared);
  const bool convolution = node.op->name == "conv";
  const kernel::Accumulator accumulator{.result = build.reserve(type), .combine = op::Combine::Add};
  build.open_reduce({accumulator});
  std::vector<Expr> k;
  int opened = 0;
  for (const Axis& axis : of.group.local_axes.at(id)) {
    k.push_back(axis.extent.is_const(1) ? Expr(0) : Expr::symbol(axis.name));
    if (axis.extent.is_const(1)) continue;
    build.open(axis.name, 0, axis.extent, Binding::Serial);
    ++opened;
  }
  ScalarId left, right;
  if (convolution) {
    const GuardedIndex at = window_read(of.graph, node, position, k);
    left = build.guarded_value_at(node.inputs[0], at.index, at.guards);
    right = build.value_at(node.inputs[1], weight_read(of.graph, node, position, k));
  } else {
    left = build.value_at(node.inputs[0], matmul_lhs_read(of.graph, node, position, k[0]));
    right = build.value_at(node.inputs[1], matmul_rhs_read(of.graph, node, position, k[0]));
  }
  build.accumulate(accumulator.result, build.apply("mul", type, {left, right}));
  for (int i = 0; i < opened; ++i) build.close();
  build.close();
  ScalarId result = accumulator.result;
  if (convolution && node.inputs.size() > 2 && node.inputs[2].valid()) result = build.apply("add", type, {result, build.value_at(node.inputs[2], {position[1]})});
  build.set_result(id, build.round_to(declared, result));
}

namespace {

constexpr int64_t kManyRows = 1 << 14;         // a class of unknown sizes is ranked at this many rows
constexpr int64_t kGridY = 65535;

// How the tiles of rows x columns are handed to blocks.
enum class GridOrder : uint8_t {
  ColumnsFirst,   // x: along a row, y: down the rows, of which there are not too many for that
  RowsFirst,      // x: down the rows, y: along a row
  Any,            // all in x, and nothing known to fit 32 bits
};

class PointwiseKernel {
 public:
  PointwiseKernel(const CudaGroup& of, const sym::Facts& facts, GridOrder order)
      : of_(of), plan_(of.graph, of.group, of.accesses, AxisPlan::Merge::On, facts), build_(of.graph, of.group, plan_), order_(order) {
    for (const LoopAxis& axis : plan_.axes()) rows_.push_back(&axis);
    if (!rows_.empty()) {
      column_ = rows_.back();
      rows_.pop_back();
    }
  }

  LoweredKernel make(const PointwiseChoice& choice) {
    choice_ = choice;
    declare_arguments(of_, build_);
    if (choice.flat) {
      flat();
    } else {
      rows_and_columns();
    }
    return build_.finish("pointwise");
  }

 private:
  Expr lane() const { return choice_.vector == 1 ? Expr(0) : Expr::symbol("v_"); }
  void open_lanes() {
    if (choice_.vector > 1) build_.open("v_", 0, choice_.vector, Binding::Vector, choice_.vector, 1);
  }
  void close_lanes() {
    if (choice_.vector > 1) build_.close();
  }
  void store_outputs() {
    if (of_.group.kind == GroupKind::Contraction) contract(build_, of_);
    build_.store(of_.group.outputs);
  }
  // Brings the inputs' elements of this vector into registers, the `slot`th vector of each.
  void stage(const std::vector<StagedInput>& inputs, const Expr& slot, int32_t slots) {
    if (inputs.empty()) return;
    open_lanes();
    for (const StagedInput& input : inputs) {
      auto [buffer, first] = staged_.try_emplace(input.use);
      if (first) buffer->second = build_.local(input.name("ahead"), of_.graph.type(input.value).dtype, int64_t{slots} * choice_.vector);
      build_.stage(input.value, input.use->index, input.use->guards, buffer->second, slot * choice_.vector + lane());
    }
    close_lanes();
  }
  void use_staged(const std::vector<StagedInput>& inputs, const Expr& slot) {
    for (const StagedInput& input : inputs) build_.set_resident(input.value, input.use->index, staged_.at(input.use), slot * choice_.vector + lane());
  }
  void set_column() {
    const int64_t vector = choice_.vector;
    build_.assume("base_", {.low = 0, .high = sym::Range::kMax, .divisor = vector});
    if (vector > 1) build_.assume_lanes("v_", vector);
    build_.set_axis(column_->name, Expr::symbol("base_") + lane());
  }

  void flat() {
    const int64_t vector = choice_.vector, threads = choice_.threads_x, unroll = choice_.unroll;
    // One element altogether has no axis: a block of one thread.
    const Expr count = column_ == nullptr ? Expr(1) : column_->extent.is_const() || column_->extent.is_symbol() ? column_->extent
                       : build_.size("count_", column_->extent, {.low = 0, .high = order_ == GridOrder::Any ? sym::Range::kMax : kSmallSize});
    const Expr blocks = sym::ceil_div(count, vector * threads * unroll);
    build_.open("b_", 0, blocks, Binding::GridX);
    build_.set_floor();
    if (column_ == nullptr) {
      build_.open("t_", 0, 1, Binding::ThreadX);
      store_outputs();
      build_.close();
      build_.close();
      return;
    }
    set_column();
    std::set<std::string> members(column_->members.begin(), column_->members.end());
    const std::vector<StagedInput> inputs = stageable_inputs(of_, members);
    // Whole vectors; what is left over are single elements of the first block.
    const Expr whole = count - sym::mod(count, vector);
    build_.open("t_", 0, threads, Binding::ThreadX);
    const Expr block = Expr::symbol("b_"), thread = Expr::symbol("t_"), copy = unroll == 1 ? Expr(0) : Expr::symbol("u_");
    const auto open_copy = [&] {
      if (unroll > 1) build_.open("u_", 0, unroll, Binding::Unroll);
      build_.define("base_", ((block * unroll + copy) * threads + thread) * vector);
      build_.set_guards({sym::lt(Expr::symbol("base_"), sym::simplify(whole, plan_.facts()))});
    };
    const auto close_copy = [&] {
      if (unroll > 1) build_.close();
    };
    if (unroll > 1) {
      open_copy();
      stage(inputs, copy, choice_.unroll);
      close_copy();
      use_staged(inputs, copy);
    }
    open_copy();
    open_lanes();
    store_outputs();
    close_lanes();
    close_copy();
    build_.close();
    if (vector > 1 && sym::prove_divisible(count, vector, plan_.facts()) != sym::Proof::Yes) {
      build_.set_guards({});
      build_.forget_residents();
      build_.open_if(sym::eq(block, 0));
      build_.open("t_", 0, vector, Binding::ThreadX);
      build_.define("rest_", whole + thread);
      build_.set_axis(column_->name, Expr::symbol("rest_"));
      build_.set_guards({sym::lt(Expr::symbol("rest_"), count)});
      store_outputs();
      build_.close();
      build_.close();
    }
    build_.set_guards({});
    build_.close();
  }

  void rows_and_columns() {
    const int64_t vector = choice_.vector, x = choice_.threads_x, y = choice_.threads_y, unroll = choice_.unroll;
    const Expr extent = extent_of(rows_);
    const Expr rows = extent.is_const() || extent.is_symbol() ? extent : build_.size("rows_", extent, {.low = 0, .high = order_ == GridOrder::Any ? sym::Range::kMax : kSmallSize});
    const Expr tiles = sym::ceil_div(column_->extent, x * vector), row_blocks = sym::ceil_div(rows, y * unroll);
    Expr tile, row_block;
    int opened = 1;
    if (order_ == GridOrder::Any) {
      build_.open("b_", 0, tiles * row_blocks, Binding::GridX);
      tile = build_.define("tile_", sym::mod(Expr::symbol("b_"), tiles));
      row_block = build_.define("row_block_", sym::floor_div(Expr::symbol("b_"), tiles));
    } else {
      const bool columns_first = order_ == GridOrder::ColumnsFirst;
      build_.open("row_block_", 0, row_blocks, columns_first ? Binding::GridY : Binding::GridX);
      build_.open("tile_", 0, tiles, columns_first ? Binding::GridX : Binding::GridY);
      tile = Expr::symbol("tile_");
      row_block = Expr::symbol("row_block_");
      opened = 2;
    }
    build_.set_floor();
    set_column();
    std::set<std::string> row_members, column_members(column_->members.begin(), column_->members.end());
    for (const LoopAxis* axis : rows_) row_members.insert(axis->members.begin(), axis->members.end());
    const std::vector<StagedInput> by_row = stageable_inputs(of_, row_members);
    std::vector<StagedInput> by_column = stageable_inputs(of_, column_members);
    std::erase_if(by_column, [&](const StagedInput& input) {
      return std::any_of(by_row.begin(), by_row.end(), [&](const StagedInput& other) { return other.use == input.use; });
    });
    if (y > 1) build_.open("ty_", 0, y, Binding::ThreadY);
    build_.open("t_", 0, x, Binding::ThreadX);
    build_.define("base_", (tile * x + Expr::symbol("t_")) * vector);
    const Expr inside = sym::lt(Expr::symbol("base_"), column_->extent);
    build_.set_guards({inside});
    stage(by_column, 0, 1);
    use_staged(by_column, 0);
    const Expr copy = unroll == 1 ? Expr(0) : Expr::symbol("u_");
    const auto open_copy = [&] {
      if (unroll > 1) build_.open("u_", 0, unroll, Binding::Unroll);
      build_.assume("row_", sym::Facts::size());
      build_.define("row_", (row_block * unroll + copy) * y + (y > 1 ? Expr::symbol("ty_") : Expr(0)));
      define_digits(build_, rows_, Expr::symbol("row_"));
      build_.set_guards({inside, sym::lt(Expr::symbol("row_"), rows)});
    };
    const auto close_copy = [&] {
      if (unroll > 1) build_.close();
    };
    if (unroll > 1) {
      open_copy();
      stage(by_row, copy, choice_.unroll);
      close_copy();
      use_staged(by_row, copy);
    }
    open_copy();
    open_lanes();
    store_outputs();
    close_lanes();
    close_copy();
    build_.set_guards({});
    build_.close();
    if (y > 1) build_.close();
    for (int i = 0; i < opened; ++i) build_.close();
  }

  const CudaGroup& of_;
  const AxisPlan plan_;
  LoopBuilder build_;
  const GridOrder order_;
  PointwiseChoice choice_;
  std::vector<const LoopAxis*> rows_;
  const LoopAxis* column_ = nullptr;
  std::map<const Use*, kernel::BufferId> staged_;
};

int32_t moved_bytes_per_element(const CudaGroup& of, const std::vector<StagedInput>& staged) {
  int32_t bytes = 0;
  for (const StagedInput& input : staged) bytes += input.bytes;
  for (const ValueId output : of.group.outputs) bytes += static_cast<int32_t>(dtype_bytes(of.graph.type(output).dtype));
  return bytes;
}

}  // namespace

LoweredGroup lower_cuda_pointwise(const CudaGroup& of) {
  const AxisPlan plan(of.graph, of.group, of.accesses);
  const bool flat = plan.axes().size() <= 1;
  std::set<std::string> axes;
  for (const Axis& axis : of.group.axes) axes.insert(axis.name);
  const std::vector<StagedInput> staged = stageable_inputs(of, axes);
  PointwiseWork work{.flat = flat};
  for (const StagedInput& input : staged) work.staged_bytes += input.bytes;
  work.moved_bytes = moved_bytes_per_element(of, staged);
  work.instructions = instructions_of(of);

  LoweredGroup lowered;
  VariantList variants;
  const auto add = [&](const VariantFacts& facts, GridOrder order, const PointwiseChoice& choice) {
    variants.add(facts.condition(), PointwiseKernel(of, facts.facts(), order).make(choice), choice.text());
    if (lowered.choice.schedule.empty()) {
      lowered.choice = Choice{.schedule = "pointwise", .vector_axis = plan.axes().empty() ? "" : plan.axes().back().name, .width = choice.vector, .unroll = choice.unroll};
    }
  };
  const int32_t vector = vector_elements(of, plan, plan.axes().empty() ? nullptr : &plan.axes().back());
  const sym::Facts& known = of.graph.facts();
  if (flat) {
    const Expr count = plan.axes().empty() ? Expr(1) : plan.axes()[0].extent;
    work.vector = vector;
    work.columns = of.typical(count, int64_t{1} << 27);
    const PointwiseChoice choice = rank(work, of.target).at(0).choice;
    VariantFacts small(known);
    if (small.at_most(count, kSmallSize)) add(small, GridOrder::ColumnsFirst, choice);
    if (!variants.complete()) add(VariantFacts(known), GridOrder::Any, choice);
    lowered.kernels.push_back(variants.take("pointwise"));
    return lowered;
  }
  const LoopAxis& column = plan.axes().back();
  const Expr columns = column.extent;
  std::vector<const LoopAxis*> outer;
  for (size_t i = 0; i + 1 < plan.axes().size(); ++i) outer.push_back(&plan.axes()[i]);
  const Expr rows = extent_of(outer);
  work.rows = of.typical(rows, kManyRows);
  for (const int32_t lanes : {vector, 1}) {
    work.vector = lanes;
    // Classes of row lengths, in vectors: short rows put several of them side by side. Classes of one choice are one.
    std::vector<std::pair<int64_t, PointwiseChoice>> classes;
    const sym::Range range = sym::bounds(columns, known);
    for (const int64_t longest : {int64_t{8}, int64_t{16}, int64_t{32}, int64_t{256}, kSmallSize / lanes}) {
      if (range.low > longest * lanes) continue;
      work.columns = of.typical(columns, std::min({range.high, longest * lanes, int64_t{8192}}));
      const PointwiseChoice choice = rank(work, of.target).at(0).choice;
      if (!classes.empty() && classes.back().second == choice) classes.pop_back();
      classes.emplace_back(longest, choice);
      if (range.high <= longest * lanes) break;
    }
    for (const auto& [longest, choice] : classes) {
      VariantFacts facts(known);
      if (!align(of, plan, column, lanes, facts) || !facts.at_most(columns, longest * lanes) || !facts.small_symbols(of)) continue;
      if (longest > choice.threads_x) {
        VariantFacts few_rows = facts;
        if (few_rows.at_most(rows, kGridY * choice.threads_y * choice.unroll)) add(few_rows, GridOrder::ColumnsFirst, choice);
      }
      if (facts.at_most(rows, kSmallSize) && facts.at_most(columns, kGridY * choice.threads_x * lanes)) add(facts, GridOrder::RowsFirst, choice);
    }
    if (lanes == 1) break;
  }
  if (!variants.complete()) {
    work.vector = 1;
    work.columns = 8192;
    add(VariantFacts(known), GridOrder::Any, rank(work, of.target).at(0).choice);
  }
  lowered.kernels.push_back(variants.take("pointwise"));
  return lowered;
}

}  // namespace fuseloom::schedule
