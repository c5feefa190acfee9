// The op table: one record per op. A record says what the op takes, what it gives, what it means (the reference), and
// how it becomes kernel code (scalar rule, index map, reduction rule or decomposition). The table is a value: a test can
// add a record to a copy and compile it.
//
// Semantics that hold for every op (docs/numerics.md has the details):
//   - An op is a pure function of its inputs and attributes. Values are immutable tensors.
//   - Elementwise ops broadcast their inputs as NumPy does. All data inputs have one dtype; there is no implicit cast.
//   - Floats: IEEE. f16 and bf16 are computed in f32 and rounded once, to the result type.
//   - Integers wrap. References accumulate floats in f64, integers in the type itself (wrapping).
//   - Sizes 0 and 1 are legal everywhere. Rank 0 is legal everywhere.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuseloom/tensor.h"
#include "op/attrs.h"
#include "op/source_kernel.h"
#include "op/type.h"

namespace fuseloom::op {

struct OpRecord;

enum class Family : uint8_t {
  Elementwise,   // result[i] = f(inputs[i]...), with a scalar rule or as a primitive
  View,          // result[i] = input[map(i)], with an index map: reshape, transpose, slice, expand, pad, concat, tile
  Source,        // no data input: constant, iota, sym_value, random
  Reduction,     // one input, axes reduced with an associative combine: reduce_sum, argmax, ...
  Scan,          // prefix combine along one axis: cumsum, cumprod, cummax
  Gather,        // result[i] = input[map(i, indices)]: gather, gather_elements, gather_nd
  Scatter,       // a copy of the input with some elements replaced or combined
  Contraction,   // matmul, conv, conv_transpose: multiply-accumulate over shared axes, through packed micro-kernels
  Window,        // pooling
  Composite,     // defined by its decomposition into other ops: softmax, layer_norm, ...
  Extern,        // whole-tensor algorithms: sort, top_k, non_zero, lstm, resize, ...: run by a native function
  Control,       // if, while: nodes with subgraphs
  Recurrence,    // recurrent_steps: a loop over steps, each of which needs the one before
};

// ---- type inference --------------------------------------------------------------------------------------------------
struct InferContext {
  const OpRecord* record = nullptr;
  std::span<const TensorType> inputs;      // an absent optional input is nullptr in `present`
  std::span<const char> present;           // present[i] != 0: input i is given
  const Attrs& attrs;
  int64_t output_count = 1;                // how many outputs the node has (ops with optional outputs)
  const TensorType& in(size_t i) const { return inputs[i]; }
  bool has(size_t i) const { return i < inputs.size() && present[i] != 0; }
  // UserError "<op>: <words>".
  [[noreturn]] void fail(const std::string& words) const;
};
using InferFn = std::function<std::vector<TensorType>(const InferContext&)>;

// ---- reference -------------------------------------------------------------------------------------------------------
struct ReferenceContext {
  const OpRecord* record = nullptr;
  std::span<const Tensor> inputs;          // an absent optional input is an invalid Tensor
  const Attrs& attrs;                      // concrete: every Shape is a std::vector<int64_t>
  // Preallocated, contiguous; the reference fills them. Where the size depends on data (non_zero), the tensor is invalid
  // and the reference allocates it.
  std::span<Tensor> outputs;
  bool has(size_t i) const { return i < inputs.size() && inputs[i].valid(); }
};
using ReferenceFn = std::function<void(const ReferenceContext&)>;

// ---- scalar rules ----------------------------------------------------------------------------------------------------
// The rule of a composite elementwise op: text such as "select(gt(x0, 0), x0, mul(alpha, sub(exp(x0), 1)))".
//   x0 x1 ...   the inputs, in the compute dtype of the op's data type
//   names       attributes (real or integer), as constants of that dtype
//   numbers     constants of that dtype
//   calls       primitive or composite elementwise ops
// Parsed once into a tree. A record without a rule is a primitive: `emit` knows its text on every target.
struct ScalarNode {
  enum class Kind : uint8_t { Input, Constant, Attribute, Call };
  Kind kind = Kind::Constant;
  int64_t input = 0;
  double constant = 0;
  std::string name;                        // attribute or op
  std::vector<ScalarNode> args;
};
ScalarNode parse_scalar_rule(std::string_view text);          // throws UserError

// ---- index maps ------------------------------------------------------------------------------------------------------
// Where a View op reads: the first piece whose guards all hold; guards are conditions (nonzero = true) over the output
// index and sizes. A piece without guards always holds. Ops that can fall outside (pad) end in a piece that reads the
// scalar fill input, or in none: then the value is 0.
struct IndexPiece {
  size_t input = 0;
  std::vector<sym::Expr> indices;          // one per dimension of that input
  std::vector<sym::Expr> guards;
};
struct IndexContext {
  std::span<const TensorType> inputs;
  const TensorType& output;
  const Attrs& attrs;
};
using IndexMapFn = std::function<std::vector<IndexPiece>(const IndexContext&, std::span<const sym::Expr> output_index)>;

// ---- decomposition ---------------------------------------------------------------------------------------------------
// What a decomposition builds with; the graph builder implements it. Val is an opaque handle.
struct Val {
  int32_t id = -1;
  bool valid() const { return id >= 0; }
};
class OpBuilder {
 public:
  virtual ~OpBuilder() = default;
  virtual std::vector<Val> apply_many(std::string_view op, std::vector<Val> inputs, Attrs attrs, int64_t outputs) = 0;
  virtual TensorType type(Val value) const = 0;
  Val apply(std::string_view op, std::vector<Val> inputs, Attrs attrs = {}) {
    return apply_many(op, std::move(inputs), std::move(attrs), 1)[0];
  }
  Val constant(Tensor value) { return apply("constant", {}, {{"value", std::move(value)}}); }
  Val scalar(DType dtype, double value) { return constant(Tensor::scalar(dtype, value)); }
  Val cast(Val x, DType to) { return type(x).dtype == to ? x : apply("cast", {x}, {{"to", to}}); }
  Val reshape(Val x, Shape shape) { return apply("reshape", {x}, {{"shape", std::move(shape)}}); }
};
struct DecomposeContext {
  std::span<const Val> inputs;             // an absent optional input is an invalid Val
  const Attrs& attrs;
  int64_t output_count = 1;
  std::span<const TensorType> outputs;     // the types the node has
  bool has(size_t i) const { return i < inputs.size() && inputs[i].valid(); }
};
// The results; none: the node stays whole (its attributes ask for something that only the reference does).
using DecomposeFn = std::function<std::vector<Val>(OpBuilder&, const DecomposeContext&)>;

// ---- the record ------------------------------------------------------------------------------------------------------
struct AttrSpec {
  enum class Kind : uint8_t { Integer, Real, Text, Type, Integers, Reals, Sizes, Value };
  std::string name;
  Kind kind = Kind::Integer;
  bool required = true;
};

// How a Reduction combines. `combine` names a primitive elementwise op (add, mul, max, min, or, and); argmax and argmin
// carry (value, index) pairs and take the first of equals; NaN wins.
enum class Combine : uint8_t { None, Add, Mul, Max, Min, Or, And, ArgMax, ArgMin };

struct OpRecord {
  std::string name;
  Family family = Family::Elementwise;
  std::string summary;                     // one line of meaning, for docs and errors
  int min_inputs = 1, max_inputs = 1;      // max_inputs = -1: any number
  int min_outputs = 1, max_outputs = 1;
  std::vector<AttrSpec> attrs;
  InferFn infer;
  ReferenceFn reference;
  std::string rule;                        // composite elementwise ops; empty: primitive
  std::optional<ScalarNode> scalar;        // the parsed rule
  IndexMapFn index_map;                    // View ops
  Combine combine = Combine::None;         // Reduction and Scan ops
  std::optional<SourceKernel> kernel;      // Extern ops of the user: C++ text
  DecomposeFn decompose;                   // when present, the decompose pass replaces the node (but see keep_whole)
  bool commutative = false;
  bool has_side_results = false;           // defines symbols (attribute `defines`), so it is never dropped while they are used
  int cost = 1;                            // rough scalar cost in multiply-add units (exp ≈ 8): recompute or store?
  // Multiply-adds × 2, as an expression over sizes; empty: one per output element times cost.
  std::function<sym::Expr(const InferContext&, std::span<const TensorType> outputs)> flops;
};

class OpTable {
 public:
  void add(OpRecord record);               // throws InternalError for a name used twice; parses the rule, checks the kernel
  const OpRecord* find(std::string_view name) const;     // nullptr when unknown
  const OpRecord& at(std::string_view name) const;       // throws UserError naming the op and close names
  std::vector<const OpRecord*> all() const;              // in order of addition
 private:
  std::map<std::string, std::unique_ptr<OpRecord>, std::less<>> records_;
  std::vector<const OpRecord*> order_;
};

// Every op of fuseloom. Built on first use, immutable afterwards.
const OpTable& standard_ops();
OpTable make_standard_ops();               // a fresh copy to extend

// One function per family file; each adds its records.
void add_elementwise_ops(OpTable& table);   // elementwise.cpp: primitives, casts, comparisons, bits
void add_activation_ops(OpTable& table);    // activation.cpp: composite elementwise ops, by rule
void add_view_ops(OpTable& table);          // view.cpp
void add_source_ops(OpTable& table);        // source.cpp: constant, iota, sym_value, bind_symbols, random
void add_reduction_ops(OpTable& table);     // reduction.cpp: reductions, arg-reductions, scans
void add_gather_ops(OpTable& table);        // gather.cpp: gathers and scatters
void add_contraction_ops(OpTable& table);   // contraction.cpp: matmul, conv, conv_transpose
void add_window_ops(OpTable& table);        // window.cpp: pools
void add_normalization_ops(OpTable& table); // normalization.cpp: softmax, layer_norm, ...
void add_quantize_ops(OpTable& table);      // quantize.cpp: quantize_linear, dequantize_linear, ...
void add_attention_ops(OpTable& table);     // attention.cpp: attention, rotary_embedding
void add_resample_ops(OpTable& table);      // resample.cpp: resize, grid_sample, roi_align, ...
void add_recurrent_ops(OpTable& table);     // recurrent.cpp: lstm, gru, rnn
void add_select_ops(OpTable& table);        // select.cpp: top_k, sort, non_zero, unique, compress, nms
void add_signal_ops(OpTable& table);        // signal.cpp: dft, stft
void add_require_ops(OpTable& table);       // require.cpp: run-time checks of sizes
void add_control_ops(OpTable& table);       // control.cpp: if, while (no reference here: the graph evaluator runs them)

// Checks arity and attributes against the record, then infers. Throws UserError naming the op and the attribute.
std::vector<TensorType> infer_types(const OpRecord& record, std::span<const TensorType> inputs, std::span<const char> present,
                                    const Attrs& attrs, int64_t output_count = 1);
// Runs the reference on concrete inputs: infers concrete output types, allocates, calls.
std::vector<Tensor> run_reference(const OpRecord& record, std::span<const Tensor> inputs, const Attrs& concrete_attrs,
                                  int64_t output_count = 1);

}  // namespace fuseloom::op
