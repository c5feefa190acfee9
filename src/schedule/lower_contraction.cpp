#include "schedule/lower_contraction.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "schedule/loop_builder.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using sym::Expr;

namespace {

constexpr int64_t kBlockM = 384, kBlockN = 512;   // one Core iteration's share of the result
constexpr int64_t kShortRow = 48;                 // convolution rows shorter than this are joined
constexpr const char* kM = "m_";
constexpr const char* kN = "n_";
constexpr const char* kK = "k_";

class ContractionLowering {
 public:
  ContractionLowering(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint)
      : graph_(graph), group_(group), hint_(hint), node_(graph.node(group.contraction)), value_(node_.outputs[0]),
        accesses_(accesses_of(graph, group)), plan_(graph, group, accesses_, merging(graph, group, accesses_)), build_(graph, group, plan_) {
    convolution_ = node_.op->name == "conv";
    dtype_ = graph.type(value_).dtype == DType::F64 ? DType::F64 : DType::F32;
    const int32_t lanes = std::max<int32_t>(2, target.vector_bytes / static_cast<int32_t>(dtype_bytes(dtype_)));
    tile_n_ = 2 * lanes;
    wide_ = target.vector_registers >= 32;
    tile_m_ = wide_ ? 14 : 6;
    map_axes();
    if (m_size_.is_const()) tile_m_ = static_cast<int32_t>(std::clamp<int64_t>(*m_size_.as_const(), 1, tile_m_));
  }

  LoweredGroup run() {
    LoweredGroup lowered;
    // One Core iteration per batch entry and block of the result.
    const Expr m_blocks = sym::simplify(sym::ceil_div(m_size_, block_m()), plan_.facts());
    const Expr n_blocks = sym::simplify(sym::ceil_div(n_size_, kBlockN), plan_.facts());
    std::vector<std::pair<std::string, Expr>> digits;
    for (const LoopAxis* axis : batch_) digits.emplace_back(axis->name, axis->extent);
    if (groups_ > 1) digits.emplace_back("group_", groups_);
    digits.emplace_back("m_block_", m_blocks);
    digits.emplace_back("n_block_", n_blocks);
    Expr total = 1;
    for (const auto& [name, extent] : digits) total = total * extent;
    const bool core = !total.is_const(1);
    if (core) build_.open("c_", 0, total, Binding::Core);
    Expr rest = Expr::symbol("c_");
    std::vector<std::pair<std::string, Expr>> values;
    for (size_t i = digits.size(); i-- > 0;) {
      if (digits[i].second.is_const(1)) {
        values.emplace_back(digits[i].first, 0);
        continue;
      }
      bool more = false;
      for (size_t j = 0; j < i; ++j) more = more || !digits[j].second.is_const(1);
      values.emplace_back(digits[i].first, more ? sym::mod(rest, digits[i].second) : rest);
      if (more) rest = sym::floor_div(rest, digits[i].second);
    }
    Expr m_block, n_block;
    for (size_t i = values.size(); i-- > 0;) {
      const bool needed = values[i].first != "m_block_" && values[i].first != "n_block_";
      const Expr value = needed ? build_.define(values[i].first, values[i].second) : build_.name(values[i].first, values[i].second);
      if (values[i].first == "m_block_") m_block = value;
      if (values[i].first == "n_block_") n_block = value;
    }
    const Expr m_low = build_.name("m_low_", m_block * block_m());
    const Expr n_low = build_.name("n_low_", n_block * kBlockN);
    const Expr m_count = build_.name("m_count_", sym::min(block_m(), m_size_ - m_low));
    const Expr n_count = build_.name("n_count_", sym::min(kBlockN, n_size_ - n_low));

    kernel::Contract contract{.m_axis = kM, .n_axis = kN, .k_axis = kK, .m_size = m_count, .n_size = n_count, .k_size = k_size_, .dtype = dtype_};
    contract.tile_m = tile_m_;
    contract.tile_n = tile_n_;
    contract.block_k = wide_ ? 512 : 384;
    contract.block_m = (wide_ ? 112 : 96) / tile_m_ * tile_m_;
    contract.block_n = static_cast<int32_t>(kBlockN);
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
    build_.open_block({kM, kN});
    define_m(build_, m_low);
    define_n(build_, n_low);
    build_.pin(contract.accumulator);
    ScalarId result = contract.accumulator;
    const DType declared = graph_.type(value_).dtype;
    if (convolution_ && node_.inputs.size() > 2 && node_.inputs[2].valid()) {
      result = build_.apply("add", dtype_, {result, build_.value_at(node_.inputs[2], {position()[1]})});
    }
    build_.set_result(group_.contraction, build_.round_to(declared, result));
    for (const ValueId output : group_.outputs) build_.store(output, group_.uses.at(output)[0].index);
    contract.epilogue = build_.close_block();
    build_.append({std::move(contract)});
    if (core) build_.close();

    LoweredKernel kernel = build_.finish("contraction");
    Expr count = k_size_;
    for (const Axis& axis : group_.axes) count = count * axis.extent;
    kernel.bytes = 0;
    for (const ValueId value : group_.inputs) kernel.bytes = kernel.bytes + op::count_of(graph_.type(value).shape) * dtype_bytes(graph_.type(value).dtype);
    for (const ValueId value : group_.outputs) kernel.bytes = kernel.bytes + op::count_of(graph_.type(value).shape) * dtype_bytes(graph_.type(value).dtype);
    kernel.work = sym::floor_div(count, 30) + sym::floor_div(kernel.bytes, 20);   // about 30 multiply-adds and 20 bytes in a nanosecond
    lowered.check_message = build_.check_message();
    lowered.choice = Choice{.schedule = fmt::format("contraction, tile {} x {}", tile_m_, tile_n_), .vector_axis = kN, .width = tile_n_ / 2, .unroll = 2};
    lowered.kernels.push_back(std::move(kernel));
    return lowered;
  }

 private:
  // The two matrix axes must stay apart; they would merge where every access allows it (a contraction over one element).
  static AxisPlan::Merge merging(const Graph& graph, const Group& group, const std::vector<MemoryAccess>& accesses) {
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
      std::vector<const LoopAxis*> spatial;
      for (size_t d = 2; d < at.size(); ++d) {
        const LoopAxis* axis = loop_axis_of(at[d]);
        if (axis != nullptr && (spatial.empty() || spatial.back() != axis)) spatial.push_back(axis);
      }
      if (!spatial.empty()) {
        const bool join = hinted(spatial.back()->extent, hint_) < kShortRow;
        n_axes_ = join ? spatial : std::vector<const LoopAxis*>{spatial.back()};
      }
    } else {
      const size_t a_rank = graph_.type(node_.inputs[0]).shape.size(), b_rank = graph_.type(node_.inputs[1]).shape.size();
      const LoopAxis* last = at.empty() ? nullptr : loop_axis_of(at.back());
      if (b_rank == 1) {
        // A product with a vector: its rows are the lanes.
        swapped_ = true;
        if (a_rank > 1 && last != nullptr) n_axes_ = {last};
      } else {
        if (last != nullptr) n_axes_ = {last};
        if (a_rank > 1) m_axis_ = loop_axis_of(at[at.size() - 2]);
      }
    }
    m_size_ = m_axis_ == nullptr ? Expr(1) : m_axis_->extent;
    if (groups_ > 1) {
      FL_CHECK(m_axis_ != nullptr, "a grouped convolution with one output channel");
      m_size_ = sym::floor_div(m_size_, groups_);
    }
    n_size_ = 1;
    for (const LoopAxis* axis : n_axes_) n_size_ = n_size_ * axis->extent;
    for (const LoopAxis& axis : plan_.axes()) {
      if (&axis != m_axis_ && std::find(n_axes_.begin(), n_axes_.end(), &axis) == n_axes_.end()) batch_.push_back(&axis);
    }
    k_size_ = 1;
    for (const Axis& axis : group_.local_axes.at(group_.contraction)) k_size_ = k_size_ * axis.extent;
  }

  void define_m(LoopBuilder& build, const Expr& low) const {
    if (m_axis_ == nullptr) return;
    const Expr group = groups_ > 1 ? Expr::symbol("group_") * m_size_ : Expr(0);
    build.define(m_axis_->name, group + low + Expr::symbol(kM));
  }
  void define_n(LoopBuilder& build, const Expr& low) const {
    Expr rest = low + Expr::symbol(kN);
    std::vector<std::pair<std::string, Expr>> values;
    for (size_t i = n_axes_.size(); i-- > 0;) {
      values.emplace_back(n_axes_[i]->name, i == 0 ? rest : sym::mod(rest, n_axes_[i]->extent));
      rest = sym::floor_div(rest, n_axes_[i]->extent);
    }
    for (size_t i = values.size(); i-- > 0;) build.define(values[i].first, values[i].second);
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
      define_n(build, low);
    }
    const std::vector<Expr> k = define_k(build);
    if (!convolution_) {
      const bool first = left != swapped_;
      return build.value_at(node_.inputs[first ? 0 : 1], first ? matmul_lhs_read(graph_, node_, position(), k[0]) : matmul_rhs_read(graph_, node_, position(), k[0]));
    }
    if (left) return build.value_at(node_.inputs[1], weight_read(graph_, node_, position(), k));
    const GuardedIndex at = window_read(graph_, node_, position(), k);
    return build.guarded_value_at(node_.inputs[0], at.index, at.guards);
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
    build.open("p_", 0, groups * panels, Binding::Core);
    build.define("group_", sym::floor_div(Expr::symbol("p_"), panels));
    const Expr low = build.define("panel_low_", sym::mod(Expr::symbol("p_"), panels) * tile);
    build.open(kK, 0, k_size_, Binding::Serial);
    build.open(left ? kM : kN, 0, tile, Binding::Vector, 16, 1);
    const Expr lane = Expr::symbol(left ? kM : kN);
    const ScalarId value = operand_inside(build, left, low, size);
    const kernel::BufferId target = build.argument(Argument{.kind = Argument::Kind::Prepared}, "packed", dtype_, groups * panels * tile * k_size_, kernel::Access::Write);
    build.append({kernel::Store{.buffer = target, .index = (Expr::symbol("p_") * k_size_ + Expr::symbol(kK)) * tile + lane, .value = value}});
    build.close();
    build.close();
    build.close();
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
  bool convolution_ = false, swapped_ = false, wide_ = false;
  int64_t groups_ = 1;
  DType dtype_ = DType::F32;
  int32_t tile_m_ = 6, tile_n_ = 32;
  const LoopAxis* m_axis_ = nullptr;
  std::vector<const LoopAxis*> n_axes_, batch_;
  Expr m_size_ = 1, n_size_ = 1, k_size_ = 1;
};

}  // namespace

LoweredGroup lower_contraction(const Graph& graph, const Group& group, const CpuTarget& target, const SizeHint& hint) {
  return ContractionLowering(graph, group, target, hint).run();
}

}  // namespace fuseloom::schedule
