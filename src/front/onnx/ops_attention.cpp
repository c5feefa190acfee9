// Attention in its several forms, and what goes with it.
#include <cmath>
#include <memory>
#include <set>

#include "base/check.h"
#include "front/onnx/heads.h"
#include "front/onnx/model_importer.h"
#include "front/onnx/node_import.h"

namespace fuseloom::front::onnx {
namespace {

void import_attention(NodeImport& n) {
  const bool packed = n.rank(n.in(0)) == 3;
  const int64_t q_heads = n.integer("q_num_heads", 0), kv_heads = n.integer("kv_num_heads", 0);
  AttentionSpec spec{.q = split_heads(n, n.in(0), q_heads),
                     .k = split_heads(n, n.in(1), kv_heads),
                     .v = split_heads(n, n.in(2), kv_heads),
                     .mask = n.in_or_none(3)};
  spec.causal = n.integer("is_causal", 0) != 0;
  if (n.has(4) && n.has(5)) {
    spec.past = n.size(n.in(4), 2);
    spec.k = n.concat({n.in(4), spec.k}, 2);
    spec.v = n.concat({n.in(5), spec.v}, 2);
  }
  const Expr total = n.size(spec.k, 2);
  if (spec.mask.valid()) spec.mask = fill_mask(n, spec.mask, total);
  if (n.has(6)) spec.mask = join_masks(n, spec.mask, length_mask(n, n.in(6), total));
  spec.scale = n.real("scale", 0);
  spec.softcap = n.real("softcap", 0);
  if (n.wants(3)) spec.scores = n.integer("qk_matmul_output_mode", 0);
  // Mode 1 is the score after the cap, and mode 0 is before it; where there is no cap they are one.
  const AttentionResult result = attention(n, spec);
  n.out(0, packed ? join_heads(n, result.y) : result.y);
  n.out(1, spec.k);
  n.out(2, spec.v);
  if (n.wants(3)) n.out(3, result.scores);
}

void import_rotary_embedding(NodeImport& n) {
  const ValueId x = n.in(0);
  const bool packed = n.rank(x) == 3;
  std::vector<ValueId> inputs = {split_heads(n, x, n.integer("num_heads", 0)), n.in(1), n.in(2)};
  if (n.has(3)) inputs.push_back(n.in(3));
  Attrs attrs{{"interleaved", n.integer("interleaved", 0)}};
  if (const int64_t size = n.integer("rotary_embedding_dim", 0); size != 0) attrs.set("rotary_dim", size);
  const ValueId y = n.add("rotary_embedding", std::move(inputs), std::move(attrs));
  n.out(packed ? join_heads(n, y) : y);
}

// The attention whose scores and probabilities subgraphs may change.
void import_flex_attention(NodeImport& n) {
  const ValueId q = n.in(0);
  ValueId k = n.in(1), v = n.in(2);
  for (const ValueId input : {q, k, v})
    if (n.rank(input) != 4) n.fail(fmt::format("takes inputs of rank 4, found {}", op::to_string(n.type(input))));
  const DType dtype = n.dtype(q);
  DType precision = dtype == DType::F16 || dtype == DType::BF16 ? DType::F32 : dtype;
  if (n.has_attr("softmax_precision"))
    precision = carrier_dtype(static_cast<ElementType>(n.integer("softmax_precision")), n.describe());
  const auto share = [&](ValueId x) {  // each key head serves a group of query heads
    const Shape s = n.shape(x);
    if (s[1] == n.size(q, 1)) return x;
    const Expr group = n.simplify(sym::floor_div(n.size(q, 1), s[1]));
    return n.reshape(n.expand(n.reshape(x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], group, s[2], s[3]}),
                     {s[0], n.size(q, 1), s[2], s[3]});
  };
  k = share(k);
  v = share(v);
  double scale = n.real("scale", 0);
  if (!n.has_attr("scale")) {
    const auto size = n.size(q, 3).as_const();
    if (!size.has_value()) n.unsupported("a head size that only the run knows, without a scale");
    scale = 1 / std::sqrt(static_cast<double>(*size));
  }
  const auto modified = [&](std::string_view name, ValueId x) {
    if (!n.has_attr(name)) return x;
    const GraphProto& graph = n.subgraph(name);
    if (graph.inputs.size() != 1 || graph.outputs.size() != 1)
      n.fail(fmt::format("{} takes one tensor and gives one", name));
    NameScope scope;
    scope.items.emplace(std::string(graph.inputs[0].name), Item::tensor(x));
    const Item result = n.inline_subgraph(graph, scope)[0];
    if (result.kind != Item::Kind::Tensor) n.fail(fmt::format("{} does not give a tensor", name));
    return n.cast(result.value, precision);
  };
  const ValueId root = n.like(q, std::sqrt(scale));
  ValueId scores = n.add("matmul", {n.add("mul", {q, root}), n.add("mul", {k, root})}, {{"trans_b", int64_t{1}}});
  scores = modified("score_mod", n.cast(scores, precision));
  ValueId probabilities = n.add("softmax", {scores}, {{"axis", int64_t{3}}});
  probabilities = modified("prob_mod", probabilities);
  n.out(n.cast(n.add("matmul", {probabilities, n.cast(v, precision)}), n.dtype(v)));
}

// A recurrence over time on a state [batch, heads, key size, value size] in f32:
//   state *= exp(decay_t);  v_t = beta_t * (v_t - stateᵀ k_t);  state += k_t ⊗ v_t;  y_t = scale * q_tᵀ state
// each step where the update rule has it. As a loop: the state is carried, y_t is scanned.
void import_linear_attention(NodeImport& n) {
  const int64_t q_heads = n.integer("q_num_heads"), kv_heads = n.integer("kv_num_heads");
  const std::string rule = n.text("update_rule", "gated_delta");
  if (rule != "linear" && rule != "gated" && rule != "delta" && rule != "gated_delta")
    n.fail(fmt::format("update_rule '{}' is not known", rule));
  if (q_heads < 1 || kv_heads < 1 || q_heads % kv_heads != 0)
    n.fail(fmt::format("{} query heads for {} key heads", q_heads, kv_heads));
  const bool gated = rule == "gated" || rule == "gated_delta", delta = rule == "delta" || rule == "gated_delta";
  const DType dtype = n.dtype(n.in(0));
  const auto wide = [&](ValueId x) { return n.cast(x, DType::F32); };
  const ValueId q = wide(split_heads(n, n.in(0), q_heads)), k = wide(split_heads(n, n.in(1), kv_heads)),
                v = wide(split_heads(n, n.in(2), kv_heads));
  const Expr batch = n.size(q, 0), length = n.size(q, 2), key_size = n.size(k, 3), value_size = n.size(v, 3);
  const Shape state_shape = {batch, kv_heads, key_size, value_size};
  const ValueId state = n.has(3) ? wide(n.in(3)) : n.full(DType::F32, 0, state_shape);
  double scale = n.real("scale", 0);
  if (scale == 0) {
    if (!key_size.is_const()) n.unsupported("a key size that only the run knows, without a scale");
    scale = 1 / std::sqrt(static_cast<double>(*key_size.as_const()));
  }
  std::vector<ValueId> captures = {q, k, v};
  if (gated) {
    const Expr last = n.size(n.in(4), 2);
    captures.push_back(wide(split_heads(n, n.in(4), kv_heads)));  // [b, heads, t, 1 or key size]
    if (!last.is_const()) n.unsupported("a decay whose last size only the run knows");
  }
  if (delta) {
    const auto heads = n.size(n.in(5), 2).as_const();
    if (!heads.has_value()) n.unsupported("a beta whose last size only the run knows");
    captures.push_back(wide(split_heads(n, n.in(5), *heads)));  // [b, heads or 1, t, 1]
  }

  Graph body(n.graph().table(), "body");
  const std::set<std::string> symbols = ModelImporter::visible_symbols(n.graph());
  body.set_outer_symbols({symbols.begin(), symbols.end()});
  body.facts() = n.graph().facts();
  const std::string origin = n.origin();
  const ValueId t = body.add_input("iteration", {.dtype = DType::I64, .shape = {}});
  const ValueId condition = body.add_input("condition", {.dtype = DType::Bool, .shape = {}});
  ValueId s = body.add_input("state", {.dtype = DType::F32, .shape = state_shape});
  std::vector<ValueId> rows;  // each capture at t: [b, heads, size]
  for (const ValueId outer : captures)
    rows.push_back(body.add("gather", {body.add_input("", n.type(outer)), t}, {{"axis", int64_t{2}}}, origin));
  const auto add = [&](std::string_view op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return body.add(op, std::move(inputs), std::move(attrs), origin);
  };
  const auto as = [&](ValueId x, bool column) {  // [b, h, d] → [b, h, d, 1] or [b, h, 1, d]
    Shape shape = body.type(x).shape;
    shape.insert(column ? shape.end() : shape.end() - 1, Expr(1));
    return add("reshape", {x}, {{"shape", shape}});
  };
  if (gated) s = add("mul", {s, as(add("exp", {rows[3]}), true)});
  ValueId value = as(rows[2], false);
  const ValueId key = as(rows[1], true);
  if (delta) {
    const ValueId recalled = add("matmul", {key, s}, {{"trans_a", int64_t{1}}});
    value = add("mul", {as(rows[gated ? 4 : 3], true), add("sub", {value, recalled})});
  }
  s = add("add", {s, add("mul", {key, value})});
  // The query heads of a group read one state, as the rows of one product.
  const Expr group = q_heads / kv_heads, query_size = n.size(q, 3);
  const ValueId queries = add("reshape", {rows[0]}, {{"shape", Shape{batch, kv_heads, group, query_size}}});
  ValueId y = add("mul", {add("matmul", {queries, s}), body.add_constant(Tensor::scalar(DType::F32, scale))});
  y = add("reshape", {y}, {{"shape", Shape{batch, q_heads, value_size}}});
  body.set_outputs({condition, s, y});
  ModelImporter::finish_subgraph(body);

  std::vector<std::unique_ptr<Graph>> graphs;
  graphs.push_back(std::make_unique<Graph>(std::move(body)));
  std::vector<ValueId> inputs = {n.sym_scalar(length), ValueId{}, state};
  inputs.insert(inputs.end(), captures.begin(), captures.end());
  const graph::NodeId loop = n.graph().add_control_node(
      "while", std::move(inputs), {{"carried", int64_t{1}}, {"scans", int64_t{1}}}, std::move(graphs),
      {{.dtype = DType::F32, .shape = state_shape},
       {.dtype = DType::F32, .shape = {length, batch, q_heads, value_size}}},
      origin);
  const std::vector<ValueId> results = n.graph().node(loop).outputs;
  const ValueId output =
      n.reshape(n.transpose(results[1], {1, 0, 2, 3}), {batch, length, n.simplify(value_size * q_heads)});
  n.out(0, n.cast(output, dtype));
  n.out(1, n.cast(results[0], n.has(3) ? n.dtype(n.in(3)) : dtype));
}

void import_causal_conv(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  const auto channels = n.size(w, 0).as_const(), kernel = n.size(w, 2).as_const();
  if (n.rank(x) != 3 || n.rank(w) != 3) n.fail("takes inputs of rank 3");
  if (!channels.has_value() || !kernel.has_value()) n.unsupported("weights whose sizes only the run knows");
  const Expr state = *kernel - 1;
  const ValueId past = n.has(3) ? n.in(3) : n.full(n.dtype(x), 0, {n.size(x, 0), n.size(x, 1), state});
  const ValueId padded = n.concat({past, x}, 2);
  std::vector<ValueId> inputs = {padded, w};
  if (n.has(2)) inputs.push_back(n.in(2));
  const std::vector<int64_t> one = {1};
  ValueId y = n.add(
      "conv", std::move(inputs),
      {{"strides", one}, {"dilations", one}, {"pads_low", Shape{0}}, {"pads_high", Shape{0}}, {"groups", *channels}});
  const std::string activation = n.text("activation", "none");
  if (activation != "none" && activation != "silu" && activation != "swish")
    n.fail(fmt::format("activation '{}' is not known", activation));
  if (activation != "none") y = n.add("silu", {y});
  n.out(0, y);
  n.out(1, n.slice(padded, 2, n.size(x, 2), state));
}

}  // namespace

void add_attention_imports(ImportTable& t) {
  t.add("Attention", import_attention);
  t.add("RotaryEmbedding", import_rotary_embedding);
  t.add("LinearAttention", import_linear_attention);
  t.add("CausalConvWithState", import_causal_conv);
  t.add("ai.onnx.preview", "FlexAttention", import_flex_attention);
}

}  // namespace fuseloom::front::onnx
