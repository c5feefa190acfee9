// Writes one kernel as a CUDA function that reads top to bottom like the kernel.
//
// A Vector loop is written out: each of its values is one variable per lane, held by one thread. A value that does not depend
// on the lane is one variable. Loads and stores whose lanes lie next to each other move up to 16 bytes at once where the
// index is provably a multiple of that.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "emit/c_like.h"
#include "emit/cpp_prelude.h"
#include "emit/cuda.h"
#include "emit/narrow_results.h"

namespace fuseloom::emit {

class CudaKernelWriter {
 public:
  CudaKernelWriter(const kernel::Kernel& kernel, CppPrelude& prelude);
  std::string write();

 private:
  struct Value {
    std::vector<std::string> text;       // one, or one for each lane
    bool varying = false;
    std::vector<std::string> words;      // f16 and bf16, where they lie in pairs: a word for lanes 0 and 1, one for 2 and 3, ...
  };
  // A name that expressions can read.
  struct Integer {
    std::string text;                    // of a uniform one
    bool wide = true;                    // 64 bits
    bool varying = false;
    std::optional<sym::Expr> value;      // a varying define: expanded where it is used
    kernel::ScalarId scalar;             // a varying i64 scalar
  };
  struct Vector {
    std::string axis;
    int64_t begin = 0;
    int lanes = 1;
    std::vector<int> active;             // all, or the one whose condition is being looked at
  };
  struct OpenAccumulator {
    const kernel::Accumulator* accumulator = nullptr;
    DType dtype = DType::F32;            // of the combined value
    std::vector<std::string> value, index;   // one, or one for each lane; index: argmax and argmin
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
  void statement(const kernel::Contract& contract);
  void statement(const kernel::Transpose& transpose);
  void statement(const kernel::Prefetch& prefetch);
  void index_loop(const kernel::Loop& loop, std::string_view builtin);
  void thread_loop(const kernel::Loop& loop, size_t dimension);
  void counted_loop(const kernel::Loop& loop);
  void vector_loop(const kernel::Loop& loop);
  void open_scope();
  void close_scope();

  // ---- integers
  bool varies(const sym::Expr& expr) const;
  sym::Expr at_lane(const sym::Expr& expr, int lane) const;        // varying defines expanded, the axis replaced
  bool fits_32_bits(const sym::Expr& expr) const;                  // itself and everything inside
  std::string integer(const sym::Expr& expr, int lane = 0);
  std::string condition(const sym::Expr& expr, int lane = 0);
  std::string conditions(const std::vector<sym::Expr>& exprs, int lane = 0);   // "" when all are known to hold
  template <class Print>
  std::string print(const sym::Expr& expr, int lane, const Print& with);
  void declare_integer(const std::string& name, Integer integer, const sym::Range& range);

  // ---- scalars
  DType dtype_of(kernel::ScalarId id) const { return kernel_.scalar(id).dtype; }
  const Value& value(kernel::ScalarId id) const { return values_.at(id.index); }
  const std::string& text(kernel::ScalarId id, int lane) const;
  void publish(kernel::ScalarId id, Value value);
  // Defines the scalar, from one text or from one for each active lane.
  void define(kernel::ScalarId id, bool varying, const std::function<std::string(int lane)>& text);
  void let(kernel::ScalarId id, const kernel::Constant& constant);
  void let(kernel::ScalarId id, const kernel::IndexValue& index);
  void let(kernel::ScalarId id, const kernel::Load& load);
  void let(kernel::ScalarId id, const kernel::Apply& apply);
  void let(kernel::ScalarId id, const kernel::Current& current);
  void let(kernel::ScalarId id, const kernel::Philox& philox);
  std::string apply_text(kernel::ScalarId id, const kernel::Apply& apply, int lane);
  // The same for values that are seen through f16 and bf16 only; "" where that makes no difference.
  std::string coarse_text(kernel::ScalarId id, const kernel::Apply& apply, int lane);
  bool is_one_or_more(kernel::ScalarId id) const;
  const kernel::Apply* made_by(kernel::ScalarId id, std::string_view op) const;
  // f32 to pairs of f16 or bf16.
  void define_words(kernel::ScalarId id, kernel::ScalarId from);
  std::string constant_text(DType dtype, double real, double imag, int64_t integer) const;

  // ---- memory
  std::string element(kernel::BufferId buffer, const sym::Expr& index, int lane);
  std::string fill_text(DType dtype, double fill) const;           // as stored
  // How many neighbouring elements the lanes' access moves at once; 1: one by one.
  int chunk_of(kernel::BufferId buffer, const sym::Expr& index, const std::vector<sym::Expr>& guards) const;
  std::string lanes_type(DType dtype, int count);
  bool in_words(DType dtype) const { return dtype == DType::F16 || dtype == DType::BF16; }
  // As many neighbouring elements as the type has, from this lane's on.
  std::string lanes_place(kernel::BufferId buffer, const std::string& type, const sym::Expr& index, int lane);

  // ---- reductions
  std::string combine(op::Combine combine, DType dtype, const std::string& a, const std::string& b);
  std::string identity(const kernel::Accumulator& accumulator, DType dtype) const;
  void accumulate(const OpenAccumulator& open, size_t at, const std::string& value, const std::string& index);
  void combine_threads(const std::vector<OpenAccumulator>& accumulators, const std::set<size_t>& dimensions);
  std::string exchange(DType dtype);

  const kernel::Kernel& kernel_;
  CppPrelude& prelude_;
  const std::array<int32_t, 3> block_;
  const NarrowResults narrow_;
  SourceWriter out_;
  NameScope names_;
  sym::Facts facts_;
  std::map<std::string, Integer> integers_;
  std::unordered_map<int32_t, Value> values_;
  std::vector<std::string> buffer_names_;
  std::optional<Vector> vector_;
  std::map<int32_t, OpenAccumulator> open_;                        // by Accumulator::result
  int partial_loops_ = 0;                                          // open thread loops that some threads skip
  int counted_loops_ = 0;                                          // open serial and unrolled loops
  std::map<std::string, int> partials_;                            // shared arrays for reductions: element type → how many
  struct Scope {
    std::vector<std::string> integers;
  };
  std::vector<Scope> scopes_;
};

}  // namespace fuseloom::emit
