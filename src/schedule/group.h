// Grouping: which nodes of a graph become one kernel, and why no more.
//
// A group computes its nodes over named axes. The axes are the dimensions of its outputs, plus the axes that its
// reductions fold away. Every value of the group is read at known positions ("uses"): index expressions over the axes.
//
//     out[i, j] = e[i, j] / s[i]          axes i, j; j is reduced
//     e[i, j]   = exp(x[i, j] - m[i])     uses: e at [i, j], s at [i], m at [i], x at [i, j]
//
// The algorithm walks the nodes backwards, so that every consumer of a value has its group before the value is looked at:
//   1. A value whose consumers all sit in one group is computed inside it, when the group can take the node.
//   2. A cheap value is computed inside each of several consumers.
//   3. A value that one group reads exactly at its own positions, and others read too, is computed inside that group and
//      stored for the others, unless that would make two groups wait for each other.
//   4. Any other value is the output of a group of its own.
// When all groups stand in order, siblings are joined: two loop nests over the same axes that read one tensor at the same
// positions become one, which reads it once.
// Whether a group can take a node is answered with a value: yes, or the reason why not; the reasons are kept (C9).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace fuseloom::schedule {

using graph::NodeId;
using graph::ValueId;
using Index = std::vector<sym::Expr>;

enum class GroupKind : uint8_t {
  Loops,         // a loop nest: pointwise, reductions, normalizations, windows
  Contraction,   // one contraction with what is fused before and after
  Scan,          // one prefix scan with its fused input
  Call,          // one node run by its native function
  Alias,         // a reshape of a stored value: no code
  Control,       // if, while
};
std::string_view group_kind_name(GroupKind kind);

enum class Why : uint8_t {
  NotFusible,          // the node runs as a whole (extern, control), or its result must be stored for one that does
  GraphOutput,         // the value is a result of the program
  OtherConsumers,      // read by groups that cannot all take it, and too dear to compute twice
  DifferentLoop,       // a reduction whose loop does not match the group's
  DifferentReduction,  // the consumer already folds other axes
  ComputedRepeatedly,  // would be computed again and again inside (behind a broadcast, a window or a contraction)
  SecondContraction,   // one contraction per kernel
  ReadElsewhere,       // read at positions other than the group's own (permuted, strided, several at once)
  TooLarge,            // the kernel has reached its limit of nodes
  WouldWait,           // the two kernels would wait for each other
  NotYetComputed,      // a sibling needs a value that is computed after the first of the two runs
  FusionOff,           // the options forbid fusion
  LibraryProduct,      // a library computes the contraction, and it cannot do this as well
};
std::string_view why_text(Why why);

struct Reason {
  Why why;
  std::string detail;
};

struct Axis {
  std::string name;
  sym::Expr extent;
  bool reduced = false;
};

// How a value is read inside a group: at `index` (one expression per dimension of the value), where all `guards` hold.
// `budget` bounds the cost of what may be computed there: kOnce where every position is computed once.
struct Use {
  Index index;
  std::vector<sym::Expr> guards;
  int budget = 0;
};
inline constexpr int kOnce = 1 << 20;

struct Group {
  int id = 0;
  GroupKind kind = GroupKind::Loops;
  std::vector<Axis> axes;
  std::vector<NodeId> nodes;                     // in execution order once grouping is done
  std::map<ValueId, std::vector<Use>> uses;      // of every value the group computes or reads
  std::vector<ValueId> outputs;                  // values it stores, in execution order
  std::vector<ValueId> inputs;                   // stored values it reads, in value order
  NodeId contraction;                            // Contraction: the node
  std::map<NodeId, std::vector<Axis>> local_axes;   // window, small reduction, contraction: the axes it folds by itself
};

// A value that crosses from one kernel to another, and why the consumer did not compute it inside.
struct Boundary {
  ValueId value;
  int producer = -1, consumer = -1;              // group ids; consumer -1: the program's caller
  Reason reason;
};

// Two groups over the same axes that read `value` at the same positions, and why they were not joined.
struct Sibling {
  ValueId value;
  int first = -1, second = -1;                   // group ids
  Reason reason;
};

struct Grouping {
  std::vector<Group> groups;                     // in execution order; ids are positions
  std::vector<Boundary> boundaries;
  std::vector<Sibling> siblings;
  std::vector<int> owner;                        // by value index: the group that stores it, or -1
  int64_t steps = 0;                             // questions asked and edges walked: the work, counted (R53)
};

struct GroupOptions {
  size_t max_nodes = 160;
  bool fuse = true;                              // false: every node on its own (for comparison and bisection)
  size_t max_joined_nodes = 48;                  // siblings are joined up to so many nodes and stored values: a body that
  size_t max_joined_outputs = 8;                 // holds more keeps too much in registers
  // Bytes are dearer than arithmetic, and a loop may fold any axis (CUDA): what has one large operand is computed again
  // instead of stored, and a value behind a reduction joins the loop that it is broadcast to whatever axes that misses.
  bool spare_bytes = false;
  // Contractions that a library can do (library_product.h) take only what it can do with them.
  bool library_products = false;
};
Grouping group_nodes(const graph::Graph& graph, const GroupOptions& options = {});

// Readable: each group with its kind, axes and nodes, and each boundary with its reason.
std::string explain(const graph::Graph& graph, const Grouping& grouping);

}  // namespace fuseloom::schedule
