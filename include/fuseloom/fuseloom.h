// The C++ API: build a graph or load an ONNX model, compile it, run it on your own buffers.
//
//   fuseloom::Graph graph;
//   fuseloom::Value x = graph.input("x", fuseloom::DType::F32, {"rows", 512});
//   graph.output(fuseloom::softmax(x * 0.125, 1), "y");
//   fuseloom::Program program = fuseloom::compile(graph);
//   std::vector<fuseloom::Tensor> results = program.run({fuseloom::Tensor(fuseloom::DType::F32, {3, 512})});
//
// Every function throws UserError when the caller is wrong, Unsupported when a limit of fuseloom stands in the way, and
// InternalError for a bug (fuseloom/error.h). The ops and their attributes are listed in docs/ops.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fuseloom/dtype.h"
#include "fuseloom/error.h"
#include "fuseloom/tensor.h"

namespace fuseloom {

namespace graph {
class Graph;
}
namespace op {
class OpTable;
}

// The version of the binary interface; names are used without it.
inline namespace v0 {

// A size: a number, or an expression over symbols such as "rows" or "2*rows + 1" (text of docs/ir-graph.md).
class Size {
 public:
  Size(int64_t value) : text_(std::to_string(value)) {}    // NOLINT: a number is a size
  Size(int value) : text_(std::to_string(value)) {}        // NOLINT
  Size(const char* expression) : text_(expression) {}      // NOLINT: so is the name of a symbol
  Size(std::string expression) : text_(std::move(expression)) {}   // NOLINT
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};
using Sizes = std::vector<Size>;

using Attribute = std::variant<int64_t, double, std::string, DType, std::vector<int64_t>, std::vector<double>, Sizes, Tensor>;
using Attributes = std::map<std::string, Attribute>;

// ---- ops of your own (docs/custom-ops.md) ------------------------------------------------------------------------------
struct TypeInfo {
  DType dtype = DType::F32;
  Sizes sizes;
};

enum class AttributeKind : uint8_t { Integer, Real, Text, Type, Integers, Reals, Sizes, Tensor };
struct CustomAttribute {
  std::string name;
  AttributeKind kind = AttributeKind::Integer;
  bool required = true;
};

// One way to compile a kernel.
struct KernelConfiguration {
  std::map<std::string, int64_t> constants;    // `constexpr int64_t NAME = VALUE;` before the source
  std::string condition = "1";                 // nonzero: it can be used for these sizes
};

// C++ text that defines
//   void run(void* const* buffers, const int64_t* sizes, char* scratch, int64_t begin, int64_t end)
// buffers: inputs, then outputs, contiguous; sizes: all of the inputs, then all of the outputs. It computes the part
// [begin, end) of its range; several threads compute parts at a time. Expressions are over x0_d1 (input 0, dimension 1), y0_d1
// (output 0), the configuration's constants and integer attributes.
struct CustomKernel {
  std::string helpers;                         // at file scope: includes, functions
  std::string source;
  // The first whose condition holds; the last one's is "1". Among neighbours with the same condition the one that was fastest
  // at CompileOptions::typical, or the first.
  std::vector<KernelConfiguration> configurations = {{}};
  std::string extent = "1";                    // the range
  std::string scratch_bytes = "0";             // per thread
  std::string work;                            // estimated nanoseconds on one core; "": one for each output element
  std::vector<std::string> key;                // what the best configuration depends on; empty: all sizes of the inputs
  std::optional<std::vector<size_t>> mutates;  // inputs that it writes to: it gets copies. Absent: maybe all
};

struct CustomOp {
  using InferFunction = std::function<std::vector<TypeInfo>(std::span<const TypeInfo> inputs, const Attributes& attributes)>;
  // Sizes among the attributes are numbers then; the outputs are there to be filled.
  using ReferenceFunction = std::function<void(std::span<const Tensor> inputs, const Attributes& attributes, std::span<Tensor> outputs)>;

  std::string name;
  std::string summary;
  int inputs = 1, outputs = 1;
  std::vector<CustomAttribute> attributes;
  InferFunction infer;                         // types and shapes of the results; a rule brings its own
  // What computes it: a scalar rule, which joins fusion ("mul(x0, sigmoid(mul(x0, beta)))"), or a kernel; the reference checks
  // them, and computes the op where it has neither.
  std::string rule;
  std::optional<CustomKernel> kernel;
  ReferenceFunction reference;
};

// The ops a graph can use: fuseloom's and yours. Copies share what is added.
class Ops {
 public:
  Ops();
  void add(CustomOp op);                       // throws UserError for an op that cannot be

 private:
  friend struct OpsAccess;
  std::shared_ptr<op::OpTable> table_;
};

class Graph;

// A value of a graph under construction: a handle, valid as long as its Graph.
class Value {
 public:
  Value() = default;                       // an absent optional input
  bool valid() const { return id_ >= 0; }
  DType dtype() const;
  Sizes sizes() const;
  int64_t rank() const;
  std::string type_string() const;         // "f32[rows, 512]"

 private:
  friend class Graph;
  friend struct ValueAccess;
  Value(graph::Graph* graph, int32_t id) : graph_(graph), id_(id) {}
  graph::Graph* graph_ = nullptr;
  int32_t id_ = -1;
};

// What is computed: a pure function of its inputs. Built value by value; types are inferred and checked as it grows.
class Graph {
 public:
  explicit Graph(std::string name = "main");
  Graph(std::string name, const Ops& ops);
  ~Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;

  // Text of docs/ir-graph.md. `where` names the text in messages.
  static Graph parse(std::string_view text, std::string where = "<text>");
  static Graph parse(std::string_view text, const Ops& ops, std::string where = "<text>");
  std::string text() const;

  // A symbol in `sizes` is bound by the tensors of each run. It is the same number wherever it appears.
  Value input(std::string name, DType dtype, Sizes sizes);
  Value constant(Tensor value, std::string name = "");
  // One node of the op table (docs/ops.md), by name. An absent optional input is a Value().
  Value apply(std::string_view op, std::vector<Value> inputs, Attributes attributes = {});
  std::vector<Value> apply_many(std::string_view op, std::vector<Value> inputs, Attributes attributes, int64_t output_count);
  // Results, in the order of the calls.
  void output(Value value, std::string name = "");

  size_t input_count() const;
  size_t output_count() const;

 private:
  friend struct GraphAccess;
  Graph(std::unique_ptr<graph::Graph> graph, std::shared_ptr<const op::OpTable> ops);
  std::shared_ptr<const op::OpTable> ops_;     // null: fuseloom's
  std::unique_ptr<graph::Graph> graph_;
};

// ---- ops on values -------------------------------------------------------------------------------------------------
// Elementwise ones broadcast as NumPy does. A number takes the element type of the other side.
Value operator+(const Value& a, const Value& b);
Value operator-(const Value& a, const Value& b);
Value operator*(const Value& a, const Value& b);
Value operator/(const Value& a, const Value& b);
Value operator+(const Value& a, double b);
Value operator-(const Value& a, double b);
Value operator*(const Value& a, double b);
Value operator/(const Value& a, double b);
Value operator+(double a, const Value& b);
Value operator-(double a, const Value& b);
Value operator*(double a, const Value& b);
Value operator/(double a, const Value& b);
Value operator-(const Value& x);
Value exp(const Value& x);
Value log(const Value& x);
Value sqrt(const Value& x);
Value tanh(const Value& x);
Value relu(const Value& x);
Value sigmoid(const Value& x);
Value silu(const Value& x);
Value gelu(const Value& x);                                             // the exact one, by erf
Value max(const Value& a, const Value& b);
Value min(const Value& a, const Value& b);
Value select(const Value& condition, const Value& a, const Value& b);  // a where condition holds, else b
Value cast(const Value& x, DType to);
// Views. A negative axis counts from the end.
Value reshape(const Value& x, Sizes sizes);
Value transpose(const Value& x, std::vector<int64_t> permutation);
Value concat(std::vector<Value> parts, int64_t axis);
// Reductions over `axes`; keep_dims leaves them with size 1.
Value reduce_sum(const Value& x, std::vector<int64_t> axes, bool keep_dims = false);
Value reduce_mean(const Value& x, std::vector<int64_t> axes, bool keep_dims = false);
Value reduce_max(const Value& x, std::vector<int64_t> axes, bool keep_dims = false);
Value softmax(const Value& x, int64_t axis);
// Over the dimensions [axis, rank). scale and bias may be Value().
Value layer_norm(const Value& x, const Value& scale, const Value& bias, int64_t axis, double epsilon = 1e-5);
Value rms_norm(const Value& x, const Value& scale, int64_t axis, double epsilon = 1e-5);
// a [..., m, k] times b [..., k, n], batch dimensions broadcast.
Value matmul(const Value& a, const Value& b);

// ---- loading -------------------------------------------------------------------------------------------------------
struct LoadOptions {
  std::map<std::string, int64_t> dims;         // fixes symbolic dimensions by their name in the file
};
// An ONNX model, opset 1 to 27.
Graph load_onnx(const std::string& path, const LoadOptions& options = {});

// ---- compiling -----------------------------------------------------------------------------------------------------
struct CompileOptions {
  bool fuse = true;                            // false: a kernel per node, to compare and to find a fault
  int32_t threads = 0;                         // 0: as many as there are cores
  std::string isa = "native";                  // "baseline", "avx2", "avx512" or "native"
  std::map<std::string, int64_t> typical;      // typical sizes of symbols: they steer choices, never results
  std::optional<std::string> cache_dir;        // "": no cache; absent: $FUSELOOM_CACHE_DIR, else ~/.cache/fuseloom
  std::optional<std::string> trace_dir;        // every stage as a file; absent: $FUSELOOM_TRACE
  bool poison = false;                         // fill memory with NaN before use and after its last use
  bool check_finite = false;                   // NaN and infinity in inputs are errors
  bool documents = true;                       // save(): also the graph and the stages of compiling, for `fuseloom inspect`
};

struct ValueInfo {
  std::string name;
  DType dtype = DType::F32;
  Sizes sizes;
};

struct CompileInfo {
  size_t nodes = 0;                            // kernels there would be without fusion
  size_t kernels = 0;                          // kernels launched
  size_t distinct_kernels = 0;                 // kernels compiled
  double seconds = 0;
  bool from_cache = false;
};

struct KernelProfile {
  std::string name;
  std::string origin;                          // the nodes it computes
  int64_t calls = 0;
  double seconds = 0;                          // of all calls
  int64_t bytes = 0;                           // fewest it must move in one call
};

// A compiled graph. Any number of threads may run one Program at a time. Copies share what was compiled.
class Program {
 public:
  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;

  // Inputs in the order of inputs(), of any strides. The results are fresh tensors.
  std::vector<Tensor> run(std::span<const Tensor> inputs) const;
  std::vector<Tensor> run(std::initializer_list<Tensor> inputs) const {
    return run(std::span<const Tensor>(inputs.begin(), inputs.size()));
  }
  // Writes into the caller's contiguous tensors, whose dims are those of output_dims(). Allocates nothing once the
  // shapes have been seen.
  void run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs) const;

  // What a run with inputs of these dims gives and needs. Throws Unsupported where it depends on the data.
  std::vector<Dims> output_dims(std::span<const Dims> input_dims) const;
  int64_t arena_bytes(std::span<const Dims> input_dims) const;         // memory for temporaries, as planned
  int64_t arena_lower_bound(std::span<const Dims> input_dims) const;   // no plan needs less

  const CompileInfo& info() const;
  // Each kernel, how it is scheduled, and for each value that goes through memory the reason why.
  const std::string& explain() const;
  const std::string& source() const;           // the generated C++

  void set_profiling(bool on) const;
  std::vector<KernelProfile> profile() const;  // in program order
  std::string chrome_trace() const;            // JSON for chrome://tracing and ui.perfetto.dev

  struct Impl;

 private:
  friend struct ProgramAccess;
  explicit Program(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

Program compile(const Graph& graph, const CompileOptions& options = {});

// ---- archives ------------------------------------------------------------------------------------------------------
// A compiled program as one file (docs/archive.md). Writes it, in one step; options.isa may also be "portable": code for every
// instruction set of this architecture. Threads, poison and check_finite are for load().
void save(const Graph& graph, const std::string& path, const CompileOptions& options = {});

struct ArchiveOptions {
  int32_t threads = 0;                         // 0: as many as there are cores
  std::string isa;                             // "": the highest level in the file that this machine has
  bool check_weights = true;                   // false: do not hash the weights; their pages are read when they are used
  bool poison = false;
  bool check_finite = false;
  const Ops* ops = nullptr;                    // for programs that compute ops of your own by their references
};
// Maps the file and uses its weights in place; compiles nothing, and needs only the library fuseloom_run. Throws UserError for
// a file that is damaged, of another version, or without code for this machine.
Program load(const std::string& path, const ArchiveOptions& options = {});
// The bytes outlive the program where they start at a multiple of 64; otherwise they are copied.
Program load(std::span<const std::byte> bytes, const ArchiveOptions& options = {});

}  // namespace v0
}  // namespace fuseloom
