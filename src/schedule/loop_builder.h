// Names: every axis and every name that lowering makes up ends in an underscore; names of sizes never do (lower_program
// checks), so the two cannot meet.
//
// Writes the statements of a kernel: loops are opened and closed like brackets, and a value is asked for at a position;
// whatever computes it is placed in the outermost open loop it depends on, once.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "schedule/axis_plan.h"
#include "schedule/lower.h"
#include "schedule/read.h"

namespace fuseloom::schedule {

using kernel::ScalarId;

class LoopBuilder {
 public:
  LoopBuilder(const graph::Graph& graph, const Group& group, const AxisPlan& plan);

  // ---- loops. The bodies of the open loops form a stack; level 0 is the kernel's own body.
  // `unroll` kByBody: chosen when the loop closes, as many vectors as its body leaves room for.
  static constexpr int32_t kByBody = 0;
  void open(const std::string& axis, sym::Expr begin, sym::Expr end, kernel::Binding binding, int32_t width = 1, int32_t unroll = 1);
  // The Core loop over the product of some extents, outermost first, with each name defined as its part of the index. The
  // positions come back (0 where there is but one). Without a second iteration there is no loop, and false.
  struct Digit {
    std::string name;
    sym::Expr extent;
  };
  bool open_core(const std::vector<Digit>& digits, std::vector<sym::Expr>* positions = nullptr);
  void open_reduce(std::vector<kernel::Accumulator> accumulators);
  // Loops over the axes that a node folds in place; positions along them.
  std::vector<sym::Expr> open_local_axes(NodeId id);
  void close_local_axes(NodeId id);
  // A pool's result from what its window combines to.
  ScalarId pooled(const graph::Node& pool, const Index& index, ScalarId combined);
  void open_if(const sym::Expr& condition);
  void close();
  // A body that belongs to a statement other than a loop (the operands and the epilogue of Contract).
  void open_block(const std::vector<std::string>& names);
  kernel::Body close_block();
  int level() const { return static_cast<int>(scopes_.size()) - 1; }
  sym::Expr define(const std::string& name, const sym::Expr& value);    // in the innermost open body
  // Nothing is placed further out than the innermost body that is open now.
  void set_floor() { floor_ = level(); }
  // From now on a loop axis of the plan stands for an expression over names that are in scope wherever it is used.
  void set_axis(const std::string& axis, sym::Expr value);
  // Facts about names that lowering itself introduces.
  void assume(const std::string& name, sym::Range range);
  void assume_below(const std::string& name, sym::Expr end);   // 0 <= name < end
  // `name` counts the lanes of a thread's vector: conditions that all lanes share are written without it.
  void assume_lanes(const std::string& name, int64_t lanes);
  // A size of the kernel that is an expression over the program's symbols.
  sym::Expr size(const std::string& name, sym::Expr value, sym::Range range);
  // The value under a name, or itself when it is a constant.
  sym::Expr name(const std::string& name, const sym::Expr& value) { return value.is_const() ? value : define(name, value); }

  // ---- values, in the compute type of the graph value's type, rounded to that type.
  ScalarId value_at(ValueId value, const Index& index, const std::vector<sym::Expr>& guards = {});
  // An element of one of the kernel's own buffers.
  ScalarId element_of(kernel::BufferId buffer, const sym::Expr& position);
  // The same, and zero where a guard fails.
  ScalarId guarded_value_at(ValueId value, const Index& index, const std::vector<sym::Expr>& guards);
  // Guards that every load of the arguments, and every store of a value, has from now on (what lies beyond an edge).
  void set_guards(std::vector<sym::Expr> guards) { guards_ = std::move(guards); }
  // The scalar belongs to the innermost open body.
  void pin(ScalarId id) { scalar_level_[static_cast<size_t>(id.index)] = level(); }
  // Stores values, each where the group has it, in the innermost open body. All are computed before the first is
  // stored: the memory of one may be that of another's operand (in place).
  void store(std::span<const ValueId> values);
  // The operand of a reduction at its position; and the reduction's result, once it is known.
  void set_result(NodeId reduction, ScalarId result) { results_[reduction] = result; }
  // From now on `value` is read from this buffer at this position (expression over loop axes) instead of being computed.
  void set_resident(ValueId value, kernel::BufferId buffer, sym::Expr position);
  // The same where it is asked for at `index`, and only there.
  void set_resident(ValueId value, const Index& index, kernel::BufferId buffer, sym::Expr position);
  void forget_residents() { resident_.clear(); }
  // Runs `body` as if nothing were resident.
  template <class Body>
  void without_residents(Body&& body) {
    std::map<ValueId, std::vector<Resident>> held;
    held.swap(resident_);
    body();
    held.swap(resident_);
  }
  void forget_resident(ValueId value) { resident_.erase(value); }
  // Copies an element of a stored value, as it is, to a buffer of the value's own type.
  void stage(ValueId value, const Index& index, const std::vector<sym::Expr>& guards, kernel::BufferId buffer, const sym::Expr& position);
  // From now on stores of `value` go to this buffer at this position.
  void set_store_tile(ValueId value, kernel::BufferId buffer, sym::Expr position);

  // ---- scalars
  ScalarId let(DType dtype, kernel::Source source);                     // at the level its operands allow
  ScalarId reserve(DType dtype);                                        // a name for an accumulator
  kernel::Accumulator accumulator_of(NodeId reduction);
  ScalarId apply(std::string_view op, DType result, std::vector<ScalarId> args, op::Attrs attrs = {});
  ScalarId rule(const op::ScalarNode& rule, const op::Attrs& attrs, DType dtype, std::span<const ScalarId> inputs);   // op/op.h
  ScalarId constant(DType dtype, double value);
  ScalarId integer(DType dtype, int64_t value);
  ScalarId index_value(DType dtype, const sym::Expr& value);
  ScalarId condition(const std::vector<sym::Expr>& guards);             // all of them, as bool
  ScalarId round_to(DType declared, ScalarId value);                    // f16 and bf16: to the type and back
  ScalarId identity_of(op::Combine combine, DType dtype);
  ScalarId combine(op::Combine combine, DType dtype, ScalarId a, ScalarId b);
  DType dtype(ScalarId id) const { return kernel_.scalar(id).dtype; }
  void append(kernel::Statement statement);                             // in the innermost open body
  void accumulate(ScalarId accumulator, ScalarId value, const sym::Expr& index = 0);
  // The same; truth values that argmax and argmin compare become numbers.
  void accumulate(const kernel::Accumulator& accumulator, ScalarId value, const sym::Expr& index);

  // ---- buffers
  kernel::BufferId argument(ValueId value, kernel::Access access);
  // The argument that tells of an index outside its dimension; `node` is named in the message.
  kernel::BufferId check_argument(const std::string& node);
  kernel::BufferId argument(Argument argument, std::string name, DType dtype, sym::Expr size, kernel::Access access);
  kernel::BufferId local(std::string name, DType dtype, sym::Expr size);
  kernel::BufferId shared(std::string name, DType dtype, sym::Expr size);

  const AxisPlan& plan() const { return plan_; }
  kernel::Kernel& kernel() { return kernel_; }
  // Over the names in scope, simplified under all that is known of them.
  sym::Expr simplified(const sym::Expr& expr) const;

  // All loops closed: the kernel with its symbols and arguments.
  LoweredKernel finish(std::string_view kind);

 private:
  using Key = std::tuple<int32_t, Index, std::vector<sym::Expr>>;
  struct Scope {
    kernel::Body body;
    kernel::Statement owner;            // the Loop or Reduce this body belongs to (level 0: unused)
    std::set<std::string> names;        // axes and Defines bound here
    std::map<Key, ScalarId> known;
  };
  struct Resident {
    std::optional<Index> index;         // absent: any
    kernel::BufferId buffer;
    sym::Expr position;
  };

  Scope pop();
  sym::Expr without_lanes(const sym::Expr& condition) const;
  int level_of(const sym::Expr& expr) const;
  int level_of(ScalarId id) const { return scalar_level_[static_cast<size_t>(id.index)]; }
  void place(int level, kernel::Statement statement) { scopes_[static_cast<size_t>(level)].body.push_back(std::move(statement)); }
  ScalarId load_stored(kernel::BufferId buffer, const sym::Expr& position, const std::vector<sym::Expr>& guards, double fill);
  ScalarId load(kernel::BufferId buffer, DType declared, const sym::Expr& position, const std::vector<sym::Expr>& guards, double fill);
  ScalarId compute(ValueId value, const Index& index, const std::vector<sym::Expr>& guards);
  ScalarId pointwise(const graph::Node& node, const op::TensorType& type, const Index& index, const std::vector<sym::Expr>& guards);
  ScalarId view(const graph::Node& node, const op::TensorType& type, const Index& index, const std::vector<sym::Expr>& guards);
  ScalarId gather(NodeId id, const Index& index, const std::vector<sym::Expr>& guards);
  ScalarId small_reduction(NodeId id, const Index& index, const std::vector<sym::Expr>& guards);
  ScalarId window(NodeId id, const Index& index, const std::vector<sym::Expr>& guards);
  bool is_external(ValueId value) const;
  const Resident* resident(ValueId value, const Index& index) const;
  void check_index(const std::string& node, ScalarId index, const sym::Expr& size, const std::vector<sym::Expr>& guards);

  const graph::Graph& graph_;
  const Group& group_;
  const AxisPlan& plan_;
  std::set<ValueId> computed_;
  kernel::Kernel kernel_;
  std::vector<Argument> arguments_;
  std::map<ValueId, kernel::BufferId> value_buffers_;
  std::vector<Scope> scopes_;
  std::vector<int> scalar_level_;
  std::map<std::string, int> name_level_;          // axes, defines and scalars used as integers
  std::map<NodeId, ScalarId> results_;
  std::map<ValueId, std::vector<Resident>> resident_;
  std::map<ValueId, Resident> store_tiles_;
  std::vector<sym::Expr> guards_;
  std::string check_message_;
  kernel::BufferId check_;
  std::map<ScalarId, ScalarId> narrow_;            // an f32 that was widened from f16 or bf16 → what it was widened from
  int floor_ = 0;                                  // no statement lies further out
  int store_level_ = 1;                            // no store to an argument lies further out
  sym::Substitution axes_, sizes_;
  sym::Facts facts_;
  std::map<std::string, int64_t> lanes_;
  mutable std::map<sym::Expr, sym::Expr> simplified_;
};

// The value an absent element has in a reduction: what combining leaves unchanged.
double identity_value(op::Combine combine, DType dtype);

}  // namespace fuseloom::schedule
