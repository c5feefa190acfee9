#include "schedule/group.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "schedule/library_product.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using sym::Expr;

std::string_view group_kind_name(GroupKind kind) {
  switch (kind) {
    case GroupKind::Loops: return "loops";
    case GroupKind::Contraction: return "contraction";
    case GroupKind::Scan: return "scan";
    case GroupKind::Call: return "call";
    case GroupKind::Alias: return "alias";
    case GroupKind::Control: return "control";
  }
  return "?";
}

std::string_view why_text(Why why) {
  switch (why) {
    case Why::NotFusible: return "one of the two runs as a whole";
    case Why::GraphOutput: return "the value is a result of the program";
    case Why::OtherConsumers: return "several kernels read it, and computing it in each costs more than storing it";
    case Why::DifferentLoop: return "its loop does not match the consumer's";
    case Why::DifferentReduction: return "the consumer folds other axes";
    case Why::ComputedRepeatedly: return "it would be computed again and again inside the consumer";
    case Why::SecondContraction: return "one contraction per kernel";
    case Why::ReadElsewhere: return "the consumer reads it at other positions than its own";
    case Why::TooLarge: return "the kernel has reached its limit of nodes";
    case Why::WouldWait: return "the two kernels would wait for each other";
    case Why::NotYetComputed: return "the second needs what is computed after the first";
    case Why::FusionOff: return "fusion is switched off";
    case Why::LibraryProduct: return "a library computes the product, and this is nothing it can do with it";
  }
  return "?";
}

namespace {

// What may be computed behind a broadcast whose innermost axis is missing (it is hoisted out of the innermost loop), and
// behind one that repeats the innermost axis.
constexpr int kHoisted = 64, kRepeatedRow = 4, kContractionOperand = 3, kInsideWindow = 0;
constexpr size_t kMaxUses = 4, kMaxConsumers = 8;

bool same_size(const Expr& a, const Expr& b, const sym::Facts& facts) {
  return a == b || sym::prove_equal(a, b, facts) == sym::Proof::Yes;
}

class Grouper {
 public:
  Grouper(const Graph& graph, const GroupOptions& options) : graph_(graph), options_(options), users_(graph.users()) {
    groups_of_.resize(static_cast<size_t>(graph.node_capacity()));
    roles_.resize(static_cast<size_t>(graph.node_capacity()), LoopRole::None);
    position_.resize(static_cast<size_t>(graph.node_capacity()), 0);
    is_output_.resize(static_cast<size_t>(graph.value_count()), 0);
    owner_.resize(static_cast<size_t>(graph.value_count()), -1);
    for (const ValueId id : graph.outputs()) is_output_[static_cast<size_t>(id.index)] = 1;
    for (size_t i = 0; i < graph.nodes().size(); ++i) position_[index_of(graph.nodes()[i])] = static_cast<int>(i);
    for (const NodeId id : graph.nodes()) {
      if (loop_role(graph, id) == LoopRole::Pointwise && follows_contraction(id)) epilogue_.insert(id);
    }
  }

  Grouping run() {
    const std::vector<NodeId>& order = graph_.nodes();
    for (size_t i = order.size(); i-- > 0;) place(order[i]);
    return finish();
  }

 private:
  static size_t index_of(NodeId id) { return static_cast<size_t>(id.index); }
  static size_t index_of(ValueId id) { return static_cast<size_t>(id.index); }

  // ---- one node, all its consumers already placed
  void place(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op->name == "constant") return;
    const LoopRole role = roles_[index_of(id)] = loop_role(graph_, id);
    bool used = node.op->has_side_results;
    for (const ValueId output : node.outputs) used = used || is_output_[index_of(output)] != 0 || !users_[index_of(output)].empty();
    if (!used) return;
    if (role == LoopRole::None) {
      if (can_stand_as_value(node)) {
        place_inline_value(id);
      } else {
        const int group = new_group(node.subgraphs.empty() ? GroupKind::Call : GroupKind::Control, id);
        for (const ValueId output : node.outputs) note_whole(output, group, node);
      }
      return;
    }
    const ValueId value = node.outputs[0];
    std::set<int> consumers;
    std::optional<Reason> forced;
    if (is_output_[index_of(value)] != 0) forced = Reason{Why::GraphOutput, ""};
    for (const NodeId user : users_[index_of(value)]) {
      for (const int group : groups_of_[index_of(user)]) {
        consumers.insert(group);
        if (!is_loops(group)) forced = Reason{Why::NotFusible, graph_.node(user).op->name};
      }
    }
    if (!options_.fuse) forced = Reason{Why::FusionOff, ""};

    std::map<int, std::optional<Reason>> answers;
    for (const int group : consumers) answers[group] = is_loops(group) ? can_take(groups_[static_cast<size_t>(group)], id) : forced;
    bool stays_product = false;                  // a library's product has one result
    for (const int group : consumers) {
      if (answers[group] || !is_loops(group) || !options_.library_products || !is_product_with(group, id)) continue;
      stays_product = true;
      if (!can_stay_product(group, id)) answers[group] = Reason{Why::LibraryProduct, std::string(node.op->name)};
    }
    steps_ += static_cast<int64_t>(consumers.size()) + 1;
    const bool all_take = !consumers.empty() && std::all_of(answers.begin(), answers.end(), [](const auto& a) { return !a.second; });
    if (!forced && all_take && (consumers.size() == 1 || (consumers.size() <= kMaxConsumers && is_free(node, role)))) {
      for (const int group : consumers) take(group, id);
      return;
    }
    if (options_.fuse && role != LoopRole::View && !stays_product) {
      for (const int group : consumers) {
        if (answers[group] || !is_loops(group) || !reads_in_place(groups_[static_cast<size_t>(group)], value)) continue;
        std::set<int> others = consumers;
        others.erase(group);
        if (waits_for(group, others)) {
          answers[group] = Reason{Why::WouldWait, ""};
          continue;
        }
        take(group, id);
        store(group, value);
        answers[group] = forced ? forced : Reason{Why::OtherConsumers, ""};
        note_boundaries(value, group, consumers, answers, forced);
        return;
      }
    }
    const GroupKind kind = role == LoopRole::Contraction ? GroupKind::Contraction
                           : role == LoopRole::Scan      ? GroupKind::Scan
                           : is_alias(node)              ? GroupKind::Alias
                                                         : GroupKind::Loops;
    const int group = new_group(kind, id);
    note_boundaries(value, group, consumers, answers, forced);
  }

  // A node without a loop role whose result is one integer known from sizes: consumers compute it in place.
  bool can_stand_as_value(const Node& node) const {
    if (node.op->name != "sym_value") return false;
    const ValueId value = node.outputs[0];
    if (is_output_[index_of(value)] != 0 || node.attrs.shape("values").size() != 1) return false;
    for (const NodeId user : users_[index_of(value)]) {
      for (const int group : groups_of_[index_of(user)]) {
        if (!is_loops(group)) return false;
      }
    }
    return true;
  }
  void place_inline_value(NodeId id) {
    std::set<int> consumers;
    for (const NodeId user : users_[index_of(graph_.node(id).outputs[0])]) {
      consumers.insert(groups_of_[index_of(user)].begin(), groups_of_[index_of(user)].end());
    }
    for (const int group : consumers) take(group, id);
  }

  bool is_loops(int group) const {
    const GroupKind kind = groups_[static_cast<size_t>(group)].kind;
    return kind == GroupKind::Loops || kind == GroupKind::Contraction || kind == GroupKind::Scan;
  }
  static bool is_alias(const Node& node) { return node.op->name == "reshape"; }

  // Whether an operand is smaller than the result for certain.
  static bool is_broadcast(const op::Shape& operand, const op::Shape& result) {
    if (operand.size() < result.size()) return true;
    for (size_t d = 0; d < result.size(); ++d) {
      if (operand[d].is_const(1) && !result[d].is_const(1)) return true;
    }
    return false;
  }

  // Cheap enough to compute in each consumer: costs no more than reading the result back.
  bool is_free(const Node& node, LoopRole role) const {
    switch (role) {
      case LoopRole::View: return node.op->name != "concat";
      case LoopRole::Generated: return node.op->cost <= 1;
      case LoopRole::Pointwise: {
        size_t data = 0;
        const op::Shape& shape = graph_.type(node.outputs[0]).shape;
        for (const ValueId input : node.inputs) {
          const Tensor* constant = input.valid() ? graph_.constant(input) : nullptr;
          if (!input.valid() || (constant != nullptr && constant->count() == 1)) continue;
          if (options_.spare_bytes && is_broadcast(graph_.type(input).shape, shape)) continue;
          ++data;
        }
        return data <= 1 && node.op->cost <= (options_.spare_bytes ? 2 : 1);
      }
      case LoopRole::None:
      case LoopRole::Gather:
      case LoopRole::Reduction:
      case LoopRole::SmallReduction:
      case LoopRole::Window:
      case LoopRole::Contraction:
      case LoopRole::Scan: return false;
    }
    return false;
  }

  // An elementwise op on the result of a contraction, or on what such an op makes of it, of the same shape.
  bool follows_contraction(NodeId id) const {
    const Node& node = graph_.node(id);
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      if (!input.valid() || !graph_.value(input).producer.valid()) return false;
      const NodeId producer = graph_.value(input).producer;
      return graph_.type(input).shape == graph_.type(node.outputs[0]).shape &&
             (epilogue_.count(producer) != 0 || loop_role(graph_, producer) == LoopRole::Contraction);
    });
  }

  // ---- structure questions
  std::vector<size_t> reduced_axes(const Group& group) const {
    std::vector<size_t> axes;
    for (size_t i = 0; i < group.axes.size(); ++i) {
      if (group.axes[i].reduced) axes.push_back(i);
    }
    return axes;
  }

  // Whether `index` is exactly the group's axes in order (all of them, or all that are not reduced), skipping size-1
  // dimensions: then storing the value at its own positions writes every element once.
  bool reads_in_place(const Group& group, ValueId value) const {
    const auto found = group.uses.find(value);
    if (found == group.uses.end() || found->second.size() != 1) return false;
    const Use& use = found->second[0];
    if (!use.guards.empty() || use.budget < kHoisted) return false;
    const op::Shape& shape = graph_.type(value).shape;
    for (const bool with_reduced : {true, false}) {
      std::vector<const Axis*> expected;
      for (const Axis& axis : group.axes) {
        if (with_reduced || !axis.reduced) expected.push_back(&axis);
      }
      size_t next = 0;
      bool same = true;
      for (size_t d = 0; d < shape.size() && same; ++d) {
        if (use.index[d].is_const(0) && shape[d].is_const(1)) continue;
        same = next < expected.size() && use.index[d].is_symbol() && use.index[d].name() == expected[next]->name &&
               same_size(shape[d], expected[next]->extent, graph_.facts());
        ++next;
      }
      if (same && next == expected.size()) return true;
    }
    return false;
  }

  // Would `group` wait for one of `others`, directly or not?
  bool waits_for(int group, const std::set<int>& others) const {
    if (others.empty()) return false;
    std::vector<int> stack{group};
    std::set<int> seen{group};
    while (!stack.empty()) {
      const int current = stack.back();
      stack.pop_back();
      for (const int next : waits_on_[static_cast<size_t>(current)]) {
        ++steps_;
        if (others.count(next) != 0) return true;
        if (seen.insert(next).second) stack.push_back(next);
        if (seen.size() > 4096) return true;   // bounds the search; refusing is always safe
      }
    }
    return false;
  }

  static bool has_axis(const Group& group, const std::string& name) {
    return std::any_of(group.axes.begin(), group.axes.end(), [&](const Axis& axis) { return axis.name == name; });
  }

  // How a reduction's folded axes line up with the group's axes.
  struct Match {
    std::vector<size_t> axes;       // group axes that become (or are) reduced, in order of the folded dimensions
    std::vector<Expr> append;       // or: extents of new axes
  };
  std::optional<Match> match_reduction(const Group& group, const Node& node, const Use& use) const {
    const op::Shape& shape = graph_.type(node.inputs[0]).shape;
    const std::vector<int64_t> folded = folded_axes(graph_, node);
    std::set<std::string> in_use;
    for (const Expr& index : use.index) {
      if (index.is_const()) continue;
      // At a position of its own for every step of a small reduction there is no one loop that folds it.
      if (!index.is_symbol() || !has_axis(group, index.name())) return std::nullopt;
      in_use.insert(index.name());
    }
    const std::vector<size_t> already = reduced_axes(group);
    std::vector<size_t> rest;       // group axes the result does not use
    for (size_t i = 0; i < group.axes.size(); ++i) {
      if (in_use.count(group.axes[i].name) == 0) rest.push_back(i);
    }
    std::vector<Expr> extents;      // of the folded dimensions that are not 1
    for (const int64_t axis : folded) {
      const Expr& size = shape[static_cast<size_t>(axis)];
      if (!size.is_const(1)) extents.push_back(size);
    }
    Match match;
    if (rest.empty()) {
      if (!already.empty()) return std::nullopt;
      match.append = extents;
      return match;
    }
    if (!already.empty() && rest != already) return std::nullopt;
    if (rest.size() != extents.size()) return std::nullopt;
    for (size_t i = 0; i < rest.size(); ++i) {
      if (!same_size(group.axes[rest[i]].extent, extents[i], graph_.facts())) return std::nullopt;
    }
    match.axes = rest;
    return match;
  }

  std::optional<Reason> can_take(const Group& group, NodeId id) const {
    const Node& node = graph_.node(id);
    const ValueId value = node.outputs[0];
    const LoopRole role = roles_[index_of(id)];
    const auto refuse = [&](Why why) { return Reason{why, std::string(node.op->name)}; };
    if (group.nodes.size() >= options_.max_nodes) return refuse(Why::TooLarge);
    const auto found = group.uses.find(value);
    FL_CHECK(found != group.uses.end(), "group {} does not read %{}", group.id, value.index);
    const std::vector<Use>& uses = found->second;
    if (uses.size() > kMaxUses) return refuse(Why::ReadElsewhere);
    const int budget = std::min_element(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.budget < b.budget; })->budget;
    switch (role) {
      case LoopRole::None:
      case LoopRole::Scan: return refuse(Why::NotFusible);
      case LoopRole::View:
        if (node.inputs.size() * uses.size() > 8) return refuse(Why::ReadElsewhere);
        return std::nullopt;
      case LoopRole::Pointwise:
      case LoopRole::Generated:
      case LoopRole::Gather: {
        const int cost = role == LoopRole::Gather ? 4 : role == LoopRole::Generated && is_free(node, role) ? 0 : node.op->cost;
        if (cost > budget && !(uses.size() == 1 && follows_reduction(group, id, uses[0]))) return refuse(Why::ComputedRepeatedly);
        // An operand of a contraction is computed for every block that reads it, an epilogue once.
        if (budget <= kContractionOperand && epilogue_.count(id) != 0) return refuse(Why::ComputedRepeatedly);
        return std::nullopt;
      }
      case LoopRole::SmallReduction:
      case LoopRole::Window: {
        if (group.kind != GroupKind::Loops || uses.size() != 1 || budget < (role == LoopRole::Window ? kOnce : kHoisted)) {
          return refuse(Why::ComputedRepeatedly);
        }
        if (role == LoopRole::Window && !reduced_axes(group).empty()) return refuse(Why::ComputedRepeatedly);
        return std::nullopt;
      }
      case LoopRole::Reduction: {
        if (group.kind != GroupKind::Loops || has_window(group)) return refuse(Why::DifferentLoop);
        if (uses.size() != 1) return refuse(Why::ReadElsewhere);
        if ((budget < kHoisted && !follows_reduction(group, id, uses[0])) || !uses[0].guards.empty()) return refuse(Why::ComputedRepeatedly);
        if (!match_reduction(group, node, uses[0])) {
          return refuse(reduced_axes(group).empty() ? Why::DifferentLoop : Why::DifferentReduction);
        }
        return std::nullopt;
      }
      case LoopRole::Contraction: {
        if (group.kind == GroupKind::Contraction) return refuse(Why::SecondContraction);
        if (group.kind != GroupKind::Loops || !reduced_axes(group).empty() || has_window(group)) return refuse(Why::DifferentLoop);
        if (uses.size() != 1 || budget < kOnce) return refuse(Why::ComputedRepeatedly);
        if (!reads_in_place(group, value)) return refuse(Why::ReadElsewhere);
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  // A reduction over exactly the axes that the value is broadcast along, or elementwise ops behind such a one: the axes
  // become the innermost loops of the group, so that the value is computed once.
  bool follows_reduction(const Group& group, NodeId id, const Use& use, int depth = 16) const {
    if (!options_.spare_bytes || group.kind != GroupKind::Loops || depth == 0) return false;
    const Node& node = graph_.node(id);
    const LoopRole role = loop_role(graph_, id);
    if (role == LoopRole::Reduction) {
      const std::optional<Match> match = match_reduction(group, node, use);
      return match && !match->axes.empty();
    }
    if (role != LoopRole::Pointwise) return false;
    const op::Shape& shape = graph_.type(node.outputs[0]).shape;
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input.valid() && graph_.value(input).producer.valid() && graph_.type(input).shape == shape &&
             follows_reduction(group, graph_.value(input).producer, use, depth - 1);
    });
  }

  bool has_window(const Group& group) const {
    return std::any_of(group.nodes.begin(), group.nodes.end(), [&](NodeId id) { return roles_[index_of(id)] == LoopRole::Window; });
  }

  // ---- products of a library
  // Whether a library does the group's contraction, or would do `id` alone, which is one.
  bool is_product_with(int group, NodeId id) {
    if (groups_[static_cast<size_t>(group)].kind == GroupKind::Contraction) return library_product(graph_, groups_[static_cast<size_t>(group)]).has_value();
    if (roles_[index_of(id)] != LoopRole::Contraction) return false;
    const int alone = new_group(GroupKind::Contraction, id);
    const bool is_product = library_product(graph_, groups_.back()).has_value();
    owner_[index_of(graph_.node(id).outputs[0])] = -1;
    groups_of_[index_of(id)].pop_back();
    groups_.pop_back();
    waits_on_.pop_back();
    for (std::set<int>& awaited : waits_on_) awaited.erase(alone);
    return is_product;
  }
  bool can_stay_product(int group, NodeId id) {
    const Group before = groups_[static_cast<size_t>(group)];
    take(group, id);
    const bool stays = library_product(graph_, groups_[static_cast<size_t>(group)]).has_value();
    groups_of_[index_of(id)].pop_back();
    groups_[static_cast<size_t>(group)] = before;
    return stays;
  }

  // ---- growing
  int new_group(GroupKind kind, NodeId root) {
    const int id = static_cast<int>(groups_.size());
    groups_.push_back(Group{.id = id, .kind = kind});
    waits_on_.emplace_back();
    Group& group = groups_.back();
    const Node& node = graph_.node(root);
    if (kind == GroupKind::Call || kind == GroupKind::Control || kind == GroupKind::Alias) {
      group.nodes.push_back(root);
      groups_of_[index_of(root)].push_back(id);
      for (const ValueId output : node.outputs) store(id, output);
      for (const ValueId input : node.inputs) {
        if (input.valid()) read(id, input, Use{});
      }
      return id;
    }
    const ValueId value = node.outputs[0];
    Use own{.budget = kOnce};
    for (const Expr& size : graph_.type(value).shape) own.index.push_back(size.is_const(1) ? Expr(0) : add_axis(group, size, false));
    group.uses[value].push_back(own);
    take(id, root);
    store(id, value);
    return id;
  }

  Expr add_axis(Group& group, const Expr& extent, bool reduced) {
    Axis axis{.name = fmt::format("i{}_", group.axes.size()), .extent = extent, .reduced = reduced};
    group.axes.push_back(axis);
    return Expr::symbol(axis.name);
  }

  void store(int group, ValueId value) {
    groups_[static_cast<size_t>(group)].outputs.push_back(value);
    owner_[index_of(value)] = group;
    for (const NodeId user : users_[index_of(value)]) {
      for (const int other : groups_of_[index_of(user)]) {
        if (other != group) waits_on_[static_cast<size_t>(other)].insert(group);
      }
    }
  }

  void read(int group, ValueId value, Use use) {
    std::vector<Use>& uses = groups_[static_cast<size_t>(group)].uses[value];
    for (Use& known : uses) {
      if (known.index == use.index && known.guards == use.guards) {
        known.budget = std::min(known.budget, use.budget);
        return;
      }
    }
    uses.push_back(std::move(use));
  }

  // Adds the node to the group and notes where its operands are read.
  void take(int group_id, NodeId id) {
    Group& group = groups_[static_cast<size_t>(group_id)];
    const Node& node = graph_.node(id);
    group.nodes.push_back(id);
    groups_of_[index_of(id)].push_back(group_id);
    const op::TensorType& type = graph_.type(node.outputs[0]);
    const std::vector<Use> uses = group.uses[node.outputs[0]];
    const LoopRole role = roles_[index_of(id)];
    for (Use use : uses) {
      if (use.budget < kHoisted && uses.size() == 1 && follows_reduction(group, id, use)) use.budget = kHoisted;
      switch (role) {
        case LoopRole::None: break;   // sym_value in place: reads nothing
        case LoopRole::Generated: break;
        case LoopRole::Pointwise:
          for (const ValueId input : node.inputs) {
            if (!input.valid()) continue;
            const op::Shape& shape = graph_.type(input).shape;
            Use next{.index = broadcast_index(shape, type.shape, use.index), .guards = use.guards, .budget = use.budget};
            next.budget = std::min(next.budget, broadcast_budget(group, use.index, next.index));
            read(group_id, input, std::move(next));
          }
          break;
        case LoopRole::View: {
          std::vector<op::TensorType> inputs;
          for (const ValueId input : node.inputs) inputs.push_back(graph_.type(input));
          const op::IndexContext context{.inputs = inputs, .output = type, .attrs = node.attrs};
          std::vector<Expr> earlier;   // pieces are tried in order: a later one is read where none before it holds
          for (op::IndexPiece& piece : node.op->index_map(context, use.index)) {
            Use next{.index = std::move(piece.indices), .guards = use.guards, .budget = use.budget};
            if (!next.index.empty()) next.guards.insert(next.guards.end(), earlier.begin(), earlier.end());
            next.guards.insert(next.guards.end(), piece.guards.begin(), piece.guards.end());
            if (!piece.guards.empty()) earlier.push_back(sym::eq(sym::product(piece.guards), 0));
            next.budget = std::min(next.budget, broadcast_budget(group, use.index, next.index));
            read(group_id, node.inputs[piece.input], std::move(next));
          }
          break;
        }
        case LoopRole::Gather: {
          const int64_t rank = graph_.type(node.inputs[0]).rank();
          int64_t axis = node.attrs.integer("axis", 0);
          if (axis < 0) axis += rank;
          const Expr at = Expr::symbol(fmt::format("g{}_", id.index));
          Index data, indices;
          if (node.op->name == "gather") {
            const int64_t index_rank = graph_.type(node.inputs[1]).rank();
            for (int64_t d = 0; d < axis; ++d) data.push_back(use.index[static_cast<size_t>(d)]);
            data.push_back(at);
            for (int64_t d = axis + 1; d < rank; ++d) data.push_back(use.index[static_cast<size_t>(d + index_rank - 1)]);
            for (int64_t d = 0; d < index_rank; ++d) indices.push_back(use.index[static_cast<size_t>(axis + d)]);
          } else {
            data = use.index;
            data[static_cast<size_t>(axis)] = at;
            indices = use.index;
          }
          read(group_id, node.inputs[1], Use{.index = indices, .guards = use.guards, .budget = std::min(use.budget, kHoisted)});
          read(group_id, node.inputs[0], Use{.index = data, .guards = use.guards, .budget = options_.spare_bytes ? kRepeatedRow : kInsideWindow});
          break;
        }
        case LoopRole::Reduction: {
          const std::optional<Match> match = match_reduction(group, node, use);
          FL_CHECK(match.has_value(), "reduction {} does not match its group", node.op->name);
          std::vector<Expr> folded;
          size_t next = 0;
          for (const int64_t axis : folded_axes(graph_, node)) {
            const Expr& size = graph_.type(node.inputs[0]).shape[static_cast<size_t>(axis)];
            if (size.is_const(1)) {
              folded.push_back(0);
            } else if (!match->append.empty()) {
              folded.push_back(add_axis(group, size, true));
            } else {
              Axis& known = group.axes[match->axes[next++]];
              known.reduced = true;
              folded.push_back(Expr::symbol(known.name));
            }
          }
          read(group_id, node.inputs[0], Use{.index = unfold_index(graph_, node, use.index, folded), .budget = kOnce});
          break;
        }
        case LoopRole::SmallReduction: {
          const std::vector<Expr> local = local_axes(group, id, [&] {
            std::vector<Expr> extents;
            for (const int64_t axis : folded_axes(graph_, node)) extents.push_back(graph_.type(node.inputs[0]).shape[static_cast<size_t>(axis)]);
            return extents;
          }());
          read(group_id, node.inputs[0], Use{.index = unfold_index(graph_, node, use.index, local), .guards = use.guards,
                                             .budget = std::min(use.budget, kHoisted)});
          break;
        }
        case LoopRole::Window: {
          const std::vector<Expr> local = local_axes(group, id, window_extents(graph_, node));
          GuardedIndex at = window_read(graph_, node, use.index, local);
          at.guards.insert(at.guards.begin(), use.guards.begin(), use.guards.end());
          read(group_id, node.inputs[0], Use{.index = at.index, .guards = at.guards, .budget = kInsideWindow});
          break;
        }
        case LoopRole::Contraction: {
          group.kind = GroupKind::Contraction;
          group.contraction = id;
          const std::vector<Expr> local = local_axes(group, id, contraction_extents(graph_, node));
          if (node.op->name == "matmul") {
            read(group_id, node.inputs[0], Use{.index = matmul_lhs_read(graph_, node, use.index, local[0]), .budget = kContractionOperand});
            read(group_id, node.inputs[1], Use{.index = matmul_rhs_read(graph_, node, use.index, local[0]), .budget = kContractionOperand});
          } else {
            const GuardedIndex at = window_read(graph_, node, use.index, local);
            read(group_id, node.inputs[0], Use{.index = at.index, .guards = at.guards, .budget = kInsideWindow});
            read(group_id, node.inputs[1], Use{.index = weight_read(graph_, node, use.index, local), .budget = kInsideWindow});
            if (node.inputs.size() > 2 && node.inputs[2].valid()) {
              read(group_id, node.inputs[2], Use{.index = {use.index[1]}, .budget = kRepeatedRow});
            }
          }
          break;
        }
        case LoopRole::Scan: read(group_id, node.inputs[0], Use{.index = use.index, .budget = kOnce}); break;
      }
    }
    if (node.op->name == "pad" && node.inputs.size() > 1 && node.inputs[1].valid()) read(group_id, node.inputs[1], Use{.budget = kHoisted});
  }

  std::vector<Expr> local_axes(Group& group, NodeId id, const std::vector<Expr>& extents) {
    std::vector<Axis>& axes = group.local_axes[id];
    std::vector<Expr> out;
    if (axes.empty()) {
      for (size_t i = 0; i < extents.size(); ++i) axes.push_back(Axis{fmt::format("r{}_{}_", id.index, i), extents[i], true});
    }
    for (const Axis& axis : axes) out.push_back(axis.extent.is_const(1) ? Expr(0) : Expr::symbol(axis.name));
    return out;
  }

  // An operand that is read at fewer axes than the node runs over is computed repeatedly.
  static int broadcast_budget(const Group& group, const Index& outer, const Index& inner) {
    std::set<std::string> before, after;
    for (const Expr& index : outer) sym::collect_symbols(index, before);
    for (const Expr& index : inner) sym::collect_symbols(index, after);
    int budget = kOnce;
    for (size_t i = 0; i < group.axes.size(); ++i) {
      if (before.count(group.axes[i].name) == 0 || after.count(group.axes[i].name) != 0) continue;
      budget = std::min(budget, i + 1 == group.axes.size() || group.axes[i].reduced ? kHoisted : kRepeatedRow);
    }
    // Nothing left of the axes: computed once per kernel.
    return after.empty() ? kOnce - 1 : budget;
  }

  // What a node that runs as a whole gives is stored for everybody.
  void note_whole(ValueId value, int producer, const Node& node) {
    std::set<int> consumers;
    std::map<int, std::optional<Reason>> answers;
    for (const NodeId user : users_[index_of(value)]) consumers.insert(groups_of_[index_of(user)].begin(), groups_of_[index_of(user)].end());
    for (const int consumer : consumers) answers[consumer] = Reason{Why::NotFusible, std::string(node.op->name)};
    note_boundaries(value, producer, consumers, answers, std::nullopt);
  }

  void note_boundaries(ValueId value, int producer, const std::set<int>& consumers, const std::map<int, std::optional<Reason>>& answers,
                       const std::optional<Reason>& forced) {
    for (const int consumer : consumers) {
      if (consumer == producer) continue;
      const std::optional<Reason>& answer = answers.at(consumer);
      const Reason reason = answer ? *answer : forced ? *forced : Reason{Why::OtherConsumers, ""};
      boundaries_.push_back(Boundary{value, producer, consumer, reason});
    }
    if (is_output_[index_of(value)] != 0) boundaries_.push_back(Boundary{value, producer, -1, Reason{Why::GraphOutput, ""}});
  }

  // ---- order the groups: each after those it waits for, otherwise as the graph has them
  Grouping finish() {
    const size_t count = groups_.size();
    std::vector<int> place(count, 0);
    std::vector<int> missing(count, 0);
    std::vector<std::vector<int>> waiters(count);
    for (size_t g = 0; g < count; ++g) {
      for (const NodeId id : groups_[g].nodes) place[g] = std::max(place[g], position_[index_of(id)]);
      for (const auto& [value, uses] : groups_[g].uses) {
        const int producer = owner_[index_of(value)];
        if (producer >= 0 && producer != static_cast<int>(g)) waits_on_[g].insert(producer);
      }
      wait_for_symbols(g);
    }
    for (size_t g = 0; g < count; ++g) {
      missing[g] = static_cast<int>(waits_on_[g].size());
      for (const int other : waits_on_[g]) waiters[static_cast<size_t>(other)].push_back(static_cast<int>(g));
    }
    std::set<std::pair<int, int>> ready;
    for (size_t g = 0; g < count; ++g) {
      if (missing[g] == 0) ready.insert({place[g], static_cast<int>(g)});
    }
    std::vector<int> renamed(count, -1);
    Grouping grouping;
    while (!ready.empty()) {
      const int g = ready.begin()->second;
      ready.erase(ready.begin());
      renamed[static_cast<size_t>(g)] = static_cast<int>(grouping.groups.size());
      Group group = std::move(groups_[static_cast<size_t>(g)]);
      group.id = renamed[static_cast<size_t>(g)];
      std::sort(group.nodes.begin(), group.nodes.end(), [&](NodeId a, NodeId b) { return position_[index_of(a)] < position_[index_of(b)]; });
      std::sort(group.outputs.begin(), group.outputs.end(), [&](ValueId a, ValueId b) { return a.index < b.index; });
      std::set<ValueId> computed;
      for (const NodeId id : group.nodes) computed.insert(graph_.node(id).outputs.begin(), graph_.node(id).outputs.end());
      for (const auto& [value, uses] : group.uses) {
        if (computed.count(value) == 0) group.inputs.push_back(value);
      }
      grouping.groups.push_back(std::move(group));
      for (const int next : waiters[static_cast<size_t>(g)]) {
        if (--missing[static_cast<size_t>(next)] == 0) ready.insert({place[static_cast<size_t>(next)], next});
      }
    }
    FL_CHECK(grouping.groups.size() == count, "{} groups wait for each other", count - grouping.groups.size());
    std::vector<std::set<int>> waits(count);
    for (size_t g = 0; g < count; ++g) {
      for (const int other : waits_on_[g]) waits[static_cast<size_t>(renamed[g])].insert(renamed[static_cast<size_t>(other)]);
    }
    const std::vector<int> final_id = join_siblings(grouping, waits);
    const auto rename = [&](int& id) {
      if (id >= 0) id = final_id[static_cast<size_t>(renamed[static_cast<size_t>(id)])];
    };
    for (Boundary& boundary : boundaries_) {
      rename(boundary.producer);
      rename(boundary.consumer);
    }
    grouping.boundaries = std::move(boundaries_);
    grouping.steps = steps_;
    grouping.owner = owner_;
    for (int& owner : grouping.owner) rename(owner);
    return grouping;
  }

  // ---- siblings
  // Joins groups in place; gives the new id of each. The second of two siblings moves to the place of the first, which is
  // right when all that it waits for runs before that: then nothing can wait in a circle, and no search is needed.
  std::vector<int> join_siblings(Grouping& grouping, std::vector<std::set<int>>& waits) {
    std::vector<Group>& groups = grouping.groups;
    std::vector<int> joined(groups.size());             // the group that took each one in, or itself
    for (size_t g = 0; g < groups.size(); ++g) joined[g] = static_cast<int>(g);
    const auto now = [&](int id) {
      while (joined[static_cast<size_t>(id)] != id) id = joined[static_cast<size_t>(id)];
      return id;
    };
    std::map<ValueId, std::vector<int>> readers;
    for (const Group& group : groups) {
      for (const ValueId input : group.inputs) readers[input].push_back(group.id);
    }
    for (const auto& [value, ids] : readers) {
      for (size_t i = 1; options_.fuse && i < ids.size(); ++i) {
        const int first = now(ids[i - 1]), second = now(ids[i]);
        if (first == second) continue;
        ++steps_;
        if (first > second || !are_siblings(groups[static_cast<size_t>(first)], groups[static_cast<size_t>(second)], value)) continue;
        std::set<int>& awaited = waits[static_cast<size_t>(second)];
        const bool computed = std::all_of(awaited.begin(), awaited.end(), [&](int id) { return now(id) < first; });
        if (const std::optional<Reason> reason = can_join(groups[static_cast<size_t>(first)], groups[static_cast<size_t>(second)], computed)) {
          grouping.siblings.push_back(Sibling{value, first, second, *reason});
          continue;
        }
        join(groups[static_cast<size_t>(first)], groups[static_cast<size_t>(second)]);
        waits[static_cast<size_t>(first)].insert(awaited.begin(), awaited.end());
        joined[static_cast<size_t>(second)] = first;
      }
    }
    std::vector<int> final_id(groups.size(), -1);
    std::vector<Group> kept;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (joined[g] != static_cast<int>(g)) continue;
      final_id[g] = static_cast<int>(kept.size());
      kept.push_back(std::move(groups[g]));
      kept.back().id = final_id[g];
    }
    for (size_t g = 0; g < final_id.size(); ++g) final_id[g] = final_id[static_cast<size_t>(now(static_cast<int>(g)))];
    groups = std::move(kept);
    for (Sibling& sibling : grouping.siblings) {
      sibling.first = final_id[static_cast<size_t>(sibling.first)];
      sibling.second = final_id[static_cast<size_t>(sibling.second)];
    }
    return final_id;
  }

  // Loop nests over the same axes that read all of `value`, at the same positions.
  bool are_siblings(const Group& a, const Group& b, ValueId value) const {
    if (a.kind != GroupKind::Loops || b.kind != GroupKind::Loops || a.axes.size() != b.axes.size() || graph_.constant(value) != nullptr) return false;
    for (size_t i = 0; i < a.axes.size(); ++i) {
      if (a.axes[i].name != b.axes[i].name || a.axes[i].reduced != b.axes[i].reduced) return false;
      if (!same_size(a.axes[i].extent, b.axes[i].extent, graph_.facts())) return false;
    }
    // A lone view may leave as a view of an input.
    for (const Group* group : {&a, &b}) {
      if (group->nodes.size() == 1 && roles_[index_of(group->nodes[0])] == LoopRole::View) return false;
    }
    for (const Use& use : a.uses.at(value)) {
      std::set<std::string> symbols;
      for (const Expr& at : use.index) sym::collect_symbols(at, symbols);
      const bool whole = !a.axes.empty() && std::all_of(a.axes.begin(), a.axes.end(), [&](const Axis& axis) { return symbols.count(axis.name) != 0; });
      if (!whole) continue;
      for (const Use& other : b.uses.at(value)) {
        if (other.index == use.index && other.guards == use.guards) return true;
      }
    }
    return false;
  }

  std::optional<Reason> can_join(const Group& first, const Group& second, bool computed) const {
    if (!computed) return Reason{Why::NotYetComputed, ""};
    if (first.nodes.size() + second.nodes.size() > options_.max_joined_nodes) return Reason{Why::TooLarge, ""};
    if (first.outputs.size() + second.outputs.size() > options_.max_joined_outputs) return Reason{Why::TooLarge, ""};
    // Loops that fold a window or a few elements in place, and arg-reductions, are shaped for themselves.
    if (!first.local_axes.empty() || !second.local_axes.empty() || has_arg_reduction(first) != has_arg_reduction(second)) return Reason{Why::DifferentLoop, ""};
    return std::nullopt;
  }

  bool has_arg_reduction(const Group& group) const {
    return std::any_of(group.nodes.begin(), group.nodes.end(), [&](NodeId id) {
      const op::Combine combine = graph_.node(id).op->combine;
      return combine == op::Combine::ArgMax || combine == op::Combine::ArgMin;
    });
  }

  void join(Group& first, Group& second) const {
    first.nodes.insert(first.nodes.end(), second.nodes.begin(), second.nodes.end());
    std::sort(first.nodes.begin(), first.nodes.end(), [&](NodeId a, NodeId b) { return position_[index_of(a)] < position_[index_of(b)]; });
    first.nodes.erase(std::unique(first.nodes.begin(), first.nodes.end()), first.nodes.end());   // cheap nodes are in both
    for (auto& [value, uses] : second.uses) {
      std::vector<Use>& known = first.uses[value];
      for (Use& use : uses) {
        if (std::none_of(known.begin(), known.end(), [&](const Use& k) { return k.index == use.index && k.guards == use.guards; })) known.push_back(std::move(use));
      }
    }
    const auto unite = [](std::vector<ValueId>& into, const std::vector<ValueId>& from) {
      into.insert(into.end(), from.begin(), from.end());
      std::sort(into.begin(), into.end(), [](ValueId a, ValueId b) { return a.index < b.index; });
      into.erase(std::unique(into.begin(), into.end()), into.end());
    };
    unite(first.outputs, second.outputs);
    unite(first.inputs, second.inputs);
  }

  // A group whose sizes use a symbol that a node defines runs after that node.
  void wait_for_symbols(size_t g) {
    if (!definers_known_) {
      definers_known_ = true;
      for (const NodeId id : graph_.nodes()) {
        const Node& node = graph_.node(id);
        if (!node.attrs.has("defines") || groups_of_[index_of(id)].empty()) continue;
        for (const Expr& symbol : node.attrs.shape("defines")) definers_[symbol.name()] = groups_of_[index_of(id)][0];
      }
    }
    if (definers_.empty()) return;
    std::set<std::string> symbols;
    for (const auto& [value, uses] : groups_[g].uses) {
      for (const Expr& size : graph_.type(value).shape) sym::collect_symbols(size, symbols);
    }
    for (const NodeId id : groups_[g].nodes) {
      for (const auto& [name, attr] : graph_.node(id).attrs.all()) {
        if (const auto* shape = std::get_if<op::Shape>(&attr)) {
          for (const Expr& size : *shape) sym::collect_symbols(size, symbols);
        }
      }
    }
    for (const std::string& symbol : symbols) {
      const auto definer = definers_.find(symbol);
      if (definer != definers_.end() && definer->second != static_cast<int>(g)) waits_on_[g].insert(definer->second);
    }
  }

  const Graph& graph_;
  const GroupOptions& options_;
  const std::vector<std::vector<NodeId>> users_;
  std::vector<std::vector<int>> groups_of_;      // by node: the groups that compute it
  std::vector<LoopRole> roles_;
  std::set<NodeId> epilogue_;                 // what a contraction before it can do as its epilogue
  std::vector<int> position_;
  std::vector<char> is_output_;
  std::vector<int> owner_;
  std::vector<Group> groups_;
  std::vector<std::set<int>> waits_on_;          // by group: the groups whose values it reads
  std::vector<Boundary> boundaries_;
  mutable int64_t steps_ = 0;                    // see Grouping::steps
  bool definers_known_ = false;
  std::map<std::string, int> definers_;
};

}  // namespace

Grouping group_nodes(const Graph& graph, const GroupOptions& options) { return Grouper(graph, options).run(); }

std::string explain(const Graph& graph, const Grouping& grouping) {
  const auto name_of = [&](ValueId id) {
    const std::string& name = graph.value(id).name;
    return name.empty() ? fmt::format("%{}", id.index) : "%" + name;
  };
  std::string out;
  for (const Group& group : grouping.groups) {
    out += fmt::format("group {} {}", group.id, group_kind_name(group.kind));
    for (const Axis& axis : group.axes) out += fmt::format(" {}{}:{}", axis.reduced ? "reduce " : "", axis.name, sym::to_string(axis.extent));
    out += "\n";
    for (const NodeId id : group.nodes) {
      const Node& node = graph.node(id);
      out += "  ";
      for (size_t i = 0; i < node.outputs.size(); ++i) out += (i == 0 ? "" : ", ") + name_of(node.outputs[i]) + ": " + op::to_string(graph.type(node.outputs[i]));
      out += fmt::format(" = {}", node.op->name);
      if (!node.origin.empty()) out += fmt::format("   from {}", node.origin);
      out += "\n";
    }
    out += "  stores";
    for (const ValueId value : group.outputs) out += " " + name_of(value);
    out += "\n";
  }
  for (const Boundary& boundary : grouping.boundaries) {
    out += fmt::format("boundary {}: group {} -> {}: {}{}\n", name_of(boundary.value), boundary.producer,
                       boundary.consumer < 0 ? std::string("caller") : fmt::format("group {}", boundary.consumer),
                       why_text(boundary.reason.why), boundary.reason.detail.empty() ? "" : " (" + boundary.reason.detail + ")");
  }
  for (const Sibling& sibling : grouping.siblings) {
    out += fmt::format("siblings group {} and group {} read {} apart: {}\n", sibling.first, sibling.second, name_of(sibling.value), why_text(sibling.reason.why));
  }
  return out;
}

}  // namespace fuseloom::schedule
