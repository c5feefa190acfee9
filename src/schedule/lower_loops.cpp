#include "schedule/lower_loops.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/check.h"
#include "schedule/loop_builder.h"
#include "sym/evaluator.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using kernel::BufferId;
using sym::Expr;

int64_t hinted(const Expr& expr, const SizeHint& hint) {
  std::map<std::string, int64_t> values;
  for (const std::string& symbol : sym::symbols_of(expr)) {
    const auto found = hint.find(symbol);
    values[symbol] = found == hint.end() ? 64 : found->second;
  }
  return sym::evaluate(expr, values);
}

std::string Choice::text() const {
  std::string out = schedule;
  if (!vector_axis.empty()) out += fmt::format(", {} lanes of {} x {}", width, vector_axis, unroll);
  return out;
}

namespace {

constexpr int64_t kChunk = 8192;            // elements of the vector axis that one Core iteration of a pointwise kernel covers
constexpr int64_t kTransposeTile = 64;      // both sides of a transposed tile: 64 rows of 256 bytes stay in L1
constexpr int64_t kColumns = 1024;          // columns of an outer reduction whose accumulators lie in L1
constexpr int64_t kLongReduction = 32;      // outer reductions longer than this accumulate in L1 instead of registers
constexpr int kStoreCost = 8;               // a value at least this dear is kept for later loops over the row instead of recomputed

class LoopLowering {
 public:
  LoopLowering(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint)
      : graph_(graph), group_(group), hint_(hint), accesses_(accesses_of(graph, group)), plan_(graph, group, accesses_),
        build_(graph, group, plan_) {
    for (const LoopAxis& axis : plan_.axes()) {
      (axis.reduced ? folded_ : kept_).push_back(&axis);
      if (axis.reduced) folded_names_.insert(axis.members.begin(), axis.members.end());
    }
    choose_vector_axis();
    DType widest = DType::F32;
    for (const NodeId id : group.nodes) {
      for (const ValueId output : graph.node(id).outputs) {
        if (graph.type(output).dtype == DType::F64) widest = DType::F64;
      }
    }
    width_ = std::max<int32_t>(2, target.vector_bytes / static_cast<int32_t>(dtype_bytes(widest)));
    unroll_ = group.nodes.size() <= 6 ? 4 : group.nodes.size() <= 16 ? 2 : 1;
  }

  LoweredGroup run() {
    analyse();
    std::string kind = "pointwise";
    if (!folded_.empty()) {
      kind = vector_ == nullptr || vector_->reduced ? "inner" : "outer";
      kind += phases_ > 1 || has_wide_outputs() ? "_normalization" : "_reduction";
    }
    if (vector_ != nullptr && !vector_->reduced && !folded_.empty() && accumulate_in_memory()) {
      lower_columns();
    } else {
      const LoopAxis* across = folded_.empty() ? transposed_axis() : nullptr;
      if (across != nullptr) kind = "transpose";
      lower_rows(across);
    }
    LoweredGroup lowered;
    LoweredKernel kernel = build_.finish(kind);
    estimate(kernel);
    lowered.check_message = build_.check_message();
    lowered.choice = Choice{.schedule = kind, .vector_axis = vector_ == nullptr ? "" : vector_->name, .width = width_, .unroll = unroll_};
    lowered.kernels.push_back(std::move(kernel));
    return lowered;
  }

 private:
  // ---- choices -------------------------------------------------------------------------------------------------------

  // The axis along which most of the moved elements are neighbours.
  void choose_vector_axis() {
    double best = 0;
    for (const LoopAxis& axis : plan_.axes()) {
      double score = 0;
      for (const MemoryAccess& access : accesses_) {
        const std::optional<Expr> stride = plan_.stride(access.address, axis);
        if (!stride || !stride->is_const(1)) continue;
        const double count = static_cast<double>(std::max<int64_t>(1, hinted(op::count_of(graph_.type(access.value).shape), hint_)));
        score += count * (access.store ? 1.5 : 1.0);
      }
      if (vector_ == nullptr || score >= best) {
        best = score;
        vector_ = &axis;
      }
    }
  }

  // Another axis along which some large access is contiguous while it strides along the vector axis.
  const LoopAxis* transposed_axis() const {
    if (vector_ == nullptr) return nullptr;
    for (const MemoryAccess& access : accesses_) {
      const std::optional<Expr> along = plan_.stride(access.address, *vector_);
      if (!along || along->is_const(0) || along->is_const(1)) continue;
      for (const LoopAxis& axis : plan_.axes()) {
        if (&axis == vector_) continue;
        const std::optional<Expr> stride = plan_.stride(access.address, axis);
        if (stride && stride->is_const(1) && hinted(axis.extent, hint_) >= 8 && hinted(vector_->extent, hint_) >= 8) return &axis;
      }
    }
    return nullptr;
  }

  bool accumulate_in_memory() const {
    int64_t length = 1;
    for (const LoopAxis* axis : folded_) length *= std::max<int64_t>(1, hinted(axis->extent, hint_));
    if (length <= kLongReduction) return false;
    for (const NodeId id : reductions_) {
      const op::Combine combine = graph_.node(id).op->combine;
      if (combine == op::Combine::ArgMax || combine == op::Combine::ArgMin) return false;
    }
    return true;
  }

  // ---- what depends on what ------------------------------------------------------------------------------------------
  // A loop over the folded axes for each phase; reductions of one phase share a loop. `ready` of a value is the first loop
  // in which everything it needs is known.

  bool is_folded(const Index& index) const {
    for (const Expr& at : index) {
      for (const std::string& symbol : sym::symbols_of(at)) {
        if (folded_names_.count(symbol) != 0) return true;
      }
    }
    return false;
  }
  // Read at one position per iteration of the group's loops, not at one for every step of a small reduction.
  bool at_own_axes(ValueId value) const {
    std::set<std::string> symbols;
    for (const Expr& at : position(value)) sym::collect_symbols(at, symbols);
    for (const auto& [node, axes] : group_.local_axes) {
      if (std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) { return symbols.count(axis.name) != 0; })) return false;
    }
    return true;
  }
  bool wide(ValueId value) const { return wide_.count(value) != 0; }   // differs along the folded axes
  bool has_wide_outputs() const {
    return std::any_of(group_.outputs.begin(), group_.outputs.end(), [&](ValueId v) { return wide(v); });
  }

  void analyse() {
    for (const auto& [value, uses] : group_.uses) {
      for (const Use& use : uses) {
        if (is_folded(use.index)) wide_.insert(value);
      }
    }
    for (const NodeId id : group_.nodes) {
      const Node& node = graph_.node(id);
      const ValueId value = node.outputs[0];
      int ready = 0, cost = node.op->cost;
      for (const ValueId input : node.inputs) {
        if (!input.valid()) continue;
        const auto known = ready_.find(input);
        if (known != ready_.end()) ready = std::max(ready, known->second);
        if (wide(input) && cost_.count(input) != 0) cost += cost_[input];
      }
      if (loop_role(graph_, id) == LoopRole::Reduction) {
        phase_[id] = ready;
        reductions_.push_back(id);
        ready_[value] = ready + 1;
        phases_ = std::max(phases_, ready + 1);
        cost_[value] = 0;
      } else {
        ready_[value] = ready;
        cost_[value] = std::min(cost, 1 << 20);
      }
      in_group_.insert(value);
    }
    choose_kept();
  }

  // The wide values that each loop must have: operands of its reductions and the outputs it stores.
  std::vector<ValueId> roots_of(int loop) const {
    std::vector<ValueId> roots;
    for (const NodeId id : reductions_) {
      if (phase_.at(id) == loop) roots.push_back(graph_.node(id).inputs[0]);
    }
    for (const ValueId value : group_.outputs) {
      if (wide(value) && std::min(ready_.at(value), phases_) == loop) roots.push_back(value);
    }
    return roots;
  }

  void visit(ValueId value, std::set<ValueId>& seen, const std::function<bool(ValueId)>& stop) const {
    if (in_group_.count(value) == 0 || !wide(value) || !seen.insert(value).second || stop(value)) return;
    for (const ValueId input : graph_.producer(value)->inputs) {
      if (input.valid()) visit(input, seen, stop);
    }
  }

  // Wide values that a later loop needs again and that are dear: kept in a row buffer by the loop that has them first.
  void choose_kept() {
    std::map<ValueId, int> first;
    for (int loop = 0; loop <= phases_; ++loop) {
      std::set<ValueId> seen;
      for (const ValueId root : roots_of(loop)) {
        visit(root, seen, [&](ValueId value) {
          const auto earlier = first.find(value);
          if (earlier == first.end()) return false;
          const bool stored = std::find(group_.outputs.begin(), group_.outputs.end(), value) != group_.outputs.end();
          const bool dear = cost_.at(value) >= kStoreCost && group_.uses.at(value).size() == 1 && at_own_axes(value);
          if (!stored && dear) kept_values_[value] = earlier->second;
          return stored || dear;
        });
      }
      for (const ValueId value : seen) first.emplace(value, loop);
    }
  }

  // ---- emission ------------------------------------------------------------------------------------------------------

  // The Core loop over the product of `outer` and of the chunks of some axes; defines the outer axes and the chunks' bounds.
  struct Chunked {
    const LoopAxis* axis;
    int64_t size;
    Expr low, high;
  };
  bool open_core(const std::vector<const LoopAxis*>& outer, std::vector<Chunked>& chunked) {
    std::vector<LoopBuilder::Digit> digits;
    for (const LoopAxis* axis : outer) digits.push_back({axis->name, axis->extent});
    for (const Chunked& chunk : chunked) {
      digits.push_back({"chunk_" + chunk.axis->name, sym::simplify(sym::ceil_div(chunk.axis->extent, chunk.size), plan_.facts())});
    }
    std::vector<Expr> positions;
    const bool core = build_.open_core(digits, &positions);
    for (size_t i = 0; i < chunked.size(); ++i) {
      Chunked& chunk = chunked[i];
      if (digits[outer.size() + i].extent.is_const(1)) {
        chunk.low = 0;
        chunk.high = chunk.axis->extent;
        continue;
      }
      chunk.low = build_.define("low_" + chunk.axis->name, positions[outer.size() + i] * chunk.size);
      chunk.high = build_.define("high_" + chunk.axis->name, sym::min(chunk.axis->extent, chunk.low + chunk.size));
    }
    return core;
  }

  void open_vector(const Expr& low, const Expr& high) { build_.open(vector_->name, low, high, Binding::Vector, width_, unroll_); }

  void open_folded() {
    for (const LoopAxis* axis : folded_) {
      if (axis == vector_) continue;
      build_.open(axis->name, 0, axis->extent, Binding::Serial);
    }
    if (vector_ != nullptr && vector_->reduced) open_vector(0, vector_->extent);
  }
  void close_folded() {
    for (size_t i = 0; i < folded_.size(); ++i) build_.close();
  }

  const Index& position(ValueId value) const { return group_.uses.at(value)[0].index; }
  ValueId operand(NodeId reduction) const { return graph_.node(reduction).inputs[0]; }
  Index operand_position(NodeId reduction) const {
    // The operand's position as this reduction reads it (the operand may be read elsewhere too).
    const Node& node = graph_.node(reduction);
    std::vector<Expr> folded;
    std::vector<std::string> names;
    for (const Axis& axis : group_.axes) {
      if (axis.reduced) names.push_back(axis.name);
    }
    size_t next = 0;
    for (const int64_t axis : folded_axes(graph_, node)) {
      const bool one = graph_.type(node.inputs[0]).shape[static_cast<size_t>(axis)].is_const(1);
      folded.push_back(one ? Expr(0) : Expr::symbol(names[next++]));
    }
    return unfold_index(graph_, node, position(node.outputs[0]), folded);
  }
  Expr folded_index(NodeId reduction) const {
    const Node& node = graph_.node(reduction);
    const std::vector<int64_t> axes = folded_axes(graph_, node);
    return axes.empty() ? Expr(0) : operand_position(reduction)[static_cast<size_t>(axes[0])];
  }

  void store_outputs(const std::function<bool(ValueId)>& which) {
    std::vector<ValueId> values;
    std::copy_if(group_.outputs.begin(), group_.outputs.end(), std::back_inserter(values), which);
    build_.store(values, [&](ValueId value) -> const Index& { return position(value); });
  }

  // What every loop over the folded axes does besides reducing: store outputs that are ready, keep dear values.
  void emit_wide_stores(int loop) {
    store_outputs([&](ValueId value) { return wide(value) && std::min(ready_.at(value), phases_) == loop; });
    for (const auto& [value, at] : kept_values_) {
      if (at != loop || !row_buffers_) continue;
      const ScalarId scalar = build_.value_at(value, position(value));
      const BufferId buffer = build_.local(fmt::format("row{}", value.index), build_.dtype(scalar), row_size());
      kept_buffers_[value] = buffer;
      build_.append({kernel::Store{.buffer = buffer, .index = build_.simplified(row_position()), .value = scalar}});
    }
  }
  void make_resident(int loop) {
    for (const ValueId value : group_.outputs) {
      if (wide(value) && ready_.at(value) == loop && loop < phases_) {
        build_.set_resident(value, build_.argument(value, kernel::Access::Write), linear_index(graph_.type(value).shape, position(value)));
      }
    }
    for (const auto& [value, at] : kept_values_) {
      if (at == loop && kept_buffers_.count(value) != 0) build_.set_resident(value, kept_buffers_[value], row_position());
    }
  }
  Expr row_size() const {
    Expr size = 1;
    for (const LoopAxis* axis : folded_) size = size * axis->extent;
    return size;
  }
  Expr row_position() const {
    Expr position = 0;
    for (const LoopAxis* axis : folded_) position = position * axis->extent + Expr::symbol(axis->name);
    return position;
  }

  // A row at a time (or a pointwise chunk): accumulators are scalars, or vectors when the vector axis is kept.
  void lower_rows(const LoopAxis* across) {
    row_buffers_ = vector_ == nullptr || vector_->reduced;
    std::vector<const LoopAxis*> outer;
    for (const LoopAxis* axis : kept_) {
      if (axis != vector_ && axis != across) outer.push_back(axis);
    }
    const bool vector_is_kept = vector_ != nullptr && !vector_->reduced;
    std::vector<Chunked> chunked;
    if (across != nullptr) chunked.push_back({across, kTransposeTile, 0, 0});
    if (vector_is_kept) chunked.push_back({vector_, across != nullptr ? kTransposeTile : folded_.empty() ? kChunk : kColumns, 0, 0});
    const bool core = open_core(outer, chunked);
    if (across != nullptr) build_.open(across->name, chunked[0].low, chunked[0].high, Binding::Serial);
    if (vector_is_kept) open_vector(chunked.back().low, chunked.back().high);

    for (int loop = 0; loop < phases_; ++loop) {
      std::vector<kernel::Accumulator> accumulators;
      std::vector<NodeId> here;
      for (const NodeId id : reductions_) {
        if (phase_[id] != loop) continue;
        here.push_back(id);
        accumulators.push_back(accumulator_of(id));
      }
      build_.open_reduce(accumulators);
      open_folded();
      for (size_t i = 0; i < here.size(); ++i) {
        ScalarId value = build_.value_at(operand(here[i]), operand_position(here[i]));
        if (accumulators[i].value.valid() && build_.dtype(value) == DType::Bool) value = build_.apply("cast", DType::U8, {value});
        build_.accumulate(accumulators[i].result, value, folded_index(here[i]));
      }
      emit_wide_stores(loop);
      close_folded();
      build_.close();
      for (size_t i = 0; i < here.size(); ++i) {
        const DType declared = graph_.type(graph_.node(here[i]).outputs[0]).dtype;
        build_.set_result(here[i], build_.round_to(declared, accumulators[i].result));
      }
      make_resident(loop);
    }
    if (!folded_.empty() && std::any_of(group_.outputs.begin(), group_.outputs.end(), [&](ValueId v) { return wide(v) && ready_.at(v) >= phases_; })) {
      open_folded();
      emit_wide_stores(phases_);
      close_folded();
    }
    store_outputs([&](ValueId value) { return !wide(value); });
    if (vector_is_kept) build_.close();
    if (across != nullptr) build_.close();
    if (core) build_.close();
  }

  kernel::Accumulator accumulator_of(NodeId id) {
    const Node& node = graph_.node(id);
    kernel::Accumulator accumulator{.combine = node.op->combine};
    accumulator.result = build_.reserve(compute_dtype(graph_.type(node.outputs[0]).dtype));
    if (node.op->combine == op::Combine::ArgMax || node.op->combine == op::Combine::ArgMin) {
      accumulator.value = build_.reserve(compared_dtype(node));
      accumulator.last_of_equals = node.attrs.integer("select_last", 0) != 0;
    }
    return accumulator;
  }

  // What an arg-reduction compares: kernels order numbers, so truth values become 0 and 1.
  DType compared_dtype(const Node& node) const {
    const DType dtype = compute_dtype(graph_.type(node.inputs[0]).dtype);
    return dtype == DType::Bool ? DType::U8 : dtype;
  }

  // Columns at a time: the accumulators of kColumns columns lie in L1 while the rows stream by.
  void lower_columns() {
    row_buffers_ = false;
    std::vector<const LoopAxis*> outer;
    for (const LoopAxis* axis : kept_) {
      if (axis != vector_) outer.push_back(axis);
    }
    std::vector<Chunked> chunked{{vector_, kColumns, 0, 0}};
    const bool core = open_core(outer, chunked);
    const Expr low = chunked[0].low, high = chunked[0].high;
    const Expr column = Expr::symbol(vector_->name) - low;
    const Expr size = sym::min(vector_->extent, kColumns);
    const auto keep_column = [&](ValueId value, const std::function<ScalarId()>& make) {
      open_vector(low, high);
      const ScalarId scalar = make();
      const BufferId buffer = build_.local(fmt::format("column{}", value.index), build_.dtype(scalar), size);
      build_.append({kernel::Store{.buffer = buffer, .index = build_.simplified(column), .value = scalar}});
      build_.close();
      build_.set_resident(value, buffer, column);
      return buffer;
    };
    const auto open_rows = [&] {
      for (const LoopAxis* axis : folded_) build_.open(axis->name, 0, axis->extent, Binding::Serial);
      open_vector(low, high);
    };
    const auto close_rows = [&] {
      for (size_t i = 0; i <= folded_.size(); ++i) build_.close();
    };
    for (int loop = 0; loop <= phases_; ++loop) {
      const std::vector<ValueId> roots = roots_of(loop);
      if (roots.empty()) continue;
      // Narrow values that the loop needs and that are not free are computed once per column, before it.
      std::set<ValueId> seen, narrow;
      for (const ValueId root : roots) {
        visit(root, seen, [](ValueId) { return false; });
      }
      for (const ValueId value : seen) {
        for (const ValueId input : graph_.producer(value)->inputs) {
          if (input.valid() && in_group_.count(input) != 0 && !wide(input) && ready_.at(input) > 0 && resident_.count(input) == 0 && at_own_axes(input)) narrow.insert(input);
        }
      }
      for (const ValueId value : narrow) {
        keep_column(value, [&] { return build_.value_at(value, position(value)); });
        resident_.insert(value);
      }
      std::vector<std::pair<NodeId, BufferId>> here;
      for (const NodeId id : reductions_) {
        if (phase_[id] != loop) continue;
        const ValueId value = graph_.node(id).outputs[0];
        const DType type = compute_dtype(graph_.type(value).dtype);
        here.emplace_back(id, keep_column(value, [&] { return build_.identity_of(graph_.node(id).op->combine, type); }));
        resident_.insert(value);
      }
      open_rows();
      for (const auto& [id, buffer] : here) {
        const DType type = compute_dtype(graph_.type(graph_.node(id).outputs[0]).dtype);
        const ScalarId value = build_.value_at(operand(id), operand_position(id));
        const ScalarId before = build_.let(type, kernel::Load{.buffer = buffer, .index = build_.simplified(column)});
        const ScalarId after = build_.combine(graph_.node(id).op->combine, type, before, value);
        build_.append({kernel::Store{.buffer = buffer, .index = build_.simplified(column), .value = after}});
      }
      emit_wide_stores(loop);
      close_rows();
      make_resident(loop);
    }
    bool narrow_outputs = false;
    for (const ValueId value : group_.outputs) narrow_outputs = narrow_outputs || !wide(value);
    if (narrow_outputs) {
      open_vector(low, high);
      store_outputs([&](ValueId value) { return !wide(value); });
      build_.close();
    }
    if (core) build_.close();
  }

  void estimate(LoweredKernel& kernel) const {
    Expr count = 1;
    for (const Axis& axis : group_.axes) count = count * axis.extent;
    int cost = 0;
    Expr in_place = 0;
    for (const NodeId id : group_.nodes) {
      cost += graph_.node(id).op->cost;
      const auto local = group_.local_axes.find(id);
      if (local == group_.local_axes.end()) continue;
      Expr folded = 1;
      for (const Axis& axis : local->second) folded = folded * axis.extent;
      in_place = in_place + folded;
    }
    std::set<ValueId> moved(group_.inputs.begin(), group_.inputs.end());
    moved.insert(group_.outputs.begin(), group_.outputs.end());
    kernel.bytes = 0;
    for (const ValueId value : moved) kernel.bytes = kernel.bytes + op::count_of(graph_.type(value).shape) * dtype_bytes(graph_.type(value).dtype);
    // A core moves about 10 bytes and does about 20 scalar costs in a nanosecond.
    kernel.work = sym::floor_div(kernel.bytes, 10) + sym::floor_div(count * (in_place + cost), 20);
  }

  const Graph& graph_;
  const Group& group_;
  const SizeHint& hint_;
  const std::vector<MemoryAccess> accesses_;
  const AxisPlan plan_;
  LoopBuilder build_;
  std::vector<const LoopAxis*> kept_, folded_;
  std::set<std::string> folded_names_;
  const LoopAxis* vector_ = nullptr;
  int32_t width_ = 16, unroll_ = 1;

  std::set<ValueId> wide_, in_group_, resident_;
  std::map<ValueId, int> ready_, cost_;
  std::map<NodeId, int> phase_;
  std::vector<NodeId> reductions_;
  int phases_ = 0;
  std::map<ValueId, int> kept_values_;           // → the loop that has it first
  std::map<ValueId, BufferId> kept_buffers_;
  bool row_buffers_ = false;
};

}  // namespace

LoweredGroup lower_loops(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint) {
  return LoopLowering(graph, group, target, hint).run();
}

}  // namespace fuseloom::schedule
