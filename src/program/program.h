// The host program IR: what the host does around the kernels.
//
// Semantics. A program is a list of typed lines over buffers and symbols, executed in order.
//   - A buffer is a contiguous row-major tensor with a symbolic shape. Its kind says where its memory comes from:
//       Input      the caller's tensor (made contiguous first when it is not)
//       Constant   a tensor of the program (shared between instances)
//       Prepared   written once by the init lines, kept for the program's life (packed weights)
//       Temporary  memory of one run: planned into the arena when its size follows from the input sizes; otherwise
//                  (its shape uses a symbol that a line defines) allocated when its producing line runs
//       View       a contiguous part of another buffer: base + offset elements, same dtype or another of the same bits
//   - A symbol is bound by the shape of an Input (first bare occurrence; every other dimension is checked), by the
//     enclosing program, or by the line that lists it in `defines`; it is bound before it is used.
//   - Every Temporary is written by exactly one line before it is read, except that a buffer may be updated in place by a
//     line that reads and writes it (its `in_place` pairs say so).
//   - Lines: Launch runs a kernel, Call runs a native op, Copy copies elements, ReadSymbols turns data into symbols,
//     Assert checks, If and While run nested programs.
//   - A program, with all programs nested in it, runs on one device. On Device::Cuda all buffers are in the memory of the
//     device; a line whose work the host does (Call, ReadSymbols, Assert, If, While) reads back what it needs.
// The lines are the truth: the interpreter executes them, the C++ printer prints them.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/id.h"
#include "fuseloom/device.h"
#include "op/op.h"
#include "sym/expr.h"

namespace fuseloom::program {

using BufferId = base::Id<struct ProgramBufferTag>;

using Device = DeviceKind;

enum class BufferKind : uint8_t { Input, Constant, Prepared, Temporary, View };

struct Buffer {
  std::string name;            // unique
  BufferKind kind = BufferKind::Temporary;
  op::TensorType type;
  int32_t index = -1;          // Input: which input; Constant: which of Program::constants
  BufferId base;               // View
  sym::Expr offset = 0;        // View: in elements of this buffer's dtype
};

// One way to do a launch: a kernel that was compiled under facts about the sizes, and how it is started.
struct Variant {
  sym::Expr condition = 1;             // nonzero: the kernel's facts hold for these sizes
  int32_t kernel = -1;                 // index into Program::kernels
  // ---- Device::Cpu: the kernel runs over [0, extent) of its Core loop
  sym::Expr extent = 1;
  sym::Expr scratch_bytes = 0;         // per worker
  // ---- Device::Cuda: blocks, threads of a block, blocks of a cluster (x, y, z). A grid without blocks launches nothing.
  std::array<sym::Expr, 3> grid = {1, 1, 1};
  std::array<int32_t, 3> block = {1, 1, 1};
  std::array<int32_t, 3> cluster = {1, 1, 1};
  sym::Expr shared_bytes = 0;          // dynamic shared memory of a block
  bool cooperative = false;            // all blocks must be resident at once: the kernel synchronises the grid
};

// A launch that a library of matrix products can do instead of a kernel (Device::Cuda; run/product_library.h):
//     d[b, i, j] = activation(sum over l of left[b, i, l] * right[b, l, j] + bias[j])      b < batch, i < rows, j < columns, l < depth
// summed, and all up to the one rounding of d, in f32. Whether the library takes it is known with the sizes; where there is
// none, or it refuses, the launch's kernels run: they give the same results up to rounding.
enum class Activation : uint8_t { None, Relu, GeluTanh };
struct MatrixProduct {
  struct Operand {
    int32_t buffer = -1;               // index into Launch::buffers
    sym::Expr offset = 0;              // of element [0, 0, 0]; all in elements
    sym::Expr batch_stride = 0, row_stride = 0, column_stride = 0;   // left: [i, l], right: [l, j], d: [i, j]
  };
  sym::Expr rows = 1, columns = 1, depth = 1, batch = 1;
  Operand left, right, result;         // of one dtype: f32, f16 or bf16; result.column_stride is 1
  int32_t bias = -1;                   // index into Launch::buffers, or none; one element for each column
  sym::Expr bias_offset = 0;
  Activation activation = Activation::None;
  BufferId workspace;                  // u8, one dimension: memory that the library may use meanwhile
};
std::string_view activation_name(Activation activation);   // "none", "relu", "gelu_tanh"

// Runs the first variant whose condition holds; the last one's is 1, so that there always is one. The kernels of all
// variants take the same buffers and symbols. Conditions are looked at once per distinct sizes, not once per run.
struct Launch {
  std::vector<Variant> variants;
  std::vector<BufferId> buffers;       // the kernel's Global buffers, in order
  std::vector<sym::Expr> sizes;        // the kernel's symbols, in order
  sym::Expr work = 1;                  // estimated nanoseconds of all of it on one core: decides how many threads are worth waking
  sym::Expr bytes = 0;                 // fewest bytes it must move (profiler, roofline)
  std::vector<std::pair<BufferId, BufferId>> in_place;   // (written, read): may share memory if the read one dies here (B5)
  std::optional<MatrixProduct> product;                  // a library may do it
};
// Runs the native function of an op (its reference) on whole tensors.
struct Call {
  const op::OpRecord* op = nullptr;
  op::Attrs attrs;
  std::vector<BufferId> inputs;        // absent: invalid
  std::vector<BufferId> outputs;       // unused: invalid
  std::vector<std::string> defines;    // symbols bound from the result's sizes
};
struct Copy {
  BufferId from, to;                   // same count of elements and dtype
};
struct ReadSymbols {
  BufferId from;                       // integers or bool, in row-major order
  std::vector<std::string> defines;
};
struct Assert {
  sym::Expr condition;
  std::string message;                 // what, where, expected; the values of the symbols are appended
};
struct Program;
struct If {
  BufferId condition;                  // bool, one element
  std::unique_ptr<Program> then, otherwise;
  std::vector<BufferId> inputs;        // of both programs
  std::vector<BufferId> outputs;
  std::vector<std::string> defines;    // symbols of the outputs' shapes that the branches decide
};
struct While {
  std::unique_ptr<Program> body;       // (iteration, condition, carried..., captures...) → (condition, carried..., scans...)
  BufferId trip_count, condition;      // i64 / bool, one element; invalid: no limit / true
  std::vector<BufferId> inputs;        // carried initial values, then captures
  int32_t carried = 0, scans = 0;
  std::vector<BufferId> outputs;       // carried finals, then stacked scans
  std::vector<std::string> defines;
};

struct Line {
  std::variant<Launch, Call, Copy, ReadSymbols, Assert, If, While> what;
  std::vector<int32_t> nodes;          // graph nodes this line computes (B20): indices of graph::NodeId
  std::string origin;                  // readable: "Conv_12, Relu_13"
};

// A result: a window on a buffer. Contiguous over the whole buffer, or (strides given) a view of an Input or Constant
// that costs no kernel (A10, R6).
struct Output {
  std::string name;
  BufferId buffer;
  op::TensorType type;
  std::optional<op::Shape> strides;    // in elements; without: contiguous
  sym::Expr offset = 0;
};

struct KernelRef {
  std::string name;                    // the function's name in the binary
};

struct Program {
  std::string name = "main";
  Device device = Device::Cpu;
  std::vector<std::string> input_names;
  std::vector<op::TensorType> input_types;
  std::vector<std::string> outer_symbols;        // bound by the enclosing program
  sym::Facts facts;
  std::vector<Buffer> buffers;
  std::vector<Tensor> constants;
  std::vector<KernelRef> kernels;                // of this program; nested programs have their own
  std::vector<Line> init;                        // Launch lines run once, when the program is loaded: write Prepared buffers
  std::vector<Line> lines;
  std::vector<Output> outputs;
  // The order in which the arena's slots are placed by first fit (each by its first buffer), chosen by plan_memory.
  std::vector<int32_t> placement_order;

  const Buffer& buffer(BufferId id) const { return buffers[static_cast<size_t>(id.index)]; }
  BufferId add_buffer(Buffer buffer);            // fills in a unique name when empty
};

std::string_view device_name(Device device);     // "cpu", "cuda"

// Deep, nested programs included; constants share memory.
Program clone(const Program& program);

// Drops the constants, and views of them, that no line and no result uses. Buffers get new ids.
void remove_unused_constants(Program& program);

std::string to_string(const Program& program);
// Constants above 64 elements print by hash; see op::ConstantPool.
Program parse_program(std::string_view text, const op::OpTable& table, std::string where = "<text>", const op::ConstantPool& pool = {});
// Every tensor that to_string prints by hash only, nested programs included.
op::ConstantPool constant_pool(const Program& program);
// Every invariant above. Throws InternalError naming the line.
void verify(const Program& program);

// ---- liveness and memory ---------------------------------------------------------------------------------------------
// The root of a chain of views.
BufferId storage_of(const Program& program, BufferId id);
struct LiveRange {
  int32_t first = -1, last = -1;                 // lines that write first / read last; outputs live to the end
};
std::vector<LiveRange> live_ranges(const Program& program);      // by storage buffer
// True if the buffer's size follows from the input sizes (so that it is planned into the arena).
std::vector<char> planned_buffers(const Program& program);

// A place in the arena, and the planned temporaries that use it one after the other: each takes it over in place from
// the one before, which dies at its birth. What the caller gets as a whole result is computed in the caller's memory and
// has no slot.
struct ArenaSlot {
  std::vector<BufferId> buffers;                 // of equal size
  LiveRange range;                               // of all of them together
};
std::vector<ArenaSlot> arena_slots(const Program& program);      // by birth

// Chooses placement_order: best of several greedy orders on the sizes that `hint` gives to the symbols (program/plan).
void plan_memory(Program& program, const std::map<std::string, int64_t>& hint);

}  // namespace fuseloom::program
