// Operators of the domain com.microsoft that ONNX Runtime's optimizer and exporters write, as compositions.
#include <cmath>

#include "base/check.h"
#include "front/onnx/heads.h"
#include "front/onnx/node_import.h"
#include "front/onnx/quantization.h"
#include "front/onnx/windows.h"

namespace fuseloom::front::onnx {
namespace {

// ---- activations and biases
// ------------------------------------------------------------------------------------------

ImportFn biased(std::string op) {
  return [op = std::move(op)](NodeImport& n) {
    const ValueId x = n.has(1) ? n.add("add", {n.in(0), n.in(1)}) : n.in(0);
    n.out(n.add(op, {x}));
  };
}

void import_quick_gelu(NodeImport& n) { n.out(n.add("swish", {n.in(0)}, {{"alpha", n.real("alpha", 1.702)}})); }

// The activation that fused operators name in an attribute.
ValueId activated(NodeImport& n, ValueId x) {
  const std::string name = n.text("activation", "");
  const std::vector<double> params = n.reals("activation_params");
  const auto param = [&](size_t i, double fallback) {
    return i < params.size() ? params[i] : n.real(i == 0 ? "activation_alpha" : "activation_beta", fallback);
  };
  if (name.empty()) return x;
  if (name == "Relu") return n.add("relu", {x});
  if (name == "Tanh") return n.add("tanh", {x});
  if (name == "Sigmoid") return n.add("sigmoid", {x});
  if (name == "LeakyRelu") return n.add("leaky_relu", {x}, {{"alpha", param(0, 0.01)}});
  if (name == "HardSigmoid") return n.add("hard_sigmoid", {x}, {{"alpha", param(0, 0.2)}, {"beta", param(1, 0.5)}});
  if (name == "Clip")
    return n.add("min", {n.add("max", {x, n.like(x, param(0, -3.4e38))}), n.like(x, param(1, 3.4e38))});
  n.unsupported(fmt::format("the fused activation '{}'", name));
}

ValueId scaled(NodeImport& n, ValueId x, double by) { return by == 1 ? x : n.add("mul", {x, n.like(x, by)}); }

void import_fused_matmul(NodeImport& n) {
  if (n.integer("transBatchA", 0) != 0 || n.integer("transBatchB", 0) != 0)
    n.unsupported("transBatchA and transBatchB");
  const ValueId y =
      n.add("matmul", {n.in(0), n.in(1)}, {{"trans_a", n.integer("transA", 0)}, {"trans_b", n.integer("transB", 0)}});
  n.out(activated(n, scaled(n, y, n.real("alpha", 1))));
}

void import_fused_gemm(NodeImport& n) {
  ValueId y =
      n.add("matmul", {n.in(0), n.in(1)}, {{"trans_a", n.integer("transA", 0)}, {"trans_b", n.integer("transB", 0)}});
  y = scaled(n, y, n.real("alpha", 1));
  if (n.has(2)) y = n.add("add", {y, scaled(n, n.in(2), n.real("beta", 1))});
  n.out(activated(n, y));
}

// Conv, plus a tensor of the output's shape, then an activation.
void import_fused_conv(NodeImport& n) {
  const ValueId x = n.in(0), w = n.in(1);
  const Windows windows = read_windows(n, x, kernel_of_weights(n, w));
  std::vector<ValueId> inputs = {x, w};
  if (n.has(2)) inputs.push_back(n.in(2));
  ValueId y = n.add("conv", std::move(inputs),
                    {{"strides", windows.strides},
                     {"dilations", windows.dilations},
                     {"pads_low", windows.low},
                     {"pads_high", windows.high},
                     {"groups", n.integer("group", 1)}});
  if (n.has(3)) y = n.add("add", {y, n.in(3)});
  n.out(activated(n, y));
}

// ---- normalizations
// --------------------------------------------------------------------------------------------------

void import_simplified_layer_norm(NodeImport& n) {
  const ValueId x = n.in(0);
  n.out(n.add("rms_norm", {x, n.cast(n.in(1), n.dtype(x))},
              {{"axis", n.axis(n.integer("axis", -1), n.rank(x))}, {"epsilon", n.real("epsilon", 1e-5)}}));
}

// Normalizes x + skip (+ bias); output 3 is that sum. Inputs: x, skip, scale, then beta (unless simplified), bias.
ImportFn skip_norm(bool simplified) {
  return [simplified](NodeImport& n) {
    const size_t bias = simplified ? 3 : 4;
    ValueId sum = n.add("add", {n.in(0), n.in(1)});
    if (n.has(bias)) sum = n.add("add", {sum, n.in(bias)});
    std::vector<ValueId> inputs = {sum, n.in(2)};
    if (!simplified && n.has(3)) inputs.push_back(n.in(3));
    const Attrs attrs{{"axis", n.rank(sum) - 1}, {"epsilon", n.real("epsilon", simplified ? 1e-5 : 1e-12)}};
    n.out(0, n.add(simplified ? "rms_norm" : "layer_norm", std::move(inputs), attrs));
    n.out(3, sum);
  };
}

// input_ids, segment_ids?, word, position, segment?, scale, bias, mask?, position_ids?
void import_embed_layer_norm(NodeImport& n) {
  const ValueId ids = n.in(0);
  ValueId sum = n.add("gather", {n.in(2), ids}, {{"axis", int64_t{0}}});
  const ValueId positions =
      n.has(8) ? n.in(8)
               : n.add("iota", {}, {{"shape", Shape{1, n.size(ids, 1)}}, {"axis", int64_t{1}}, {"dtype", DType::I64}});
  sum = n.add("add", {sum, n.add("gather", {n.in(3), positions}, {{"axis", int64_t{0}}})});
  if (n.has(1) && n.has(4)) sum = n.add("add", {sum, n.add("gather", {n.in(4), n.in(1)}, {{"axis", int64_t{0}}})});
  n.out(0, n.add("layer_norm", {sum, n.in(5), n.in(6)}, {{"axis", int64_t{2}}, {"epsilon", n.real("epsilon", 1e-12)}}));
  if (n.wants(1)) {  // how many tokens are not padding
    const ValueId count = n.has(7) ? n.cast(n.reduce("reduce_sum", n.in(7), {1}, false), DType::I32)
                                   : n.full(DType::I32, 0, {n.size(ids, 0)});
    n.out(1, count);
  }
  n.out(2, sum);
}

// ---- attention
// -------------------------------------------------------------------------------------------------------

// ONNX Runtime's masks: [batch] lengths, or 1 where a key may be seen: [batch, keys], [batch, queries, keys] or rank 4.
ValueId attention_mask(NodeImport& n, ValueId mask, const Expr& total) {
  if (n.rank(mask) == 1) return length_mask(n, mask, total);
  ValueId seen = n.dtype(mask) == DType::Bool ? mask : n.add("ne", {mask, n.like(mask, 0)});
  if (n.rank(seen) == 2) seen = n.unsqueeze(seen, {1, 2});
  if (n.rank(seen) == 3) seen = n.unsqueeze(seen, {1});
  return seen;
}

ValueId add_bias(NodeImport& n, ValueId x, ValueId bias, const Expr& start, const Expr& size) {
  return bias.valid() ? n.add("add", {x, n.slice(bias, 0, start, size)}) : x;
}

// A mask of truth values and a bias of numbers, as one.
ValueId masked_bias(NodeImport& n, ValueId seen, ValueId bias) {
  return bias.valid() ? join_masks(n, bias, seen) : seen;
}

// x, weights [hidden, q + k + v], bias, mask?, past?, attention_bias?
void import_attention(NodeImport& n) {
  const ValueId x = n.in(0), weights = n.in(1);
  const int64_t heads = n.integer("num_heads");
  if (n.integer("do_rotary", 0) != 0) n.unsupported("Attention with do_rotary");
  const std::vector<int64_t> given = n.integers("qkv_hidden_sizes");
  const Expr all = n.size(weights, 1);
  const Expr third = n.simplify(sym::floor_div(all, 3));
  const Expr q_size = given.size() == 3 ? Expr(given[0]) : third, k_size = given.size() == 3 ? Expr(given[1]) : third;
  const Expr v_size = given.size() == 3 ? Expr(given[2]) : third;
  ValueId qkv = n.add("matmul", {x, weights});
  if (n.has(2)) qkv = n.add("add", {qkv, n.in(2)});
  const auto part = [&](const Expr& start, const Expr& size) {
    return split_heads(n, n.slice(qkv, 2, start, size), heads);
  };
  AttentionSpec spec{
      .q = part(0, q_size), .k = part(q_size, k_size), .v = part(n.simplify(q_size + k_size), v_size), .mask = {}};
  if (n.has(4)) {  // [2, batch, heads, past, size]
    const ValueId past = n.in(4);
    const auto half = [&](int64_t i) { return n.squeeze(n.slice(past, 0, i, 1), {0}); };
    spec.past = n.size(past, 3);
    spec.k = n.concat({half(0), spec.k}, 2);
    spec.v = n.concat({half(1), spec.v}, 2);
  }
  if (n.wants(1)) n.out(1, n.concat({n.unsqueeze(spec.k, {0}), n.unsqueeze(spec.v, {0})}, 0));
  spec.causal = n.integer("unidirectional", 0) != 0;
  spec.scale = n.real("scale", 0);
  const ValueId seen = n.has(3) ? attention_mask(n, n.in(3), n.size(spec.k, 2)) : ValueId{};
  spec.mask = masked_bias(n, seen, n.in_or_none(5));
  n.out(0, join_heads(n, attention(n, spec).y));
}

// query, key?, value?, bias?, key_padding_mask?, attention_bias?, past_key?, past_value?
void import_multi_head_attention(NodeImport& n) {
  const int64_t heads = n.integer("num_heads");
  ValueId q = n.in(0);
  if (n.rank(q) != 3 || !n.has(1) || !n.has(2))
    n.unsupported("MultiHeadAttention with packed queries, keys and values");
  ValueId k = n.in(1), v = n.in(2);
  const Expr hidden = n.size(q, 2), v_hidden = n.rank(v) == 3 ? n.size(v, 2) : Expr(0);
  const ValueId bias = n.in_or_none(3);
  q = add_bias(n, q, bias, 0, hidden);
  if (n.rank(k) == 3) {
    k = add_bias(n, k, bias, hidden, n.size(k, 2));
    v = add_bias(n, v, bias, n.simplify(hidden * 2), v_hidden);
  }
  AttentionSpec spec{
      .q = split_heads(n, q, heads), .k = split_heads(n, k, heads), .v = split_heads(n, v, heads), .mask = {}};
  if (n.has(6) && n.has(7)) {
    spec.past = n.size(n.in(6), 2);
    spec.k = n.concat({n.in(6), spec.k}, 2);
    spec.v = n.concat({n.in(7), spec.v}, 2);
  }
  n.out(1, spec.k);
  n.out(2, spec.v);
  spec.causal = n.integer("unidirectional", 0) != 0;
  spec.scale = n.real("scale", 0);
  const ValueId seen = n.has(4) ? attention_mask(n, n.in(4), n.size(spec.k, 2)) : ValueId{};
  spec.mask = masked_bias(n, seen, n.in_or_none(5));
  n.out(0, join_heads(n, attention(n, spec).y));
}

// query, key?, value?, past_key?, past_value?, seqlens_k, total_sequence_length, cos_cache?, sin_cache?, position_ids?,
// attention_bias? The keys of one entry are valid up to seqlens_k; its new tokens are the last of them.
void import_group_query_attention(NodeImport& n) {
  const int64_t heads = n.integer("num_heads"), kv_heads = n.integer("kv_num_heads");
  const int64_t window = n.integer("local_window_size", -1);
  ValueId q = n.in(0), k = n.in_or_none(1), v = n.in_or_none(2);
  if (!k.valid()) {  // packed: [batch, length, (heads + 2 kv_heads) * size]
    const Expr size = n.simplify(sym::floor_div(n.size(q, 2), heads + 2 * kv_heads));
    const ValueId packed = q;
    q = n.slice(packed, 2, 0, n.simplify(size * heads));
    k = n.slice(packed, 2, n.simplify(size * heads), n.simplify(size * kv_heads));
    v = n.slice(packed, 2, n.simplify(size * (heads + kv_heads)), n.simplify(size * kv_heads));
  }
  AttentionSpec spec{
      .q = split_heads(n, q, heads), .k = split_heads(n, k, kv_heads), .v = split_heads(n, v, kv_heads), .mask = {}};
  const Expr batch = n.size(spec.q, 0), length = n.size(spec.q, 2);
  const ValueId valid = n.add("add", {n.reshape(n.cast(n.in(5), DType::I64), {batch}), n.scalar(DType::I64, 1)});
  if (n.integer("do_rotary", 0) != 0) {
    ValueId positions;
    if (n.has(9)) {
      positions = n.in(9);
    } else {  // from each entry's past length on; a short prompt is padded behind
      const ValueId past = n.add("max", {n.add("sub", {valid, n.sym_scalar(length)}), n.scalar(DType::I64, 0)});
      const ValueId i = n.add("iota", {}, {{"shape", Shape{1, length}}, {"axis", int64_t{1}}, {"dtype", DType::I64}});
      positions = n.add("add", {n.reshape(past, {batch, 1}), i});
    }
    const auto rotated = [&](ValueId x) {
      Attrs attrs{{"interleaved", n.integer("rotary_interleaved", 0)}};
      const Expr half = n.size(n.in(7), 1);
      if (half.is_const() && !(n.simplify(half * 2) == n.size(x, 3))) attrs.set("rotary_dim", 2 * *half.as_const());
      return n.add("rotary_embedding", {x, n.in(7), n.in(8), positions}, std::move(attrs));
    };
    spec.q = rotated(spec.q);
    spec.k = rotated(spec.k);
  }
  if (n.has(3) && n.has(4)) {
    spec.past = n.size(n.in(3), 2);
    spec.k = n.concat({n.in(3), spec.k}, 2);
    spec.v = n.concat({n.in(4), spec.v}, 2);
  }
  n.out(1, spec.k);
  n.out(2, spec.v);
  spec.causal = true;
  spec.scale = n.real("scale", 0);
  spec.softcap = n.real("softcap", 0);
  const Expr total = n.size(spec.k, 2);
  ValueId seen = length_mask(n, valid, total);
  if (window >= 0) {  // only the last `window` keys before each query, itself among them
    const ValueId key =
        n.add("iota", {}, {{"shape", Shape{1, 1, 1, total}}, {"axis", int64_t{3}}, {"dtype", DType::I64}});
    const ValueId query =
        n.add("iota", {}, {{"shape", Shape{1, 1, length, 1}}, {"axis", int64_t{2}}, {"dtype", DType::I64}});
    const ValueId oldest = n.add("add", {query, n.sym_scalar(n.simplify(spec.past - window))});
    seen = n.add("and", {seen, n.add("gt", {key, oldest})});
  }
  spec.mask = masked_bias(n, seen, n.in_or_none(10));
  n.out(0, join_heads(n, attention(n, spec).y));
}

// x, position_ids ([1]: an offset; or [batch, length]), cos, sin
void import_rotary_embedding(NodeImport& n) {
  const ValueId x = n.in(0);
  const bool packed = n.rank(x) == 3;
  const int64_t heads = n.integer("num_heads", 0);
  ValueId split;
  if (packed && heads == 0) {  // a head is as long as a row of the tables, twice
    const Shape s = n.shape(x);
    const Expr size = n.simplify(n.size(n.in(2), 1) * 2);
    split = n.transpose(n.reshape(x, {s[0], s[1], n.simplify(sym::floor_div(s[2], size)), size}), {0, 2, 1, 3});
  } else {
    split = split_heads(n, x, heads);
  }
  ValueId positions = n.cast(n.in(1), DType::I64);
  if (n.rank(positions) == 1) {
    const ValueId i =
        n.add("iota", {}, {{"shape", Shape{1, n.size(split, 2)}}, {"axis", int64_t{1}}, {"dtype", DType::I64}});
    positions = n.add("add", {n.reshape(positions, {1, 1}), i});
  }
  Attrs attrs{{"interleaved", n.integer("interleaved", 0)}};
  if (const int64_t size = n.integer("rotary_embedding_dim", 0); size != 0) attrs.set("rotary_dim", size);
  const ValueId y = n.add("rotary_embedding", {split, n.in(2), n.in(3), positions}, std::move(attrs));
  n.out(packed ? n.reshape(join_heads(n, y), n.shape(x)) : y);
}

// ---- quantized
// -------------------------------------------------------------------------------------------------------

// Bytes [.., m] of packed integers → [.., m * 8 / bits], the first in the lowest bits.
ValueId unpack(NodeImport& n, ValueId bytes, int64_t bits) {
  if (bits == 8) return bytes;
  const int64_t per_byte = 8 / bits;
  const ValueId shifts = n.reshape(
      n.add("mul", {n.add("iota", {}, {{"shape", Shape{per_byte}}, {"axis", int64_t{0}}, {"dtype", DType::U8}}),
                    n.scalar(DType::U8, static_cast<double>(bits))}),
      {per_byte});
  Shape shape = n.shape(bytes);
  const Expr last = n.simplify(shape.back() * per_byte);
  const ValueId column = n.unsqueeze(bytes, {n.rank(bytes)});
  const ValueId parts = n.add(
      "bit_and", {n.add("shift_right", {column, shifts}), n.scalar(DType::U8, static_cast<double>((1 << bits) - 1))});
  shape.back() = last;
  return n.reshape(parts, std::move(shape));
}

// A, B u8 [N, blocks, block_size * bits / 8], scales [N * blocks], zero_points? (packed, or numbers), g_idx?, bias?
void import_matmul_nbits(NodeImport& n) {
  const int64_t k = n.integer("K"), columns = n.integer("N"), bits = n.integer("bits", 4),
                block = n.integer("block_size");
  if (bits != 2 && bits != 4 && bits != 8) n.unsupported(fmt::format("weights of {} bits", bits));
  if (k < 1 || columns < 1 || block < 1) n.fail(fmt::format("K is {}, N {}, block_size {}", k, columns, block));
  if (n.has(4)) n.unsupported("a reordering of the groups (g_idx)");
  const ValueId a = n.in(0);
  const DType dtype = n.dtype(a);
  const int64_t blocks = (k + block - 1) / block;
  const ValueId weights = n.cast(
      n.reshape(unpack(n, n.reshape(n.in(1), {columns, blocks, block * bits / 8}), bits), {columns, blocks, block}),
      dtype);
  const ValueId scales = n.cast(n.reshape(n.in(2), {columns, blocks, 1}), dtype);
  ValueId zeros = n.scalar(dtype, static_cast<double>(int64_t{1} << (bits - 1)));
  if (n.has(3)) {
    ValueId given = n.in(3);
    if (n.dtype(given) == DType::U8) {  // each row padded to whole bytes
      const int64_t bytes = (blocks * bits + 7) / 8;
      given = n.slice(unpack(n, n.reshape(given, {columns, bytes}), bits), 1, 0, blocks);
    }
    zeros = n.cast(n.reshape(given, {columns, blocks, 1}), dtype);
  }
  ValueId b = n.add("mul", {n.add("sub", {weights, zeros}), scales});
  b = n.slice(n.reshape(b, {columns, blocks * block}), 1, 0, k);
  ValueId y = n.add("matmul", {a, b}, {{"trans_b", int64_t{1}}});
  if (n.has(5)) y = n.add("add", {y, n.in(5)});
  n.out(y);
}

// A product of integers times its scales. b_scale may run along the columns.
ValueId scaled_product(NodeImport& n, ValueId product, ValueId a_scale, ValueId b_scale) {
  const auto single = [&](ValueId v) { return n.rank(v) == 1 && n.size(v, 0).is_const(1) ? n.reshape(v, {}) : v; };
  return n.add("mul", {n.cast(product, DType::F32), n.add("mul", {single(a_scale), single(b_scale)})});
}

// A f32, B quantized, b_scale, b_zero?, bias?
void import_dynamic_quantize_matmul(NodeImport& n) {
  const ValueId a = n.in(0);
  std::vector<int64_t> every;
  for (int64_t d = 0; d < n.rank(a); ++d) every.push_back(d);
  const ValueId zero = n.like(a, 0), top = n.like(a, 255);
  const ValueId high = n.add("max", {n.reduce("reduce_max", a, every, false), zero});
  const ValueId low = n.add("min", {n.reduce("reduce_min", a, every, false), zero});
  const ValueId scale = n.add("div", {n.add("sub", {high, low}), top});
  const ValueId place = n.add("round", {n.add("neg", {n.add("div", {low, scale})})});
  const ValueId point = n.cast(n.add("min", {n.add("max", {place, zero}), top}), DType::U8);
  const ValueId quantized = quantize(n, a, scale, point, ElementType::UInt8);
  ValueId y = scaled_product(n, n.add("matmul_integer", {quantized, n.in(1), point, n.in_or_none(3)}), scale, n.in(2));
  if (n.has(4)) y = n.add("add", {y, n.in(4)});
  n.out(y);
}

// A, B, a_scale, b_scale, a_zero?, b_zero?, bias?
void import_matmul_integer_to_float(NodeImport& n) {
  ValueId y = scaled_product(n, n.add("matmul_integer", {n.in(0), n.in(1), n.in_or_none(4), n.in_or_none(5)}), n.in(2),
                             n.in(3));
  if (n.has(6)) y = n.add("add", {y, n.in(6)});
  n.out(y);
}

// (a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
ImportFn quantized_binary(std::string op) {
  return [op = std::move(op)](NodeImport& n) {
    const ValueId a = dequantize(n, n.in(0), n.in(1), n.in_or_none(2)),
                  b = dequantize(n, n.in(3), n.in(4), n.in_or_none(5));
    n.out(quantize(n, n.add(op, {a, b}), n.in(6), n.in_or_none(7), element_of_input(n, 0)));
  };
}

// (x, x_scale, x_zero, y_scale, y_zero)
ImportFn quantized_unary(std::function<ValueId(NodeImport&, ValueId)> apply) {
  return [apply = std::move(apply)](NodeImport& n) {
    const ValueId x = dequantize(n, n.in(0), n.in(1), n.in_or_none(2));
    n.out(quantize(n, apply(n, x), n.in(3), n.in_or_none(4), element_of_input(n, 0)));
  };
}

// y_scale, y_zero, then (x, x_scale, x_zero) for each part
void import_qlinear_concat(NodeImport& n) {
  std::vector<ValueId> parts;
  for (size_t i = 2; i + 2 < n.input_count(); i += 3)
    parts.push_back(dequantize(n, n.in(i), n.in(i + 1), n.in_or_none(i + 2)));
  if (parts.empty()) n.fail("has no parts");
  const int64_t axis = n.axis(n.integer("axis"), n.rank(parts[0]));
  n.out(quantize(n, n.concat(std::move(parts), axis), n.in(0), n.in_or_none(1), element_of_input(n, 2)));
}

ValueId global_average(NodeImport& n, ValueId x) {
  const bool channels_last = n.integer("channels_last", 0) != 0;
  std::vector<int64_t> axes;
  for (int64_t a = channels_last ? 1 : 2; a < n.rank(x) - (channels_last ? 1 : 0); ++a) axes.push_back(a);
  return n.reduce("reduce_mean", x, std::move(axes), true);
}

}  // namespace

void add_microsoft_imports(ImportTable& t) {
  const std::string domain = "com.microsoft";
  t.add(domain, "Gelu", biased("gelu"));
  t.add(domain, "BiasGelu", biased("gelu"));
  t.add(domain, "FastGelu", biased("gelu_tanh"));
  t.add(domain, "QuickGelu", import_quick_gelu);
  t.add(domain, "FusedMatMul", import_fused_matmul);
  t.add(domain, "FusedGemm", import_fused_gemm);
  t.add(domain, "FusedConv", import_fused_conv);
  t.add("SimplifiedLayerNormalization", import_simplified_layer_norm);  // ONNX Runtime puts it in the default domain
  t.add(domain, "SimplifiedLayerNormalization", import_simplified_layer_norm);
  t.add(domain, "SkipLayerNormalization", skip_norm(false));
  t.add(domain, "SkipSimplifiedLayerNormalization", skip_norm(true));
  t.add(domain, "EmbedLayerNormalization", import_embed_layer_norm);
  t.add(domain, "Attention", import_attention);
  t.add(domain, "MultiHeadAttention", import_multi_head_attention);
  t.add(domain, "GroupQueryAttention", import_group_query_attention);
  t.add(domain, "RotaryEmbedding", import_rotary_embedding);
  t.add(domain, "MatMulNBits", import_matmul_nbits);
  t.add(domain, "DynamicQuantizeMatMul", import_dynamic_quantize_matmul);
  t.add(domain, "MatMulIntegerToFloat", import_matmul_integer_to_float);
  t.add(domain, "QLinearAdd", quantized_binary("add"));
  t.add(domain, "QLinearMul", quantized_binary("mul"));
  t.add(domain, "QLinearSigmoid", quantized_unary([](NodeImport& n, ValueId x) { return n.add("sigmoid", {x}); }));
  t.add(domain, "QLinearLeakyRelu", quantized_unary([](NodeImport& n, ValueId x) {
          return n.add("leaky_relu", {x}, {{"alpha", n.real("alpha", 0.01)}});
        }));
  t.add(domain, "QLinearGlobalAveragePool", quantized_unary(global_average));
  t.add(domain, "QLinearConcat", import_qlinear_concat);
}

}  // namespace fuseloom::front::onnx
