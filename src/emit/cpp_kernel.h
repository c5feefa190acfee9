// Writes one kernel as a C++ function that reads top to bottom like the kernel.
//
// In a vector loop every value is either uniform (one scalar variable) or varying (one vector variable per unrolled copy).
// The body is written up to three times: `copies` vectors at a time, one vector at a time, and one with missing lanes.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "emit/c_like.h"
#include "emit/cpp.h"
#include "emit/cpp_prelude.h"

namespace fuseloom::emit {

// Where the bytes of a worker's scratch go: Local buffers, then the panels and the tile of each contraction, 64-byte
// aligned each. Contractions that are not nested share one region.
struct ScratchLayout {
  std::unordered_map<int32_t, sym::Expr> local_offset;   // by BufferId
  sym::Expr contract_offset;
  sym::Expr bytes;
};
ScratchLayout layout_scratch(const kernel::Kernel& kernel);

// Where the parts of one contraction's scratch are, in bytes behind its begin.
struct ContractLayout {
  sym::Expr lhs, rhs, tile;
  sym::Expr bytes;
  int64_t lhs_pitch = 0, tile_pitch = 0;   // elements from row to row
};
ContractLayout layout_contract(const kernel::Contract& contract, const kernel::Kernel& kernel);

class CppKernelWriter {
 public:
  CppKernelWriter(const kernel::Kernel& kernel, const CppTarget& target, CppPrelude& prelude);
  std::string write();

 private:
  // The vector loop that is being written.
  struct Vector {
    std::string axis;        // its name in the kernel
    std::string position;    // the C variable: the axis' value in lane 0 of copy 0
    int width = 1;
    int copies = 1;
    std::string count;       // C text of the number of active lanes; empty: all. Only with copies == 1.
  };
  struct Value {
    bool varying = false;
    std::vector<std::string> text;   // one, or one per copy when varying
    int mask_bits = 0;               // of a varying bool
  };
  // A name that expressions can read.
  struct Integer {
    std::string text;                     // the C variable of a uniform one
    bool varying = false;
    std::optional<sym::Expr> value;       // a varying define: expanded where it is used
    kernel::ScalarId scalar;              // a varying i64 scalar
  };
  // How a buffer is accessed along the vector axis.
  struct Access {
    enum class Kind : uint8_t { Unit, Reverse, Step, Indexed } kind = Kind::Unit;
    sym::Expr base;     // at lane 0 of copy 0
    sym::Expr step;     // Step; for the copies of all affine kinds
  };
  // The C variables of one running combination. `index`: argmax and argmin only.
  struct Running {
    std::string value, index;
  };
  // What an accumulator is while its scope is open.
  struct OpenAccumulator {
    const kernel::Accumulator* accumulator = nullptr;
    DType dtype = DType::F32;                       // of the combined value
    std::optional<Running> uniform;
    std::map<int, std::vector<Running>> lanes;      // by vector width: one per copy
    bool inside_vector = false;                     // opened inside the vector loop: stays a vector
  };

  // ---- statements
  void body(const kernel::Body& statements);
  void statement(const kernel::Loop& loop);
  void statement(const kernel::Define& define);
  void statement(const kernel::Let& let);
  void statement(const kernel::Store& store);
  void statement(const kernel::Reduce& reduce);
  void statement(const kernel::Accumulate& accumulate);
  void statement(const kernel::If& branch);
  void statement(const kernel::Barrier& barrier);
  void statement(const kernel::Transpose& transpose);
  void statement(const kernel::Prefetch& prefetch);
  void statement(const kernel::Contract& contract);

  void serial_loop(const kernel::Loop& loop);
  void vector_loop(const kernel::Loop& loop);
  // The loops that run axis = begin ... end - 1 by vectors: the main one, one for single vectors, the tail.
  void vector_versions(const std::string& axis, const sym::Expr& begin, const sym::Expr& end, int width, int unroll,
                       const std::function<void()>& write_body);
  // Whether the body can be run by lanes; else the loop is written as a serial one.
  bool is_vectorizable(const kernel::Loop& loop) const;
  bool is_vectorizable(const kernel::Body& statements, std::set<std::string>& varying) const;
  void open_scope();
  void close_scope();

  // ---- integers
  bool varies(const sym::Expr& expr) const;
  bool varies(const std::vector<sym::Expr>& exprs) const;
  sym::Expr expand(const sym::Expr& expr) const;                       // varying defines replaced by their values
  sym::Expr at_copy(const sym::Expr& expr, int copy) const;            // axis + copy*width for axis
  std::string integer(const sym::Expr& uniform);                       // C text
  std::string integer_term(const sym::Expr& uniform);                  // fit as an operand of +
  std::string condition(const sym::Expr& uniform);
  std::string lanes(const sym::Expr& varying, int copy);               // C text of i64 lanes
  std::string lane_mask(const sym::Expr& condition, int copy, int bits);
  // The step of an expanded expression along the axis, if it has one that does not depend on the lane.
  std::optional<sym::Expr> step_of(const sym::Expr& expanded) const;
  IntegerText integer_text();
  // Writes the parts of index expressions that do not depend on anything defined in `statements` nor on `loop_names`:
  // in front of a loop for all of its accesses (`in_loop`), at the head of a body for those in its loops.
  void hoist(const kernel::Body& statements, const std::vector<std::string>& loop_names, bool in_loop = true);
  sym::Expr replace_hoisted(const sym::Expr& expr) const;
  void declare_axis(const std::string& axis, const std::string& text, const sym::Expr& begin, const sym::Expr& end);

  // ---- scalars
  DType dtype_of(kernel::ScalarId id) const { return kernel_.scalar(id).dtype; }
  const Value& value(kernel::ScalarId id) const { return values_.at(id.index); }
  bool varies(kernel::ScalarId id) const { return value(id).varying; }
  std::string scalar(kernel::ScalarId id) const;                       // C text of a uniform value
  std::string vector(kernel::ScalarId id, int copy);                   // lanes; a uniform one is splat
  std::string mask(kernel::ScalarId id, int copy, int bits);           // of a bool
  std::string splat(DType dtype, const std::string& text);
  std::string splat_mask(const std::string& text, int bits);
  // Declares the C variables of a scalar and gives their texts.
  void define_uniform(kernel::ScalarId id, const std::string& text);
  void define_varying(kernel::ScalarId id, const std::vector<std::string>& text, int mask_bits = 0);
  std::string c_value_type(kernel::ScalarId id, int mask_bits);
  void publish(kernel::ScalarId id, Value value);

  void let(kernel::ScalarId id, const kernel::Constant& constant);
  void let(kernel::ScalarId id, const kernel::IndexValue& index);
  void let(kernel::ScalarId id, const kernel::Load& load);
  void let(kernel::ScalarId id, const kernel::Apply& apply);
  void let(kernel::ScalarId id, const kernel::Current& current);
  void let(kernel::ScalarId id, const kernel::Philox& philox);
  std::string apply_uniform(kernel::ScalarId id, const kernel::Apply& apply);
  // The f32 value that a bf16 one was narrowed from, to be rounded without leaving f32.
  std::optional<kernel::ScalarId> narrowed_from(const kernel::Apply& widening, DType result) const;
  std::string apply_lanes(kernel::ScalarId id, const kernel::Apply& apply, int copy, int& mask_bits);
  std::string constant_text(DType dtype, double real, double imag, int64_t integer) const;

  // ---- memory
  Access access_of(const sym::Expr& index) const;
  std::string address(kernel::BufferId buffer, const sym::Expr& index);     // "x + i*n"
  std::string element(kernel::BufferId buffer, const sym::Expr& index);     // "x[i*n]"
  int storage_mask_bits(DType dtype) const;
  std::string fill_text(DType dtype, double fill) const;                    // as stored
  // The condition of a partly guarded access, as a mask of the storage's width; the loop's own missing lanes included.
  std::string access_mask(const std::vector<sym::Expr>& guards, int copy, int bits);
  std::string load_lanes(const kernel::Load& load, const Access& access, const std::vector<sym::Expr>& varying_guards, int copy);
  // The C variable that says whether the buffer is written past the caches; empty: never.
  std::string stream_flag(kernel::BufferId id);
  void store_lanes(const kernel::Store& store, const Access& access, const std::vector<sym::Expr>& varying_guards, int copy);
  // Splits guards, and the enclosing varying ifs, into uniform conditions (one text, empty if none) and varying ones.
  std::string split_guards(const std::vector<sym::Expr>& guards, std::vector<sym::Expr>& varying);

  // ---- reductions
  // a op b; lanes 0: scalars.
  std::string combine(op::Combine combine, DType dtype, int lanes, const std::string& a, const std::string& b);
  std::string identity(const kernel::Accumulator& accumulator, DType dtype) const;
  Running declare_running(const OpenAccumulator& open, const std::string& suffix, int lanes);
  // Combines a value into a running one, where `on` holds (a mask's text; empty: everywhere).
  void accumulate(const OpenAccumulator& open, const Running& running, int lanes, const Running& with, const std::string& on);
  Running finish(const OpenAccumulator& open);
  // Which vector loops below combine into the accumulator: width → most copies. `uniform`: whether something else does.
  void find_parts(const kernel::Body& statements, kernel::ScalarId accumulator, int width, int copies,
                  std::map<int, int>& parts, bool& uniform) const;

  // ---- contractions (cpp_contract.cpp)
  // C text of the sizes and places that the parts of one contraction share.
  struct ContractNames;
  void pack_rhs(const kernel::Contract& contract, const ContractNames& names);
  void pack_lhs(const kernel::Contract& contract, const ContractNames& names);
  void contract_epilogue(const kernel::Contract& contract, const ContractNames& names);
  std::string micro_kernel(const kernel::Contract& contract);
  int contract_lanes(const kernel::Contract& contract) const;
  // Registers a C variable as an integer that expressions can name.
  sym::Expr internal_symbol(const std::string& symbol, const std::string& text);

  const kernel::Kernel& kernel_;
  const CppTarget& target_;
  CppPrelude& prelude_;
  ScratchLayout scratch_;
  SourceWriter out_;
  NameScope names_;
  sym::Facts facts_;                                        // of the kernel, and the ranges of the axes in scope
  std::unordered_map<int32_t, kernel::ScalarId> narrowed_from_;   // bf16 values that were cast from f32
  std::map<std::string, Integer> integers_;
  std::unordered_map<int32_t, Value> values_;
  std::vector<std::string> buffer_names_;
  std::vector<std::string> stream_names_;                   // by BufferId: the flag "past the caches"
  std::set<int32_t> streamed_;                              // BufferIds whose flag is used
  std::optional<Vector> vector_;
  std::vector<sym::Expr> varying_conditions_;               // of enclosing ifs
  std::map<int32_t, OpenAccumulator> open_;                 // by Accumulator::result
  struct Scope {
    std::vector<std::string> integers;
    size_t hoisted = 0;
    std::map<std::pair<sym::Expr, int>, std::string> lane_variables;   // i64 lanes already written in this scope
  };
  std::vector<Scope> scopes_;
  std::vector<std::pair<sym::Expr, std::string>> hoisted_;  // sums and the names of integers that hold them
  int hoist_count_ = 0;
};

}  // namespace fuseloom::emit
