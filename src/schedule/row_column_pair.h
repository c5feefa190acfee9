// A group that normalizes rows and one that folds the rows away, over the same data: the backward of a normalization, with
// the gradients of its scale and bias. One kernel reads the data once for both.
#pragma once
#include <optional>
#include <vector>

#include "schedule/phase_plan.h"

namespace fuseloom::schedule {

struct ColumnReduction {
  NodeId id;
  ValueId operand;
  Index position;                      // of the operand, over the axes of `merged`
};
struct RowColumnPair {
  Group rows, columns;
  Group merged;                        // both, over the axes of `rows`; stores what `rows` stores
  std::vector<ColumnReduction> reductions;   // of `columns`
};
// The pair, if they are one: each folds what the other keeps, and `columns` reads nothing that `rows` does not.
std::optional<RowColumnPair> pair_rows_with_columns(const graph::Graph& graph, const Group& rows, const Group& columns);

}  // namespace fuseloom::schedule
