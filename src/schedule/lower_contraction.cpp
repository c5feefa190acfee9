#include "schedule/lower_contraction.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "schedule/loop_builder.h"
#include "schedule/window_copy.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using sym::Expr;

namespace {

constexpr int64_t kBlockM = 384, kBlockN = 512;   // one Core iteration's share of the result
constexpr int64_t kLongSum = 2048;                // convolutions that sum over more take smaller blocks: all of k is packed
constexpr const char* kM = "m_";
constexpr const char* kN = "n_";
constexpr const char* kK = "k_";
constexpr const char* kRow = "row_";

class ContractionLowering {
 public:
  ContractionLowering(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint)
      : graph_(graph), group_(group), hint_(hint), node_(graph.node(group.contraction)), value_(node_.outputs[0]),
        accesses_(accesses_of(graph, group)), plan_(graph, group, accesses_, merging(graph, group, accesses_)), build_(graph, group, plan_) {
    convolution_ = node_.op->name == "conv";
    windowed_ = is_windowed(graph, node_);
    dtype_ = graph.type(value_).dtype == DType::F64 ? DType::F64 : DType::F32;
    const int32_t lanes = std::max<int32_t>(2, target.vector_bytes / static_cast<int32_t>(dtype_bytes(dtype_)));
    lanes_ = lanes;
    tile_n_ = 2 * lanes;
    wide_ = target.vector_registers >= 32;
    tile_m_ = wide_ ? 14 : 6;
    map_axes();
    if (m_size_.is_const()) tile_m_ = static_cast<int32_t>(std::clamp<int64_t>(*m_size_.as_const(), 1, tile_m_));
  }

  LoweredGroup run() {
    LoweredGroup lowered;
    // One Core iteration per batch entry and block of the result.
    std::vector<LoopBuilder::Digit> digits;
    for (const LoopAxis* axis : batch_) digits.push_back({axis->name, axis->extent});
    if (groups_ > 1) digits.push_back({"group_", groups_});
    digits.push_back({"m_block_", sym::simplify(sym::ceil_div(m_size_, block_m()), plan_.facts())});
    digits.push_back({"n_block_", sym::simplify(n_blocks(), plan_.facts())});
    std::vector<Expr> positions;
    const bool core = build_.open_core(digits, &positions);
    const Expr m_low = build_.name("m_low_", positions[digits.size() - 2] * block_m());
    const Expr m_count = build_.name("m_count_", sym::min(block_m(), m_size_ - m_low));
    const Expr n_low = build_.name("n_low_", positions.back() * n_step());
    const Expr n_limit = build_.name("n_limit_", sym::min(n_step(), n_total() - n_low));     // columns, or rows of a convolution
    const Expr n_count = row_axis_ == nullptr ? n_limit : build_.name("n_count_", n_limit * window_->pitch());
    if (windowed_) {
      window_buffer_ = build_.local("window", dtype_, window_->elements());
      window_->fill(build_, window_buffer_, block_position(n_low), row_axis_ == nullptr ? Expr(1) : n_limit,
                    row_axis_ == nullptr ? n_limit : column_size_, lanes_);
    }

    kernel::Contract contract{.m_axis = kM, .n_axis = kN, .k_axis = kK, .m_size = m_count, .n_size = n_count, .k_size = k_size_, .dtype = dtype_};
    contract.tile_m = tile_m_;
    contract.tile_n = tile_n_;
    contract.block_k = wide_ ? 512 : 384;
    contract.block_m = (wide_ ? 112 : 96) / tile_m_ * tile_m_;
    contract.block_n = static_cast<int32_t>(kBlockN);
    if (row_axis_ != nullptr) {
      contract.row_axis = kRow;
      contract.row_pitch = window_->pitch();
      contract.row_size = column_size_;
    }
    for (const bool left : {true, false}) {
      const std::optional<Expr> size = prepared_size(left);
      if (size) {
        lowered.prepared.push_back(pack(left, *size));
        const kernel::BufferId buffer = build_.argument(Argument{.kind = Argument::Kind::Prepared, .prepared = static_cast<int>(lowered.prepared.size()) - 1},
                                                        left ? "lhs_packed" : "rhs_packed", dtype_, op::count_of(lowered.prepared.back().type.shape), kernel::Access::Read);
        const int64_t tile = left ? tile_m_ : tile_n_;
        const Expr panels = sym::ceil_div(*size, tile);
        // Blocks begin at whole panels: block sizes are multiples of the tiles.
        Expr offset = (left ? m_low : n_low) * k_size_;
        if (left && groups_ > 1) offset = offset + Expr::symbol("group_") * panels * tile * k_size_;
        (left ? contract.lhs_packed : contract.rhs_packed) = buffer;
        (left ? contract.lhs_offset : contract.rhs_offset) = offset;
        continue;
      }
      build_.open_block({left ? kM : kN, kK});
      const ScalarId value = operand(build_, left, left ? m_low : n_low);
      kernel::Body body = build_.close_block();
      (left ? contract.lhs : contract.rhs) = std::move(body);
      (left ? contract.lhs_value : contract.rhs_value) = value;
    }
    contract.accumulator = build_.reserve(dtype_);
    build_.open_block({kM, kN, kRow});
    define_m(build_, m_low);
    if (row_axis_ != nullptr) {
      build_.define(row_axis_->name, n_low + Expr::symbol(kRow));
      if (column_axis_ != nullptr) build_.define(column_axis_->name, Expr::symbol(kN));
    } else {
      define_n(build_, n_low);
    }
    build_.pin(contract.accumulator);
    ScalarId result = contract.accumulator;
    const DType declared = graph_.type(value_).dtype;
    if (convolution_ && node_.inputs.size() > 2 && node_.inputs[2].valid()) {
      result = build_.apply("add", dtype_, {result, build_.value_at(node_.inputs[2], {position()[1]})});
    }
    build_.set_result(group_.contraction, build_.round_to(declared, result));
    build_.store(group_.outputs);
    contract.epilogue = build_.close_block();
    build_.append({std::move(contract)});
    if (core) build_.close();

    LoweredKernel kernel = build_.finish("contraction");
    Expr count = k_size_;
    for (const Axis& axis : group_.axes) count = count * axis.extent;
    kernel.bytes = moved_bytes(graph_, group_);
    kernel.work = sym::floor_div(count, 30) + sym::floor_div(kernel.bytes, 20);   // about 30 multiply-adds and 20 bytes in a nanosecond
    lowered.choice = Choice{.schedule = fmt::format("contraction, tile {} x {}", tile_m_, tile_n_), .vector_axis = kN, .width = tile_n_ / 2};
    lowered.kernels.push_back(std::move(kernel));
    return lowered;
  }

 private:
  // The two matrix axes must stay apart; they would merge where every access allows it (a contraction over one element).
  static AxisPlan::Merge merging(const Graph& graph, const Group& group, const std::vector<MemoryAccess>& accesses) {
    if (is_windowed(graph, graph.node(group.contraction))) return AxisPlan::Merge::Off;
    const Index& at = group.uses.at(graph.node(group.contraction).outputs[0])[0].index;
    const AxisPlan merged(graph, group, accesses);
    for (const LoopAxis& axis : merged.axes()) {
      int64_t matrix_axes = 0;
      for (size_t d = at.size() < 2 ? 0 : at.size() - 2; d < at.size(); ++d) {
        if (at[d].is_symbol() && std::find(axis.members.begin(), axis.members.end(), at[d].name()) != axis.members.end()) ++matrix_axes;
      }
      if (matrix_axes > 1 && graph.node(group.contraction).op->name == "matmul") return AxisPlan::Merge::Off;
    }
    return AxisPlan::Merge::On;
  }

  const Index& position() const { return group_.uses.at(value_)[0].index; }
  int64_t block_m() const { return std::max<int64_t>(1, kBlockM / tile_m_) * tile_m_; }

  const LoopAxis* loop_axis_of(const Expr& at) const {
    if (!at.is_symbol()) return nullptr;
    for (const LoopAxis& axis : plan_.axes()) {
      if (std::find(axis.members.begin(), axis.members.end(), at.name()) != axis.members.end()) return &axis;
    }
    return nullptr;
  }

  void map_axes() {
    const Index& at = position();
    if (convolution_) {
      m_axis_ = loop_axis_of(at[1]);
      groups_ = node_.attrs.integer("groups", 1);
      if (windowed_) {
        column_axis_ = loop_axis_of(at.back());
        column_size_ = graph_.type(value_).shape.back();
        if (at.size() > 3) row_axis_ = loop_axis_of(at[at.size() - 2]);
      } else {
        // One element of the input for each of the result: the spatial axes are one wherever the addresses allow it.
        for (size_t d = 2; d < at.size(); ++d) {
          if (const LoopAxis* axis = loop_axis_of(at[d])) n_axis_ = axis;
        }
      }
    } else {
      const size_t a_rank = graph_.type(node_.inputs[0]).shape.size(), b_rank = graph_.type(node_.inputs[1]).shape.size();
      const LoopAxis* last = at.empty() ? nullptr : loop_axis_of(at.back());
      if (b_rank == 1) {
        // A product with a vector: its rows are the lanes.
        swapped_ = true;
        if (a_rank > 1) n_axis_ = last;
      } else {
        n_axis_ = last;
        if (a_rank > 1) m_axis_ = loop_axis_of(at[at.size() - 2]);
      }
    }
    m_size_ = m_axis_ == nullptr ? Expr(1) : m_axis_->extent;
    if (groups_ > 1) {
      FL_CHECK(m_axis_ != nullptr, "a grouped convolution with one output channel");
      m_size_ = sym::floor_div(m_size_, groups_);
    }
    if (windowed_ && row_axis_ == nullptr) n_axis_ = column_axis_;
    n_size_ = n_axis_ == nullptr ? Expr(1) : n_axis_->extent;
    for (const LoopAxis& axis : plan_.axes()) {
      if (&axis != row_axis_ && &axis != column_axis_ && &axis != m_axis_ && &axis != n_axis_) batch_.push_back(&axis);
    }
    k_size_ = 1;
    for (const Axis& axis : group_.local_axes.at(group_.contraction)) k_size_ = k_size_ * axis.extent;
    if (!windowed_) return;
    block_n_ = k_size_.is_const() && *k_size_.as_const() <= kLongSum ? kBlockN : kBlockN / 4;
    if (row_axis_ == nullptr) {
      window_.emplace(graph_, node_, 1, sym::min(column_size_, block_n_));
      return;
    }
    rows_ = sym::max(1, sym::floor_div(block_n_, column_size_ + WindowCopy::reach(graph_, node_, position().size() - 3)));
    rows_ = sym::min(rows_, row_axis_->extent);
    window_.emplace(graph_, node_, rows_, column_size_);
  }

  // More than one element of the input for an element of the result, or some that are not there.
  static bool is_windowed(const Graph& graph, const Node& node) {
    if (node.op->name != "conv") return false;
    const size_t spatial = graph.type(node.inputs[0]).shape.size() - 2;
    if (spatial == 0) return false;
    const std::vector<Expr> extents = window_extents(graph, node);
    const std::vector<int64_t> strides = node.attrs.integers("strides", std::vector<int64_t>(spatial, 1));
    const bool plain = std::all_of(extents.begin() + 1, extents.end(), [](const Expr& size) { return size.is_const(1); }) &&
                       std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 1; });
    const auto none = [&](std::string_view pads) {
      if (!node.attrs.has(pads)) return true;
      const op::Shape shape = node.attrs.shape(pads);
      return std::all_of(shape.begin(), shape.end(), [](const Expr& pad) { return pad.is_const(0); });
    };
    return !plain || !none("pads_low") || !none("pads_high");
  }

  // What the blocks along n count: rows of a convolution, columns of everything else.
  Expr n_step() const { return row_axis_ != nullptr ? rows_ : windowed_ ? Expr(block_n_) : Expr(kBlockN); }
  Expr n_total() const { return row_axis_ != nullptr ? row_axis_->extent : n_size_; }
  Expr n_blocks() const { return sym::ceil_div(n_total(), n_step()); }
  // The position in the convolution's result where a block begins.
  Index block_position(const Expr& n_low) const {
    Index at = position();
    if (groups_ > 1) at[1] = Expr::symbol("group_") * m_size_;   // any channel of the group
    at.back() = row_axis_ == nullptr ? n_low : Expr(0);
    if (row_axis_ != nullptr) at[at.size() - 2] = n_low;
    return at;
  }

  void define_m(LoopBuilder& build, const Expr& low) const {
    if (m_axis_ == nullptr) return;
    const Expr group = groups_ > 1 ? Expr::symbol("group_") * m_size_ : Expr(0);
    build.define(m_axis_->name, group + low + Expr::symbol(kM));
  }
  void define_n(LoopBuilder& build, const Expr& low) const {
    if (n_axis_ != nullptr) build.define(n_axis_->name, low + Expr::symbol(kN));
  }
  std::vector<Expr> define_k(LoopBuilder& build) const {
    std::vector<Expr> position;
    Expr rest = Expr::symbol(kK);
    const std::vector<Axis>& axes = group_.local_axes.at(group_.contraction);
    std::vector<std::pair<std::string, Expr>> values;
    size_t outermost = 0;
    while (outermost + 1 < axes.size() && axes[outermost].extent.is_const(1)) ++outermost;
    for (size_t i = axes.size(); i-- > 0;) {
      if (axes[i].extent.is_const(1)) continue;
      values.emplace_back(axes[i].name, i == outermost ? rest : sym::mod(rest, axes[i].extent));
      rest = sym::floor_div(rest, axes[i].extent);
    }
    for (size_t i = values.size(); i-- > 0;) build.define(values[i].first, values[i].second);
    for (const Axis& axis : axes) position.push_back(axis.extent.is_const(1) ? Expr(0) : Expr::symbol(axis.name));
    return position;
  }

  // The value of an operand at (m or n, k), inside an open block with those axes.
  ScalarId operand(LoopBuilder& build, bool left, const Expr& low) const {
    if (left) {
      define_m(build, low);
    } else {
      if (groups_ > 1) build.define(m_axis_->name, Expr::symbol("group_") * m_size_);   // any channel of the group
      if (!windowed_) define_n(build, low);
    }
    const std::vector<Expr> k = define_k(build);
    if (!convolution_) {
      const bool first = left != swapped_;
      return build.value_at(node_.inputs[first ? 0 : 1], first ? matmul_lhs_read(graph_, node_, position(), k[0]) : matmul_rhs_read(graph_, node_, position(), k[0]));
    }
    if (left) return build.value_at(node_.inputs[1], weight_read(graph_, node_, position(), k));
    if (windowed_) return build.element_of(window_buffer_, window_->position(k) + Expr::symbol(kN));
    return build.value_at(node_.inputs[0], window_read(graph_, node_, position(), k).index);
  }

  // The number of rows (columns) of an operand that can be packed once: it is computed from constants alone and does not
  // differ along the batch.
  std::optional<Expr> prepared_size(bool left) const {
    const ValueId value = convolution_ ? node_.inputs[left ? 1 : 0] : node_.inputs[left != swapped_ ? 0 : 1];
    const Expr& size = left ? m_size_ : n_size_;
    if (!size.is_const() || !k_size_.is_const() || !is_constant_tree(value)) return std::nullopt;
    if (!convolution_) {
      const std::vector<Expr> k{Expr::symbol(kK)};
      const bool first = left != swapped_;
      const Index at = first ? matmul_lhs_read(graph_, node_, position(), k[0]) : matmul_rhs_read(graph_, node_, position(), k[0]);
      for (size_t d = 0; d + 2 < at.size(); ++d) {
        if (!at[d].is_const()) return std::nullopt;
      }
    }
    return size;
  }
  bool is_constant_tree(ValueId value) const {
    if (graph_.constant(value) != nullptr) return true;
    const NodeId producer = graph_.value(value).producer;
    if (!producer.valid() || std::find(group_.nodes.begin(), group_.nodes.end(), producer) == group_.nodes.end()) return false;
    const Node& node = graph_.node(producer);
    return !node.inputs.empty() && std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return !input.valid() || is_constant_tree(input); });
  }

  // The kernel that packs an operand: [group][panel][k][tile], zero beyond the size.
  Prepared pack(bool left, const Expr& size) const {
    const int64_t tile = left ? tile_m_ : tile_n_;
    const Expr panels = sym::ceil_div(size, tile);
    const Expr groups = left ? Expr(groups_) : Expr(1);
    LoopBuilder build(graph_, group_, plan_);
    std::vector<LoopBuilder::Digit> digits;
    if (left && groups_ > 1) digits.push_back({"group_", groups_});
    digits.push_back({"panel_", panels});
    std::vector<Expr> positions;
    const bool core = build.open_core(digits, &positions);
    const Expr low = build.define("panel_low_", positions.back() * tile);
    const Expr panel = digits.size() == 1 ? positions.back() : positions[0] * panels + positions[1];
    build.open(kK, 0, k_size_, Binding::Serial);
    build.open(left ? kM : kN, 0, tile, Binding::Vector, 16, 1);
    const Expr lane = Expr::symbol(left ? kM : kN);
    const ScalarId value = operand_inside(build, left, low, size);
    const kernel::BufferId target = build.argument(Argument{.kind = Argument::Kind::Prepared}, "packed", dtype_, groups * panels * tile * k_size_, kernel::Access::Write);
    build.append({kernel::Store{.buffer = target, .index = (panel * k_size_ + Expr::symbol(kK)) * tile + lane, .value = value}});
    build.close();
    build.close();
    if (core) build.close();
    Prepared prepared;
    prepared.type = op::TensorType{dtype_, {groups * panels * tile * k_size_}};
    prepared.pack = build.finish("pack");
    prepared.pack.work = groups * panels * tile * k_size_;
    return prepared;
  }
  ScalarId operand_inside(LoopBuilder& build, bool left, const Expr& low, const Expr& size) const {
    const Expr lane = Expr::symbol(left ? kM : kN);
    const Expr inside = sym::lt(low + lane, size);
    build.set_guards({inside});
    const ScalarId value = operand(build, left, low);
    build.set_guards({});
    return build.apply("select", dtype_, {build.condition({inside}), value, build.constant(dtype_, 0)});
  }

  const Graph& graph_;
  const Group& group_;
  const SizeHint& hint_;
  const Node& node_;
  const ValueId value_;
  const std::vector<MemoryAccess> accesses_;
  const AxisPlan plan_;
  LoopBuilder build_;
  bool convolution_ = false, windowed_ = false, swapped_ = false, wide_ = false;
  int64_t groups_ = 1;
  DType dtype_ = DType::F32;
  int32_t tile_m_ = 6, tile_n_ = 32;
  const LoopAxis* m_axis_ = nullptr;
  const LoopAxis* n_axis_ = nullptr;
  std::vector<const LoopAxis*> batch_;
  // A convolution over windows: its last two spatial axes.
  const LoopAxis* row_axis_ = nullptr;
  const LoopAxis* column_axis_ = nullptr;
  Expr column_size_ = 1, rows_ = 1;
  int64_t block_n_ = kBlockN;
  std::optional<WindowCopy> window_;
  kernel::BufferId window_buffer_;
  int32_t lanes_ = 16;
  Expr m_size_ = 1, n_size_ = 1, k_size_ = 1;
};

}  // namespace

LoweredGroup lower_contraction(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint) {
  return ContractionLowering(graph, group, target, hint).run();
}

}  // namespace fuseloom::schedule
