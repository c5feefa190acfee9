#include "schedule/lower_loops.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/check.h"
#include "schedule/loop_builder.h"
#include "schedule/phase_plan.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using kernel::BufferId;
using sym::Expr;

namespace {

constexpr int64_t kChunk = 8192;            // elements of the vector axis that one Core iteration of a pointwise kernel covers
constexpr int64_t kTransposeTile = 64;      // both sides of a tile whose strided accesses stay elements: 64 rows of 256 bytes stay in L1
// A tile that is turned over in squares: its rows are long enough for the memory's pages and streams on the side that is
// written along, and whole pairs of cache lines on the other. It stays in L2.
constexpr int64_t kTileRowBytes = 2048, kTileColumnBytes = 128, kMostTileRow = 1024;
constexpr int64_t kColumns = 1024;          // columns of an outer reduction whose accumulators lie in L1
constexpr int64_t kLongReduction = 32;      // outer reductions longer than this accumulate in L1 instead of registers

class LoopLowering {
 public:
  LoopLowering(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint)
      : graph_(graph), group_(group), hint_(hint), accesses_(accesses_of(graph, group)), plan_(graph, group, accesses_),
        build_(graph, group, plan_), phase_(graph, group) {
    for (const LoopAxis& axis : plan_.axes()) {
      (axis.reduced ? folded_ : kept_).push_back(&axis);
    }
    choose_vector_axis();
    DType widest = DType::F32;
    for (const NodeId id : group.nodes) {
      for (const ValueId output : graph.node(id).outputs) {
        if (graph.type(output).dtype == DType::F64) widest = DType::F64;
      }
    }
    width_ = std::max<int32_t>(2, target.vector_bytes / static_cast<int32_t>(dtype_bytes(widest)));
  }

  LoweredGroup run() {
    std::string kind = "pointwise";
    if (!folded_.empty()) {
      kind = vector_ == nullptr || vector_->reduced ? "inner" : "outer";
      kind += phase_.phases() > 1 || phase_.has_wide_outputs() ? "_normalization" : "_reduction";
    }
    if (vector_ != nullptr && !vector_->reduced && !folded_.empty() && accumulate_in_memory()) {
      lower_columns();
    } else {
      const LoopAxis* across = folded_.empty() ? transposed_axis() : nullptr;
      std::vector<Tile> tiles;
      if (across != nullptr) {
        kind = "transpose";
        tiles = tiles_across(*across);
      }
      if (tiles.empty()) lower_rows(across);
      else lower_tiles(*across, std::move(tiles));
    }
    LoweredGroup lowered;
    LoweredKernel kernel = build_.finish(kind);
    estimate(kernel);
    lowered.choice = Choice{.schedule = kind, .vector_axis = vector_ == nullptr ? "" : vector_->name, .width = width_};
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
    for (const NodeId id : phase_.reductions()) {
      const op::Combine combine = graph_.node(id).op->combine;
      if (combine == op::Combine::ArgMax || combine == op::Combine::ArgMin) return false;
    }
    return true;
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

  void open_vector(const Expr& low, const Expr& high) {
    build_.open(vector_->name, low, high, Binding::Vector, width_, LoopBuilder::kByBody);
  }

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

  void store_outputs(const std::function<bool(ValueId)>& which) {
    std::vector<ValueId> values;
    std::copy_if(group_.outputs.begin(), group_.outputs.end(), std::back_inserter(values), which);
    build_.store(values);
  }

  // What every loop over the folded axes does besides reducing: store outputs that are ready, keep dear values.
  void emit_wide_stores(int loop) {
    store_outputs([&](ValueId value) { return phase_.wide(value) && phase_.stored_in(value) == loop; });
    for (const auto& [value, at] : phase_.repeated()) {
      if (at != loop || !row_buffers_) continue;
      const ScalarId scalar = build_.value_at(value, phase_.position(value));
      const BufferId buffer = build_.local(fmt::format("row{}", value.index), build_.dtype(scalar), row_size());
      kept_buffers_[value] = buffer;
      build_.append({kernel::Store{.buffer = buffer, .index = build_.simplified(row_position()), .value = scalar}});
    }
  }
  void make_resident(int loop) {
    for (const ValueId value : group_.outputs) {
      if (phase_.wide(value) && phase_.ready(value) == loop && loop < phase_.phases()) {
        build_.set_resident(value, build_.argument(value, kernel::Access::Write), linear_index(graph_.type(value).shape, phase_.position(value)));
      }
    }
    for (const auto& [value, at] : phase_.repeated()) {
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

  // An access along another axis than the vector's, by way of a tile: contiguous along `across`, `stride` along the vector axis.
  struct Tile {
    ValueId value;
    Index index;
    Expr address, stride;
    bool stored;
    BufferId buffer;
  };
  std::vector<Tile> tiles_across(const LoopAxis& across) const {
    std::vector<Tile> tiles;
    for (const auto& [value, uses] : group_.uses) {
      const op::TensorType& type = graph_.type(value);
      const bool stored = phase_.computed(value);
      if (is_complex(type.dtype) || (stored && std::find(group_.outputs.begin(), group_.outputs.end(), value) == group_.outputs.end())) continue;
      for (size_t u = 0; u < (stored ? 1 : uses.size()); ++u) {
        if (!uses[u].guards.empty() || uses[u].index.size() != type.shape.size()) continue;
        const Expr address = linear_index(type.shape, uses[u].index);
        const std::optional<Expr> contiguous = plan_.stride(address, across), stride = plan_.stride(address, *vector_);
        if (!contiguous || !contiguous->is_const(1) || !stride || stride->is_const(0) || stride->is_const(1)) continue;
        tiles.push_back({.value = value, .index = uses[u].index, .address = plan_.rewrite(address), .stride = *stride, .stored = stored});
      }
    }
    return tiles;
  }

  // Reading: before the tile's loops. Storing: behind them.
  void turn(const Tile& tile, const LoopAxis& across, const Chunked& along, const Chunked& beside, int64_t pitch) {
    const Expr first = sym::substitute(tile.address, {{vector_->name, along.low}, {across.name, beside.low}});
    const Expr rows = build_.simplified(along.high - along.low), columns = build_.simplified(beside.high - beside.low);
    const BufferId memory = build_.argument(tile.value, tile.stored ? kernel::Access::Write : kernel::Access::Read);
    if (tile.stored) {
      build_.append({kernel::Transpose{.target = memory, .target_index = build_.simplified(first), .target_pitch = tile.stride, .source = tile.buffer,
                                       .source_pitch = pitch, .rows = columns, .columns = rows}});
    } else {
      build_.append({kernel::Transpose{.target = tile.buffer, .target_pitch = pitch, .source = memory, .source_index = build_.simplified(first),
                                       .source_pitch = tile.stride, .rows = rows, .columns = columns}});
    }
  }

  // Pointwise, with accesses that are contiguous along another axis than the stores: tile by tile, these accesses turned over
  // in local memory so that every loop runs along its memory.
  void lower_tiles(const LoopAxis& across, std::vector<Tile> tiles) {
    int64_t bytes = 1;
    for (const Tile& tile : tiles) bytes = std::max<int64_t>(bytes, dtype_bytes(graph_.type(tile.value).dtype));
    const int64_t row = std::min(kMostTileRow, kTileRowBytes / bytes), column = std::max<int64_t>(16, kTileColumnBytes / bytes);
    std::vector<const LoopAxis*> outer;
    for (const LoopAxis* axis : kept_) {
      if (axis != vector_ && axis != &across) outer.push_back(axis);
    }
    std::vector<Chunked> chunked{{vector_, row, 0, 0}, {&across, column, 0, 0}};
    const bool core = open_core(outer, chunked);
    const Expr place = (Expr::symbol(across.name) - chunked[1].low) * row + (Expr::symbol(vector_->name) - chunked[0].low);
    for (size_t i = 0; i < tiles.size(); ++i) {
      Tile& tile = tiles[i];
      tile.buffer = build_.local(fmt::format("tile{}", i), graph_.type(tile.value).dtype, row * column);
      if (tile.stored) {
        build_.set_store_tile(tile.value, tile.buffer, place);
      } else {
        turn(tile, across, chunked[0], chunked[1], row);
        build_.set_resident(tile.value, tile.index, tile.buffer, place);
      }
    }
    build_.open(across.name, chunked[1].low, chunked[1].high, Binding::Serial);
    open_vector(chunked[0].low, chunked[0].high);
    store_outputs([](ValueId) { return true; });
    build_.close();
    build_.close();
    for (const Tile& tile : tiles) {
      if (tile.stored) turn(tile, across, chunked[0], chunked[1], row);
    }
    if (core) build_.close();
  }

  // While a row is worked on, the next one comes: the passes over a row that lies in a near cache leave the memory idle.
  void prefetch_next_rows() {
    if (phase_.phases() == 0 || vector_ == nullptr || !vector_->reduced || folded_.size() != 1 || kept_.empty()) return;
    std::set<std::pair<ValueId, Expr>> seen;
    for (const MemoryAccess& access : accesses_) {
      if (access.store || !access.guards.empty() || phase_.computed(access.value)) continue;
      const std::optional<Expr> along = plan_.stride(access.address, *vector_), next = plan_.stride(access.address, *kept_.back());
      if (!along || !along->is_const(1) || !next || next->is_const(0)) continue;
      const Expr index = build_.simplified(plan_.rewrite(access.address) + *next);
      if (!seen.insert({access.value, index}).second) continue;
      build_.append({kernel::Prefetch{.buffer = build_.argument(access.value, kernel::Access::Read), .index = index}});
    }
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

    for (int loop = 0; loop < phase_.phases(); ++loop) {
      std::vector<kernel::Accumulator> accumulators;
      std::vector<NodeId> here;
      for (const NodeId id : phase_.reductions()) {
        if (phase_.phase(id) != loop) continue;
        here.push_back(id);
        accumulators.push_back(build_.accumulator_of(id));
      }
      build_.open_reduce(accumulators);
      open_folded();
      for (size_t i = 0; i < here.size(); ++i) {
        const ScalarId value = build_.value_at(phase_.operand(here[i]), phase_.operand_position(here[i]));
        build_.accumulate(accumulators[i], value, phase_.folded_index(here[i]));
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
    if (!folded_.empty() && std::any_of(group_.outputs.begin(), group_.outputs.end(), [&](ValueId v) { return phase_.wide(v) && phase_.ready(v) >= phase_.phases(); })) {
      open_folded();
      prefetch_next_rows();
      emit_wide_stores(phase_.phases());
      close_folded();
    }
    store_outputs([&](ValueId value) { return !phase_.wide(value); });
    if (vector_is_kept) build_.close();
    if (across != nullptr) build_.close();
    if (core) build_.close();
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
    for (int loop = 0; loop <= phase_.phases(); ++loop) {
      const std::vector<ValueId> roots = phase_.roots_of(loop);
      if (roots.empty()) continue;
      // Narrow values that the loop needs and that are not free are computed once per column, before it.
      std::set<ValueId> seen, narrow;
      for (const ValueId root : roots) {
        phase_.visit(root, seen, [](ValueId) { return false; });
      }
      for (const ValueId value : seen) {
        for (const ValueId input : graph_.producer(value)->inputs) {
          if (input.valid() && phase_.computed(input) && !phase_.wide(input) && phase_.ready(input) > 0 && resident_.count(input) == 0 && phase_.at_own_axes(input)) narrow.insert(input);
        }
      }
      for (const ValueId value : narrow) {
        keep_column(value, [&] { return build_.value_at(value, phase_.position(value)); });
        resident_.insert(value);
      }
      std::vector<std::pair<NodeId, BufferId>> here;
      for (const NodeId id : phase_.reductions()) {
        if (phase_.phase(id) != loop) continue;
        const ValueId value = graph_.node(id).outputs[0];
        const DType type = compute_dtype(graph_.type(value).dtype);
        here.emplace_back(id, keep_column(value, [&] { return build_.identity_of(graph_.node(id).op->combine, type); }));
        resident_.insert(value);
      }
      open_rows();
      for (const auto& [id, buffer] : here) {
        const DType type = compute_dtype(graph_.type(graph_.node(id).outputs[0]).dtype);
        const ScalarId value = build_.value_at(phase_.operand(id), phase_.operand_position(id));
        const ScalarId before = build_.let(type, kernel::Load{.buffer = buffer, .index = build_.simplified(column)});
        const ScalarId after = build_.combine(graph_.node(id).op->combine, type, before, value);
        build_.append({kernel::Store{.buffer = buffer, .index = build_.simplified(column), .value = after}});
      }
      emit_wide_stores(loop);
      close_rows();
      make_resident(loop);
    }
    bool narrow_outputs = false;
    for (const ValueId value : group_.outputs) narrow_outputs = narrow_outputs || !phase_.wide(value);
    if (narrow_outputs) {
      open_vector(low, high);
      store_outputs([&](ValueId value) { return !phase_.wide(value); });
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
    kernel.bytes = moved_bytes(graph_, group_);
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
  const LoopAxis* vector_ = nullptr;
  int32_t width_ = 16;

  const PhasePlan phase_;
  std::set<ValueId> resident_;
  std::map<ValueId, BufferId> kept_buffers_;
  bool row_buffers_ = false;
};

}  // namespace

LoweredGroup lower_loops(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint) {
  return LoopLowering(graph, group, target, hint).run();
}

}  // namespace fuseloom::schedule
