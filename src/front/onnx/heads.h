// Attention over heads, shared by the ONNX and the com.microsoft operators.
#pragma once
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {

// [batch, length, heads * size] → [batch, heads, length, size]; a tensor of rank 4 stays.
ValueId split_heads(NodeImport& n, ValueId x, int64_t heads);
// [batch, heads, length, size] → [batch, length, heads * size].
ValueId join_heads(NodeImport& n, ValueId x);
// An attention mask cut or filled to `total` keys: with false, or with -inf.
ValueId fill_mask(NodeImport& n, ValueId mask, const Expr& total);
// true where the key's position is below the batch entry's length: bool [batch, 1, 1, total] from integers [batch].
ValueId length_mask(NodeImport& n, ValueId lengths, const Expr& total);
// Both masks hold; either may be absent. `b` is bool.
ValueId join_masks(NodeImport& n, ValueId a, ValueId b);

struct AttentionSpec {
  ValueId q, k, v;   // [batch, heads, length, size]; fewer key heads than query heads: shared in groups
  ValueId mask;      // may be absent; bool, or added to the scores
  double scale = 0;  // 0: 1 / sqrt(size)
  double softcap = 0;
  bool causal = false;  // query i sees keys up to i + past
  Expr past = 0;
  int64_t scores = -1;  // which stage of the scores to give: 0 product, 1 capped, 2 masked, 3 softmax; -1: none
};
struct AttentionResult {
  ValueId y, scores;
};
AttentionResult attention(NodeImport& n, const AttentionSpec& spec);

}  // namespace fuseloom::front::onnx
