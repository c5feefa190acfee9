#include "schedule/lower_recurrence.h"

#include <algorithm>

#include "op/recurrent.h"
#include "schedule/loop_builder.h"

namespace fuseloom::schedule {

using graph::Graph;
using graph::Node;
using kernel::Binding;
using sym::Expr;

namespace {

constexpr int64_t kRows = 4;  // sequences that share what is read of the weights
enum Input : size_t { kGates, kWeights, kCandidateWeights, kBias, kLengths, kHidden, kCell, kPeephole };

class RecurrenceLowering {
 public:
  RecurrenceLowering(const Graph& graph, const Group& group, const CpuTarget& target)
      : graph_(graph),
        group_(group),
        node_(graph.node(group.nodes[0])),
        plan_(graph, group, {}, AxisPlan::Merge::Off),
        build_(graph, group, plan_),
        dtype_(graph.type(node_.inputs[kGates]).dtype),
        lanes_(std::max<int32_t>(2, target.vector_bytes / static_cast<int32_t>(dtype_bytes(dtype_)))) {
    const op::Attrs& attrs = node_.attrs;
    cell_ = attrs.text("cell");
    gates_ = cell_ == "lstm" ? 4 : cell_ == "gru" ? 3 : 1;
    directions_ = attrs.text("direction") == "bidirectional" ? 2 : 1;
    batch_first_ = attrs.integer("layout", 0) != 0;
    activations_ = op::recurrent_activations(attrs);
    const op::Shape& shape = graph.type(node_.inputs[kGates]).shape;
    steps_ = shape[batch_first_ ? 1 : 0];
    batch_ = shape[batch_first_ ? 0 : 1];
    hidden_ = graph.type(node_.inputs[kWeights]).shape[2];
    first_columns_ = panels(kWeights) * op::kRecurrentPanel;
    columns_ =
        has(kCandidateWeights) ? first_columns_ + panels(kCandidateWeights) * op::kRecurrentPanel : first_columns_;
  }

  LoweredGroup run() {
    std::vector<Expr> positions;
    const bool core = build_.open_core(
        {{"direction_", directions_}, {"block_", sym::simplify(sym::ceil_div(batch_, kRows), plan_.facts())}},
        &positions);
    direction_ = positions[0];
    first_ = build_.name("first_", positions[1] * kRows);
    count_ = sym::simplify(sym::min(kRows, batch_ - first_), plan_.facts());
    count_ = build_.name("count_", count_);
    h_ = build_.local("hidden", dtype_, hidden_ * kRows);
    sums_ = build_.local("sums", dtype_, columns_ * kRows);
    if (cell_ == "lstm") c_ = build_.local("cell", dtype_, hidden_ * kRows);
    const bool resets_before = cell_ == "gru" && node_.attrs.integer("linear_before_reset", 0) == 0;
    if (resets_before) reset_ = build_.local("reset", dtype_, hidden_ * kRows);

    each_row([&] {
      if (has(kLengths)) check_length();
      each_lane([&] {
        put(h_, has(kHidden) ? build_.value_at(node_.inputs[kHidden], state_index()) : number(0));
        if (cell_ == "lstm") put(c_, has(kCell) ? build_.value_at(node_.inputs[kCell], state_index()) : number(0));
      });
    });
    build_.open("i_", 0, steps_, Binding::Serial);
    product(h_, kWeights, 0);
    if (cell_ == "gru" && !resets_before) product(h_, kCandidateWeights, first_columns_);
    if (resets_before) {
      each_row([&] {
        open_step();
        each_lane([&] { put(reset_, build_.apply("mul", dtype_, {activate(0, gate(1)), get(h_)})); });
      });
      product(reset_, kCandidateWeights, first_columns_);
    }
    each_row([&] {
      open_step();
      each_lane([&] { step(resets_before); });
    });
    build_.close();
    each_row([&] {
      each_lane([&] {
        if (node_.outputs.size() > 1) give(node_.outputs[1], state_index(), get(h_));
        if (node_.outputs.size() > 2) give(node_.outputs[2], state_index(), get(c_));
      });
    });
    if (core) build_.close();

    LoweredGroup lowered;
    LoweredKernel kernel = build_.finish("recurrence");
    kernel.bytes = moved_bytes(graph_, group_);
    kernel.work = sym::floor_div(steps_ * batch_ * directions_ * hidden_ * (hidden_ * gates_ + 64), 16);
    lowered.choice = Choice{.schedule = "recurrence", .vector_axis = "j_", .width = lanes_};
    lowered.kernels.push_back(std::move(kernel));
    return lowered;
  }

 private:
  bool has(size_t input) const { return input < node_.inputs.size() && node_.inputs[input].valid(); }
  Expr panels(size_t input) const { return graph_.type(node_.inputs[input]).shape[1]; }
  ScalarId number(double value) { return build_.constant(dtype_, value); }

  // ---- loops over the sequences of this iteration, and over the elements of a state
  template <class Body>
  void each_row(Body&& body) {
    const bool loop = !count_.is_const(1);
    if (loop) build_.open("row_", 0, count_, Binding::Serial);
    row_ = loop ? Expr::symbol("row_") : Expr(0);
    sequence_ = first_ + row_;
    body();
    if (loop) build_.close();
  }
  template <class Body>
  void each_lane(Body&& body) {
    build_.open("j_", 0, hidden_, Binding::Vector, lanes_, 1);
    body();
    build_.close();
  }
  static Expr lane() { return Expr::symbol("j_"); }
  ScalarId get(kernel::BufferId state) { return build_.element_of(state, row_ * hidden_ + lane()); }
  void put(kernel::BufferId state, ScalarId value) {
    build_.append(
        {kernel::Store{.buffer = state, .index = build_.simplified(row_ * hidden_ + lane()), .value = value}});
  }
  Index state_index() const {
    return batch_first_ ? Index{sequence_, direction_, lane()} : Index{direction_, sequence_, lane()};
  }
  void give(ValueId output, const Index& index, ScalarId value) {
    const Expr at = linear_index(graph_.type(output).shape, index);
    build_.append({kernel::Store{
        .buffer = build_.argument(output, kernel::Access::Write), .index = build_.simplified(at), .value = value}});
  }

  // ---- lengths of sequences
  ScalarId given_length() {
    const ScalarId length = build_.value_at(node_.inputs[kLengths], {sequence_});
    const ScalarId wide = build_.dtype(length) == DType::I64 ? length : build_.apply("cast", DType::I64, {length});
    build_.pin(wide);
    return wide;
  }
  Expr as_integer(ScalarId id) { return Expr::symbol(build_.kernel().scalar(id).name); }
  void check_length() {
    const ScalarId given = given_length(), one = build_.integer(DType::I64, 1);
    const Expr length = as_integer(given);
    const kernel::BufferId check = build_.check_argument(node_.origin.empty() ? node_.op->name : node_.origin);
    const std::vector<Expr> outside{sym::ne(sym::le(0, length) * sym::le(length, steps_), 1)};
    build_.append({kernel::Store{.buffer = check, .index = 1, .value = given, .guards = outside}});
    build_.append({kernel::Store{.buffer = check, .index = 0, .value = one, .guards = outside}});
  }
  // Step i of this row: whether the sequence has it, and where its element lies. Behind the end, where the result is
  // zero.
  void open_step() {
    const Expr i = Expr::symbol("i_");
    Expr length = steps_;
    active_ = 1;
    if (has(kLengths)) {
      length = build_.define("length_", sym::min(sym::max(as_integer(given_length()), 0), steps_));
      active_ = build_.define("active_", sym::lt(i, length));
    }
    const Expr reversed = node_.attrs.text("direction") == "reverse" ? Expr(1)
                          : directions_ == 2                         ? direction_
                                                                     : Expr(0);
    at_ = build_.define("t_", sym::select(reversed * active_, length - 1 - i, i));
  }
  // `value` where the sequence has the step, else what `other` gives.
  template <class Other>
  ScalarId where_active(ScalarId value, Other&& other) {
    return active_.is_const(1) ? value : build_.apply("select", dtype_, {build_.condition({active_}), value, other()});
  }

  // ---- sums[row][first + column] = sum over k of state[row][k] * weights[k][column]
  void product(kernel::BufferId state, size_t weights, const Expr& first) {
    if (count_.is_const(1)) {
      tiles(state, weights, first, {0});
      return;
    }
    std::vector<Expr> all;
    for (int64_t row = 0; row < kRows; ++row) all.emplace_back(row);
    build_.open_if(sym::eq(count_, kRows));
    tiles(state, weights, first, all);
    build_.close();
    build_.open_if(sym::lt(count_, kRows));
    build_.open("row_", 0, count_, Binding::Serial);
    tiles(state, weights, first, {Expr::symbol("row_")});
    build_.close();
    build_.close();
  }
  void tiles(kernel::BufferId state, size_t weights, const Expr& first, const std::vector<Expr>& rows) {
    const Expr panel = Expr::symbol("panel_"), k = Expr::symbol("k_"), column = Expr::symbol("column_");
    const int32_t unroll =
        rows.size() > 1 ? 2 : std::clamp<int32_t>(static_cast<int32_t>(op::kRecurrentPanel) / lanes_, 1, 8);
    build_.open("panel_", 0, panels(weights), Binding::Serial);
    build_.open("column_", 0, op::kRecurrentPanel, Binding::Vector, lanes_, unroll);
    std::vector<kernel::Accumulator> sums;
    for (size_t i = 0; i < rows.size(); ++i)
      sums.push_back({.result = build_.reserve(dtype_), .combine = op::Combine::Add});
    build_.open_reduce(sums);
    build_.open("k_", 0, hidden_, Binding::Serial);
    const ScalarId weight = build_.value_at(node_.inputs[weights], {direction_, panel, k, column});
    for (size_t i = 0; i < rows.size(); ++i) {
      const ScalarId element = build_.element_of(state, rows[i] * hidden_ + k);
      build_.accumulate(sums[i].result, build_.apply("mul", dtype_, {element, weight}));
    }
    build_.close();
    build_.close();
    for (size_t i = 0; i < rows.size(); ++i) {
      const Expr at = rows[i] * columns_ + first + panel * op::kRecurrentPanel + column;
      build_.append({kernel::Store{.buffer = sums_, .index = build_.simplified(at), .value = sums[i].result}});
    }
    build_.close();
    build_.close();
  }

  // ---- the cell
  ScalarId activate(size_t which, ScalarId x) {
    return build_.rule(activations_[which], {}, dtype_, std::vector<ScalarId>{x});
  }
  ScalarId add(ScalarId a, ScalarId b) { return build_.apply("add", dtype_, {a, b}); }
  ScalarId mul(ScalarId a, ScalarId b) { return build_.apply("mul", dtype_, {a, b}); }
  ScalarId rest(ScalarId x) { return build_.apply("sub", dtype_, {number(1), x}); }
  ScalarId from_input(int64_t which) {
    const Expr column = (direction_ * gates_ + which) * hidden_ + lane();
    return build_.value_at(node_.inputs[kGates],
                           batch_first_ ? Index{sequence_, at_, column} : Index{at_, sequence_, column});
  }
  ScalarId from_state(int64_t which) {
    const Expr column = has(kCandidateWeights) && which == 2 ? first_columns_ : hidden_ * which;
    return build_.element_of(sums_, row_ * columns_ + column + lane());
  }
  ScalarId gate(int64_t which) { return add(from_input(which), from_state(which)); }
  ScalarId peephole(ScalarId gate, int64_t which, ScalarId c) {
    return has(kPeephole)
               ? add(gate, mul(build_.value_at(node_.inputs[kPeephole], {direction_, hidden_ * which + lane()}), c))
               : gate;
  }
  void step(bool resets_before) {
    ScalarId next;
    if (cell_ == "lstm") {
      const ScalarId c = get(c_);
      const ScalarId input = activate(0, peephole(gate(0), 0, c));
      const ScalarId forget =
          node_.attrs.integer("input_forget", 0) != 0 ? rest(input) : activate(0, peephole(gate(2), 2, c));
      const ScalarId next_c = add(mul(forget, c), mul(input, activate(1, gate(3))));
      next = mul(activate(0, peephole(gate(1), 1, next_c)), activate(2, next_c));
      put(c_, where_active(next_c, [&] { return c; }));
    } else if (cell_ == "gru") {
      const ScalarId z = activate(0, gate(0));
      ScalarId candidate;
      if (resets_before) {
        candidate = gate(2);
      } else {
        ScalarId sum = from_state(2);
        if (has(kBias)) sum = add(sum, build_.value_at(node_.inputs[kBias], {direction_, lane()}));
        candidate = add(from_input(2), mul(activate(0, gate(1)), sum));
      }
      next = add(mul(rest(z), activate(1, candidate)), mul(z, get(h_)));
    } else {
      next = activate(0, gate(0));
    }
    if (!active_.is_const(1)) {
      const ScalarId before = get(h_);
      put(h_, where_active(next, [&] { return before; }));
    } else {
      put(h_, next);
    }
    give(node_.outputs[0],
         batch_first_ ? Index{sequence_, at_, direction_, lane()} : Index{at_, direction_, sequence_, lane()},
         where_active(next, [&] { return number(0); }));
  }

  const Graph& graph_;
  const Group& group_;
  const Node& node_;
  const AxisPlan plan_;
  LoopBuilder build_;
  const DType dtype_;
  const int32_t lanes_;
  std::string cell_;
  int64_t gates_ = 1, directions_ = 1;
  bool batch_first_ = false;
  std::vector<op::ScalarNode> activations_;
  Expr steps_, batch_, hidden_, first_columns_, columns_;  // columns of sums: whole panels
  Expr direction_, first_, count_;                         // of this Core iteration
  Expr row_, sequence_, active_ = 1, at_;                  // of the row that is written
  kernel::BufferId h_, c_, reset_, sums_;
};

}  // namespace

bool can_lower_recurrence(const Graph& graph, const Group& group) {
  const Node& node = graph.node(group.nodes[0]);
  return node.op->family == op::Family::Recurrence && !op::recurrent_activations(node.attrs).empty();
}

LoweredGroup lower_recurrence(const Graph& graph, const Group& group, const CpuTarget& target) {
  return RecurrenceLowering(graph, group, target).run();
}

}  // namespace fuseloom::schedule
