// Transposes on CUDA: 64 x 64 tiles through shared memory. What lies along another axis than the results do (`across`) is
// loaded in its own order and read back in theirs; everything else is loaded ahead, in the results' order.
//
//     tile[inner][across], rows padded by one element, so that neither order meets the same bank twice
#include <algorithm>
#include <functional>

#include "base/check.h"
#include "schedule/cuda_variant.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using kernel::Binding;
using kernel::BufferId;
using sym::Expr;

namespace {

constexpr int64_t kTile = 64, kPitch = kTile + 1;
constexpr int64_t kThreads = 256;
constexpr int32_t kAheadBytes = 128;             // of a thread, loaded ahead

class TransposeKernel {
 public:
  TransposeKernel(const CudaGroup& of, const sym::Facts& facts, const std::string& across, int32_t vector)
      : of_(of), plan_(of.graph, of.group, of.accesses, AxisPlan::Merge::On, facts), build_(of.graph, of.group, plan_), vector_(vector),
        x_(std::min<int64_t>(32, kTile / vector)), y_(kThreads / x_) {
    for (const LoopAxis& axis : plan_.axes()) {
      if (axis.name == across) {
        across_ = &axis;
      } else {
        outer_.push_back(&axis);
      }
    }
    inner_ = outer_.back();
    outer_.pop_back();
  }

  LoweredKernel make() {
    declare_arguments(of_, build_);
    split_inputs();
    const Expr inner_tiles = sym::ceil_div(inner_->extent, kTile), across_tiles = sym::ceil_div(across_->extent, kTile);
    const Expr extent = extent_of(outer_);
    build_.open("b_", 0, inner_tiles * across_tiles * extent, Binding::GridX);
    build_.set_floor();
    const Expr block = Expr::symbol("b_");
    const Expr inner_low = build_.define("inner_low_", sym::mod(block, inner_tiles) * kTile);
    const Expr rest = build_.define("rest_", sym::floor_div(block, inner_tiles));
    build_.assume("inner_low_", {.low = 0, .high = sym::Range::kMax, .divisor = kTile});
    build_.assume("across_low_", {.low = 0, .high = sym::Range::kMax, .divisor = kTile});
    const Expr across_low = build_.define("across_low_", outer_.empty() ? rest * kTile : sym::mod(rest, across_tiles) * kTile);
    if (!outer_.empty()) define_digits(build_, outer_, sym::floor_div(rest, across_tiles));
    if (vector_ > 1) build_.assume_lanes("v_", vector_);
    // Phase 1: everything is loaded; the transposed operands along `across`.
    open_threads();
    each_vector(across_->name, across_low, across_->extent, inner_->name, inner_low, inner_->extent, [&](const Expr& along, const Expr& row, const Expr&) {
      for (const StagedInput& input : transposed_) {
        tiles_[input.use] = build_.shared(input.name("tile"), of_.graph.type(input.value).dtype, kTile * kPitch);
        build_.stage(input.value, input.use->index, input.use->guards, tiles_[input.use], row * kPitch + along);
      }
    });
    const auto in_order = [&](const std::function<void(const Expr&, const Expr&, const Expr&)>& body) {
      each_vector(inner_->name, inner_low, inner_->extent, across_->name, across_low, across_->extent, body);
    };
    if (!ahead_.empty()) {
      in_order([&](const Expr&, const Expr&, const Expr& slot) {
        for (const StagedInput& input : ahead_) {
          registers_[input.use] = build_.local(input.name("ahead"), of_.graph.type(input.value).dtype, kTile * kTile / kThreads);
          build_.stage(input.value, input.use->index, input.use->guards, registers_[input.use], slot);
        }
      });
    }
    close_threads();
    build_.append({kernel::Barrier{}});
    // Phase 2: the results, in their order.
    open_threads();
    in_order([&](const Expr& along, const Expr& row, const Expr& slot) {
      for (const StagedInput& input : transposed_) build_.set_resident(input.value, input.use->index, tiles_.at(input.use), along * kPitch + row);
      for (const StagedInput& input : ahead_) build_.set_resident(input.value, input.use->index, registers_.at(input.use), slot);
      build_.store(of_.group.outputs);
    });
    close_threads();
    build_.close();
    return build_.finish("transpose");
  }

 private:
  void split_inputs() {
    std::set<std::string> axes;
    for (const Axis& axis : of_.group.axes) axes.insert(axis.name);
    int32_t bytes = 0;
    for (const StagedInput& input : stageable_inputs(of_, axes)) {
      const Expr address = linear_index(of_.graph.type(input.value).shape, input.use->index);
      const std::optional<Expr> along = plan_.stride(address, *inner_), other = plan_.stride(address, *across_);
      const bool lies_across = other && other->is_const(1) && along && !along->is_const(0) && !along->is_const(1);
      if (lies_across) {
        transposed_.push_back(input);
      } else if (bytes + input.bytes * kTile * kTile / kThreads <= kAheadBytes) {
        bytes += static_cast<int32_t>(input.bytes * kTile * kTile / kThreads);
        ahead_.push_back(input);
      }
    }
  }
  void open_threads() {
    build_.open("ty_", 0, y_, Binding::ThreadY);
    build_.open("t_", 0, x_, Binding::ThreadX);
  }
  void close_threads() {
    build_.close();
    build_.close();
  }
  // A thread's vectors of the tile, along one axis; `body` gets the place in the tile along and across the vectors, and the
  // number of the element among the thread's own.
  void each_vector(const std::string& along, const Expr& along_low, const Expr& along_extent, const std::string& other, const Expr& other_low,
                   const Expr& other_extent, const std::function<void(const Expr&, const Expr&, const Expr&)>& body) {
    const int64_t columns = kTile / (x_ * vector_), rows = kTile / y_;
    const Expr column = columns > 1 ? Expr::symbol("c_") : Expr(0), row = rows > 1 ? Expr::symbol("u_") : Expr(0);
    if (rows > 1) build_.open("u_", 0, rows, Binding::Unroll);
    if (columns > 1) build_.open("c_", 0, columns, Binding::Unroll);
    build_.assume("along_", {.low = 0, .high = kTile - 1, .divisor = vector_});
    build_.assume("row_", {.low = 0, .high = kTile - 1});
    const Expr first = build_.define("along_", (column * x_ + Expr::symbol("t_")) * vector_);
    const Expr at = build_.define("row_", row * y_ + Expr::symbol("ty_"));
    const Expr lane = vector_ > 1 ? Expr::symbol("v_") : Expr(0);
    build_.set_axis(along, along_low + first + lane);
    build_.set_axis(other, other_low + at);
    build_.set_guards({sym::lt(along_low + first, along_extent), sym::lt(other_low + at, other_extent)});
    if (vector_ > 1) build_.open("v_", 0, vector_, Binding::Vector, vector_, 1);
    body(first + lane, at, (row * columns + column) * vector_ + lane);
    if (vector_ > 1) build_.close();
    build_.set_guards({});
    if (columns > 1) build_.close();
    if (rows > 1) build_.close();
  }

  const CudaGroup& of_;
  const AxisPlan plan_;
  LoopBuilder build_;
  const int32_t vector_;
  const int64_t x_, y_;                          // threads along and across the vectors
  std::vector<const LoopAxis*> outer_;
  const LoopAxis *inner_ = nullptr, *across_ = nullptr;
  std::vector<StagedInput> transposed_, ahead_;
  std::map<const Use*, BufferId> tiles_, registers_;
};

}  // namespace

LoweredGroup lower_cuda_transpose(const CudaGroup& of, const std::string& across) {
  const AxisPlan plan(of.graph, of.group, of.accesses);
  const LoopAxis* other = nullptr;
  for (const LoopAxis& axis : plan.axes()) {
    if (axis.name == across) other = &axis;
  }
  FL_CHECK(other != nullptr, "no axis {} to transpose", across);
  LoweredGroup lowered;
  VariantList variants;
  const int32_t vector = vector_elements(of, plan, &plan.axes().back());
  for (const int32_t lanes : {vector, 1}) {
    VariantFacts facts(of.graph.facts());
    const bool known = lanes == 1 || (facts.divisible(plan.axes().back().extent, lanes) && facts.divisible(other->extent, lanes));
    if (known) variants.add(facts.condition(), TransposeKernel(of, facts.facts(), across, lanes).make(), fmt::format("{} x {} tiles, vectors of {}", kTile, kTile, lanes));
    if (lanes == 1) break;
  }
  lowered.choice = Choice{.schedule = "transpose", .vector_axis = across, .width = vector, .unroll = 1};
  lowered.kernels.push_back(variants.take("transpose"));
  return lowered;
}

}  // namespace fuseloom::schedule
