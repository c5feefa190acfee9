// Operators that read or write at indices, and those that sort or select.
#include <numeric>

#include "base/check.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

void import_gather(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(0, n.add("gather", {x, n.in(1)}, {{"axis", n.axis(n.integer("axis", 0), n.rank(x))}}), n.item(0).narrow);
}

void import_gather_elements(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(n.add("gather_elements", {x, n.in(1)}, {{"axis", n.axis(n.integer("axis", 0), n.rank(x))}}));
}

void import_gather_nd(NodeImport& n) {
  n.out(n.add("gather_nd", {n.in(0), n.in(1)}, {{"batch_dims", n.integer("batch_dims", 0)}}));
}

void import_scatter_elements(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(n.add("scatter_elements", {x, n.in(1), n.in(2)},
              {{"axis", n.axis(n.integer("axis", 0), n.rank(x))}, {"reduction", n.text("reduction", "none")}}));
}

void import_scatter_nd(NodeImport& n) {
  n.out(n.add("scatter_nd", {n.in(0), n.in(1), n.in(2)}, {{"reduction", n.text("reduction", "none")}}));
}

void import_one_hot(NodeImport& n) {
  ValueId indices = n.in(0);
  const Expr depth = n.read_size(n.in(1));
  const ValueId values = n.in(2);  // [off, on]
  const int64_t axis = n.axis(n.integer("axis", -1), n.rank(indices) + 1);
  if (is_float(n.dtype(indices)) || n.dtype(indices) != DType::I32) indices = n.cast(indices, DType::I64);
  n.out(n.add("one_hot", {indices, values}, {{"depth", Shape{depth}}, {"axis", axis}}));
}

void import_top_k(NodeImport& n) {
  const ValueId x = n.in(0);
  const int64_t axis = n.axis(n.integer("axis", -1), n.rank(x));
  const Expr k = n.version() >= 10 ? n.read_size(n.in(1)) : Expr(n.integer("k"));
  const std::vector<ValueId> results = n.add_many(
      "top_k", {x},
      {{"k", Shape{k}}, {"axis", axis}, {"largest", n.integer("largest", 1)}, {"sorted", n.integer("sorted", 1)}}, 2);
  n.out(0, results[0]);
  n.out(1, results[1]);
}

void import_non_zero(NodeImport& n) {
  const Expr count = Expr::symbol(n.graph().fresh_symbol("nonzero"));
  n.out(n.add("non_zero", {n.in(0)}, {{"defines", Shape{count}}}));
}

void import_unique(NodeImport& n) {
  const ValueId x = n.in(0);
  Attrs attrs{{"defines", Shape{Expr::symbol(n.graph().fresh_symbol("unique"))}}, {"sorted", n.integer("sorted", 1)}};
  if (n.has_attr("axis")) attrs.set("axis", n.axis(n.integer("axis"), n.rank(x)));
  const std::vector<ValueId> results = n.add_many("unique", {x}, std::move(attrs), 4);
  for (size_t i = 0; i < 4; ++i) n.out(i, results[i]);
}

void import_compress(NodeImport& n) {
  const ValueId x = n.in(0);
  Attrs attrs{{"defines", Shape{Expr::symbol(n.graph().fresh_symbol("compress"))}}};
  if (n.has_attr("axis")) attrs.set("axis", n.axis(n.integer("axis"), n.rank(x)));
  n.out(n.add("compress", {x, n.in(1)}, std::move(attrs)));
}

void import_reverse_sequence(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(n.add("reverse_sequence", {x, n.in(1)},
              {{"time_axis", n.axis(n.integer("time_axis", 0), n.rank(x))},
               {"batch_axis", n.axis(n.integer("batch_axis", 1), n.rank(x))}}));
}

// Writes `update` into the cache along an axis, for each entry of the batch from its own position on.
void import_tensor_scatter(NodeImport& n) {
  const ValueId cache = n.in(0), update = n.in(1);
  const int64_t rank = n.rank(cache), axis = n.axis(n.integer("axis", -2), rank);
  const std::string mode = n.text("mode", "linear");
  if (mode != "linear" && mode != "circular") n.fail(fmt::format("mode '{}' is neither linear nor circular", mode));
  Shape along(static_cast<size_t>(rank), Expr(1)), batch = along;
  along[static_cast<size_t>(axis)] = n.size(update, axis);
  batch[0] = n.size(cache, 0);
  ValueId index = n.add("iota", {}, {{"shape", along}, {"axis", axis}, {"dtype", DType::I64}});
  if (n.has(2)) index = n.add("add", {index, n.reshape(n.cast(n.in(2), DType::I64), batch)});
  if (mode == "circular") index = n.add("floor_mod", {index, n.sym_scalar(n.size(cache, axis))});
  n.out(n.add("scatter_elements", {cache, n.expand(index, n.shape(update)), update},
              {{"axis", axis}, {"reduction", std::string("none")}}));
}

void import_array_feature_extractor(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(n.add("gather", {x, n.reshape(n.in(1), {n.simplify(op::count_of(n.shape(n.in(1))))})},
              {{"axis", n.rank(x) - 1}}));
}

void import_binarizer(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(n.cast(n.add("gt", {x, n.like(x, n.real("threshold", 0))}), n.dtype(x)));
}

}  // namespace

void add_index_imports(ImportTable& t) {
  t.add("Gather", import_gather);
  t.add("GatherElements", import_gather_elements);
  t.add("GatherND", import_gather_nd);
  t.add("Scatter", import_scatter_elements);
  t.add("ScatterElements", import_scatter_elements);
  t.add("ScatterND", import_scatter_nd);
  t.add("OneHot", import_one_hot);
  t.add("TopK", import_top_k);
  t.add("NonZero", import_non_zero);
  t.add("Unique", import_unique);
  t.add("Compress", import_compress);
  t.add("ReverseSequence", import_reverse_sequence);
  t.add("TensorScatter", import_tensor_scatter);
  t.add("ai.onnx.ml", "ArrayFeatureExtractor", import_array_feature_extractor);
  t.add("ai.onnx.ml", "Binarizer", import_binarizer);
}

}  // namespace fuseloom::front::onnx
