// The kernel IR: how one group is computed.
//
// Semantics. A kernel is a tree of statements over named integers and scalar values.
//   - Integers are sym expressions over: the kernel's size symbols, loop axes in scope, `Define`d names in scope, and the
//     names of i64 values in scope (an address that depends on loaded data). They are 64-bit.
//   - A scalar value is defined once, by `Let` or as an accumulator of `Reduce`, and is visible from there to the end of
//     the enclosing body. Its type is a DType. Arithmetic is done in exactly that type: a f32 `add` rounds to f32, a f16
//     value exists only between a conversion and a load or store (the lowering computes in f32 and inserts casts).
//   - A loop runs its body for axis = begin, begin + 1, ..., end - 1. Its binding says who runs the iterations; it never
//     changes the result except through the order of a reduction, which is fixed for a given binding and size.
//       Serial    one after the other
//       Unroll    serial, written out (begin and end constant)
//       Core      the outermost loop of a CPU kernel: the runtime hands out ranges of it to threads
//       Vector    lanes of a vector of `width` elements, `unroll` vectors at a time; a tail is run with the missing lanes off
//       GridX..Z, ClusterX, ThreadX..Z     CUDA: block, block in cluster, and thread indices
//     Inside a Vector loop a value either varies over the lanes or is uniform; the emitter finds out which.
//   - A load outside its guards gives `fill` and touches no memory; a store outside its guard does nothing.
//   - `Reduce` opens a scope with accumulators; `Accumulate` combines a value into one of them; after the scope an
//     accumulator is an ordinary value: the combination over all iterations of the loops inside the scope. Lanes and
//     unrolled copies have accumulators of their own, combined at the end in a fixed tree. In a Serial loop the running
//     value of an accumulator can be read with `Current` (scans).
//   - `Transpose` copies a block from one buffer to another with its sides exchanged; `Prefetch` says what will be read
//     soon and means nothing.
//   - `Contract` is a tile contraction acc[m, n] = sum over k of lhs(m, k) * rhs(k, n): see below.
//   - Iterations of Core, Vector, Grid and Thread loops must not depend on each other except through Reduce and Barrier.
//
// A CUDA kernel is Grid loops, outermost, one inside the other, with the body of a block inside them.
//   - A Thread loop hands iteration t to thread t of its dimension; it runs from 0 to a constant. ThreadZ is outside ThreadY,
//     ThreadY outside ThreadX. Several may follow each other: the phases of a block, over the same threads. A block has as
//     many threads in a dimension as its longest loop (`block_of`); in a shorter one the others wait.
//   - What stands outside Thread loops is executed by all threads alike: it defines values, and it stores to Local buffers.
//   - A Local buffer is one thread's and lives as long as the block: values pass through it from phase to phase. Its size is
//     a constant; where all indices are constant once loops are unrolled, it is registers.
//   - A Shared buffer is the block's. What one thread writes another one reads behind a Barrier only.
//   - A Reduce with Thread loops inside combines over the threads of exactly these dimensions, and all of them know the
//     result: registers, then warps, then shared memory, in a fixed tree. Thread loops around it make one reduction each.
//   - Barriers and such reductions are where threads meet: all threads of a block reach them or none. They stand in no
//     Thread loop (a reduction: in whole ones of outer dimensions), and under no condition and in no loop that differs
//     between threads.
//   - Buffers start at multiples of kBufferAlignment bytes.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/id.h"
#include "op/op.h"
#include "sym/expr.h"

namespace fuseloom::kernel {

using BufferId = base::Id<struct BufferTag>;
using ScalarId = base::Id<struct ScalarTag>;

enum class Space : uint8_t {
  Global,   // a kernel argument
  Shared,   // CUDA: one per block
  Local,    // scratch of the running thread (CPU: a slice of the worker's scratch; CUDA: registers or local memory)
};
enum class Access : uint8_t { Read, Write, ReadWrite };

// What the executor promises of every argument's address, in bytes.
constexpr int64_t kBufferAlignment = 16;

struct Buffer {
  std::string name;
  DType dtype = DType::F32;
  Space space = Space::Global;
  Access access = Access::Read;
  sym::Expr size;              // elements
};

enum class Binding : uint8_t {
  Serial, Unroll, Core, Vector, GridX, GridY, GridZ, ClusterX, ThreadX, ThreadY, ThreadZ,
};

struct Scalar {
  std::string name;            // unique in the kernel
  DType dtype = DType::F32;
};

struct Statement;
using Body = std::vector<Statement>;

struct Loop {
  std::string axis;
  sym::Expr begin = 0, end;
  Binding binding = Binding::Serial;
  int32_t width = 1;           // Vector: lanes
  int32_t unroll = 1;          // Vector: vectors per iteration
  Body body;
};

// name = value, an integer for use in expressions.
struct Define {
  std::string name;
  sym::Expr value;
};

struct Constant {              // a number of the scalar's type; complex: real, imag
  double real = 0, imag = 0;
  int64_t integer = 0;         // used for integer and bool types (exact 64 bits)
};
struct IndexValue {            // an integer expression as a scalar (converted to the scalar's type)
  sym::Expr value;
};
struct Load {
  BufferId buffer;
  sym::Expr index;             // in elements, from the buffer's start
  std::vector<sym::Expr> guards;   // all nonzero: load; else `fill`
  double fill = 0;
};
struct Apply {                 // a primitive elementwise op; `attrs` only for the ops that have some (cast takes none: its target
  const op::OpRecord* op = nullptr;    // is the scalar's type; is_inf)
  std::vector<ScalarId> args;
  op::Attrs attrs;
};
struct Current {               // the running value of an accumulator, inside its Reduce and a Serial loop
  ScalarId accumulator;
};
struct Philox {                // the 32-bit word `counter mod 4` of Philox-4x32-10(seed, counter / 4); scalar type u32
  sym::Expr seed, counter;
};
using Source = std::variant<Constant, IndexValue, Load, Apply, Current, Philox>;

struct Let {
  ScalarId result;
  Source source;
};

struct Store {
  BufferId buffer;
  sym::Expr index;
  ScalarId value;              // of the buffer's type
  std::vector<sym::Expr> guards;
  op::Combine combine = op::Combine::None;   // not None: an atomic combine (CUDA) or a plain one in index order (CPU serial loops)
};

struct Accumulator {
  ScalarId result;             // for ArgMax/ArgMin: the index (i64)
  op::Combine combine = op::Combine::Add;
  ScalarId value;              // ArgMax/ArgMin only: the accumulated value beside the index
  bool last_of_equals = false; // ArgMax/ArgMin: the last instead of the first of equals
};
struct Reduce {
  std::vector<Accumulator> accumulators;
  Body body;
};
struct Accumulate {
  ScalarId accumulator;        // Accumulator::result
  ScalarId value;
  sym::Expr index;             // ArgMax/ArgMin: the index of this value
};

struct If {
  sym::Expr condition;
  Body then;
};

// CUDA only: all threads of a block meet, and see what the others wrote to Shared and Global buffers before.
struct Barrier {};

// CPU: target[target_index + c*target_pitch + r] = source[source_index + r*source_pitch + c] for r < rows, c < columns. The
// buffers have one type and do not overlap. By squares in registers, where element after element would be scattered.
struct Transpose {
  BufferId target;
  sym::Expr target_index = 0, target_pitch;
  BufferId source;
  sym::Expr source_index = 0, source_pitch;
  sym::Expr rows, columns;
};

// A hint: the element will be read soon. The index may lie outside of the buffer.
struct Prefetch {
  BufferId buffer;
  sym::Expr index;
};

// A tile contraction on the CPU. For m in [0, m_size), n in [0, n_size):
//     accumulator(m, n) = sum over k in [0, k_size) of lhs(m, k) * rhs(k, n)       (f32, f64 or i32, FMA allowed)
// then `epilogue` runs for each (m, n) with the accumulator as a value, vectorised along n.
// `lhs` and `rhs` are bodies that define lhs_value and rhs_value from the axes; they are packed, panel by panel, into the
// worker's scratch. When an operand is marked packed, its panels were prepared before: `*_packed` names a Global buffer
// laid out as [ceil(size / tile)][k_size][tile], zero-padded, in the accumulator's type, at element offset `*_offset`.
struct Contract {
  std::string m_axis, n_axis, k_axis;
  sym::Expr m_size, n_size, k_size;
  DType dtype = DType::F32;
  Body lhs, rhs;
  ScalarId lhs_value, rhs_value;
  BufferId lhs_packed, rhs_packed;              // invalid: pack from the body
  sym::Expr lhs_offset = 0, rhs_offset = 0;
  ScalarId accumulator;
  Body epilogue;
  // With a row axis, n = row * row_pitch + column: the epilogue runs for the columns below row_size only, with `row_axis` as
  // the row and `n_axis` as the column. (A convolution over padded rows: what lies between them is computed and dropped.)
  std::string row_axis;
  sym::Expr row_pitch = 0, row_size = 0;
  int32_t tile_m = 6, tile_n = 32;              // register tile; tile_n a multiple of the vector width
  int32_t block_k = 384, block_m = 96, block_n = 2048;   // cache blocks; block_m, block_n multiples of the tiles
};

struct Statement {
  std::variant<Loop, Define, Let, Store, Reduce, Accumulate, If, Barrier, Transpose, Prefetch, Contract> what;
};

struct Kernel {
  std::string name;                       // from the content: k_<kind>_<hash>; set by name_kernel
  std::vector<std::string> symbols;       // size arguments, in order
  sym::Facts facts;                       // what the kernel was compiled under (ranges of the symbols); checked at launch
  std::vector<Buffer> buffers;            // Global ones are the arguments, in order
  std::vector<Scalar> scalars;            // by ScalarId
  Body body;

  const Buffer& buffer(BufferId id) const { return buffers[static_cast<size_t>(id.index)]; }
  const Scalar& scalar(ScalarId id) const { return scalars[static_cast<size_t>(id.index)]; }
  BufferId add_buffer(Buffer buffer);
  ScalarId add_scalar(DType dtype, std::string name = "");   // "" gives v<N>
};

// Text (docs/ir-kernel.md has the grammar); print → parse → print is the identity.
std::string to_string(const Kernel& kernel);
Kernel parse_kernel(std::string_view text, const op::OpTable& table, std::string where = "<text>");
// Every invariant above: scoping, single definition, types of operands, sizes in scope, one Core loop at most and only
// outermost, Vector loops not nested, stores only to writable buffers, and where threads meet. Throws InternalError naming
// the statement.
void verify(const Kernel& kernel);
// CUDA: the threads of a block, x first.
std::array<int32_t, 3> block_of(const Kernel& kernel);
// Sets `name` to k_<kind>_<12 hex digits of the content hash>; equal kernels get equal names (B11).
void name_kernel(Kernel& kernel, std::string_view kind);

}  // namespace fuseloom::kernel
